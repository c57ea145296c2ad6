"""The search for the best prices made short: a sample of the ring first, few settings after.

A sample of the ring tells about what time is worth and which settings matter. With those settings
only, the search over the whole ring is cheap. What it finds is a guess all the same: the bound
comes from one more lap, with all settings, at the prices found.
"""

from dataclasses import replace

import numpy as np

from underclock.arrays import Ints
from underclock.core.switching.cycle import Lap, lap_of
from underclock.core.switching.dual import Search
from underclock.core.switching.problem import SequenceProblem
from underclock.core.switching.viterbi import cheapest, forward, priced

_SAMPLE, _PART, _WINDOWS = 240, 20, 6  # least invocations, or a part of all; stretches of them
_LATE = 6  # walks at the end of a search whose settings matter
_TURNS = 3  # searches, each with what the last was missing


def searched(problem: SequenceProblem, lap: Lap, *, enough: float) -> Search | None:
    """Find the best prices.

    Args:
        problem: The problem.
        lap: It, laid out with all settings.
        enough: Fraction of the bound by which it may still rise.

    Returns:
        The search, on a lap that may have fewer settings; ``None`` if no lap is fast enough.
    """
    latest = latest_of(problem, lap)
    cut = int(lap.first[0])
    guess, settings = _sampled(problem, lap, latest)
    for _ in range(_TURNS):
        part = lap_of(problem, cut, settings)
        if part is None or len(settings) == len(lap.settings):
            break
        search = Search(lap=part, latest=latest, most=problem.max_switches, enough=enough)
        if not search.run(guess):
            break
        prices = priced(lap, search.time, search.switch)
        ahead = forward(lap, prices, np.zeros(len(lap.settings)))
        least, choice = cheapest(lap, prices, ahead, prices.half)
        worth = search.time * latest + search.switch * (search.most or 0)
        if least - worth >= search.bound - enough * abs(search.bound):
            return search
        guess = search.time
        settings = np.union1d(settings, lap.settings[choice])
    search = Search(lap=lap, latest=latest, most=problem.max_switches, enough=enough)
    return search if search.run(guess) else None


def latest_of(problem: SequenceProblem, lap: Lap) -> float:
    """Return the budget, or what no lap exceeds if that is less."""
    slowest = lap.time.max(axis=1).sum() + len(lap.time) * lap.switch_time.max()
    return min(problem.latest_s, float(slowest) * 1.001)


def _sampled(problem: SequenceProblem, lap: Lap, latest: float) -> tuple[float | None, Ints]:
    """Return a guess at the price of time, and the settings that matter."""
    n = len(problem.order)
    if n < 2 * _SAMPLE:
        return None, lap.settings
    length = max(_SAMPLE, n // _PART) // _WINDOWS
    begin = np.linspace(0, n, _WINDOWS, endpoint=False).astype(np.int64)
    at = (begin[:, None] + np.arange(length)).ravel()
    blocked = problem.blocked[at]
    blocked[::length] = False
    fastest = problem.time_s.min(axis=1)[problem.order]
    sample = replace(
        problem,
        order=problem.order[at],
        blocked=blocked,
        max_switches=None,
        budget_s=latest * float(fastest[at].sum() / max(fastest.sum(), 1e-300)),
    )
    ring = lap_of(sample, int(fastest[at].argmax()))
    # Where all items have a setting, so has each part of one.
    ring = ring or lap
    search = Search(lap=ring, latest=latest_of(sample, ring), most=None, enough=1e-5)
    if not search.run():
        return None, lap.settings
    late = np.concatenate([walk.choice for walk in search.walks[:1] + search.walks[-_LATE:]])
    return search.time, np.unique(ring.settings[late])
