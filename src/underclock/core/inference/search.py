"""A table of which only some rows were looked at, for who chooses the next ones.

Where a row is all there is to know, those that were looked at are certain, and only they are
planned.

Shape letters: K kernels, C settings, the baseline last.
"""

import dataclasses
import math

import numpy as np

from underclock.arrays import Floats
from underclock.core.inference.field import Errors
from underclock.core.inference.joint import JointCosts, TableFit
from underclock.core.inference.table import Inferred, InferredTable, costed
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import Baseline
from underclock.core.step.table import CostTable, cost_table, waited_counts
from underclock.records import Clocks, SampleSet

_ANEW = 1.3  # times the rows that sizes were learned from


def searched(
    sample_set: SampleSet, *, baseline: Clocks | None = None, before: TableFit | None = None
) -> TableFit:
    """Return what some rows of a table say.

    Args:
        baseline: The setting to call auto; as for `cost_table`.
        before: What fewer of its rows said: how large parts are is learned anew when there are
            some more.
    """
    count = len(sample_set.samples)
    keep = before is not None and count < _ANEW * before.learned_from
    known = InferredTable.of(sample_set, baseline, before.sizes if before and keep else None)
    costs = costed(known.table, known.told, known.seen, known.offered)
    looked_at = None
    if sample_set.is_exact:
        costs = _as_looked_at(costs.table, cost_table(sample_set, baseline=baseline))
        looked_at = known.logs
    table = costs.table
    return TableFit(
        table=table,
        time=costs.time,
        energy=costs.energy,
        wider=costs.wider,
        posterior=_posterior(known.told, table, looked_at),
        counts=waited_counts(table.kernels),
        baseline=_baseline(costs),
        measurable=np.delete(known.offered, table.baseline, axis=1),
        exact=sample_set.is_exact,
        sizes=known.told.sizes,
        learned_from=before.learned_from if before and keep else count,
    )


def _posterior(told: Inferred, table: CostTable, looked_at: Floats | None) -> Posterior:
    """Return what is told of a launch at every setting but the baseline."""
    time, energy = told.of_sums
    log = np.stack([told.time.mean, told.power.mean])
    noise = np.tile([[each.run] for each in told.sizes], (1, log.shape[1]))
    # Errors of power are those of energy less those of time.
    by_kernel = np.stack(
        [
            np.concatenate([time.own, np.zeros_like(energy.own)], axis=-1),
            np.concatenate([-time.own, energy.own], axis=-1),
        ]
    )
    of_power = energy.shared.shape[-1] - time.shared.shape[-1]
    of_time = np.pad(time.shared, ((0, 0), (0, 0), (0, of_power)))
    by_shared = np.stack([of_time, energy.shared - of_time])
    rest = np.stack([time.rest, np.maximum(energy.rest - time.rest, 0.0)])
    open_ = np.ones(log[0].shape)
    if looked_at is not None:
        seen = np.isfinite(looked_at[0])
        log, open_ = np.where(seen, looked_at, log), np.where(seen, 0.0, 1.0)
        rest = rest + noise[:, :, None] ** 2
    locked = np.delete(np.arange(len(table.settings)), table.baseline)
    return Posterior(
        settings=tuple(table.settings[c] for c in locked),
        log_s=log[0][:, locked],
        log_w=log[1][:, locked],
        by_shared=(by_shared * open_[..., None])[:, :, locked],
        by_kernel=(by_kernel * open_[..., None])[:, :, locked],
        discrepancy=(rest * open_)[:, :, locked],
        shared_cov=np.eye(by_shared.shape[-1]),
        kernel_cov=np.tile(np.eye(by_kernel.shape[-1]), (log.shape[1], 1, 1)),
        noise=noise,
    )


def _baseline(costs: JointCosts) -> Baseline:
    """Return what auto costs, each kernel's error its own."""
    at = costs.table.baseline
    auto = costs.table.time_s[:, at], costs.table.energy_j[:, at]
    variances = np.stack([each.variance[:, at] for each in (costs.time, costs.energy)])
    time, energy = (
        math.sqrt(float((variance * (each / each.sum()) ** 2).sum()))
        for variance, each in zip(variances, auto, strict=True)
    )
    return Baseline(
        time_s=auto[0],
        energy_j=auto[1],
        spread=(time, energy),
        of_kernels=np.sqrt(variances),
        beside_j=costs.table.fixed_j,
    )


def _as_looked_at(table: CostTable, measured: CostTable) -> JointCosts:
    """Return costs that are certain where a row was looked at, and unknown elsewhere."""
    columns = [table.settings.index(clocks) for clocks in measured.settings]
    time_s, energy_j = np.full((2, *table.time_s.shape), np.inf)
    time_s[:, columns], energy_j[:, columns] = measured.time_s, measured.energy_j
    nothing = np.zeros((*time_s.shape, 0))
    sure = Errors(own=nothing, shared=nothing, rest=np.zeros(time_s.shape))
    looked_at = dataclasses.replace(table, time_s=time_s, energy_j=energy_j)
    return JointCosts(table=looked_at, time=sure, energy=sure)
