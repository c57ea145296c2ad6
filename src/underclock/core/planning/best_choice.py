"""What a plan minimises, choices of clocks, and the best choice for a strategy.

A choice is one setting per kernel: an index into the settings of a cost table. Without a time
budget, expected costs are minimised. With a budget, the budget is kept by expectation, or with
confidence where errors of the costs are known.

The solver knows nothing of the cap. Where windows of what it chooses draw more than the limit, the
loop lowers clocks, and the step takes longer than was reckoned. Multipliers of these windows lead
to choices that the loop leaves alone, or nearly so; the best of them is found by settling each, and
compared with the choice made without a cap.

With Lagrange's multiplier for power, least time within mean power L is least E + λt for some λ: the
same trade of energy against time as in every plan. So the fastest step is the knapsack with its
parts changed over: minimise Σ t subject to Σ (E - L·t) ≤ 0, windows by multipliers too.

Shape letters: G groups, S settings, K kernels, n launches.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.costs import PredictedChange
from underclock.core.planning.chance_constraint import Candidate, RiskModel, room, within_confidence
from underclock.core.solvers import (
    Effort,
    Problem,
    WindowedGroups,
    cheapest_below,
    costed,
    fastest_below,
    infeasible,
    least_product,
    solve,
)
from underclock.core.step.cost_table import CostTable, overlapped
from underclock.core.step.power_cap import greatest_mean_w
from underclock.core.step.power_capped_step import (
    Grouped,
    against_auto,
    auto_core_mhz,
    cap_of,
    settled_step,
    step_cost,
)
from underclock.errors import UsageError
from underclock.records import (
    TOLERANCE,
    Aggregate,
    Arm,
    Choice,
    Cost,
    Granularity,
    Objective,
    Plan,
    Status,
    Strategy,
)
from underclock.units import as_fraction, member

DEFAULT_SLOWDOWN = 0.01  # time budget where none is named, of a step and of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What to minimise, and who keeps the time budget; choices may be given as text."""

    objective: Objective = Objective.WASTE
    max_slowdown: float = DEFAULT_SLOWDOWN
    """Budget of the waste objective, as a fraction above auto: 0.01 is 1 %, 0 is strict; ``"1%"``
    is read as well. May be negative."""
    granularity: Granularity = Granularity.KERNEL
    """Of the choice with free switching."""
    aggregate: Aggregate = Aggregate.GLOBAL
    """Of that choice."""

    def __post_init__(self) -> None:
        """Read choices and fractions given as text; reject unknown ones, and impossible budgets.

        Raises:
            UsageError: One of them means nothing.
        """
        for name, choices in (
            ("objective", Objective),
            ("granularity", Granularity),
            ("aggregate", Aggregate),
        ):
            object.__setattr__(self, name, member(choices, getattr(self, name), name))
        slowdown = as_fraction(self.max_slowdown, "max_slowdown")
        object.__setattr__(self, "max_slowdown", slowdown)
        if not -1.0 < self.max_slowdown < 1.0:
            raise UsageError(
                "max_slowdown must be a fraction above -1 and below 1, such as 0.01 for 1 %; "
                f"got {self.max_slowdown}",
                hint="write for example --max-slowdown 1%",
            )

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the goal that a plan was made for."""
        return cls(
            objective=plan.objective,
            max_slowdown=plan.max_slowdown or 0.0,
            granularity=plan.granularity,
            aggregate=plan.aggregate,
        )

    @property
    def chosen(self) -> Strategy:
        """The strategy of its choice with free switching."""
        if self.granularity is Granularity.STEP:
            return Strategy.BEST_FIXED
        if self.granularity is Granularity.PASS:
            return Strategy.PASS
        return Strategy(f"kernel_{self.aggregate}")


def choice_cost(table: CostTable, setting: Ints) -> Cost:
    """Return what a setting of each kernel, (K,), costs: under a power cap, as the step settles."""
    if table.power_cap is not None:
        return step_cost(table, setting[table.power_cap.order])
    rows = np.arange(len(table.kernels))
    return against_auto(
        table, math.fsum(table.time_s[rows, setting]), math.fsum(table.energy_j[rows, setting])
    )


def as_neighbours(table: CostTable, setting: Ints) -> Ints:
    """Return a setting of each kernel, (K,), overlapped ones with that of the kernels over them.

    A kernel has one setting, and its launches may have several neighbours: most of their time
    decides. Where the order is not known, all of the step does.
    """
    hidden = overlapped(table.kernels)
    if not hidden.any():
        return setting
    near_s = np.zeros((len(setting), len(setting)))  # of neighbours, column by column
    if table.power_cap is None:
        near_s[:] = table.time_s[:, table.baseline]
    else:
        order = table.power_cap.order
        at_auto_s = table.launches.time_s[:, table.baseline]
        waited = np.flatnonzero(~hidden[order])
        for launch in np.flatnonzero(hidden[order]).tolist():
            # The launch before it, round the end of the step; the first has the last before it.
            neighbour = order[waited[np.searchsorted(waited, launch) - 1]]
            near_s[order[launch], neighbour] += at_auto_s[neighbour]
    found: Ints = setting.copy()
    for k in np.flatnonzero(hidden).tolist():
        found[k] = np.bincount(setting[~hidden], weights=near_s[k, ~hidden]).argmax()
    return found


def choices(table: CostTable, setting: Ints, order: Ints | None = None) -> dict[str, Choice]:
    """Return the clocks of every kernel and what they do to it.

    Settings are of each kernel, (K,), or of each launch of ``order``, both of shape (n,).
    """
    by_kernel, at_auto, launches = {}, auto_core_mhz(table), np.zeros(table.time_s.shape)
    np.add.at(launches, (np.arange(len(setting)) if order is None else order, setting), 1)
    shares = launches / launches.sum(axis=1, keepdims=True)
    times_s, energies_j = (
        shares * np.where(shares > 0.0, each, 0.0) for each in (table.time_s, table.energy_j)
    )
    for k, kernel in enumerate(table.kernels):
        auto_s = float(table.time_s[k, table.baseline])
        auto_j = float(table.energy_j[k, table.baseline])
        by_kernel[kernel.name] = Choice(
            clocks=table.settings[times_s[k].argmax()],
            # The clocks of an overlapped kernel are its neighbour's, and its cost is constant.
            time_change=0.0 if kernel.overlapped else math.fsum(times_s[k]) / auto_s - 1.0,
            energy_change=0.0 if kernel.overlapped else math.fsum(energies_j[k]) / auto_j - 1.0,
            auto_time_s=auto_s,
            auto_energy_j=auto_j,
            auto_core_mhz=at_auto.get(k),
        )
    return by_kernel


def with_intervals(arm: Arm, change: PredictedChange) -> Arm:
    """Return an arm with the 95 % intervals of its changes."""
    time, energy = change.intervals
    return msgspec.structs.replace(
        arm,
        time_interval=(change.time_change + time[0], change.time_change + time[1]),
        energy_interval=(change.energy_change + energy[0], change.energy_change + energy[1]),
    )


_FASTEST_ROUNDS = 24  # choices looked at for the fastest step
_ROUNDS = 12  # choices looked at within a time budget
_ROUNDING_MHZ = 1e-6
_ROUNDED = 1e-9  # of a time or an energy: what rounding leaves


def is_held(table: CostTable, choice: Ints) -> bool:
    """Whether the cap lowers clocks of a schedule, a setting of each launch, (n,).

    Never where there is no cap, or auto is measured.
    """
    cap = table.power_cap
    if cap is None or (choice == table.baseline).all():
        return False
    launches = table.launches
    time_s, energy_j = launches.time_s[cap.order, choice], launches.energy_j[cap.order, choice]
    return greatest_mean_w(cap, time_s, energy_j) > cap.limit_w


def as_it_runs(table: CostTable, groups: Grouped, setting: Ints) -> Ints:
    """Return a setting of each kernel, (K,), none asking for a higher clock than the cap leaves it.

    A ceiling that is taken to follow the mean at once makes them the same. A real one moves bin by
    bin: it climbs while launches at low clocks run, and what asks for more runs above where it
    would settle until it has come down.
    """
    order = cap_of(table).order
    reached_mhz = np.zeros(len(groups.time_s))
    settled = settled_step(table, setting[order])
    np.maximum.at(reached_mhz, groups.member[order], settled.core_mhz)
    core = np.array([clocks.core_mhz or math.nan for clocks in table.settings])
    asked: Ints = setting.copy()
    for g, least_mhz in enumerate(reached_mhz.tolist()):
        mine = groups.member == g
        own = int(setting[mine][0])
        memory = table.settings[own].mem_mhz
        enough = [
            s
            for s, clocks in enumerate(table.settings)
            if clocks.mem_mhz == memory
            and least_mhz - _ROUNDING_MHZ <= core[s] < core[own]
            and np.isfinite(table.time_s[mine, s]).all()
        ]
        asked[mine] = min(enough, key=lambda s: float(core[s]), default=own)
    return asked


def held_candidate(table: CostTable, groups: Grouped, effort: Effort, setting: Ints) -> Candidate:
    """Say how good a setting of each kernel, (K,), is that the cap holds, as it settles; no heat.

    No choice within the limit takes less energy in as much time than the solver finds without a
    cap.
    """
    cap = cap_of(table)
    settled = settled_step(table, setting[cap.order])
    # The cap makes no launch faster than its fastest setting, so there is such a choice.
    budget_s = math.fsum(settled.time_s) * (1.0 + _ROUNDED)
    free = solve(Problem(time_s=groups.time_s, energy_j=groups.energy_j, budget_s=budget_s), effort)
    found = Candidate.bounded(setting, free.bound_j, math.fsum(settled.energy_j))
    return dataclasses.replace(found, status=Status.BOUNDED)


def fastest(table: CostTable, groups: Grouped, effort: Effort) -> tuple[Ints, Cost] | None:
    """Return the choice whose step takes least time under the cap, and what the step takes.

    ``None`` where no choice keeps the limit. A setting of each kernel. Shape (K,).
    """
    cap = cap_of(table)

    def settled(choice: Ints) -> Cost:
        return step_cost(table, groups.spread(choice)[cap.order])

    windowed = WindowedGroups(
        problem=Problem(time_s=groups.time_s, energy_j=groups.energy_j),
        limit_w=cap.limit_w,
        fading=cap.fading,
        order=groups.member[cap.order],
        judge=lambda choice: cap.limit_w * settled(choice).time_s,
    )
    choice, _ = fastest_below(windowed, effort, rounds=_FASTEST_ROUNDS)
    return None if choice is None else (groups.spread(choice), settled(choice))


_ROUNDING = 1e-12  # relative; a kernel may take exactly its auto time
_KEPT = 1e-9  # of auto's time; a choice may take exactly its budget
_SMALL = 1e-6  # of auto's time; to what a search for a margin keeps a budget
TIME_POWER = {Objective.EDP: 1, Objective.ED2P: 2}
"""How often time counts in the objectives that are products with energy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one strategy solves: who shares clocks, who keeps the budget, what is minimised."""

    groups: Grouped
    aggregate: Aggregate
    goal: Goal
    max_slowdown: float  # its budget, or an aim below it, as a fraction above auto
    priced_s: Floats | float = 0.0  # what each setting takes of that besides its time, (G, S)

    @property
    def problem(self) -> Problem:
        """The groups' costs, without a time budget."""
        return Problem(time_s=self.groups.time_s + self.priced_s, energy_j=self.groups.energy_j)


def best_choice(
    table: CostTable, task: Task, risk: RiskModel | None, effort: Effort = Effort.PLAN
) -> Candidate | None:
    """Return the best choice; ``None`` where nothing keeps the time budget.

    Only the waste objective has a time budget, so risk plays no part in EDP and ED²P.

    Args:
        risk: How sure costs are; ``None`` takes them as certain.
        effort: How far to look where costs are expected ones.
    """
    goal = task.goal
    if goal.objective is not Objective.WASTE:
        return _free(table, task, Effort.PROOF)
    far = Effort.PROOF if risk is None else effort
    seen: list[Candidate] = []

    def within(aim: float, prices: Floats | None) -> Candidate | None:
        priced_s = 0.0 if prices is None else table.auto_time_s * task.groups.added(prices)
        aimed = dataclasses.replace(task, max_slowdown=aim, priced_s=priced_s)
        candidate = _free(table, aimed, far)
        seen.extend([] if candidate is None else [candidate])
        return candidate

    least = Effort.QUICK if risk is not None else far
    fast = functools.cache(lambda: fastest(table, task.groups, least))

    def below(aim: float, _prices: Floats | None) -> Candidate | None:
        """Return the choice whose step settles best within an aim."""
        cap, groups = cap_of(table), task.groups

        def settled_j(choice: Ints) -> float:
            cost = step_cost(table, groups.spread(choice)[cap.order])
            return math.inf if cost.time_change > aim + _ROUNDED else cost.energy_j

        windowed = WindowedGroups(
            problem=dataclasses.replace(task.problem, budget_s=table.auto_time_s * (1.0 + aim)),
            limit_w=cap.limit_w,
            fading=cap.fading,
            order=groups.member[cap.order],
            judge=settled_j,
        )
        cheapest = cheapest_below(windowed, least, rounds=_ROUNDS)[0]
        if cheapest is not None:
            return held_candidate(table, groups, least, groups.spread(cheapest))
        found = fast()
        if found is None or found[1].time_change > aim:
            return None
        return held_candidate(table, task.groups, least, found[0])

    together = task.aggregate is Aggregate.GLOBAL
    parts = (table, task.groups) if together else None
    candidate = within_confidence(goal.max_slowdown, within, risk, TOLERANCE, parts)
    if together and any(_is_held(table, task, each) for each in seen):
        held = within_confidence(goal.max_slowdown, below, risk, TOLERANCE)
        # The better of a choice made without a cap and one made below it, as they settle.
        free = candidate
        if risk is None and free is not None:
            # How it settles was not looked at.
            late = choice_cost(table, free.setting).time_change > goal.max_slowdown + _ROUNDING
            free = None if late else free
        kept = [each for each in (free, held) if each is not None]
        candidate = min(
            kept, key=lambda each: choice_cost(table, each.setting).energy_j, default=None
        )
    if candidate is not None and _is_held(table, task, candidate):
        # Ask for no higher clock than the cap leaves, where that keeps time: the same to the mean
        # board, and not to one that the cap holds less.
        asked = as_it_runs(table, task.groups, candidate.setting)
        if keeps(table, goal, risk, asked):
            candidate = dataclasses.replace(candidate, setting=asked)
    # Auto is as fast as auto, whatever else is unsure.
    if goal.max_slowdown >= 0 and (candidate is None or _costs_more(table, candidate, risk)):
        auto = task.groups.spread(np.full(len(task.groups.time_s), table.baseline))
        return Candidate(setting=auto, status=Status.OPTIMAL, gap=0.0)
    return candidate


def keeps(table: CostTable, goal: Goal, risk: RiskModel | None, setting: Ints) -> bool:
    """Whether a choice keeps the time budget as a plan has to."""
    if goal.objective is not Objective.WASTE:
        return True
    if risk is None:
        return choice_cost(table, setting).time_change <= goal.max_slowdown + _KEPT
    change = risk.predicted_change(setting)
    margin = room(change.time_spread, TOLERANCE)
    return change.time_change + margin <= goal.max_slowdown + _SMALL


def _costs_more(table: CostTable, candidate: Candidate, risk: RiskModel | None) -> bool:
    if risk is None:
        return choice_cost(table, candidate.setting).energy_change > _ROUNDING
    return risk.predicted_change(candidate.setting).energy_change > 0.0


def _is_held(table: CostTable, task: Task, candidate: Candidate) -> bool:
    # Costs of one clock for all are already what the cap makes of them.
    cap = table.power_cap
    if cap is None or task.goal.granularity is Granularity.STEP:
        return False
    return is_held(table, candidate.setting[cap.order])


def _free(table: CostTable, task: Task, effort: Effort) -> Candidate | None:
    """Return the best choice of expected costs, whatever its windows."""
    goal, problem = task.goal, task.problem
    if task.aggregate is Aggregate.LOCAL or goal.objective is Objective.ENERGY:
        # Let every group choose for itself; of equals the faster.
        cost = problem.energy_j.copy()
        if goal.objective in TIME_POWER:
            cost = cost * problem.time_s ** TIME_POWER[goal.objective]
        if goal.objective is Objective.WASTE:
            limit_s = task.groups.auto_s(table) * (1.0 + task.max_slowdown) * (1.0 + _ROUNDING)
            cost[problem.time_s > limit_s[:, None]] = math.inf
        least = cost.min(axis=1)
        if not np.isfinite(least).all():
            solution = infeasible()
        else:
            choice = np.where(cost == least[:, None], problem.time_s, math.inf).argmin(axis=1)
            solution = costed(problem, choice, Status.OPTIMAL)
    elif goal.objective in TIME_POWER:
        solution = least_product(problem, power=TIME_POWER[goal.objective])
    else:
        budget_s = table.auto_time_s * (1.0 + task.max_slowdown)
        solution = solve(dataclasses.replace(problem, budget_s=budget_s), effort)
    if solution.status is Status.INFEASIBLE:
        return None
    setting = task.groups.spread(solution.choice)
    free = Candidate(setting=setting, status=solution.status, gap=solution.gap)
    if not _is_held(table, task, free):
        return free
    if task.aggregate is Aggregate.GLOBAL and task.goal.objective is Objective.WASTE:
        return held_candidate(table, task.groups, effort, setting)
    return dataclasses.replace(free, status=Status.BOUNDED, gap=None)
