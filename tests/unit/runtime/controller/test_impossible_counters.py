"""What a run drew where its counter shows what cannot be."""

import random

import pytest

from underclock.records import Clocks, ThrottleReason
from underclock.runtime.controller.gauges import Gauge, TelemetryBuffer

_LIMIT_W = 350.0


def _shown(readings: list[tuple[float, float]], *, dropped: int = 0) -> TelemetryBuffer:
    shown = TelemetryBuffer()
    shown.add(
        [
            Gauge(
                at_s=at_s,
                clocks=Clocks(core_mhz=1500),
                reasons=ThrottleReason.NONE,
                power_w=300.0,
                energy_j=energy_j,
                limit_w=_LIMIT_W,
                dropped=dropped,
            )
            for at_s, energy_j in readings
        ]
    )
    return shown


def _counted(seed: int, count: int) -> list[tuple[float, float]]:
    drawn = random.Random(seed)  # noqa: S311
    readings, at_s, energy_j = [], drawn.uniform(0.0, 1e6), drawn.uniform(0.0, 1e9)
    for _ in range(count):
        readings.append((at_s, energy_j))
        waited_s = drawn.uniform(0.05, 1.0)
        at_s, energy_j = at_s + waited_s, energy_j + drawn.uniform(30.0, _LIMIT_W) * waited_s
    return readings


@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_of_a_counter_in_another_unit_nothing_is_known(seed: int, scale: float) -> None:
    readings = [(at_s, scale * energy_j) for at_s, energy_j in _counted(seed, 60)]

    assert _shown(readings).energy_j is None


@pytest.mark.parametrize("seed", range(5))
def test_of_a_run_in_which_the_counter_leapt_nothing_is_known(seed: int) -> None:
    readings = _counted(seed, 60)
    at = 1 + seed * 11
    leapt = [(s, j + (1e9 if n >= at else 0.0)) for n, (s, j) in enumerate(readings)]

    shown = _shown(leapt)

    assert shown.energy_j is None
    assert "1 readings of the energy counter cannot be" in shown.dropped()
