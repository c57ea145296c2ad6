"""Which samples to take next, so that few of them decide the plan and its promise.

A sample is worth what it may change: where another setting may turn out better than the one now
preferred, or where the promise still rests on a guess. ValueOfInformation is in J per step; a campaign takes
what is worth most per second. In a table, whose rows are true and the only ones to plan with, it is
worth what it may gain on the best row known.

Shape letters: K kernels, C settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.parameters import Points, Shared, predict, slopes
from underclock.core.model.posterior import Posterior, kernel_variance
from underclock.core.model.rows import PER_KERNEL
from underclock.physics.constants import GpuConstants

_ROOT_2PI = math.sqrt(2.0 * math.pi)
_FOR_PROMISE = 0.5  # J off a promise's error are worth this many J saved
_PLAUSIBLE_CORE, _PLAUSIBLE_MEM = 0.4, 0.4
_DESIGN_NOISE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOfInformation:
    """What one more sample of each entry is worth, in J per step. Shape (K, C)."""

    choice: Floats
    promise: Floats

    @property
    def total(self) -> Floats:
        """Both together. Shape (K, C)."""
        found: Floats = self.choice + _FOR_PROMISE * self.promise
        return found


def multipliers(
    time_s: Floats, energy_j: Floats, baseline_s: float, budgets: Sequence[float]
) -> Floats:
    """Return, for each budget, what a second costs in J where the budget is just kept.

    Args:
        time_s: Expected costs of all settings, auto included. Shape (K, C).
        energy_j: Expected energy in J of the same. Shape (K, C).
        baseline_s: Time of auto.
        budgets: Fractions above it. Length B.

    Returns:
        Shape (B,).
    """
    most = 100.0 * float(np.nanmax(energy_j / time_s))
    found = []
    for budget in budgets:
        low, high = 0.0, most
        for _ in range(40):
            multiplier = 0.5 * (low + high)
            at = np.argmin(energy_j + multiplier * time_s, axis=1)
            taken = float(time_s[np.arange(len(at)), at].sum())
            low, high = (
                (multiplier, high) if taken > baseline_s * (1.0 + budget) else (low, multiplier)
            )
        found.append(high)
    return np.array(found)


def value_of_information(
    posterior: Posterior,
    counts: Floats,
    auto: tuple[Floats, Floats],
    multiplier: float,
    planned: Ints,
    measurable: Bools,
) -> ValueOfInformation:
    """Say what one more sample of each entry is worth, with its noise.

    Args:
        posterior: What is known.
        counts: Launches of each kernel. Shape (K,).
        auto: Time in s and energy in J of each kernel at auto, all launches. Shapes (K,).
        multiplier: What a second costs, in J.
        planned: Setting of each kernel in the plan as it is now; -1 is auto. Shape (K,).
        measurable: Which entries can be measured. Shape (K, C).
    """
    time_s, energy_j = posterior.costs(counts)
    cost = energy_j + multiplier * time_s
    kernels = np.arange(len(cost))
    best = np.argmin(np.where(measurable, cost, math.inf), axis=1)
    lead = cost[kernels, best]
    from_auto = auto[1] + multiplier * auto[0]
    # d cost = (E + multiplier·T) d log T + E d log P, and the auto costs are as good as known.
    own, by_shared, by_kernel = posterior.derivatives(cost, energy_j)
    noise2 = posterior.noise[:, :, None] ** 2
    noise = cost**2 * noise2[0] + energy_j**2 * noise2[1]
    alone = posterior.entry_variance(own, by_shared, by_kernel)
    apart = posterior.entry_variance(
        own + own[kernels, best][:, None],
        by_shared - by_shared[kernels, best][:, None],
        by_kernel - by_kernel[kernels, best][:, None],
    )
    apart[kernels, best] = 0.0
    learned = np.sqrt(apart * apart / np.maximum(apart + noise, 1e-300))
    challenger = _gain(cost - lead[:, None], learned)
    # Against auto: a kernel whose best setting is no better than auto stays there.
    sure = np.sqrt(alone * alone / np.maximum(alone + noise, 1e-300))
    against_auto = _gain(np.abs(cost - from_auto[:, None]), sure) * (cost <= lead[:, None])
    value = np.maximum(challenger, against_auto)
    # Of two settings that are close, ask the one less is known of.
    rival = np.argmax(np.where(measurable, challenger, -1.0), axis=1)
    ask_best = alone[kernels, best] > alone[kernels, rival]
    value[kernels, best] = np.where(
        ask_best, np.maximum(value[kernels, best], challenger[kernels, rival]), value[kernels, best]
    )
    promise = np.zeros_like(value)
    held = np.flatnonzero(planned >= 0)
    at = planned[held]
    # The promise is of energy alone.
    energy_own = _energy_variance(posterior, energy_j)[held, at]
    energy_noise = (energy_j**2 * (posterior.noise**2).sum(axis=0)[:, None])[held, at]
    total = math.sqrt(float(energy_own.sum())) or 1.0
    less = energy_own**2 / np.maximum(energy_own + energy_noise, 1e-300)
    promise[held, at] = total - np.sqrt(np.maximum(total**2 - less, 0.0))
    return ValueOfInformation(
        choice=np.where(measurable, value, 0.0), promise=np.where(measurable, promise, 0.0)
    )


def expected_improvement(
    posterior: Posterior,
    counts: Floats,
    auto: tuple[Floats, Floats],
    multiplier: float,
    measurable: Bools,
) -> Floats:
    """Say by how much each entry is expected to beat the best one known, where samples are exact.

    That is what counts in a table, which can be planned only where it was looked at.

    Args:
        posterior: What is known; entries without variance were looked at.
        counts: Launches of each kernel. Shape (K,).
        auto: Time in s and energy in J of each kernel at auto, all launches. Shapes (K,).
        multiplier: What a second costs, in J.
        measurable: Which entries can be measured. Shape (K, C).

    Returns:
        In J per step. Shape (K, C).
    """
    time_s, energy_j = posterior.costs(counts)
    cost = energy_j + multiplier * time_s
    variance = posterior.variance(cost, energy_j)
    known = variance <= 0.0
    best = np.where(known & measurable, cost, math.inf).min(axis=1, initial=math.inf)
    best = np.minimum(best, auto[1] + multiplier * auto[0])
    value = _gain(cost - best[:, None], np.sqrt(variance))
    found: Floats = np.where(measurable & ~known, value, 0.0)
    return found


def expected_improvement_within_own_budget(
    posterior: Posterior,
    counts: Floats,
    auto: tuple[Floats, Floats],
    budget: float,
    measurable: Bools,
) -> Floats:
    """Say by how much each entry is expected to beat the best one known that keeps a time budget.

    As `hope`, but each kernel keeps the budget alone: nobody has to lend it time.

    Args:
        posterior: What is known; entries without variance were looked at.
        counts: Launches of each kernel. Shape (K,).
        auto: Time in s and energy in J of each kernel at auto, all launches. Shapes (K,).
        budget: Fraction above auto's time.
        measurable: Which entries can be measured. Shape (K, C).

    Returns:
        In J per step. Shape (K, C).
    """
    time_s, energy_j = posterior.costs(counts)
    variance = posterior.variance(1.0, 1.0)
    known = variance <= 0.0
    limit_s = (auto[0] * (1.0 + budget))[:, None]
    kept = known & measurable & (time_s <= limit_s * (1.0 + 1e-12))
    best = np.minimum(np.where(kept, energy_j, math.inf).min(axis=1, initial=math.inf), auto[1])
    spread = np.sqrt(np.maximum(posterior.variance(1.0, 0.0), 1e-12))
    keeps = ndtr(np.log(limit_s / time_s) / spread)
    value = keeps * _gain(energy_j - best[:, None], energy_j * np.sqrt(variance))
    found: Floats = np.where(measurable & ~known, value, 0.0)
    return found


def _energy_variance(posterior: Posterior, energy_j: Floats) -> Floats:
    """Return the variance of each entry that a sample of it tells of, in J². Shape (K, C)."""
    by_kernel = posterior.by_kernel.sum(axis=0)
    known = kernel_variance(by_kernel, posterior.kernel_cov) + posterior.discrepancy.sum(axis=0)
    found: Floats = energy_j**2 * known
    return found


def _gain(behind: Floats, spread: Floats) -> Floats:
    """Return the expected gain of learning whether something behind is in fact ahead."""
    safe = np.maximum(spread, 1e-300)
    z = -behind / safe
    clipped = np.clip(z, -30.0, 30.0)
    density = np.exp(-0.5 * clipped**2) / _ROOT_2PI
    found: Floats = np.where(spread > 0, spread * (clipped * ndtr(clipped) + density), 0.0)
    return np.maximum(found, 0.0)


def initial_design(base: GpuConstants, core_mhz: Floats, mem_mhz: Floats, points: int) -> Ints:
    """Choose settings that tell most about kernels nobody has seen. Shape (points,).

    Greedy D-optimal over three kernels: bound by the core, by DRAM, and by both.

    Args:
        base: What is assumed of the GPU.
        core_mhz: Of every setting. Shape (C,).
        mem_mhz: Likewise. Shape (C,).
        points: How many.
    """
    family = Shared(base)
    top, fastest = float(core_mhz.max()), float(mem_mhz.max())
    likely = (core_mhz >= _PLAUSIBLE_CORE * top) & (mem_mhz >= _PLAUSIBLE_MEM * fastest)
    shares = np.log([[0.95, 0.3, 0.02, 0.5], [0.5, 0.9, 0.05, 0.3], [0.8, 0.75, 0.05, 0.4]])
    scale = np.array([math.log(top), math.log(fastest), 0.0, math.log(0.5 * 300.0)])
    at = Points(
        kernel=np.repeat(np.arange(3), len(core_mhz)),
        core_mhz=np.tile(core_mhz, 3),
        mem_mhz=np.tile(mem_mhz, 3),
        temperature_c=np.full(3 * len(core_mhz), 55.0),
    )
    how = family, family.start(), shares + scale, np.zeros(3, dtype=bool)
    _, by_kernel = predict(*how, at)
    by = np.concatenate([by_kernel, slopes(*how, at)], axis=-1) / _DESIGN_NOISE
    by = by.reshape(2, 3, len(core_mhz), -1)
    prior = np.concatenate([np.ones(PER_KERNEL), family.spread() ** -2.0])
    information = np.tile(np.diag(prior), (3, 1, 1))
    each = np.einsum("ckni,cknj->knij", by, by)
    picked: list[int] = []
    for _ in range(min(points, int(likely.sum()))):
        gains = np.linalg.slogdet(information[:, None] + each)[1].sum(axis=0)
        gains[~likely] = -math.inf
        gains[picked] = -math.inf
        picked.append(int(np.argmax(gains)))
        information += each[:, picked[-1]]
    return np.array(picked, dtype=np.int64)
