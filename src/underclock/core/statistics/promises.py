"""Promises against what came of them, over many random halves of a table's repeats.

Shape letters: N runs, S splits.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Bools, Floats, Ints

_WITHIN = 1.960  # deviations that 95 % of a normal distribution lie within
_LEVEL = 0.975  # of the upper end of a 95 % interval
_BELOW = 1.645  # and below
_ROUNDING = 1e-9  # a choice may take exactly its budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """One quantity of a plan, promised and executed, as changes against auto. Each of shape (S,).

    Attributes:
        promised: On one half.
        spread: Standard deviation that the promise claims.
        executed: On the other half.
        noise: Standard deviation of that, as repeats tell.
    """

    promised: Floats
    spread: Floats
    executed: Floats
    noise: Floats

    @property
    def bias(self) -> Floats:
        """Promise less execution: below zero, the promise was of less than came. Shape (S,)."""
        return self.promised - self.executed

    @property
    def covered(self) -> Bools:
        """Where execution lies within the promise's interval, its own noise granted. Shape (S,)."""
        both: Bools = np.abs(self.bias) <= _WITHIN * np.hypot(self.spread, self.noise)
        return both

    def breaks(self, budget: float) -> Bools:
        """Where execution exceeds a budget by more than its noise explains. Shape (S,)."""
        beyond: Bools = self.executed - _BELOW * self.noise > budget + _ROUNDING
        return beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


def halves(row: Ints, random: np.random.Generator) -> Bools:
    """Return which runs of each row go to the first half; each half has one at least.

    A row with an odd number of runs gives the one too many to either half alike.

    Args:
        row: Row of each run; every row has two at least. Shape (N,).
        random: Where the halves come from.
    """
    order = np.lexsort((random.random(len(row)), row))
    taken = np.bincount(row)
    first = np.cumsum(taken) - taken
    rank = np.empty(len(row), dtype=np.int64)
    rank[order] = np.arange(len(row)) - first[row[order]]
    many = taken // 2 + (taken % 2) * random.integers(0, 2, len(taken))
    chosen: Bools = rank < many[row]
    return chosen


def mean_of(values: Floats) -> Estimate:
    """Return a mean with Student's interval; of one value, that is as wide as can be."""
    mean, count = float(values.mean()), len(values)
    if count == 1:
        return Estimate(value=mean, low=-math.inf, high=math.inf)
    reach = float(stdtrit(count - 1, _LEVEL)) * float(values.std(ddof=1))
    reach /= math.sqrt(count)
    return Estimate(value=mean, low=mean - reach, high=mean + reach)


def share_of(hits: Bools) -> Estimate:
    """Return a share with Wilson's interval."""
    count, share = len(hits), float(hits.mean())
    z2 = _WITHIN**2 / count
    centre = (share + 0.5 * z2) / (1.0 + z2)
    reach = math.sqrt(z2 * (share * (1.0 - share) + 0.25 * z2)) / (1.0 + z2)
    return Estimate(value=share, low=max(0.0, centre - reach), high=min(1.0, centre + reach))
