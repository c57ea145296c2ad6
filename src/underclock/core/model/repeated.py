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

import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Floats, Ints
from underclock.core.costs.table import CostTable, cost_table
from underclock.core.model.predicted_change import ONE_SIDED, PredictedChange, TimeVariance
from underclock.core.model.row_runs import odd_repeats, run_variances, runs_of
from underclock.core.model.smoothing import smoothed
from underclock.core.statistics.repeats import Runs, Weighed, weighed
from underclock.records import Clocks, SampleSet

_ONE_SIDE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTable:
    """Expected costs, and how unsure each is by itself.

    Attributes:
        table: Expected costs.
        variance: Of the logarithms of time and energy, ``nan`` where not measured.
            Shape (2, K, S).
    """

    table: CostTable
    variance: Floats

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change.

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        time = change_of(self.table.time_s, self.variance[0], self.table.baseline, setting)
        energy = change_of(self.table.energy_j, self.variance[1], self.table.baseline, setting)
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
        # As in `change_of`: a kernel left at auto is in both sums.
        of_entries = np.where(np.isfinite(parts), parts, 0.0) ** 2 * np.nan_to_num(variance)
        of_entries += ((ratio * parts[:, at]) ** 2 * variance[:, at])[:, None]
        of_entries[:, at] = ((1.0 - ratio) * parts[:, at]) ** 2 * variance[:, at]
        return TimeVariance(rest=0.0, of_entries=of_entries)


def change_of(costs: Floats, variance: Floats, baseline: int, setting: Ints) -> tuple[float, float]:
    """Return what a choice changes, as a fraction, and its standard deviation.

    Args:
        costs: In s or in J. Shape (K, S).
        variance: Of their logarithms, each independent. Shape (K, S).
        baseline: Index of the setting called auto.
        setting: Index of each kernel's. Shape (K,).
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
    return ratio - 1.0, math.sqrt(float(squares.sum()))


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
    auto = runs.setting == table.baseline
    for c, quantity in enumerate(runs.quantities):
        by_itself = weighed(quantity)
        mean, own = _expected(quantity, by_itself, runs.mem_mhz)
        cost = np.exp(mean) * counts[runs.kernel]
        own[auto] *= _of_sum(quantity, by_itself, np.where(auto, cost, 0.0))
        costs[c, runs.kernel, runs.setting] = cost
        variance[c, runs.kernel, runs.setting] = own
    return RepeatedTable(
        table=dataclasses.replace(
            table,
            time_s=costs[0],
            energy_j=costs[1],
            warnings=(*table.warnings, *odd_repeats(sample_set)),
        ),
        variance=variance,
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
    return RepeatedTable(table=table, variance=variance)


def _expected(runs: Runs, by_itself: Weighed, mem_mhz: Floats) -> tuple[Floats, Floats]:
    """Return the logarithm of what one run of each row is expected to take, and its variance."""
    each = np.bincount(runs.row, by_itself.weight)
    mean, variance = by_itself.mean.copy(), by_itself.scatter**2 / each
    locked = ~np.isnan(runs.log_mhz)
    for k in range(int(runs.kernel.max()) + 1):
        rows = np.flatnonzero(locked & (runs.kernel == k))
        if not len(rows):
            continue
        mine = _some_rows(runs, rows)
        expected = smoothed(mine, mem_mhz[rows], by_itself.scatter[rows])
        more, more2 = _excess(mine, expected.mean)
        mean[rows] = expected.mean + more
        variance[rows] = expected.variance + more2
    return mean, variance


def _of_sum(runs: Runs, by_itself: Weighed, cost: Floats) -> float:
    """Return by how much the variance of a sum of rows is greater than its rows' scatter says.

    The sum at auto is in every promise, and few kernels make most of it: how theirs scatter
    matters, odd runs and all. Few repeats tell that badly, hence Student's t (Welch-Satterthwaite).

    Args:
        runs: The runs.
        by_itself: What repeats say of each row.
        cost: Of each row in the sum, 0 of others. Shape (C,).
    """
    freedom = runs.taken - 1.0
    known = (freedom > 0) & (cost > 0)
    if not known.any():
        return 1.0
    usual = (cost**2 * by_itself.scatter**2)[known]
    seen = (cost**2 * np.bincount(runs.row, by_itself.off**2))[known]
    each = np.maximum(seen, usual * freedom[known]) / freedom[known]
    effective = float(each.sum()) ** 2 / float((each**2 / freedom[known]).sum())
    wider = float(stdtrit(effective, _ONE_SIDE)) / ONE_SIDED
    return max(1.0, float(seen.sum()) / float((usual * freedom[known]).sum())) * wider**2


def auto_variances(sample_set: SampleSet, table: CostTable) -> Floats:
    """Return how unsure repeats leave each kernel's time and energy at auto.

    Args:
        sample_set: Samples, of which some are repeats.
        table: Their means; only its baseline is asked for.

    Returns:
        Variances of the logarithms. Shape (2, K).
    """
    settings = tuple(dict.fromkeys(sample.asked for sample in sample_set.samples))
    runs = runs_of(sample_set, settings)
    at = np.flatnonzero(runs.setting == settings.index(table.settings[table.baseline]))
    variances = np.empty((2, len(table.kernels)))
    for c, (quantity, costs) in enumerate(
        zip(runs.quantities, (table.time_s, table.energy_j), strict=True)
    ):
        by_itself = weighed(quantity)
        cost = np.zeros(len(runs.kernel))
        cost[at] = costs[runs.kernel[at], table.baseline]
        each = by_itself.scatter**2 / np.bincount(quantity.row, by_itself.weight)
        variances[c, runs.kernel[at]] = each[at] * _of_sum(quantity, by_itself, cost)
    return variances


def _some_rows(runs: Runs, rows: Ints) -> Runs:
    """Return the runs of some rows, in ascending order, as if there were no others."""
    some = np.isin(runs.row, rows)
    return Runs(
        log=runs.log[some],
        row=np.searchsorted(rows, runs.row[some]),
        kernel=runs.kernel[rows],
        log_mhz=runs.log_mhz[rows],
    )


def _excess(runs: Runs, mean: Floats) -> tuple[float, float]:
    """Return by how much runs take more on average than the usual one does, and the variance.

    Odd runs take more time and energy, hardly ever less: where they are frequent, they are part of
    what a kernel costs. One that came once tells nothing of that, and its error shrinks it away.
    """
    beyond = np.expm1(runs.log - mean[runs.row])
    average = float(beyond.mean())
    error2 = float(beyond.var()) / len(beyond)
    part = max(0.0, 1.0 - error2 / max(average**2, 1e-300))
    return math.log1p(part * average), part * error2
