"""What changing clocks takes, and what a plan gains where it is not free."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from underclock.arrays import Ints
from underclock.core.planning.best_choice import Goal
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
from underclock.core.planning.strategies import ComparedStrategies
from underclock.core.solvers import Effort
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import cap_of
from underclock.core.step.whole_step import is_only_whole
from underclock.errors import InfeasibleError, UsageError
from underclock.gpus.models import reported_latency
from underclock.records import (
    Arm,
    ClockSchedule,
    Cost,
    Granularity,
    LatencyPoint,
    Objective,
    SampleSet,
)
from underclock.records.latencies import LONGEST_S, LatencyTable
from underclock.store import read_document
from underclock.units import format_duration, format_percent, parse_duration

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
            raise UsageError(
                f"there are no measured latencies next to {given}",
                hint=f"`underclock latency --gpu GPU -o {place}` measures them",
            )
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
