"""A table with repeats, as a sample of the GPU: what each row is expected to cost, and how surely.

Of many noisy rows the cheapest was lucky. So each is drawn towards what rows at like clocks say, as
far as its own runs leave open, and a plan's promise and its time budget know what is left. No
physics is fitted: a row is believed where its runs agree.

Shape letters: K kernels, S settings, N runs, C rows (a kernel at a setting); a leading 2 is time
and energy.
"""

import dataclasses
import math
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.costs.beside import at_any_clocks, waited_counts, waited_shares
from underclock.core.costs.table import CostTable, cost_table
from underclock.core.model.auto_costs import AutoRuns, auto_costs, fastest_locks
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import Baseline, PredictedChange, TimeVariance
from underclock.core.model.row_runs import odd_repeats, run_variances, runs_of
from underclock.core.model.smoothing import smoothed
from underclock.core.statistics.repeats import Runs, Weighed, excess, weighed
from underclock.records import Clocks, SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTable:
    """Expected costs, and how unsure each is by itself.

    Attributes:
        table: Expected costs.
        variance: Of the logarithms of time and energy, ``nan`` where not measured.
            Shape (2, K, S).
        common: Variance that all kernels at auto have in common: time, energy.
    """

    table: CostTable
    variance: Floats
    common: tuple[float, float] = (0.0, 0.0)

    @property
    def auto(self) -> Baseline:
        """What auto costs, and how sure that is."""
        at = self.table.baseline
        costs = self.table.time_s[:, at], self.table.energy_j[:, at]
        variance = self.variance[:, :, at]
        time, energy = (
            math.sqrt(common + float((own * (cost / math.fsum(cost)) ** 2).sum()))
            for common, own, cost in zip(self.common, variance, costs, strict=True)
        )
        return Baseline(
            time_s=costs[0],
            energy_j=costs[1],
            spread=(time, energy),
            of_kernels=np.sqrt(variance),
            beside_j=self.table.beside_j,
        )

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change.

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        at = self.table.baseline
        time, energy = (
            _change(costs, variance, at, setting, common)
            for costs, variance, common in zip(
                (self.table.time_s, self.table.energy_j), self.variance, self.common, strict=True
            )
        )
        return PredictedChange(
            time_change=time[0],
            time_spread=time[1],
            energy_change=energy[0],
            energy_spread=energy[1],
        )

    def time_variance(self, setting: Ints) -> TimeVariance:
        """Share the variance of a choice's change of time out among kernels.

        Args:
            setting: As of `predicted_change`.
        """
        kernels, at = np.arange(len(setting)), self.table.baseline
        auto_s, variance = self.table.time_s[:, at], self.variance[0]
        parts = self.table.time_s / math.fsum(auto_s)
        ratio = math.fsum(parts[kernels, setting])
        # As in `_change`: a kernel left at auto is in both sums.
        of_entries = np.where(np.isfinite(parts), parts, 0.0) ** 2 * np.nan_to_num(variance)
        of_entries += ((ratio * parts[:, at]) ** 2 * variance[:, at])[:, None]
        of_entries[:, at] = ((1.0 - ratio) * parts[:, at]) ** 2 * variance[:, at]
        # How much of auto the choice leaves as it is hardly moves.
        moved = math.fsum(parts[kernels, setting][setting != at])
        return TimeVariance(rest=moved**2 * self.common[0], of_entries=of_entries)


def _change(
    costs: Floats, variance: Floats, baseline: int, setting: Ints, common: float
) -> tuple[float, float]:
    """Return what a choice changes, as a fraction, and its standard deviation.

    Args:
        costs: In s or in J. Shape (K, S).
        variance: Of their logarithms, each independent. Shape (K, S).
        baseline: Index of the setting called auto.
        setting: Index of each kernel's. Shape (K,).
        common: Variance that all costs at auto have in common.
    """
    kernels = np.arange(len(setting))
    auto, chosen = costs[:, baseline], costs[kernels, setting]
    total = math.fsum(auto)
    ratio = math.fsum(chosen) / total
    moved = setting != baseline
    # A kernel left at auto is in both sums, and an error of it nearly cancels.
    by_auto = (np.where(moved, 0.0, 1.0) - ratio) * auto / total
    by_choice = np.where(moved, chosen / total, 0.0)
    squares = by_auto**2 * variance[:, baseline] + by_choice**2 * variance[kernels, setting]
    shared = common * math.fsum(by_choice) ** 2
    return ratio - 1.0, math.sqrt(float(squares.sum()) + shared)


def repeated_table(sample_set: SampleSet, *, baseline: Clocks | None = None) -> RepeatedTable:
    """Return what a table with repeats says of every row.

    Args:
        sample_set: Samples, of which some are repeats.
        baseline: The setting to call auto; as for `cost_table`.

    Raises:
        DataError: The samples cannot be costed.
    """
    table = cost_table(sample_set, baseline=baseline)
    runs = runs_of(sample_set, table.settings)
    costs = np.full((2, *table.time_s.shape), math.inf)
    variance = np.full(costs.shape, math.nan)
    counts = np.array([kernel.count for kernel in table.kernels], dtype=np.float64)
    common = [0.0, 0.0]
    for c, quantity in enumerate(runs.quantities):
        by_itself = weighed(quantity)
        mean, own = _expected(quantity, by_itself, runs.mem_mhz)
        costs[c, runs.kernel, runs.setting] = np.exp(mean) * counts[runs.kernel]
        variance[c, runs.kernel, runs.setting] = own
        if table.settings[table.baseline].core_mhz is None:
            lock = fastest_locks(np.isfinite(costs[c]), table.settings)
            every = np.arange(len(lock))
            auto = auto_costs(
                AutoRuns.of(quantity, by_itself, runs.setting == table.baseline, counts),
                np.where(lock < 0, np.nan, np.log(costs[c][every, lock] / counts)),
                np.where(lock < 0, np.nan, variance[c][every, lock]),
            )
            costs[c, :, table.baseline] = auto.cost
            variance[c, :, table.baseline] = auto.variance
            common[c] = auto.common
    costs *= waited_shares(table.kernels)[:, None]
    time_s, energy_j = (at_any_clocks(table.kernels, each, table.baseline) for each in costs)
    return RepeatedTable(
        table=dataclasses.replace(
            table,
            time_s=time_s,
            energy_j=energy_j + table.fixed_j[:, None],
            warnings=(*table.warnings, *odd_repeats(sample_set)),
        ),
        variance=_at_any_clocks(table, variance),
        common=(common[0], common[1]),
    )


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


def as_measured(
    sample_set: SampleSet, variances: Floats | None = None, *, baseline: Clocks | None = None
) -> RepeatedTable:
    """Return a table as it was measured, no row drawn towards others, and how unsure means are.

    Args:
        sample_set: Samples, of which some are repeats.
        variances: Of the logarithms of each sample's time and energy; by default as its own
            repeats tell. Shape (2, N).
        baseline: The setting to call auto; as for `cost_table`.

    Raises:
        DataError: The samples cannot be costed.
    """
    table = cost_table(sample_set, baseline=baseline)
    runs = runs_of(sample_set, table.settings)
    each = run_variances(sample_set) if variances is None else variances
    variance = np.full((2, *table.time_s.shape), math.nan)
    for c, quantity in enumerate(runs.quantities):
        sums = np.bincount(quantity.row, each[c])
        variance[c, runs.kernel, runs.setting] = sums / quantity.taken**2
    return RepeatedTable(table=table, variance=_at_any_clocks(table, variance))


def _at_any_clocks(table: CostTable, variance: Floats) -> Floats:
    """Return variances, those of kernels beside others known wherever their costs are."""
    return np.stack([at_any_clocks(table.kernels, each, table.baseline) for each in variance])


def _expected(runs: Runs, by_itself: Weighed, mem_mhz: Floats) -> tuple[Floats, Floats]:
    """Return the logarithm of what one run of each row is expected to take, and its variance."""
    each = np.bincount(runs.row, by_itself.weight)
    mean, variance = by_itself.mean.copy(), by_itself.scatter**2 / each
    locked = ~np.isnan(runs.log_mhz)
    for rows in runs.locked_rows():
        expected = smoothed(runs.some(rows), mem_mhz[rows], by_itself.scatter[rows])
        mean[rows], variance[rows] = expected.mean, expected.variance
    mean[locked] += np.log1p(excess(runs, mean))[locked]
    return mean, variance


def with_excess(posterior: Posterior, sample_set: SampleSet) -> Posterior:
    """Return a posterior of what runs take on average, where that of the fit is of the usual one.

    Args:
        posterior: What the fit says, odd runs weighed down.
        sample_set: Samples, of which some are repeats.
    """
    place = {clocks: c for c, clocks in enumerate(posterior.settings)}
    locked = tuple(sample for sample in sample_set.samples if sample.asked in place)
    runs = runs_of(msgspec.structs.replace(sample_set, samples=locked), posterior.settings)
    at = runs.kernel, runs.setting
    more = []
    for quantity, log in zip(
        runs.quantities, (posterior.log_s, posterior.log_s + posterior.log_w), strict=True
    ):
        each = np.log1p(excess(quantity, log[at]))
        rows = np.bincount(runs.kernel, minlength=len(log))
        of_kernel = np.bincount(runs.kernel, each, len(log)) / np.maximum(rows, 1)
        more.append(np.tile(of_kernel[:, None], (1, log.shape[1])))
        more[-1][at] = each
    time, energy = more
    return dataclasses.replace(
        posterior, log_s=posterior.log_s + time, log_w=posterior.log_w + energy - time
    )
