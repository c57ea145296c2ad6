"""Schedules of a step that repeats, near the best there can be, and a bound on all of them.

The multipliers of time and of changes at which the shortest cycle bounds all schedules best
(`dual`) leave paths, some within the limits and some beyond, of about the same Lagrangian cost. A
schedule that follows one of the latter over a window of the ring, and one of the former elsewhere,
has about that cost too, and a time in between. So there is a window with which it meets the budget
almost exactly, and then its energy is near the bound.

A path may end at another setting than it began with, and its segment across the cut may be too
short: then it is no schedule, and no mixture of it is. So where paths leave a gap, the ring is cut
in the middle of the longest segment, and paths are sought that begin and end at its setting. The
best schedule is then mixed with other paths, and with single settings, until that brings no better.

A schedule may be judged by more than its costs here: by how a step settles under its cap, and how
sure that is. Windows are then chosen by costs that are off as those of the schedule they change.

Shape letters: n launches, m items, S settings, W windows.
"""

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

import numpy as np

from underclock.arrays import Bools, Floats, Ints, turned
from underclock.core.solvers.cyclic_paths import lagrangian_of, ring_of, shortest_path
from underclock.core.solvers.dual import DualSearch, Path, search_multipliers, warm_start
from underclock.core.solvers.problems import (
    DWELL_SLACK,
    SequenceProblem,
    Solution,
    costed,
    infeasible,
    violations,
)
from underclock.records import Status

PROVEN = 1e-9
"""Gap, as a fraction, at which a schedule counts as optimal."""
_BEST = 2  # paths of either kind that are mixed
_MOST_WINDOWS = 50_000  # whose cost is worked out at a time
_MOST_OFFERS, _MOST_JUDGED = 64, 6  # cheapest windows that are looked at; that are judged
_BASES = 3  # paths that are mixed as they are
_MATES = 12  # paths that the best schedule is mixed with


Judge = Callable[[Ints], tuple[float, float]]
"""Return how late in s a schedule, (n,), that keeps the other rules is, and its energy in J."""


def solve_cyclic(
    problem: SequenceProblem,
    start: Items[Ints] = (),
    judge: Judge | None = None,
    *,
    gap: float = PROVEN,
    max_paths: int = 60,
    max_mixes: int = 1_000,
) -> Solution:
    """Return the best schedule met that keeps the rules, no worse than any given.

    Dwell of more than four values is rounded up to four; the bound is for the true dwell. Where no
    schedule is found, the status is ``INFEASIBLE``, with a finite bound unless there is none.

    Args:
        start: Schedules to begin with. Shapes (n,).
        judge: Says which schedule is the best; its costs here unless given.
        gap: Fraction of the energy between schedule and bound at which to stop.
        max_paths: Most shortest paths in the search for one multiplier, or for a pair of them.
        max_mixes: Most times that a schedule is mixed with another.
    """
    best = Incumbent(problem, judge)
    for choice in start:
        best.offer(choice)
    # The best single setting, if better. They are judged one by one: a sum near the budget or near
    # the best is only nearly right.
    count = np.bincount(problem.order, minlength=len(problem.time_s))
    used = count > 0
    time_s, energy_j = (count[used] @ of[used] for of in (problem.time_s, problem.energy_j))
    better = (time_s <= problem.latest_s * (1 + 1e-9)) & (energy_j < best.energy)
    for s in np.flatnonzero(better)[np.argsort(energy_j[better])].tolist():
        best.offer(np.full(len(problem.order), s))
        if best.choice is not None and best.energy <= energy_j[s]:
            break
    heaviest = int(problem.energy_j.min(axis=1)[problem.order].argmax())
    ring = problem.laid_out[heaviest] = problem.laid_out.get(heaviest) or ring_of(problem, heaviest)
    if ring is None:
        return infeasible()
    if len(ring.time) == 1:
        return best.answer(best.energy)
    begin = warm_start(problem, ring, start, max_paths=max_paths)
    tolerance = max(1e-7, 0.1 * gap)
    found = search_multipliers(problem, ring, begin, tolerance=tolerance, max_paths=max_paths)
    if found is None:
        return best.answer(0.0 if ring.rounded or best.choice is not None else math.inf)
    search, bound, choice = found
    best.offer(ring.expanded(choice[:-1]))
    _offer_paths(best, search)
    enough = bound / (1.0 - gap)
    if best.reckoned > enough:
        _offer_cycles(best, search)
        _mix_until_best(best, search, enough, max_mixes)
    if ring.rounded:
        # A bound for the true dwell, when what was solved had it rounded up.
        ring = ring_of(problem, int(search.ring.first[0]), down=True)
        down = replace(search, ring=ring or search.ring)
        down.visit(search.time, search.switch)
        bound = min(bound, down.bound)
    return best.answer(bound)


class Incumbent:
    """The best schedule met that keeps every rule, and what it was judged to take in J."""

    def __init__(self, problem: SequenceProblem, judge: Judge | None = None) -> None:
        self.problem, self.judge = problem, judge
        self.choice: Ints | None = None
        self.energy = math.inf
        self._timeless = problem.within(math.inf)

    @property
    def reckoned(self) -> float:
        """Energy of the best by the problem's costs, in J; ``inf`` where there is none."""
        if self.choice is None or self.judge is None:
            return self.energy
        return costed(self.problem, self.choice).energy_j

    def offer(self, choice: Ints) -> float | None:
        """Take a schedule if it is better and keeps the rules.

        Returns:
            By how much it is late, in s; ``None`` where another rule is broken.
        """
        if violations(self._timeless, choice):
            return None
        if self.judge is not None:
            late_s, energy_j = self.judge(choice)
        else:
            cost = costed(self.problem, choice)
            late_s, energy_j = cost.time_s - self.problem.latest_s, cost.energy_j
        if late_s <= 0.0 and energy_j < self.energy:
            self.choice, self.energy = choice.astype(np.int64), energy_j
        return late_s

    def answer(self, bound: float) -> Solution:
        """Return the schedule with its status."""
        bound = max(0.0, bound)
        if self.choice is None:
            return infeasible(bound)
        proven = bound >= self.reckoned * (1.0 - PROVEN)
        status = Status.OPTIMAL if proven else Status.BOUNDED
        return costed(self.problem, self.choice, status, bound)


def _offer_cycles(best: Incumbent, search: DualSearch) -> None:
    """Offer cycles through the longest segment of a shortest path, and their mixtures."""
    ring = search.ring
    lagrangian = lagrangian_of(ring, search.time, search.switch)
    choice = shortest_path(ring, lagrangian)[1][:-1]
    time_s = ring.time[np.arange(len(choice)), choice]
    starts = np.flatnonzero(choice != turned(choice, 1))
    item = int(time_s.argmax())
    if len(starts):
        # The middle of the longest segment; starting at the first change, none wraps.
        paid_s = np.append(0.0, np.cumsum(turned(time_s, -starts[0])))
        begins_s = paid_s[np.append(starts - starts[0], len(choice))]
        longest = int(np.diff(begins_s).argmax())
        middle_s = 0.5 * (begins_s[longest] + begins_s[longest + 1])
        within = int(np.searchsorted(paid_s, middle_s, side="right")) - 1
        item = (int(starts[0]) + within) % len(choice)
    there = ring_of(best.problem, int(ring.first[item]), ring.settings)
    if there is None:  # pragma: no cover - the same settings, whose items all have one
        return
    cycles = replace(search, ring=there, through=int(choice[item]))
    if cycles.run(search.time):
        _offer_paths(best, cycles)


def _by_cost(search: DualSearch) -> list[Path]:
    """Return the paths of a search, those of least Lagrangian cost first."""
    return sorted(
        search.paths,
        key=lambda p: p.energy + search.time * p.excess_s + search.switch * p.excess_switches,
    )


def _offer_paths(best: Incumbent, search: DualSearch) -> None:
    """Offer the paths of a search, and mixtures of the best within the limits and beyond them."""
    by_cost = _by_cost(search)
    for path in sorted(by_cost, key=lambda path: path.energy):
        if path.energy < best.energy and path.keeps_limits:
            best.offer(search.ring.expanded(path.choice[:-1]))
    within = [path for path in by_cost if path.keeps_limits][:_BEST]
    beyond = [path for path in by_cost if not path.keeps_limits][:_BEST]
    for pair in itertools.product(within, beyond):
        _offer_windows(best, *(search.ring.expanded(path.choice[:-1]) for path in pair))


def _mix_until_best(best: Incumbent, search: DualSearch, enough: float, most: int) -> None:
    """Mix the best schedule with paths and with single settings until that brings no better one."""
    ring = search.ring
    mates: list[Ints] = []
    for path in _by_cost(search):
        whole = ring.expanded(path.choice[:-1])
        if len(mates) < _MATES and not any(np.array_equal(whole, mate) for mate in mates):
            mates.append(whole)
    known = np.isfinite(best.problem.time_s[best.problem.order])
    mates += [
        np.full(ring.invocations, s)
        for s in np.unique(np.concatenate(mates)).tolist()
        if known[:, s].all()
    ]
    # Paths as they are, late but cheap, then the best again and again.
    pairs = [(base, mate) for base in mates[:_BASES] for mate in mates]
    for base, mate in pairs[: most // 2]:
        _offer_windows(best, base, mate)
    left = most - len(pairs[: most // 2])
    while left > 0:
        before = best.energy
        for mate in mates[:left]:
            if best.choice is None or best.reckoned <= enough:
                return
            _offer_windows(best, best.choice, mate)
        left -= len(mates)
        if best.energy >= before:
            return


def _offer_windows(best: Incumbent, within: Ints, beyond: Ints) -> None:
    """Offer the cheapest schedules that follow one choice and, over one window, another."""
    problem = best.problem
    if np.array_equal(within, beyond):
        return
    begins = np.flatnonzero(_may_cross(problem, within, beyond))
    ends = np.flatnonzero(_may_cross(problem, beyond, within))
    if len(begins) == 0 or len(ends) == 0:
        return
    most = max(1, _MOST_WINDOWS // len(ends))
    if len(begins) > most:
        begins = begins[np.unique(np.linspace(0, len(begins) - 1, most).astype(np.int64))]
    windows = within, beyond, begins, ends
    time_s = _window_costs(problem.order, problem.time_s, problem.switch_time_s, *windows)
    energy_j = _window_costs(problem.order, problem.energy_j, problem.switch_energy_j, *windows)
    energy_j[_too_short(problem, beyond, within, begins, ends)] = np.inf
    energy_j[_too_short(problem, within, beyond, ends, begins).T] = np.inf
    latest_s, more_j = problem.latest_s, 0.0
    if best.judge is not None:
        cost, (late_s, judged_j) = costed(problem, within), best.judge(within)
        latest_s, more_j = cost.time_s - late_s, judged_j - cost.energy_j
    flat_s, flat_j = time_s.ravel(), energy_j.ravel() + more_j
    for _ in range(_MOST_JUDGED):
        # Sums near the budget are only nearly right: the rules decide.
        flat_j[~(flat_s <= latest_s * (1.0 + 1e-12))] = np.inf
        likely = np.argpartition(flat_j, min(_MOST_OFFERS, len(flat_j) - 1))[:_MOST_OFFERS]
        for window in likely[np.argsort(flat_j[likely], kind="stable")].tolist():
            if not flat_j[window] < best.energy:
                return
            begin, end = int(begins[window // len(ends)]), int(ends[window % len(ends)])
            inside = (begin + np.arange((end - begin) % len(within))) % len(within)
            mixed = within.copy()
            mixed[inside] = beyond[inside]
            late = best.offer(mixed)
            if late is not None:
                break
        else:
            return
        if late <= 0.0:
            return
        latest_s -= late  # windows like it are as much later than reckoned


def _may_cross(problem: SequenceProblem, source: Ints, target: Ints) -> Bools:
    """Return before which invocations a schedule may pass from one choice to another. Shape (n,).

    Only the segments on either side are looked at, as long as both choices leave them.
    """
    before = turned(source, 1)
    since_s = turned(_time_in_segment(problem, source), 1)
    until_s = _time_in_segment(problem, target[::-1], problem.order[::-1])[::-1]
    # The setting of the segment after each invocation's own. Shape (n,).
    starts = np.flatnonzero(target != turned(target, 1))
    if len(starts) == 0:
        after = target
    else:
        lengths = np.diff(np.append(starts, starts[0] + len(target)))
        following = np.repeat(turned(target[starts], -1), lengths)
        after = turned(following, starts[0])
    changes = before != target
    slack = 1.0 - DWELL_SLACK
    last_s = np.where(changes, until_s, since_s + until_s)
    may: Bools = last_s >= problem.dwell_s[target, after] * slack
    may &= ~changes | (since_s >= problem.dwell_s[before, target] * slack)
    may &= ~(changes & problem.blocked)
    return may


def _too_short(
    problem: SequenceProblem, inside: Ints, outside: Ints, begins: Ints, ends: Ints
) -> Bools:
    """Return which windows lie within one segment of a choice and are shorter than its dwell."""
    # Those that run round the wrap are left to the rules.
    segment = np.cumsum(inside != turned(inside, 1))
    ends_s = np.append(0.0, np.cumsum(problem.time_s[problem.order, inside]))
    need_s = problem.dwell_s[inside[ends - 1], outside[ends]] * (1.0 - DWELL_SLACK)
    # Where nothing changes at the beginning, the segment began before.
    from_s = np.where(outside[begins - 1] == inside[begins], -np.inf, ends_s[begins])
    short: Bools = (ends_s[ends] - need_s)[None, :] < from_s[:, None]
    short &= segment[begins][:, None] == segment[ends - 1][None, :]
    short &= begins[:, None] < ends[None, :]
    return short


def _time_in_segment(problem: SequenceProblem, choice: Ints, order: Ints | None = None) -> Floats:
    """Return the time from the start of each invocation's segment to its own end. Shape (n,)."""
    each_s = problem.time_s[problem.order if order is None else order, choice]
    starts = np.flatnonzero(choice != turned(choice, 1))
    if len(starts) == 0:
        return np.full(len(choice), np.inf)
    # Starting at the first change, no segment wraps.
    turned_s = turned(each_s, -starts[0])
    total_s = np.cumsum(turned_s)
    paid_s = np.append(0.0, total_s)[starts - starts[0]]
    lengths = np.diff(np.append(starts, starts[0] + len(choice)))
    return turned(total_s - np.repeat(paid_s, lengths), starts[0])


def _window_costs(
    order: Ints, table: Floats, switch: Floats, within: Ints, beyond: Ints, begins: Ints, ends: Ints
) -> Floats:
    """Return what a round costs with each window; one that ends where it begins is empty."""
    # What following a choice from the invocation before costs, and the difference as a prefix sum.
    from_within, from_beyond = turned(within, 1), turned(beyond, 1)
    stayed, moved = switch[from_within, within], switch[from_beyond, beyond]
    stay = table[order, within] + stayed
    move = table[order, beyond] + moved
    more = np.append(0.0, np.cumsum(move - stay))
    enter = switch[from_within, beyond] - moved
    leave = switch[from_beyond, within] - stayed
    inside = more[ends][None, :] - more[begins][:, None]
    inside += np.where(ends[None, :] < begins[:, None], more[-1], 0.0)
    inside += enter[begins][:, None] + leave[ends][None, :]
    inside[begins[:, None] == ends[None, :]] = 0.0
    costs: Floats = stay.sum() + inside
    return costs
