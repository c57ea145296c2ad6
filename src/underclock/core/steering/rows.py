"""From windows with co-load to ordinary rows, and the clocks that they cover.

Shape letters: H errors that rows have in common.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from underclock.core.steering.coload import temperature_c_of
from underclock.core.steering.power_peak import separated
from underclock.core.steering.subtract import HUNTS_MHZ, KernelPoint, step_draws
from underclock.core.step.cost_table import unmeasured
from underclock.core.step.power_cap import is_power_capped
from underclock.core.step.whole_step import FitRow, Idling, StepDraw
from underclock.physics.constants import GpuConstants
from underclock.records import SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRows:
    """What windows with co-load, and those of launches inside the step, tell.

    Attributes:
        rows: Of kernels; those of the heater by itself have the index after the last kernel's.
        idle: What idling drew.
        step: What the whole step drew, where it ran with co-load too.
        peak_w: Power that no kernel exceeds; ``inf`` where no peak was seen.
        boost_s: What a launch of kernels took at boost, in s.
        errors: How many errors rows have in common: H.
    """

    rows: tuple[FitRow, ...] = ()
    idle: tuple[Idling, ...] = ()
    step: tuple[StepDraw, ...] = ()
    peak_w: float = math.inf
    boost_s: dict[str, float] = field(default_factory=dict)
    errors: int = 0


def steered_rows(
    sample_set: SampleSet, shape: GpuConstants, own_mem_mhz: float, locked: Sequence[FitRow]
) -> SteeredRows:
    """Turn windows with co-load into rows, at the clocks that were read, without the co-load.

    A row that tells no power has that of the nearest clock, in which its time is to be known.

    Args:
        shape: How idle power follows clock and temperature.
        own_mem_mhz: Memory clock of a GPU left to itself.
        locked: Rows of kernels alone, at locks that held.
    """
    mixed, kernels = sample_set.mixed, sample_set.kernels
    parts = separated(mixed, kernels, shape, own_mem_mhz, sample_set.gpu.power_limit_w)
    index = {kernel.name: k for k, kernel in enumerate(kernels)}
    drawn: dict[int, list[tuple[float, float]]] = {}
    for row in locked:
        drawn.setdefault(row.kernel, []).append((row.core_mhz, math.exp(row.log_w)))
    places = [(index.get(point.kernel, len(index)), point) for point in parts.points]
    for k, point in places:
        if point.power_w is not None:
            drawn.setdefault(k, []).append((point.core_mhz, point.power_w))
    # Of kernels that never ran by themselves no row tells the power: its size is guessed.
    guessed = unmeasured(sample_set)
    for k, power_w in zip(guessed.places.tolist(), guessed.power_w.tolist(), strict=True):
        drawn.setdefault(k, [(math.inf, power_w)])

    def row_of(k: int, point: KernelPoint) -> FitRow:
        power_w = point.power_w or min(drawn[k], key=lambda at: abs(at[0] - point.core_mhz))[1]
        return FitRow(
            kernel=k,
            core_mhz=point.core_mhz,
            mem_mhz=parts.coload.mem_mhz(point.window),
            log_s=math.log(point.time_s),
            log_w=math.log(power_w),
            temperature_c=temperature_c_of(point.window),
            time_windows=point.time_windows,
            power_windows=point.power_windows,
            apart=point.apart,
            common=point.common,
        )

    # By itself the step runs at one clock: what it draws there is what auto is measured by.
    steered = any(window.is_step and window.in_company for window in mixed)
    return SteeredRows(
        rows=tuple(row_of(k, point) for k, point in places if k in drawn),
        idle=tuple(
            Idling(
                core_mhz=window.at_mhz,
                mem_mhz=parts.coload.mem_mhz(window),
                temperature_c=temperature_c_of(window),
                log_w=math.log(window.power_w),
            )
            for window in parts.coload.idle
        ),
        step=step_draws(mixed, kernels, parts.coload) if steered else (),
        peak_w=parts.peak_w,
        boost_s=parts.boost_s,
        errors=parts.coload.errors,
    )


def clock_range(sample_set: SampleSet) -> tuple[float, float] | None:
    """Return the lowest and highest core clock in MHz at which kernels ran where none was set.

    Returns:
        The clocks; ``None`` where clocks were held, or nothing ran with co-load.
    """
    steered = all(window.asked.is_auto for window in sample_set.windows) and any(
        window.in_company for window in sample_set.mixed
    )
    seen = [window.at_mhz for window in sample_set.mixed if window.kernel_s]
    return (min(seen), max(seen)) if seen and steered else None


def steering_notes(sample_set: SampleSet) -> tuple[str, ...]:
    """Say what a reader of windows with co-load must know of them; nothing of other samples."""
    mixed = sample_set.mixed
    clocks = clock_range(sample_set)
    if clocks is None:
        return ()
    lowest, highest = (f"{mhz:.0f}" for mhz in clocks)
    sentence = (
        f"clocks were steered by co-load, not set: only core clocks from {lowest} to {highest} "
        "MHz are known; what lower ones and other memory clocks would save cannot be seen"
    )
    limit_w = sample_set.gpu.power_limit_w
    if not any(is_power_capped([window], limit_w or math.inf)[0] for window in mixed):
        most_w = max(window.power_w for window in mixed)
        limit = "unknown" if limit_w is None else f"{limit_w:g} W"
        sentence = (
            f"nothing steers this GPU: it drew {most_w:.0f} W at most, below its power limit "
            f"({limit}), and ran at {highest} MHz whatever the co-load; with root it can be "
            "measured at clocks that are held"
        )
    wild = [window for window in mixed if window.spread_mhz > HUNTS_MHZ]
    if not wild:
        return (sentence,)
    worst = max(wild, key=lambda window: window.spread_mhz)
    what = repr(worst.kernel) if worst.kernel else "the step"
    hunted = (
        f"the core clock hunted in {len(wild)} of {len(mixed)} measurements with co-load, in one "
        f"of {what} by {worst.core_spread_mhz:.0f} MHz around {worst.core_mhz:.0f}: these "
        "count less"
    )
    return sentence, hunted
