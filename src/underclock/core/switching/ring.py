"""A problem laid out for shortest paths: a ring of items, cut inside one of them.

Invocations that no switch may separate become one item. The ring is cut in the middle of item 0, so
that no switch falls on the cut: item 0 stands at both ends, half its cost at each.

Boundary j lies before item j, so boundary m before the second half of item 0; switches may happen
at boundaries 1 to m. What a segment at setting s that starts at boundary i and ends at k costs is
the difference of two prefix sums.

Dwell has up to four classes, the distinct values off the diagonal. Where there are more, values are
rounded up to four of them, so that every answer keeps the true dwell; or down, so that every bound
holds for the true problem.

Shape letters: m items, S settings, C dwell classes.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from underclock.arrays import Bools, Floats, Ints
from underclock.core.switching.problem import DWELL_SLACK, SequenceProblem

MOST_CLASSES = 4

Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dwell:
    """From when on a segment may end.

    Attributes:
        levels_s: Dwell of each class, ascending. Shape (C,).
        kind: Class of each change of setting. Shape (S, S).
        latest: The last boundary at which a segment may have started so that it can end at j: 0 for
            one that was there before the cut, m + 1 if there is none. Shape (C, m + 1, S).
        due: The first boundary at which a segment that starts at i can end: m + 1 if it must last
            beyond the end, m + 2 if it can do neither. Shape (C, m + 1, S).
    """

    levels_s: Floats
    kind: Ints
    latest: Rows
    due: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The items of a problem in order, round the ring from the item that is cut.

    Attributes:
        time: Zero where not available. Shape (m, S).
        energy: Zero in the same places. Shape (m, S).
        shut: ``inf`` where an item cannot run, else zero; ``None`` if all can. Shape (m, S).
        lasts: Time of the items before each boundary, at each setting. Shape (m + 1, S).
        switch_time: Shape (S, S).
        switch_energy: Shape (S, S).
        dwell: ``None`` where segments may end at any boundary.
        first: First invocation of each item, in the ring. Shape (m,).
        settings: The problem's number of each setting. Shape (S,).
        invocations: Of the problem.
        rounded: Whether dwell was rounded up.
    """

    time: Floats
    energy: Floats
    shut: Floats | None
    lasts: Floats
    switch_time: Floats
    switch_energy: Floats
    dwell: Dwell | None
    first: Ints
    settings: Ints
    invocations: int
    rounded: bool

    def expanded(self, choice: Ints) -> Ints:
        """Return the problem's setting of every invocation, from one per item. Shape (n,)."""
        length = np.diff(np.append(self.first, self.first[0] + self.invocations))
        length %= self.invocations
        length[length == 0] = self.invocations
        whole: Ints = np.roll(np.repeat(self.settings[choice], length), self.first[0])
        return whole


def ring_of(
    problem: SequenceProblem, cut: int = 0, settings: Ints | None = None, *, down: bool = False
) -> Ring | None:
    """Lay out a problem.

    Args:
        problem: The problem.
        cut: The invocation to cut the ring in.
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
    first = np.roll(free, -int(np.searchsorted(free, cut, side="right")) + 1)
    if settings is None:
        settings = np.flatnonzero(np.isfinite(problem.time_s).any(axis=0))
    order = np.roll(problem.order, -first[0])
    starts = (first - first[0]) % n
    time, energy = (
        _merged(table[:, settings], order, starts) for table in (problem.time_s, problem.energy_j)
    )
    shut = ~np.isfinite(time)
    if shut.all(axis=1).any():
        return None
    time[shut], energy[shut] = 0.0, 0.0
    some = bool(shut.any())
    lasts = np.concatenate([np.zeros((1, len(settings))), np.cumsum(time, axis=0)])
    pairs = np.ix_(settings, settings)
    levels, kind, rounded = _classes(problem.dwell_s, pairs, down=down)
    free_at_all = len(levels) == 1 and levels[0] == 0 and not some
    return Ring(
        time=time,
        energy=energy,
        shut=np.where(shut, np.inf, 0.0) if some else None,
        lasts=lasts,
        switch_time=problem.switch_time_s[pairs],
        switch_energy=problem.switch_energy_j[pairs],
        dwell=None if free_at_all else _dwell(lasts, shut, levels, kind),
        first=first,
        settings=settings,
        invocations=n,
        rounded=rounded,
    )


def _merged(table: Floats, order: Ints, starts: Ints) -> Floats:
    """Add up the rows of every item's invocations. Shape (m, S)."""
    rows = table[order]
    merged: Floats = rows if len(starts) == len(order) else np.add.reduceat(rows, starts, axis=0)
    return merged


def _classes(dwell_s: Floats, pairs: tuple[Ints, ...], *, down: bool) -> tuple[Floats, Ints, bool]:
    """Return the dwell of each class, the class of each change, and whether any was rounded."""
    # Classes come from all settings, whichever are left in: a bound must not depend on that.
    values = np.unique(dwell_s[~np.eye(len(dwell_s), dtype=np.bool_)])
    if len(values) == 0:
        values = np.zeros(1)
    if len(values) <= MOST_CLASSES:
        return values, np.searchsorted(values, dwell_s[pairs]).astype(np.int64), False
    places = np.linspace(0, len(values) - 1, MOST_CLASSES + 1).astype(np.int64)
    levels = values[places[:-1] if down else places[1:]]
    side: Literal["left", "right"] = "right" if down else "left"
    kind = np.searchsorted(levels, dwell_s[pairs], side=side) - int(down)
    return levels, np.maximum(kind, 0).astype(np.int64), True


def _dwell(lasts: Floats, shut: Bools, levels: Floats, kind: Ints) -> Dwell:
    items, settings = shut.shape
    latest = np.empty((len(levels), items + 1, settings), dtype=np.int32)
    due = np.empty_like(latest)
    boundary = np.arange(items + 1)[:, None]
    # The item before which a setting was last, and the one from which it is next, not available.
    past = np.full((items + 1, settings), -1)
    past[1:] = np.maximum.accumulate(np.where(shut, boundary[:-1], -1), axis=0)
    ahead = np.full((items + 1, settings), items + 1)
    ahead[:-1] = np.minimum.accumulate(np.where(shut, boundary[:-1], items + 1)[::-1], axis=0)[::-1]
    for level, level_s in enumerate(levels.tolist()):
        need_s = level_s * (1.0 - DWELL_SLACK)
        for s in range(settings):
            column = lasts[:, s]
            latest[level, :, s] = np.searchsorted(column, column - need_s, side="right") - 1
            due[level, :, s] = np.searchsorted(column, column + need_s, side="left")
        np.clip(latest[level], 0, boundary - 1, out=latest[level])
        np.maximum(due[level], boundary + 1, out=due[level])
        latest[level][(past >= 0) & (latest[level] <= past)] = items + 1
        due[level][ahead < np.minimum(due[level], items)] = items + 2
    return Dwell(levels_s=levels, kind=kind, latest=latest, due=due)
