"""Schedules and whole steps under a plan: what runs, what it takes, how a validation judges it."""

import dataclasses
import functools
import io
import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benches import bench
from simulated_steps import Executed
from simulated_steps import execute as control
from underclock.app.report import write_report
from underclock.app.validating import validate
from underclock.campaign.loop import WholeSteps, run_in_turns
from underclock.errors import DataError, NotSupportedError, UsageError
from underclock.gpus.models import GpuModel, Latency, SwitchingModel, gpu_model
from underclock.hw.lease import ClockLeases
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.simulated.boards import LaunchCost, SimulatedCosts
from underclock.hw.simulated.driver import simulated_rig
from underclock.records import (
    AUTO,
    Accounting,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    ClockSchedule,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    MeasurementSettings,
    Objective,
    Plan,
    Segment,
    Status,
    Step,
    Strategy,
    Validation,
    Verdict,
)
from underclock.records.latencies import LatencyTable
from underclock.report import validation_table
from underclock.runtime.simulated import Scheduled
from underclock.store import read_document, write_document
from underclock.workloads import workload
from windows import with_step

_BRIEF = MeasurementSettings(
    warm_s=1.0,
    steady_s=0.5,
    steady_c=50.0,
    longest_warm_s=1.0,
    settle_s=0.2,
    kernel_warm_s=0.5,
    window_s=0.5,
    launches=1,
)
# Neither reaches the power cap.
_SLOW, _FAST = Clocks(core_mhz=900, mem_mhz=9501), Clocks(core_mhz=1200, mem_mhz=9501)


@pytest.fixture(scope="module")
def tiny() -> Step:
    return workload("gpt3-125m", {"layers": 1})


@pytest.fixture(scope="module")
def info() -> GpuInfo:
    with simulated_rig("rtx3080ti") as rig:
        return rig.gpu.info()


def _under(
    clocks: Sequence[Clocks], table: LatencyTable | None, predicted_s: Sequence[float]
) -> Scheduled:
    return Scheduled(clocks=tuple(clocks), table=table, predicted_s=tuple(predicted_s))


def _arm(name: Strategy, time_change: float = 0.0, energy_change: float = 0.0) -> Arm:
    cost = Cost(
        time_s=1.0 + time_change,
        energy_j=100.0 * (1.0 + energy_change),
        time_change=time_change,
        energy_change=energy_change,
    )
    return Arm(name, cost, Status.OPTIMAL, 0.0)


def _plan(step: Step, info: GpuInfo, clocks: Sequence[Clocks], **fields: object) -> Plan:
    """Return a plan that gives its kernels these clocks in turn."""
    turn = itertools.cycle(clocks)
    kernels = {
        kernel.name: Choice(
            clocks=Clocks(core_mhz=(pair := next(turn)).core_mhz, mem_mhz=pair.mem_mhz),
            time_change=0.0,
            energy_change=0.0,
            auto_time_s=1.0,
            auto_energy_j=1.0,
        )
        for kernel in step.kernels
    }
    body: dict[str, object] = {
        "evidence": Evidence.SIMULATED,
        "gpu": info,
        "step": step,
        "objective": Objective.WASTE,
        "max_slowdown": 0.5,
        "granularity": Granularity.KERNEL,
        "aggregate": Aggregate.GLOBAL,
        "accounting": Accounting.STEP,
        "baseline": AUTO,
        "chosen": Strategy.KERNEL_GLOBAL,
        "arms": (_arm(Strategy.AUTO), _arm(Strategy.KERNEL_GLOBAL, 0.4, -0.1)),
        "kernels": kernels,
        "fixed": None,
    }
    return Plan(**body | fields)  # type: ignore[arg-type]


def _validated(plan: Plan, **options: object) -> Validation:
    options = {"gpu": "sim:rtx3080ti", "repeats": 2, "measuring": _BRIEF} | options
    return validate(plan, **options)  # type: ignore[arg-type]


def _scheduled(
    step: Step, info: GpuInfo, segments: Sequence[Segment], latencies: LatencyTable
) -> Plan:
    clocks = [each.clocks for each in segments for _ in range(each.launches)]
    locked = [_FAST if pair.is_auto else pair for pair in clocks]
    launch_s = [cost.duration_s for cost in _costs("rtx3080ti", _kernels(step), locked)]
    turned = (*segments[1:], segments[0])
    schedule = ClockSchedule(
        segments=tuple(segments),
        switches=sum(a.clocks != b.clocks for a, b in zip(segments, turned, strict=True)),
        latency="1ms, assumed",
        latencies=latencies,
        launch_s=tuple(launch_s),
    )
    arms = (
        _arm(Strategy.AUTO),
        _arm(Strategy.KERNEL_GLOBAL, 0.4, -0.1),
        _arm(Strategy.ACHIEVABLE, 0.3, -0.05),
    )
    chosen = Strategy.ACHIEVABLE
    return _plan(step, info, [_SLOW, _FAST], schedule=schedule, arms=arms, chosen=chosen)


def _segments(step: Step, *clocks: Clocks) -> list[Segment]:
    """Cut a step into as many stretches; the last takes what is left."""
    length = len(step.order) // len(clocks)
    counts = [length] * (len(clocks) - 1)
    counts.append(len(step.order) - sum(counts))
    return [
        Segment(launches=count, clocks=Clocks(core_mhz=pair.core_mhz, mem_mhz=pair.mem_mhz))
        for count, pair in zip(counts, clocks, strict=True)
    ]


def _shown(validation: Validation) -> str:
    console = Console(file=(out := io.StringIO()), width=100)
    console.print(validation_table(validation))
    return out.getvalue()


def _kernels(step: Step) -> list[Kernel]:
    return [step.kernels[index] for index in step.order]


def _run(model: str, step: Step, clocks: Sequence[Clocks]) -> Executed:
    launches = _kernels(step)
    with simulated_rig(model) as rig:
        return control(
            rig, launches, _under(clocks, None, [1e-3] * len(launches)), steps=2, warm_s=5.0
        )


def _costs(model: str, launches: Sequence[Kernel], clocks: Sequence[Clocks]) -> list[LaunchCost]:
    """Return what physics says of launches at locks that no cap lowers."""
    with simulated_rig(model) as rig:
        gpu = rig.device.model
        costs = SimulatedCosts(rig.device.constants, gpu.core_mhz)
        return [
            costs.at(gpu.kernel(kernel), float(at.core_mhz or 0), at.mem_mhz or gpu.mem_mhz[-1])
            for kernel, at in zip(launches, clocks, strict=True)
        ]


def test_a_plan_is_validated_on_whole_steps_with_switching_taken_as_free(
    tiny: Step, info: GpuInfo
) -> None:
    plan = _plan(tiny, info, [_SLOW, _FAST], fixed=_FAST)
    validation = _validated(plan)
    clocks = [plan.kernels[kernel.name].clocks for kernel in _kernels(tiny)]
    executed, auto = _run("rtx3080ti", tiny, clocks), _run("rtx3080ti", tiny, [AUTO] * len(clocks))

    assert validation.latency is None
    assert (validation.chosen, validation.promised_energy_change) == (plan.chosen, -0.1)
    truth = executed.time_s[0] / auto.time_s[0] - 1.0
    assert validation.time_change.mean == pytest.approx(truth, abs=1e-2)  # at the cap noise counts
    (fixed,) = validation.others
    assert (fixed.name, fixed.clocks) == (Strategy.BEST_FIXED, _FAST)
    assert 0 < fixed.time_change.mean < validation.time_change.mean
    assert validation.warnings == ()
    said = _shown(validation)
    assert "whole steps, simulated; switching taken as free" in said
    assert validation == _validated(plan)


def test_a_schedule_runs_as_it_is_and_its_own_promise_is_judged(
    tiny: Step, info: GpuInfo, tmp_path: Path
) -> None:
    # Round the end of the step nothing changes: two changes, three stretches.
    segments = _segments(tiny, _SLOW, _FAST, _SLOW)
    plan = _scheduled(tiny, info, segments, LatencyTable.constant(1e-5))
    validation = _validated(plan, only_plan=True)

    assert (validation.chosen, validation.latency) == (Strategy.ACHIEVABLE, "1ms, assumed")
    assert (validation.promised_time_change, validation.promised_energy_change) == (0.3, -0.05)
    assert plan.schedule is not None
    executed = _run("rtx3080ti", tiny, plan.schedule.clocks)
    assert validation.plan_time_s == pytest.approx(executed.time_s, rel=2e-3)
    write_document(tmp_path / "plan.json", plan)
    assert read_document(tmp_path / "plan.json", Plan) == plan
    page = write_report(plan, to=tmp_path / "p.html", validation=validation)
    assert "Whole steps, simulated; switching latency 1ms, assumed" in page.read_text()

    measured = _scheduled(
        tiny,
        info,
        segments,
        msgspec.structs.replace(LatencyTable.constant(1e-5), evidence=Evidence.SIMULATED, gpu=info),
    )
    slower = _validated(measured, only_plan=True)
    assert slower.plan_time_s != validation.plan_time_s  # the GPU's own switching is far slower


def test_what_cannot_run_a_step_under_the_plan_is_refused(tiny: Step, info: GpuInfo) -> None:
    plan = _plan(tiny, info, [_SLOW, _FAST])
    with pytest.raises(NotSupportedError, match="cannot run a schedule of clocks"):
        _validated(plan, gpu="nvml:0")
    with pytest.raises(UsageError, match="cannot run kernels"):
        _validated(plan, gpu="replay:t.csv")
    with pytest.raises(UsageError, match="has no order of launches"):
        _validated(with_step(plan, order=()))


def test_every_repeat_begins_with_another_arm(tiny: Step) -> None:
    held: list[Clocks] = []

    class Noting(GpuMeasurer):
        @contextmanager
        def hold(self, clocks: Clocks) -> Iterator[None]:
            held.append(clocks)
            with super().hold(clocks):
                yield

    with simulated_rig("rtx3080ti") as rig:
        measurer = bench(rig, _BRIEF, kind=Noting)
        steps = WholeSteps(measurer=measurer, led=None, kernels=_kernels(tiny))
        arms = {"auto": [AUTO], "plan": [_SLOW], "best_fixed": [_FAST]}
        totals = run_in_turns(steps, arms, 3, lambda _tally: None)

    assert held == [AUTO, _SLOW, _FAST, _SLOW, _FAST, AUTO, _FAST, AUTO, _SLOW]
    assert {name: each.shape for name, each in totals.items()} == dict.fromkeys(arms, (3, 2))


def test_evidence_does_not_mix(tiny: Step, info: GpuInfo) -> None:
    with pytest.raises(DataError, match="rests on replayed samples"):
        _validated(_plan(tiny, info, [_SLOW], evidence=Evidence.REPLAYED))


def test_what_sets_nothing_is_not_run(tiny: Step, info: GpuInfo) -> None:
    still = _scheduled(tiny, info, _segments(tiny, AUTO), LatencyTable.constant(0.1))
    for plan in (_plan(tiny, info, [AUTO]), still):
        validation = validate(plan, gpu="nvml:0")
        assert (validation.repeats, validation.verdict) == (0, Verdict.KEPT)
    # Kernels that stay at auto may still be part of a schedule that does not.
    moving = _scheduled(tiny, info, _segments(tiny, _SLOW), LatencyTable.constant(0.1))
    kernels = _plan(tiny, info, [AUTO]).kernels
    assert _validated(msgspec.structs.replace(moving, kernels=kernels)).repeats == 2


def test_a_plan_of_another_gpu_is_refused(tiny: Step, info: GpuInfo) -> None:
    with pytest.raises(DataError, match="the plan is for RTX 3080 Ti"):
        _validated(_plan(tiny, info, [_SLOW, _FAST]), gpu="sim:a100")
    others = msgspec.structs.replace(LatencyTable.constant(0.1), gpu=GpuInfo(name="another"))
    foreign = _scheduled(tiny, info, _segments(tiny, _SLOW, _FAST), others)
    with pytest.raises(DataError, match="those of another"):
        _validated(foreign)


_AT_ONCE = Latency(shares=(0.0, 1.0), points_s=(0.0, 0.0))
_CALL_S = 4.5e-3
_STEADY = Latency(shares=(0.0, 1.0), points_s=(_CALL_S, _CALL_S))
_FREE = SwitchingModel(setter=_AT_ONCE, core_s=0.0, mem_s=0.0, mem_stall_s=0.0)
_EXACT = SwitchingModel(setter=_STEADY, target_spread=0.0, jitter=0.0, mem_s=0.02)
_BELIEVED = LatencyTable.constant(0.02, call_s=_CALL_S)  # which is what `_EXACT` takes


def _model(name: str, switching: SwitchingModel | None) -> GpuModel:
    return dataclasses.replace(gpu_model(name), switching=switching)


@functools.cache
def _alone_s(kernel: Kernel, setting: Clocks) -> float:
    """Measure a launch alone at its clocks; return its true time."""
    # A new GPU each time, so that its first loop draws the noise of a schedule's.
    with simulated_rig(_model("rtx3080ti", _FREE)) as rig, ClockLeases(rig.gpu).hold(setting):
        rig.device.temperature_c = 50.0
        with rig.launcher.loop([kernel]):
            start_s = rig.clock.now_s()
            rig.clock.sleep_s(0.1)
            running = rig.device.running
            assert running is not None
            assert not rig.device.capped
            return (rig.clock.now_s() - start_s) / (running.launches + running.share)


@pytest.mark.parametrize("every", [1, 4])
def test_every_step_is_followed_from_its_marks(step: Step, every: int) -> None:
    launches = _kernels(step)
    clocks = [(_SLOW, _FAST)[i * 4 // len(launches) % 2] for i in range(len(launches))]
    predicted_s = tuple(map(_alone_s, launches, clocks))
    schedule = Scheduled(
        clocks=tuple(clocks),
        table=_BELIEVED,
        predicted_s=predicted_s,
        marks=tuple(range(0, len(launches), every)),
    )
    with simulated_rig(_model("rtx3080ti", _EXACT)) as rig:
        executed = control(rig, launches, schedule, steps=8, warm_s=5.0)

    assert executed.time_s == pytest.approx([sum(predicted_s)] * 8, rel=5e-3)
    assert executed.switches == (4,) * 8
    assert statistics.median(map(abs, executed.misses_s)) < 1e-3
