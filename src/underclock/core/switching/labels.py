"""Labels: options of a component while it is extended item by item.

Shape letters: N labels.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints

RIPE, FIRST = -1, -2  # instead of a segment's start: long enough; there since before the cut


@dataclass(frozen=True, slots=True)
class Labels:
    """Options of a component so far.

    Attributes:
        setting: Shape (N,).
        start: Boundary at which the segment started, or ``RIPE`` or ``FIRST``. Shape (N,).
        debt: Dwell that the segment across the cut must still get at the end. Shape (N,).
        time: Since the component began. Shape (N,).
        energy: Since the component began. Shape (N,).
        switches: Since the component began. Shape (N,).
    """

    setting: Ints
    start: Ints
    debt: Floats
    time: Floats
    energy: Floats
    switches: Ints

    @classmethod
    def one(cls, setting: int, start: int, debt: float) -> "Labels":
        """Return the only label at the beginning of a component."""
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


def concatenated(first: Labels, second: Labels) -> Labels:
    """Put labels after each other."""
    return Labels(
        np.concatenate([first.setting, second.setting]),
        np.concatenate([first.start, second.start]),
        np.concatenate([first.debt, second.debt]),
        np.concatenate([first.time, second.time]),
        np.concatenate([first.energy, second.energy]),
        np.concatenate([first.switches, second.switches]),
    )


def undominated(labels: Labels, *, counted: bool) -> Ints:
    """Return the labels that none in the same state beats, in their order.

    Args:
        labels: The labels.
        counted: Whether the number of switches is part of the state.
    """
    counts = labels.switches if counted else np.zeros_like(labels.switches)
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
