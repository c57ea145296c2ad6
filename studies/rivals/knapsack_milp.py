"""The same problem given to HiGHS, a general solver, as comparison and second opinion.

Shape letters: G groups, S settings, V variables (the available settings).
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from rivals import highs
from underclock.arrays import Ints
from underclock.core.solvers import Problem, Solution, infeasible, solution_of
from underclock.core.solvers.hull import Quanta
from underclock.records import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackMilp:
    """Branch and bound by HiGHS."""

    gap: float = 0.0
    """Relative gap at which to stop."""
    time_limit_s: float = math.inf
    """Wall-clock time at which to stop with the best choice so far."""

    def solve(self, problem: Problem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002
        """Return HiGHS's choice, with its bound.

        Raises:
            NotSupportedError: highspy is not installed.
        """
        group, setting = np.nonzero(np.isfinite(problem.time_s))
        time = problem.time_s[group, setting]
        energy = problem.energy_j[group, setting]
        # HiGHS's tolerances are absolute: give it numbers around one, and the least tolerance it
        # takes. With its own, a choice may break the budget by a millionth of the longest time.
        time_unit = float(time.max()) or 1.0
        energy_unit = float(energy.max()) or 1.0
        groups, variables = len(problem.time_s), len(group)
        budget = min(problem.budget_s, float(time.sum())) / time_unit
        # Each variable stands in its group's row and in the time row, the last.
        program = highs.Program(
            cost=energy / energy_unit,
            whole=variables,
            lower=np.append(np.ones(groups), -math.inf),
            upper=np.append(np.ones(groups), budget),
            start=np.arange(0, 2 * variables + 1, 2),
            row=np.column_stack([group, np.full(variables, groups)]).ravel(),
            value=np.column_stack([np.ones(variables), time / time_unit]).ravel(),
        )
        answer = highs.solve(program, gap=self.gap, time_limit_s=self.time_limit_s)
        if answer.infeasible:
            return infeasible()
        if answer.values is not None:
            value = np.full(problem.time_s.shape, -1.0)
            value[group, setting] = answer.values
            choice = value.argmax(axis=1)
        else:  # stopped before it had any
            choice = problem.time_s.argmin(axis=1)
            if not _fits(problem, choice):
                return infeasible()
        return solution_of(
            problem,
            choice,
            status=Status.OPTIMAL if answer.optimal else Status.BOUNDED,
            bound_j=max(0.0, answer.bound) * energy_unit,
        )


def _fits(problem: Problem, choice: Ints) -> bool:
    quanta = Quanta.of(problem)
    return int(quanta.time[np.arange(len(choice)), choice].sum()) <= quanta.budget
