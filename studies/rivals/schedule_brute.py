"""Every schedule tried: the judge of every other solver, on problems small enough."""

import itertools
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Ints
from underclock.core.solvers import (
    SequenceProblem,
    Solution,
    cost_of,
    infeasible,
    solution_of,
    violations,
)
from underclock.records import Status


@dataclass(frozen=True, slots=True)
class ScheduleBruteForce:
    """Enumerates; S to the power n schedules."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return the cheapest schedule that keeps the rules; of equals the first."""
        settings = [np.flatnonzero(np.isfinite(row)) for row in problem.time_s[problem.order]]
        best, least_j = None, math.inf
        for each in itertools.product(*settings):
            choice = np.array(each, dtype=np.int64)
            energy_j = cost_of(problem, choice).energy_j
            if energy_j < least_j and not violations(problem, choice):
                best, least_j = choice, energy_j
        if best is None:
            return infeasible()
        return solution_of(problem, best, status=Status.OPTIMAL, bound_j=least_j)
