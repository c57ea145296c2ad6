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

from underclock.core.steering.company import WINDOW_NOISE, Company
from underclock.core.steering.taking_off import COMPANION, Left, taken_off
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


def peak_w(left: Sequence[Left], limit_w: float) -> float:
    """Return the power that the GPU lets no kernel exceed, however low the mean; ``inf`` if unseen.

    On an H200 with a limit of 700 W eleven products thinned out by idling all drew 963 to 986 W,
    reading 1980 MHz, and took as long as at about 1800: something faster than the cap held them,
    and no clock that is read shows it.
    """
    most: dict[str, float] = {}
    boost_mhz = max((one.core_mhz for one in left), default=0.0)
    for one in left:
        boosts = one.core_mhz >= _BOOSTS * boost_mhz
        sure = one.kernel != COMPANION and one.variance <= WINDOW_NOISE**2 / _SURE
        if boosts and one.power_w is not None and sure:
            most[one.kernel] = max(one.power_w, most.get(one.kernel, 0.0))
    greatest_w = max(most.values(), default=0.0)
    pile = [power_w for power_w in most.values() if power_w >= OFF_PEAK * greatest_w]
    if len(pile) < _PILE or statistics.median(pile) < _ABOVE * limit_w:
        return math.inf
    return statistics.median(pile)


class AtBoost(NamedTuple):
    """What the hot companion did at boost.

    Attributes:
        exponent: Of its time against the clock, between its fastest rung and the next.
        usual: The same below; ``None`` where it was not seen at a third clock.
    """

    power_w: float
    exponent: float
    usual: float | None = None

    @property
    def follows(self) -> bool:
        """Whether it surely gets faster all the way to boost."""
        return self.usual is not None and self.exponent >= _STILL * self.usual


def peak_seen_w(pile_w: float, companion: AtBoost | None, limit_w: float) -> float:
    """Return the peak of power that kernels and the companion show together; ``inf`` for none.

    Kernels that are alike draw alike, whatever holds them: so the companion must not be seen to
    draw as much and to follow the clock, nor to draw more.

    Args:
        pile_w: What several kernels draw at most; ``inf`` where they differ.
    """
    if companion is None:
        return pile_w
    if companion.exponent < _NO_FASTER and companion.power_w >= _ABOVE * limit_w:
        alike = pile_w >= OFF_PEAK * companion.power_w
        return min(pile_w, companion.power_w) if alike else companion.power_w
    free = companion.follows and companion.power_w >= _AS_HOT * pile_w
    return math.inf if free else pile_w


def companion_at_boost(mixed: Sequence[Window], company: Company) -> AtBoost | None:
    """Return what the hot companion did at boost; ``None`` where it was at one clock at most."""
    rungs = []
    for sample in mixed:
        if sample.mix.launches or sample.hot_s is None:
            continue
        draw = company.left(sample, sample.mix.hot * sample.hot_s, 0.0)
        if draw is not None:
            core_mhz = sample.spin_mhz or sample.at_mhz
            rungs.append((core_mhz, sample.hot_s, draw.mean_w))
    rungs.sort()
    slower = [rung for rung in rungs if rung[0] < (1.0 - _RUNG) * rungs[-1][0]]
    if not slower:
        return None
    slowest, next_, boost = slower[0], slower[-1], rungs[-1]
    third = slowest[0] < (1.0 - _RUNG) * next_[0]
    return AtBoost(boost[2], _exponent(next_, boost), _exponent(slowest, next_) if third else None)


def _exponent(slow: tuple[float, ...], fast: tuple[float, ...]) -> float:
    """Return the exponent of time against the clock, between a clock with a time and another."""
    return math.log(slow[1] / fast[1]) / math.log(fast[0] / slow[0])


def below_peak(left: Sequence[Left], peak: float) -> tuple[Left, ...]:
    """Return what ran at the clock that was read: not what a peak of power held.

    Args:
        peak: The greatest power there is, in W.
    """
    held_w = OFF_PEAK * peak
    held = {one.kernel for one in left if one.power_w is not None and one.power_w >= held_w}
    highest = dict.fromkeys(held, 0.0)
    nearest: dict[str, tuple[float, Left]] = {}
    for one in sorted(left, key=lambda one: one.core_mhz):
        if one.power_w is None or one.power_w >= held_w:
            continue
        if one.kernel in held:
            # Power goes with the square of the clock there, or a little less.
            reach = one.core_mhz * math.sqrt(peak / one.power_w)
            highest[one.kernel] = min(reach, highest[one.kernel] or math.inf)
        elif one.power_windows >= _SURE:
            nearest[one.kernel] = one.power_w, one

    def below(one: Left) -> bool:
        if one.power_w is not None:
            return one.power_w < held_w
        if one.kernel not in nearest:
            return True
        # Of what nobody saw there: energy rises with voltage, and power with the pace besides.
        power_w, seen = nearest[one.kernel]
        rise = (one.core_mhz / seen.core_mhz) ** _VOLTAGE * seen.time_s / one.time_s
        return bool(power_w * rise < held_w)

    return tuple(
        one for one in left if below(one) and one.core_mhz <= highest.get(one.kernel, math.inf)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Measurements in company, taken apart.

    Attributes:
        company: What idling and the companion draw, where no peak of power holds it.
        left: What is left for kernels and for the companion by itself, where none holds them.
        peak_w: The peak; ``inf`` where none was seen.
        boost_s: What a launch of kernels took at boost, whatever held it there, in s.
    """

    company: Company
    left: tuple[Left, ...]
    peak_w: float
    boost_s: dict[str, float]


def taken_apart(
    mixed: Sequence[Window],
    kernels: Sequence[Kernel],
    shape: GpuConstants,
    own_mem_mhz: float,
    limit_w: float | None,
) -> Apart:
    """Take off what company drew, where everything ran at the clock that was read.

    Args:
        shape: How idle power is assumed to follow clock and temperature.
    """
    company = Company.of(mixed, shape, own_mem_mhz)
    left = taken_off(mixed, kernels, company)
    limit_w = limit_w or math.inf
    peak = peak_seen_w(peak_w(left, limit_w), companion_at_boost(mixed, company), limit_w)
    boost_mhz = _BOOSTS * max((one.core_mhz for one in left), default=0.0)
    boosts: defaultdict[str, list[float]] = defaultdict(list)
    for one in left:
        if one.core_mhz >= boost_mhz and one.time_windows:
            boosts[one.kernel].append(one.time_s)
    boost_s = {name: statistics.fmean(each_s) for name, each_s in boosts.items()}
    if math.isfinite(peak):
        company = Company.of(mixed, shape, own_mem_mhz, below_w=OFF_PEAK * peak)
        left = below_peak(taken_off(mixed, kernels, company), peak)
    return Apart(company=company, left=left, peak_w=peak, boost_s=boost_s)
