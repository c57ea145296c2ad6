"""From windows with co-load to ordinary rows, less those that a hidden peak of power held.

The power cap holds the mean over some time. A GPU may besides limit what a single kernel draws, and
so fast that no clock shows it: what ran there says nothing of the clock that was read.

Shape letters: H errors that rows have in common.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from underclock.core.steering.coload import WINDOW_NOISE, CoLoad
from underclock.core.steering.subtract import (
    HEATER,
    HUNTS_MHZ,
    KernelPoint,
    step_draws,
    subtract_coload,
)
from underclock.core.step.cost_table import unmeasured
from underclock.core.step.power_cap import is_power_capped
from underclock.core.step.whole_step import FitRow, Idling, StepDraw, temperature_c_of
from underclock.physics.constants import GpuConstants
from underclock.records import Kernel, SampleSet, Window

_SURE = 0.2  # windows' worth of power from which it may tell of a peak
_RUNG, _NO_FASTER = 0.03, 0.4  # of the clock between two rungs; exponent of time between them
_BOOSTS = 0.985  # of the highest clock read: what ran there ran at boost
_VOLTAGE = 0.5  # exponent of a launch's energy with clock, at least
_PILE, _PILE_WIDTH = 3, 0.03  # kernels whose greatest powers are alike: a peak
OFF_PEAK = 1.0 - _PILE_WIDTH
"""Part of a peak: what draws less runs at the clock that is read."""
_STILL = 0.85  # of the usual exponent: a peak within the last rung would show
_AS_HOT = 0.94  # of a peak: what draws as much would be near it
_ABOVE = 1.15  # of the limit: a peak below that is the cap's own


def pile_w(points: Sequence[KernelPoint], limit_w: float) -> float:
    """Return the power at which several kernels pile up at boost; ``inf`` where none do.

    On an H200 with a limit of 700 W eleven products thinned out by idling all drew 963 to 986 W,
    reading 1980 MHz, and took as long as at about 1800: something faster than the cap held them,
    and no clock that is read shows it.
    """
    most: dict[str, float] = {}
    boost_mhz = max((point.core_mhz for point in points), default=0.0)
    for point in points:
        boosts = point.core_mhz >= _BOOSTS * boost_mhz
        sure = point.kernel != HEATER and point.variance <= WINDOW_NOISE**2 / _SURE
        if boosts and point.power_w is not None and sure:
            most[point.kernel] = max(point.power_w, most.get(point.kernel, 0.0))
    greatest_w = max(most.values(), default=0.0)
    pile = [power_w for power_w in most.values() if power_w >= OFF_PEAK * greatest_w]
    if len(pile) < _PILE or statistics.median(pile) < _ABOVE * limit_w:
        return math.inf
    return statistics.median(pile)


class HeaterAtBoost(NamedTuple):
    """What the heater did at boost."""

    power_w: float
    exponent: float  # of its time against the clock, between its fastest rung and the next
    usual: float | None = None  # the same below; ``None`` where it was not seen at a third clock


def peak_seen_w(piled_w: float, heater: HeaterAtBoost | None, limit_w: float) -> float:
    """Return the peak of power that kernels and the heater show together; ``inf`` for none.

    Kernels that are alike draw alike, whatever holds them: so the heater must not be seen to draw
    as much and to follow the clock all the way to boost, nor to draw more.

    Args:
        piled_w: What several kernels draw at most; ``inf`` where they differ.
    """
    if heater is None:
        return piled_w
    if heater.exponent < _NO_FASTER and heater.power_w >= _ABOVE * limit_w:
        alike = piled_w >= OFF_PEAK * heater.power_w
        return min(piled_w, heater.power_w) if alike else heater.power_w
    follows = heater.usual is not None and heater.exponent >= _STILL * heater.usual
    return math.inf if follows and heater.power_w >= _AS_HOT * piled_w else piled_w


def heater_at_boost(mixed: Sequence[Window], coload: CoLoad) -> HeaterAtBoost | None:
    """Return what the heater did at boost; ``None`` where it was at one clock at most."""
    rungs = []
    for window in mixed:
        power = coload.of_heater(window)
        if power is not None and window.hot_s is not None:
            rungs.append((window.spin_mhz or window.at_mhz, window.hot_s, power.mean_w))
    rungs.sort()
    slower = [rung for rung in rungs if rung[0] < (1.0 - _RUNG) * rungs[-1][0]]
    if not slower:
        return None

    def exponent(slow: tuple[float, ...], fast: tuple[float, ...]) -> float:
        return math.log(slow[1] / fast[1]) / math.log(fast[0] / slow[0])

    slowest, next_, boost = slower[0], slower[-1], rungs[-1]
    third = slowest[0] < (1.0 - _RUNG) * next_[0]
    usual = exponent(slowest, next_) if third else None
    return HeaterAtBoost(boost[2], exponent(next_, boost), usual)


def below_peak(points: Sequence[KernelPoint], peak_w: float) -> tuple[KernelPoint, ...]:
    """Return what ran at the clock that was read: not what a peak of power held."""
    held_w = OFF_PEAK * peak_w
    held = {p.kernel for p in points if p.power_w is not None and p.power_w >= held_w}
    highest = dict.fromkeys(held, 0.0)
    nearest: dict[str, tuple[float, KernelPoint]] = {}
    for point in sorted(points, key=lambda point: point.core_mhz):
        if point.power_w is None or point.power_w >= held_w:
            continue
        if point.kernel in held:
            # Power goes with the square of the clock there, or a little less.
            reached_mhz = point.core_mhz * math.sqrt(peak_w / point.power_w)
            highest[point.kernel] = min(reached_mhz, highest[point.kernel] or math.inf)
        elif point.power_windows >= _SURE:
            nearest[point.kernel] = point.power_w, point

    def below(point: KernelPoint) -> bool:
        if point.power_w is not None:
            return point.power_w < held_w
        if point.kernel not in nearest:
            return True
        # Of what was not seen there: energy rises with voltage, and power with the pace besides.
        power_w, seen = nearest[point.kernel]
        rise = (point.core_mhz / seen.core_mhz) ** _VOLTAGE * seen.time_s / point.time_s
        return bool(power_w * rise < held_w)

    return tuple(p for p in points if below(p) and p.core_mhz <= highest.get(p.kernel, math.inf))


def separated(
    mixed: Sequence[Window],
    kernels: Sequence[Kernel],
    shape: GpuConstants,
    own_mem_mhz: float,
    limit_w: float | None,
) -> tuple[CoLoad, tuple[KernelPoint, ...], float, dict[str, float]]:
    """Subtract what co-load drew, where everything ran at the clock that was read.

    Args:
        shape: How idle power is assumed to follow clock and temperature.

    Returns:
        What idling and the heater draw, and points of kernels and of the heater by itself, where no
        peak of power holds them; the peak in W, ``inf`` where none was seen; and what a launch of
        kernels took at boost, whatever held it there, in s.
    """
    coload = CoLoad.of(mixed, shape, own_mem_mhz)
    points = subtract_coload(mixed, kernels, coload)
    limit_w = limit_w or math.inf
    peak_w = peak_seen_w(pile_w(points, limit_w), heater_at_boost(mixed, coload), limit_w)
    boost_mhz = _BOOSTS * max((point.core_mhz for point in points), default=0.0)
    boosts: defaultdict[str, list[float]] = defaultdict(list)
    for point in points:
        if point.core_mhz >= boost_mhz and point.time_windows:
            boosts[point.kernel].append(point.time_s)
    boost_s = {name: statistics.fmean(each_s) for name, each_s in boosts.items()}
    if math.isfinite(peak_w):
        coload = CoLoad.of(mixed, shape, own_mem_mhz, below_w=OFF_PEAK * peak_w)
        points = below_peak(subtract_coload(mixed, kernels, coload), peak_w)
    return coload, points, peak_w, boost_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRows:
    """What windows with co-load, and those of launches inside the step, tell."""

    # of kernels; those of the heater by itself have the index after the last kernel's
    rows: tuple[FitRow, ...] = ()
    idle: tuple[Idling, ...] = ()  # what idling drew
    step: tuple[StepDraw, ...] = ()  # what the whole step drew, where it ran with co-load too
    peak_w: float = math.inf  # power that no kernel exceeds; ``inf`` where no peak was seen
    # what a launch of kernels took at boost, in s
    boost_s: dict[str, float] = field(default_factory=dict)
    errors: int = 0  # how many errors rows have in common: H


def steered_rows(
    sample_set: SampleSet, shape: GpuConstants, own_mem_mhz: float, locked: Sequence[FitRow]
) -> SteeredRows:
    """Turn windows with co-load into rows, at the clocks that were read, without the co-load.

    A row without power has that of the nearest clock, in which its time is to be known.

    Args:
        shape: How idle power follows clock and temperature.
        own_mem_mhz: Memory clock of a GPU left to itself.
        locked: Rows of kernels alone, at locks that held.
    """
    mixed, kernels = sample_set.mixed, sample_set.kernels
    limit_w = sample_set.gpu.power_limit_w
    coload, points, peak_w, boost_s = separated(mixed, kernels, shape, own_mem_mhz, limit_w)
    index = {kernel.name: k for k, kernel in enumerate(kernels)}
    drawn: dict[int, list[tuple[float, float]]] = {}
    for row in locked:
        drawn.setdefault(row.kernel, []).append((row.core_mhz, math.exp(row.log_w)))
    places = [(index.get(point.kernel, len(index)), point) for point in points]
    for k, point in places:
        if point.power_w is not None:
            drawn.setdefault(k, []).append((point.core_mhz, point.power_w))
    # Of kernels that never ran by themselves no row has the power: its size is guessed.
    guessed = unmeasured(sample_set)
    for k, power_w in zip(guessed.places.tolist(), guessed.power_w.tolist(), strict=True):
        drawn.setdefault(k, [(math.inf, power_w)])

    def row_of(k: int, point: KernelPoint) -> FitRow:
        power_w = point.power_w or min(drawn[k], key=lambda at: abs(at[0] - point.core_mhz))[1]
        return FitRow(
            kernel=k,
            core_mhz=point.core_mhz,
            mem_mhz=coload.mem_mhz(point.window),
            log_s=math.log(point.time_s),
            log_w=math.log(power_w),
            temperature_c=temperature_c_of(point.window),
            time_windows=point.time_windows,
            power_windows=point.power_windows,
            common=point.common,
        )

    # By itself the step runs at one clock: what it draws there is what auto is measured by.
    steered = any(window.is_step and window.in_company for window in mixed)
    return SteeredRows(
        rows=tuple(row_of(k, point) for k, point in places if k in drawn),
        idle=tuple(
            Idling(
                core_mhz=window.at_mhz,
                mem_mhz=coload.mem_mhz(window),
                temperature_c=temperature_c_of(window),
                log_w=math.log(window.power_w),
            )
            for window in coload.idle
        ),
        step=step_draws(mixed, kernels, coload) if steered else (),
        peak_w=peak_w,
        boost_s=boost_s,
        errors=coload.errors,
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
