"""validate: measure auto and plan again, compare all pairs of runs, and judge the promise.

`turns` runs them; a plan on isolated kernels is judged on those.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from underclock.arrays import Floats
from underclock.core.statistics.pairs import count_within, pair_changes, spread
from underclock.core.statistics.verdict import TOLERANCE, MeanChange, judge, mean_change
from underclock.errors import UsageError
from underclock.records import (
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
from underclock.stages.sources import as_plan, step_of
from underclock.stages.step_source import StepFile, StepFunction
from underclock.stages.turns import Turns, run_in_turns

_SEED_OFFSET = 1  # the GPU's noise must not be the noise the plan was made on
_BOOTSTRAP_SEED = 0  # equal runs are judged equally


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
    _check_options(repeats, tolerance)
    plan = as_plan(plan)
    if plan.kernels and plan.sets_nothing:
        return _kept_by_definition(plan, tolerance)
    with open_measurer(
        gpu, measuring=measuring, seed=seed + _SEED_OFFSET, step=step_of(plan), run=run
    ) as measurer:
        turns = run_in_turns(
            plan, measurer, repeats, only_plan=only_plan, progress=progress or (lambda _tally: None)
        )
    return _judged(plan, turns, tolerance)


def _check_options(repeats: int, tolerance: float) -> None:
    if repeats < 1:
        raise UsageError(f"cannot repeat {repeats} times", hint="--repeats 10 is the paper's")
    if not (tolerance >= 0.0 and math.isfinite(tolerance)):
        raise UsageError(
            f"a tolerance of {tolerance} has no meaning", hint="0 or more: --tolerance 0.1%"
        )


def _judged(plan: Plan, turns: Turns, tolerance: float) -> Validation:
    """Compare all pairs of runs of auto and plan, and judge the promise."""
    auto, planned = turns.totals["auto"], turns.totals["plan"]
    time = pair_changes(auto[:, 0], planned[:, 0])
    energy = pair_changes(auto[:, 1], planned[:, 1])
    promise = plan.promise
    distinct = turns.distinct("auto", "plan")
    change_s, change_j = _changes(auto[:distinct], planned[:distinct])
    judged = judge(
        change_j,
        change_s,
        promise=promise.energy_change,
        budget=plan.max_slowdown,
        tolerance=tolerance,
    )
    return Validation(
        evidence=turns.evidence,
        gpu=turns.gpu,
        workload=plan.workload,
        chosen=plan.chosen,
        repeats=turns.repeats,
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
        others=tuple(_other(name, turns) for name in turns.others),
        warnings=(*turns.warnings, *_warnings(distinct, turns.repeats)),
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
