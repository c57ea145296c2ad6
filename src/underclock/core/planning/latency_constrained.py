"""Schedules that a GPU can follow, under its own switching latency and other ones.

Shape letters: K kernels, n invocations.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints, turned
from underclock.core.model.costs import ONE_SIDED, PredictedChange
from underclock.core.planning.best_choice import with_intervals
from underclock.core.planning.chance_constraint import RiskModel, room
from underclock.core.planning.clock_changes import WORTH, Rules, misses, sequence_problem
from underclock.core.solvers import Effort, SequenceProblem, Solution, costed, infeasible, solve
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import against_auto, step_cost
from underclock.records import (
    TOLERANCE,
    Arm,
    ClockSchedule,
    Cost,
    LatencyPoint,
    Segment,
    Status,
    Strategy,
)
from underclock.records.latencies import LatencyTable

_ROUNDS, _FEW_ROUNDS = 4, 1  # of aims below the time budget; where only candidates are wanted
LATENCIES_S = (1e-3, 6e-3, 20e-3, 0.15)
"""Latencies whose schedules are candidates at shorter ones."""
BUDGETS = (0.0, 0.005, 0.01, 0.02, 0.05)
"""Time budgets whose schedules are candidates within greater ones."""
_SMALL = 1e-6  # of auto's time
_LITTLE = 2e-4  # of auto's time: so much of the budget may be left


class ScheduleRisk(RiskModel, Protocol):
    """Joint errors of the cost of a schedule."""

    def predicted_schedule(self, choice: Ints, /) -> PredictedChange:
        """Return what a setting for each launch is expected to change, and its deviations."""


def achieved(
    table: CostTable,
    problem: SequenceProblem,
    per_kernel: Sequence[Ints],
    risk: ScheduleRisk | None = None,
    effort: Effort = Effort.PLAN,
) -> tuple[Arm, Solution, float]:
    """Find the best schedule, no worse than any given choice that keeps the rules.

    Where costs are those of the step, the solver knows nothing of the cap, and expected costs are
    unsure: it is given an aim below the budget until what it finds keeps the budget.

    Args:
        per_kernel: Choices to start from, a setting per kernel each. Shapes (K,).
        risk: How sure the costs of the step are; ``None`` takes them as certain.

    Returns:
        What it costs, the schedule, and the time budget that the solver was given to find it.
    """
    starts = [choice[problem.order] for choice in per_kernel]
    # The same problem at longer latencies, then within less time.
    longest_s = float(problem.dwell_s.max())
    off = ~np.eye(len(problem.dwell_s), dtype=np.bool_)
    budget = problem.budget_s / table.auto_time_s - 1.0
    slower = [
        dataclasses.replace(problem, dwell_s=np.where(off, np.maximum(problem.dwell_s, each_s), 0))
        for each_s in sorted(LATENCIES_S, reverse=True)
        if longest_s < each_s < 0.5 * table.auto_time_s
    ]
    shorter = [
        problem.within(table.auto_time_s * (1.0 + each))
        for each in BUDGETS
        if each < budget - _SMALL
    ]
    for stricter in slower + shorter:
        if table.power_cap is None:
            kept = solve(stricter, Effort.QUICK, starts)
            found = None if kept.status is Status.INFEASIBLE else kept.choice
        else:
            found = _Step(table, stricter, starts, risk, Effort.QUICK).best(_FEW_ROUNDS)
        starts += [] if found is None else [found]
    if table.power_cap is None:
        schedule = solve(problem, effort, starts)
        arm = _arm(schedule, schedule_cost(table, problem, schedule), None)
        return arm, schedule, problem.budget_s / table.auto_time_s - 1.0
    step = _Step(table, problem, starts, risk, effort)
    choice = step.best(_ROUNDS)
    if choice is not None and (step.budget < 0.0 or step.believed(choice).cost.energy_change < 0.0):
        return *step.arm(choice), step.believed(choice).aim
    if step.budget < 0.0:
        arm = Arm(Strategy.ACHIEVABLE, None, Status.INFEASIBLE)
        return arm, infeasible(), step.budget
    schedule = Solution(
        status=Status.BOUNDED,
        choice=np.full(len(problem.order), table.baseline),
        time_s=table.auto_time_s,
        energy_j=table.auto_energy_j,
        bound_j=min(step.bound_j, table.auto_energy_j),
    )
    arm = _arm(schedule, schedule_cost(table, problem, schedule), None)
    return arm, schedule, step.budget


class _Believed(NamedTuple):
    """What is believed of a schedule."""

    cost: Cost  # of the step as it settles
    # the same as the model has it, with deviations; ``None`` where costs are certain
    change: PredictedChange | None
    overrun: float  # how far it is beyond the budget with its margin, as a fraction of auto
    # time budget at which the solver thinks it to be just in time, as a fraction above auto
    aim: float


class _Step:
    """A step under its cap, for which a schedule is sought."""

    def __init__(
        self,
        table: CostTable,
        problem: SequenceProblem,
        starts: list[Ints],
        risk: ScheduleRisk | None,
        effort: Effort,
    ) -> None:
        self.table, self.problem, self.starts = table, problem, starts
        self.risk, self.effort = risk, effort
        self.budget = problem.budget_s / table.auto_time_s - 1.0  # as a fraction above auto
        self.bound_j = math.inf  # no schedule that keeps the budget and the limit takes less
        self._known: dict[bytes, _Believed] = {}

    def believed(self, choice: Ints) -> _Believed:
        """Say what a schedule comes to."""
        key = choice.astype(np.int64).tobytes()
        if key not in self._known:
            planned = costed(self.problem, choice)
            cost = settled_cost(self.table, self.problem, self._of(choice))
            change = None if self.risk is None else self.risk.predicted_schedule(choice)
            margin = 0.0 if change is None else room(change.time_spread, TOLERANCE)
            overrun = cost.time_change + margin - self.budget
            aim = planned.time_s / self.table.auto_time_s - 1.0 - overrun
            self._known[key] = _Believed(cost, change, overrun, aim)
        return self._known[key]

    def judged(self, choice: Ints) -> tuple[float, float]:
        """Judge a schedule as the plan is judged: how late in s it is, and its energy in J."""
        believed = self.believed(choice)
        late_s = self.table.auto_time_s * (believed.overrun - _SMALL)
        return late_s, believed.cost.energy_j

    def best(self, rounds: int) -> Ints | None:
        """Return the schedule of least energy that keeps the budget as it settles."""
        aim, found = self.budget, list(self.starts)
        best: Ints | None = None
        priced: Floats | None = None
        for turn in range(rounds):
            before = set(self._known)
            at = self.problem.within(self.table.auto_time_s * (1.0 + aim))
            if priced is not None:
                at = dataclasses.replace(at, energy_j=at.energy_j + priced)
            solution = solve(at, self.effort, found, self.judged)
            if turn == 0:
                self.bound_j = solution.bound_j
            if solution.status is Status.INFEASIBLE:
                met = [key for key in self._known if key not in before]
                if not met:
                    break
                nearest = min(met, key=lambda key: self._known[key].overrun)
                aim = min(self._known[nearest].aim, aim - _LITTLE)
                about = np.frombuffer(nearest, np.int64)
            else:
                best, found = solution.choice, [solution.choice]
                aim, about = self.believed(best).aim, best
                if self.believed(best).cost.energy_j * (1.0 - self.effort.gap) <= self.bound_j:
                    break
            priced = self._priced(about) if turn else None
        return best

    def _priced(self, choice: Ints) -> Floats | None:
        """Return the price in energy of what is unsure about a schedule. Shape (K, S)."""
        change = self.believed(choice).change
        if self.risk is None or change is None or change.time_spread == 0.0:
            return None
        launches = np.zeros(self.table.time_s.shape)
        np.add.at(launches, (self.problem.order, choice), 1)
        shared = self.risk.time_variance(launches.argmax(axis=1))
        if shared is None:
            return None
        # At a fixed width a deviation is a sum: half of it, and half the variance over the width.
        prices = 0.5 * ONE_SIDED / change.time_spread * np.maximum(shared.of_entries, 0.0)
        count = np.maximum(launches.sum(axis=1), 1.0)[:, None]
        energy_j: Floats = WORTH * self.table.auto_energy_j * prices / count
        return energy_j

    def _of(self, choice: Ints) -> Solution:
        return costed(self.problem, choice, Status.BOUNDED, self.bound_j)

    def arm(self, choice: Ints) -> tuple[Arm, Solution]:
        """Return the arm of a schedule, and the schedule."""
        believed, schedule = self.believed(choice), self._of(choice)
        arm = _arm(schedule, believed.cost, believed.change)
        gap = max(0.0, 1.0 - self.bound_j / believed.cost.energy_j)
        return msgspec.structs.replace(arm, status=Status.BOUNDED, gap=gap), schedule


def _arm(schedule: Solution, cost: Cost | None, change: PredictedChange | None) -> Arm:
    arm = Arm(Strategy.ACHIEVABLE, cost, schedule.status, schedule.gap)
    if change is None or cost is None:
        return arm
    # Stalls and jitter are in the cost, not in what the fit says of kernels.
    whole = dataclasses.replace(
        change, time_change=cost.time_change, energy_change=cost.energy_change
    )
    return with_intervals(arm, whole)


def schedule_cost(table: CostTable, problem: SequenceProblem, schedule: Solution) -> Cost | None:
    """Return what a step takes under a schedule, against auto; ``None`` if it is infeasible."""
    return None if schedule.status is Status.INFEASIBLE else settled_cost(table, problem, schedule)


def settled_cost(table: CostTable, problem: SequenceProblem, schedule: Solution) -> Cost:
    """Return what a step takes under a feasible schedule, against auto."""
    time_s, energy_j = float(schedule.time_s), float(schedule.energy_j)
    if table.power_cap is not None and not (schedule.choice == table.baseline).all():
        free = table.launches
        at = table.power_cap.order, schedule.choice
        settled = step_cost(table, schedule.choice)
        time_s += settled.time_s - math.fsum(free.time_s[at])
        energy_j += settled.energy_j - math.fsum(free.energy_j[at])
        # The solver counts misses as they are at a usual boundary; these are the schedule's own.
        at_s, _, missed_s, missed_j = misses(
            free, problem.order, schedule.choice, problem.jitter_s, table.auto_w
        )
        change = turned(schedule.choice, 1)[at_s], schedule.choice[at_s]
        time_s += math.fsum(missed_s - problem.miss_time_s[change])
        energy_j += math.fsum(missed_j - problem.miss_energy_j[change])
        # A change may miss by more than a short step lasts: no launch takes less than at its best.
        time_s = max(time_s, float(free.time_s.min(axis=1)[at[0]].sum()))
        energy_j = max(energy_j, float(free.energy_j.min(axis=1)[at[0]].sum()))
    return against_auto(table, time_s, energy_j)


def fastest_change(table: CostTable, problem: SequenceProblem) -> float:
    """Return the least time change that any schedule under the rules can reach.

    There is one: every kernel was measured at the clocks called auto, and staying there is allowed.
    """
    timed = dataclasses.replace(
        problem, energy_j=problem.time_s, switch_energy_j=problem.switch_time_s, budget_s=math.inf
    )
    return solve(timed, Effort.PLAN).time_s / table.auto_time_s - 1.0


def as_schedule(
    table: CostTable,
    problem: SequenceProblem,
    schedule: Solution,
    *,
    latencies: LatencyTable,
    wording: str,
) -> ClockSchedule:
    """Return a feasible schedule as its segments, with what it takes to run it."""
    costs, order, choice = table.launches, problem.order, schedule.choice
    at, aims_s, _, _ = misses(costs, order, choice, problem.jitter_s, table.auto_w)
    aim_s = dict(zip(at.tolist(), aims_s.tolist(), strict=True))
    # What a launch costs at each setting, a second counted as energy. Shape (K, S).
    worth = costs.energy_j + WORTH * table.auto_w * costs.time_s
    segments: list[Segment] = []
    begins, before = 0, int(choice[-1])
    for setting, run in itertools.groupby(choice.tolist()):
        clocks, launches = table.settings[setting], len(list(run))
        kernels = order[begins : begins + launches]
        saved_j = float((worth[kernels, before] - worth[kernels, setting]).sum())
        aim, pays_j = aim_s.get(begins, 0.0), saved_j if math.isfinite(saved_j) else None
        segments.append(Segment(launches=launches, clocks=clocks, aim_s=aim, pays_j=pays_j))
        begins, before = begins + launches, setting
    return ClockSchedule(
        segments=tuple(segments),
        switches=schedule.switches,
        latency=wording,
        latencies=latencies,
        launch_s=tuple(costs.time_s[order, choice].tolist()),
        launch_j=tuple(costs.energy_j[order, choice].tolist()),
    )


CURVE: tuple[tuple[float, str], ...] = (
    (1e-3, "Ascend NPU"),
    (6e-3, "Hopper (as cited by arXiv 2601.08539)"),
    (0.15, "Quadro RTX 6000"),
)
"""Latencies that were reported, in s, from call to new clock, and of what hardware."""

_ROUNDING = 1e-9  # of auto's time or energy


class Own(NamedTuple):
    """What a plan holds, which stands on its curve as it is: one latency has one number."""

    latency_s: float
    arm: Arm
    schedule: Solution
    kept: float  # how much more time the solver was given than the plan's budget, to keep that
    frontier: tuple[Cost, ...]  # as of `budget_curve`


def curve_latencies(own_s: float | None) -> tuple[float, ...]:
    """Return three latencies in s, ascending; a GPU's own takes the place of the nearest."""
    curve = [latency_s for latency_s, _ in CURVE]
    if own_s is not None and own_s > 0.0:
        nearest = min(curve, key=lambda each: abs(math.log(each / own_s)))
        curve[curve.index(nearest)] = own_s
    return tuple(curve)


def latency_curve(
    table: CostTable,
    order: Sequence[int],
    rules: Rules,
    per_kernel: Sequence[Ints],
    latencies_s: Sequence[float],
    own: Own | None = None,
    effort: Effort = Effort.PLAN,
) -> tuple[LatencyPoint, ...]:
    """Plan at several latencies, and within other budgets.

    Every change of either clock is taken to need the latency, and nothing else.

    Args:
        per_kernel: Choices to start from. Shapes (K,).
        own: What the plan holds, where its latency is one of these.
    """
    free = dataclasses.replace(rules, latencies=LatencyTable.free())
    problem = sequence_problem(table, order, free)
    points: list[LatencyPoint] = []
    starts = [choice[problem.order] for choice in per_kernel]
    # What cannot be done at the shortest latency cannot be at a longer one.
    changes = ~np.eye(len(problem.dwell_s), dtype=np.bool_)
    problems = {
        latency_s: dataclasses.replace(problem, dwell_s=np.where(changes, latency_s, 0.0))
        for latency_s in sorted(latencies_s)
    }
    shortest = solve(problems[min(latencies_s)], effort, starts)
    schedule, kept = infeasible(), 0.0 if own is None else own.kept
    # From the slowest down: a schedule for a longer latency keeps the rules of a shorter one.
    for latency_s, at in reversed(problems.items()):
        mine = own is not None and latency_s == own.latency_s
        if own is not None and mine:
            schedule = own.schedule
        elif schedule.energy_j * (1.0 - effort.gap) <= shortest.bound_j:
            least_j = min(shortest.bound_j, schedule.energy_j)
            schedule = dataclasses.replace(schedule, bound_j=least_j)
        else:
            previous = [] if schedule.gap is None else [schedule.choice]
            schedule = solve(at, effort, [*starts, *previous])
        if own is not None and schedule.switches == 0 and own.schedule.switches == 0:
            mine, schedule = True, own.schedule  # without switches no latency matters
        cost = schedule_cost(table, problem, schedule)
        frontier = own.frontier if own is not None and mine else ()
        if cost is not None and not mine:
            frontier = budget_curve(table, at, cost, kept, [*starts, schedule.choice])
        points.append(
            LatencyPoint(
                latency_s=latency_s,
                time_change=cost.time_change if cost else None,
                energy_change=cost.energy_change if cost else None,
                switches=schedule.switches if cost else None,
                gap=own.arm.gap if own and schedule is own.schedule else schedule.gap,
                hardware=dict(CURVE).get(latency_s, ""),
                frontier=frontier,
            )
        )
    return tuple(reversed(points))


def budget_curve(
    table: CostTable, problem: SequenceProblem, own: Cost, kept: float, starts: Sequence[Ints]
) -> tuple[Cost, ...]:
    """Plan at other time budgets, under the same latency.

    Args:
        kept: How much more time the solver was given than the plan's own budget, to keep that.
        starts: Solutions to start from. Shapes (n,).

    Returns:
        What schedules cost, fastest first, the plan's own among them; energy falls.
    """
    found = []
    tried = list(starts)
    for budget in BUDGETS:
        budget_s = table.auto_time_s * (1.0 + budget + kept)
        if np.isclose(problem.budget_s, (budget_s, budget_s - kept * table.auto_time_s)).any():
            continue  # the plan's own
        schedule = solve(problem.within(budget_s), Effort.QUICK, tried)
        cost = schedule_cost(table, problem, schedule)
        if cost is not None:
            found.append(cost)
            tried = [*starts, schedule.choice]
    neighbours = [
        cost
        for cost in found
        if (cost.time_change - own.time_change) * (cost.energy_change - own.energy_change) < 0.0
    ]
    falling: list[Cost] = []
    for cost in sorted([own, *neighbours], key=lambda cost: (cost.time_change, cost.energy_change)):
        if not falling or cost.energy_change < falling[-1].energy_change - _ROUNDING:
            falling.append(cost)
    return tuple(falling)
