"""Rows of kernels in company and inside the step, their company taken off.

Each is at the clock that was read in its window. A step tells times of kernels, no powers.

Shape letters: H errors of company.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.ran_clocks import own_memory_mhz
from underclock.core.model.rows import STEADY_C, FitRow, Idling
from underclock.core.steering.power_peak import taken_apart
from underclock.core.steering.taking_off import Left, StepDraw, step_draws
from underclock.core.step.unmeasured import unmeasured
from underclock.physics.constants import GpuConstants
from underclock.records import SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class InCompany:
    """What measurements in company tell.

    Attributes:
        left: Of kernels and of the companion by itself, company taken off.
        peak_w: Power that no kernel exceeds; ``inf`` where no peak was seen.
        step: What the whole step drew, where it ran in company too.
        errors: How many errors company has in common: H.
    """

    left: tuple[Left, ...] = ()
    peak_w: float = math.inf
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


def idling(sample_set: SampleSet, auto_mem_mhz: float) -> tuple[Idling, ...]:
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
