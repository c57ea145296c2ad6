"""Which samples to take next, so that few of them decide the plan and its promise.

A sample's value of information is what it may change: where another setting may turn out better
than the one now preferred, or where the promise still rests on what nobody measured. It is in J per
step; a campaign takes what is worth most per second.

Shape letters: K kernels, C settings.
"""

import math
from dataclasses import dataclass

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
class Promised:
    """What a plan promises, as a sum in J.

    Attributes:
        energy: How often its energy counts.
        time_w: What its time counts, in J per second.
    """

    energy: float = 1.0
    time_w: float = 0.0


ENERGY = Promised()


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
    candidates: Candidates, multiplier: float, planned: Ints, promised: Promised = ENERGY
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
    by_power = promised.energy * energy_j
    by_time = by_power + promised.time_w * time_s
    promise = _for_promise(candidates, by_time, by_power, planned)
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


def _for_promise(
    candidates: Candidates, by_time: Floats, by_power: Floats, planned: Ints
) -> Floats:
    """Return by how much a sample would narrow the promise. Shape (K, C)."""
    posterior = candidates.posterior
    promise = np.zeros_like(by_time)
    locked = np.flatnonzero(planned >= 0)
    at = planned[locked]
    # What all kernels share a sample of one hardly tells.
    moves = posterior.derivatives(by_time, by_power)
    known = (kernel_variance(moves.by_kernel, posterior.kernel_cov) + moves.own)[locked, at]
    noise2 = posterior.noise**2
    noise = (by_time**2 * noise2[0][:, None] + by_power**2 * noise2[1][:, None])[locked, at]
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
