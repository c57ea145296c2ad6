"""Solvers of what plans come down to, behind one entry: `solve`."""

from collections.abc import Sequence as Items

from underclock.arrays import Ints
from underclock.core.solvers.crashing import solve_tradeoff
from underclock.core.solvers.cyclic import Judge, solve_cyclic
from underclock.core.solvers.cyclic_paths import once_through
from underclock.core.solvers.hull import least_product, subsampled, supported
from underclock.core.solvers.knapsack import solve_knapsack
from underclock.core.solvers.power_windows import WindowedGroups, cheapest_below, fastest_below
from underclock.core.solvers.problems import (
    Effort,
    Problem,
    SequenceProblem,
    Solution,
    costed,
    infeasible,
    violations,
)
from underclock.core.solvers.tradeoff import Sweep, TradeCurve, TradeoffProblem


def solve(
    problem: Problem | SequenceProblem,
    effort: Effort = Effort.PROOF,
    start: Items[Ints] = (),
    judge: Judge | None = None,
) -> Solution:
    """Return the best choice met, no worse than any of ``start`` that keeps the rules.

    Args:
        start: Schedules to begin with. Shapes (n,).
        judge: Says which schedule is the best; its costs in the problem unless given.
    """
    if isinstance(problem, Problem):
        return solve_knapsack(problem, effort.labels)
    return solve_cyclic(problem, start, judge, gap=effort.gap, max_mixes=effort.mixes)
