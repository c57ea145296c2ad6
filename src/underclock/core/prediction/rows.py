"""Rows at other clocks: what they leave of draws, by the Gaussian model of `core.inference`.

The draws' own moments are its covariances: what kernels of one drawn GPU have in common, and what
each has of its own. How large both are is learned from the rows, so that rows which the prior did
not expect widen it, for kernels without such a row as well.

Shape letters: D draws, K kernels, S settings.
"""

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.inference.curves import ClockGrid, Curves
from underclock.core.inference.field import Field
from underclock.core.inference.runs import RunLogs, first_weights, mean_rows, scatter_within
from underclock.core.inference.sizes import likeliest
from underclock.core.prediction.draws import CostDraws
from underclock.physics.constants import GpuConstants
from underclock.records import Clocks, SampleSet

# Of deviations that are drawn of kernels without a row elsewhere: rows of others may show that they
# are wider, and never that they are less, for the rest may be of another kind.
_WIDER = (1.0, 2.0)


def given_rows(
    drawn: CostDraws,
    sample_set: SampleSet,
    settings: tuple[Clocks, ...],
    baseline: int,
    *,
    gpu: GpuConstants,
    seed: int,
) -> CostDraws:
    """Return draws as rows at other clocks leave them; as they are where there are none.

    Args:
        sample_set: Samples of every kernel at the baseline, and of some elsewhere.
        settings: Length S.
        gpu: What is known of it: its fastest clocks are those that auto stands for.
    """
    runs = _run_logs(sample_set, settings, baseline)
    away = np.zeros(runs.kernels, dtype=bool)
    away[runs.kernel[runs.setting != baseline]] = True
    if not away.any():
        return drawn
    random, grid = np.random.default_rng([seed, 2]), _grid(settings, gpu)
    logs = np.log(drawn.time), np.log(drawn.energy / drawn.time)
    log_s, log_w = (
        _given(each, _field(each, runs, quantity, grid), away, random)
        for quantity, each in enumerate(logs)
    )
    # No slower clock is faster: where a draw of many errors said so, a plan would seek it out.
    for mem in np.unique(grid.mem):
        same = np.flatnonzero(grid.mem == mem)
        falling = same[np.argsort(-grid.core[same], kind="stable")]
        log_s[:, :, falling] = np.maximum.accumulate(log_s[:, :, falling], axis=2)
    return CostDraws(time=np.exp(log_s), energy=np.exp(log_s + log_w))


def _field(logs: Floats, runs: RunLogs, quantity: int, grid: ClockGrid) -> Field:
    """Return the field of time (0) or power (1) of rows, about the mean of draws (D, K, S)."""
    mean = logs.mean(axis=0)
    moments = Curves.of(logs - mean)
    curves = Curves(mean=np.zeros(len(grid.core)), shared=moments.shared, own=moments.own)
    about = RunLogs(
        kernel=runs.kernel,
        setting=runs.setting,
        log=runs.log - mean[runs.kernel, runs.setting],
        kernels=runs.kernels,
    )
    weights = first_weights(about)
    rows = mean_rows(about, weights, quantity)
    return Field(
        curves, grid, rows, likeliest(curves, grid, rows, scatter_within(about, weights, quantity))
    )


def _given(logs: Floats, field: Field, away: Bools, random: np.random.Generator) -> Floats:
    """Draw one quantity anew, of kernels with rows away from the baseline and without. (D, K, S).

    Without, deviations are those of its draws, with the bends that physics has, about the mean that
    rows of others leave.
    """
    told, mean = field.predicted(), logs.mean(axis=0)
    shared, own = told.errors.shared, told.errors.own
    common = shared @ random.standard_normal((shared.shape[2], len(logs)))
    spread = random.standard_normal((len(logs), len(mean), own.shape[2]))
    alone = np.einsum("kcp,dkp->dkc", own, spread, optimize=True)
    alone += np.sqrt(told.errors.rest) * random.standard_normal(alone.shape)
    alone += common.transpose(2, 0, 1)
    physical = (logs - mean) * np.clip(field.sizes.own, *_WIDER)
    own_part = np.where(away[:, None], alone, physical)
    given: Floats = mean + told.mean + own_part
    return given


def _run_logs(sample_set: SampleSet, settings: tuple[Clocks, ...], baseline: int) -> RunLogs:
    """Return samples at these settings, over what each kernel cost at the baseline."""
    place = {clocks: s for s, clocks in enumerate(settings)}
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    samples = [sample for sample in sample_set.samples if sample.asked in place]
    kernel = np.array([index[sample.kernel] for sample in samples])
    setting = np.array([place[sample.asked] for sample in samples])
    costs = np.array([[s.time_s for s in samples], [s.energy_j for s in samples]])
    at = setting == baseline
    sums = np.array([np.bincount(kernel[at], each[at], len(index)) for each in costs])
    log = np.log(costs / (sums / np.bincount(kernel[at], minlength=len(index)))[:, kernel])
    log[1] -= log[0]
    return RunLogs(kernel=kernel, setting=setting, log=log, kernels=len(index))


def _grid(settings: tuple[Clocks, ...], gpu: GpuConstants) -> ClockGrid:
    """Return settings as a grid on which auto stands where it boosts to: draws know its costs."""
    core = np.array([float(clocks.core_mhz or gpu.boost_mhz) for clocks in settings])
    mem = np.array([float(clocks.mem_mhz or gpu.mem_points_mhz[-1]) for clocks in settings])
    nowhere = np.zeros(len(core), dtype=bool)
    return ClockGrid(core=core / core.max(), mem=mem / mem.max(), free=nowhere)
