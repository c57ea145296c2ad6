"""Which samples to take next, so that few of them decide the plan and its promise.

A sample's value of information is what it may change: where another setting may turn out better
than the one now preferred, or where the promise still rests on what nobody measured. It is in J per
step; a campaign takes what is worth most per second.

Replay is deterministic: a queried entry is exact, noise included, and only queried entries can be
planned. So an entry of a table is worth what the plan is expected to gain by it (expected
improvement).

What a second is worth, in J, is the multiplier of time at which a choice just keeps a limit: with
it, least E + λ·T of each kernel is the choice of all. A limit of time is kept at a high λ. A limit
of mean power is kept at a low one: time costs power, and what is fastest draws most.

Shape letters: K kernels, C settings, S settings with auto.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtr

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.posterior import Derivatives, Posterior, kernel_variance

_ROOT_2PI = math.sqrt(2.0 * math.pi)

_FOR_PROMISE = 0.5  # J off a promise's error are worth this many J saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Entries that may be measured next, and what is known of them.

    Attributes:
        posterior: What is known; in a table, entries without variance were looked at.
        counts: Launches of each kernel. Shape (K,).
        auto_s: Time of each kernel at auto, all launches. Shape (K,).
        auto_j: Energy of each kernel at auto, all launches. Shape (K,).
        measurable: Which entries can be measured. Shape (K, C).
        looks: How often each was looked at, or its neighbours. Shape (K, C).
    """

    posterior: Posterior
    counts: Floats
    auto_s: Floats
    auto_j: Floats
    measurable: Bools
    looks: Floats

    def left_to_tell(self, variance: Floats, noise: Floats) -> Floats:
        """Return the part of variances that looks at their entries can take away. Shape (K, C).

        What many looks here left open does not lie here: noise would have been averaged out, so
        one more will not tell either, nor will one next door.

        Args:
            variance: What is unsure of each entry. Shape (K, C).
            noise: Variance of one look. Shape (K, C).
        """
        return np.minimum(variance, noise / np.maximum(self.looks, 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOfInformation:
    """What one more sample of each entry is worth, in J per step. Shape (K, C).

    Attributes:
        promise: For the error of the promise.
    """

    choice: Floats
    promise: Floats

    @property
    def total(self) -> Floats:
        """Both together. Shape (K, C)."""
        total: Floats = self.choice + _FOR_PROMISE * self.promise
        return total


def value_of_information(
    candidates: Candidates, multiplier: float, planned: Ints
) -> ValueOfInformation:
    """Say what one more sample of each entry is worth, with its noise.

    Args:
        multiplier: What a second costs, in J.
        planned: Setting of each kernel in the plan as it is now; -1 is auto. Shape (K,).
    """
    posterior, measurable = candidates.posterior, candidates.measurable
    time_s, energy_j = posterior.costs(candidates.counts)
    cost = energy_j + multiplier * time_s
    choice = _for_choice(candidates, cost, energy_j, multiplier)
    promise = _for_promise(candidates, energy_j, planned)
    return ValueOfInformation(
        choice=np.where(measurable, choice, 0.0), promise=np.where(measurable, promise, 0.0)
    )


def _for_choice(
    candidates: Candidates, cost: Floats, energy_j: Floats, multiplier: float
) -> Floats:
    """Return what a sample may gain by changing the choice of settings. Shape (K, C)."""
    posterior, measurable = candidates.posterior, candidates.measurable
    kernels = np.arange(len(cost))
    best = np.argmin(np.where(measurable, cost, math.inf), axis=1)
    lead = cost[kernels, best]
    from_auto = candidates.auto_j + multiplier * candidates.auto_s
    # d cost = (E + multiplier·T) d log T + E d log P, and the auto costs are as good as known.
    entries = posterior.derivatives(cost, energy_j)
    noise2 = posterior.noise[:, :, None] ** 2
    noise = cost**2 * noise2[0] + energy_j**2 * noise2[1]
    alone = posterior.entry_variance(entries)
    apart = posterior.entry_variance(
        Derivatives(
            entries.own + entries.own[kernels, best][:, None],
            entries.by_shared - entries.by_shared[kernels, best][:, None],
            entries.by_kernel - entries.by_kernel[kernels, best][:, None],
        )
    )
    apart[kernels, best] = 0.0
    told = candidates.left_to_tell(apart, noise)
    learned = np.sqrt(told * told / np.maximum(told + noise, 1e-300))
    challenger = expected_gain(cost - lead[:, None], learned)
    # Against auto: a kernel whose best setting is no better than auto stays there.
    told = candidates.left_to_tell(alone, noise)
    sure = np.sqrt(told * told / np.maximum(told + noise, 1e-300))
    against_auto = expected_gain(np.abs(cost - from_auto[:, None]), sure) * (cost <= lead[:, None])
    value: Floats = np.maximum(challenger, against_auto)
    # Of two settings that are close, ask the one less is known of.
    rival = np.argmax(np.where(measurable, challenger, -1.0), axis=1)
    ask_best = alone[kernels, best] > alone[kernels, rival]
    value[kernels, best] = np.where(
        ask_best, np.maximum(value[kernels, best], challenger[kernels, rival]), value[kernels, best]
    )
    return value


def _for_promise(candidates: Candidates, energy_j: Floats, planned: Ints) -> Floats:
    """Return by how much a sample would narrow the promise. Shape (K, C)."""
    posterior = candidates.posterior
    promise = np.zeros_like(energy_j)
    locked = np.flatnonzero(planned >= 0)
    at = planned[locked]
    # What all kernels share a sample of one hardly tells.
    moves = posterior.derivatives(energy_j, energy_j)
    known = (kernel_variance(moves.by_kernel, posterior.kernel_cov) + moves.own)[locked, at]
    noise2 = posterior.noise**2
    noise = (energy_j**2 * noise2[0][:, None] + energy_j**2 * noise2[1][:, None])[locked, at]
    total = math.sqrt(float(known.sum())) or 1.0
    told = np.minimum(known, noise / np.maximum(candidates.looks[locked, at], 1e-9))
    less = told**2 / np.maximum(told + noise, 1e-300)
    promise[locked, at] = total - np.sqrt(np.maximum(total**2 - less, 0.0))
    return promise


def expected_gain(behind: Floats, spread: Floats) -> Floats:
    """Return the expected gain of learning whether something behind is in fact ahead."""
    ahead_by = -behind
    z = ahead_by / np.maximum(spread, 1e-300)
    density = np.exp(-0.5 * np.clip(z, -30.0, 30.0) ** 2) / _ROOT_2PI
    gain: Floats = np.where(spread > 0, ahead_by * ndtr(z) + spread * density, 0.0)
    return np.maximum(gain, 0.0)


# Of auto's mean power: what a second may be worth at most and at least, if not nothing.
_MULTIPLIERS = (0.0, *np.geomspace(1e-2, 1e3, 51).tolist())


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
    table = TableEntries.of(candidates)
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
class TableEntries:
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


_STEEPEST = 100.0  # of the greatest power: nobody pays more for a second
_HALVINGS = 40


def multiplier_within(time_s: Floats, energy_j: Floats, limit_s: float) -> float:
    """Return the least multiplier at which the choice takes no more than a time.

    Args:
        time_s: Of each setting; ``inf`` where it cannot be chosen. Shape (K, S).
        energy_j: Energy in J of the same. Shape (K, S).
    """
    known = np.isfinite(time_s)
    low, high = 0.0, _STEEPEST * float((energy_j[known] / time_s[known]).max())
    kernels = np.arange(len(time_s))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        at = kernels, np.argmin(energy_j + middle * time_s, axis=1)
        late = float(time_s[at].sum()) > limit_s
        low, high = (middle, high) if late else (low, middle)
    return high
