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

Shape letters: G groups, S settings, n launches, C constraints, P choices met.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import linprog

from underclock.arrays import Floats, Ints
from underclock.core.solvers.entry import Effort, solve
from underclock.core.solvers.problems import Problem
from underclock.physics.cap import SIMULATED, Fading
from underclock.records import Status

_SLACK = 1e-9  # a sum of floats that meets the limit exactly must not exceed it
_HIGHEST = 100.0  # multiplier of a constraint, in joules per joule drawn beyond the limit
_PART = 0.2  # of the way to the multipliers that promise most
_ENOUGH = 1e-5  # of the cost: what nothing better than is sought
_HARDER = (1.02, 1.1, 1.3, 2.0, 5.0, 25.0)  # times the multipliers, where no choice is allowed


Judge = Callable[[Ints], float]
"""Return what a choice comes to, in J, whatever its windows; ``inf`` where it is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowLimit:
    """The best choice that was met.

    Attributes:
        choice: Setting of each group; ``None`` where none was allowed. Shape (G,).
        bound_j: No choice that keeps every window costs less; ``inf`` where there is none.
    """

    choice: Ints | None
    bound_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedGroups:
    """Groups of launches under a power limit.

    Attributes:
        problem: Costs of all launches of a group together, and the time budget.
        limit_w: What the mean power over a window must not exceed.
        order: Which group each launch is of; every group is launched. Shape (n,).
        judge: Says which choice is the best.
        fading: How the past counts the less the older it is.
    """

    problem: Problem
    limit_w: float
    order: Ints
    judge: Judge
    fading: Fading = SIMULATED

    def cheapest(
        self, effort: Effort, *, rounds: int, priced_s: Floats | None = None
    ) -> BelowLimit:
        """Find the choice of least energy within the time budget.

        Args:
            rounds: Most choices to look for, before some that only seek to keep the limit.
            priced_s: What each setting takes of the budget besides its time, in s. Shape (G, S).
        """
        knapsack = self.problem
        if priced_s is not None:
            knapsack = replace(knapsack, time_s=knapsack.time_s + priced_s)
        return self._search(knapsack, effort, rounds)

    def fastest(self, effort: Effort, *, rounds: int) -> BelowLimit:
        """Find the choice of least time, whatever the time budget; costs are time at the limit.

        The knapsack has its parts changed over: least time, while what is drawn beyond the limit
        comes to no more than nothing.
        """
        # The solver takes no negative numbers: each group's least is taken off, and off the budget.
        least_j = self.beyond_j.min(axis=1)
        changed_over = Problem(
            time_s=self.beyond_j - least_j[:, None],
            energy_j=self.problem.time_s * self.limit_w,
            budget_s=-math.fsum(least_j),
        )
        return self._search(changed_over, effort, rounds)

    @property
    def beyond_j(self) -> Floats:
        """What each setting of a group draws beyond the limit, in J. Shape (G, S)."""
        with np.errstate(invalid="ignore"):  # inf where a setting is not available
            beyond_j = self.problem.energy_j - self.limit_w * self.problem.time_s
        return np.where(np.isfinite(self.problem.time_s), beyond_j, np.inf)

    def excess_w(self, time_s: Floats, energy_j: Floats) -> Floats:
        """Return by how much the window that ends with each launch exceeds the limit. Shape (n,).

        Args:
            time_s: Of every launch, what comes before it included. Shape (n,).
            energy_j: Likewise. Shape (n,).
        """
        over_w = self.fading.means_w(time_s, energy_j) - self.limit_w
        return np.where(over_w > self.limit_w * _SLACK, over_w, 0.0)

    def _search(self, knapsack: Problem, effort: Effort, rounds: int) -> BelowLimit:
        search = _MultiplierSearch(groups=self, knapsack=knapsack, effort=effort)
        search.run(rounds)
        return BelowLimit(choice=search.best, bound_j=search.bound_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Met:
    """A choice that some multipliers led to."""

    choice: Ints
    time_s: Floats  # of every launch, (n,)
    energy_j: Floats  # likewise
    cost_j: float  # what is minimised: the energy, or time at the power of the limit


@dataclass(slots=True, kw_only=True)
class _MultiplierSearch:
    """A search for the best choice under the limit."""

    groups: WindowedGroups
    knapsack: Problem  # what is solved, at multipliers of what launches draw beyond the limit
    effort: Effort
    best: Ints | None = None  # of all that were met and allowed
    least_j: float = math.inf
    bound_j: float = -math.inf  # no choice within the limit costs less
    _met: list[_Met] = field(init=False, default_factory=list)
    _counts: list[Floats] = field(init=False, default_factory=list)

    def run(self, rounds: int) -> None:
        """Look until nothing better is promised, or the rounds are over."""
        here, best, reached_j = np.zeros(0), np.zeros(0), -math.inf
        for _ in range(rounds):
            met = self._visit(here)
            if met is None:
                return
            value_j = met.cost_j + math.fsum(here * self._drawn(met)[: len(here)])
            if value_j > reached_j:
                reached_j, best = value_j, here
            excess_w = self.groups.excess_w(met.time_s, met.energy_j)
            if excess_w.any():
                # Of a choice that keeps these windows, these times what each launch draws beyond
                # the limit come to no more than zero.
                counts = self.groups.fading.weights(met.time_s, excess_w * met.time_s)
                self._counts.append(counts / counts.max())
            elif not self._counts:
                return  # what is best without a limit is within it
            if self.least_j <= self.bound_j * (1.0 + _ENOUGH):
                return
            # The multipliers at which the least of all choices met is greatest. Shape (C,).
            drawn_j = np.array([self._drawn(met) for met in self._met])
            cost_j = np.array([met.cost_j for met in self._met])
            unit_j = float(cost_j.max()) or 1.0
            answer = linprog(
                [-1.0, *np.zeros(len(self._counts))],
                A_ub=np.column_stack([np.ones(len(cost_j)), -drawn_j / unit_j]),
                b_ub=cost_j / unit_j,
                bounds=[(None, None), *[(0.0, _HIGHEST)] * len(self._counts)],
            )
            farthest: Floats = answer.x[1:]
            best = np.append(best, np.zeros(len(farthest) - len(best)))
            here = best + _PART * (farthest - best)
        for harder in _HARDER:
            if self.best is not None:
                return
            self._visit(here * harder)

    def _visit(self, multipliers: Floats) -> _Met | None:
        """Look for the best choice at some multipliers, one of each constraint."""
        order, problem = self.groups.order, self.groups.problem
        each = np.zeros(len(order))
        for multiplier, counts in zip(multipliers, self._counts, strict=True):
            each += multiplier * counts
        count = np.bincount(order)
        shared = np.bincount(order, weights=each) / count
        beyond_j = self.groups.beyond_j
        costs_j, added_j = multiplied(self.knapsack.energy_j, beyond_j, shared)
        solution = solve(replace(self.knapsack, energy_j=costs_j), self.effort)
        if not each.any():
            self.bound_j = max(self.bound_j, solution.bound_j - added_j)
        if solution.status is Status.INFEASIBLE:
            return None
        at = np.arange(len(count)), solution.choice
        met = _Met(
            choice=solution.choice,
            time_s=(problem.time_s[at] / count)[order],
            energy_j=(problem.energy_j[at] / count)[order],
            cost_j=math.fsum(self.knapsack.energy_j[at]),
        )
        if all((met.choice != other.choice).any() for other in self._met):
            judged_j = self.groups.judge(met.choice)
            if judged_j < self.least_j:
                self.best, self.least_j = met.choice, judged_j
        self._met.append(met)
        return met

    def _drawn(self, met: _Met) -> Floats:
        """Return what a choice draws beyond the limit, as each constraint counts it. Shape (C,)."""
        beyond_j = met.energy_j - self.groups.limit_w * met.time_s
        return np.array([counts @ beyond_j for counts in self._counts])


def multiplied(cost_j: Floats, beyond_j: Floats, multipliers: Floats) -> tuple[Floats, float]:
    """Add to costs what is drawn beyond a limit, multiplied, and what makes none negative.

    Args:
        cost_j: ``inf`` where a setting is not available. One row for each multiplier.

    Returns:
        The costs, and what was added to those of any choice so that none is negative.
    """
    with np.errstate(invalid="ignore"):  # nothing times no end
        more = np.where(np.isfinite(cost_j), cost_j + multipliers[:, None] * beyond_j, np.inf)
    added = np.maximum(0.0, -more.min(axis=1))
    return np.maximum(more + added[:, None], 0.0), math.fsum(added)
