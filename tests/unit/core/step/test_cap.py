"""A step under its cap: left alone below the limit, held at one common clock where it is not."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.step.power_cap import (
    LaunchCosts,
    PowerCap,
    SettledStep,
    greatest_mean_w,
    is_power_capped,
    settle,
    settled_sums,
)
from underclock.core.step.power_capped_step import lag_of
from underclock.physics.cap import REAL, SIMULATED, Fading
from underclock.records import (
    AUTO,
    Clocks,
    ThrottleReason,
    Window,
)

seeds = st.integers(0, 2**32 - 1)
CORES = np.array([900, 1200, 1500, 1800])


def costs(seed: int = 0, kernels: int = 2) -> LaunchCosts:
    """Kernels of a millisecond or some, one hotter than the other, at core clocks."""
    random = np.random.default_rng(seed)
    part = CORES / CORES[-1]
    bound = random.uniform(0.2, 1.0, (kernels, 1))
    time_s = random.uniform(1e-3, 30e-3, (kernels, 1)) * (bound / part + 1.0 - bound)
    power_w = 60.0 + random.uniform(50.0, 400.0, (kernels, 1)) * part**3
    return LaunchCosts(
        settings=tuple(Clocks(core_mhz=int(core)) for core in CORES),
        time_s=time_s,
        energy_j=time_s * power_w,
    )


def mean_w(settled: SettledStep) -> float:
    return float(settled.energy_j.sum() / settled.time_s.sum())


@settings(max_examples=20)
@given(seeds)
def test_a_schedule_below_the_limit_is_left_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    of, order = costs(seed), random.integers(0, 2, 30)
    choice = random.integers(0, 4, 30)
    at = order, choice
    cap = PowerCap(limit_w=1e3, order=order, boost=3)
    settled = settle(cap, of, choice)
    assert settled.time_s == pytest.approx(of.time_s[at])
    assert settled.energy_j == pytest.approx(of.energy_j[at])
    assert settled.core_mhz == pytest.approx(CORES[choice])
    greatest_w = greatest_mean_w(cap, settled.time_s, settled.energy_j)
    powers_w = of.energy_j[at] / of.time_s[at]
    assert powers_w.min() - 1e-9 <= greatest_w <= powers_w.max() + 1e-9
    at_limit = settle(dataclasses.replace(cap, limit_w=greatest_w), of, choice)
    assert at_limit.core_mhz == pytest.approx(CORES[choice])


@settings(max_examples=20)
@given(seeds)
def test_a_schedule_beyond_it_is_slowed_and_cooled_and_never_raised(seed: int) -> None:
    random = np.random.default_rng(seed)
    of, order = costs(seed), random.integers(0, 2, 30)
    choice = random.integers(0, 4, 30)
    at = order, choice
    free = settle(PowerCap(limit_w=math.inf, order=order, boost=3), of, choice)
    limit_w = 0.9 * greatest_mean_w(PowerCap(limit_w=1.0, order=order, boost=3), *free_of(free))
    settled = settle(PowerCap(limit_w=limit_w, order=order, boost=3), of, choice)
    assert (settled.time_s >= of.time_s[at] * (1.0 - 1e-9)).all()
    assert (settled.core_mhz <= CORES[choice] + 1e-9).all()
    # A lower limit makes it slower yet.
    lower = settle(PowerCap(limit_w=0.9 * limit_w, order=order, boost=3), of, choice)
    assert lower.time_s.sum() >= settled.time_s.sum() * (1.0 - 1e-9)
    clocks = [np.average(one.core_mhz, weights=one.time_s) for one in (lower, settled)]
    assert clocks[0] <= clocks[1] + 1e-6


def free_of(settled: SettledStep) -> tuple[np.ndarray, np.ndarray]:
    return settled.time_s, settled.energy_j


def test_one_kernel_settles_where_it_draws_the_limit() -> None:
    of = costs(1, kernels=1)
    powers_w = (of.energy_j / of.time_s)[0]
    limit_w = 0.5 * (powers_w[1] + powers_w[2])
    cap = PowerCap(limit_w=float(limit_w), order=np.zeros(40, dtype=np.int64), boost=3)
    settled = settle(cap, of, np.full(40, 3))
    assert ((settled.core_mhz > 1200) & (settled.core_mhz < 1500)).all()
    assert mean_w(settled) == pytest.approx(limit_w, rel=0.02)
    assert settled.core_mhz == pytest.approx(settled.core_mhz[0])
    # Less than any clock draws: it stays at the least.
    cold = settle(dataclasses.replace(cap, limit_w=1.0), of, np.full(40, 3))
    assert (cold.core_mhz == 900).all()
    # A higher clock that draws less holds a loop that comes from above.
    dips = dataclasses.replace(of, energy_j=of.time_s * np.array([[90.0, 120.0, 100.0, 140.0]]))
    above = settle(dataclasses.replace(cap, limit_w=110.0), dips, np.full(40, 3))
    assert above.core_mhz == pytest.approx(1500.0 + 0.25 * (1800.0 - 1500.0), rel=1e-3)


_LIMIT_W = 200.0


def _sample(power_w: float, reasons: ThrottleReason | None = None) -> Window:
    return Window(
        kernel="k", asked=AUTO, time_s=2.0, energy_j=2.0 * power_w, throttle_reasons=reasons
    )


def test_where_the_driver_was_asked_power_decides_nothing() -> None:
    samples = [
        _sample(210.0, ThrottleReason(0)),
        _sample(120.0, ThrottleReason.SW_POWER_CAP),
        _sample(210.0),
    ]

    assert is_power_capped(samples, _LIMIT_W).tolist() == [False, True, False]


@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_boards_side_by_side_take_what_each_takes_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    boards = [costs(seed)] * 2
    more = random.uniform(0.9, 1.1, (2, 1))
    boards[1] = dataclasses.replace(boards[0], energy_j=more * boards[0].energy_j)
    order = random.integers(0, 2, 200)
    cap = PowerCap(limit_w=float(random.uniform(150.0, 400.0)), order=order, boost=3)
    choice = random.integers(1, 4, 200)
    sums = settled_sums(cap, boards, choice)
    for board, took in zip(boards, sums, strict=True):
        alone = settle(cap, board, choice)
        # Launches are added up in parts of a sixteenth of the window, here one to six of them.
        assert took[0] == pytest.approx(alone.time_s.sum(), rel=0.01)
        assert took[1] == pytest.approx(alone.energy_j.sum(), rel=0.01)


_CORES = tuple(range(1200, 1815, 15))
_HELD_W = 100.0


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
    cap = PowerCap(limit_w=_HELD_W, order=order, boost=len(_CORES) - 1, fading=fading)
    return cap, costs


_EVEN = _step((1.0, 130.0))


def test_a_step_shorter_than_the_mean_has_one_ceiling() -> None:
    assert lag_of(_EVEN, _HELD_W, _step((0.01, 60.0), (0.02, 150.0))) == (1.0, 1.0)


@pytest.mark.parametrize("fading", [SIMULATED, REAL])
def test_after_a_long_part_of_little_power_clocks_climb_slowly(fading: Fading) -> None:
    uneven = _step((0.2, 60.0), (0.4, 150.0), fading=fading)
    time, energy = lag_of(_step((1.0, 130.0), fading=fading), _HELD_W, uneven)
    assert time > 1.002
    assert energy < 0.99
