"""The cheapest choice within a time budget whose mean power stays below a limit.

Shape letters: G groups, S settings, n launches.
"""

import math
from dataclasses import replace

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.knapsack.problem import INFEASIBLE, Problem, Solution, Solver, solution_of
from underclock.core.knapsack.windows import Met, PowerWindows, WindowSearch, multiplied
from underclock.records import Status

_PROVEN = 1e-9  # gap, as a fraction, at which a choice counts as optimal


def within_power(
    problem: Problem,
    solver: Solver,
    windows: PowerWindows,
    order: Ints,
    *,
    start: tuple[Ints, ...] = (),
    rounds: int = 30,
) -> Solution:
    """Find the cheapest choice within the budget that no window exceeds the limit with.

    Args:
        problem: The problem; times and energies are those of all launches of a group together.
        solver: Finds the best choice at given multipliers.
        windows: What to keep.
        order: Which group each launch is of; every group is launched. Shape (n,).
        start: Choices to do no worse than, where they keep all. Shapes (G,).
        rounds: Most choices to look for, before some that only seek to keep the limit.

    Returns:
        The best choice met, with a bound; or the status ``INFEASIBLE``, with a finite bound where
        none was found and there may be one.

    Raises:
        ValueError: A group is never launched.
    """
    count = np.bincount(order, minlength=len(problem.time_s))
    if len(count) != len(problem.time_s) or not count.all():
        raise ValueError(f"order must launch each of {len(problem.time_s)} groups, and no other")

    def met(choice: Ints, bound_j: float) -> Met:
        rows = np.arange(len(choice))
        time_s, energy_j = (
            (table[rows, choice] / count)[order] for table in (problem.time_s, problem.energy_j)
        )
        return Met(choice=choice, time_s=time_s, energy_j=energy_j, bound_j=bound_j)

    def solve(each: Floats) -> Met | float:
        shared = np.bincount(order, weights=each) / count
        energy_j, added_j = multiplied(problem.time_s, problem.energy_j, shared, windows.limit_w)
        solution = solver.solve(replace(problem, energy_j=energy_j))
        if solution.status is Status.INFEASIBLE:
            return math.inf
        return met(np.array(solution.choice, dtype=np.int64), solution.bound_j - added_j)

    search = WindowSearch(
        windows=windows,
        solve=solve,
        launches=len(order),
        rounds=rounds,
        latest_s=problem.budget_s,
    )
    for choice in start:
        time_s = math.fsum(problem.time_s[np.arange(len(choice)), choice])
        if time_s <= problem.budget_s and time_s < math.inf:
            search.offer(met(choice, -math.inf))
    search.run()
    if search.best is None:
        return replace(INFEASIBLE, bound_j=max(0.0, search.bound_j))
    bound_j = max(0.0, search.bound_j)
    found = solution_of(problem, search.best.choice, status=Status.BOUNDED, bound_j=bound_j)
    proven = found.bound_j >= found.energy_j * (1.0 - _PROVEN)
    return replace(found, status=Status.OPTIMAL) if proven else found
