"""The best choice whose mean power stays below a limit: cheapest within a time, or fastest.

Shape letters: G groups, S settings, n launches.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.knapsack.problem import Problem, Solver
from underclock.core.knapsack.windows import (
    Judge,
    Met,
    PowerWindows,
    WindowSearch,
    beyond_limit,
    multiplied,
)
from underclock.records import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowLimit:
    """The best choice that was met.

    Attributes:
        choice: Setting of each group; ``None`` where none was allowed. Shape (G,).
        bound_j: No choice that keeps every window costs less; ``inf`` where there is none.
        multipliers: Of what each launch draws beyond the limit, that led to it. Shape (n,).
    """

    choice: Ints | None
    bound_j: float
    multipliers: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedGroups:
    """Groups of launches under a power limit.

    Attributes:
        problem: Costs of all launches of a group together, and the time budget.
        windows: What to keep.
        order: Which group each launch is of; every group is launched. Shape (n,).
        judge: Says which choice is the best.
    """

    problem: Problem
    windows: PowerWindows
    order: Ints
    judge: Judge

    def __post_init__(self) -> None:
        """Reject an order of other groups."""
        count, groups = np.bincount(self.order), len(self.problem.time_s)
        if len(count) != groups or not count.all():
            raise ValueError(f"order must launch each of {groups} groups, and no other")

    def cheapest(
        self, solver: Solver, *, rounds: int, priced_s: Floats | None = None
    ) -> BelowLimit:
        """Find the choice of least energy within the time budget.

        Args:
            solver: Finds the best choice at given multipliers.
            rounds: Most choices to look for, before some that only seek to keep the limit.
            priced_s: What each setting takes of the budget beside its time. Shape (G, S).
        """
        knapsack = self.problem
        if priced_s is not None:
            knapsack = replace(knapsack, time_s=knapsack.time_s + priced_s)
        return self._search(knapsack, solver, rounds)

    def fastest(self, solver: Solver, *, rounds: int) -> BelowLimit:
        """Find the choice of least time, whatever the time budget; costs are time at the limit.

        The knapsack has its parts changed over: least time, while what is drawn beyond the limit
        comes to no more than nothing.

        Args:
            solver: As of `cheapest`.
            rounds: Likewise.
        """
        # The solver takes no negative numbers: each group's least is taken off, and off the budget.
        least_j = self._beyond_j.min(axis=1)
        changed_over = Problem(
            time_s=self._beyond_j - least_j[:, None],
            energy_j=self.problem.time_s * self.windows.limit_w,
            budget_s=-math.fsum(least_j),
        )
        return self._search(changed_over, solver, rounds)

    @property
    def _beyond_j(self) -> Floats:
        return beyond_limit(self.problem.time_s, self.problem.energy_j, self.windows.limit_w)

    def _search(self, knapsack: Problem, solver: Solver, rounds: int) -> BelowLimit:
        """Search for the best choice of a knapsack of the same groups and settings."""
        count, beyond_j = np.bincount(self.order), self._beyond_j

        def solve(each: Floats) -> Met | float:
            shared = np.bincount(self.order, weights=each) / count
            costs_j, added_j = multiplied(knapsack.energy_j, beyond_j, shared)
            solution = solver.solve(replace(knapsack, energy_j=costs_j))
            if solution.status is Status.INFEASIBLE:
                return math.inf
            choice = np.array(solution.choice, dtype=np.int64)
            at = np.arange(len(choice)), choice
            return Met(
                choice=choice,
                time_s=(self.problem.time_s[at] / count)[self.order],
                energy_j=(self.problem.energy_j[at] / count)[self.order],
                cost_j=math.fsum(knapsack.energy_j[at]),
                bound_j=solution.bound_j - added_j,
            )

        search = WindowSearch(
            windows=self.windows,
            solve=solve,
            judge=self.judge,
            launches=len(self.order),
            rounds=rounds,
        )
        search.run()
        return BelowLimit(
            choice=None if search.best is None else search.best.choice,
            bound_j=search.bound_j,
            multipliers=search.multipliers,
        )
