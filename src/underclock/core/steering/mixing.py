"""Which mix runs at a wanted clock: the one whose mean power there is the limit.

A power cap averages over about 100 ms. Co-load that follows a longer step lowers or raises the
clock after it; spread in pieces between the step's launches, even in time, it does so all through.

Shape letters: n launches of a round.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from underclock.core.steering.coload import CoLoad
from underclock.core.steering.power_peak import OFF_PEAK
from underclock.core.step.power_cap import driver_says
from underclock.physics.cap import WINDOW_S
from underclock.physics.costs import voltage_v
from underclock.records import Mix, Window

_EXPONENT = 0.6  # of time against clock, where a kernel was seen at one clock only
_SAME_MHZ = 15.0  # closer clocks tell no exponent
_FREE = 0.93  # of the limit, at which a mix surely boosts
_LEAST_ROUND_S = 0.005  # so that what is between rounds hardly counts
_LEAST = 0.5  # of the idling that was asked for: no clock is twice the highest
_EXACT = 0.03  # of the share that was wanted
_LONGEST_S = 1.0  # of a round with heaters, however long the step
_MOST_SHARE = 0.9  # of a round that co-load may take: of less, nothing can be read
_USUALLY_HELD = 0.85  # of a clock that the cap does not allow, where the clock was not read
_MOST_IDLE = 3.0  # of the time a kernel runs, idling next to it
_ALIKE = 0.02  # mixes that differ by less are the same
_PERIOD_S = 0.005  # between pieces: a cap looks each 20 ms, and would see those in one phase
_SPIN_LATE_S = 9e-7  # what a count of cycles takes besides: 20.0009 ms for 20 on an idle H200

LONGEST_ROUND_S = 0.08
"""Of a round with its co-load at its end: power caps average over about 100 ms."""
SURE = 0.08
"""Spread of a power, as a fraction: one that is less sure is used where nothing is surer."""
METER_S = 2e-4
"""A piece of idling in every mix that is timed, at least: how long it takes shows the clock."""
METERED = Mix(idle_s=METER_S)
"""One launch, or the step once, with a piece of idling that shows the clock."""
HEATERS = Mix(launches=0, hot=8)
"""The heater by itself."""
IDLING = Mix(launches=0, idle_s=0.02)
"""Nothing but idling."""


def are_alike(mix: Mix, other: Mix) -> bool:
    """Whether two mixes, of the same kernel or both of none, run at the same clock."""
    here, there = (
        [part / (one.launches or one.hot) for part in (one.hot, one.idle_s)] for one in (mix, other)
    )
    return all(abs(a - b) <= _ALIKE * max(a, b) for a, b in zip(here, there, strict=True))


def spin_mhz(mix: Mix, idle_s: float | None, highest_mhz: float | None) -> float | None:
    """Return the core clock by how long idling took; ``None`` where there was too little of it.

    Args:
        highest_mhz: Core clock at which it lasts as asked; ``None`` where it does not tell.
    """
    if idle_s is None or highest_mhz is None or mix.idle_s < mix.pieces * METER_S / 2:
        return None
    late_s = mix.pieces * _SPIN_LATE_S
    return highest_mhz * mix.idle_s / max(idle_s - late_s, mix.idle_s * _LEAST)


def launch_clocks(
    mix: Mix, pieces_s: Sequence[float], highest_mhz: float, launches: int
) -> tuple[float, ...]:
    """Return the core clock of each launch of a round, by idling before and after it.

    Args:
        pieces_s: Idling as it was, in each piece of co-load; not empty.

    Returns:
        Clocks in MHz; none where pieces are too short to tell it.
    """
    piece = Mix(idle_s=mix.idle_s / mix.pieces)
    read = [spin_mhz(piece, idle_s, highest_mhz) for idle_s in pieces_s]
    clocks = [core_mhz for core_mhz in read if core_mhz is not None]
    if len(clocks) < mix.pieces:
        return ()
    # After the last piece comes the first: rounds follow each other.
    following = [bisect_right(mix.after, launch) % mix.pieces for launch in range(launches)]
    return tuple((clocks[piece - 1] + clocks[piece]) / 2.0 for piece in following)


class DrawAtClock(NamedTuple):
    """What something drew and how long it took at one clock."""

    core_mhz: float
    power_w: float
    time_s: float
    spread: float = 0.0  # standard deviation of the power, as a fraction of it


@dataclass(frozen=True, slots=True)
class MixConditions:
    """Where mixes run."""

    coload: CoLoad
    heater: tuple[DrawAtClock, ...]
    limit_w: float
    boost_mhz: float  # core clock of a GPU below its cap
    temperature_c: float
    # power that no kernel exceeds, however low the mean; ``inf`` where none was seen
    peak_w: float = math.inf
    _cached: dict[float, tuple[float | None, float]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def held_w(self) -> float:
        """Power from which something may run slower than the clock that is read."""
        return OFF_PEAK * self.peak_w

    def idle_w_and_volts(self, core_mhz: float) -> tuple[float | None, float]:
        """Return the expected idle power in W, ``None`` where never measured, and the voltage."""
        cached = self._cached.get(core_mhz)
        if cached is None:
            coload = self.coload
            power = coload.idle_w(core_mhz, coload.own_mem_mhz, self.temperature_c)
            idle_w = None if power is None else power.mean_w
            cached = self._cached[core_mhz] = idle_w, float(voltage_v(coload.shape, core_mhz))
        return cached

    def expected(self, seen: Sequence[DrawAtClock], core_mhz: float) -> DrawAtClock:
        """Return what something is expected to draw and to take at a clock.

        Time is interpolated between the nearest clock at which it was seen and the next on that
        side; what it draws above idling goes with the square of voltage and with how often it is
        launched. A power that little is known of leads to another clock than the one wanted, so
        the nearest that is sure is taken.
        """
        near = min(seen, key=lambda one: abs(one.core_mhz - core_mhz))
        exponent, side = _EXPONENT, core_mhz - near.core_mhz
        apart = [one for one in seen if abs(one.core_mhz - near.core_mhz) > _SAME_MHZ]
        if apart:
            beyond = [one for one in apart if (one.core_mhz - near.core_mhz) * side > 0]
            other = min(beyond or apart, key=lambda one: abs(one.core_mhz - core_mhz))
            slower = math.log(other.time_s / near.time_s)
            exponent = slower / math.log(near.core_mhz / other.core_mhz)
        time_s = near.time_s * (near.core_mhz / core_mhz) ** exponent
        surest = min(one.spread for one in seen)
        sure = [one for one in seen if one.spread <= max(surest, SURE)]
        near = min(sure, key=lambda one: abs(one.core_mhz - core_mhz))
        idle_w, volts = self.idle_w_and_volts(core_mhz)
        near_idle_w, near_volts = self.idle_w_and_volts(near.core_mhz)
        own_w = (near.power_w - (near_idle_w or 0.0)) * (volts / near_volts) ** 2
        return DrawAtClock(core_mhz, (idle_w or 0.0) + own_w * near.time_s / time_s, time_s)


def mix_at(
    core_mhz: float,
    seen: Sequence[DrawAtClock],
    conditions: MixConditions,
    *,
    most_launches: int = 512,
) -> Mix | None:
    """Return the mix in which something is expected to run at a clock.

    Args:
        core_mhz: The clock wanted; at the boost clock it boosts for sure.
        seen: What is known of the kernel or the step; empty for the heater by itself.

    Returns:
        The mix; ``None`` where no co-load brings it there, or so much that nothing can be read.
    """
    boosts = core_mhz >= conditions.boost_mhz - _SAME_MHZ
    limit_w = _FREE * conditions.limit_w if boosts else conditions.limit_w
    own = conditions.expected(seen or conditions.heater, core_mhz)
    fits = math.ceil(_LEAST_ROUND_S / own.time_s)
    launches = min(fits, most_launches) if seen else fits
    if own.power_w > limit_w:
        idle_s = _idling(own, limit_w, conditions.idle_w_and_volts(core_mhz)[0], launches)
        if idle_s is None:
            return None
        idle_s = max(idle_s, METER_S)
        return Mix(launches=launches if seen else 0, hot=0 if seen else launches, idle_s=idle_s)
    if boosts:
        return Mix(launches=launches, idle_s=METER_S) if seen else None
    if not seen or not conditions.heater:
        return None
    heater = conditions.expected(conditions.heater, core_mhz)
    if not limit_w < heater.power_w < conditions.held_w:
        return None
    ratio = own.time_s * (limit_w - own.power_w) / (heater.time_s * (heater.power_w - limit_w))
    # The round with so many heaters for each launch, nearly.
    coload_s = ratio * heater.time_s
    if coload_s > _MOST_SHARE * (coload_s + own.time_s) or coload_s + own.time_s > _LONGEST_S:
        return None
    best, off = None, math.inf
    hot = 0
    while best is None or (
        off > _EXACT and hot * (own.time_s / ratio + heater.time_s) < LONGEST_ROUND_S
    ):
        hot += 1
        # More of them with so few heaters run at a clock of their own before each.
        most = min(most_launches, max(int(hot * (LONGEST_ROUND_S - heater.time_s) / own.time_s), 1))
        launches = min(max(round(hot / ratio), 1), most)
        miss = abs(math.log(hot / launches / ratio))
        if launches == 1 and ratio > 1.0:
            hot = max(hot, round(ratio))
            miss = abs(math.log(hot / ratio))
        if miss < off:
            best, off = Mix(launches=launches, hot=hot, idle_s=METER_S), miss
    return best


def thinned(core_mhz: float, seen: DrawAtClock, idle_w: float, limit_w: float) -> Mix | None:
    """Return the round in which a kernel stays below the cap at a clock it cannot hold alone.

    Returns:
        The mix; ``None`` where idling itself draws about as much as the limit, or where launches
        are so long that the cap acts within them, whatever goes before.
    """
    faster = core_mhz / seen.core_mhz
    # After idling for ever the loop's mean grows to this in a launch, at power like the clock.
    fade = math.exp(-seen.time_s / faster / WINDOW_S)
    least_w = idle_w + (seen.power_w - idle_w) * faster
    if least_w + (idle_w - least_w) * fade > limit_w:
        return None
    # No more than the cube of the clock: voltage does not rise faster than the clock does.
    power_w = idle_w + (seen.power_w - idle_w) * faster**3
    own = DrawAtClock(core_mhz, power_w, seen.time_s / faster)
    launches = math.ceil(_LEAST_ROUND_S / own.time_s)
    idle_s = _idling(own, _FREE * limit_w, idle_w, launches)
    return None if idle_s is None else Mix(launches=launches, idle_s=max(idle_s, 0.0))


def next_thinned(capped: Window, idle: Window, tried: Sequence[Window]) -> Mix | None:
    """Return the next mix with idling of a kernel capped at a lock; ``None`` if more is of no use.

    Args:
        tried: Windows of the kernel with idling, at that lock.
    """
    if not tried:
        core_mhz = float(capped.asked.core_mhz or 0)
        seen = capped.observed.core_mhz if capped.observed else None
        own = DrawAtClock(float(seen or _USUALLY_HELD * core_mhz), capped.power_w, capped.time_s)
        return thinned(core_mhz, own, idle.power_w, capped.power_w)
    last = tried[-1]
    idles = last.mix.idle_s > _MOST_IDLE * last.mix.launches * capped.time_s
    if idles or not driver_says(last.throttle_reasons):
        return None
    return Mix(launches=last.mix.launches, idle_s=2.0 * last.mix.idle_s)


def _idling(own: DrawAtClock, limit_w: float, idle_w: float | None, launches: int) -> float | None:
    """Return how long to idle in a round that is too hot, in s."""
    if idle_w is None or idle_w >= limit_w:
        return None
    per_launch_s = own.time_s * (own.power_w - limit_w) / (limit_w - idle_w)
    if per_launch_s > _MOST_SHARE * (per_launch_s + own.time_s):
        return None
    return launches * per_launch_s


def spread_out(mix: Mix, launches_s: Sequence[float], heater_s: float) -> Mix:
    """Return a mix with its co-load in pieces, as even in time as launches allow.

    A round that is short enough has one piece, at its end. Heaters are rounded to so many in
    each piece, and idling is long enough in each to tell the clock there.

    Args:
        launches_s: About how long each launch of the round takes. Length n.
    """
    ends_s = list(itertools.accumulate(launches_s))
    round_s = ends_s[-1] + mix.hot * heater_s + mix.idle_s
    if round_s <= LONGEST_ROUND_S:
        return mix
    pieces, each = math.ceil(round_s / _PERIOD_S), 0
    after: tuple[int, ...] = ()
    while len(after) != pieces:
        pieces = len(after) or pieces
        if mix.hot:  # as many pieces as leave about as many heaters
            each = math.ceil(mix.hot / pieces)
            pieces = max(1, round(mix.hot / each))
        # Launches that end nearest to parts of the time; fewer where launches are long.
        found = set()
        for piece in range(1, pieces + 1):
            at_s = ends_s[-1] * piece / pieces
            later = min(bisect_left(ends_s, at_s), len(ends_s) - 1)
            found.add(1 + min(later, max(later - 1, 0), key=lambda n: abs(ends_s[n] - at_s)))
        after = tuple(sorted(found))
    idle_s = max(mix.idle_s, pieces * METER_S)
    after = after if pieces > 1 else ()
    return msgspec.structs.replace(mix, hot=each * pieces, idle_s=idle_s, after=after)
