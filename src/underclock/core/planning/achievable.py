"""What a GPU can follow: planning with its own switching latency.

Shape letters: K kernels, n invocations.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from underclock.arrays import Ints
from underclock.core.knapsack import Exact
from underclock.core.model.predicted_change import PredictedChange
from underclock.core.planning.aim import Aim
from underclock.core.planning.chance_constraint import room
from underclock.core.planning.choices import with_intervals
from underclock.core.planning.misses import WORTH, Misses, misses
from underclock.core.planning.under_cap import cheapest_within, is_held, windows_of
from underclock.core.step.table import CostTable
from underclock.core.step.under_cap import against_auto, cap_of, grouped, step_cost
from underclock.core.switching import CyclicExact, Schedule, SequenceProblem, WindowedSequence
from underclock.core.switching.schedule import infeasible, schedule_of, violations
from underclock.records import (
    TOLERANCE,
    Arm,
    ClockSchedule,
    Cost,
    Granularity,
    Segment,
    Status,
    Strategy,
)
from underclock.records.latencies import LatencyTable

_ROUNDS = 6  # of aims below the time budget
_SMALL = 1e-6  # of auto's time
_LITTLE = 2e-4  # of auto's time: so much of the budget may be left

SOLVER = CyclicExact(gap=1e-4, effort=600_000, max_labels=1_000_000, component_labels=50_000)
"""Stops at a ten-thousandth of the energy, or after half a second of looking."""
QUICK = CyclicExact(gap=1e-3, effort=60_000, max_labels=100_000, component_labels=5_000)
"""Looks a tenth as far."""
_WINDOW_ROUNDS = 3  # schedules looked for at multipliers of windows
_FEW_LABELS = 20_000


class ScheduleRisk(Protocol):
    """What tells how sure the cost of a schedule is."""

    def predicted_schedule(self, choice: Ints, /) -> PredictedChange:
        """Return what a setting for each launch is expected to change, and its deviations."""
        ...


class Achieved(NamedTuple):
    """A schedule, what it costs, and the time budget that the solver was given to find it."""

    arm: Arm
    schedule: Schedule
    aim: float


def achieved(
    table: CostTable,
    problem: SequenceProblem,
    per_kernel: Sequence[Ints],
    risk: ScheduleRisk | None = None,
    solver: CyclicExact = SOLVER,
) -> Achieved:
    """Find the best schedule, no worse than any given choice that keeps the rules.

    Where costs are those of the step, the solver knows nothing of the cap, and expected costs are
    unsure: it is given an aim below the budget until what it finds keeps the budget. Where the cap
    holds what it finds, schedules are looked for too whose windows it need not hold.

    Args:
        table: What the problem was made of.
        problem: What to keep.
        per_kernel: Choices to start from, a setting per kernel each. Shapes (K,).
        risk: How sure the costs of the step are; ``None`` takes them as certain.
        solver: How far to look.
    """
    starts = [choice[problem.order] for choice in per_kernel]
    if table.power_cap is None:
        schedule = solver.solve(problem, starts)
        arm = _arm(schedule, schedule_cost(table, problem, schedule), None)
        return Achieved(arm, schedule, problem.budget_s / table.auto_time_s - 1.0)
    step = _Step(table=table, problem=problem, starts=starts, risk=risk, solver=solver)
    found = step.aimed()
    if step.is_held:
        found = step.better(found, step.below())
    found = step.better(found, step.given())
    if found is not None:
        return Achieved(found.arm, found.schedule, step.aim)
    if step.budget < 0.0:
        arm = Arm.of(Strategy.ACHIEVABLE, None, Status.INFEASIBLE)
        return Achieved(arm, infeasible(), step.aim)
    schedule = Schedule(
        status=Status.BOUNDED,
        choice=np.full(len(problem.order), table.baseline),
        time_s=table.auto_time_s,
        energy_j=table.auto_energy_j,
        bound_j=min(step.bound_j, table.auto_energy_j),
        switches=0,
    )
    arm = _arm(schedule, schedule_cost(table, problem, schedule), None)
    return Achieved(arm, schedule, step.aim)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A schedule that keeps the budget as it settles."""

    arm: Arm
    schedule: Schedule
    energy_change: float


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step under its cap, for which a schedule is sought.

    Attributes:
        table: What the problem was made of.
        problem: What to keep.
        starts: Schedules to start from. Shapes (n,).
        risk: How sure the costs of the step are.
        solver: How far to look.
        aim: The last that a schedule was found at that keeps the budget; to begin with the first.
        bound_j: No schedule that keeps the budget and the limit takes less.
        is_held: Whether the cap holds a schedule that was looked at.
    """

    table: CostTable
    problem: SequenceProblem
    starts: list[Ints]
    risk: ScheduleRisk | None
    solver: CyclicExact
    aim: float = math.nan
    bound_j: float = math.inf
    is_held: bool = False

    def __post_init__(self) -> None:
        """Begin at the whole budget."""
        self.aim = self.budget + 0.5 * TOLERANCE

    @property
    def budget(self) -> float:
        """The time budget, as a fraction above auto."""
        return self.problem.budget_s / self.table.auto_time_s - 1.0

    def aimed(self) -> _Kept | None:
        """Aim at the budget until a schedule keeps it and leaves little of it.

        Returns:
            ``None`` where none that saves keeps it.
        """
        aim = self.aim
        best: _Kept | None = None
        for _ in range(_ROUNDS):
            schedule = self.solver.solve(self._at(aim), self.starts)
            self.bound_j = min(self.bound_j, schedule.bound_j)
            if schedule.status is Status.INFEASIBLE:
                break
            self.is_held = self.is_held or is_held(self.table, schedule.choice)
            overrun, kept = self._kept(schedule)
            better = self.better(best, kept)
            self.aim = aim if better is kept is not None else self.aim
            if -_LITTLE <= overrun <= _SMALL or (best is not None and better is best):
                return better
            best = better
            aim -= overrun
        return best

    def below(self) -> _Kept | None:
        """Look for schedules whose windows the cap need not hold."""
        cap, groups = cap_of(self.table), grouped(self.table, Granularity.KERNEL)
        aim = self.budget + 0.5 * TOLERANCE
        # With free switching multipliers are found in no time, and they are nearly the same.
        free = cheapest_within(self.table, groups, Exact(max_labels=_FEW_LABELS), Aim(slowdown=aim))
        problem = self._at(aim)

        def settled_j(choice: Ints) -> float:
            _, kept = self._kept(self._of(choice))
            return math.inf if kept is None else self.table.auto_energy_j * (1 + kept.energy_change)

        choice = WindowedSequence(
            problem=problem, windows=windows_of(cap), judge=settled_j
        ).cheapest(QUICK, self.starts, first=free.multipliers, rounds=_WINDOW_ROUNDS)
        return None if choice is None else self._kept(self._of(choice))[1]

    def given(self) -> _Kept | None:
        """Look at the schedules to start from: one clock for the whole step needs no aim."""
        free = dataclasses.replace(self.problem, budget_s=math.inf)
        followed = [start for start in self.starts if not violations(free, start)]
        kept = [self._kept(self._of(start))[1] for start in followed]
        return functools.reduce(self.better, kept, None)

    @staticmethod
    def better(one: _Kept | None, other: _Kept | None) -> _Kept | None:
        """Return the one that saves more."""
        kept = [each for each in (one, other) if each is not None]
        return min(kept, key=lambda each: each.energy_change, default=None)

    def _at(self, aim: float) -> SequenceProblem:
        return dataclasses.replace(self.problem, budget_s=self.table.auto_time_s * (1.0 + aim))

    def _of(self, choice: Ints) -> Schedule:
        return schedule_of(self.problem, choice, status=Status.BOUNDED, bound_j=self.bound_j)

    def _kept(self, schedule: Schedule) -> tuple[float, _Kept | None]:
        """Say by how much a schedule overruns the budget as it settles, and keep it if it saves."""
        cost = _settled_cost(self.table, self.problem, schedule)
        change = None if self.risk is None else self.risk.predicted_schedule(schedule.choice)
        margin = 0.0 if change is None else room(change.time_spread, TOLERANCE)
        overrun = cost.time_change + margin - self.budget
        # Nothing is gained that auto does not give, where it may be left at auto.
        if overrun > _SMALL or (cost.energy_change >= 0.0 and self.budget >= 0.0):
            return overrun, None
        arm = _arm(schedule, cost, change)
        if is_held(self.table, schedule.choice):
            gap = max(0.0, 1.0 - self.bound_j / cost.energy_j)
            arm = msgspec.structs.replace(arm, status=Status.BOUNDED, gap=gap)
        return overrun, _Kept(arm=arm, schedule=schedule, energy_change=cost.energy_change)


def _arm(schedule: Schedule, cost: Cost | None, change: PredictedChange | None) -> Arm:
    """Return the arm of a schedule, with its intervals where they are known."""
    arm = Arm.of(Strategy.ACHIEVABLE, cost, schedule.status, schedule.gap)
    if change is None or cost is None:
        return arm
    # Stalls and jitter are in the cost, not in what the fit says of kernels.
    whole = dataclasses.replace(
        change, time_change=cost.time_change, energy_change=cost.energy_change
    )
    return with_intervals(arm, whole)


def schedule_cost(table: CostTable, problem: SequenceProblem, schedule: Schedule) -> Cost | None:
    """Return what a step takes under a schedule, against auto; ``None`` if it is infeasible."""
    return None if schedule.status is Status.INFEASIBLE else _settled_cost(table, problem, schedule)


def _settled_cost(table: CostTable, problem: SequenceProblem, schedule: Schedule) -> Cost:
    time_s, energy_j = float(schedule.time_s), float(schedule.energy_j)
    if table.power_cap is not None and not (schedule.choice == table.baseline).all():
        free = table.launches
        at = table.power_cap.order, schedule.choice
        settled = step_cost(table, schedule.choice)
        time_s += settled.time_s - math.fsum(free.time_s[at])
        energy_j += settled.energy_j - math.fsum(free.energy_j[at])
        # The solver counts misses as they are at a usual boundary; these are the schedule's own.
        missed = _misses(table, problem, schedule.choice)
        change = np.roll(schedule.choice, 1)[missed.at], schedule.choice[missed.at]
        time_s += math.fsum(missed.time_s - problem.miss_time_s[change])
        energy_j += math.fsum(missed.energy_j - problem.miss_energy_j[change])
    return against_auto(table, time_s, energy_j)


def _pays_j(table: CostTable, kernels: Ints, before: int, setting: int) -> float | None:
    """Return what launches save at a setting against another, a second counted as energy."""
    costs = table.launches
    worth = costs.energy_j + WORTH * table.auto_w * costs.time_s
    saved_j = float((worth[kernels, before] - worth[kernels, setting]).sum())
    return saved_j if math.isfinite(saved_j) else None


def _misses(table: CostTable, problem: SequenceProblem, choice: Ints) -> Misses:
    return misses(table.launches, problem.order, choice, problem.jitter_s, table.auto_w)


def fastest_change(table: CostTable, problem: SequenceProblem) -> float:
    """Return the least time change that any schedule under the rules can reach.

    There is one: every kernel was measured at the clocks called auto, and staying there is allowed.

    Args:
        table: What the problem was made of.
        problem: Whose budget no schedule meets.
    """
    timed = dataclasses.replace(
        problem,
        energy_j=problem.time_s,
        switch_energy_j=problem.switch_time_s,
        budget_s=math.inf,
    )
    return SOLVER.solve(timed).time_s / table.auto_time_s - 1.0


def as_record(
    table: CostTable,
    problem: SequenceProblem,
    schedule: Schedule,
    *,
    latencies: LatencyTable,
    wording: str,
) -> ClockSchedule:
    """Return a feasible schedule as its segments, with what it takes to run it.

    Args:
        table: Whose settings the schedule names.
        problem: What it solves.
        schedule: The schedule.
        latencies: What the problem was stated with.
        wording: The same in words.
    """
    missed = _misses(table, problem, schedule.choice)
    aims_s = dict(zip(missed.at.tolist(), missed.aim_s.tolist(), strict=True))
    segments: list[Segment] = []
    begins, before = 0, int(schedule.choice[-1])
    for setting, run in itertools.groupby(schedule.choice.tolist()):
        clocks, launches = table.settings[setting], len(list(run))
        kernels = problem.order[begins : begins + launches]
        segments.append(
            Segment(
                launches=launches,
                core_mhz=clocks.core_mhz,
                mem_mhz=clocks.mem_mhz,
                aim_s=aims_s.get(begins, 0.0),
                pays_j=_pays_j(table, kernels, before, setting),
            )
        )
        begins, before = begins + launches, setting
    return ClockSchedule(
        segments=tuple(segments),
        switches=schedule.switches,
        latency=wording,
        latencies=latencies,
        launch_s=tuple(table.launches.time_s[problem.order, schedule.choice].tolist()),
    )
