"""Shortest paths round the ring at given multipliers, forward and backward.

Forward, `ahead[i, s]` is the least cost of coming to a segment at s that starts at boundary i or
before, less the prefix sum at its start; adding the prefix sum at k gives the cost up to k. So one
running minimum serves all segments, and dwell is a matter of which row to read: the last boundary
from which a segment is long enough. Backward is the mirror image. Each boundary costs one min-plus
product with the table of switches, in which sources that cannot beat another's dearest switch are
left out where there are many settings; backward only where there is one dwell class.

The segment at the start of a path counts as long enough, which leaves out the dwell of the one
segment across the cut: what comes out is a bound, and exact where the cut is well placed.

Shape letters: m items, S settings, C dwell classes.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.switching.lagrangian import Lagrangian
from underclock.core.switching.ring import Ring

_DENSE = 128  # settings up to which choosing sources costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class CostToGo:
    """Costs from a boundary to the end.

    Attributes:
        ripe: Of leaving a segment at boundary j or later, plus the prefix sum where it ends; row
            m + 1 for never leaving it. Shape (C, m + 3, S).
        any: The least over classes. Shape (m + 2, S).
        fresh: Of a segment that starts at j. Shape (m + 1, S).
    """

    ripe: Floats
    any: Floats
    fresh: Floats


class _Product:
    """The least cost over sources, for every target; reversed, over targets for every source."""

    def __init__(self, change: Floats, *, reverse: bool = False) -> None:
        classes, settings, _ = change.shape
        off = change.copy()
        np.fill_diagonal(off[0], np.inf)
        if reverse:
            change, off = (
                table.transpose(2, 0, 1).reshape(settings, -1) for table in (change, off)
            )
        self.change = np.ascontiguousarray(change.reshape(-1, change.shape[-1]))
        self.cost = np.empty_like(self.change)
        self.column: Floats = np.empty((len(self.change), 1))
        self.flat = self.column[:, 0]
        self.least = off.reshape(self.change.shape).min(axis=1)
        # One cost for every change: then the cheapest source is so for all targets.
        self.change_cost = float(self.change[0].max())
        costs = np.append(self.least, self.change.max(axis=1))
        self.alike = classes == 1 and bool((costs == self.change_cost).all())
        self.sparse = settings > _DENSE and (classes == 1 or not reverse)
        # Of a source's switches, whatever their class.
        self.dearest = np.where(np.isfinite(self.change), self.change, 0.0).max(axis=1)
        self.dearest = self.dearest.reshape(-1, settings).max(axis=0)

    def into(self, out: Floats) -> None:
        """Combine ``flat`` with the table. Shape of out (S,)."""
        if self.alike:
            np.minimum(self.flat, np.minimum.reduce(self.flat) + self.change_cost, out=out)
            return
        if not self.sparse:
            np.add(self.column, self.change, out=self.cost)
            np.minimum.reduce(self.cost, axis=0, out=out)
            return
        reached = self.flat.reshape(-1, len(self.dearest)).max(axis=0) + self.dearest
        on = (self.flat + self.least < reached.min()).nonzero()[0]
        if len(on) == 0:
            on = np.arange(reached.argmin(), len(self.flat), len(reached))
        # A source left out may still be best for its own setting, where it stays for nothing.
        np.minimum.reduce(self.column[on] + self.change[on], axis=0, out=out)


def forward(ring: Ring, lagrangian: Lagrangian, start: Floats) -> Floats:
    """Return the least cost of reaching a segment, less the prefix sum at its start.

    Args:
        ring: The ring.
        lagrangian: Its costs.
        start: Cost of being at a setting at the cut; the half of item 0 not included. Shape (S,).

    Returns:
        By last boundary at which the segment may start; the last row is ``inf``. Shape (m + 2, S).
    """
    items, settings = ring.time.shape
    ahead = np.full((items + 2, settings), np.inf)
    ahead[0] = start
    product = _Product(lagrangian.change)
    source = product.flat.reshape(-1, settings)
    fresh = np.empty(settings)
    if ring.dwell is None:
        # The innermost loop of all: names and places instead of attributes and keywords.
        add, subtract, minimum, least = np.add, np.subtract, np.minimum, np.minimum.reduce
        flat, column, change, cost = product.flat, product.column, product.change, product.cost
        for past, here, paid in zip(ahead[:items], ahead[1:-1], lagrangian.sums[1:], strict=True):
            add(past, paid, out=flat)
            if product.sparse or product.alike:
                product.into(fresh)
            else:
                add(column, change, out=cost)
                least(cost, 0, None, out=fresh)
            subtract(fresh, paid, out=fresh)
            minimum(past, fresh, out=here)
        return ahead
    flat = ahead.reshape(-1)
    places = ring.dwell.latest.transpose(1, 0, 2) * np.int64(settings) + np.arange(settings)
    for j in range(1, items + 1):
        np.add(flat.take(places[j]), lagrangian.sums[j], out=source)
        product.into(fresh)
        past = ahead[j - 1] if ring.shut is None else ahead[j - 1] + ring.shut[j - 1]
        np.minimum(past, fresh - lagrangian.sums[j], out=ahead[j])
    return ahead


def backward(ring: Ring, lagrangian: Lagrangian, end: Floats) -> CostToGo:
    """Return the least costs from every boundary to the end.

    Args:
        ring: The ring.
        lagrangian: Its costs.
        end: Cost of being at a setting at the end. Shape (S,).
    """
    items, settings = ring.time.shape
    product = _Product(lagrangian.change, reverse=True)
    classes = len(lagrangian.change)
    ripe = np.full((items + 3, classes, settings), np.inf)
    ripe[items + 1] = lagrangian.sums[items] + end
    fresh = np.empty((items + 1, settings))
    fresh[items] = end
    leaving = np.empty((classes, settings))
    flat, column = ripe.reshape(-1), np.arange(classes * settings).reshape(classes, settings)
    for j in range(items, 0, -1):
        product.flat[:] = fresh[j]
        product.into(leaving.reshape(-1))
        np.add(leaving, lagrangian.sums[j], out=leaving)
        stays = ripe[j + 1]
        if ring.shut is not None and j < items:
            stays = stays + ring.shut[j]
        np.minimum(stays, leaving, out=ripe[j])
        if ring.dwell is None:
            np.subtract(ripe[j, 0], lagrangian.sums[j - 1], out=fresh[j - 1])
            continue
        places = ring.dwell.due[:, j - 1] * np.int64(classes * settings) + column
        np.subtract(flat.take(places).min(axis=0), lagrangian.sums[j - 1], out=fresh[j - 1])
    ripe[0] = ripe[1] if ring.shut is None else ripe[1] + ring.shut[0]
    return CostToGo(ripe=ripe.transpose(1, 0, 2), any=ripe[:-1].min(axis=1), fresh=fresh)


def shortest_path(
    ring: Ring, lagrangian: Lagrangian, through: int | None = None
) -> tuple[float, Ints]:
    """Return the least cost of a path once round the ring, and its settings. Shape (m + 1,).

    Args:
        ring: The ring.
        lagrangian: Its costs.
        through: Setting that item 0 must have at both ends; ``None`` for any at either.
    """
    start = np.zeros(ring.time.shape[1])
    if through is not None:
        start[np.arange(len(start)) != through] = np.inf
    ahead = forward(ring, lagrangian, start)
    return cheapest(ring, lagrangian, ahead, start + lagrangian.half)


def cheapest(ring: Ring, lagrangian: Lagrangian, ahead: Floats, end: Floats) -> tuple[float, Ints]:
    """Return the least cost of a path, and its settings, item 0 at the end again. Shape (m + 1,).

    Where there is no path the cost is ``inf`` and the settings mean nothing.
    """
    items = len(ring.time)
    total = ahead[items] + lagrangian.sums[items] + end
    s = int(total.argmin())
    least = float(total[s])
    choice = np.full(items + 1, s, dtype=np.int64)
    if least == np.inf:
        return least, choice
    # A segment starts where the running minimum last came down.
    fell = ahead[1:-1] < ahead[:-2]
    if ring.shut is not None:
        fell |= ring.shut > 0
    rows = np.arange(1, items + 1, dtype=np.int32)[:, None]
    began = np.zeros((items + 1, len(ahead[0])), dtype=np.int32)
    np.maximum.accumulate(np.where(fell, rows, np.int32(0)), axis=0, out=began[1:])
    row, done = items, items
    settings = np.arange(ring.time.shape[1])
    while True:
        row = int(began[row, s])
        choice[row:done] = s
        if row == 0:
            return least, choice
        if ring.dwell is None:
            latest = np.full((1, len(settings)), row - 1)
        else:
            latest = ring.dwell.latest[:, row].astype(np.int64)
        came = ahead[latest, settings] + lagrangian.sums[row] + lagrangian.change[:, :, s]
        kind, source = divmod(int(came.argmin()), len(settings))
        done, row, s = row, int(latest[kind, source]), source
