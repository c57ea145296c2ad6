"""What a choice of clocks is expected to change, and how sure that is.

The clocks are chosen on expected costs and judged on the same posterior. That is no winner's curse
as long as the posterior is honest: it already shrinks every measurement towards what all others
say, so the least of many entries is not low by luck of its own noise.

Shape letters: K kernels, C settings.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from underclock.arrays import Floats, Ints
from underclock.core.model.posterior import Posterior, kernel_variance

ONE_SIDED = 1.645  # 95 % of a normal distribution lies below this many deviations
TWO_SIDED = 1.960  # and within this many

_SURE = 0.95
WITHIN = (0.025, 0.975)
STANDARD = ndtri((np.arange(64) + 0.5) / 64)  # a normal distribution in equal parts

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What auto costs.

    Attributes:
        time_s: Of the step, all launches. Shape (K,).
        energy_j: Energy in J of the step, all launches. Shape (K,).
        spread: Standard deviations of the sums, as fractions of them: time, energy.
        of_kernels: Standard deviations of each kernel's part, as fractions of it. Shape (2, K).
        beside_j: Part of the energy that no setting changes. Shape (K,); ``None`` where there is
            none.
    """

    time_s: Floats
    energy_j: Floats
    spread: tuple[float, float]
    of_kernels: Floats
    beside_j: Floats | None = None

    @property
    def own_j(self) -> Floats:
        """Energy in J that settings change. Shape (K,)."""
        return self.energy_j if self.beside_j is None else self.energy_j - self.beside_j


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedChange:
    """Expected changes against auto, as fractions, and their standard deviations.

    Attributes:
        uneven: The 95 % intervals about the changes of time and energy, where draws differ more to
            one side; then deviations are those of a normal distribution with as much beyond 95 %.
    """

    time_change: float
    energy_change: float
    time_spread: float
    energy_spread: float
    uneven: tuple[Interval, Interval] | None = None

    @property
    def intervals(self) -> tuple[Interval, Interval]:
        """The 95 % intervals about the changes of time and energy."""
        if self.uneven is not None:
            return self.uneven
        time, energy = TWO_SIDED * self.time_spread, TWO_SIDED * self.energy_spread
        return (-time, time), (-energy, energy)

    def among(self, away: Floats) -> "PredictedChange":
        """Return what is known where what nobody knows surely was drawn.

        Args:
            away: How far changes of time and energy in draws are from those expected. Shape (D, 2).
        """
        known = np.array([self.time_spread, self.energy_spread])
        each = (away + known * STANDARD[:, None, None]).reshape(-1, 2)
        low, high = np.quantile(each, WITHIN, axis=0)
        intervals = tuple(zip(low.tolist(), high.tolist(), strict=True))
        return dataclasses.replace(
            self,
            time_spread=max(0.0, float(np.quantile(each[:, 0], _SURE))) / ONE_SIDED,
            energy_spread=float(np.abs([low, high])[:, 1].max()) / TWO_SIDED,
            uneven=(intervals[0], intervals[1]),
        )


def predicted_change(
    posterior: Posterior, counts: Floats, baseline: Baseline, columns: Ints
) -> PredictedChange:
    """Say what a choice changes: of kernels launched so often, a setting each, or -1 for auto."""
    locked = np.flatnonzero(columns >= 0)
    pairs = np.stack([locked, columns[locked]])
    return scheduled_change(posterior, baseline, pairs, counts[locked])


def scheduled_change(
    posterior: Posterior, baseline: Baseline, pairs: Ints, launches: Floats
) -> PredictedChange:
    """Say what locked launches change; kernels without any are left at auto.

    Args:
        pairs: Kernel and setting of launches that are alike. Shape (2, N).
        launches: How many of each. Shape (N,).
    """
    kernels, at = pairs
    locked = np.unique(kernels)
    log_s, log_w = posterior.log_s[kernels, at], posterior.log_w[kernels, at]
    nothing = np.zeros_like(baseline.time_s)
    beside_j = nothing if baseline.beside_j is None else baseline.beside_j
    parts = (
        (baseline.time_s, nothing, np.exp(log_s) * launches, np.array([1.0, 0.0])),
        (baseline.energy_j, beside_j, np.exp(log_s + log_w) * launches, np.array([1.0, 1.0])),
    )
    changes, spreads = [], []
    for (auto, beside, costs, powers), auto_spread, own in zip(
        parts, baseline.spread, baseline.of_kernels, strict=True
    ):
        total = math.fsum(auto)
        share = math.fsum(costs) / total
        kept = (math.fsum(np.delete(auto, locked)) + math.fsum(beside[locked])) / total
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeVariance:
    """The variance of a choice's change of time, as a sum over its kernels.

    Exact of the choice that it was made around, and of no other greater than it is there, but for
    what hardly moves: how much of auto the choice leaves as it is. What kernels share makes the
    variance a square of a sum; a tangent stands for it.

    Attributes:
        of_entries: What each kernel at each setting adds, auto last; may be negative, where an
            error makes up for another's. Shape (K, C + 1).
    """

    rest: float
    of_entries: Floats


def time_variance(
    posterior: Posterior, counts: Floats, baseline: Baseline, columns: Ints, variance: float
) -> TimeVariance:
    """Share the variance of a choice's change of time out among kernels.

    Args:
        counts: Launches of each kernel. Shape (K,).
        columns: Setting of each kernel in the choice to share out; -1 is auto. Shape (K,).
    """
    every, locked = np.arange(len(columns)), columns >= 0
    auto = baseline.time_s / math.fsum(baseline.time_s)
    parts = np.exp(posterior.log_s) * counts[:, None] / math.fsum(baseline.time_s)
    moves = posterior.derivatives(1.0, 0.0)
    own = parts**2 * (moves.own + kernel_variance(moves.by_kernel, posterior.kernel_cov))
    by_shared = parts[..., None] * moves.by_shared
    here = by_shared[every, columns][locked].sum(axis=0)
    tangent = 2.0 * np.einsum("kcs,st,t->kc", by_shared, posterior.shared_cov, here, optimize=True)
    # As in `scheduled_change`: an error in one part of auto is an opposite one in the others.
    kept = math.fsum(auto[~locked])
    parted = (auto * baseline.of_kernels[0]) ** 2
    of_entries = np.column_stack(
        [own + tangent + (kept**2 * parted)[:, None], (1.0 - kept) ** 2 * parted]
    )
    return TimeVariance(
        rest=variance - math.fsum(of_entries[every, columns]), of_entries=of_entries
    )
