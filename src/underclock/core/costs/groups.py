"""Which kernels share a setting, and what the shared setting then costs.

Kernel by kernel, pass by pass or one clock for the whole step: the planner solves the same
problem each time, on fewer groups.

Shape letters: K kernels, G groups, S settings.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.costs.step import fixed_costs
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

    def spread(self, choice: tuple[int, ...] | Ints) -> Ints:
        """Turn a setting per group into a setting per kernel. Shape (K,)."""
        return np.asarray(choice, dtype=np.int64)[self.member]

    def added(self, of_kernels: Floats) -> Floats:
        """Add up something of kernels at each setting. Shape (G, S).

        Args:
            of_kernels: Shape (K, S).
        """
        sums = np.zeros((len(self.time_s), of_kernels.shape[1]))
        np.add.at(sums, self.member, of_kernels)
        return sums

    def auto_s(self, table: CostTable) -> Floats:
        """Return the time of each group at auto, in s. Shape (G,)."""
        at_auto_s = table.time_s[:, table.baseline]
        return np.bincount(self.member, weights=at_auto_s).astype(np.float64)


def grouped(table: CostTable, granularity: Granularity) -> Grouped:
    """Add up the kernels that must share a setting."""
    if granularity is Granularity.STEP and table.power_cap is not None:
        time_s, energy_j = fixed_costs(table)
        return Grouped(np.zeros(len(table.kernels), dtype=np.int64), time_s[None], energy_j[None])
    if granularity is Granularity.KERNEL:
        return _choosable(
            table, Grouped(np.arange(len(table.kernels)), table.time_s, table.energy_j)
        )
    if granularity is Granularity.PASS:
        passes = list(dict.fromkeys(kernel.pass_ for kernel in table.kernels))
        member = np.array([passes.index(kernel.pass_) for kernel in table.kernels])
    else:
        member = np.zeros(len(table.kernels), dtype=np.int64)
    belongs = np.arange(member.max() + 1)[:, None] == member
    sums = Grouped(
        member,
        np.stack([table.time_s[row].sum(axis=0) for row in belongs]),
        np.stack([table.energy_j[row].sum(axis=0) for row in belongs]),
    )
    return _choosable(table, sums)


def _choosable(table: CostTable, groups: Grouped) -> Grouped:
    """Leave auto out where it is a cost of the whole step: beside locked kernels it is another."""
    if table.power_cap is None:
        return groups
    time_s, energy_j = groups.time_s.copy(), groups.energy_j.copy()
    time_s[:, table.baseline] = energy_j[:, table.baseline] = np.inf
    return Grouped(groups.member, time_s, energy_j)
