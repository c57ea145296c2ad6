"""plan: samples in, clocks out. What everything costs, and which clocks are chosen by it."""

import dataclasses

import msgspec
import numpy as np

import underclock
from underclock.app.switching import KNOWN, Achievable, Switching, achievable, switching_of
from underclock.core.model.costs import ONE_SIDED, Costs
from underclock.core.model.estimate import estimate
from underclock.core.model.sample_rows import CannotFitError
from underclock.core.model.sample_sets import odd_rows
from underclock.core.planning.best_choice import Goal, choices
from underclock.core.planning.strategies import compare_strategies
from underclock.core.step.cost_table import CostTable, cost_table
from underclock.core.step.whole_step import (
    WHOLE,
    as_one,
    is_only_whole,
    shared_by_time,
    time_alone,
    whole_step_notes,
    whole_steps,
)
from underclock.errors import InfeasibleError, UsageError
from underclock.records import Clocks, Granularity, Objective, Plan, SampleSet, Strategy
from underclock.records.answers import ONE_PAIR
from underclock.store import SampleSource, read_samples
from underclock.units import format_percent

_MOST_ALONE = 0.95  # of the step's time in kernels run alone, below which it is planned as one


def plan(
    samples: SampleSource,
    goal: Goal | None = None,
    *,
    baseline: Clocks | None = None,
    switching: Switching | None = None,
    latency: str = KNOWN,
    raw: bool | None = None,
    isolated: bool = False,
) -> Plan:
    """Choose clocks for every kernel, and compare with simpler ways of choosing.

    Args:
        samples: Samples, a samples file, a CSV table, or a DataFrame with the columns of one.
        goal: What to minimise; by default energy, at no more than 1 % more time.
        baseline: The clocks to call auto; by default auto itself, or in a table without it the
            fastest clocks that every kernel has.
        switching: What changing clocks takes, in place of ``latency``.
        latency: The same in words, as `underclock plan --latency` takes it: ``known``,
            ``measured``, ``6ms``, a file of latencies, or ``free``, as in arXiv 2601.08539, which
            gives a bound.
        raw: Whether costs are the means of their own samples, taken as certain, as in arXiv
            2601.08539. By default a model is fitted to all samples together, and the time budget
            holds with 95 % confidence; a table that is replayed whole is taken as it is.
        isolated: Whether costs are sums of kernels measured alone, as in arXiv 2601.08539. By
            default they are those of the step as it runs under its cap, where it was run whole.

    Raises:
        UsageError: Switching with an objective that has no time budget, or given twice.
        DataError: The samples cannot be planned on, or the latencies are another GPU's.
        InfeasibleError: No choice meets the time budget.
    """
    goal = goal or Goal()
    sample_set = read_samples(samples)
    if switching is None:
        switching = switching_of(latency, sample_set, goal, samples)
    elif latency != KNOWN:
        raise UsageError("the latency is given twice", hint="give switching or latency")
    passes = goal.granularity is Granularity.PASS
    steps = None if isolated or raw or passes else whole_steps(sample_set)
    if steps is not None and time_alone(sample_set) < _MOST_ALONE:
        sample_set = steps
    whole = is_only_whole(sample_set)
    if whole:
        if passes:
            raise UsageError(
                "the step ran whole only, and whole steps do not show which pass draws what: "
                "clocks that change within it cannot be planned",
                hint="leave --granularity away: one clock for the whole step is planned",
            )
        goal = dataclasses.replace(goal, granularity=Granularity.STEP)
        switching = None  # one clock never changes
    if switching is not None:
        check_has_budget(goal)
    of_kernels = as_one(sample_set) if whole else sample_set
    table, risk = costs_of(of_kernels, baseline, raw=raw, isolated=isolated)
    made = decided(sample_set, goal, table, risk, switching)
    if whole or steps is None or made.one_pair is None:
        return made
    # What one clock costs whole steps say better than the sum of kernels; that bounds it still.
    direct, free = plan(steps, goal, baseline=baseline), made.find(Strategy.KERNEL_GLOBAL)
    arms, auto = direct.arms, direct.arm("auto").cost
    if free and free.cost and auto and not direct.find(free.name):
        time_s = auto.time_s * (1.0 + free.cost.time_change)  # of the auto that every arm has
        energy_j = auto.energy_j * (1.0 + free.cost.energy_change)
        cost = msgspec.structs.replace(free.cost, time_s=time_s, energy_j=energy_j)
        arms = (*arms, msgspec.structs.replace(free, cost=cost))
    return msgspec.structs.replace(direct, arms=arms, bound=made.bound)


def decided(
    sample_set: SampleSet,
    goal: Goal,
    table: CostTable,
    risk: Costs | None,
    switching: Switching | None,
) -> Plan:
    """Choose clocks where it is known what everything costs; `risk` is None where that is sure."""
    only = (Strategy.BEST_FIXED,) if is_only_whole(sample_set) else tuple(Strategy)
    compared = compare_strategies(table, goal, risk, only)
    if goal.chosen not in compared.settings:
        raise InfeasibleError(
            f"no choice of clocks changes time by {format_percent(goal.max_slowdown)} or less",
            hint=f"the fastest changes it by {format_percent(compared.fastest_change)}: "
            "raise --max-slowdown to that or more",
        )
    gained = Achievable()
    if switching is not None:
        if table.power_cap is None and risk is not None:
            # Less by how uncertain the chosen clocks' time is.
            spread = risk.predicted_change(compared.settings[goal.chosen]).time_spread
            budget = goal.max_slowdown - ONE_SIDED * spread
            goal = dataclasses.replace(goal, max_slowdown=budget)
        sure = None if table.power_cap is None else risk
        gained = achievable(sample_set, table, goal, switching, compared, sure)
    held = choices(table, compared.settings[goal.chosen])
    bound = goal.chosen if len({each.clocks for each in held.values()}) > 1 else None
    if gained.choice is not None:
        held = choices(table, gained.choice, np.array(sample_set.order))
    notes: tuple[str, ...] = ()
    if is_only_whole(sample_set):
        # What the step does at the clock chosen for all of it, heat included.
        (cost,) = (arm.cost for arm in compared.arms if arm.name is goal.chosen and arm.cost)
        promised = msgspec.structs.replace(
            held[WHOLE.name], time_change=cost.time_change, energy_change=cost.energy_change
        )
        held = shared_by_time(sample_set, promised)
        notes = whole_step_notes(sample_set, held)
    fixed = compared.settings.get(Strategy.BEST_FIXED)
    visited = {sample.asked for sample in (*sample_set.samples, *sample_set.mixed)}
    notes += gained.warnings
    if len(visited) == 1 and not any(sample.in_company for sample in sample_set.mixed):
        notes += (ONE_PAIR,)
    return Plan(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        step=sample_set.step,
        objective=goal.objective,
        max_slowdown=goal.max_slowdown if goal.objective is Objective.WASTE else None,
        granularity=goal.granularity,
        aggregate=goal.aggregate,
        accounting=table.accounting,
        baseline=table.settings[table.baseline],
        chosen=goal.chosen if gained.schedule is None else Strategy.ACHIEVABLE,
        bound=bound,
        arms=(*compared.arms, *gained.arms),
        kernels=held,
        fixed=None if fixed is None else table.settings[int(fixed[0])],
        frontier=compared.frontier,
        closure=table.closure,
        provenance=sample_set.provenance,
        version=underclock.__version__,
        schedule=gained.schedule,
        latency_range_s=None if switching is None else switching.range_s,
        latency_curve=gained.curve,
        achievable_frontier=gained.frontier,
        warnings=(*table.warnings, *notes),
    )


def check_has_budget(goal: Goal) -> None:
    """Refuse to plan switching without a time budget."""
    if goal.objective is not Objective.WASTE:
        raise UsageError(
            f"{goal.objective} has no time budget for switching to keep",
            hint="plan for waste, or leave --latency away",
        )


def costs_of(
    sample_set: SampleSet, baseline: Clocks | None, *, raw: bool | None, isolated: bool
) -> tuple[CostTable, Costs | None]:
    """Return what everything costs, and how sure that is: ``None`` where it is taken as certain."""
    # What was queried of a table without repeats is certain, and nothing else of it is planned.
    if raw or (raw is None and sample_set.is_exact):
        table = cost_table(sample_set, baseline=baseline)
        odd = () if any(sample.repeat for sample in sample_set.samples) else odd_rows(sample_set)
        return dataclasses.replace(table, warnings=(*table.warnings, *odd)), None
    try:
        risk = estimate(sample_set, baseline=baseline, isolated=isolated).costs
    except CannotFitError as exc:
        if raw is False:
            raise
        table = cost_table(sample_set, baseline=baseline)
        words = f"costs are taken as certain, for no model can be fitted: {exc}"
        return dataclasses.replace(table, warnings=(*table.warnings, words)), None
    return risk.table, risk
