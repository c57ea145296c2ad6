"""The exact optimum of one setting per group within a time budget, with its proof.

The hull's trades taken in order of energy saved per time, as long as they fit, solve the relaxed
problem. They give the multiplier of time, the base choice, and a bound: no choice costs
less than the base minus the time it leaves unused, multiplied. Greedily taking what else fits
gives a first choice; the gap is what separates it from the bound.

The optimum is searched below a ceiling that starts near the bound and doubles its distance until
something is found. Any setting whose reduced cost alone exceeds the ceiling is struck out
(Pisinger's core: A minimal algorithm for the multiple-choice knapsack problem, 1995), so too low a
ceiling costs next to nothing. The search decides one group after another and keeps labels, pairs of
(time, energy) relative to the base. A label goes when another is no slower and no dearer, or when a
bound shows that nothing below the ceiling can come of it. Scouts keep few labels: where none was
lost, what they find is the optimum; else it is nearly that, and the ceiling of the search that
keeps them all.

Groups are decided in order of how much time they can move, greatest first. The small ones that
come last can then only reach budgets close to a label's own time, so nearly all labels are cut
before they multiply; in the opposite order some instances take a thousand times as many.

Times and energies are whole numbers, so dominance and feasibility are exact; bounds are floats
and cut only beyond their rounding error.

Shape letters: G groups.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.core.knapsack.core import Core
from underclock.core.knapsack.hull import trades
from underclock.core.knapsack.problem import INFEASIBLE, Problem, Quanta, Solution, solution_of
from underclock.records import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Exact within memory: past ``max_labels`` the answer is feasible, with a bound."""

    max_labels: int = 50_000_000
    """Most labels kept in one search; each takes up to 4 bytes until it ends."""

    def solve(self, problem: Problem) -> Solution:
        """Return the cheapest choice within the budget, proven."""
        quanta = Quanta.of(problem)
        steps = trades(quanta)
        rows = np.arange(len(steps.start))
        spare = quanta.budget - int(quanta.time[rows, steps.start].sum())
        if spare < 0:
            return INFEASIBLE
        fits = int(np.searchsorted(np.cumsum(steps.time), spare, side="right"))
        if fits == len(steps.time):
            return solution_of(problem, steps.choice_after(fits))
        core = Core.at_break(quanta, steps, fits)
        lost = core.improve(self.max_labels)
        if lost is None:
            return solution_of(problem, core.choice())
        base_j = math.fsum(problem.energy_j[rows, core.base])
        # The bound is on the difference between two choices, and either was rounded.
        bound_j = base_j + lost / quanta.per_joule - 2.0 * quanta.rounding_j
        return solution_of(problem, core.choice(), status=Status.BOUNDED, bound_j=bound_j)
