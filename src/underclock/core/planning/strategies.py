"""The arms of a plan, side by side: auto, one fixed clock, per pass, per kernel.

Every arm is the same problem on other groups (`groups`) with the same objective, so their figures
can be compared line by line.

Shape letters: K kernels, G groups, S settings.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np

from underclock.arrays import Ints
from underclock.core.costs.groups import Grouped, grouped
from underclock.core.costs.table import CostTable
from underclock.core.knapsack import Exact, Problem, Solution
from underclock.core.knapsack.frontier import least_product, supported, thinned
from underclock.core.knapsack.problem import INFEASIBLE, solution_of
from underclock.core.model.predicted_change import TWO_SIDED, PredictedChange
from underclock.core.planning.chance_constraint import keeping
from underclock.records import (
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Cost,
    Granularity,
    Objective,
    Plan,
    Status,
)
from underclock.units import member

# Of expected costs a proof to the last joule proves nothing: past so many labels, a gap is stated.
_LABELS, _FEW_LABELS = 200_000, 20_000
_FRONTIER_POINTS = 200
_ROUNDING = 1e-12  # relative; a kernel may take exactly its auto time
_TIME_POWER = {Objective.EDP: 1, Objective.ED2P: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What to minimise, and who keeps the time budget; choices may be given as text."""

    objective: Objective = Objective.WASTE
    max_slowdown: float = 0.0
    """Budget of the waste objective, as a fraction above auto: 0.01 is 1 %, 0 is strict. May be
    negative."""
    granularity: Granularity = Granularity.KERNEL
    """Of the arm whose clocks the plan holds."""
    aggregate: Aggregate = Aggregate.GLOBAL
    """Of that arm."""

    def __post_init__(self) -> None:
        """Read choices given as text; reject unknown ones, and budgets no step can have."""
        for name, choices in (
            ("objective", Objective),
            ("granularity", Granularity),
            ("aggregate", Aggregate),
        ):
            object.__setattr__(self, name, member(choices, getattr(self, name), name))
        if not -1.0 < self.max_slowdown < 1.0:
            raise ValueError(
                "max_slowdown must be a fraction above -1 and below 1, such as 0.01 for 1 %; "
                f"got {self.max_slowdown}"
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
    def chosen(self) -> str:
        """Name of the arm whose clocks the plan holds."""
        return {
            Granularity.KERNEL: f"kernel_{self.aggregate}",
            Granularity.PASS: "pass",
            Granularity.STEP: "best_fixed",
        }[self.granularity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Every way of choosing, costed.

    Attributes:
        arms: In order of freedom.
        settings: Setting per kernel of each feasible arm, by name. Shapes (K,).
        fastest_change: Least time change any choice of the chosen arm can reach.
        frontier: Of the chosen granularity.
    """

    arms: tuple[Arm, ...]
    settings: dict[str, Ints]
    fastest_change: float
    frontier: tuple[Cost, ...]


def compare_arms(
    table: CostTable, goal: Goal, judge: Callable[[Ints], PredictedChange] | None = None
) -> Arms:
    """Choose clocks in each of the ways compared.

    Args:
        table: What every kernel costs.
        goal: What to minimise.
        judge: What a setting per kernel is expected to change, and how sure that is. With it every
            arm keeps the time budget with 95 % confidence and says its intervals; without it costs
            are taken as certain.
    """
    ways = {
        "best_fixed": (Granularity.STEP, Aggregate.GLOBAL),
        "pass": (Granularity.PASS, goal.aggregate),
        "kernel_local": (Granularity.KERNEL, Aggregate.LOCAL),
        "kernel_global": (Granularity.KERNEL, Aggregate.GLOBAL),
    }
    auto = np.full(len(table.kernels), table.baseline)
    arms = [Arm.of("auto", _cost(table, auto), Status.BASELINE)]
    settings = {"auto": auto}
    for name, (granularity, aggregate) in ways.items():
        solution, setting = _sure(table, grouped(table, granularity), goal, aggregate, judge)
        cost = None
        if setting is not None:
            settings[name] = setting
            cost = _cost(table, setting)
        arm = Arm.of(name, cost, solution.status, solution.gap)
        if judge is not None and cost is not None:
            arm = with_intervals(arm, judge(settings[name]))
        arms.append(arm)
    groups = grouped(table, goal.granularity)
    fastest_s = groups.time_s.min(axis=1)
    if goal.aggregate is Aggregate.LOCAL:
        fastest_change = float((fastest_s / groups.time_s[:, table.baseline]).max()) - 1.0
    else:
        fastest_change = math.fsum(fastest_s) / table.auto_time_s - 1.0
    return Arms(
        arms=tuple(arms),
        settings=settings,
        fastest_change=fastest_change,
        frontier=_frontier(table, groups),
    )


def choose_kernels(
    table: CostTable, goal: Goal, judge: Callable[[Ints], PredictedChange]
) -> Ints | None:
    """Return the setting of each kernel under a budget they keep together; nearly the best."""
    groups = grouped(table, Granularity.KERNEL)
    return _sure(table, groups, goal, Aggregate.GLOBAL, judge, Exact(max_labels=_FEW_LABELS))[1]


def with_intervals(arm: Arm, seen: PredictedChange) -> Arm:
    """Return an arm that says how sure its changes are."""
    return msgspec.structs.replace(
        arm,
        time_interval=_interval(seen.time_change, seen.time_spread),
        energy_interval=_interval(seen.energy_change, seen.energy_spread),
    )


def _interval(mean: float, spread: float) -> tuple[float, float]:
    return mean - TWO_SIDED * spread, mean + TWO_SIDED * spread


def choices(table: CostTable, setting: Ints) -> dict[str, Choice]:
    """Return the clocks of every kernel and what they do to it."""
    chosen = {}
    for k, (kernel, s) in enumerate(zip(table.kernels, setting.tolist(), strict=True)):
        clocks = table.settings[s]
        auto_s = float(table.time_s[k, table.baseline])
        auto_j = float(table.energy_j[k, table.baseline])
        chosen[kernel.name] = Choice(
            core_mhz=clocks.core_mhz,
            mem_mhz=clocks.mem_mhz,
            time_change=float(table.time_s[k, s] / auto_s) - 1.0,
            energy_change=float(table.energy_j[k, s] / auto_j) - 1.0,
            auto_time_s=auto_s,
            auto_energy_j=auto_j,
        )
    return chosen


def cost_of(table: CostTable, wanted: dict[str, Clocks]) -> Cost:
    """Cost given clocks on a table.

    Args:
        table: What every kernel costs.
        wanted: Clocks of every kernel of the table.

    Raises:
        KeyError: A kernel without clocks, or clocks at which it was not measured. The argument is
            the kernel's name.
    """
    columns = []
    for k, kernel in enumerate(table.kernels):
        column = table.column(wanted[kernel.name])
        if column is None or not math.isfinite(table.time_s[k, column]):
            raise KeyError(kernel.name)
        columns.append(column)
    return _cost(table, np.array(columns))


def _sure(
    table: CostTable,
    groups: Grouped,
    goal: Goal,
    aggregate: Aggregate,
    judge: Callable[[Ints], PredictedChange] | None,
    exact: Exact = Exact(max_labels=_LABELS),  # noqa: B008 - frozen
) -> tuple[Solution, Ints | None]:
    """Solve; where there is somebody to judge, keep the time budget with confidence."""
    if judge is None or goal.objective is not Objective.WASTE:
        solution = _solve(table, groups, goal, aggregate)
        feasible = solution.status is not Status.INFEASIBLE
        return solution, groups.spread(solution.choice) if feasible else None
    found: dict[bytes, Solution] = {}

    def choose(aim: float) -> Ints | None:
        aimed = dataclasses.replace(goal, max_slowdown=aim)
        solution = _solve(table, groups, aimed, aggregate, exact)
        if solution.status is Status.INFEASIBLE:
            return None
        setting = groups.spread(solution.choice)
        found[setting.tobytes()] = solution
        return setting

    best = keeping(goal.max_slowdown, choose, judge)
    if best is not None:
        return found[best[0].tobytes()], best[0]
    if goal.max_slowdown < 0:
        return INFEASIBLE, None
    # Auto is as fast as auto, whatever else is unsure.
    auto = np.full(len(groups.time_s), table.baseline)
    problem = Problem(time_s=groups.time_s, energy_j=groups.energy_j)
    return solution_of(problem, auto), groups.spread(tuple(auto.tolist()))


def _solve(
    table: CostTable,
    groups: Grouped,
    goal: Goal,
    aggregate: Aggregate,
    exact: Exact = Exact(),  # noqa: B008 - frozen
) -> Solution:
    problem = Problem(time_s=groups.time_s, energy_j=groups.energy_j)
    if aggregate is Aggregate.LOCAL or goal.objective is Objective.ENERGY:
        return _solve_alone(problem, table.baseline, goal)
    if goal.objective in _TIME_POWER:
        return least_product(problem, power=_TIME_POWER[goal.objective])
    budget_s = math.fsum(groups.time_s[:, table.baseline]) * (1.0 + goal.max_slowdown)
    return exact.solve(Problem(time_s=groups.time_s, energy_j=groups.energy_j, budget_s=budget_s))


def _solve_alone(problem: Problem, baseline: int, goal: Goal) -> Solution:
    """Let every group choose for itself; of equals the faster."""
    cost = problem.energy_j.copy()
    if goal.objective in _TIME_POWER:
        cost = cost * problem.time_s ** _TIME_POWER[goal.objective]
    if goal.objective is Objective.WASTE:
        limit_s = problem.time_s[:, baseline] * (1.0 + goal.max_slowdown) * (1.0 + _ROUNDING)
        cost[problem.time_s > limit_s[:, None]] = math.inf
    least = cost.min(axis=1)
    if not np.isfinite(least).all():
        return INFEASIBLE
    choice = np.where(cost == least[:, None], problem.time_s, math.inf).argmin(axis=1)
    return solution_of(problem, choice)


def _cost(table: CostTable, setting: Ints) -> Cost:
    rows = np.arange(len(table.kernels))
    return _against_auto(
        table, math.fsum(table.time_s[rows, setting]), math.fsum(table.energy_j[rows, setting])
    )


def _against_auto(table: CostTable, time_s: float, energy_j: float) -> Cost:
    return Cost(
        time_s=time_s,
        energy_j=energy_j,
        time_change=time_s / table.auto_time_s - 1.0,
        energy_change=energy_j / table.auto_energy_j - 1.0,
    )


def _frontier(table: CostTable, groups: Grouped) -> tuple[Cost, ...]:
    points = supported(Problem(time_s=groups.time_s, energy_j=groups.energy_j))
    time_s, energy_j = thinned(*points, _FRONTIER_POINTS)
    return tuple(
        _against_auto(table, s, j) for s, j in zip(time_s.tolist(), energy_j.tolist(), strict=True)
    )
