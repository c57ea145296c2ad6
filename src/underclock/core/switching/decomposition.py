"""The schedules near a cheapest lap, taken apart into pieces that do not know each other.

Whatever beats a known schedule by priced cost is within a margin of the cheapest lap. Within that
margin most items have one setting only, so laps differ from the cheapest in places, and between two
places where all agree every way round can be chosen freely: one choice per piece, which is the
planning problem without switches. The ways through a piece are found by extending labels (setting,
start of the segment, time, energy) item by item; one goes when what is still ahead puts it beyond
the margin, or when another in the same state is no slower and no dearer.

Two things from before the cut are part of a label's state: whether it has ever switched, and, if
so, what the segment across the cut still lacks of its dwell. So what comes out keeps every rule.

Shape letters: m items, S settings, C dwell classes, N labels.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.switching.cycle import Dwell, Lap
from underclock.core.switching.problem import DWELL_SLACK
from underclock.core.switching.viterbi import Prices, Tail, backward, cheapest, forward

_ITEM = 300  # labels that an item's overhead is worth
RIPE, FIRST = -1, -2  # instead of a segment's start: long enough; there since before the lap


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The cheapest lap from a setting back to it, with what bounds all others.

    Attributes:
        lap: The lap.
        prices: Of time and switches.
        ahead: Costs from the start. Shape (m + 2, S).
        tail: Costs to the end.
        end: ``inf`` but for the setting. Shape (S,).
        least: Cost of the cheapest lap.
        choice: Its settings. Shape (m + 1,).
    """

    lap: Lap
    prices: Prices
    ahead: Floats
    tail: Tail
    end: Floats
    least: float
    choice: Ints

    @property
    def bound(self) -> float:
        """Return the least cost, less what rounding may have added."""
        return self.least - self.prices.error

    def paid(self) -> tuple[Floats, Floats, Ints]:
        """Return what the lap takes up to and with each item, from the cut on. Shapes (m + 1,)."""
        lap, path = self.lap, self.choice
        items, changes = np.arange(len(lap.time)), (path[:-1], path[1:])
        sums = []
        for table, change in ((lap.time, lap.switch_time), (lap.energy, lap.switch_energy)):
            cost = np.append(table[items, path[:-1]], 0.0)
            cost[0] *= 0.5
            cost[1:] += change[changes]
            sums.append(np.cumsum(cost))
        return sums[0], sums[1], np.append(0, np.cumsum(changes[0] != changes[1]))

    def alive(self, margin: float) -> Ints:
        """Return how many settings each item has within a margin; at least one. Shape (m + 1,)."""
        items = len(self.lap.time)
        through = self.ahead[:items] + self.tail.any[1 : items + 1]
        if self.lap.shut is not None:
            through += self.lap.shut
        within = through <= self.least + margin
        within[np.arange(items), self.choice[:-1]] = True
        return np.append(within.sum(axis=1), 1)


def around(lap: Lap, prices: Prices, setting: int) -> Around:
    """Find the cheapest lap from a setting of item 0 back to it; ``inf`` if there is none."""
    start = np.full(lap.time.shape[1], np.inf)
    start[setting] = 0.0
    ahead, end = forward(lap, prices, start), start + prices.half
    least, choice = cheapest(lap, prices, ahead, end)
    return Around(
        lap=lap,
        prices=prices,
        ahead=ahead,
        tail=backward(lap, prices, end),
        end=end,
        least=least,
        choice=choice,
    )


@dataclass(frozen=True, slots=True)
class Labels:
    """Ways through the piece so far.

    Attributes:
        setting: Shape (N,).
        start: Boundary at which the segment started, or ``RIPE`` or ``FIRST``. Shape (N,).
        debt: Dwell that the segment across the cut must still get at the end. Shape (N,).
        time: Since the piece began. Shape (N,).
        energy: Likewise. Shape (N,).
        switches: Likewise. Shape (N,).
    """

    setting: Ints
    start: Ints
    debt: Floats
    time: Floats
    energy: Floats
    switches: Ints

    @classmethod
    def one(cls, setting: int, start: int, debt: float) -> "Labels":
        """Return the only label at the beginning of a piece."""
        whole = np.array([[setting], [start], [0]])
        return cls(whole[0], whole[1], np.array([debt]), np.zeros(1), np.zeros(1), whole[2])

    def at(self, which: Ints | Bools) -> "Labels":
        """Return some of the labels."""
        return Labels(
            self.setting[which],
            self.start[which],
            self.debt[which],
            self.time[which],
            self.energy[which],
            self.switches[which],
        )

    def alike(self) -> bool:
        """Whether all have the same future."""
        return len(self.setting) == 1 or bool(
            (self.setting == self.setting[0]).all()
            and (self.start == self.start[0]).all()
            and (self.debt == self.debt[0]).all()
        )


def joined(first: Labels, second: Labels) -> Labels:
    """Put labels after each other."""
    return Labels(
        np.concatenate([first.setting, second.setting]),
        np.concatenate([first.start, second.start]),
        np.concatenate([first.debt, second.debt]),
        np.concatenate([first.time, second.time]),
        np.concatenate([first.energy, second.energy]),
        np.concatenate([first.switches, second.switches]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of items with more than one way through.

    Attributes:
        first: First item that may differ.
        trail: For every item, which label each came from, and its setting.
        ways: The labels at the end; costs relative to the cheapest lap's.
    """

    first: int
    trail: list[tuple[Ints, Ints]]
    ways: Labels

    def settings(self, which: int) -> list[int]:
        """Return the settings of a way, from the first item on."""
        found = []
        for parent, setting in reversed(self.trail):
            found.append(int(setting[which]))
            which = int(parent[which])
        return found[::-1]


@dataclass(slots=True, kw_only=True)
class Walker:
    """Takes the laps within a margin apart.

    Attributes:
        around: The cheapest lap.
        margin: How much dearer, by price, a lap may be.
        counted: Whether the number of switches matters.
        most: How many labels a piece may hold at a time.
        effort: How many may be made in all; past it nothing comes out.
        lost: Least excess over the cheapest lap of what was left out for these limits.
    """

    around: Around
    margin: float
    counted: bool
    most: int
    effort: int
    lost: float = np.inf
    _kind: Ints = field(init=False)
    _change: Floats = field(init=False)
    _least_change: Floats = field(init=False)
    _turns: Ints = field(init=False)

    def __post_init__(self) -> None:
        lap, settings = self.around.lap, len(self.around.end)
        self._kind = (
            np.zeros((settings, settings), np.int64) if lap.dwell is None else lap.dwell.kind
        )
        self._change = self.around.prices.change.min(axis=0)
        np.fill_diagonal(self._change, np.inf)
        self._least_change = self._change.min(axis=0)
        path = self.around.choice
        self._turns = np.flatnonzero(path[1:] != path[:-1]) + 1

    def pieces(self) -> list[Piece] | None:
        """Return the pieces in order; ``None`` if no lap within the margin keeps the dwell."""
        around, items = self.around, len(self.around.lap.time)
        open_at = np.append(np.flatnonzero(around.alive(self.margin) > 1), items + 1)
        time, energy, switches = around.paid()
        paid = energy + around.prices.time * time + around.prices.switch * switches
        found: list[Piece] = []
        item, first = 0, int(open_at[0])
        state = Labels.one(int(around.choice[0]), RIPE if around.lap.dwell is None else FIRST, 0.0)
        while first <= items:
            last = first - 1
            state, item = self._followed(state, item, last), last
            labels, trail = state, []
            while True:
                item += 1
                labels, parent = self._extended(labels, item, float(paid[last]))
                self.effort -= _ITEM + len(parent)
                if self.effort < 0:
                    self.lost = 0.0
                if len(parent) == 0 or self.effort < 0:
                    return None
                trail.append((parent, labels.setting))
                if labels.alike():
                    break
            ways = replace(
                labels,
                time=labels.time - (time[item] - time[last]),
                energy=labels.energy - (energy[item] - energy[last]),
                switches=labels.switches - (switches[item] - switches[last]),
            )
            found.append(Piece(first=first, trail=trail, ways=ways))
            first = int(open_at[np.searchsorted(open_at, item, side="right")])
            state = Labels.one(int(labels.setting[0]), int(labels.start[0]), float(labels.debt[0]))
        return found if self._ends(self._followed(state, item, items)).all() else None

    def _followed(self, state: Labels, item: int, last: int) -> Labels:
        """Return the state after a later item, reached along the cheapest lap."""
        lap, path = self.around.lap, self.around.choice
        start, debt = int(state.start[0]), float(state.debt[0])
        begin, end = np.searchsorted(self._turns, [item, last], side="right")
        if begin < end and lap.dwell is not None:
            turn = int(self._turns[begin])
            if start == FIRST:
                debt = float(self._owed(lap.dwell, path[[turn - 1]], path[[turn]], turn)[0])
            start = int(self._turns[end - 1])
        after = Labels.one(int(path[last]), start, debt)
        return self._ripened(after, min(last + 1, len(lap.time)))

    def _owed(self, dwell: Dwell, come: Ints, to: Ints, boundary: int) -> Floats:
        """Return what the segment across the cut lacks when it ends at a boundary. Shape (N,)."""
        need = dwell.levels_s[dwell.kind[come, to]] * (1.0 - DWELL_SLACK)
        owed: Floats = np.maximum(0.0, need - self.around.lap.lasts[boundary, come])
        return owed

    def _ripened(self, labels: Labels, boundary: int) -> Labels:
        """Forget where segments started that may now end as they like."""
        dwell = self.around.lap.dwell
        if dwell is None:
            return labels
        due = dwell.due[:, np.maximum(labels.start, 0), labels.setting].max(axis=0)
        ripe = (labels.start >= 0) & (due <= boundary)
        return replace(labels, start=np.where(ripe, RIPE, labels.start))

    def _ends(self, labels: Labels) -> Bools:
        """Return which labels may stand at the end of the lap. Shape (N,)."""
        lasts = self.around.lap.lasts
        tail = lasts[-1, labels.setting] - lasts[np.maximum(labels.start, 0), labels.setting]
        ends: Bools = (labels.start < 0) | (tail >= labels.debt)
        return ends

    def _extended(self, labels: Labels, item: int, base: float) -> tuple[Labels, Ints]:
        """Take every label through one more item.

        Args:
            labels: Before the item.
            item: The item; the lap's length for the second half of item 0.
            base: Cost of the lap up to the piece.

        Returns:
            The labels after it, and which label each came from.
        """
        lap = self.around.lap
        latest = self.around.least + self.margin
        price = base + self._price(labels)
        # Few settings can be switched to within the margin: the others need no row of their own.
        into = np.flatnonzero(
            price.min() + self._least_change + self.around.tail.fresh[item] <= latest
        )
        ahead = (
            price[:, None]
            + self._change[labels.setting[:, None], into]
            + self.around.tail.fresh[item, into]
        )
        come, column = np.nonzero((ahead <= latest) & self._may_leave(labels, into, item))
        to = into[column]
        new = self._switched(labels.at(come), to, item)
        every = joined(labels, new)
        parent = np.concatenate([np.arange(len(price)), come])
        bound = np.concatenate([price + self._to_go(labels, item), ahead[come, column]])
        keep = np.flatnonzero(bound <= latest)
        every, parent, bound = every.at(keep), parent[keep], bound[keep]
        if item < len(lap.time):
            every = replace(
                every,
                time=every.time + lap.time[item, every.setting],
                energy=every.energy + lap.energy[item, every.setting],
            )
            every = self._ripened(every, item + 1)
        else:
            ends = self._ends(every)
            every, parent, bound = every.at(ends), parent[ends], bound[ends]
            every = replace(
                every,
                start=np.full(len(parent), RIPE),
                debt=np.zeros(len(parent)),
            )
        if len(parent) > 1:
            keep = self._front(every)
            if len(keep) > self.most:
                order = np.argsort(bound[keep], kind="stable")
                self.lost = min(self.lost, float(bound[keep][order[self.most]]) - self.around.least)
                keep = keep[np.sort(order[: self.most])]
            every, parent = every.at(keep), parent[keep]
        return every, parent

    def _price(self, labels: Labels) -> Floats:
        prices = self.around.prices
        return labels.energy + prices.time * labels.time + prices.switch * labels.switches

    def _may_leave(self, labels: Labels, into: Ints, boundary: int) -> Bools:
        """Return which label may change to which of some settings. Shape (N, len(into))."""
        dwell = self.around.lap.dwell
        if dwell is None:
            return np.ones((1, 1), dtype=np.bool_)
        ripe = labels.start <= dwell.latest[:, boundary, labels.setting]
        shut = dwell.latest[:, boundary, labels.setting] > boundary
        ripe = (ripe & ~shut) | (labels.start < 0)
        allowed: Bools = ripe[
            self._kind[labels.setting[:, None], into], np.arange(len(labels.start))[:, None]
        ]
        return allowed

    def _switched(self, labels: Labels, to: Ints, boundary: int) -> Labels:
        """Return the labels after a change of setting."""
        lap = self.around.lap
        start, debt = np.full(len(to), RIPE), labels.debt
        if lap.dwell is not None:
            start = np.full(len(to), boundary)
            owed = self._owed(lap.dwell, labels.setting, to, boundary)
            debt = np.where(labels.start == FIRST, owed, debt)
        return Labels(
            to,
            start,
            debt,
            labels.time + lap.switch_time[labels.setting, to],
            labels.energy + lap.switch_energy[labels.setting, to],
            labels.switches + 1,
        )

    def _to_go(self, labels: Labels, item: int) -> Floats:
        """Return the least cost to the end of staying for an item. Shape (N,)."""
        around, items = self.around, len(self.around.lap.time)
        if item == items:
            return around.end[labels.setting]
        dwell = around.lap.dwell
        to_go = around.tail.any[item + 1, labels.setting]
        if dwell is not None:
            classes = np.arange(len(dwell.levels_s))[:, None]
            due = dwell.due[:, np.maximum(labels.start, 0), labels.setting]
            unripe = around.tail.ripe[classes, np.maximum(due, item + 1), labels.setting].min(
                axis=0
            )
            to_go = np.where(labels.start < 0, to_go, unripe)
        if around.lap.shut is not None:
            to_go = to_go + around.lap.shut[item, labels.setting]
        gone: Floats = to_go - around.prices.sums[item, labels.setting]
        return gone

    def _front(self, labels: Labels) -> Ints:
        """Return the labels that none in the same state beats, in their order."""
        counts = labels.switches if self.counted else np.zeros_like(labels.switches)
        keys = counts, labels.debt, labels.start, labels.setting
        order = np.lexsort((labels.energy, labels.time, *keys))
        new = np.zeros(len(order), dtype=np.bool_)
        for key in keys:
            new[1:] |= key[order[1:]] != key[order[:-1]]
        # Ranks instead of energies, so that subtracting a great number per state loses nothing.
        rank = np.unique(labels.energy, return_inverse=True)[1][order]
        rank -= np.cumsum(new) * len(order)
        keep = np.ones(len(order), dtype=np.bool_)
        keep[1:] = rank[1:] < np.minimum.accumulate(rank)[:-1]
        front: Ints = np.sort(order[keep])
        return front
