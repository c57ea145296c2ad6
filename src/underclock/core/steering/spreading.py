"""Company spread through a long round, so that its clock is one clock.

A power cap averages over about 100 ms. Company that follows a longer step lowers or raises the
clock after it; in pieces between the step's launches, even in time, it does so all through.

Shape letters: n launches of a round.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from underclock.core.steering.mixing import LONGEST_ROUND_S, METER_S
from underclock.records import Mix

_PERIOD_S = 0.02  # between pieces: about as often as power caps act


def spread(mix: Mix, launches_s: Sequence[float], hot_s: float) -> Mix:
    """Return a mix with its company in pieces, as even in time as launches allow.

    A round that is short enough has one piece, at its end. Companions are rounded to so many in
    each piece, and idling is long enough in each to tell the clock there.

    Args:
        launches_s: About how long each launch of the round takes. Length n.

    Returns:
        The mix, alike but for where its company runs.
    """
    ends_s = list(itertools.accumulate(launches_s))
    round_s = ends_s[-1] + mix.hot * hot_s + mix.idle_s
    if round_s <= LONGEST_ROUND_S:
        return mix
    pieces, each = math.ceil(round_s / _PERIOD_S), 0
    after: tuple[int, ...] = ()
    while len(after) != pieces:
        pieces = len(after) or pieces
        if mix.hot:  # as many pieces as leave about as many companions
            each = math.ceil(mix.hot / pieces)
            pieces = max(1, round(mix.hot / each))
        after = _places(ends_s, pieces)
    idle_s = max(mix.idle_s, pieces * METER_S)
    after = after if pieces > 1 else ()
    return msgspec.structs.replace(mix, hot=each * pieces, idle_s=idle_s, after=after)


def _places(ends_s: Sequence[float], pieces: int) -> tuple[int, ...]:
    """Return the launches that end nearest to parts of the time; fewer where launches are long."""
    found = set()
    for piece in range(1, pieces + 1):
        at_s = ends_s[-1] * piece / pieces
        later = min(bisect_left(ends_s, at_s), len(ends_s) - 1)
        earlier = max(later - 1, 0)
        found.add(1 + min(later, earlier, key=lambda n: abs(ends_s[n] - at_s)))
    return tuple(sorted(found))
