"""When a clock changed, seen in how long tiny pieces of equal work take.

A kernel does the same tiny work over and over and notes the time after each: a tick. At another
clock ticks last longer or shorter, so the tick from which durations belong to the new clock's
distribution says when it changed; the method of LATEST, arXiv 2502.20075. Times are finer than a
tick: the two ticks around the change say how much of them was done at the old clock.

Shape letters: N ticks, R repeats.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.errors import MeasurementError

_LEAST_TICKS = 8  # a level of fewer says little
_LAST_TICKS = 100  # of a trace these show where it ended, or a quarter of those after the call
_SIGMA_OF_MAD = 1.4826  # of a normal distribution
_FAR_SIGMAS = 5.0
_NEAR = 0.1  # of the median: ticks this near are no outliers, however still the others are
_LEAST_CONTRAST = 0.005  # of a duration: heat and noise move levels by about this
_ARRIVED = 0.05  # of the new duration: so far from it counts as there
_ARRIVED_SIGMAS = 4.0
_LONG_TICKS = 3.0  # a tick this much longer than any ordinary one did not work all the time
_LONG_BEFORE = 1.5  # or than the longest before anything was asked: then it did not either
_LEAST_SPREAD = 0.01  # of the median: repeats this near are no outliers


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How long ticks last while the clock stands.

    Attributes:
        sigma_s: Standard deviation, without interrupted ticks.
        interrupted: Part of the time, 0 to 1, that lies in ticks that were interrupted.
    """

    mean_s: float
    sigma_s: float
    interrupted: float


class TraceStatus(StrEnum):
    """What a trace shows of a change; the value is the sentence shown to the user."""

    CHANGED = "the clock changed"
    ALIKE = "work takes equally long at both clocks: when they change cannot be told"
    UNSETTLED = "the GPU was not at the old clock when the new one was asked for"
    PENDING = "the new clock was not reached within the trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """When a clock changed.

    Attributes:
        at_s: When the clock was the new one, or when the stall before that began; ``None`` where no
            change was seen.
        stall_s: How long from then no work was done, 0 for not at all; ``None`` where no change was
            seen.
    """

    status: TraceStatus
    at_s: float | None = None
    stall_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustSummary:
    """Repeats of one quantity, summed up without outliers.

    Attributes:
        median: Of the repeats kept.
        p05: Their 5 % quantile.
        p95: Their 95 % quantile.
        sigma: Their standard deviation, from the median absolute deviation.
        kept: Which repeats were kept. Shape (R,).
    """

    median: float
    p05: float
    p95: float
    sigma: float
    kept: tuple[bool, ...]


def level(edges_s: Floats) -> Level:
    """Return how long ticks last.

    Args:
        edges_s: Start of the first tick, then the end of every tick. Shape (N + 1,).

    Raises:
        MeasurementError: Fewer than eight ticks.
    """
    ticks = len(edges_s) - 1
    if ticks < _LEAST_TICKS:
        raise MeasurementError(
            f"the GPU did {ticks} pieces of work where {_LEAST_TICKS} are the least that say how "
            "long they take",
            hint="something else takes all of its time: measure when it is idle",
        )
    return _level(np.diff(edges_s))


def tell_apart(one: Level, other: Level) -> bool:
    """Whether ticks show which of two levels holds."""
    contrast_s = abs(one.mean_s - other.mean_s)
    least_s = _LEAST_CONTRAST * min(one.mean_s, other.mean_s)
    return contrast_s > max(one.sigma_s, other.sigma_s, least_s)


def find_change_point(
    edges_s: Floats, *, asked_s: float, before: Level, after: Level
) -> ChangePoint:
    """Find when the clock changed.

    The levels are only where to look: where the trace begins and where it ends decide, so that a
    little heat since the levels were taken does no harm.

    Args:
        edges_s: Start of the first tick, then the end of every tick, ascending. Shape (N + 1,).
        asked_s: When the new clock was asked for; nothing changes before.
    """
    if not tell_apart(before, after):
        return ChangePoint(status=TraceStatus.ALIKE)
    duration_s = np.diff(edges_s)
    first = int(np.searchsorted(edges_s[1:], asked_s))
    if first < _LEAST_TICKS or not _is_at(
        old := _level(duration_s[:first]), wanted=before, other=after
    ):
        return ChangePoint(status=TraceStatus.UNSETTLED)
    last = min((len(duration_s) - first) // 4, _LAST_TICKS)
    if last < _LEAST_TICKS or not _is_at(
        new := _level(duration_s[-last:]), wanted=after, other=before
    ):
        return ChangePoint(status=TraceStatus.PENDING)
    ordinary_s = max(old.mean_s, new.mean_s)
    longest_s = max(_LONG_TICKS * ordinary_s, _LONG_BEFORE * float(np.max(duration_s[:first])))
    arrived = first + _arrival(duration_s[first:], old, new, _LONG_TICKS * ordinary_s)
    arrived = min(arrived, len(duration_s) - 1)
    at_s, stall_s = _border(edges_s, arrived, first, old, new, longest_s)
    return ChangePoint(status=TraceStatus.CHANGED, at_s=max(asked_s, at_s), stall_s=stall_s)


def summarise(values: Floats) -> RobustSummary:
    """Sum up repeats, without those far from the others.

    Args:
        values: Not negative. Shape (R,).

    Raises:
        ValueError: There are none.
    """
    if len(values) == 0:
        raise ValueError("nothing to summarise")
    kept = _inliers(values, _LEAST_SPREAD)
    inside = values[kept]
    median = float(np.median(inside))
    p05, p95 = (float(np.quantile(inside, share)) for share in (0.05, 0.95))
    sigma = _SIGMA_OF_MAD * float(np.median(np.abs(inside - median)))
    return RobustSummary(median=median, p05=p05, p95=p95, sigma=sigma, kept=tuple(kept.tolist()))


def _inliers(values: Floats, near: float) -> Bools:
    """Return which values lie with the others. Shape (N,)."""
    median = float(np.median(values))
    away = np.abs(values - median)
    sigma = _SIGMA_OF_MAD * float(np.median(away))
    inside: Bools = away <= max(_FAR_SIGMAS * sigma, near * median)
    return inside


def _level(duration_s: Floats) -> Level:
    # A mean, not the median: timers are coarse, and a median can be no finer.
    kept = _inliers(duration_s, _NEAR)
    inside_s = duration_s[kept]
    return Level(
        mean_s=float(np.mean(inside_s)),
        sigma_s=float(np.std(inside_s)),
        interrupted=1.0 - float(np.sum(inside_s) / np.sum(duration_s)),
    )


def _is_at(level: Level, *, wanted: Level, other: Level) -> bool:
    """Whether a level is one that was known, allowing for a little heat."""
    room_s = min(abs(wanted.mean_s - other.mean_s) / 4, _ARRIVED * wanted.mean_s)
    return abs(level.mean_s - wanted.mean_s) <= room_s


def _arrival(duration_s: Floats, old: Level, new: Level, longest_s: float) -> int:
    """Return the first tick from which durations are the new clock's. Shape (N,).

    Each tick speaks for the old clock (-1) or the new (+1), the less the nearer it is to the
    border; the border lies at the new level, so that a clock that comes by degrees has come when
    it is there. The cut that most ticks agree with is where their sum is least. Interrupted ticks
    say nothing.
    """
    contrast_s = abs(new.mean_s - old.mean_s)
    room_s = max(_ARRIVED * new.mean_s, _ARRIVED_SIGMAS * new.sigma_s)
    room_s = min(room_s, contrast_s / 2)
    to_new_s = (old.mean_s - duration_s) if new.mean_s < old.mean_s else (duration_s - old.mean_s)
    speaks = np.clip((to_new_s - (contrast_s - room_s)) / room_s, -1.0, 1.0)
    speaks[duration_s > longest_s] = 0.0
    return int(np.argmin(np.concatenate(([0.0], np.cumsum(speaks)))))


def _border(
    edges_s: Floats, arrived: int, first: int, old: Level, new: Level, longest_s: float
) -> tuple[float, float]:
    """Return when the clock changed, finer than a tick, and how long no work was done from then.

    ``arrived`` is the first tick of the new clock, ``first`` the first that may be; a tick longer
    than ``longest_s`` stood still for part of it.
    """
    start = max(first, arrived - 2)
    around_s = np.diff(edges_s[start : arrived + 3])
    longest = int(np.argmax(around_s))
    if around_s[longest] > longest_s:
        # In the mean half of such a tick's work was done before it stood still.
        stall_s = float(around_s[longest]) - (old.mean_s + new.mean_s) / 2
        return float(edges_s[start + longest]) + old.mean_s / 2, stall_s
    start = max(first, arrived - 1)
    ticks = arrived + 1 - start
    taken_s = float(edges_s[arrived + 1] - edges_s[start])
    share = (taken_s - ticks * new.mean_s) / (old.mean_s - new.mean_s)
    return float(edges_s[start]) + min(max(share, 0.0), ticks) * old.mean_s, 0.0
