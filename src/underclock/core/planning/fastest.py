"""The fastest step within a power limit, against what the driver's own cap makes of it.

With Lagrange's multiplier for power, least time within mean power L is least E + λt for some λ: the
same trade of energy against time as in every plan. The problem is the knapsack with its parts
changed over: minimise Σ t subject to Σ (E - L·t) ≤ 0. Where windows of the step draw more than L
although its mean does not, multipliers of these windows lead to other choices, and the one whose
step settles fastest is taken.

Shape letters: G groups, S settings, K kernels.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Ints
from underclock.core.planning.under_cap import Proof, windows_of
from underclock.core.solvers import Effort, Problem, WindowedGroups
from underclock.core.step.table import CostTable
from underclock.core.step.under_cap import Grouped, cap_of, step_cost
from underclock.records import Cost, Status

ROUNDS = 24
"""Choices that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The fastest choice that was met.

    Attributes:
        setting: Of each kernel. Shape (K,).
        cost: Of the step, as it settles under the cap.
        proof: How good it is, or auto where that is faster: of time, against every choice that
            keeps the limit.
    """

    setting: Ints
    cost: Cost
    proof: Proof


def fastest(
    table: CostTable, groups: Grouped, effort: Effort, *, rounds: int = ROUNDS
) -> Fastest | None:
    """Return the choice whose step takes least time under the cap; ``None`` if none keeps it.

    Args:
        table: Costs of the step.
        groups: Who shares a setting.
        effort: How far to look.
        rounds: How many choices to look at, where windows of the first exceed the limit.

    Raises:
        ValueError: Costs are of kernels alone.
    """
    cap = cap_of(table)

    def settled(choice: Ints) -> Cost:
        return step_cost(table, groups.spread(choice)[cap.order])

    below = WindowedGroups(
        problem=Problem(time_s=groups.time_s, energy_j=groups.energy_j),
        windows=windows_of(cap),
        order=groups.member[cap.order],
        judge=lambda choice: cap.limit_w * settled(choice).time_s,
    ).fastest(effort, rounds=rounds)
    if below.choice is None:
        return None
    cost = settled(below.choice)
    reached_s = min(cost.time_s, table.auto_time_s)
    proof = Proof.within(below.bound_j, cap.limit_w * reached_s)
    return Fastest(setting=groups.spread(below.choice), cost=cost, proof=proof)


def fastest_alone(table: CostTable, groups: Grouped) -> Fastest | None:
    """Return each group's fastest setting that keeps the limit by itself; ``None`` if one has none.

    Args:
        table: Costs of the step.
        groups: Who shares a setting.
    """
    cap = cap_of(table)
    known = np.isfinite(groups.time_s)
    # What runs beside others draws its part of the limit all through the step.
    beside_j = table.fixed_j
    own_j = groups.energy_j - groups.added(np.broadcast_to(beside_j[:, None], table.time_s.shape))
    left_w = cap.limit_w - float(beside_j.sum()) / table.auto_time_s
    with np.errstate(invalid="ignore"):
        keeps = known & (own_j <= left_w * groups.time_s)
    if not keeps.any(axis=1).all():
        return None
    setting = groups.spread(np.where(keeps, groups.time_s, np.inf).argmin(axis=1))
    # Each keeps the limit for as long as it runs, so all of them together do.
    proof = Proof(status=Status.OPTIMAL, gap=0.0)
    if beside_j.any():  # of which a faster step has less time to draw it in
        proof = Proof(status=Status.BOUNDED, gap=None)
    return Fastest(setting=setting, cost=step_cost(table, setting[cap.order]), proof=proof)
