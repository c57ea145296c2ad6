"""The fastest step within a power limit, against what the driver's own cap makes of it.

With Lagrange's multiplier for power, least time within mean power L is least E + λt for some λ: the
same trade of energy against time as in every plan. The problem is the knapsack with its parts
changed over: minimise Σ t subject to Σ (E - L·t) ≤ 0, exact. Where windows of the step draw more
than L although its mean does not, the cap would hold them: aims below L are tried too, and the
choice whose step settles fastest is taken.

Shape letters: G groups, S settings, K kernels.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Ints
from underclock.core.costs.groups import Grouped
from underclock.core.costs.power_window import PowerCap
from underclock.core.costs.step import step_cost
from underclock.core.costs.table import CostTable
from underclock.core.knapsack import Exact, Problem, Solution
from underclock.core.knapsack.problem import INFEASIBLE, solution_of
from underclock.records import Cost, Status

_AIMS = (1.0, 0.995, 0.99, 0.98, 0.97, 0.96, 0.94, 0.92, 0.9)
"""Mean powers tried, as parts of the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The fastest choice that was met.

    Attributes:
        setting: Of each kernel. Shape (K,).
        cost: Of the step, as it settles under the cap.
        solution: The solver's answer, times and energies the usual way round.
    """

    setting: Ints
    cost: Cost
    solution: Solution


def fastest(table: CostTable, groups: Grouped, exact: Exact) -> Fastest | None:
    """Return the choice whose step takes least time under the cap; ``None`` if none keeps it.

    Args:
        table: Costs of the step.
        groups: Who shares a setting.
        exact: The solver.

    Raises:
        ValueError: Costs are of kernels alone.
    """
    cap = _cap_of(table)
    best: Fastest | None = None
    for part in _AIMS:
        solution = least_time(groups, part * cap.limit_w, exact)
        if solution.status is Status.INFEASIBLE:
            continue
        setting = groups.spread(solution.choice)
        cost = step_cost(table, setting[cap.order])
        if best is None or cost.time_s < best.cost.time_s:
            best = Fastest(setting=setting, cost=cost, solution=solution)
        # Where no window is held, a lower aim can only be slower.
        if cost.time_s <= solution.time_s * (1.0 + 1e-9):
            break
    return best


def fastest_alone(table: CostTable, groups: Grouped) -> Fastest | None:
    """Return each group's fastest setting that keeps the limit by itself; ``None`` if one has none.

    Args:
        table: Costs of the step.
        groups: Who shares a setting.
    """
    cap = _cap_of(table)
    known = np.isfinite(groups.time_s)
    with np.errstate(invalid="ignore"):
        keeps = known & (groups.energy_j <= cap.limit_w * groups.time_s)
    if not keeps.any(axis=1).all():
        return None
    choice = np.where(keeps, groups.time_s, np.inf).argmin(axis=1)
    plain = Problem(time_s=groups.time_s, energy_j=groups.energy_j)
    setting = groups.spread(tuple(choice.tolist()))
    return Fastest(
        setting=setting,
        cost=step_cost(table, setting[cap.order]),
        solution=solution_of(plain, choice),
    )


def _cap_of(table: CostTable) -> PowerCap:
    if table.power_cap is None:
        raise ValueError("kernels alone have no step that a limit could hold")
    return table.power_cap


def least_time(groups: Grouped, mean_w: float, exact: Exact) -> Solution:
    """Return the choice of least time whose mean power keeps a limit.

    Args:
        groups: Costs of groups.
        mean_w: The limit, of all groups together.
        exact: The solver.
    """
    known = np.isfinite(groups.time_s)
    over_j = np.full(groups.time_s.shape, math.inf)
    over_j[known] = groups.energy_j[known] - mean_w * groups.time_s[known]
    least_j = over_j.min(axis=1)
    # The solver takes no negative numbers: each group's least is taken off, and off the budget.
    swapped = Problem(
        time_s=over_j - least_j[:, None],
        energy_j=groups.time_s,
        budget_s=-math.fsum(least_j),
    )
    if swapped.budget_s < 0.0:
        return INFEASIBLE
    solution = exact.solve(swapped)
    if solution.status is Status.INFEASIBLE:
        return INFEASIBLE
    plain = Problem(time_s=groups.time_s, energy_j=groups.energy_j)
    return solution_of(plain, np.array(solution.choice), status=solution.status)
