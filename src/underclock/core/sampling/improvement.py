"""Expected improvement: which entry of a table to look at, where a look is certain.

Replay is deterministic: a queried entry is exact, noise included, and only queried entries can be
planned. So an entry is worth what the plan is expected to gain by it.

Shape letters: K kernels, C settings.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.sampling.acquisition import Candidates, expected_gain
from underclock.core.sampling.multipliers import multiplier_within

# Of auto's mean power: what a second may be worth at most and at least, if not nothing.
_MULTIPLIERS = (0.0, *np.geomspace(1e-2, 1e3, 51).tolist())


def expected_improvement(candidates: Candidates, multiplier: float) -> Floats:
    """Return by how much each entry of a table is expected to beat the best one known.

    Args:
        candidates: The entries; samples of them are exact.
        multiplier: What a second costs, in J.

    Returns:
        In J per step. Shape (K, C).
    """
    return _Table.of(candidates).improvement(multiplier)


def expected_improvement_within(candidates: Candidates, budget: float) -> Floats:
    """Return by how much each entry of a table is expected to better the plan within a budget.

    At a multiplier λ no plan of known entries takes less than D(λ) = Σ min (E + λT) - λ·limit, and
    the best plan takes the greatest D (the gap of the knapsack apart). An entry that beats its
    kernel's best by g(λ) takes that from D, so it betters the plan by the least of
    max D - D(λ) + g(λ) over all λ; as expected, by no more than that with the mean of g. So a loan
    of time is worth what others are known to make of it, and a saving that takes time what it is
    worth at the multiplier at which that time can be had.

    Args:
        candidates: The entries; samples of them are exact.

    Returns:
        In J per step. Shape (K, C).
    """
    table = _Table.of(candidates)
    auto_s, auto_j = float(candidates.auto_s.sum()), float(candidates.auto_j.sum())
    limit_s = auto_s * (1.0 + budget)
    now = multiplier_within(table.known_s, table.known_j, limit_s)
    multipliers = [now, *(share * auto_j / auto_s for share in _MULTIPLIERS)]
    bounds_j = [table.bound_j(multiplier, limit_s) for multiplier in multipliers]
    gains = [
        table.improvement(multiplier) + (max(bounds_j) - bound_j)
        for multiplier, bound_j in zip(multipliers, bounds_j, strict=True)
    ]
    least: Floats = np.min(gains, axis=0)
    return np.where(table.is_open, least, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table of which some entries are known.

    Attributes:
        time_s: Expected. Shape (K, C).
        energy_j: Expected. Shape (K, C).
        variance: Of log time; of log time with log power; of log power. Shape (3, K, C).
        is_open: Which entries may be looked at. Shape (K, C).
        known_s: Time of entries that can be planned, auto last; ``inf`` for others. (K, C + 1).
        known_j: Energy of the same. Shape (K, C + 1).
    """

    time_s: Floats
    energy_j: Floats
    variance: Floats
    is_open: Bools
    known_s: Floats
    known_j: Floats

    @classmethod
    def of(cls, candidates: Candidates) -> Self:
        """Tell what is known from what is expected."""
        posterior, measurable = candidates.posterior, candidates.measurable
        time_s, energy_j = posterior.costs(candidates.counts)
        of_time, of_power = posterior.variance(1.0, 0.0), posterior.variance(0.0, 1.0)
        of_energy = posterior.variance(1.0, 1.0)
        known = (of_energy <= 0.0) & measurable
        return cls(
            time_s=time_s,
            energy_j=energy_j,
            variance=np.stack([of_time, 0.5 * (of_energy - of_time - of_power), of_power]),
            is_open=measurable & ~known,
            known_s=np.column_stack([np.where(known, time_s, np.inf), candidates.auto_s]),
            known_j=np.column_stack([np.where(known, energy_j, np.inf), candidates.auto_j]),
        )

    def _least_j(self, multiplier: float) -> Floats:
        """Return the least cost of each kernel that is known. Shape (K,)."""
        known = np.isfinite(self.known_s)
        with np.errstate(invalid="ignore"):  # nothing times no end
            cost = np.where(known, self.known_j + multiplier * self.known_s, np.inf)
        least: Floats = cost.min(axis=1)
        return least

    def bound_j(self, multiplier: float, limit_s: float) -> float:
        """Return what every plan of known entries takes at least."""
        return float(self._least_j(multiplier).sum()) - multiplier * limit_s

    def improvement(self, multiplier: float) -> Floats:
        """Return the expected improvement of E + λT. Shape (K, C)."""
        cost = self.energy_j + multiplier * self.time_s
        # d cost = (E + λT) d log T + E d log P.
        of_time, of_both, of_power = self.variance
        variance = cost**2 * of_time + 2.0 * cost * self.energy_j * of_both
        variance += self.energy_j**2 * of_power
        behind = cost - self._least_j(multiplier)[:, None]
        gain = expected_gain(behind, np.sqrt(np.maximum(variance, 0.0)))
        return np.where(self.is_open, gain, 0.0)
