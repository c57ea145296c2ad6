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

Shape letters: n launches, C constraints, P choices met.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from underclock.arrays import Floats, Ints
from underclock.physics.cap import WINDOW_S, early_part, window_means_w

_SLACK = 1e-9  # a sum of floats that meets the limit exactly must not exceed it
_HIGHEST = 100.0  # multiplier of a constraint, in joules per joule drawn beyond the limit
_PART = 0.2  # of the way to the multipliers that promise most
_ENOUGH = 1e-5  # of the cost: what nothing better than is sought
_HARDER = (1.02, 1.1, 1.3, 2.0, 5.0, 25.0)  # times the multipliers, where no choice is allowed


def _no_floats() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerWindows:
    """What the mean power over a window must not exceed.

    Attributes:
        limit_w: Most mean power.
        window_s: Time in which the past's weight falls to 1/e.
    """

    limit_w: float
    window_s: float = WINDOW_S

    def __post_init__(self) -> None:
        """Reject windows that mean nothing."""
        if not 0.0 < self.limit_w < math.inf or not 0.0 < self.window_s < math.inf:
            raise ValueError(
                f"limit_w and window_s must be positive, got {self.limit_w} and {self.window_s}"
            )

    def excess_w(self, time_s: Floats, energy_j: Floats) -> Floats:
        """Return by how much the window that ends with each launch exceeds the limit. Shape (n,).

        Args:
            time_s: Of every launch, what comes before it included. Shape (n,).
            energy_j: Likewise. Shape (n,).
        """
        over_w = window_means_w(time_s, energy_j, self.window_s) - self.limit_w
        return np.where(over_w > self.limit_w * _SLACK, over_w, 0.0)

    def keeps(self, time_s: Floats, energy_j: Floats) -> bool:
        """Whether no window exceeds the limit."""
        return not self.excess_w(time_s, energy_j).any()

    def weights(self, time_s: Floats, windows: Floats) -> Floats:
        """Return how much each launch's energy counts in some windows together. Shape (n,).

        Relative to the most that any does. Of a choice that keeps these windows, these times what
        each launch draws beyond the limit come to no more than zero.

        Args:
            time_s: Of every launch. Shape (n,).
            windows: How much the window that ends with each launch counts. Shape (n,).
        """
        left = np.exp(-time_s / self.window_s)
        counts, count = np.empty(len(time_s)), 0.0
        for _ in range(2):
            for launch in range(len(time_s) - 1, -1, -1):
                count = windows[launch] + count * left[(launch + 1) % len(left)]
                counts[launch] = count
            # The rounds after: what the windows of one leave for its beginning, they all do.
            count /= -math.expm1(-float(time_s.sum()) / self.window_s)
        counts *= early_part(time_s / self.window_s)
        weights: Floats = counts / counts.max()
        return weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A choice that some multipliers led to.

    Attributes:
        choice: Setting of each part. Any shape.
        time_s: Of every launch. Shape (n,).
        energy_j: Of every launch. Shape (n,).
        cost_j: What is minimised: the energy, or time at the power of the limit.
        bound_j: Least of any choice's cost and what it draws beyond the limit, multiplied.
    """

    choice: Ints
    time_s: Floats
    energy_j: Floats
    cost_j: float
    bound_j: float


Solve = Callable[[Floats], Met | float]
"""Find the best choice at a multiplier for every launch; where none is found, return the bound."""

Judge = Callable[[Ints], float]
"""Return what a choice comes to, in J, whatever its windows; ``inf`` where it is not allowed."""


@dataclass(slots=True, kw_only=True)
class WindowSearch:
    """A search for the best choice under the limit.

    Attributes:
        windows: What to keep.
        solve: Finds the best choice at given multipliers.
        judge: Says which choice is the best.
        launches: How many there are.
        rounds: Most choices to look for.
        first: Multiplier of every launch to begin with; none unless given. Shape (n,).
        best: The best of all that were met; ``None`` if none was allowed.
        least_j: What it comes to.
        multipliers: Those that led to it. Shape (n,).
        bound_j: No choice within the limit costs less.
    """

    windows: PowerWindows
    solve: Solve
    judge: Judge
    launches: int
    rounds: int
    first: Floats = field(default_factory=_no_floats)
    best: Met | None = None
    least_j: float = math.inf
    multipliers: Floats = field(default_factory=_no_floats)
    bound_j: float = -math.inf
    _met: list[Met] = field(init=False, default_factory=list)
    _counts: list[Floats] = field(init=False, default_factory=list)

    def run(self) -> None:
        """Look until nothing better is promised, or the rounds are over."""
        here, reached_j = np.zeros(0), -math.inf
        if self.first.any():
            self._counts.append(self.first / self.first.max())
            here = np.array([self.first.max()])
        best = here
        for _ in range(self.rounds):
            met = self._visit(here)
            if met is None:
                return
            value_j = met.cost_j + math.fsum(here * self._drawn(met)[: len(here)])
            if value_j > reached_j:
                reached_j, best = value_j, here
            excess_w = self.windows.excess_w(met.time_s, met.energy_j)
            if excess_w.any():
                self._counts.append(self.windows.weights(met.time_s, excess_w * met.time_s))
            elif not self._counts:
                return  # what is best without a limit is within it
            if self.least_j <= self.bound_j * (1.0 + _ENOUGH):
                return
            farthest = self._promising()
            best = np.append(best, np.zeros(len(farthest) - len(best)))
            here = best + _PART * (farthest - best)
        for harder in _HARDER:
            if self.best is not None:
                return
            self._visit(here * harder)

    def offer(self, met: Met, multipliers: Floats) -> None:
        """Take a choice if it is better than the best."""
        judged_j = self.judge(met.choice)
        if judged_j < self.least_j:
            self.best, self.least_j, self.multipliers = met, judged_j, multipliers

    def _visit(self, multipliers: Floats) -> Met | None:
        """Look for the best choice at some multipliers, one of each constraint."""
        each = np.zeros(self.launches)
        for multiplier, counts in zip(multipliers, self._counts, strict=True):
            each += multiplier * counts
        met = self.solve(each)
        if not each.any():
            self.bound_j = max(self.bound_j, met if isinstance(met, float) else met.bound_j)
        if isinstance(met, float):
            return None
        if all((met.choice != other.choice).any() for other in self._met):
            self.offer(met, each)
        self._met.append(met)
        return met

    def _promising(self) -> Floats:
        """Return the multipliers at which the least of all choices met is greatest. Shape (C,)."""
        drawn_j = np.array([self._drawn(met) for met in self._met])
        cost_j = np.array([met.cost_j for met in self._met])
        unit_j = float(cost_j.max()) or 1.0
        answer = linprog(
            [-1.0, *np.zeros(len(self._counts))],
            A_ub=np.column_stack([np.ones(len(cost_j)), -drawn_j / unit_j]),
            b_ub=cost_j / unit_j,
            bounds=[(None, None), *[(0.0, _HIGHEST)] * len(self._counts)],
        )
        multipliers: Floats = answer.x[1:]
        return multipliers

    def _drawn(self, met: Met) -> Floats:
        """Return what a choice draws beyond the limit, as each constraint counts it. Shape (C,)."""
        beyond_j = met.energy_j - self.windows.limit_w * met.time_s
        return np.array([counts @ beyond_j for counts in self._counts])


def multiplied(cost_j: Floats, beyond_j: Floats, multipliers: Floats) -> tuple[Floats, float]:
    """Add to costs what is drawn beyond a limit, multiplied, and what makes none negative.

    Args:
        cost_j: ``inf`` where a setting is not available. One row for each multiplier.
        beyond_j: What each draws beyond the limit. Likewise.
        multipliers: One for each row.

    Returns:
        The costs, and what was added to those of any choice so that none is negative.
    """
    known = np.isfinite(cost_j)
    more = np.full(cost_j.shape, np.inf)
    rows = np.nonzero(known)[0]
    more[known] = cost_j[known] + multipliers[rows] * beyond_j[known]
    added = np.maximum(0.0, -more.min(axis=1))
    return np.maximum(more + added[:, None], 0.0), math.fsum(added)


def beyond_limit(time_s: Floats, energy_j: Floats, limit_w: float) -> Floats:
    """Return what is drawn beyond a limit, in J; ``inf`` where a setting is not available."""
    known = np.isfinite(time_s)
    beyond_j = np.full(time_s.shape, np.inf)
    beyond_j[known] = energy_j[known] - limit_w * time_s[known]
    return beyond_j
