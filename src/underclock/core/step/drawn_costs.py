"""What a schedule costs as draws of what launches cost have it, each against its own auto.

A step that draws more is held lower at auto, while a lock below the cap stays where it is: so how
much slower a plan is differs from draw to draw, even where all kernels take the same at one clock,
and to one side more than to the other. What the cap makes of each draw is worked out.

Shape letters: K kernels, S settings, D draws, n launches.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_cap import LaunchCosts, settled_sums
from underclock.core.step.power_capped_step import cap_of


@dataclass(frozen=True, slots=True)
class DrawnCosts:
    """Draws of the costs of a step's launches, from the joint errors of the costs.

    Attributes:
        launches: What launches cost in each draw. Length D.
        auto: What the step takes there at auto: time in s, energy in J. Shape (D, 2).
        expected: The same as expected, not drawn. Shape (2,).
    """

    launches: tuple[LaunchCosts, ...]
    auto: Floats
    expected: Floats

    @classmethod
    def of(cls, table: CostTable, off: Floats) -> Self:
        """Draw them.

        Args:
            table: Expected costs; auto is its last setting.
            off: By how much logarithms of time and power of kernels at locked settings are off
                those expected. Shape (D, 2, K, S - 1).
        """
        known, each = table.launches, []
        for time, power in off:
            time_s, energy_j = known.time_s.copy(), known.energy_j.copy()
            time_s[:, :-1] *= np.exp(time)
            energy_j[:, :-1] *= np.exp(time + power)
            each.append(dataclasses.replace(known, time_s=time_s, energy_j=energy_j))
        cap = cap_of(table)
        boosted = np.full(len(cap.order), cap.boost)
        (expected,) = settled_sums(cap, [known], boosted)
        return cls(tuple(each), settled_sums(cap, each, boosted), expected)

    def changes(self, table: CostTable, choice: Ints) -> Floats:
        """Return what a schedule changes in each draw: time and energy. Shape (D, 2).

        Args:
            choice: Setting of each launch; the baseline asks for boost. Shape (n,).
        """
        return _changes(table, choice, self.launches, self.auto)

    def away(self, table: CostTable, choice: Ints) -> Floats:
        """Return how far what a schedule changes is from what it is expected to. Shape (D, 2).

        Args:
            choice: Setting of each launch. Shape (n,).
        """
        return self.changes(table, choice) - _changes(
            table, choice, [table.launches], self.expected
        )


def _changes(table: CostTable, choice: Ints, boards: Sequence[LaunchCosts], auto: Floats) -> Floats:
    """Return what a schedule changes on boards, against what auto takes there. Shape (B, 2)."""
    cap = cap_of(table)
    asked = np.where(choice == table.baseline, cap.boost, choice)
    changes: Floats = settled_sums(cap, boards, asked) / auto - 1.0
    return changes
