"""A problem laid out for shortest paths, and the shortest paths round it at given multipliers.

Launches that no change may separate become one item of a ring. The ring is cut in the middle of
item 0, so that no change falls on the cut: item 0 stands at both ends, half its cost at each.
Boundary j lies before item j, so boundary m before the second half of item 0; changes may happen at
boundaries 1 to m. What a segment at setting s that starts at boundary i and ends at k costs is the
difference of two prefix sums.

`ahead[i, s]` is the least cost of coming to a segment at s that starts at boundary i or before,
less the prefix sum at its start; adding the prefix sum at k gives the cost up to k. So one running
minimum serves all segments, and dwell says which row to read: the last boundary from which a
segment is long enough. Each boundary costs one min-plus product with the table of changes; of many
settings, sources that cannot beat another's dearest change are left out.

The segment at the start of a path counts as long enough, which leaves out the dwell of the one
segment across the cut: what comes out is a bound, and exact where the cut is well placed.

Dwell has up to four classes, the distinct values off the diagonal. Where there are more, values are
rounded up to four of them, so that every answer keeps the true dwell; or down, so that every bound
holds for the true problem.

Shape letters: m items, S settings, C dwell classes.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from underclock.arrays import Floats, Ints, turned
from underclock.core.solvers.problems import DWELL_SLACK, SequenceProblem

MOST_CLASSES = 4
_DENSE = 128  # settings up to which choosing sources costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The items of a problem in order, round the ring from the item that is cut."""

    time: Floats  # zero where not available, (m, S)
    energy: Floats  # zero in the same places, (m, S)
    shut: Floats | None  # ``inf`` where an item cannot run, else zero; ``None`` if all can, (m, S)
    switch_time: Floats
    switch_energy: Floats
    first: Ints  # first invocation of each item, in the ring, (m,)
    settings: Ints  # the problem's number of each setting, (S,)
    invocations: int  # of the problem
    kind: Ints  # class of each change of setting, (S, S)
    # The last boundary at which a segment may have started so that it can end at 1 to m, as its
    # place in `ahead`, (m, C S): in row 0 for one that was there before the cut, in row m + 1 if
    # there is none.
    latest: Ints
    rounded: bool  # whether dwell was rounded to fewer classes

    def expanded(self, choice: Ints) -> Ints:
        """Return the problem's setting of every invocation, from one per item. Shape (n,)."""
        length = np.diff(np.append(self.first, self.first[0] + self.invocations))
        length %= self.invocations
        length[length == 0] = self.invocations
        return turned(np.repeat(self.settings[choice], length), self.first[0])


def ring_of(
    problem: SequenceProblem, cut: int = 0, settings: Ints | None = None, *, down: bool = False
) -> Ring | None:
    """Lay out a problem.

    Args:
        settings: The settings to leave in; all, if not given. Shape (S,).
        down: Round dwell down instead of up, where it has too many values.

    Returns:
        The ring; ``None`` if an item is left without a setting.
    """
    n = len(problem.order)
    free = np.flatnonzero(~problem.blocked)
    if len(free) == 0:
        free = np.zeros(1, dtype=np.int64)
    # The item that holds the invocation to cut in comes first.
    first = turned(free, -int(np.searchsorted(free, cut, side="right")) + 1)
    if settings is None:
        settings = np.flatnonzero(np.isfinite(problem.time_s).any(axis=0))
    order = turned(problem.order, -first[0])
    starts = (first - first[0]) % n
    time, energy = (table[:, settings][order] for table in (problem.time_s, problem.energy_j))
    if len(starts) < n:
        time, energy = (np.add.reduceat(table, starts, axis=0) for table in (time, energy))
    absent = ~np.isfinite(time)
    if absent.all(axis=1).any():
        return None
    shut = absent if absent.any() else None
    if shut is not None:
        time[shut], energy[shut] = 0.0, 0.0
    pairs = np.ix_(settings, settings)
    # Classes come from all settings, whichever are kept: a bound must not depend on that.
    values = np.unique(problem.dwell_s[~np.eye(len(problem.dwell_s), dtype=np.bool_)])
    values = values if len(values) else np.zeros(1)
    levels, rounded = values, len(values) > MOST_CLASSES
    kind = np.searchsorted(levels, problem.dwell_s[pairs]).astype(np.int64)
    if rounded:
        places = np.linspace(0, len(values) - 1, MOST_CLASSES + 1).astype(np.int64)
        levels = values[places[:-1] if down else places[1:]]
        side: Literal["left", "right"] = "right" if down else "left"
        kind = np.searchsorted(levels, problem.dwell_s[pairs], side=side).astype(np.int64)
        kind = np.maximum(kind - int(down), 0)
    lasts = np.zeros((len(settings), len(time) + 1))
    np.cumsum(time.T, axis=1, out=lasts[:, 1:])
    boundary = np.arange(len(time))
    latest = np.empty((len(levels), len(settings), len(time)), dtype=np.int64)
    for rows, level_s in zip(latest, levels.tolist(), strict=True):
        need_s = level_s * (1.0 - DWELL_SLACK)
        for s, last_s in enumerate(lasts):
            at = last_s.searchsorted(last_s[1:] - need_s, side="right") - 1
            at = np.minimum(np.maximum(at, 0), boundary)
            if shut is not None:
                # The item before which the setting was last not available.
                past = np.maximum.accumulate(np.where(shut[:, s], boundary, -1))
                at[(past >= 0) & (at <= past)] = len(time) + 1
            rows[s] = at * len(settings) + s
    return Ring(
        time=time,
        energy=energy,
        shut=None if shut is None else np.where(shut, np.inf, 0.0),
        switch_time=problem.switch_time_s[pairs],
        switch_energy=problem.switch_energy_j[pairs],
        first=first,
        settings=settings,
        invocations=n,
        kind=kind,
        latest=latest.reshape(-1, len(time)).T.copy(),
        rounded=rounded,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagrangian:
    """A ring with one cost instead of energy, time and switches."""

    sums: Floats  # cost of the items before each boundary, half of item 0 included, (m + 1, S)
    half: Floats  # half the cost of item 0; ``inf`` where it cannot run, (S,)
    # cost of each change by dwell class; ``inf`` in the other classes. From a setting to itself it
    # is free, in the first, (C, S, S)
    change: Floats
    error: float  # what rounding can at most do to the cost of a cycle


def lagrangian_of(ring: Ring, time: float, switch: float = 0.0) -> Lagrangian:
    """Add time, at joules per second, and switches, at joules each, to a ring's energy."""
    cost = ring.energy + time * ring.time
    half = 0.5 * cost[0]
    cost[0] = half
    sums = np.concatenate([np.zeros((1, cost.shape[1])), cost])
    np.cumsum(sums, axis=0, out=sums)
    base = ring.switch_energy + time * ring.switch_time + switch
    change, classes = base[None], ring.latest.shape[1] // len(base)
    if classes > 1:
        change = np.where(ring.kind == np.arange(classes)[:, None, None], base, np.inf)
    np.einsum("css->cs", change)[:] = np.inf
    np.fill_diagonal(change[0], 0.0)
    size = float(sums[-1].max() + half.max()) + len(ring.time) * float(base.max())
    return Lagrangian(
        sums=sums,
        half=half if ring.shut is None else half + ring.shut[0],
        change=change,
        error=2.0 * float(np.finfo(np.float64).eps) * (len(ring.time) + 8) * size,
    )


def _product(change: Floats, flat: Floats) -> Callable[[], Floats | float]:
    """Return what combines costs of sources by class of dwell, (C S,), with changes, (C, S, S)."""
    # It takes the costs as they are when it is called, and returns the least over sources of each
    # target, (S,), valid until it is called again; one number where every change costs the same, so
    # that the cheapest source is so for all targets. To stay is not in that number.
    classes, settings, _ = change.shape
    off = change.copy()
    np.fill_diagonal(off[0], np.inf)
    table, least = change.reshape(-1, settings), off.reshape(-1, settings).min(axis=1)
    cost = float(table[0].max())
    if classes == 1 and bool((np.append(least, table.max(axis=1)) == cost).all()):
        return lambda: flat.item(flat.argmin()) + cost
    out = np.empty(settings)
    if settings <= _DENSE:
        column, costs = flat[:, None], np.empty_like(table)

        def dense() -> Floats:
            np.add(column, table, out=costs)
            return np.minimum.reduce(costs, axis=0, out=out)

        return dense
    # Of a source's switches, whatever their class.
    dearest = np.where(np.isfinite(table), table, 0.0).max(axis=1).reshape(classes, -1).max(axis=0)

    def sparse() -> Floats:
        reached = flat.reshape(classes, -1).max(axis=0) + dearest
        on = (flat + least < reached.min()).nonzero()[0]
        if len(on) == 0:
            on = np.arange(reached.argmin(), len(flat), len(reached))
        # A source left out may still be best for its own setting, where it stays for nothing.
        return np.minimum.reduce(flat[on, None] + table[on], axis=0, out=out)

    return sparse


def _forward(ring: Ring, lagrangian: Lagrangian, start: Floats) -> Floats:
    """Return `ahead` of the module: by last boundary at which the segment may start."""
    # The last row is ``inf``. Shape (m + 2, S). ``start`` is the cost of being at a setting at the
    # cut, (S,), the half of item 0 not included.
    items, settings = ring.time.shape
    classes = len(lagrangian.change)
    ahead = np.full((items + 2, settings), np.inf)
    ahead[0] = start
    began, flat, fresh = ahead.reshape(-1), np.empty(classes * settings), np.empty(settings)
    least = _product(lagrangian.change, flat)
    shuts = itertools.repeat(None, items) if ring.shut is None else ring.shut
    each, sums = np.tile(lagrangian.sums[1:], classes), lagrangian.sums[1:]
    add, subtract, minimum = np.add, np.subtract, np.minimum  # in the innermost loop of all
    rows = zip(ahead, ahead[1:-1], ring.latest, each, sums, shuts, strict=False)
    for past, here, latest, all_paid, paid, shut in rows:
        add(began[latest], all_paid, out=flat)
        subtract(least(), paid, out=fresh)
        minimum(past if shut is None else past + shut, fresh, out=here)
    return ahead


def shortest_path(
    ring: Ring, lagrangian: Lagrangian, through: int | None = None
) -> tuple[float, Ints]:
    """Return the least cost of a path once round the ring, and its settings. Shape (m + 1,).

    Item 0 is at the end again. Where there is no path the cost is ``inf`` and the settings mean
    nothing.

    Args:
        through: Setting that item 0 must have at both ends; ``None`` for any at either.
    """
    start = np.zeros(ring.time.shape[1])
    if through is not None:
        start[np.arange(len(start)) != through] = np.inf
    ahead = _forward(ring, lagrangian, start)
    items = len(ring.time)
    total = ahead[items] + lagrangian.sums[items] + (start + lagrangian.half)
    s = int(total.argmin())
    least = float(total[s])
    choice = np.full(items + 1, s, dtype=np.int64)
    if least == np.inf:
        return least, choice
    began, settings = ahead.reshape(-1), ring.time.shape[1]
    into: dict[int, tuple[list[int], Floats]] = {}
    row, done = items, items
    while True:
        if s not in into:
            # A segment starts where the running minimum last came down.
            fell = ahead[1:-1, s] < ahead[:-2, s]
            if ring.shut is not None:
                fell |= ring.shut[:, s] > 0
            into[s] = [0, *(np.flatnonzero(fell) + 1).tolist()], lagrangian.change[:, :, s].copy()
        falls, change = into[s]
        row = falls[bisect_right(falls, row) - 1]
        choice[row:done] = s
        if row == 0:
            return least, choice
        came = began[ring.latest[row - 1]].reshape(change.shape)
        came += lagrangian.sums[row]
        came += change
        done, (row, s) = row, divmod(int(ring.latest[row - 1, came.argmin()]), settings)


def once_through(problem: SequenceProblem) -> Callable[[float], Ints | None]:
    """Return what finds the schedule of least energy and paid time, at a price of time.

    Of a price in joules per second it makes a setting for each launch, (n,), and ``None`` where no
    schedule keeps the rules. Budget and number of switches are not looked at; changes at begin and
    end cost nothing here.

    Every segment, the first and the last too, must be long enough to be followed by any setting: a
    launch that takes nothing is put between end and begin of the ring, at a setting that only it
    has. The ring is cut there, where nothing dwells, so one shortest path is exact at each price.
    """
    corner = ((0, 1), (0, 1))
    time_s, energy_j = (
        np.pad(each, corner, constant_values=np.inf) for each in (problem.time_s, problem.energy_j)
    )
    time_s[-1, -1] = energy_j[-1, -1] = 0.0
    dwell_s = np.pad(problem.dwell_s, corner)
    dwell_s[:-1, -1] = problem.dwell_s.max(axis=1)
    opened = replace(
        problem,
        time_s=time_s,
        energy_j=energy_j,
        order=np.append(len(problem.time_s), problem.order),
        switch_time_s=np.pad(problem.switch_time_s, corner),
        switch_energy_j=np.pad(problem.switch_energy_j, corner),
        dwell_s=dwell_s,
        blocked=np.concatenate([[False, False], problem.blocked[1:]]),
    )
    ring = ring_of(opened)

    def cheapest(price_w: float) -> Ints | None:
        if ring is None:
            return None
        least, choice = shortest_path(ring, lagrangian_of(ring, price_w))
        return ring.expanded(choice[:-1])[1:] if np.isfinite(least) else None

    return cheapest
