"""Every choice, every schedule tried: the judges of other solvers, on problems small enough."""

import itertools
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Ints
from underclock.core.solvers import (
    Problem,
    SequenceProblem,
    Solution,
    costed,
    infeasible,
    violations,
)
from underclock.core.solvers.hull import Quanta
from underclock.records import Status


@dataclass(frozen=True, slots=True)
class KnapsackBruteForce:
    """Enumerates; S to the power G combinations."""

    def solve(self, problem: Problem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return the cheapest choice within the budget; of equals the first."""
        quanta = Quanta(problem)
        best, best_energy = None, math.inf
        settings = [np.flatnonzero(row).tolist() for row in quanta.available]
        for choice in itertools.product(*settings):
            time = sum(int(quanta.time[g, s]) for g, s in enumerate(choice))
            energy = sum(int(quanta.energy[g, s]) for g, s in enumerate(choice))
            if time <= quanta.budget and energy < best_energy:
                best, best_energy = choice, energy
        if best is None:
            return infeasible()
        return costed(problem, np.array(best, dtype=np.int64), Status.OPTIMAL)


@dataclass(frozen=True, slots=True)
class ScheduleBruteForce:
    """Enumerates; S to the power n schedules."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return the cheapest schedule that keeps the rules; of equals the first."""
        settings = [np.flatnonzero(np.isfinite(row)) for row in problem.time_s[problem.order]]
        best, least_j = None, math.inf
        for each in itertools.product(*settings):
            choice = np.array(each, dtype=np.int64)
            energy_j = costed(problem, choice).energy_j
            if energy_j < least_j and not violations(problem, choice):
                best, least_j = choice, energy_j
        if best is None:
            return infeasible()
        return costed(problem, best, Status.OPTIMAL, least_j)
