"""Schedules run kernel by kernel on the simulated GPU, against what their kernels cost apart."""

import dataclasses
import functools
import statistics
from collections.abc import Sequence

import pytest

from made_switches import switch
from simulated_steps import Executed
from simulated_steps import execute as control
from underclock.gpus.models import GpuModel, Latency, SwitchingModel, gpu_model
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import Clocks, Kernel, Step
from underclock.records.latencies import Domain, LatencyTable
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
_LOW_MEM = Clocks(core_mhz=1200, mem_mhz=5001)
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


def test_a_schedule_with_one_setting_is_the_step_at_that_lock(launches: list[Kernel]) -> None:
    clocks = _LOW_MEM
    predicted_s = [1e-3] * len(launches)
    with simulated_rig("rtx3080ti") as rig:
        executed = control(
            rig,
            launches,
            _under([clocks] * len(launches), _BELIEVED, predicted_s),
            steps=3,
        )
    with (
        simulated_rig("rtx3080ti") as rig,
        ClockLeases(rig.gpu).hold(clocks),
        rig.launcher.loop(launches) as loop,
    ):
        rig.clock.sleep_s(150.0)
        before, before_j, before_s = loop.progress(), rig.device.energy_j, rig.clock.now_s()
        rig.clock.sleep_s(60.0)
        after = loop.progress()
        power_w = (rig.device.energy_j - before_j) / (rig.clock.now_s() - before_s)

    step_s = (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)
    assert executed.time_s == pytest.approx([step_s] * 3, rel=1e-3)
    assert executed.energy_j == pytest.approx([step_s * power_w] * 3, rel=1e-3)
    assert (executed.planned, executed.switches, executed.misses_s, executed.dropped) == (
        0,
        (0,) * 3,
        (),
        0,
    )


@pytest.mark.parametrize("name", _PAIRS)
def test_launches_add_up_where_delays_are_known_and_segments_longer(
    name: str, launches: list[Kernel]
) -> None:
    clocks = _segments(launches, _PAIRS[name], 2 if name == "h200" else 4)
    executed = _executed(name, launches, clocks, _EXACT)

    _check_sum(executed, name, launches, clocks)
    assert executed.switches == (executed.planned,) * 3
    assert max(map(abs, executed.misses_s)) < 1e-4


def _stalling() -> LatencyTable:
    switches = (
        switch(Domain.CORE, 0.02, call_s=_CALL_S),
        switch(Domain.MEMORY, 0.02, call_s=_CALL_S, stall_s=0.01),
    )
    return LatencyTable(evidence=None, gpu=None, switches=switches)


def test_memory_stalls_come_on_top(launches: list[Kernel]) -> None:
    clocks = _segments(launches, (_FAST, _LOW_MEM), 4)
    executed = _executed("rtx3080ti", launches, clocks, _EXACT, _stalling())

    sum_s = sum(_times_s("rtx3080ti", launches, clocks))
    assert executed.switches == (4,) * 3
    assert max(map(abs, executed.misses_s)) < 1e-4
    assert executed.time_s == pytest.approx([sum_s + 4 * 0.01] * 3, rel=1e-3)


def test_of_two_clocks_at_one_boundary_one_is_asked_for_early(launches: list[Kernel]) -> None:
    clocks = _segments(launches, (_SLOW, _LOW_MEM), 4)
    executed = _executed("rtx3080ti", launches, clocks, _EXACT, _stalling())

    assert (executed.planned, executed.switches) == (8, (8,) * 3)
    assert sorted(executed.misses_s) == pytest.approx([-_CALL_S] * 12 + [0.0] * 12, abs=2e-3)
    assert (executed.early(2e-3), executed.late(2e-3)) == (12, 0)


def test_segments_shorter_than_the_delay_are_shown_as_they_run(launches: list[Kernel]) -> None:
    clocks = [(_SLOW, _FAST)[i % 2] for i in range(len(launches))]
    executed = _executed("rtx3080ti", launches, clocks, _EXACT)
    sum_s = sum(_times_s("rtx3080ti", launches, clocks))

    assert 0 < executed.dropped < executed.planned * 3
    assert (
        executed.dropped
        == executed.planned * 3 - sum(executed.switches)
        == executed.planned * 3 - len(executed.misses_s)
    )
    assert executed.late(1e-3) > len(executed.misses_s) / 2
    assert abs(statistics.fmean(executed.time_s) / sum_s - 1) > 2e-3


def test_what_jitters_misses_on_both_sides_and_little_in_all(launches: list[Kernel]) -> None:
    clocks = _segments(launches, (_SLOW, _FAST), 4)
    jittery = SwitchingModel(target_spread=0.0, jitter=0.2)
    executed = _executed("rtx3080ti", launches, clocks, jittery, steps=20)
    sum_s = sum(_times_s("rtx3080ti", launches, clocks))

    assert statistics.pstdev(executed.misses_s) == pytest.approx(0.005, rel=0.4)
    assert min(executed.early(1e-3), executed.late(1e-3)) > 10
    assert statistics.fmean(executed.time_s) == pytest.approx(sum_s, rel=0.01)
    assert len(set(executed.time_s)) > 10


@pytest.mark.parametrize(("believed_s", "miss_s"), [(0.01, 0.01), (0.03, -0.01)])
def test_a_wrong_belief_of_the_delay_shows(
    launches: list[Kernel], believed_s: float, miss_s: float
) -> None:
    clocks = _segments(launches, (_SLOW, _FAST), 4)
    table = LatencyTable.constant(believed_s, call_s=_CALL_S)
    executed = _executed("rtx3080ti", launches, clocks, _EXACT, table)

    # Launches that run at clocks they were not planned for take other times than predicted.
    assert executed.misses_s == pytest.approx([miss_s] * 12, abs=4e-3)
    assert (executed.early(5e-3), executed.late(5e-3)) == ((12, 0) if miss_s < 0 else (0, 12))


def test_wrong_durations_are_put_right_launch_by_launch(launches: list[Kernel]) -> None:
    clocks = _segments(launches, (_SLOW, _FAST), 4)
    predicted_s = [0.8 * time_s for time_s in _times_s("rtx3080ti", launches, clocks)]
    with simulated_rig(_model("rtx3080ti", _EXACT)) as rig:
        executed = control(rig, launches, _under(clocks, _BELIEVED, predicted_s), steps=3)

    # Off by a fifth of what is ahead when it asks: the lead, and a launch's worth.
    longest_s = max(predicted_s)
    assert max(map(abs, executed.misses_s)) < 0.25 * (0.025 + longest_s)
    assert executed.switches == (4,) * 3


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


def test_auto_gives_the_clock_back(launches: list[Kernel]) -> None:
    back = Clocks(core_mhz=1200)
    clocks = _segments(launches, (_LOW_MEM, back), 2)
    executed = _executed("rtx3080ti", launches, clocks, _FREE, LatencyTable.free())

    _check_sum(executed, "rtx3080ti", launches, clocks)
    assert executed.switches == (2,) * 3


def test_a_lock_that_is_not_followed_shows(launches: list[Kernel]) -> None:
    model = dataclasses.replace(_model("rtx3080ti", None), ignored_locks=(Domain.CORE,))
    clocks = _segments(launches, (_SLOW, _FAST), 4)
    with simulated_rig(model) as rig:
        executed = control(
            rig, launches, _under(clocks, _BELIEVED, [1e-3] * len(launches)), steps=2
        )

    assert (executed.planned, executed.switches, executed.dropped) == (4, (0, 0), 8)


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
