"""validate: run a step at auto and under a plan, compare all pairs of runs, judge the promise."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from underclock.app.backends import open_measurer
from underclock.arrays import Floats
from underclock.campaign.loop import OWN_HEAT, WholeSteps, course_of, run_in_turns, switching_model
from underclock.campaign.progress import Tally
from underclock.core.statistics.verdict import (
    MeanChange,
    count_within,
    judge,
    mean_change,
    pair_changes,
    spread,
)
from underclock.errors import DataError, UsageError
from underclock.gpus.models import gpu_model
from underclock.hw.base import Capability, GpuName, parse_gpu
from underclock.hw.measurer import QUICK, GpuMeasurer
from underclock.hw.simulated.driver import simulated_rig
from underclock.records import (
    TOLERANCE,
    Accounting,
    Evidence,
    MeasurementSettings,
    OtherArm,
    Plan,
    Spread,
    Strategy,
    Validation,
    Verdict,
)
from underclock.records.planned import check_clocks
from underclock.report.answer import auto_plan_sentence
from underclock.runtime.simulated import Scheduled, ScheduledLauncher
from underclock.store import as_record
from underclock.tracing.source import StepFile, StepFunction

_SEED_OFFSET = 1  # the GPU's noise must not be the noise the plan was made on
_BOOTSTRAP_SEED = 0  # equal runs are judged equally
_SUMS = (
    "the promise is a sum of kernels measured alone; the verdict is about the whole step, whose "
    "kernels share one power cap"
)


def validate(
    plan: Plan | str | Path,
    *,
    gpu: str,
    repeats: int = 10,
    tolerance: float = TOLERANCE,
    only_plan: bool = False,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> Validation:
    """Run the step at auto clocks and under a plan, and say whether the plan keeps its promise.

    A promise of energy with an interval is kept where what was measured is compatible with it; a
    time budget is kept or not, whatever was promised.

    The step runs under the plan's schedule where it has one, else with every change of clocks taken
    as free. A plan that leaves every kernel at auto is not run: it keeps its promise of no change
    by definition, with 0 repeats and a warning that says so.

    Args:
        plan: A plan, or its file.
        gpu: The same model the plan was made for.
        repeats: Runs of each arm; all pairs are compared.
        tolerance: How far beyond promise or budget still counts as kept, as a fraction of auto.
        only_plan: Whether to leave away the best fixed clock, which takes turns otherwise.
        measuring: How long to wait and measure; by default each arm at its own heat.
        seed: Of a simulated GPU's noise; never the same noise as in measuring.
        progress: Called at every run.
        run: The step's function, or where it may be found; a real GPU needs it.

    Raises:
        UsageError: Fewer than one repeat, a tolerance that is negative or not finite, or a GPU that
            cannot run the step under the plan.
        DataError: A plan for another GPU, resting on another kind of evidence, or without kernels.
        DeviceError, MeasurementError: From the GPU.
    """
    if repeats < 1:
        raise UsageError(f"cannot repeat {repeats} times", hint="--repeats 10 is the paper's")
    if not (tolerance >= 0.0 and math.isfinite(tolerance)):
        words = f"a tolerance of {tolerance} has no meaning"
        raise UsageError(words, hint="0 or more, such as 0.001")
    plan = as_record(plan, Plan)
    course = course_of(plan)
    if plan.sets_nothing:
        words = "nothing was run: the plan sets no clocks, so there is nothing to validate"
        about = tuple(filter(None, (words, auto_plan_sentence(plan))))
        return msgspec.structs.replace(judged_runs(plan, {}, tolerance), warnings=about)
    name = parse_gpu(gpu)
    name.need(Capability.RUN)
    if course is None:
        raise UsageError(
            f"the plan of {plan.workload} has no order of launches, so no step can run under it",
            hint="plan samples of a traced step or a workload",
        )
    if len(set(course.clocks)) > 1:
        name.need(Capability.SCHEDULE)
    with _opened(plan, course, name, measuring, seed + _SEED_OFFSET, run) as steps:
        gpu_info = steps.measurer.info()
        notes = plan.check_gpu(gpu_info)
        if plan.evidence is not steps.measurer.evidence:
            raise DataError(
                f"the plan rests on {plan.evidence} samples, this GPU is {steps.measurer.evidence}",
                hint="validate on what was measured, or measure and plan on this GPU",
            )
        held = [(kernel, pair) for kernel, pairs in plan.held.items() for pair in pairs]
        check_clocks([("the baseline", plan.baseline), *held], steps.measurer.settings())
        arms = {"auto": [plan.baseline] * len(plan.step.order), "plan": list(course.clocks)}
        fixed = [plan.fixed or plan.baseline] * len(plan.step.order)
        if fixed not in arms.values() and not only_plan:
            arms[Strategy.BEST_FIXED] = fixed
        totals = run_in_turns(steps, arms, repeats, progress or (lambda _tally: None))
        notes += steps.measurer.notes()
        if (latencies := course.table) is not None:
            notes += latencies.check_gpu(gpu_info)
    if plan.accounting is not Accounting.STEP:
        notes += (_SUMS,)
    judged = judged_runs(plan, totals, tolerance)
    return msgspec.structs.replace(judged, gpu=gpu_info, warnings=notes)


@contextmanager
def _opened(
    plan: Plan,
    course: Scheduled,
    name: GpuName,
    measuring: MeasurementSettings | None,
    seed: int,
    run: StepFunction | StepFile | None,
) -> Iterator[WholeSteps]:
    """Open a GPU that runs the arms: at clocks that are held, and under the plan's schedule."""
    measuring = measuring or (OWN_HEAT if name.is_simulated else QUICK)
    kernels = [plan.step.kernels[index] for index in plan.step.order]
    if len(set(course.clocks)) == 1:
        with open_measurer(
            name.text, measuring=measuring, seed=seed, step=plan.step, run=run
        ) as measurer:
            yield WholeSteps(measurer=measurer, led=None, kernels=kernels)
        return
    model = gpu_model(name.name)
    if switching := switching_model(course.table):
        model = replace(model, switching=switching)
    with simulated_rig(model, seed=seed, unit=name.unit) as rig:
        launchers, evidence = (rig.launcher, ScheduledLauncher(rig, course)), Evidence.SIMULATED
        held, led = (
            GpuMeasurer(rig.gpu, launcher, rig.clock, evidence=evidence, measuring=measuring)
            for launcher in launchers
        )
        with held.leases:
            yield WholeSteps(measurer=held, led=led, kernels=kernels)


def judged_runs(
    plan: Plan, totals: Mapping[str, Floats], tolerance: float = TOLERANCE
) -> Validation:
    """Compare all pairs of runs of auto and plan, and judge the promise.

    ``totals`` are time in s and energy in J of steps by arm, of shapes (N, 2): ``auto``, ``plan``
    and maybe ``best_fixed``. Where nothing was run there are none: nothing changes, as at auto.
    """
    none = Spread(mean=0.0, best=0.0, worst=0.0)
    arm, promise, bound = plan.headline, plan.promise, plan.max_slowdown
    nothing = Validation(
        evidence=plan.evidence,
        gpu=plan.gpu,
        workload=plan.workload,
        chosen=plan.chosen,
        objective=plan.objective,
        latency=None if plan.schedule is None else plan.schedule.latency,
        repeats=0,
        auto_time_s=(),
        auto_energy_j=(),
        plan_time_s=(),
        plan_energy_j=(),
        time_change=none,
        energy_change=none,
        promised_time_change=promise.time_change,
        promised_energy_change=promise.energy_change,
        promised_time_interval=arm.time_interval,
        promised_energy_interval=arm.energy_interval,
        pairs_keeping_energy=0,
        pairs_keeping_time=None if bound is None else 0,
        max_slowdown=bound,
        tolerance=tolerance,
        verdict=Verdict.KEPT,
    )
    if not totals:
        return nothing
    auto, planned, fixed = totals["auto"], totals["plan"], totals.get(Strategy.BEST_FIXED)
    time, energy = (pair_changes(auto[:, n], planned[:, n]) for n in (0, 1))
    change_s, change_j = _changes(auto, planned)
    others = []
    if fixed is not None:
        fixed_s, fixed_j = _changes(auto, fixed)
        other = OtherArm(
            name=Strategy.BEST_FIXED,
            clocks=plan.fixed or plan.baseline,
            time_s=tuple(fixed[:, 0].tolist()),
            energy_j=tuple(fixed[:, 1].tolist()),
            time_change=spread(pair_changes(auto[:, 0], fixed[:, 0])),
            energy_change=spread(pair_changes(auto[:, 1], fixed[:, 1])),
            time_interval=fixed_s.interval,
            energy_interval=fixed_j.interval,
        )
        others.append(other)
    verdict, further_repeats = judge(
        change_j,
        change_s,
        promise=arm.energy_interval[1] if arm.energy_interval else promise.energy_change,
        budget=bound,
        tolerance=tolerance,
    )
    return msgspec.structs.replace(
        nothing,
        repeats=len(auto),
        auto_time_s=tuple(auto[:, 0].tolist()),
        auto_energy_j=tuple(auto[:, 1].tolist()),
        plan_time_s=tuple(planned[:, 0].tolist()),
        plan_energy_j=tuple(planned[:, 1].tolist()),
        time_change=spread(time),
        energy_change=spread(energy),
        pairs_keeping_energy=count_within(energy, promise.energy_change),
        # Counted as it is judged: the time of a step is measured to about a tenth of a per cent.
        pairs_keeping_time=None if bound is None else count_within(time, bound + tolerance),
        time_interval=change_s.interval,
        energy_interval=change_j.interval,
        verdict=verdict,
        further_repeats=further_repeats,
        others=tuple(others),
    )


def _changes(auto: Floats, runs: Floats) -> tuple[MeanChange, MeanChange]:
    """Return the change of time and of energy against auto. Shapes (N, 2)."""
    random = np.random.default_rng(_BOOTSTRAP_SEED)
    time, energy = (mean_change(auto[:, n], runs[:, n], random) for n in (0, 1))
    return time, energy
