"""What may happen to labels at an item of a ring, and what it costs at least.

Shape letters: m items, S settings, C dwell classes, N labels, M of the settings.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.switching.labels import FIRST, RIPE, Labels
from underclock.core.switching.problem import DWELL_SLACK
from underclock.core.switching.ring import Dwell
from underclock.core.switching.shortest_cycle import ShortestCycle


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRules:
    """The rules of one ring, and bounds from its shortest cycle.

    Attributes:
        cycle: The shortest cycle.
        kind: Dwell class of each change of setting. Shape (S, S).
        change: Lagrangian cost of each change; ``inf`` from a setting to itself. Shape (S, S).
        least_change: Of changing to each setting, from any. Shape (S,).
    """

    cycle: ShortestCycle
    kind: Ints
    change: Floats
    least_change: Floats

    @classmethod
    def of(cls, cycle: ShortestCycle) -> Self:
        """Return the rules of a cycle's ring."""
        settings = len(cycle.end)
        dwell = cycle.ring.dwell
        change = cycle.lagrangian.change.min(axis=0)
        np.fill_diagonal(change, np.inf)
        return cls(
            cycle=cycle,
            kind=np.zeros((settings, settings), np.int64) if dwell is None else dwell.kind,
            change=change,
            least_change=change.min(axis=0),
        )

    def cost(self, labels: Labels) -> Floats:
        """Return the Lagrangian cost of labels since their component began. Shape (N,)."""
        lagrangian = self.cycle.lagrangian
        return (
            labels.energy
            + lagrangian.time_multiplier * labels.time
            + lagrangian.switch_multiplier * labels.switches
        )

    def changes(
        self, labels: Labels, cost: Floats, item: int, latest: float
    ) -> tuple[Ints, Ints, Floats]:
        """Return the changes of setting before an item that may lead to a cycle within a margin.

        Args:
            labels: Before the item.
            cost: Of the cycle so far, by label. Shape (N,).
            item: The item.
            latest: Most that a cycle may cost.

        Returns:
            Which label changes, to which setting, and what such a cycle costs at least.
        """
        fresh = self.cycle.to_go.fresh[item]
        # Few settings can be changed to within the margin: the others need no column.
        into = np.flatnonzero(cost.min() + self.least_change + fresh <= latest)
        bound = cost[:, None] + self.change[labels.setting[:, None], into] + fresh[into]
        within = (bound <= latest) & self._may_leave(labels, into, item)
        source, column = np.nonzero(within)
        return source, into[column], bound[source, column]

    def _may_leave(self, labels: Labels, into: Ints, boundary: int) -> Bools:
        """Return which label has dwelt long enough to change to which setting. Shape (N, M)."""
        dwell = self.cycle.ring.dwell
        if dwell is None:
            return np.ones((1, 1), dtype=np.bool_)
        latest = dwell.latest[:, boundary, labels.setting]
        ripe = ((labels.start <= latest) & (latest <= boundary)) | (labels.start < 0)
        kind = self.kind[labels.setting[:, None], into]
        may: Bools = ripe[kind, np.arange(len(labels.start))[:, None]]
        return may

    def switched(self, labels: Labels, target: Ints, boundary: int) -> Labels:
        """Return the labels after a change of setting."""
        ring = self.cycle.ring
        start, debt = np.full(len(target), RIPE), labels.debt
        if ring.dwell is not None:
            start = np.full(len(target), boundary)
            owed = self.owed(ring.dwell, labels.setting, target, boundary)
            debt = np.where(labels.start == FIRST, owed, debt)
        return Labels(
            target,
            start,
            debt,
            labels.time + ring.switch_time[labels.setting, target],
            labels.energy + ring.switch_energy[labels.setting, target],
            labels.switches + 1,
        )

    def owed(self, dwell: Dwell, source: Ints, target: Ints, boundary: int) -> Floats:
        """Return what the segment across the cut lacks when it ends at a boundary. Shape (N,)."""
        need = dwell.levels_s[dwell.kind[source, target]] * (1.0 - DWELL_SLACK)
        owed: Floats = np.maximum(0.0, need - self.cycle.ring.lasts[boundary, source])
        return owed

    def ripened(self, labels: Labels, boundary: int) -> Labels:
        """Forget where segments started that may now end as they like."""
        dwell = self.cycle.ring.dwell
        if dwell is None:
            return labels
        due = dwell.due[:, np.maximum(labels.start, 0), labels.setting].max(axis=0)
        ripe = (labels.start >= 0) & (due <= boundary)
        return replace(labels, start=np.where(ripe, RIPE, labels.start))

    def may_end(self, labels: Labels) -> Bools:
        """Return which labels may stand at the end of the ring. Shape (N,)."""
        lasts = self.cycle.ring.lasts
        tail = lasts[-1, labels.setting] - lasts[np.maximum(labels.start, 0), labels.setting]
        ends: Bools = (labels.start < 0) | (tail >= labels.debt)
        return ends

    def to_go(self, labels: Labels, item: int) -> Floats:
        """Return the least cost to the end of staying for an item. Shape (N,)."""
        cycle, ring = self.cycle, self.cycle.ring
        if item == len(ring.time):
            return cycle.end[labels.setting]
        least = cycle.to_go.any[item + 1, labels.setting]
        if ring.dwell is not None:
            classes = np.arange(len(ring.dwell.levels_s))[:, None]
            due = ring.dwell.due[:, np.maximum(labels.start, 0), labels.setting]
            unripe = cycle.to_go.ripe[classes, np.maximum(due, item + 1), labels.setting]
            least = np.where(labels.start < 0, least, unripe.min(axis=0))
        if ring.shut is not None:
            least = least + ring.shut[item, labels.setting]
        to_go: Floats = least - cycle.lagrangian.sums[item, labels.setting]
        return to_go
