"""validate: run auto and plan again, compare all pairs of runs, and judge the promise.

`whole_steps` says how a step runs under its plan, `turns` runs the arms. Where a GPU cannot run the
plan, its kernels are measured one by one, and the validation says so.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from underclock.app.backends import open_measurer, open_scheduled
from underclock.arrays import Floats
from underclock.campaign.progress import Tally
from underclock.campaign.turns import (
    OWN_HEAT,
    Course,
    OneByOne,
    Runner,
    Turns,
    WholeSteps,
    course_of,
    run_in_turns,
    switching_model,
    why_one_by_one,
)
from underclock.core.statistics.verdict import (
    MeanChange,
    count_within,
    judge,
    mean_change,
    pair_changes,
    spread,
)
from underclock.errors import DataError, UsageError
from underclock.hw.base import Measurer
from underclock.hw.gpu_names import GpuKind, GpuName, parse_gpu
from underclock.hw.measurer import QUICK
from underclock.records import (
    TOLERANCE,
    Accounting,
    Arm,
    Cost,
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
from underclock.store import as_record
from underclock.tracing.source import StepFile, StepFunction

_SEED_OFFSET = 1  # the GPU's noise must not be the noise the plan was made on
_BOOTSTRAP_SEED = 0  # equal runs are judged equally


def validate(
    plan: Plan | str | Path,
    *,
    gpu: str,
    repeats: int = 10,
    tolerance: float = TOLERANCE,
    only_plan: bool = False,
    accounting: Accounting | None = None,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> Validation:
    """Measure a plan against auto clocks, and say whether it keeps its promise.

    A promise of energy with an interval is kept where what was measured is compatible with it; a
    time budget is kept or not, whatever was promised.

    The whole step runs under the plan: under its schedule where it has one, else with every change
    of clocks taken as free. Where that cannot be run, and with ``Accounting.ISOLATED``, kernels are
    measured one by one and added up.

    A plan for a power limit runs under it, auto as well. A simulated GPU is given that limit; a
    real GPU must have it, for Underclock never sets one.

    A plan that leaves every kernel at auto is not run: it keeps its promise of no change by
    definition, with 0 repeats and a warning that says so.

    Args:
        plan: A plan, or its file.
        gpu: The same model the plan was made for.
        repeats: Runs of each arm; all pairs are compared.
        tolerance: How far beyond promise or budget still counts as kept, as a fraction of auto.
        only_plan: Whether to leave away the best fixed clock, which takes turns otherwise.
        accounting: Whether to run whole steps or kernels one by one; by default whole steps where
            the GPU can.
        measuring: How long to wait and measure.
        seed: Of a simulated GPU's noise; never the same noise as in measuring.
        progress: Told of every run.
        run: The step's function, or where it may be found; a real GPU needs it.

    Raises:
        UsageError: Fewer than one repeat, a tolerance that is negative or not finite, a power limit
            that the simulated GPU does not take, or whole steps asked for where they cannot be run.
        DataError: A plan for another GPU, resting on another kind of evidence, or without kernels.
        DeviceError, MeasurementError: From the GPU.
    """
    _check_options(repeats, tolerance)
    plan = as_record(plan, Plan)
    course = course_of(plan)
    if _sets_nothing(plan, course, accounting):
        return _kept_by_definition(plan, course, tolerance)
    name = parse_gpu(gpu)
    why_not = why_one_by_one(plan, course, name.text, name.capabilities)
    if accounting is Accounting.STEP and why_not is not None:
        raise UsageError(f"whole steps cannot be run: {why_not}", hint="leave --accounting away")
    ran = None if accounting is Accounting.ISOLATED or why_not is not None else course
    with _opened(plan, ran, name, measuring=measuring, seed=seed + _SEED_OFFSET, run=run) as runner:
        notes = _about_kernels(plan, name, accounting, why_not)
        if ran is not None:
            latencies = ran.scheduled.table
            notes = () if latencies is None else latencies.check_gpu(runner.measurer.info())
            notes += _about_the_step(plan)
        turns = run_in_turns(
            plan,
            runner,
            repeats,
            only_plan=only_plan,
            progress=progress or (lambda _tally: None),
            notes=_check(plan, runner.measurer),
        )
    return _judged(plan, turns, tolerance, ran, notes)


def _sets_nothing(plan: Plan, course: Course | None, accounting: Accounting | None) -> bool:
    """Whether what would run is what everything is compared with."""
    if course is None or accounting is Accounting.ISOLATED:
        return bool(plan.kernels) and plan.sets_nothing
    return all(clocks == plan.baseline for clocks in course.clocks)


def _about_the_step(plan: Plan) -> tuple[str, ...]:
    """Say what whole steps do not compare alike with."""
    if plan.accounting is Accounting.STEP:
        return ()
    words = (
        "the promise is a sum of kernels measured alone; the verdict is about the whole step, "
        "whose kernels share one power cap"
    )
    return (words,)


def _about_kernels(
    plan: Plan, name: GpuName, accounting: Accounting | None, why_not: str | None
) -> tuple[str, ...]:
    """Say what was not run, and why, unless it was asked for so or the GPU is a table."""
    if accounting is not Accounting.ISOLATED and name.kind is not GpuKind.REPLAYED:
        words = f"the whole step was not run under the plan, only its kernels one by one: {why_not}"
        return (words,)
    if plan.accounting is Accounting.STEP:
        return ("the promise is about the whole step, and its kernels were measured one by one",)
    return ()


@contextmanager
def _opened(
    plan: Plan,
    course: Course | None,
    name: GpuName,
    *,
    measuring: MeasurementSettings | None,
    seed: int,
    run: StepFunction | StepFile | None,
) -> Iterator[Runner]:
    """Open a GPU that runs the arms.

    By default each arm of whole steps is measured at its own heat.

    Args:
        course: How the step runs under the plan; ``None`` for its kernels one by one.
    """
    if course is not None and measuring is None:
        measuring = OWN_HEAT if name.is_simulated else QUICK
    if course is not None and measuring is not None and course.changes:
        with open_scheduled(
            name,
            course.scheduled,
            measuring=measuring,
            seed=seed,
            switching=switching_model(course.scheduled.table),
        ) as (measurer, led):
            yield _whole(plan, course, measurer, led)
        return
    with open_measurer(
        name.text, measuring=measuring, seed=seed, step=plan.step(), run=run
    ) as measurer:
        if course is not None:
            yield _whole(plan, course, measurer)
            return
        planned = [plan.kernels[kernel.name].clocks for kernel in plan.runs]
        yield OneByOne(measurer=measurer, kernels=plan.runs, planned=planned)


def _whole(
    plan: Plan, course: Course, measurer: Measurer, led: Measurer | None = None
) -> WholeSteps:
    kernels = [plan.runs[index] for index in plan.order]
    return WholeSteps(measurer=measurer, led=led, kernels=kernels, planned=course.clocks)


def _check(plan: Plan, measurer: Measurer) -> tuple[str, ...]:
    """Refuse a plan that means nothing here; return what the reader must be told."""
    told = plan.check_gpu(measurer.info())
    if plan.evidence is not measurer.evidence:
        raise DataError(
            f"the plan rests on {plan.evidence} samples, this GPU is {measurer.evidence}",
            hint="validate on what was measured, or measure and plan on this GPU",
        )
    if not plan.runs:
        raise DataError("the plan does not say what the step runs", hint="plan again")
    held = [(name, choice.clocks) for name, choice in plan.kernels.items()]
    check_clocks([("the baseline", plan.baseline), *held], measurer.settings())
    return told


def _check_options(repeats: int, tolerance: float) -> None:
    if repeats < 1:
        raise UsageError(f"cannot repeat {repeats} times", hint="--repeats 10 is the paper's")
    if not (tolerance >= 0.0 and math.isfinite(tolerance)):
        raise UsageError(
            f"a tolerance of {tolerance} has no meaning", hint="0 or more: --tolerance 0.1%"
        )


def _promised(plan: Plan, course: Course | None) -> tuple[Arm, Cost, float | None]:
    """Return the arm that ran, its costs, and the greatest change of time that it may have.

    That is the budget; ``None`` where time was free.
    """
    ran = plan.chosen if course is None else course.arm
    arm = plan.find(ran)
    if arm is None or arm.cost is None:
        raise DataError(
            f"the plan has a schedule, but its arm '{ran}' has no costs", hint="plan again"
        )
    return arm, arm.cost, plan.max_slowdown


def _judged(
    plan: Plan, turns: Turns, tolerance: float, course: Course | None, notes: tuple[str, ...]
) -> Validation:
    """Compare all pairs of runs of auto and plan, and judge the promise."""
    auto, planned = turns.totals["auto"], turns.totals["plan"]
    time = pair_changes(auto[:, 0], planned[:, 0])
    energy = pair_changes(auto[:, 1], planned[:, 1])
    arm, promise, bound = _promised(plan, course)
    distinct = turns.distinct("auto", "plan")
    change_s, change_j = _changes(auto[:distinct], planned[:distinct])
    judged = judge(
        change_j,
        change_s,
        promise=arm.energy_interval[1] if arm.energy_interval else promise.energy_change,
        budget=bound,
        tolerance=tolerance,
    )
    return msgspec.structs.replace(
        _of_nothing(plan, course, tolerance),
        evidence=turns.evidence,
        gpu=turns.gpu,
        accounting=Accounting.ISOLATED if course is None else Accounting.STEP,
        repeats=turns.repeats,
        auto_time_s=tuple(auto[:, 0].tolist()),
        auto_energy_j=tuple(auto[:, 1].tolist()),
        plan_time_s=tuple(planned[:, 0].tolist()),
        plan_energy_j=tuple(planned[:, 1].tolist()),
        time_change=spread(time),
        energy_change=spread(energy),
        pairs_keeping_energy=count_within(energy, promise.energy_change),
        # Counted as it is judged: the time of a step can be told to about a tenth of a per cent.
        pairs_keeping_time=None if bound is None else count_within(time, bound + tolerance),
        time_interval=change_s.interval,
        energy_interval=change_j.interval,
        verdict=judged.verdict,
        further_repeats=judged.further_repeats,
        others=tuple(_other(name, turns) for name in turns.others),
        warnings=(*turns.warnings, *notes, *_warnings(distinct, turns.repeats)),
    )


def _of_nothing(plan: Plan, course: Course | None, tolerance: float) -> Validation:
    """Return the validation of a plan of which nothing was run: nothing changes, as at auto."""
    none = Spread(mean=0.0, best=0.0, worst=0.0)
    arm, promise, bound = _promised(plan, course)
    return Validation(
        evidence=plan.evidence,
        gpu=plan.gpu,
        workload=plan.workload,
        chosen=plan.chosen if course is None else course.arm,
        objective=plan.objective,
        accounting=plan.accounting,
        latency=None if course is None else course.wording,
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
        max_slowdown=plan.max_slowdown,
        tolerance=tolerance,
        verdict=Verdict.KEPT,
    )


def _kept_by_definition(plan: Plan, course: Course | None, tolerance: float) -> Validation:
    """Return the validation of a plan that sets nothing."""
    why = auto_plan_sentence(plan)
    words = "nothing was run: the plan sets no clocks, so there is nothing to validate"
    told = (words,) if why is None else (words, why)
    return msgspec.structs.replace(_of_nothing(plan, course, tolerance), warnings=told)


def _changes(auto: Floats, runs: Floats) -> tuple[MeanChange, MeanChange]:
    """Return the change of time and of energy against auto. Shapes (N, 2)."""
    random = np.random.default_rng(_BOOTSTRAP_SEED)
    return (
        mean_change(auto[:, 0], runs[:, 0], random),
        mean_change(auto[:, 1], runs[:, 1], random),
    )


def _other(name: str, turns: Turns) -> OtherArm:
    """Compare another arm with auto."""
    auto, runs = turns.totals["auto"], turns.totals[name]
    distinct = turns.distinct("auto", "plan", name)
    time, energy = _changes(auto[:distinct], runs[:distinct])
    return OtherArm(
        name=Strategy(name),
        clocks=turns.clocks[name][0],
        time_s=tuple(runs[:, 0].tolist()),
        energy_j=tuple(runs[:, 1].tolist()),
        time_change=spread(pair_changes(auto[:, 0], runs[:, 0])),
        energy_change=spread(pair_changes(auto[:, 1], runs[:, 1])),
        time_interval=time.interval,
        energy_interval=energy.interval,
    )


def _warnings(distinct: int, repeats: int) -> tuple[str, ...]:
    if distinct == repeats:
        return ()
    if distinct == 1:
        return (
            "the table has one row where repeats are needed: numbers are repeated, not validated",
        )
    return (f"only {distinct} repeats are judged: the table has no more rows, {repeats} need more",)
