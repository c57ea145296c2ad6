"""A peak of power that no clock shows: how it is seen, and what it held left out.

The power cap holds the mean over some time. A GPU may besides limit what a single kernel draws, and
so fast that no clock shows it: what ran there says nothing of the clock that was read.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from underclock.core.steering.coload import WINDOW_NOISE, CoLoad
from underclock.core.steering.subtract import HEATER, KernelPoint, subtract_coload
from underclock.physics.constants import GpuConstants
from underclock.records import Kernel, Window

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
    """What the heater did at boost.

    Attributes:
        exponent: Of its time against the clock, between its fastest rung and the next.
        usual: The same below; ``None`` where it was not seen at a third clock.
    """

    power_w: float
    exponent: float
    usual: float | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Separated:
    """Windows with co-load, separated into kernels and co-load.

    Attributes:
        coload: What idling and the heater draw, where no peak of power holds it.
        points: Of kernels and of the heater by itself, where no peak holds them.
        peak_w: The peak; ``inf`` where none was seen.
        boost_s: What a launch of kernels took at boost, whatever held it there, in s.
    """

    coload: CoLoad
    points: tuple[KernelPoint, ...]
    peak_w: float
    boost_s: dict[str, float]


def separated(
    mixed: Sequence[Window],
    kernels: Sequence[Kernel],
    shape: GpuConstants,
    own_mem_mhz: float,
    limit_w: float | None,
) -> Separated:
    """Subtract what co-load drew, where everything ran at the clock that was read.

    Args:
        shape: How idle power is assumed to follow clock and temperature.
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
    return Separated(coload=coload, points=points, peak_w=peak_w, boost_s=boost_s)
