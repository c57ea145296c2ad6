"""Samples as rows: which of them tell what a clock costs, and sets that cannot be fitted at all.

Rows of kernels by themselves are made here; `company_rows` gives the others.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.company_rows import company_rows, idling, in_company
from underclock.core.model.ran_clocks import (
    ceiling_mhz,
    holds,
    memory_mhz,
    own_memory_mhz,
    ran_mem_mhz,
    seen_cap,
)
from underclock.core.model.row_runs import sample_weights
from underclock.core.model.rows import PER_KERNEL, STEADY_C, FitRow, Rows
from underclock.core.model.sample_sets import check_values, clocks_asked
from underclock.core.steering.taking_off import COMPANION
from underclock.errors import DataError
from underclock.physics.constants import GpuConstants
from underclock.records import Kind, SampleSet, Window

_KINDS = {Kind.GEMM: 0, Kind.MEMORY: 1, None: 2}
_FREE_WINDOWS = 0.04  # what a row whose clock is free counts for: five times the error


class CannotFitError(DataError):
    """No sample is of use: costs may still be taken as measured."""


def rows_of(
    sample_set: SampleSet,
    shape: GpuConstants | None = None,
    weights: Floats | None = None,
) -> Rows:
    """Turn samples into the rows a model can be fitted to.

    A measurement in company is a row at the clock that was read in its window, company taken off.
    Samples at the power cap are left out, as their clocks are not what was asked for. So are rows
    locked higher than the GPU boosts. Odd repeats count little. So do rows at auto of which the
    clock was read only at the window's end, for kernels with few others; for the rest they do not
    count at all, as a clock that is free moves with temperature.

    Args:
        shape: How idle power follows clock and temperature, for taking company off; by default as
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
    own_mhz = own_memory_mhz(sample_set, memory)
    limit_w, capped = seen_cap(sample_set)
    weights = sample_weights(sample_set) if weights is None else weights
    locked, free = _alone(sample_set, capped, weights, own_mhz)
    told = in_company(sample_set, memory, shape)
    mixed = company_rows(told, locked, sample_set, own_mhz)
    rows = [*locked, *mixed]
    kernels = len(sample_set.kernels)
    if not any(row.power_windows > 0.0 and row.kernel < kernels for row in rows):
        ran = len(sample_set.samples) + len(sample_set.mixed)
        raise CannotFitError(
            f"all {ran} samples ran at the power cap or at unknown clocks: they do not tell what "
            "a clock costs",
            hint="measure at lower core clocks or in company, or raise the power limit",
        )
    each = Counter(row.kernel for row in rows if row.power_windows)
    steered = {row.kernel for row in mixed if row.power_windows}
    rows += [r for r in free if 0 < each[r.kernel] < PER_KERNEL and r.kernel not in steered]
    rows.sort(key=lambda row: row.kernel)
    names = [kernel.name for kernel in sample_set.kernels]
    kinds = [_KINDS[kernel.kind] for kernel in sample_set.kernels]
    if rows[-1].kernel == kernels:
        names.append(COMPANION)
        kinds.append(_KINDS[Kind.GEMM])
    return Rows(
        names=tuple(names),
        kinds=np.array(kinds, dtype=np.int64),
        **_columns(rows, told.errors),
        mem_points_mhz=np.array(memory),
        limit_w=limit_w,
        ceiling_mhz=ceiling_mhz(sample_set.samples),
        auto_mem_mhz=own_mhz,
        peak_w=told.peak_w,
        step=told.step,
        idle=idling(sample_set, own_mhz),
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
            row = _row(sample, index[sample.kernel], boosted_mhz, own_mem_mhz)
            (free if is_free else locked).append(row.counted(*counts))
    return locked, free


def _columns(rows: Sequence[FitRow], company_errors: int) -> dict[str, Any]:
    """Return what is known of each row as arrays, by the names that `Rows` has for them."""
    columns = dict(zip(FitRow._fields[:-1], np.array([row[:-1] for row in rows]).T, strict=True))
    company = np.array([row.by_company or (0.0,) * company_errors for row in rows])
    return {
        "kernel": columns.pop("kernel").astype(np.int64),
        "windows": np.stack([columns.pop("time_windows"), columns.pop("power_windows")]),
        "company": company.reshape(len(rows), -1),
        **columns,
    }


def _row(sample: Window, kernel: int, boosted_mhz: float, auto_mem_mhz: float) -> FitRow:
    """Return a sample as a row."""
    core = sample.asked.core_mhz
    windows = _FREE_WINDOWS if core is None else 1.0
    seen = sample.observed.core_mhz if sample.observed else None
    return FitRow(
        kernel=kernel,
        core_mhz=float(core or seen or boosted_mhz),
        mem_mhz=ran_mem_mhz(sample, auto_mem_mhz),
        log_s=math.log(sample.time_s),
        log_w=math.log(sample.energy_j / sample.time_s),
        temperature_c=STEADY_C if sample.temperature_c is None else sample.temperature_c,
        time_windows=windows,
        power_windows=windows,
    )
