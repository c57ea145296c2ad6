"""What a choice of clocks is expected to change, and how sure that is.

The clocks are chosen on expected costs and judged on the same posterior. That is no winner's curse
as long as the posterior is honest: it already shrinks every measurement towards what all others
say, so the least of many entries is not low by luck of its own noise.

Shape letters: K kernels, C settings.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.posterior import Posterior

ONE_SIDED = 1.645  # 95 % of a normal distribution lies below this many deviations
TWO_SIDED = 1.960  # and within this many


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What auto costs.

    Attributes:
        time_s: Of the step, all launches. Shape (K,).
        energy_j: Energy in J of the step, all launches. Shape (K,).
        spread: Standard deviations of the sums, as fractions of them: time, energy.
        of_kernels: Standard deviations of each kernel's part, as fractions of it. Shape (2, K).
    """

    time_s: Floats
    energy_j: Floats
    spread: tuple[float, float]
    of_kernels: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedChange:
    """Expected changes against auto, as fractions, and their standard deviations."""

    time_change: float
    energy_change: float
    time_spread: float
    energy_spread: float


def predicted_change(
    posterior: Posterior, counts: Floats, baseline: Baseline, columns: Ints
) -> PredictedChange:
    """Say what a choice is expected to change.

    Args:
        posterior: Costs of one launch.
        counts: Launches of each kernel. Shape (K,).
        baseline: What auto costs.
        columns: Setting of each kernel; -1 is auto. Shape (K,).
    """
    locked = np.flatnonzero(columns >= 0)
    pairs = np.stack([locked, columns[locked]])
    return scheduled_change(posterior, baseline, pairs, counts[locked])


def scheduled_change(
    posterior: Posterior, baseline: Baseline, pairs: Ints, launches: Floats
) -> PredictedChange:
    """Say what locked launches are expected to change; kernels without any are left at auto.

    Args:
        posterior: Costs of one launch.
        baseline: What auto costs.
        pairs: Kernel and setting of launches that are alike. Shape (2, N).
        launches: How many of each. Shape (N,).
    """
    kernels, at = pairs
    locked = np.unique(kernels)
    log_s, log_w = posterior.log_s[kernels, at], posterior.log_w[kernels, at]
    parts = (
        (baseline.time_s, np.exp(log_s) * launches, np.array([1.0, 0.0])),
        (baseline.energy_j, np.exp(log_s + log_w) * launches, np.array([1.0, 1.0])),
    )
    changes, spreads = [], []
    for (auto, costs, powers), auto_spread, own in zip(
        parts, baseline.spread, baseline.of_kernels, strict=True
    ):
        total = math.fsum(auto)
        share = math.fsum(costs) / total
        kept = math.fsum(np.delete(auto, locked)) / total
        # The parts add up to the whole step, so an error in one is an opposite one in the others.
        moves = np.full(len(auto), 1.0 - kept)
        moves[locked] = -kept
        parted = float(((moves * own * auto / total) ** 2).sum())
        moved = posterior.sum_variance(kernels, at, powers[:, None] * costs / total)
        changes.append(share + kept - 1.0)
        spreads.append(math.sqrt(moved.variance + (share * auto_spread) ** 2 + parted))
    return PredictedChange(
        time_change=changes[0],
        energy_change=changes[1],
        time_spread=spreads[0],
        energy_spread=spreads[1],
    )
