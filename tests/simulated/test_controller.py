"""Schedules run kernel by kernel on the simulated GPU, against what their kernels cost apart."""

import dataclasses
import functools
import statistics
from collections.abc import Sequence

import pytest

from simulated_steps import Executed
from simulated_steps import execute as control
from underclock.gpus.models import GpuModel, Latency, SwitchingModel, gpu_model
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import Clocks, Kernel, Step
from underclock.records.latencies import LatencyTable
from underclock.runtime.simulated import Scheduled, StepLengths
from underclock.testing import Fault, FaultKind, FaultScript

pytestmark = pytest.mark.slow

_AT_ONCE = Latency(shares=(0.0, 1.0), points_s=(0.0, 0.0))
_CALL_S = 4.5e-3
_STEADY = Latency(shares=(0.0, 1.0), points_s=(_CALL_S, _CALL_S))
_FREE = SwitchingModel(setter=_AT_ONCE, core_s=0.0, mem_s=0.0, mem_stall_s=0.0)
_EXACT = SwitchingModel(setter=_STEADY, target_spread=0.0, jitter=0.0, mem_s=0.02)
_BELIEVED = LatencyTable.constant(0.02, call_s=_CALL_S)  # which is what `_EXACT` takes

# None of them reaches the power cap.
_SLOW, _FAST = Clocks(core_mhz=900, mem_mhz=9501), Clocks(core_mhz=1200, mem_mhz=9501)
_PAIRS = {
    "rtx3080ti": (_SLOW, _FAST),
    "a100": (Clocks(core_mhz=900), Clocks(core_mhz=1200)),
    "h200": (Clocks(core_mhz=1005), Clocks(core_mhz=1305)),
}


def _under(
    clocks: Sequence[Clocks], table: LatencyTable | None, predicted_s: Sequence[float]
) -> Scheduled:
    return Scheduled(clocks=tuple(clocks), table=table, predicted_s=tuple(predicted_s))


def _model(name: str, switching: SwitchingModel | None) -> GpuModel:
    return dataclasses.replace(gpu_model(name), switching=switching)


@pytest.fixture(scope="module")
def launches(step: Step) -> list[Kernel]:
    return [step.kernels[index] for index in step.order]


def _alone(
    name: str, launches: Sequence[Kernel], clocks: Sequence[Clocks], temperature_c: float = 50.0
) -> list[tuple[float, float]]:
    """Measure every launch alone at its clocks; return true times and energies."""
    return [
        _launch_alone(name, kernel, setting, temperature_c)
        for kernel, setting in zip(launches, clocks, strict=True)
    ]


@functools.cache  # tests have the same launches at the same clocks
def _launch_alone(
    name: str, kernel: Kernel, setting: Clocks, temperature_c: float
) -> tuple[float, float]:
    # A new GPU each time, so that its first loop draws the noise of a schedule's.
    with simulated_rig(_model(name, _FREE)) as rig, ClockLeases(rig.gpu).hold(setting):
        rig.device.temperature_c = temperature_c
        with rig.launcher.loop([kernel]):
            start_s, start_j = rig.clock.now_s(), rig.device.energy_j
            rig.clock.sleep_s(0.1)
            running = rig.device.running
            assert running is not None
            assert not rig.device.capped
            done = running.launches + running.share
        return (rig.clock.now_s() - start_s) / done, (rig.device.energy_j - start_j) / done


def _times_s(name: str, launches: Sequence[Kernel], clocks: Sequence[Clocks]) -> list[float]:
    return [time_s for time_s, _ in _alone(name, launches, clocks)]


def _executed(
    name: str,
    launches: Sequence[Kernel],
    clocks: Sequence[Clocks],
    switching: SwitchingModel | None,
    table: LatencyTable = _BELIEVED,
    *,
    seed: int = 0,
    steps: int = 3,
) -> Executed:
    predicted_s = _times_s(name, launches, clocks)
    with simulated_rig(_model(name, switching), seed=seed) as rig:
        return control(rig, launches, _under(clocks, table, predicted_s), steps=steps, warm_s=5.0)


def _check_sum(
    executed: Executed, name: str, launches: Sequence[Kernel], clocks: Sequence[Clocks]
) -> None:
    """Check that a schedule takes the sum of what its launches do alone."""
    alone = _alone(name, launches, clocks, executed.temperature_c)
    assert executed.time_s == pytest.approx([sum(time_s for time_s, _ in alone)] * 3, rel=2e-3)
    assert executed.energy_j == pytest.approx([sum(joule for _, joule in alone)] * 3, rel=3e-3)


def _segments(launches: Sequence[Kernel], pair: Sequence[Clocks], count: int) -> list[Clocks]:
    """Give equally many launches to each of a few segments, by turns."""
    return [pair[i * count // len(launches) % 2] for i in range(len(launches))]


@pytest.mark.parametrize("name", _PAIRS)
def test_launches_add_up_where_delays_are_known_and_segments_longer(
    name: str, launches: list[Kernel]
) -> None:
    clocks = _segments(launches, _PAIRS[name], 2 if name == "h200" else 4)
    executed = _executed(name, launches, clocks, _EXACT)

    _check_sum(executed, name, launches, clocks)
    assert executed.switches == (executed.planned,) * 3
    assert max(map(abs, executed.misses_s)) < 1e-4


@pytest.mark.parametrize("every", [1, 4])
def test_steps_of_any_length_are_followed_from_marks_seen_late(
    launches: list[Kernel], every: int
) -> None:
    clocks = _segments(launches, (_SLOW, _FAST), 4)
    predicted_s = tuple(_times_s("rtx3080ti", launches, clocks))
    usual = Scheduled(clocks=tuple(clocks), table=_BELIEVED, predicted_s=predicted_s)
    varying = dataclasses.replace(
        usual,
        marks=tuple(range(0, len(launches), every)),
        lengths=StepLengths(spread=0.1, seed=3),
        looks=Latency(shares=(0.0, 1.0), points_s=(40e-6, 100e-6)),
    )
    with simulated_rig(_model("rtx3080ti", _EXACT)) as rig:
        executed = control(rig, launches, varying, steps=8, warm_s=5.0)
    per_length_s = [t / length for t, length in zip(executed.time_s, executed.lengths, strict=True)]

    assert statistics.pstdev(executed.lengths) > 0.03
    assert per_length_s == pytest.approx([sum(predicted_s)] * 8, rel=5e-3)
    assert executed.switches == (4,) * 8
    assert statistics.median(map(abs, executed.misses_s)) < 1e-3


def test_changes_are_aimed_where_the_schedule_says(launches: list[Kernel]) -> None:
    clocks = _segments(launches, (_SLOW, _FAST), 2)
    predicted_s = tuple(_times_s("rtx3080ti", launches, clocks))
    aims_s = tuple(2e-3 if pair is _FAST else -3e-3 for pair in clocks)
    aimed = Scheduled(clocks=tuple(clocks), table=_BELIEVED, predicted_s=predicted_s, aims_s=aims_s)
    with simulated_rig(_model("rtx3080ti", _EXACT)) as rig:
        executed = control(rig, launches, aimed, steps=2, warm_s=10.0)

    assert sorted(executed.misses_s) == pytest.approx([-3e-3] * 2 + [2e-3] * 2, abs=5e-4)


def test_a_clock_that_the_driver_refuses_is_given_back_and_asked_for_no_more(
    launches: list[Kernel],
) -> None:
    clocks = _segments(launches, (_SLOW, _FAST), 2)
    schedule = _under(clocks, _BELIEVED, _times_s("rtx3080ti", launches, clocks))
    revoked = FaultScript([Fault(at_s=0.3, kind=FaultKind.PERMISSION_REVOKED, for_s=4.0)])
    with simulated_rig(_model("rtx3080ti", _EXACT), faults=revoked) as rig:
        executed = control(rig, launches, schedule, steps=2, warm_s=5.0)

    assert executed.switches == (0, 0)
    assert max(executed.time_s) < sum(schedule.predicted_s)
