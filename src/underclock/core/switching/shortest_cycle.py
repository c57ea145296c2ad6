"""The shortest cycle through one setting of the item that is cut.

Shape letters: m items, S settings.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.switching.lagrangian import Lagrangian
from underclock.core.switching.ring import Ring
from underclock.core.switching.viterbi import CostToGo, backward, cheapest, forward


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestCycle:
    """The shortest cycle through a setting of the cut item, with what bounds all others.

    Attributes:
        ring: The ring.
        lagrangian: Its costs at the multipliers.
        ahead: Costs from the start. Shape (m + 2, S).
        to_go: Costs to the end.
        end: ``inf`` but for the setting. Shape (S,).
        least: Cost of the shortest cycle.
        choice: Its settings. Shape (m + 1,).
    """

    ring: Ring
    lagrangian: Lagrangian
    ahead: Floats
    to_go: CostToGo
    end: Floats
    least: float
    choice: Ints

    @property
    def bound(self) -> float:
        """Return the least cost, less what rounding may have added."""
        return self.least - self.lagrangian.error

    def paid(self) -> tuple[Floats, Floats, Ints]:
        """Return what the cycle takes up to and with each item, from the cut. Shapes (m + 1,)."""
        ring, path = self.ring, self.choice
        items, changes = np.arange(len(ring.time)), (path[:-1], path[1:])
        sums = []
        for table, change in ((ring.time, ring.switch_time), (ring.energy, ring.switch_energy)):
            cost = np.append(table[items, path[:-1]], 0.0)
            cost[0] *= 0.5
            cost[1:] += change[changes]
            sums.append(np.cumsum(cost))
        return sums[0], sums[1], np.append(0, np.cumsum(changes[0] != changes[1]))

    def alive(self, margin: float) -> Ints:
        """Return how many settings each item has within a margin; at least one. Shape (m + 1,)."""
        items = len(self.ring.time)
        through = self.ahead[:items] + self.to_go.any[1 : items + 1]
        if self.ring.shut is not None:
            through += self.ring.shut
        within = through <= self.least + margin
        within[np.arange(items), self.choice[:-1]] = True
        return np.append(within.sum(axis=1), 1)


def shortest_cycle(ring: Ring, lagrangian: Lagrangian, setting: int) -> ShortestCycle:
    """Find the shortest cycle through a setting of item 0; of cost ``inf`` if there is none."""
    start = np.full(ring.time.shape[1], np.inf)
    start[setting] = 0.0
    ahead, end = forward(ring, lagrangian, start), start + lagrangian.half
    least, choice = cheapest(ring, lagrangian, ahead, end)
    return ShortestCycle(
        ring=ring,
        lagrangian=lagrangian,
        ahead=ahead,
        to_go=backward(ring, lagrangian, end),
        end=end,
        least=least,
        choice=choice,
    )
