"""Cheapest laps at given prices of time and of a switch, forward and backward.

Forward, `ahead[i, s]` is the least cost of coming to a segment at s that starts at boundary i or
before, less the prefix sum at its start; adding the prefix sum at k gives the cost up to k. So one
running minimum serves all segments, and dwell is a matter of which row to read: the last boundary
from which a segment is long enough. Backward is the mirror image. Each boundary costs one min-plus
product with the table of switches, in which sources that cannot beat another's dearest switch are
left out where there are many settings.

The segment at the start of a lap counts as long enough, which leaves out the dwell of the one
segment across the cut: what comes out is a bound, and exact where the cut is well placed.

Shape letters: m items, S settings, C dwell classes.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.switching.cycle import Lap

_DENSE = 128  # settings up to which choosing sources costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A lap with one cost instead of time and energy.

    Attributes:
        time: Price of time, in joules per second.
        switch: Price of a change of setting, in joules.
        sums: Cost of the items before each boundary, half of item 0 included. Shape (m + 1, S).
        half: Half the cost of item 0; ``inf`` where it cannot run. Shape (S,).
        change: Cost of each change by dwell class; ``inf`` in the other classes. From a setting to
            itself it is free, in the first. Shape (C, S, S).
        error: What rounding can at most do to the cost of a lap.
    """

    time: float
    switch: float
    sums: Floats
    half: Floats
    change: Floats
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
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


def priced(lap: Lap, time: float, switch: float = 0.0) -> Prices:
    """Price a lap's items and switches."""
    cost = lap.energy + time * lap.time
    half = 0.5 * cost[0]
    cost[0] = half
    sums = np.concatenate([np.zeros((1, cost.shape[1])), cost])
    np.cumsum(sums, axis=0, out=sums)
    base = lap.switch_energy + time * lap.switch_time + switch
    change = base[None]
    if lap.dwell is not None:
        classes = np.arange(len(lap.dwell.levels_s))[:, None, None]
        change = np.where(lap.dwell.kind == classes, base, np.inf)
    np.einsum("css->cs", change)[:] = np.inf
    np.fill_diagonal(change[0], 0.0)
    size = float(sums[-1].max() + half.max()) + len(lap.time) * float(base.max())
    return Prices(
        time=time,
        switch=switch,
        sums=sums,
        half=half if lap.shut is None else half + lap.shut[0],
        change=change,
        error=2.0 * float(np.finfo(np.float64).eps) * (len(lap.time) + 8) * size,
    )


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
        self.most = self.change.max(axis=1)
        self.sparse = classes == 1 and settings > _DENSE

    def into(self, out: Floats) -> None:
        """Combine ``flat`` with the table. Shape of out (S,)."""
        if not self.sparse:
            np.add(self.column, self.change, out=self.cost)
            np.minimum.reduce(self.cost, axis=0, out=out)
            return
        enough = (self.flat + self.most).min()
        on = (self.flat + self.least < enough).nonzero()[0]
        if len(on) == 0:
            on = self.flat.argmin().reshape(1)
        # A source left out may still be best for its own setting, where it stays for nothing.
        np.minimum.reduce(self.column[on] + self.change[on], axis=0, out=out)


def forward(lap: Lap, prices: Prices, start: Floats) -> Floats:
    """Return the least cost of reaching a segment, less the prefix sum at its start.

    Args:
        lap: The lap.
        prices: Of the lap.
        start: Cost of being at a setting at the cut; the half of item 0 not included. Shape (S,).

    Returns:
        By last boundary at which the segment may start; the last row is ``inf``. Shape (m + 2, S).
    """
    items, settings = lap.time.shape
    ahead = np.full((items + 2, settings), np.inf)
    ahead[0] = start
    product = _Product(prices.change)
    source = product.flat.reshape(-1, settings)
    fresh = np.empty(settings)
    if lap.dwell is None:
        # The innermost loop of all: names and places instead of attributes and keywords.
        add, subtract, minimum, least = np.add, np.subtract, np.minimum, np.minimum.reduce
        flat, column, change, cost = product.flat, product.column, product.change, product.cost
        for past, here, paid in zip(ahead[:items], ahead[1:-1], prices.sums[1:], strict=True):
            add(past, paid, out=flat)
            if product.sparse:
                product.into(fresh)
            else:
                add(column, change, out=cost)
                least(cost, 0, None, out=fresh)
            subtract(fresh, paid, out=fresh)
            minimum(past, fresh, out=here)
        return ahead
    flat = ahead.reshape(-1)
    places = lap.dwell.latest.transpose(1, 0, 2) * np.int64(settings) + np.arange(settings)
    for j in range(1, items + 1):
        np.add(flat.take(places[j]), prices.sums[j], out=source)
        product.into(fresh)
        past = ahead[j - 1] if lap.shut is None else ahead[j - 1] + lap.shut[j - 1]
        np.minimum(past, fresh - prices.sums[j], out=ahead[j])
    return ahead


def backward(lap: Lap, prices: Prices, end: Floats) -> Tail:
    """Return the least costs from every boundary to the end.

    Args:
        lap: The lap.
        prices: Of the lap.
        end: Cost of being at a setting at the end. Shape (S,).
    """
    items, settings = lap.time.shape
    product = _Product(prices.change, reverse=True)
    classes = len(prices.change)
    ripe = np.full((items + 3, classes, settings), np.inf)
    ripe[items + 1] = prices.sums[items] + end
    fresh = np.empty((items + 1, settings))
    fresh[items] = end
    left = np.empty((classes, settings))
    flat, column = ripe.reshape(-1), np.arange(classes * settings).reshape(classes, settings)
    for j in range(items, 0, -1):
        product.flat[:] = fresh[j]
        product.into(left.reshape(-1))
        np.add(left, prices.sums[j], out=left)
        stays = ripe[j + 1]
        if lap.shut is not None and j < items:
            stays = stays + lap.shut[j]
        np.minimum(stays, left, out=ripe[j])
        if lap.dwell is None:
            np.subtract(ripe[j, 0], prices.sums[j - 1], out=fresh[j - 1])
            continue
        places = lap.dwell.due[:, j - 1] * np.int64(classes * settings) + column
        np.subtract(flat.take(places).min(axis=0), prices.sums[j - 1], out=fresh[j - 1])
    ripe[0] = ripe[1] if lap.shut is None else ripe[1] + lap.shut[0]
    return Tail(ripe=ripe.transpose(1, 0, 2), any=ripe[:-1].min(axis=1), fresh=fresh)


def cheapest(lap: Lap, prices: Prices, ahead: Floats, end: Floats) -> tuple[float, Ints]:
    """Return the least cost of a lap, and its settings, at the end again. Shape (m + 1,).

    Where there is no lap the cost is ``inf`` and the settings mean nothing.
    """
    items = len(lap.time)
    total = ahead[items] + prices.sums[items] + end
    s = int(total.argmin())
    least = float(total[s])
    choice = np.full(items + 1, s, dtype=np.int64)
    if least == np.inf:
        return least, choice
    # A segment starts where the running minimum last came down.
    fell = ahead[1:-1] < ahead[:-2]
    if lap.shut is not None:
        fell |= lap.shut > 0
    rows = np.arange(1, items + 1, dtype=np.int32)[:, None]
    began = np.zeros((items + 1, len(ahead[0])), dtype=np.int32)
    np.maximum.accumulate(np.where(fell, rows, np.int32(0)), axis=0, out=began[1:])
    row, done = items, items
    settings = np.arange(lap.time.shape[1])
    while True:
        row = int(began[row, s])
        choice[row:done] = s
        if row == 0:
            return least, choice
        if lap.dwell is None:
            latest = np.full((1, len(settings)), row - 1)
        else:
            latest = lap.dwell.latest[:, row].astype(np.int64)
        came = ahead[latest, settings] + prices.sums[row] + prices.change[:, :, s]
        kind, source = divmod(int(came.argmin()), len(settings))
        done, row, s = row, int(latest[kind, source]), source
