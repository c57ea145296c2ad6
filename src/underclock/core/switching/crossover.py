"""Schedules from shortest paths: cycles, and mixtures of one within the limits and one beyond.

A path may end at another setting than it began with, and its segment across the cut may be too
short: then it is no schedule, and no mixture of it is. So where paths leave a gap, the ring is cut
in the middle of the longest segment, and paths are sought that begin and end at its setting.

At the best multipliers the shortest paths have about the same Lagrangian cost, some within the
limits and some beyond. A schedule that follows one of the latter over a window of the ring, and one
of the former elsewhere, has about that cost too, and a time in between. So there is a window with
which it meets the budget almost exactly, and then its energy is near the bound.

Shape letters: n invocations, m items, W windows.
"""

import itertools

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.switching.dual import DualSearch
from underclock.core.switching.incumbent import Incumbent
from underclock.core.switching.lagrangian import lagrangian_of
from underclock.core.switching.problem import DWELL_SLACK, SequenceProblem
from underclock.core.switching.ring import ring_of
from underclock.core.switching.viterbi import shortest_path

_BEST = 2  # paths of either kind that are mixed
_MOST_WINDOWS = 250_000  # whose cost is worked out at a time
_MOST_OFFERS = 24  # cheapest windows that are checked against every rule


def offer_cycles(best: Incumbent, search: DualSearch) -> None:
    """Offer cycles through the longest segment of a shortest path, and their mixtures.

    Args:
        best: Takes what keeps every rule and is better.
        search: The best multipliers, and the settings that matter at them.
    """
    ring = search.ring
    lagrangian = lagrangian_of(ring, search.time, search.switch)
    choice = shortest_path(ring, lagrangian)[1][:-1]
    item = _middle_of_longest(choice, ring.time[np.arange(len(choice)), choice])
    there = ring_of(best.problem, int(ring.first[item]), ring.settings)
    if there is None:  # pragma: no cover - the same settings, whose items all have one
        return
    cycles = DualSearch(
        ring=there,
        latest=search.latest,
        most=search.most,
        tolerance=search.tolerance,
        max_paths=search.max_paths,
        through=int(choice[item]),
    )
    if cycles.run(search.time):
        offer_paths(best, cycles)


def _middle_of_longest(choice: Ints, time_s: Floats) -> int:
    """Return the item in the middle of the longest segment, by time.

    Args:
        choice: Setting of every item. Shape (m,).
        time_s: Of every item. Shape (m,).
    """
    starts = np.flatnonzero(choice != np.roll(choice, 1))
    if len(starts) == 0:
        return int(time_s.argmax())
    # Starting at the first change, no segment wraps.
    paid_s = np.append(0.0, np.cumsum(np.roll(time_s, -starts[0])))
    begins_s = paid_s[np.append(starts - starts[0], len(choice))]
    longest = int(np.diff(begins_s).argmax())
    middle_s = 0.5 * (begins_s[longest] + begins_s[longest + 1])
    within = int(np.searchsorted(paid_s, middle_s, side="right")) - 1
    return (int(starts[0]) + within) % len(choice)


def offer_paths(best: Incumbent, search: DualSearch) -> None:
    """Offer the paths of a search, and mixtures of the best.

    Args:
        best: Takes what keeps every rule and is better.
        search: Holds the paths, and the multipliers that say which are best.
    """
    for path in search.paths:
        best.offer(search.ring.expanded(path.choice[:-1]))
    offer_mixtures(best, search)


def offer_mixtures(best: Incumbent, search: DualSearch) -> None:
    """Offer schedules between the best paths within the limits and the best beyond them.

    Args:
        best: Takes what keeps every rule and is better.
        search: Holds the paths, and the multipliers that say which are best.
    """
    by_cost = sorted(
        search.paths,
        key=lambda p: p.energy + search.time * p.excess_s + search.switch * p.excess_switches,
    )
    within = [path for path in by_cost if path.keeps_limits][:_BEST]
    beyond = [path for path in by_cost if not path.keeps_limits][:_BEST]
    for one, other in itertools.product(within, beyond):
        _offer_windows(
            best,
            search.ring.expanded(one.choice[:-1]),
            search.ring.expanded(other.choice[:-1]),
        )


def _offer_windows(best: Incumbent, within: Ints, beyond: Ints) -> None:
    """Offer the cheapest schedules that follow one choice and, over one window, another.

    Args:
        best: Takes what keeps every rule and is better.
        within: Settings of a schedule that keeps the limits. Shape (n,).
        beyond: Settings of a cheaper one that does not. Shape (n,).
    """
    problem = best.problem
    differs = np.flatnonzero(within != beyond)
    if len(differs) == 0:
        return
    begins = np.flatnonzero(_may_cross(problem, within, beyond))
    ends = np.flatnonzero(_may_cross(problem, beyond, within))
    if len(begins) == 0 or len(ends) == 0:
        return
    most = max(1, _MOST_WINDOWS // len(ends))
    begins = begins[np.unique(np.linspace(0, len(begins) - 1, most).astype(np.int64))]
    time_s = _window_costs(
        problem.time_s[problem.order], problem.switch_time_s, within, beyond, begins, ends
    )
    energy_j = _window_costs(
        problem.energy_j[problem.order], problem.switch_energy_j, within, beyond, begins, ends
    )
    # Sums near the budget are only nearly right: the rules decide.
    energy_j[time_s > problem.latest_s * (1.0 + 1e-12)] = np.inf
    flat = energy_j.ravel()
    likely = np.argpartition(flat, min(_MOST_OFFERS, len(flat) - 1))[:_MOST_OFFERS]
    for window in likely[np.argsort(flat[likely], kind="stable")].tolist():
        if not flat[window] < best.energy:
            return
        begin, end = begins[window // len(ends)], ends[window % len(ends)]
        best.offer(_mixture(within, beyond, int(begin), int(end)))


def _may_cross(problem: SequenceProblem, source: Ints, target: Ints) -> Bools:
    """Return before which invocations a schedule may pass from one choice to another. Shape (n,).

    Only the segments on either side are looked at, as long as both choices leave them.
    """
    before = np.roll(source, 1)
    since_s = np.roll(_time_in_segment(problem, source), 1)
    until_s = _time_in_segment(problem, target[::-1], problem.order[::-1])[::-1]
    after = _next_setting(target)
    changes = before != target
    slack = 1.0 - DWELL_SLACK
    last_s = np.where(changes, until_s, since_s + until_s)
    may: Bools = last_s >= problem.dwell_s[target, after] * slack
    may &= ~changes | (since_s >= problem.dwell_s[before, target] * slack)
    may &= ~(changes & problem.blocked)
    return may


def _time_in_segment(problem: SequenceProblem, choice: Ints, order: Ints | None = None) -> Floats:
    """Return the time from the start of each invocation's segment to its own end. Shape (n,)."""
    each_s = problem.time_s[problem.order if order is None else order, choice]
    starts = np.flatnonzero(choice != np.roll(choice, 1))
    if len(starts) == 0:
        return np.full(len(choice), np.inf)
    # Starting at the first change, no segment wraps.
    turned_s = np.roll(each_s, -starts[0])
    total_s = np.cumsum(turned_s)
    paid_s = np.append(0.0, total_s)[starts - starts[0]]
    lengths = np.diff(np.append(starts, starts[0] + len(choice)))
    since_s: Floats = np.roll(total_s - np.repeat(paid_s, lengths), starts[0])
    return since_s


def _next_setting(choice: Ints) -> Ints:
    """Return the setting of the segment after each invocation's own. Shape (n,)."""
    starts = np.flatnonzero(choice != np.roll(choice, 1))
    if len(starts) == 0:
        return choice
    lengths = np.diff(np.append(starts, starts[0] + len(choice)))
    following = np.repeat(np.roll(choice[starts], -1), lengths)
    return np.roll(following, starts[0])


def _window_costs(
    table: Floats, switch: Floats, within: Ints, beyond: Ints, begins: Ints, ends: Ints
) -> Floats:
    """Return what a round costs with each window; one that ends where it begins is empty.

    Args:
        table: Cost of each invocation at each setting.
        switch: Cost of each change.
        within: Settings outside the window. Shape (n,).
        beyond: Settings in the window. Shape (n,).
        begins: First invocations in the window.
        ends: First invocations behind it; a window may run round the wrap.

    Returns:
        Shape (len(begins), len(ends)).
    """
    rows = np.arange(len(within))
    # What following a choice from the invocation before costs, and the difference as a prefix sum.
    stay = table[rows, within] + switch[np.roll(within, 1), within]
    move = table[rows, beyond] + switch[np.roll(beyond, 1), beyond]
    more = np.append(0.0, np.cumsum(move - stay))
    enter = switch[np.roll(within, 1), beyond] - switch[np.roll(beyond, 1), beyond]
    leave = switch[np.roll(beyond, 1), within] - switch[np.roll(within, 1), within]
    inside = more[ends][None, :] - more[begins][:, None]
    inside += np.where(ends[None, :] < begins[:, None], more[-1], 0.0)
    inside += enter[begins][:, None] + leave[ends][None, :]
    inside[begins[:, None] == ends[None, :]] = 0.0
    costs: Floats = stay.sum() + inside
    return costs


def _mixture(within: Ints, beyond: Ints, begin: int, end: int) -> Ints:
    """Return a choice that follows another over a window of the ring. Shape (n,)."""
    length = (end - begin) % len(within)
    window = (begin + np.arange(length)) % len(within)
    mixed = within.copy()
    mixed[window] = beyond[window]
    return mixed
