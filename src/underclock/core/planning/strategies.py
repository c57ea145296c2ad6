"""The strategies of a plan side by side: auto, one fixed clock, per pass, per kernel.

Every strategy solves the same problem with the same objective on other groups of kernels, so
figures compare line by line. Solutions of less freedom or of less time are candidates of more, so
more freedom or more time is never worse. Results for further time budgets are listed too.

Shape letters: K kernels.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.planning.best_choice import (
    TIME_POWER,
    Goal,
    Task,
    as_neighbours,
    best_choice,
    choice_cost,
    keeps,
    with_intervals,
)
from underclock.core.planning.chance_constraint import Candidate, RiskModel
from underclock.core.solvers import Effort, Problem, subsampled, supported
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import against_auto, grouped
from underclock.records import Aggregate, Arm, Cost, Granularity, Status, Strategy

_FRONTIER_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStrategies:
    """Every strategy, costed, and what other budgets would bring."""

    arms: tuple[Arm, ...]
    settings: dict[Strategy, Ints]  # setting per kernel of each feasible strategy, (K,)
    fastest_change: float  # least time change any choice of the goal's strategy can reach
    frontier: tuple[Cost, ...]  # of the goal's granularity


def compare_strategies(
    table: CostTable,
    goal: Goal,
    risk: RiskModel | None = None,
    only: Sequence[Strategy] = tuple(Strategy),
) -> ComparedStrategies:
    """Choose clocks by some of the strategies, and look at other budgets."""
    arms, settings = solve_strategies(table, goal, risk, only=only)
    groups = grouped(table, goal.granularity)
    # Choices on the lower convex hull, and of a step those within its power cap.
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
    frontier = tuple(
        against_auto(table, s, j) for s, j in zip(time_s.tolist(), energy_j.tolist(), strict=True)
    )
    fastest_s = groups.time_s.min(axis=1)
    if goal.aggregate is Aggregate.LOCAL:  # of the slowest group
        fastest = float((fastest_s / groups.auto_s(table)).max()) - 1.0
    elif table.power_cap is None:
        fastest = math.fsum(fastest_s) / table.auto_time_s - 1.0
    else:  # the frontier begins with the fastest choice that the cap leaves alone
        fastest = frontier[0].time_change
    return ComparedStrategies(
        arms=arms, settings=settings, fastest_change=fastest, frontier=frontier
    )


def choose_kernels(table: CostTable, goal: Goal, risk: RiskModel | None) -> Ints | None:
    """Return the setting of each kernel under a budget they keep together; nearly the best."""
    only = (Strategy.BEST_FIXED, Strategy.KERNEL_GLOBAL)
    _, settings = solve_strategies(table, goal, risk, Effort.QUICK, only)
    return settings.get(Strategy.KERNEL_GLOBAL)


def solve_strategies(
    table: CostTable,
    goal: Goal,
    risk: RiskModel | None = None,
    effort: Effort = Effort.PLAN,
    only: Sequence[Strategy] = tuple(Strategy),
) -> tuple[tuple[Arm, ...], dict[Strategy, Ints]]:
    """Choose clocks by each of the strategies.

    Args:
        risk: How sure costs are. With it every strategy keeps the time budget with 95 % confidence
            and says its intervals; ``None`` takes costs as certain.
        effort: How far to look where costs are expected ones.
        only: Strategies to choose by, besides auto.

    Returns:
        What each costs, and the setting of each kernel in those that are feasible. Shape (K,).
    """
    freedom = {
        Strategy.BEST_FIXED: (Granularity.STEP, Aggregate.GLOBAL),
        Strategy.PASS: (Granularity.PASS, goal.aggregate),
        Strategy.KERNEL_LOCAL: (Granularity.KERNEL, Aggregate.LOCAL),
        Strategy.KERNEL_GLOBAL: (Granularity.KERNEL, Aggregate.GLOBAL),
    }
    auto = np.full(len(table.kernels), table.baseline)
    arms = [Arm(Strategy.AUTO, choice_cost(table, auto), Status.BASELINE)]
    settings = {Strategy.AUTO: auto}
    for strategy, (granularity, aggregate) in freedom.items():
        if strategy not in only:
            continue
        task = Task(
            groups=grouped(table, granularity),
            aggregate=aggregate,
            goal=dataclasses.replace(goal, granularity=granularity),
            max_slowdown=goal.max_slowdown,
        )
        found = best_choice(table, task, risk, effort)
        if found is not None:
            own = as_neighbours(table, found.setting)
            found = dataclasses.replace(found, setting=own)
        # A pass or a kernel that keeps a budget by itself may not have clocks of one that need not.
        less_free: tuple[Strategy, ...] = ()
        if strategy is Strategy.KERNEL_GLOBAL:
            less_free = (Strategy.BEST_FIXED, Strategy.PASS, Strategy.KERNEL_LOCAL)
        elif strategy is Strategy.PASS and goal.aggregate is Aggregate.GLOBAL:
            less_free = (Strategy.BEST_FIXED,)
        stricter = [settings[each] for each in less_free if each in settings]
        if granularity is Granularity.KERNEL and table.left is not None:
            stricter = [np.where(table.left, table.baseline, each) for each in stricter]
        found = _at_least(table, goal, risk, found, stricter)
        if found is None:
            arms.append(Arm(strategy, None, Status.INFEASIBLE))
            continue
        settings[strategy] = setting = found.setting
        arm = Arm(strategy, choice_cost(table, setting), found.status, found.gap)
        arms.append(arm if risk is None else with_intervals(arm, risk.predicted_change(setting)))
    return tuple(arms), settings


def _at_least(
    table: CostTable,
    goal: Goal,
    risk: RiskModel | None,
    found: Candidate | None,
    stricter: Sequence[Ints],
) -> Candidate | None:
    """Return what was found, or the best choice of stricter strategies where that is better."""
    # A search for a margin, or below a cap, may miss what was found with less freedom.

    def value(setting: Ints) -> float:
        cost = choice_cost(table, setting)
        return cost.energy_j * cost.time_s ** TIME_POWER.get(goal.objective, 0)

    kept = [setting for setting in stricter if keeps(table, goal, risk, setting)]
    best = min(kept, key=value, default=None)
    if best is None or (found is not None and value(best) >= value(found.setting)):
        return found
    gap = None if found is None else found.gap
    bound = math.inf if found is None or gap is None else value(found.setting) * (1.0 - gap)
    if bound <= value(best):
        return Candidate.bounded(best, bound, value(best))
    # What was proven was not of what costs are here.
    return Candidate(setting=best, status=Status.BOUNDED, gap=None)
