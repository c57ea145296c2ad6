"""Which kernels share a setting, and what the shared setting then costs.

Kernel by kernel, pass by pass or one clock for the whole step: the planner solves the same
problem each time, on fewer groups.

Shape letters: K kernels, G groups, S settings.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.costs.table import CostTable
from underclock.records import Granularity


@dataclass(frozen=True, slots=True)
class Grouped:
    """Costs of groups of kernels.

    Attributes:
        member: Group of each kernel. Shape (K,).
        time_s: Sum over the group; ``inf`` unless every member was measured. Shape (G, S).
        energy_j: Sum over the group; ``inf`` unless every member was measured. Shape (G, S).
    """

    member: Ints
    time_s: Floats
    energy_j: Floats

    def spread(self, choice: tuple[int, ...]) -> Ints:
        """Turn a setting per group into a setting per kernel. Shape (K,)."""
        return np.asarray(choice, dtype=np.int64)[self.member]


def grouped(table: CostTable, granularity: Granularity) -> Grouped:
    """Add up the kernels that must share a setting."""
    if granularity is Granularity.KERNEL:
        return Grouped(np.arange(len(table.kernels)), table.time_s, table.energy_j)
    if granularity is Granularity.PASS:
        passes = list(dict.fromkeys(kernel.pass_ for kernel in table.kernels))
        member = np.array([passes.index(kernel.pass_) for kernel in table.kernels])
    else:
        member = np.zeros(len(table.kernels), dtype=np.int64)
    belongs = np.arange(member.max() + 1)[:, None] == member
    return Grouped(
        member,
        np.stack([table.time_s[row].sum(axis=0) for row in belongs]),
        np.stack([table.energy_j[row].sum(axis=0) for row in belongs]),
    )
