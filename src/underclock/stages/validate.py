"""validate: measure auto and plan again, compare all pairs of runs, and judge the promise.

All arms take turns, each repeat beginning with another, so that drift of the GPU falls on all
alike. Whole-step runs at auto settle what auto costs where they did so when planning; a plan on
isolated kernels is judged on those.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from underclock.arrays import Floats
from underclock.core.costs.cap import driver_says, near_cap
from underclock.core.costs.table import settling_factors
from underclock.core.statistics.pairs import count_within, pair_changes, spread
from underclock.core.statistics.verdict import TOLERANCE, MeanChange, judge, mean_change
from underclock.errors import DataError, UsageError
from underclock.hw.base import Capability, Measurer, Reading
from underclock.records import (
    AUTO,
    Clocks,
    Kernel,
    MeasurementSettings,
    OtherArm,
    Plan,
    Spread,
    Strategy,
    Validation,
    Verdict,
)
from underclock.stages.backends import open_measurer
from underclock.stages.measure import Tally
from underclock.stages.plan import why_auto
from underclock.stages.sources import as_plan, check_clocks, check_gpu, step_of
from underclock.stages.step_source import StepFile, StepFunction

_SEED_OFFSET = 1  # the GPU's noise must not be the noise the plan was made on
_BOOTSTRAP_SEED = 0  # equal runs are judged equally
_TITLES: dict[str, str] = {Strategy.BEST_FIXED: "the best fixed clock"}


def validate(  # noqa: PLR0913 - a caller's options, flat as on the command line
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
    """Measure a plan against auto clocks, and say whether it keeps its promise.

    A plan that leaves every kernel at auto is not run: it keeps its promise of no change by
    definition, with 0 repeats and a warning that says so.

    Args:
        plan: A plan, or its file.
        gpu: The same model the plan was made for.
        repeats: Runs of each arm; all pairs are compared.
        tolerance: How far beyond promise or budget still counts as kept, as a fraction of auto.
        only_plan: Whether to leave away the best fixed clock, which takes turns otherwise.
        measuring: How long to wait and measure.
        seed: Of a simulated GPU's noise; never the same noise as in measuring.
        progress: Told of every run.
        run: The step's function, or where it may be found; a real GPU needs it.

    Raises:
        UsageError: Fewer than one repeat, or a tolerance that is negative or not finite.
        DataError: A plan for another GPU, resting on another kind of evidence, or without kernels.
        DeviceError, MeasurementError: From the GPU.
    """
    if repeats < 1:
        raise UsageError(f"cannot repeat {repeats} times", hint="--repeats 10 is the paper's")
    if not (tolerance >= 0.0 and math.isfinite(tolerance)):
        raise UsageError(
            f"a tolerance of {tolerance} has no meaning", hint="0 or more: --tolerance 0.1%"
        )
    plan = as_plan(plan)
    if _sets_nothing(plan):
        return _kept_by_definition(plan, tolerance)
    with open_measurer(
        gpu, measuring=measuring, seed=seed + _SEED_OFFSET, step=step_of(plan), run=run
    ) as measurer:
        told = _check(plan, measurer)
        arms = _arms(plan, measurer, only_plan=only_plan)
        totals = _runs(plan, measurer, arms, repeats, progress or (lambda _tally: None))
        rows = {name: _rows(plan, measurer, clocks) for name, clocks in arms.items()}
        evidence, info = measurer.evidence, measurer.info()
    auto, planned = totals["auto"], totals["plan"]
    time = pair_changes(auto[:, 0], planned[:, 0])
    energy = pair_changes(auto[:, 1], planned[:, 1])
    promise = plan.promise
    distinct = min(repeats, rows["auto"], rows["plan"])
    change_s, change_j = _changes(auto[:distinct], planned[:distinct])
    judged = judge(
        change_j,
        change_s,
        promise=promise.energy_change,
        budget=plan.max_slowdown,
        tolerance=tolerance,
    )
    return Validation(
        evidence=evidence,
        gpu=info,
        workload=plan.workload,
        chosen=plan.chosen,
        repeats=repeats,
        auto_time_s=tuple(auto[:, 0].tolist()),
        auto_energy_j=tuple(auto[:, 1].tolist()),
        plan_time_s=tuple(planned[:, 0].tolist()),
        plan_energy_j=tuple(planned[:, 1].tolist()),
        time_change=spread(time),
        energy_change=spread(energy),
        promised_time_change=promise.time_change,
        promised_energy_change=promise.energy_change,
        pairs_keeping_energy=count_within(energy, promise.energy_change),
        pairs_keeping_time=(
            None if plan.max_slowdown is None else count_within(time, plan.max_slowdown)
        ),
        time_interval=change_s.interval,
        energy_interval=change_j.interval,
        max_slowdown=plan.max_slowdown,
        tolerance=tolerance,
        verdict=judged.verdict,
        further_repeats=judged.further_repeats,
        others=tuple(
            _other(name, clocks[0], auto, totals[name], min(distinct, rows[name]))
            for name, clocks in arms.items()
            if name not in {"auto", "plan"}
        ),
        warnings=(*told, *_warnings(distinct, repeats)),
    )


def _sets_nothing(plan: Plan) -> bool:
    """Whether a plan leaves every kernel at the clocks it compares with."""
    return bool(plan.kernels) and all(
        choice.clocks == plan.baseline for choice in plan.kernels.values()
    )


def _kept_by_definition(plan: Plan, tolerance: float) -> Validation:
    """Return the validation of a plan that sets nothing."""
    none = Spread(mean=0.0, best=0.0, worst=0.0)
    why = why_auto(plan)
    return Validation(
        evidence=plan.evidence,
        gpu=plan.gpu,
        workload=plan.workload,
        chosen=plan.chosen,
        repeats=0,
        auto_time_s=(),
        auto_energy_j=(),
        plan_time_s=(),
        plan_energy_j=(),
        time_change=none,
        energy_change=none,
        promised_time_change=plan.promise.time_change,
        promised_energy_change=plan.promise.energy_change,
        pairs_keeping_energy=0,
        pairs_keeping_time=None if plan.max_slowdown is None else 0,
        max_slowdown=plan.max_slowdown,
        tolerance=tolerance,
        verdict=Verdict.KEPT,
        warnings=(
            "nothing was run: the plan sets no clocks, so there is nothing to validate",
            *(() if why is None else (why,)),
        ),
    )


def _changes(auto: Floats, runs: Floats) -> tuple[MeanChange, MeanChange]:
    """Return the change of time and of energy against auto. Shapes (N, 2)."""
    random = np.random.default_rng(_BOOTSTRAP_SEED)
    return (
        mean_change(auto[:, 0], runs[:, 0], random),
        mean_change(auto[:, 1], runs[:, 1], random),
    )


def _other(name: str, clocks: Clocks, auto: Floats, runs: Floats, distinct: int) -> OtherArm:
    """Compare another arm with auto. Shapes (N, 2)."""
    time, energy = _changes(auto[:distinct], runs[:distinct])
    return OtherArm(
        name=Strategy(name),
        clocks=clocks,
        time_s=tuple(runs[:, 0].tolist()),
        energy_j=tuple(runs[:, 1].tolist()),
        time_change=spread(pair_changes(auto[:, 0], runs[:, 0])),
        energy_change=spread(pair_changes(auto[:, 1], runs[:, 1])),
        time_interval=time.interval,
        energy_interval=energy.interval,
    )


def _check(plan: Plan, measurer: Measurer) -> tuple[str, ...]:
    """Refuse a plan that means nothing here; return what the reader must be told."""
    told = check_gpu(plan, measurer.info())
    if plan.evidence is not measurer.evidence:
        raise DataError(
            f"the plan rests on {plan.evidence} samples, this GPU is {measurer.evidence}",
            hint="validate on what was measured, or measure and plan on this GPU",
        )
    if not plan.runs:
        raise DataError("the plan does not say what the step runs", hint="plan again")
    check_clocks(plan, measurer.settings())
    return told


def _arms(plan: Plan, measurer: Measurer, *, only_plan: bool) -> dict[str, list[Clocks]]:
    """Return the clocks of every kernel in every arm worth running.

    The best fixed clock is left away where it is auto or the plan itself, or has no rows.
    """
    arms = {
        "auto": [plan.baseline] * len(plan.runs),
        "plan": [plan.kernels[kernel.name].clocks for kernel in plan.runs],
    }
    if plan.fixed is not None and not only_plan:
        fixed = [plan.fixed] * len(plan.runs)
        known = all(measurer.can_measure(kernel, plan.fixed) for kernel in plan.runs)
        if known and fixed not in arms.values():
            arms[Strategy.BEST_FIXED] = fixed
    return arms


def _rows(plan: Plan, measurer: Measurer, arm: Sequence[Clocks]) -> int:
    """Return how many runs of an arm can differ: a table gives the rows it has, over and over."""
    counts = [measurer.repeats(*asked) for asked in zip(plan.runs, arm, strict=True)]
    return min((count for count in counts if count is not None), default=sys.maxsize)


def _warnings(distinct: int, repeats: int) -> tuple[str, ...]:
    if distinct == repeats:
        return ()
    if distinct == 1:
        return (
            "the table has one row where repeats are needed: numbers are repeated, not validated",
        )
    return (f"only {distinct} repeats are judged: the table has no more rows, {repeats} need more",)


def _runs(
    plan: Plan,
    measurer: Measurer,
    arms: Mapping[str, Sequence[Clocks]],
    repeats: int,
    progress: Callable[[Tally], None],
) -> dict[str, Floats]:
    """Return time in s and energy in J of every run of every arm. Shapes (N, 2)."""
    counts = np.array([kernel.count for kernel in plan.runs], dtype=np.float64)
    launches = [plan.runs[index] for index in plan.order]
    whole = bool(
        Capability.RUN in measurer.capabilities
        and launches
        and plan.closure is not None
        and plan.baseline.is_auto
    )
    names = list(arms)
    doing = " and ".join(("auto", "the plan", *(_TITLES[name] for name in names[2:])))
    started_s = measurer.now_s()

    def tell(done: int, doing: str) -> None:
        progress(Tally(done=done, total=repeats, gpu_s=measurer.now_s() - started_s, doing=doing))

    if Capability.RUN in measurer.capabilities:
        tell(0, "warming the GPU to a steady temperature")
        measurer.warm(launches or plan.runs)
    totals: dict[str, list[Floats]] = {name: [] for name in names}
    for repeat in range(repeats):
        tell(repeat, f"run {repeat + 1} of {doing}")
        first = repeat % len(names)
        costs: dict[str, Floats] = {}
        factors = np.ones((len(counts), 2))
        for name in names[first:] + names[:first]:
            readings = measured(measurer, plan.runs, arms[name], repeat)
            costs[name] = _costs(readings) * counts[:, None]
            if name == "auto" and whole:
                step = measurer.measure(launches, repeat)
                factors = _factors(readings, costs[name], step)
        for name, cost in costs.items():
            at_auto = np.array([clocks == AUTO for clocks in arms[name]])
            totals[name].append((cost * np.where(at_auto[:, None], factors, 1.0)).sum(axis=0))
    tell(repeats, "done")
    return {name: np.stack(runs) for name, runs in totals.items()}


def _factors(auto: Sequence[Reading], costs: Floats, step: Reading) -> Floats:
    """Return what settles every kernel at auto on the whole step. Shapes (K, 2) to (K, 2)."""
    held = np.array([bool(driver_says(reading.throttle_reasons)) for reading in auto])
    capped = near_cap(np.array([reading.energy_j / reading.time_s for reading in auto]), held)
    return np.stack(
        [
            settling_factors(costs[:, column], total, capped)
            for column, total in enumerate((step.time_s, step.energy_j))
        ],
        axis=1,
    )


def measured(
    measurer: Measurer, kernels: Sequence[Kernel], clocks: Sequence[Clocks], repeat: int
) -> list[Reading]:
    """Measure every kernel at its clocks, one change of clocks per distinct pair."""
    readings: dict[int, Reading] = {}
    for setting in dict.fromkeys(clocks):
        with measurer.hold(setting):
            for k, kernel in enumerate(kernels):
                if clocks[k] == setting:
                    readings[k] = measurer.measure([kernel], repeat)
    return [readings[k] for k in range(len(kernels))]


def _costs(readings: Sequence[Reading]) -> Floats:
    return np.array([[reading.time_s, reading.energy_j] for reading in readings])
