"""Which samples to take next, so that few of them decide the plan and its promise.

A sample's value of information is what it may change: where another setting may turn out better
than the one now preferred, or where the promise still rests on what nobody measured. It is in J per
step; a campaign takes what is worth most per second. Replay is deterministic: a queried entry is
exact, noise included, and only queried entries can be planned; there rows are chosen by expected
improvement on the best one known.

Shape letters: K kernels, C settings.
"""

import math
from collections.abc import Sequence
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
    """

    posterior: Posterior
    counts: Floats
    auto_s: Floats
    auto_j: Floats
    measurable: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOfInformation:
    """What one more sample of each entry is worth, in J per step. Shape (K, C).

    Attributes:
        choice: For the choice of settings.
        promise: For the error of the promise.
    """

    choice: Floats
    promise: Floats

    @property
    def total(self) -> Floats:
        """Both together. Shape (K, C)."""
        total: Floats = self.choice + _FOR_PROMISE * self.promise
        return total


def multipliers(
    time_s: Floats, energy_j: Floats, baseline_s: float, budgets: Sequence[float]
) -> Floats:
    """Return, for each budget, the multiplier at which it is just kept: what a second costs in J.

    Args:
        time_s: Expected costs of all settings, auto included. Shape (K, C).
        energy_j: Expected energy in J of the same. Shape (K, C).
        baseline_s: Time of auto.
        budgets: Fractions above it. Length B.

    Returns:
        Shape (B,).
    """
    most = 100.0 * float(np.nanmax(energy_j / time_s))
    kept = []
    for budget in budgets:
        low, high = 0.0, most
        for _ in range(40):
            multiplier = 0.5 * (low + high)
            at = np.argmin(energy_j + multiplier * time_s, axis=1)
            taken = float(time_s[np.arange(len(at)), at].sum())
            low, high = (
                (multiplier, high) if taken > baseline_s * (1.0 + budget) else (low, multiplier)
            )
        kept.append(high)
    return np.array(kept)


def value_of_information(
    candidates: Candidates, multiplier: float, planned: Ints
) -> ValueOfInformation:
    """Say what one more sample of each entry is worth, with its noise.

    Args:
        candidates: The entries.
        multiplier: What a second costs, in J.
        planned: Setting of each kernel in the plan as it is now; -1 is auto. Shape (K,).
    """
    posterior, measurable = candidates.posterior, candidates.measurable
    time_s, energy_j = posterior.costs(candidates.counts)
    cost = energy_j + multiplier * time_s
    choice = _for_choice(candidates, cost, energy_j, multiplier)
    promise = _for_promise(posterior, energy_j, planned)
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
    learned = np.sqrt(apart * apart / np.maximum(apart + noise, 1e-300))
    challenger = _gain(cost - lead[:, None], learned)
    # Against auto: a kernel whose best setting is no better than auto stays there.
    sure = np.sqrt(alone * alone / np.maximum(alone + noise, 1e-300))
    against_auto = _gain(np.abs(cost - from_auto[:, None]), sure) * (cost <= lead[:, None])
    value: Floats = np.maximum(challenger, against_auto)
    # Of two settings that are close, ask the one less is known of.
    rival = np.argmax(np.where(measurable, challenger, -1.0), axis=1)
    ask_best = alone[kernels, best] > alone[kernels, rival]
    value[kernels, best] = np.where(
        ask_best, np.maximum(value[kernels, best], challenger[kernels, rival]), value[kernels, best]
    )
    return value


def _for_promise(posterior: Posterior, energy_j: Floats, planned: Ints) -> Floats:
    """Return by how much a sample would narrow the promise, which is of energy alone. (K, C)."""
    promise = np.zeros_like(energy_j)
    locked = np.flatnonzero(planned >= 0)
    at = planned[locked]
    energy_own = _energy_variance(posterior, energy_j)[locked, at]
    energy_noise = (energy_j**2 * (posterior.noise**2).sum(axis=0)[:, None])[locked, at]
    total = math.sqrt(float(energy_own.sum())) or 1.0
    less = energy_own**2 / np.maximum(energy_own + energy_noise, 1e-300)
    promise[locked, at] = total - np.sqrt(np.maximum(total**2 - less, 0.0))
    return promise


def expected_improvement(candidates: Candidates, multiplier: float) -> Floats:
    """Return by how much each entry of a table is expected to beat the best one known.

    Args:
        candidates: The entries; samples of them are exact.
        multiplier: What a second costs, in J.

    Returns:
        In J per step. Shape (K, C).
    """
    posterior, measurable = candidates.posterior, candidates.measurable
    time_s, energy_j = posterior.costs(candidates.counts)
    cost = energy_j + multiplier * time_s
    variance = posterior.variance(cost, energy_j)
    known = variance <= 0.0
    best = np.where(known & measurable, cost, math.inf).min(axis=1, initial=math.inf)
    best = np.minimum(best, candidates.auto_j + multiplier * candidates.auto_s)
    value = _gain(cost - best[:, None], np.sqrt(variance))
    return np.where(measurable & ~known, value, 0.0)


def expected_improvement_within_own_budget(candidates: Candidates, budget: float) -> Floats:
    """Return by how much each entry is expected to beat the best one known that keeps a budget.

    As `expected_improvement`, but each kernel keeps the time budget by itself: no other lends it
    time.

    Args:
        candidates: The entries; samples of them are exact.
        budget: Fraction above auto's time.

    Returns:
        In J per step. Shape (K, C).
    """
    posterior, measurable = candidates.posterior, candidates.measurable
    time_s, energy_j = posterior.costs(candidates.counts)
    variance = posterior.variance(1.0, 1.0)
    known = variance <= 0.0
    limit_s = (candidates.auto_s * (1.0 + budget))[:, None]
    kept = known & measurable & (time_s <= limit_s * (1.0 + 1e-12))
    best = np.where(kept, energy_j, math.inf).min(axis=1, initial=math.inf)
    best = np.minimum(best, candidates.auto_j)
    spread = np.sqrt(np.maximum(posterior.variance(1.0, 0.0), 1e-12))
    keeps = ndtr(np.log(limit_s / time_s) / spread)
    value = keeps * _gain(energy_j - best[:, None], energy_j * np.sqrt(variance))
    return np.where(measurable & ~known, value, 0.0)


def _energy_variance(posterior: Posterior, energy_j: Floats) -> Floats:
    """Return the variance of each entry that a sample of it tells of, in J². Shape (K, C)."""
    by_kernel = posterior.by_kernel.sum(axis=0)
    known = kernel_variance(by_kernel, posterior.kernel_cov) + posterior.discrepancy.sum(axis=0)
    variance: Floats = energy_j**2 * known
    return variance


def _gain(behind: Floats, spread: Floats) -> Floats:
    """Return the expected gain of learning whether something behind is in fact ahead."""
    safe = np.maximum(spread, 1e-300)
    z = -behind / safe
    clipped = np.clip(z, -30.0, 30.0)
    density = np.exp(-0.5 * clipped**2) / _ROOT_2PI
    gain: Floats = np.where(spread > 0, spread * (clipped * ndtr(clipped) + density), 0.0)
    return np.maximum(gain, 0.0)
