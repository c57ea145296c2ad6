"""From a sample_set to rows and the fit of them: the one way in for whoever asks of a model.

Rows of one kernel at like clocks share most of their discrepancy, so a kernel with hundreds of them
is known by some spread over all; and what kernels share is known by some of every kind and size.
"""

import math
from collections.abc import Sequence

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.most_likely import FittedModel, fit_all, fit_kernels
from underclock.core.model.parameters import Shared, unknown_gpu
from underclock.core.model.rows import Rows
from underclock.core.model.sample_rows import rows_of
from underclock.core.step.whole_step import STEADY_C
from underclock.physics.constants import GpuConstants
from underclock.records import Clocks, SampleSet

MOST_ROWS = 64  # of a kernel
MOST_KERNELS = 150  # that what is shared is fitted to
_GOLDEN = 0.6180339887498949  # its multiples, less their whole part, are spread evenly


def fit_rows(
    sample_set: SampleSet, settings: Sequence[Clocks], weights: Floats | None = None
) -> tuple[Rows, FittedModel]:
    """Fit samples.

    Co-load is subtracted twice: how idle power follows the clock is first assumed, then fitted.

    Args:
        weights: How much each sample counts in time and energy, where that is known already.
            Shape (2, N).

    Returns:
        The rows of the step's kernels, all of them, and the fit, of the heater kernel too.
    """
    rows = rows_of(sample_set, weights=weights)
    model = fitted(rows, Shared(start_of(rows, settings)))
    steered = any(sample.asked.is_auto and sample.in_company for sample in sample_set.mixed)
    if steered:
        parameters = model.parameters
        rows = rows_of(sample_set, parameters.family.gpu(parameters.shared), weights)
        model = fitted(rows, Shared(start_of(rows, settings)))
    return rows.of(np.arange(len(sample_set.kernels))), model


def start_of(rows: Rows, settings: Sequence[Clocks]) -> GpuConstants:
    """Return constants to begin the fit of some rows with."""
    asked = [float(s.core_mhz) for s in settings if s.core_mhz is not None]
    return unknown_gpu(
        rows.mem_points_mhz.tolist(),
        fastest_mhz=max([float(rows.core_mhz.max()), *asked]),
        most_w=float(np.exp(rows.log_w.max())),
    )


def temperature_of(sample_set: SampleSet) -> float:
    """Return the temperature the step runs at: in situ, else that of the samples."""
    for samples in (sample_set.in_situ, sample_set.samples):
        seen = [s.temperature_c for s in samples if s.temperature_c is not None]
        if seen:
            return float(np.median(seen))
    return STEADY_C


def clocks_of(rows: Rows, settings: Sequence[Clocks]) -> tuple[Floats, Floats]:
    """Return the clocks that settings stand for: auto is the fastest seen. Shapes (C,)."""
    ceiling = rows.ceiling_mhz
    if not math.isfinite(ceiling):
        ceiling = float(rows.core_mhz.max())
        ceiling = max([ceiling, *[float(s.core_mhz) for s in settings if s.core_mhz]])
    core = np.array([min(float(s.core_mhz or math.inf), ceiling) for s in settings])
    mem = np.array([float(s.mem_mhz or rows.auto_mem_mhz) for s in settings])
    return core, mem


def fitted(
    rows: Rows, family: Shared, *, most_rows: int = MOST_ROWS, most_kernels: int = MOST_KERNELS
) -> FittedModel:
    """Fit rows: all of them where they are few; `FittedModel.rows` says which."""
    light = rows.some(spread_rows(rows, most_rows))
    some = spread_kernels(light, most_kernels)
    if len(some) == len(rows.names):
        return fit_all(light, family)
    return fit_kernels(light, fit_all(light.of(some), family))


def spread_rows(rows: Rows, most: int) -> Ints:
    """Choose so many rows of each kernel evenly from slow to fast, others for each kernel.

    The fastest row is always chosen. Returns indices, ascending.
    """
    chosen = []
    for k, (low, high) in enumerate(zip(rows.bounds[:-1], rows.bounds[1:], strict=True)):
        count = int(high - low)
        if count <= most:
            chosen.append(np.arange(low, high))
            continue
        order = low + np.lexsort((rows.core_mhz[low:high], rows.mem_mhz[low:high]))
        places = ((np.arange(most) + k * _GOLDEN % 1.0) * count / most).astype(np.int64)
        places[-1] = count - 1
        chosen.append(np.sort(order[places]))
    rows_chosen: Ints = np.concatenate(chosen)
    return rows_chosen


def spread_kernels(rows: Rows, most: int) -> Ints:
    """Choose so many kernels evenly from short to long within each kind; all where they are few.

    Those without rows are chosen only where all are. Returns indices, ascending.
    """
    counts = np.diff(rows.bounds)
    if len(counts) <= most:
        return np.arange(len(counts))
    known = np.flatnonzero(counts)
    fastest_s = np.minimum.reduceat(rows.log_s, rows.bounds[known])
    order = known[np.lexsort((fastest_s, rows.kinds[known]))]
    places = np.linspace(0, len(order) - 1, min(most, len(order))).astype(np.int64)
    kernels: Ints = np.sort(order[places])
    return kernels
