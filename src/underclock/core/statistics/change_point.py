"""When the level of readings changes: of durations of equal work, or of a clock.

Each reading speaks for one level or the other, and the cut with which most agree is where the sum
of their votes is least: single disturbed readings move nothing. Shape letter: N readings.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from underclock.arrays import Floats

_SIGMA_OF_MAD = 1.4826  # of a normal distribution
_APART = 3.0  # standard deviations of a reading, by which two levels differ at least
_LEAST = 0.003  # fraction of a level: heat and timers move readings by about this
_NEAR, _NEAR_SIGMAS, _NEARER = 0.1, 4.0, 0.4  # of the gap: so near is at a level
_STALL = 3.0  # a reading so many times the greater level stood still, and votes for neither
_SURE = 7.0  # standard deviations of a mean of as many readings


def find_change(values: Floats, lead: int, tail: int) -> tuple[int, int] | None:
    """Find the one change of level.

    Args:
        values: Readings in turn. Shape (N,).
        lead: So many at the beginning are at the old level.
        tail: So many at the end are at the new one.

    Returns:
        The first reading that is not at the old level, and the first from which on they are at the
        new one; ``None`` where the levels cannot be distinguished.
    """
    old, new = float(np.median(values[:lead])), float(np.median(values[-tail:]))
    gap = abs(new - old)
    noise = max(robust_sigma(values[:lead] - old), robust_sigma(values[-tail:] - new))
    if gap <= max(_APART * noise, _LEAST * old):
        return None
    near = max(_NEAR * gap, min(_NEAR_SIGMAS * noise, _NEARER * gap))
    works = values <= _STALL * max(old, new)
    votes = (
        np.where(each, 1.0, -1.0) * works
        for each in (abs(values - old) > near, abs(values - new) <= near)
    )
    left, arrived = (np.concatenate(([0.0], np.cumsum(each))) for each in votes)
    return int(np.argmin(left)), len(values) - int(np.argmin(arrived[::-1]))


def moves(values: Floats, width: int) -> Iterator[tuple[int, int, bool]]:
    """Find every change of level in a sequence that may have many.

    Args:
        values: Readings in turn. Shape (N,).
        width: Readings on each side that are compared: levels that last less are not seen.

    Yields:
        Of each, as `find_change`, the two readings; and whether values rise.
    """
    if len(values) <= 2 * width:
        return
    level = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    change = np.log(level[width:] / level[:-width])
    noise = robust_sigma(np.diff(values)) / float(np.median(values))
    least = max(_LEAST, _SURE * noise / np.sqrt(width))
    signs = np.sign(change) * (np.abs(change) > least)
    edges = np.flatnonzero(np.diff(np.concatenate(([0.0], signs, [0.0]))))
    for begin, end in pairwise(edges):
        found = find_change(values[begin : end - 1 + 2 * width], width, width)
        if signs[begin] and found is not None:
            yield int(begin) + found[0], int(begin) + found[1], bool(signs[begin] > 0)


def robust_sigma(away: Floats) -> float:
    """Return a standard deviation about 0 from the median distance; odd values hardly move it."""
    return _SIGMA_OF_MAD * float(np.median(np.abs(away)))
