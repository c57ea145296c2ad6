"""Samples as rows: which of them say what a clock costs, and where each kernel has an answer.

Sets that cannot be fitted at all are refused.

Shape letters: K kernels, C settings but the baseline.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.model.hierarchical_prior import KernelKind, kernel_kind, usual_shares
from underclock.core.model.parameters import COLLECTIVE, PER_KERNEL, Rows, unknown_gpu
from underclock.core.model.sample_sets import (
    ceiling_mhz,
    check_values,
    clocks_asked,
    holds,
    memory_mhz,
    sample_weights,
    seen_cap,
)
from underclock.core.steering import HEATER, SteeredRows, clock_range, steered_rows
from underclock.core.step.power_cap import HALF_BIN_MHZ
from underclock.core.step.power_capped_step import memories_like_auto
from underclock.core.step.whole_step import FitRow, temperature_c_of
from underclock.errors import DataError
from underclock.physics.constants import GpuConstants
from underclock.records import Clocks, Kind, SampleSet

KIND_NUMBERS = {Kind.GEMM: 0, Kind.MEMORY: 1, None: 2, Kind.COLLECTIVE: COLLECTIVE}
"""What a kernel mostly does, as the small number that rows know it by."""
_FREE_WINDOWS = 0.04  # what a row whose clock is free counts for: five times the error


class CannotFitError(DataError):
    """No sample is of use: costs may still be taken as measured."""


def rows_of(
    sample_set: SampleSet,
    shape: GpuConstants | None = None,
    weights: Floats | None = None,
) -> Rows:
    """Turn samples into the rows a model can be fitted to.

    A window with co-load is a row at the clock that was read in it, its co-load subtracted.
    Samples at the power cap are left out, as their clocks are not what was asked for. So are rows
    locked higher than the GPU boosts. Odd repeats count little. So do rows at auto of which the
    clock was read only at the window's end, for kernels with few more; for the rest they do not
    count at all, as a clock that is free moves with temperature.

    Args:
        shape: How idle power follows clock and temperature, for subtracting co-load; by default as
            on recent GPUs.
        weights: How much each sample counts in time and energy, where that is known already.
            Shape (2, N).

    Raises:
        DataError: Samples contradict each other, or all are capped.
    """
    if not sample_set.samples and not sample_set.mixed:
        raise DataError("there are no samples to fit", hint="measure first")
    check_values(sample_set)
    memory = memory_mhz(sample_set)
    # A GPU left to itself runs at the fastest memory clock, where it was not read.
    own_mhz = float(sample_set.auto_mem_mhz or memory[-1])
    limit_w, capped = seen_cap(sample_set)
    weights = sample_weights(sample_set) if weights is None else weights
    locked, free = _alone(sample_set, capped, weights, own_mhz)
    steered = SteeredRows()
    if sample_set.mixed:
        shape = shape or unknown_gpu(
            memory,
            fastest_mhz=max(window.at_mhz for window in sample_set.mixed),
            most_w=max(window.power_w for window in sample_set.mixed),
        )
        steered = steered_rows(sample_set, shape, own_mhz, locked)
    rows = [*locked, *steered.rows]
    kernels = len(sample_set.kernels)
    if not any(row.power_windows > 0.0 and row.kernel < kernels for row in rows):
        ran = len(sample_set.samples) + len(sample_set.mixed)
        raise CannotFitError(
            f"all {ran} samples ran at the power cap or at unknown clocks: they do not tell what "
            "a clock costs",
            hint="measure at lower core clocks or with co-load, or raise the power limit",
        )
    each = Counter(row.kernel for row in rows if row.power_windows)
    by_coload = {row.kernel for row in steered.rows if row.power_windows}
    rows += [r for r in free if 0 < each[r.kernel] < PER_KERNEL and r.kernel not in by_coload]
    rows.sort(key=lambda row: row.kernel)
    names = [kernel.name for kernel in sample_set.kernels]
    kinds = [KIND_NUMBERS[kernel.kind] for kernel in sample_set.kernels]
    alike = [kernel_kind(kernel) for kernel in sample_set.kernels]
    if rows[-1].kernel == kernels:
        names.append(HEATER)
        kinds.append(KIND_NUMBERS[Kind.GEMM])
        alike.append(KernelKind.PRODUCT)
    return Rows(
        names=tuple(names),
        kinds=np.array(kinds, dtype=np.int64),
        **_columns(rows, steered.errors),
        mem_points_mhz=np.array(memory),
        limit_w=limit_w,
        ceiling_mhz=ceiling_mhz(sample_set.samples),
        auto_mem_mhz=own_mhz,
        peak_w=steered.peak_w,
        boost_log_s=np.log([steered.boost_s.get(name, math.nan) for name in names])
        if steered.boost_s
        else None,
        step=steered.step,
        idle=steered.idle,
        shares=usual_shares(alike),
    )


def _alone(
    sample_set: SampleSet, capped: Sequence[bool], weights: Floats, own_mem_mhz: float
) -> tuple[list[FitRow], list[FitRow]]:
    """Return rows of kernels by themselves: at locks that held, and at auto."""
    asked_mhz = [float(clocks.core_mhz) for clocks in clocks_asked(sample_set) if clocks.core_mhz]
    boosted_mhz = min(ceiling_mhz(sample_set.samples), max(asked_mhz, default=math.inf))
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    locked: list[FitRow] = []
    free: list[FitRow] = []
    for sample, at_cap, counts in zip(sample_set.samples, capped, weights.T.tolist(), strict=True):
        is_free = sample.asked.core_mhz is None
        if not at_cap and (is_free or holds(sample)):
            # A sample as a row.
            core = sample.asked.core_mhz
            windows = _FREE_WINDOWS if core is None else 1.0
            seen = sample.observed or sample.asked
            row = FitRow(
                kernel=index[sample.kernel],
                core_mhz=float(core or seen.core_mhz or boosted_mhz),
                mem_mhz=float(seen.mem_mhz or own_mem_mhz),
                log_s=math.log(sample.time_s),
                log_w=math.log(sample.energy_j / sample.time_s),
                temperature_c=temperature_c_of(sample),
                time_windows=windows,
                power_windows=windows,
            )
            (free if is_free else locked).append(row.counted(*counts))
    return locked, free


def _columns(rows: Sequence[FitRow], errors: int) -> dict[str, Any]:
    """Return what is known of each row as arrays, by the names that `Rows` has for them."""
    columns = dict(zip(FitRow._fields[:-1], np.array([row[:-1] for row in rows]).T, strict=True))
    common = np.array([row.common or (0.0,) * errors for row in rows])
    of_power = common.reshape(len(rows), -1)
    return {
        "kernel": columns.pop("kernel").astype(np.int64),
        "log": np.stack([columns.pop("log_s"), columns.pop("log_w")]),
        "windows": np.stack([columns.pop("time_windows"), columns.pop("power_windows")]),
        "by_common": np.stack([np.zeros_like(of_power), of_power]),
        **columns,
    }


def offered_settings(sample_set: SampleSet, auto: Clocks) -> tuple[Clocks, ...]:
    """Return every setting but the baseline, slowest first."""
    known = dict.fromkeys((*sample_set.settings, *(sample.asked for sample in sample_set.samples)))
    offered = [clocks for clocks in known if clocks != auto and not clocks.is_auto]
    if (reach := clock_range(sample_set)) is not None:
        # Steering sees no other memory clocks, and no lower core clocks.
        low, high = reach[0] - HALF_BIN_MHZ, reach[1] + HALF_BIN_MHZ
        offered = [c for c in offered if c.mem_mhz is None and low <= (c.core_mhz or 0) <= high]
    return tuple(sorted(offered, key=lambda clocks: clocks.rank))


def with_boost(settings: tuple[Clocks, ...], sample_set: SampleSet) -> tuple[Clocks, ...]:
    """Return settings, with the clock that the GPU boosts to by itself where none comes near it.

    Every kernel ran there at auto, so it is known as well as any, and auto is compared with it.
    """
    boost_mhz = ceiling_mhz(sample_set.samples)
    for memory in memories_like_auto(settings, sample_set)[:1]:
        cores = [c.core_mhz or 0 for c in settings if c.mem_mhz == memory]
        fastest_mhz = max((mhz for mhz in cores if mhz <= boost_mhz), default=0)
        if fastest_mhz < boost_mhz - HALF_BIN_MHZ and math.isfinite(boost_mhz):
            boost = Clocks(core_mhz=round(boost_mhz), mem_mhz=memory)
            return tuple(sorted((*settings, boost), key=lambda clocks: clocks.rank))
    return settings


def measured_means(
    sample_set: SampleSet, settings: Sequence[Clocks], weights: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return logarithms of the mean measured time and power, ``nan`` where none, and repeats.

    An odd repeat counts for little, in the means and as a repeat.

    Args:
        settings: Length C.
        weights: How much each sample counts in time and energy. Shape (2, N).
    """
    place = {clocks: c for c, clocks in enumerate(settings)}
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    sums = np.zeros((4, len(index), len(settings)))
    for sample, (of_time, of_energy) in zip(sample_set.samples, weights.T.tolist(), strict=True):
        c = place.get(sample.asked)
        if c is not None:
            cell = sums[:, index[sample.kernel], c]
            cell += (of_time, of_energy, of_time * sample.time_s, of_energy * sample.energy_j)
    with np.errstate(divide="ignore", invalid="ignore"):
        time_s, energy_j = sums[2:] / sums[:2]
        return np.log(time_s), np.log(energy_j / time_s), sums[:2].min(axis=0)


def measurable(sample_set: SampleSet, rows: Rows, settings: Sequence[Clocks]) -> Bools:
    """Return where the GPU holds a lock and the table has a row. Shape (K, C).

    Args:
        settings: Length C.
    """
    can = np.ones((len(sample_set.kernels), len(settings)), dtype=bool)
    can[:, [(clocks.core_mhz or 0) > rows.ceiling_mhz for clocks in settings]] = False
    place = {clocks: c for c, clocks in enumerate(settings)}
    for k, kernel in enumerate(sample_set.kernels):
        # What a table lacks may be auto, which is no setting to choose.
        lacking = [place[c] for c in sample_set.lacking.get(kernel.name, ()) if c in place]
        can[k, lacking] = False
    return can
