"""The strategies of a plan, side by side: auto, one fixed clock, per pass, per kernel.

Every strategy solves the same problem on other groups (`groups`) with the same objective, so their
figures can be compared line by line. What other time budgets would bring is told beside them.

Shape letters: K kernels.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.costs.groups import Grouped, grouped
from underclock.core.costs.step import against_auto
from underclock.core.costs.table import CostTable
from underclock.core.knapsack import Problem
from underclock.core.knapsack.frontier import subsampled, supported
from underclock.core.planning.best_choice import Task, best_choice
from underclock.core.planning.chance_constraint import RiskModel
from underclock.core.planning.choices import as_neighbours, choice_cost, with_intervals
from underclock.core.planning.goal import Goal
from underclock.records import Aggregate, Arm, Cost, Granularity, Status, Strategy

_FRONTIER_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedStrategies:
    """Every strategy, costed.

    Attributes:
        arms: In order of freedom.
        settings: Setting per kernel of each feasible strategy. Shapes (K,).
    """

    arms: tuple[Arm, ...]
    settings: dict[Strategy, Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStrategies(SolvedStrategies):
    """Every strategy, and what other budgets would bring.

    Attributes:
        fastest_change: Least time change any choice of the goal's strategy can reach.
        frontier: Of the goal's granularity.
    """

    fastest_change: float
    frontier: tuple[Cost, ...]


def compare_strategies(
    table: CostTable, goal: Goal, risk: RiskModel | None = None
) -> ComparedStrategies:
    """Choose clocks by each of the strategies, and look at other budgets.

    Args:
        table: What every kernel costs.
        goal: What to minimise.
        risk: As of `solve_strategies`.
    """
    solved = solve_strategies(table, goal, risk)
    groups = grouped(table, goal.granularity)
    frontier = _frontier(table, groups)
    # Under a cap the frontier begins with the fastest choice that the cap leaves alone.
    held = table.power_cap is not None and goal.aggregate is Aggregate.GLOBAL
    return ComparedStrategies(
        arms=solved.arms,
        settings=solved.settings,
        fastest_change=frontier[0].time_change
        if held
        else _fastest_change(table, groups, goal.aggregate),
        frontier=frontier,
    )


def one_clock_only(compared: ComparedStrategies) -> ComparedStrategies:
    """Leave the strategies away that give parts of a step clocks of their own."""
    kept = (Strategy.AUTO, Strategy.BEST_FIXED)
    return dataclasses.replace(
        compared,
        arms=tuple(arm for arm in compared.arms if arm.name in kept),
        settings={name: each for name, each in compared.settings.items() if name in kept},
    )


def solve_strategies(
    table: CostTable, goal: Goal, risk: RiskModel | None = None
) -> SolvedStrategies:
    """Choose clocks by each of the strategies.

    Args:
        table: What every kernel costs.
        goal: What to minimise.
        risk: How sure costs are. With it every strategy keeps the time budget with 95 % confidence
            and says its intervals; ``None`` takes costs as certain.
    """
    freedom = {
        Strategy.BEST_FIXED: (Granularity.STEP, Aggregate.GLOBAL),
        Strategy.PASS: (Granularity.PASS, goal.aggregate),
        Strategy.KERNEL_LOCAL: (Granularity.KERNEL, Aggregate.LOCAL),
        Strategy.KERNEL_GLOBAL: (Granularity.KERNEL, Aggregate.GLOBAL),
    }
    auto = np.full(len(table.kernels), table.baseline)
    arms = [Arm.of(Strategy.AUTO, choice_cost(table, auto), Status.BASELINE)]
    settings = {Strategy.AUTO: auto}
    for strategy, (granularity, aggregate) in freedom.items():
        task = Task(
            groups=grouped(table, granularity),
            aggregate=aggregate,
            goal=dataclasses.replace(goal, granularity=granularity),
            max_slowdown=goal.max_slowdown,
        )
        candidate = best_choice(table, task, risk)
        if candidate is None:
            arms.append(Arm.of(strategy, None, Status.INFEASIBLE))
            continue
        setting, proof = as_neighbours(table, candidate.setting), candidate.proof
        settings[strategy] = setting
        arm = Arm.of(strategy, choice_cost(table, setting), proof.status, proof.gap)
        arms.append(arm if risk is None else with_intervals(arm, risk.predicted_change(setting)))
    return SolvedStrategies(arms=tuple(arms), settings=settings)


def _fastest_change(table: CostTable, groups: Grouped, aggregate: Aggregate) -> float:
    """Return the least time change that any choice can reach; alone, of the slowest group."""
    fastest_s = groups.time_s.min(axis=1)
    if aggregate is Aggregate.LOCAL:
        return float((fastest_s / groups.auto_s(table)).max()) - 1.0
    return math.fsum(fastest_s) / table.auto_time_s - 1.0


def _frontier(table: CostTable, groups: Grouped) -> tuple[Cost, ...]:
    """Return choices that no mixture of others beats, and of a step those within its power."""
    times_s, energies_j = supported(Problem(time_s=groups.time_s, energy_j=groups.energy_j))
    if table.power_cap is not None:
        # Time rises and power falls along the frontier.
        first = int(np.argmax(energies_j <= table.power_cap.limit_w * times_s))
        times_s, energies_j = times_s[first:], energies_j[first:]
    if table.heat is not None and table.power_cap is not None:
        # A point of the frontier is many settings; where most time is spent they are near boost.
        means_w: Floats = energies_j / times_s
        w_per_c = np.full_like(means_w, table.heat.w_per_c[table.power_cap.boost])
        energies_j = times_s * (means_w + table.heat.extra_w(means_w, table.auto_w, w_per_c))
    time_s, energy_j = subsampled(times_s, energies_j, _FRONTIER_POINTS)
    return tuple(
        against_auto(table, s, j) for s, j in zip(time_s.tolist(), energy_j.tolist(), strict=True)
    )
