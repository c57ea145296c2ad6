"""plan: samples in, clocks out. What everything costs, what changes take, which are chosen."""

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

import underclock
from underclock.arrays import Ints
from underclock.core.model.costs import ONE_SIDED, Costs
from underclock.core.model.estimate import estimate
from underclock.core.model.sample_rows import CannotFitError
from underclock.core.model.sample_sets import odd_rows
from underclock.core.planning.best_choice import Goal, choices
from underclock.core.planning.clock_changes import Rules, sequence_problem
from underclock.core.planning.latency_constrained import (
    Own,
    ScheduleRisk,
    achieved,
    as_schedule,
    budget_curve,
    curve_latencies,
    fastest_change,
    latency_curve,
)
from underclock.core.planning.strategies import ComparedStrategies, compare_strategies
from underclock.core.solvers import Effort
from underclock.core.step.cost_table import CostTable, cost_table
from underclock.core.step.power_capped_step import cap_of
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
from underclock.gpus.models import reported_latency
from underclock.records import (
    Arm,
    Clocks,
    ClockSchedule,
    Cost,
    Granularity,
    LatencyPoint,
    Objective,
    Plan,
    SampleSet,
    Strategy,
)
from underclock.records.answers import ONE_PAIR
from underclock.records.latencies import LONGEST_S, LatencyTable
from underclock.store import SampleSource, read_document, read_samples
from underclock.units import format_duration, format_percent, parse_duration

_MOST_ALONE = 0.95  # of the step's time in kernels run alone, below which it is planned as one
KNOWN = "known"
"""What is written for whatever is known of the GPU."""
FREE = {"free", "ideal"}
"""What is written for nothing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switching:
    """What changing clocks takes, and how often they may be changed."""

    latencies: LatencyTable
    """How long each change takes."""
    max_switches: int | None = None
    """Most changes in a step."""
    curve: bool = True
    """Whether to plan at two other latencies too."""
    wording: str = ""
    """Which latency it is, in words; by default what the latencies say of themselves."""
    range_s: tuple[float, float] | None = None
    """The least and the greatest latency reported, where it is the greatest that is planned for."""
    is_known: bool = True
    """Whether any is; else other latencies are planned at, and nothing is held."""

    def __post_init__(self) -> None:
        """Word the latencies; reject limits that mean nothing."""
        if not self.wording:
            object.__setattr__(self, "wording", f"as {self.latencies.evidence or 'assumed'}")
        if self.max_switches is not None and self.max_switches < 0:
            raise UsageError(f"max_switches must not be negative, got {self.max_switches}")

    def rules(self, max_slowdown: float = 0.0) -> Rules:
        """Return what a schedule must keep within a time budget."""
        most = self.max_switches
        return Rules(latencies=self.latencies, max_slowdown=max_slowdown, max_switches=most)


def switching_of(text: str, sample_set: SampleSet, goal: Goal, samples: object) -> Switching | None:
    """Return what changing clocks takes, as a user writes it after ``--latency``.

    It is ``None`` for ``free``, and for no time at all. ``samples`` are the same as they were
    given: ``measured`` is looked for next to a file.
    """
    given = Path(samples) if isinstance(samples, str | Path) else None
    if text == KNOWN:
        return _known(sample_set, goal, latencies_file(given))
    found = named_latencies(text, given)
    return None if found is None else Switching(latencies=found[0], wording=found[1])


def latencies_file(given: Path | None) -> Path | None:
    """Return where latencies lie that were measured for a file; ``None`` without one."""
    return None if given is None else given.with_suffix(".latency.json")


def named_latencies(text: str, given: Path | None) -> tuple[LatencyTable, str] | None:
    """Return latencies that a user named for a file, and which they are in words."""
    if text in FREE:
        return None
    if text == "measured":
        place = latencies_file(given)
        if place is None:
            raise UsageError(
                "these samples are no file, so no measured latencies can be next to them",
                hint="name the file that `underclock latency` wrote, or a duration such as 6ms",
            )
        if not place.is_file():
            hint = f"`underclock latency --gpu GPU -o {place}` measures them"
            raise UsageError(f"there are no measured latencies next to {given}", hint=hint)
        return read_document(place, LatencyTable), ""
    path = Path(text)
    if path.is_file():
        table = read_document(path, LatencyTable)
        return table, f"of {path.name}, {table.evidence or 'assumed'}"
    duration_s = parse_duration(text)
    if duration_s == 0.0:
        return None
    if duration_s > LONGEST_S:
        raise UsageError(
            f"no GPU takes {text} to change its clocks", hint=f"{LONGEST_S:g}s is the most"
        )
    return LatencyTable.constant(duration_s), f"{text}, assumed"


def _known(sample_set: SampleSet, goal: Goal, place: Path | None) -> Switching | None:
    """Return what is known of how long this GPU takes to change clocks: measured, else reported.

    Plans at an assumed latency search less far than those at a latency that the user names. It is
    ``None`` where clocks would not change within the step, or none could be planned to.
    """
    if (
        goal.objective is not Objective.WASTE
        or goal.granularity is Granularity.STEP
        or is_only_whole(sample_set)
        or not sample_set.order
    ):
        return None
    if place is not None and place.is_file():
        measured = read_document(place, LatencyTable)
        if measured.gpu in {None, sample_set.gpu}:
            return Switching(latencies=measured, curve=False)
    reported = reported_latency(sample_set.gpu.name)
    if reported is None:
        return Switching(latencies=LatencyTable.free(), curve=False, is_known=False)
    least_s, most_s, source = reported
    return Switching(
        latencies=LatencyTable.constant(most_s),
        curve=False,
        wording=f"{format_duration(most_s)}, reported {source}",
        range_s=(least_s, most_s) if least_s < most_s else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Achievable:
    """What a plan gains when switching is not free."""

    arms: tuple[Arm, ...] = ()
    schedule: ClockSchedule | None = None
    choice: Ints | None = None  # of the schedule: index of each launch's setting
    curve: tuple[LatencyPoint, ...] = ()
    frontier: tuple[Cost, ...] = ()
    warnings: tuple[str, ...] = ()


def achievable(
    sample_set: SampleSet,
    table: CostTable,
    goal: Goal,
    switching: Switching,
    compared: ComparedStrategies,
    risk: ScheduleRisk | None = None,
) -> Achievable:
    """Plan again under the GPU's own latency."""
    latencies = switching.latencies
    warnings = (*latencies.check_gpu(sample_set.gpu), *latencies.warnings)
    rules = switching.rules(goal.max_slowdown)
    order, starts = sample_set.order, list(compared.settings.values())
    if table.left is not None:
        # In a schedule, too, what is left at auto asks for boost among locked launches.
        at, boost = table.baseline, cap_of(table).boost
        starts = [s if (s == at).all() else np.where(s == at, boost, s) for s in starts]
    if not switching.is_known:
        at_s, effort = curve_latencies(None), Effort.QUICK
        return Achievable(curve=latency_curve(table, order, rules, starts, at_s, effort=effort))
    problem = sequence_problem(table, order, rules)
    effort = Effort.QUICK if switching.range_s else Effort.PLAN
    arm, solution, aim = achieved(table, problem, starts, risk, effort)
    kept = aim - goal.max_slowdown
    if arm.cost is None:
        bound = next(each.cost for each in compared.arms if each.name is goal.chosen)
        raise InfeasibleError(
            f"no schedule changes time by {format_percent(goal.max_slowdown)} or less where clocks "
            f"take {switching.wording} to change; if clocks changed at once, a bound, {bound}",
            hint=f"the fastest changes it by {format_percent(fastest_change(table, problem))}: "
            "raise --max-slowdown to that or more",
        )
    schedule = as_schedule(table, problem, solution, latencies=latencies, wording=switching.wording)
    per_launch = [*(start[problem.order] for start in starts), solution.choice]
    frontier = budget_curve(table, problem, arm.cost, kept, per_launch)
    curve: tuple[LatencyPoint, ...] = ()
    if switching.curve or switching.range_s is not None:
        # Whatever the plan keeps below its budget, for want of sureness, its curves keep as well.
        aimed = replace(rules, max_slowdown=aim)
        own_s = latencies.constant_s
        own = None if own_s is None else Own(own_s, arm, solution, kept, frontier)
        at_s = switching.range_s or curve_latencies(own_s)
        curve = latency_curve(table, order, aimed, starts, at_s, own, effort)
    return Achievable(
        arms=(arm,),
        schedule=schedule,
        choice=solution.choice,
        curve=curve,
        frontier=frontier,
        warnings=warnings,
    )


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
        goal = replace(goal, granularity=Granularity.STEP)
        switching = None  # one clock never changes
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
    if switching is not None and goal.objective is not Objective.WASTE:
        hint = "plan for waste, or leave --latency away"
        raise UsageError(f"{goal.objective} has no time budget for switching to keep", hint=hint)
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
            goal = replace(goal, max_slowdown=budget)
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


def costs_of(
    sample_set: SampleSet, baseline: Clocks | None, *, raw: bool | None, isolated: bool
) -> tuple[CostTable, Costs | None]:
    """Return what everything costs, and how sure that is: ``None`` where it is taken as certain."""
    # What was queried of a table without repeats is certain, and nothing else of it is planned.
    if raw or (raw is None and sample_set.is_exact):
        table = cost_table(sample_set, baseline=baseline)
        odd = () if any(sample.repeat for sample in sample_set.samples) else odd_rows(sample_set)
        return replace(table, warnings=(*table.warnings, *odd)), None
    try:
        risk = estimate(sample_set, baseline=baseline, isolated=isolated).costs
    except CannotFitError as exc:
        if raw is False:
            raise
        table = cost_table(sample_set, baseline=baseline)
        words = f"costs are taken as certain, for no model can be fitted: {exc}"
        return replace(table, warnings=(*table.warnings, words)), None
    return risk.table, risk
