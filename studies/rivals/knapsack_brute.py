"""Every combination tried: the judge of every other solver, on problems small enough."""

import itertools
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Ints
from underclock.core.solvers import Problem, Solution, infeasible, solution_of
from underclock.core.solvers.hull import Quanta


@dataclass(frozen=True, slots=True)
class KnapsackBruteForce:
    """Enumerates; S to the power G combinations."""

    def solve(self, problem: Problem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return the cheapest choice within the budget; of equals the first."""
        quanta = Quanta.of(problem)
        best, best_energy = None, math.inf
        settings = [np.flatnonzero(row).tolist() for row in quanta.available]
        for choice in itertools.product(*settings):
            time = sum(int(quanta.time[g, s]) for g, s in enumerate(choice))
            energy = sum(int(quanta.energy[g, s]) for g, s in enumerate(choice))
            if time <= quanta.budget and energy < best_energy:
                best, best_energy = choice, energy
        return (
            infeasible() if best is None else solution_of(problem, np.array(best, dtype=np.int64))
        )
