"""Samples as rows: which of them tell what a clock costs, and sets that cannot be fitted at all.

A row of what ran in company is at the clock that was read in its window, its company taken off. A
step tells times of kernels, no powers.

Shape letters: H errors of company.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.row_runs import sample_weights
from underclock.core.model.rows import COLLECTIVE, PER_KERNEL, STEADY_C, FitRow, Idling, Rows
from underclock.core.model.sample_sets import (
    ceiling_mhz,
    check_values,
    clocks_asked,
    holds,
    memory_mhz,
    own_memory_mhz,
    ran_mem_mhz,
    seen_cap,
)
from underclock.core.steering.power_peak import taken_apart
from underclock.core.steering.taking_off import COMPANION, Left, StepDraw, step_draws
from underclock.core.step.unmeasured import unmeasured
from underclock.errors import DataError
from underclock.physics.constants import GpuConstants
from underclock.records import Kind, SampleSet, Window

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
    kinds = [KIND_NUMBERS[kernel.kind] for kernel in sample_set.kernels]
    if rows[-1].kernel == kernels:
        names.append(COMPANION)
        kinds.append(KIND_NUMBERS[Kind.GEMM])
    return Rows(
        names=tuple(names),
        kinds=np.array(kinds, dtype=np.int64),
        **_columns(rows, told.errors),
        mem_points_mhz=np.array(memory),
        limit_w=limit_w,
        ceiling_mhz=ceiling_mhz(sample_set.samples),
        auto_mem_mhz=own_mhz,
        peak_w=told.peak_w,
        boost_log_s=np.log([told.boost_s.get(k.name, math.nan) for k in sample_set.kernels])
        if told.boost_s
        else None,
        step=told.step,
        idle=idle_rows(sample_set, own_mhz),
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
    of_power = company.reshape(len(rows), -1)
    return {
        "kernel": columns.pop("kernel").astype(np.int64),
        "windows": np.stack([columns.pop("time_windows"), columns.pop("power_windows")]),
        "common": np.stack([np.zeros_like(of_power), of_power]),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InCompany:
    """What measurements in company tell.

    Attributes:
        left: Of kernels and of the companion by itself, company taken off.
        peak_w: Power that no kernel exceeds; ``inf`` where no peak was seen.
        boost_s: What a launch of kernels took at boost, in s.
        step: What the whole step drew, where it ran in company too.
        errors: How many errors company has in common: H.
    """

    left: tuple[Left, ...] = ()
    peak_w: float = math.inf
    boost_s: dict[str, float] = field(default_factory=dict)
    step: tuple[StepDraw, ...] = ()
    errors: int = 0


def in_company(sample_set: SampleSet, memory: list[float], shape: GpuConstants | None) -> InCompany:
    """Return what measurements in company tell, and those of launches inside the step.

    Args:
        memory: Memory clocks of the GPU, ascending.
        shape: How idle power follows clock and temperature; ``None`` for as on recent GPUs.
    """
    mixed, kernels = sample_set.mixed, sample_set.kernels
    if not mixed:
        return InCompany()
    shape = shape or unknown_gpu(
        memory,
        fastest_mhz=max(sample.at_mhz for sample in mixed),
        most_w=max(sample.energy_j / sample.time_s for sample in mixed),
    )
    apart = taken_apart(
        mixed,
        kernels,
        shape,
        own_memory_mhz(sample_set, memory),
        sample_set.gpu.power_limit_w,
    )
    # By itself the step runs at one clock: what it draws there is what auto is measured by.
    steered = any(sample.is_step and sample.in_company for sample in mixed)
    return InCompany(
        left=apart.left,
        peak_w=apart.peak_w,
        boost_s=apart.boost_s,
        step=step_draws(mixed, kernels, apart.company) if steered else (),
        errors=apart.company.errors,
    )


def company_rows(
    told: InCompany, locked: Sequence[FitRow], sample_set: SampleSet, own_mem_mhz: float
) -> list[FitRow]:
    """Return rows of kernels in company and inside the step."""
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}

    def place(one: Left) -> int:
        """Return the index of a kernel; the companion comes after those of the step."""
        return index.get(one.kernel, len(index))

    drawn: dict[int, list[tuple[float, float]]] = {}
    for row in locked:
        drawn.setdefault(row.kernel, []).append((row.core_mhz, math.exp(row.log_w)))
    for one in told.left:
        if one.power_w is not None:
            drawn.setdefault(place(one), []).append((one.core_mhz, one.power_w))
    # Of kernels that never ran by themselves no row tells the power: its size is guessed.
    guessed = unmeasured(sample_set)
    for k, power_w in zip(guessed.places.tolist(), guessed.power_w.tolist(), strict=True):
        drawn.setdefault(k, [(math.inf, power_w)])
    return [
        FitRow(
            kernel=place(one),
            core_mhz=one.core_mhz,
            mem_mhz=float(one.mem_mhz or own_mem_mhz),
            log_s=math.log(one.time_s),
            log_w=math.log(one.power_w or _nearest(drawn[place(one)], one.core_mhz)),
            temperature_c=STEADY_C if one.temperature_c is None else one.temperature_c,
            time_windows=one.time_windows,
            power_windows=one.power_windows,
            apart=one.apart,
            by_company=one.by_company,
        )
        for one in told.left
        if place(one) in drawn  # costs of a kernel of unknown power cannot be told
    ]


def idle_rows(sample_set: SampleSet, auto_mem_mhz: float) -> tuple[Idling, ...]:
    """Return the measurements in which nothing ran."""
    return tuple(
        Idling(
            core_mhz=sample.at_mhz,
            mem_mhz=float(sample.asked.mem_mhz or auto_mem_mhz),
            temperature_c=STEADY_C if sample.temperature_c is None else sample.temperature_c,
            log_w=math.log(sample.energy_j / sample.time_s),
        )
        for sample in sample_set.mixed
        if not sample.mix.launches and not sample.mix.hot
    )


def _nearest(drawn: list[tuple[float, float]], core_mhz: float) -> float:
    """Return the power that was read nearest to a clock."""
    return min(drawn, key=lambda pair: abs(pair[0] - core_mhz))[1]
