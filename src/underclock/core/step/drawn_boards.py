"""What a schedule costs on boards that differ, each against its own auto.

A board that draws more is held lower at auto, while a lock below the cap stays where it is: so how
much slower a plan is differs from board to board, even where all kernels take the same at one
clock. Boards are drawn, and what the cap makes of each is worked out.

Shape letters: K kernels, S settings, W ways in which boards differ, D boards drawn, n launches.
"""

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.step.cap import LaunchCosts, settled_sums
from underclock.core.step.table import CostTable
from underclock.core.step.under_cap import cap_of

_BOARDS, _FEWEST = 64, 16
_CELLS = 10_000_000  # kernels times settings times boards


@dataclass(frozen=True, slots=True)
class DrawnBoards:
    """Boards that a plan may be run on.

    Attributes:
        launches: What launches cost on each. Length D.
        auto: What the step takes there at auto: time in s, energy in J. Shape (D, 2).
    """

    launches: tuple[LaunchCosts, ...]
    auto: Floats

    @classmethod
    def of(cls, table: CostTable, moves: Floats, *, seed: int) -> Self:
        """Draw boards.

        Args:
            table: Costs on the mean board; auto is its last setting.
            moves: Logarithms of time and power of kernels at locked settings, a deviation up in
                each way. Shape (W, 2, K, S - 1).
        """
        count = int(np.clip(_CELLS // moves[0, 0].size, _FEWEST, _BOARDS)) // 2
        half = np.random.default_rng(seed).standard_normal((count, len(moves)))
        known, each = table.launches, []
        for draw in (*half, *-half):  # so that their mean is the mean board
            time, power = np.tensordot(draw, moves, axes=1)
            time_s, energy_j = known.time_s.copy(), known.energy_j.copy()
            time_s[:, :-1] *= np.exp(time)
            energy_j[:, :-1] *= np.exp(time + power)
            each.append(dataclasses.replace(known, time_s=time_s, energy_j=energy_j))
        boosted = np.full(len(cap_of(table).order), cap_of(table).boost)
        return cls(tuple(each), settled_sums(cap_of(table), each, boosted))

    def changes(self, table: CostTable, choice: Ints) -> Floats:
        """Return what a schedule changes on each board: time and energy. Shape (D, 2).

        Args:
            choice: Setting of each launch; the baseline asks for boost. Shape (n,).
        """
        if (choice == table.baseline).all():
            return np.zeros_like(self.auto)
        asked = np.where(choice == table.baseline, cap_of(table).boost, choice)
        changes: Floats = settled_sums(cap_of(table), self.launches, asked) / self.auto - 1.0
        return changes

    def away(self, table: CostTable, choice: Ints) -> Floats:
        """Return how far what a schedule changes is from that on the mean board. Shape (D, 2).

        Args:
            choice: Setting of each launch. Shape (n,).
        """
        if (choice == table.baseline).all():
            return np.zeros_like(self.auto)
        cap, known = cap_of(table), [table.launches]
        asked = np.where(choice == table.baseline, cap.boost, choice)
        boosted = np.full(len(cap.order), cap.boost)
        here = settled_sums(cap, known, asked) / settled_sums(cap, known, boosted) - 1.0
        away: Floats = self.changes(table, choice) - here
        return away
