"""Partial choices that a search keeps while it decides one group after another: its labels.

Shape letters: I moves of one group, N labels, M multipliers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from underclock.arrays import Bools, Floats, Ints

Origins = NDArray[np.unsignedinteger]
"""Which move of which label each label came from, in the least integers that hold it."""


@dataclass(frozen=True, slots=True)
class PartialChoices:
    """Partial choices that nothing dominates, fastest first.

    Attributes:
        time: Relative to the base. Shape (N,).
        energy: Relative to the base; falls where time rises. Shape (N,).
    """

    time: Ints
    energy: Ints

    @classmethod
    def root(cls) -> "PartialChoices":
        """Return the base itself."""
        return cls(np.zeros(1, np.int64), np.zeros(1, np.int64))

    def extended(
        self,
        move_time: Ints,
        move_energy: Ints,
        *,
        below: int,
        latest: int,
        rates: Floats,
        floor: Floats,
        most: int,
    ) -> tuple["PartialChoices", Origins, float | None]:
        """Make every move of a stage from every label and keep what may still win.

        Args:
            move_time: Time of every move, relative to the base. Shape (I,).
            move_energy: Energy of every move, relative to the base. Shape (I,).
            below: Energy to get below.
            latest: Greatest time from which the budget can still be met.
            rates: Multipliers. Shape (M,).
            floor: What a label's Lagrangian cost lacks of its bound, by multiplier. Shape (M,).
            most: How many labels to keep.

        Returns:
            The labels, for each the flat index (I, N) of its move and parent, and the least bound
            among those lost to ``most``.
        """
        # Moves first, labels second: runs sorted by time, which a stable sort merges.
        time = (move_time[:, None] + self.time).ravel()
        energy = (move_energy[:, None] + self.energy).ravel()
        bound = np.full(len(time), -np.inf)
        for rate, add in zip(rates.tolist(), floor.tolist(), strict=True):
            np.maximum(bound, rate * time + add, out=bound)
        bound += energy
        alive = np.flatnonzero((bound <= below - 1) & (time <= latest))
        order = alive[np.argsort(time[alive], kind="stable")]
        order = order[_front(time[order], energy[order])]
        lost = None
        if len(order) > most:
            # Half of them the most promising, half spread evenly, for where many promise the same
            # those alone would be alike.
            chosen = np.zeros(len(order), dtype=bool)
            chosen[np.argpartition(bound[order], most // 2)[: most // 2]] = True
            chosen[np.linspace(0, len(order) - 1, most - most // 2, dtype=np.int64)] = True
            lost = float(bound[order[~chosen]].min())
            order = order[chosen]
        source = order.astype(np.min_scalar_type(len(time)))
        return PartialChoices(time[order], energy[order]), source, lost

    def cheapest(self, slack: int) -> tuple[int, int]:
        """Return the least energy among labels within the slack, and which; 0 if none is."""
        # Energy falls as time rises, so it is the last label that fits.
        which = int(np.searchsorted(self.time, slack, side="right")) - 1
        return (int(self.energy[which]), which) if which >= 0 else (0, -1)


def _front(time: Ints, energy: Ints) -> Bools:
    """Return which labels, in order of time, no other dominates; of equals one. Shape (N,)."""
    keep = np.ones(len(time), dtype=bool)
    keep[1:] = energy[1:] < np.minimum.accumulate(energy)[:-1]
    # Of those that improve at one and the same time, the last is the cheapest.
    kept = np.flatnonzero(keep)
    keep[kept[:-1][time[kept[1:]] == time[kept[:-1]]]] = False
    return keep
