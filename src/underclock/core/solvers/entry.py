"""The one place that says which solver answers which problem, and how far it looks."""

from collections.abc import Sequence as Items
from enum import Enum

from underclock.arrays import Ints
from underclock.core.solvers.cyclic import Cyclic, Judge
from underclock.core.solvers.knapsack import Exact
from underclock.core.solvers.problems import Problem, SequenceProblem, Solution


class Effort(Enum):
    """How far a solver looks before it states a gap.

    Attributes:
        labels: Most labels kept in one search of a knapsack.
        gap: Fraction of the energy between a schedule and its bound at which looking ends.
        mixes: Most times that a schedule is mixed with another.
    """

    QUICK = 20_000, 1e-3, 40
    """To choose what to look at next."""
    PLAN = 200_000, 1e-4, 150
    """To plan on expected costs, of which a proof to the last joule proves nothing."""
    PROOF = 50_000_000, 1e-9, 1_000
    """To the optimum."""

    def __init__(self, labels: int, gap: float, mixes: int) -> None:
        self.labels, self.gap, self.mixes = labels, gap, mixes


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
        return Exact(max_labels=effort.labels).solve(problem)
    return Cyclic(gap=effort.gap, max_mixes=effort.mixes).solve(problem, start, judge)
