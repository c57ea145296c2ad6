"""Mean power over a window that slides round a step, and the multipliers that keep it low.

A power loop holds the mean of the last moments below its limit: an exponential window, the past
counting the less the older it is. Where the windows of a choice exceed the limit, what its launches
draw beyond it is multiplied and added to their cost, launch by launch. Each choice that exceeds
gives a constraint, its windows weighed by how much they do; the multipliers sought are those at
which the least of all choices met so far is greatest (Kelley's cutting planes). They swing far
while few choices are met, so only part of the way is gone from the best ones so far (in-out
separation: Ben-Ameur and Neto 2007).

How much a launch counts in a window depends on how long the launches after it take, so on the
choice. A bound therefore comes from no multipliers at all: windows only make better choices.

Shape letters: G groups, S settings, n launches, C constraints.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy

from underclock.arrays import Floats, Ints
from underclock.core.solvers.knapsack import solve_knapsack
from underclock.core.solvers.problems import Effort, Problem
from underclock.physics.cap import SIMULATED, Fading
from underclock.records import Status

_SLACK = 1e-9  # a sum of floats that meets the limit exactly must not exceed it
_HIGHEST = 100.0  # multiplier of a constraint, in joules per joule drawn beyond the limit
_PART = 0.2  # of the way to the multipliers that promise most
_ENOUGH = 1e-5  # of the cost: what nothing better than is sought
_HARDER = (1.02, 1.1, 1.3, 2.0, 5.0, 25.0)  # times the multipliers, where no choice is allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedGroups:
    """Groups of launches under a power limit."""

    problem: Problem  # costs of all launches of a group together, and the time budget
    limit_w: float  # what the mean power over a window must not exceed
    order: Ints  # which group each launch is of; every group is launched, (n,)
    # returns what a choice, (G,), comes to in J, whatever its windows; ``inf`` where it is not
    # allowed
    judge: Callable[[Ints], float]
    fading: Fading = SIMULATED  # how the past counts the less the older it is

    @property
    def beyond_j(self) -> Floats:
        """What each setting of a group draws beyond the limit, in J. Shape (G, S)."""
        with np.errstate(invalid="ignore"):  # inf where a setting is not available
            beyond_j = self.problem.energy_j - self.limit_w * self.problem.time_s
        return np.where(np.isfinite(self.problem.time_s), beyond_j, np.inf)


def cheapest_below(
    groups: WindowedGroups, effort: Effort, *, rounds: int
) -> tuple[Ints | None, float]:
    """Find the choice of least energy within the time budget and below the limit.

    Args:
        rounds: Most choices to look for, before some that only seek to keep the limit.

    Returns:
        The best choice met, (G,), ``None`` where none was allowed; and what no choice that keeps
        every window costs less than, in J: ``inf`` where there is none.
    """
    return _MultiplierSearch(groups, groups.problem, effort).run(rounds)


def fastest_below(
    groups: WindowedGroups, effort: Effort, *, rounds: int
) -> tuple[Ints | None, float]:
    """Find the choice of least time below the limit, whatever the time budget.

    The knapsack has its parts changed over: least time, while what is drawn beyond the limit comes
    to no more than nothing. Returns are those of `cheapest_below`; costs are time at the limit.
    """
    # The solver takes no negative numbers: each group's least is taken off, and off the budget.
    least_j = groups.beyond_j.min(axis=1)
    changed_over = Problem(
        time_s=groups.beyond_j - least_j[:, None],
        energy_j=groups.problem.time_s * groups.limit_w,
        budget_s=-math.fsum(least_j),
    )
    return _MultiplierSearch(groups, changed_over, effort).run(rounds)


class _MultiplierSearch:
    """A search for the best choice below the limit.

    Of each choice met it keeps what is minimised (the energy, or time at the limit) and what each
    launch draws beyond the limit, (n,); of each constraint how much each launch counts, (n,).
    """

    def __init__(self, groups: WindowedGroups, knapsack: Problem, effort: Effort) -> None:
        self.groups, self.knapsack, self.effort = groups, knapsack, effort
        self.best: Ints | None = None
        self.least_j, self.bound_j = math.inf, -math.inf
        self._met, self._cost_j = list[Ints](), list[float]()
        self._beyond_j, self._counts = list[Floats](), list[Floats]()

    def run(self, rounds: int) -> tuple[Ints | None, float]:
        """Look until nothing better is promised, or the rounds are over."""
        limit_w, fading = self.groups.limit_w, self.groups.fading
        here, best, reached_j = np.zeros(0), np.zeros(0), -math.inf
        for _ in range(rounds):
            launches = self._visit(here)
            if launches is None:
                return self.best, self.bound_j
            drawn_j = [counts @ self._beyond_j[-1] for counts in self._counts]
            value_j = self._cost_j[-1] + math.fsum(here * drawn_j[: len(here)])
            if value_j > reached_j:
                reached_j, best = value_j, here
            over_w = fading.means_w(*launches) - limit_w
            excess_w = np.where(over_w > limit_w * _SLACK, over_w, 0.0)
            if excess_w.any():
                # Of a choice that keeps these windows, these times what each launch draws beyond
                # the limit come to no more than zero.
                counts = fading.weights(launches[0], excess_w * launches[0])
                self._counts.append(counts / counts.max())
            elif not self._counts:  # what is best without a limit is within it
                return self.best, self.bound_j
            if self.least_j <= self.bound_j * (1.0 + _ENOUGH):
                return self.best, self.bound_j
            # The multipliers at which the least of all choices met is greatest. Shape (C,).
            cost_j = np.array(self._cost_j)
            unit_j = float(cost_j.max()) or 1.0
            planes_j = np.array(self._beyond_j) @ np.array(self._counts).T
            answer = scipy.optimize.linprog(
                [-1.0, *np.zeros(len(self._counts))],
                A_ub=np.column_stack([np.ones(len(cost_j)), -planes_j / unit_j]),
                b_ub=cost_j / unit_j,
                bounds=[(None, None), *[(0.0, _HIGHEST)] * len(self._counts)],
            )
            farthest: Floats = answer.x[1:]
            best = np.append(best, np.zeros(len(farthest) - len(best)))
            here = best + _PART * (farthest - best)
        for harder in _HARDER:
            if self.best is None:
                self._visit(here * harder)
        return self.best, self.bound_j

    def _visit(self, multipliers: Floats) -> tuple[Floats, Floats] | None:
        """Meet the best choice at some multipliers; return its launches' time and energy, (n,)."""
        order, problem, knapsack = self.groups.order, self.groups.problem, self.knapsack
        each = np.zeros(len(order))
        for multiplier, counts in zip(multipliers, self._counts, strict=True):
            each += multiplier * counts
        count = np.bincount(order)
        shared = np.bincount(order, weights=each) / count
        with np.errstate(invalid="ignore"):  # nothing times no end
            more_j = knapsack.energy_j + shared[:, None] * self.groups.beyond_j
        more_j = np.where(np.isfinite(knapsack.energy_j), more_j, np.inf)
        added_j = np.maximum(0.0, -more_j.min(axis=1))  # so that no cost is negative
        costs_j = np.maximum(more_j + added_j[:, None], 0.0)
        solution = solve_knapsack(replace(knapsack, energy_j=costs_j), self.effort.labels)
        if not each.any():
            self.bound_j = max(self.bound_j, solution.bound_j - math.fsum(added_j))
        if solution.status is Status.INFEASIBLE:
            return None
        choice = solution.choice
        at = np.arange(len(count)), choice
        time_s, energy_j = (
            (costs[at] / count)[order] for costs in (problem.time_s, problem.energy_j)
        )
        if all((choice != other).any() for other in self._met):
            judged_j = self.groups.judge(choice)
            if judged_j < self.least_j:
                self.best, self.least_j = choice, judged_j
        self._met.append(choice)
        self._cost_j.append(math.fsum(knapsack.energy_j[at]))
        self._beyond_j.append(energy_j - self.groups.limit_w * time_s)
        return time_s, energy_j
