"""The search for the best multipliers made short: a sample of the ring first, few settings after.

A sample of the ring tells about what the multiplier of time is and which settings matter. With
those settings only, the search over the whole ring is cheap. It is a warm start all the same: the
bound comes from one more path, with all settings, at the multipliers that were found.
"""

from dataclasses import dataclass, replace

import numpy as np

from underclock.arrays import Ints
from underclock.core.switching.dual import DualSearch
from underclock.core.switching.lagrangian import lagrangian_of
from underclock.core.switching.problem import SequenceProblem
from underclock.core.switching.ring import Ring, ring_of
from underclock.core.switching.viterbi import shortest_path

_SAMPLE, _PART, _WINDOWS = 240, 20, 6  # least invocations, or a part of all; stretches of them
_LATE = 6  # paths at the end of a search whose settings matter


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Where a search begins; however poor, it costs time and never truth.

    Attributes:
        multiplier: Of time; ``None`` if nothing is known of it.
        settings: The problem's numbers of the settings that matter.
    """

    multiplier: float | None
    settings: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """When a search for multipliers ends.

    Attributes:
        tolerance: Fraction of the bound by which it may still rise.
        max_paths: Most shortest paths for one multiplier, or for a pair of them.
        restarts: Most searches with few settings, each with those that the last was missing.
    """

    tolerance: float
    max_paths: int = 60
    restarts: int = 3


def search_multipliers(
    problem: SequenceProblem, ring: Ring, start: WarmStart, limits: SearchLimits
) -> DualSearch | None:
    """Find the best multipliers.

    Args:
        problem: The problem.
        ring: It, laid out with all settings.
        start: Where to begin.
        limits: When to end.

    Returns:
        The search, on a ring that may have fewer settings; ``None`` if no path is fast enough.
    """
    multiplier, settings = start.multiplier, start.settings
    for _ in range(limits.restarts):
        part = ring_of(problem, int(ring.first[0]), settings)
        if part is None or len(settings) == len(ring.settings):
            break
        search = _search_on(problem, part, most_time(problem, ring), limits)
        if not search.run(multiplier):
            break
        least, choice = shortest_path(ring, lagrangian_of(ring, search.time, search.switch))
        tolerance = limits.tolerance * abs(search.bound)
        if least - search.multiplied_limits >= search.bound - tolerance:
            return search
        multiplier = search.time
        settings = np.union1d(settings, ring.settings[choice])
    search = _search_on(problem, ring, most_time(problem, ring), limits)
    return search if search.run(multiplier) else None


def _search_on(
    problem: SequenceProblem, ring: Ring, latest: float, limits: SearchLimits
) -> DualSearch:
    return DualSearch(
        ring=ring,
        latest=latest,
        most=problem.max_switches,
        tolerance=limits.tolerance,
        max_paths=limits.max_paths,
    )


def most_time(problem: SequenceProblem, ring: Ring) -> float:
    """Return the budget, or what no path exceeds if that is less."""
    slowest = ring.time.max(axis=1).sum() + len(ring.time) * ring.switch_time.max()
    return min(problem.latest_s, float(slowest) * 1.001)


def warm_start(problem: SequenceProblem, ring: Ring, *, max_paths: int = 60) -> WarmStart:
    """Search a sample of the ring, where it is long enough to be sampled.

    Args:
        problem: The problem.
        ring: It, laid out with all settings.
        max_paths: Most shortest paths to search with.
    """
    n = len(problem.order)
    if n < 2 * _SAMPLE:
        return WarmStart(multiplier=None, settings=ring.settings)
    length = max(_SAMPLE, n // _PART) // _WINDOWS
    begin = np.linspace(0, n, _WINDOWS, endpoint=False).astype(np.int64)
    at = (begin[:, None] + np.arange(length)).ravel()
    blocked = problem.blocked[at]
    blocked[::length] = False
    fastest = problem.time_s.min(axis=1)[problem.order]
    share = float(fastest[at].sum() / max(fastest.sum(), 1e-300))
    sample = replace(
        problem,
        order=problem.order[at],
        blocked=blocked,
        max_switches=None,
        budget_s=most_time(problem, ring) * share,
    )
    # Where all items have a setting, so has each part of one.
    sampled = ring_of(sample, int(fastest[at].argmax())) or ring
    limits = SearchLimits(tolerance=1e-5, max_paths=max_paths)
    search = _search_on(sample, sampled, most_time(sample, sampled), limits)
    if not search.run():
        return WarmStart(multiplier=None, settings=ring.settings)
    late = np.concatenate([path.choice for path in search.paths[:1] + search.paths[-_LATE:]])
    return WarmStart(multiplier=search.time, settings=np.unique(sampled.settings[late]))
