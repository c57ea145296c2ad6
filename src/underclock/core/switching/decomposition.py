"""The cycles near a shortest cycle, taken apart into components that do not know each other.

Any better schedule's Lagrangian cost lies within the duality gap of the shortest cycle. Within that
margin most items have one setting only, so cycles differ from the shortest in places, and between
two places where all agree every option can be chosen freely: one option per component, which is the
planning problem without switches. The options of a component are found by extending labels
(setting, start of the segment, time, energy) item by item; one goes when what is still ahead puts
it beyond the margin, or when another in the same state is no slower and no dearer.

Two things from before the cut are part of a label's state: whether it has ever switched, and, if
so, what the segment across the cut still lacks of its dwell. So what comes out keeps every rule.

Shape letters: m items, S settings, C dwell classes, N labels.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.switching.label_rules import LabelRules
from underclock.core.switching.labels import FIRST, RIPE, Labels, concatenated, undominated
from underclock.core.switching.shortest_cycle import ShortestCycle

_ITEM = 300  # labels that an item's overhead counts as


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A stretch of items with more than one option.

    Attributes:
        first: First item that may differ.
        trail: For every item, which label each came from, and its setting.
        options: The labels at the end; costs relative to the shortest cycle's.
    """

    first: int
    trail: list[tuple[Ints, Ints]]
    options: Labels

    def settings(self, option: int) -> list[int]:
        """Return the settings of an option, from the first item on."""
        backward = []
        for parent, setting in reversed(self.trail):
            backward.append(int(setting[option]))
            option = int(parent[option])
        return backward[::-1]


@dataclass(slots=True, kw_only=True)
class Decomposer:
    """Takes the cycles within a margin apart.

    Attributes:
        cycle: The shortest cycle.
        margin: How much greater the Lagrangian cost of a cycle may be.
        counted: Whether the number of switches matters.
        most: How many labels a component may hold at a time.
        effort: How many may be made in all; past it nothing comes out.
        lost: Least excess over the shortest cycle of what was left out for these limits.
    """

    cycle: ShortestCycle
    margin: float
    counted: bool
    most: int
    effort: int
    lost: float = np.inf
    _rules: LabelRules = field(init=False)
    _changes: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._rules = LabelRules.of(self.cycle)
        settings = self.cycle.choice
        self._changes = np.flatnonzero(settings[1:] != settings[:-1]) + 1

    def components(self) -> list[Component] | None:
        """Return the components in order; ``None`` if no cycle in the margin keeps the dwell."""
        cycle, items = self.cycle, len(self.cycle.ring.time)
        open_at = np.append(np.flatnonzero(cycle.alive(self.margin) > 1), items + 1)
        time, energy, switches = cycle.paid()
        multiplied = cycle.lagrangian
        paid = energy + multiplied.time_multiplier * time + multiplied.switch_multiplier * switches
        components: list[Component] = []
        item, first = 0, int(open_at[0])
        state = Labels.one(int(cycle.choice[0]), RIPE if cycle.ring.dwell is None else FIRST, 0.0)
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
            options = replace(
                labels,
                time=labels.time - (time[item] - time[last]),
                energy=labels.energy - (energy[item] - energy[last]),
                switches=labels.switches - (switches[item] - switches[last]),
            )
            components.append(Component(first=first, trail=trail, options=options))
            first = int(open_at[np.searchsorted(open_at, item, side="right")])
            state = Labels.one(int(labels.setting[0]), int(labels.start[0]), float(labels.debt[0]))
        ends = self._rules.may_end(self._followed(state, item, items))
        return components if ends.all() else None

    def _followed(self, state: Labels, item: int, last: int) -> Labels:
        """Return the state after a later item, reached along the shortest cycle."""
        ring, settings = self.cycle.ring, self.cycle.choice
        start, debt = int(state.start[0]), float(state.debt[0])
        begin, end = np.searchsorted(self._changes, [item, last], side="right")
        if begin < end and ring.dwell is not None:
            change = int(self._changes[begin])
            if start == FIRST:
                source, target = settings[[change - 1]], settings[[change]]
                debt = float(self._rules.owed(ring.dwell, source, target, change)[0])
            start = int(self._changes[end - 1])
        after = Labels.one(int(settings[last]), start, debt)
        return self._rules.ripened(after, min(last + 1, len(ring.time)))

    def _extended(self, labels: Labels, item: int, base: float) -> tuple[Labels, Ints]:
        """Take every label through one more item.

        Args:
            labels: Before the item.
            item: The item; the ring's length for the second half of item 0.
            base: Lagrangian cost of the cycle up to the component.

        Returns:
            The labels after it, and which label each came from.
        """
        rules, ring = self._rules, self.cycle.ring
        latest = self.cycle.least + self.margin
        cost = base + rules.cost(labels)
        source, target, switched_bound = rules.changes(labels, cost, item, latest)
        switched = rules.switched(labels.at(source), target, item)
        every = concatenated(labels, switched)
        parent = np.concatenate([np.arange(len(cost)), source])
        bound = np.concatenate([cost + rules.to_go(labels, item), switched_bound])
        keep = np.flatnonzero(bound <= latest)
        every, parent, bound = every.at(keep), parent[keep], bound[keep]
        if item < len(ring.time):
            every = replace(
                every,
                time=every.time + ring.time[item, every.setting],
                energy=every.energy + ring.energy[item, every.setting],
            )
            every = rules.ripened(every, item + 1)
        else:
            ends = rules.may_end(every)
            every, parent, bound = every.at(ends), parent[ends], bound[ends]
            every = replace(
                every,
                start=np.full(len(parent), RIPE),
                debt=np.zeros(len(parent)),
            )
        if len(parent) > 1:
            keep = self._kept(every, bound)
            every, parent = every.at(keep), parent[keep]
        return every, parent

    def _kept(self, labels: Labels, bound: Floats) -> Ints:
        """Return the labels that none beats, and of too many those with the least bounds."""
        keep = undominated(labels, counted=self.counted)
        if len(keep) > self.most:
            order = np.argsort(bound[keep], kind="stable")
            self.lost = min(self.lost, float(bound[keep][order[self.most]]) - self.cycle.least)
            keep = keep[np.sort(order[: self.most])]
        return keep
