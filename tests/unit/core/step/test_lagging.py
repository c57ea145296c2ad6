"""What a power loop that lags makes of a step of long parts."""

import numpy as np
import pytest

from underclock.core.step.power_cap import LaunchCosts, PowerCap
from underclock.core.step.power_capped_step import lag_of
from underclock.physics.cap import REAL, SIMULATED, Fading
from underclock.records import Clocks

_CORES = tuple(range(1200, 1815, 15))
_LIMIT_W = 100.0


def _step(*parts: tuple[float, float], fading: Fading = SIMULATED) -> tuple[PowerCap, LaunchCosts]:
    """Return a step of parts: each of so many seconds and watts at the highest clock."""
    share = np.array(_CORES) / _CORES[-1]
    pieces = [(seconds / 10, watts) for seconds, watts in parts for _ in range(10)]
    time_s = np.array([seconds / share for seconds, _ in pieces])
    power_w = np.array([watts * share**3 for _, watts in pieces])
    costs = LaunchCosts(
        settings=tuple(Clocks(core_mhz=core) for core in _CORES),
        time_s=time_s,
        energy_j=time_s * power_w,
    )
    order = np.arange(len(pieces))
    cap = PowerCap(limit_w=_LIMIT_W, order=order, boost=len(_CORES) - 1, fading=fading)
    return cap, costs


_EVEN = _step((1.0, 130.0))


def test_a_step_shorter_than_the_mean_has_one_ceiling() -> None:
    assert lag_of(_EVEN, _LIMIT_W, _step((0.01, 60.0), (0.02, 150.0))) == (1.0, 1.0)


@pytest.mark.parametrize("fading", [SIMULATED, REAL])
def test_after_a_long_part_of_little_power_clocks_climb_slowly(fading: Fading) -> None:
    uneven = _step((0.2, 60.0), (0.4, 150.0), fading=fading)
    time, energy = lag_of(_step((1.0, 130.0), fading=fading), _LIMIT_W, uneven)
    assert time > 1.002
    assert energy < 0.99
