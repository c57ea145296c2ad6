"""What kernels cost at auto: as few runs say, and as the fastest locked clocks do.

Auto is one row of each kernel and is in every promise. A kernel whose runs there happened to be
dear seems to gain by any lock, one whose runs were cheap is left alone, so a plan on runs of auto
by themselves promises too much (the winner's curse). Left to itself a GPU runs about as it does at
the fastest lock, which many rows tell; how like that auto is, and how far kernels differ in it, all
kernels say together.

Shape letters: K kernels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import ONE_SIDED, Baseline
from underclock.core.model.row_runs import runs_of
from underclock.core.statistics.repeats import OF_USUAL, Runs, Weighed, weighed
from underclock.core.step.overlap import waited_counts
from underclock.records import Clocks, SampleSet

_ONE_SIDE = 0.95
# How far kernels mostly differ, as runs of one scatter, kernels that is worth, and deviations up to
# which one of them counts.
_USUAL, _OF_USUAL, _BOUND = 0.5, 2.0, 4.0
_ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRuns:
    """What runs at auto by themselves say of one quantity.

    Attributes:
        log: Logarithm of each kernel's mean, odd runs and all, as they are part of what auto
            costs. Shape (K,).
        variance: Of that. Shape (K,).
        run_variance: Of one run. Shape (K,).
        counts: Launches of each kernel. Shape (K,).
        spread: Standard deviation of the sum over kernels, as a fraction of it.
    """

    log: Floats
    variance: Floats
    run_variance: Floats
    counts: Floats
    spread: float

    @classmethod
    def of(
        cls,
        runs: Runs,
        by_itself: Weighed,
        auto: Bools,
        counts: Floats,
        run_variance: Floats | None = None,
    ) -> "AutoRuns":
        """Return what the rows at auto say.

        Args:
            runs: Of a table.
            by_itself: What repeats say of each row.
            auto: Which rows are at auto, one of each kernel. Shape (C,).
            counts: Launches of each kernel. Shape (K,).
            run_variance: Of one run of each kernel, as far as others than repeats tell. Shape (K,).
        """
        rows = np.flatnonzero(auto)
        rows = rows[np.argsort(runs.kernel[rows])]
        plain = np.bincount(runs.row, np.exp(runs.log)) / runs.taken
        costs = np.where(auto, plain * counts[runs.kernel], 0.0)
        scatter2 = by_itself.scatter**2
        if run_variance is not None:
            # Few repeats may agree by luck; rows that were run once show then how runs scatter.
            scatter2 = np.maximum(scatter2, run_variance[runs.kernel])
        each = _of_sum(runs, by_itself, costs, scatter2) * scatter2 / runs.taken
        return cls(
            log=np.log(plain[rows]),
            variance=each[rows],
            run_variance=scatter2[rows],
            counts=counts,
            spread=math.sqrt(float((costs**2 * each).sum())) / math.fsum(costs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCosts:
    """What auto is expected to cost.

    Attributes:
        cost: Of each kernel, all launches. Shape (K,).
        variance: Of its logarithm, for each kernel's part of the sum. Shape (K,).
        spread: Standard deviation of the sum, as a fraction of it.
    """

    cost: Floats
    variance: Floats
    spread: float

    @property
    def common(self) -> float:
        """Variance of the sum beyond what errors of kernels make of it."""
        parts = self.cost / math.fsum(self.cost)
        return max(0.0, self.spread**2 - float((parts**2 * self.variance).sum()))


def auto_costs(runs: AutoRuns, lock: Floats, lock_variance: Floats) -> AutoCosts:
    """Return what kernels cost at auto, each drawn to its fastest lock, the sum as measured.

    Args:
        runs: What runs at auto say.
        lock: Logarithm of what a launch of each kernel is expected to cost at its fastest lock;
            ``nan`` where it has none. Shape (K,).
        lock_variance: Of that. Shape (K,).
    """
    log, variance = runs.log.copy(), runs.variance.copy()
    some = np.isfinite(lock)
    if some.any():
        log[some], variance[some] = drawn_to_locks(
            log[some], variance[some], lock[some], lock_variance[some], runs.run_variance[some]
        )
    cost = np.exp(log) * runs.counts
    # Which kernel was dear by luck matters to a plan; the sum is what was measured.
    cost *= math.fsum(np.exp(runs.log) * runs.counts) / math.fsum(cost)
    return AutoCosts(cost=cost, variance=variance, spread=runs.spread)


def fastest_locks(known: Bools, settings: Sequence[Clocks]) -> Ints:
    """Return which setting is each kernel's fastest locked one; -1 where it has none. Shape (K,).

    Args:
        known: Which settings each kernel has. Shape (K, S).
        settings: From slow to fast. Length S.
    """
    locked = known & np.array([clocks.core_mhz is not None for clocks in settings], dtype=bool)
    last: Ints = np.where(
        locked.any(axis=1), len(settings) - 1 - locked[:, ::-1].argmax(axis=1), -1
    )
    return last


def _of_sum(runs: Runs, by_itself: Weighed, cost: Floats, scatter2: Floats) -> float:
    """Return by how much the variance of a sum of rows is greater than its rows' scatter says.

    The sum at auto is in every promise, and few kernels make most of it: how theirs scatter
    matters, odd runs and all. Few repeats tell that badly, hence Student's t (Welch-Satterthwaite).
    Where none of the rows was repeated, other rows of their kernels tell how they scatter.

    Args:
        runs: The runs.
        by_itself: What repeats say of each row.
        cost: Of each row in the sum, 0 of others. Shape (C,).
        scatter2: Variance of a run of each row. Shape (C,).
    """
    freedom = runs.taken - 1.0
    in_sum = cost > 0
    usual = cost**2 * scatter2
    known = (freedom > 0) & in_sum
    if not known.any():
        of_kernel = np.bincount(runs.kernel, freedom).astype(np.float64)[runs.kernel] + OF_USUAL
        return _for_freedom(usual[in_sum], of_kernel[in_sum])
    usual, freedom = usual[known], freedom[known]
    seen = (cost**2 * np.bincount(runs.row, by_itself.off**2))[known]
    each: Floats = np.maximum(seen, usual * freedom) / freedom
    more = float(seen.sum()) / float((usual * freedom).sum())
    return max(1.0, more) * _for_freedom(each, freedom)


def _for_freedom(variance: Floats, freedom: Floats) -> float:
    """Return by how much the variance of a sum is greater for how badly its parts' are known.

    Args:
        variance: Of each part.
        freedom: Degrees of freedom that it is known by.
    """
    effective = float(variance.sum()) ** 2 / float((variance**2 / freedom).sum())
    return (float(stdtrit(effective, _ONE_SIDE)) / ONE_SIDED) ** 2


def drawn_to_locks(
    auto: Floats, auto_variance: Floats, lock: Floats, lock_variance: Floats, run_variance: Floats
) -> tuple[Floats, Floats]:
    """Return what auto is expected to cost, and the variance of that. Each of shape (K,).

    Kernels whose runs scatter more also differ more in how like the lock auto is.

    Args:
        auto: Logarithm of the mean of each kernel's runs there.
        auto_variance: Of that mean.
        lock: Logarithm of what its fastest locked clocks are expected to cost.
        lock_variance: Of that.
        run_variance: Of one run at auto.
    """
    apart, noise2 = auto - lock, auto_variance + lock_variance
    ratio2 = _USUAL**2
    for _ in range(_ROUNDS):
        own2 = ratio2 * run_variance
        precision = 1.0 / (own2 + noise2)
        middle = float((precision * apart).sum() / precision.sum())
        believed = own2 * precision
        expected2 = (believed * (apart - middle)) ** 2 + believed * noise2
        squares = np.minimum(expected2 / run_variance, _BOUND**2 * ratio2)
        ratio2 = (float(squares.sum()) + _OF_USUAL * _USUAL**2) / (len(apart) + _OF_USUAL)
    own2 = ratio2 * run_variance + lock_variance
    believed = own2 / (own2 + auto_variance)
    of_middle = 1.0 / float((1.0 / (own2 + auto_variance)).sum())
    mean: Floats = lock + middle + believed * (apart - middle)
    variance: Floats = believed * auto_variance + (1.0 - believed) ** 2 * of_middle
    return mean, variance


def auto_of_runs(sample_set: SampleSet, posterior: Posterior, auto: Clocks) -> Baseline:
    """Return what auto costs, as its runs say and the fit at the fastest lock.

    For samples of which too few are repeats to tell by themselves how runs scatter.

    Args:
        sample_set: With runs of every kernel at auto.
        posterior: What the fit says.
        auto: Without a lock of the core clock.
    """
    runs = runs_of(sample_set, (*posterior.settings, auto))
    counts = waited_counts(sample_set.kernels)
    at_auto = runs.setting == len(posterior.settings)
    lock = fastest_locks(np.isfinite(posterior.log_s), posterior.settings)
    every, is_there = np.arange(len(lock)), lock >= 0
    costs = []
    for quantity, log, variance, noise2 in zip(
        runs.quantities,
        (posterior.log_s, posterior.log_s + posterior.log_w),
        (posterior.variance(1.0, 0.0), posterior.variance(1.0, 1.0)),
        np.cumsum(posterior.noise**2, axis=0),
        strict=True,
    ):
        told = AutoRuns.of(quantity, weighed(quantity), at_auto, counts, noise2)
        at_lock, of_lock = log[every, lock], variance[every, lock]
        costs.append(
            auto_costs(
                told, np.where(is_there, at_lock, np.nan), np.where(is_there, of_lock, np.nan)
            )
        )
    time, energy = costs
    return Baseline(
        time_s=time.cost,
        energy_j=energy.cost,
        spread=(time.spread, energy.spread),
        of_kernels=np.sqrt(np.stack([time.variance, energy.variance])),
    )
