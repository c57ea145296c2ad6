"""Clocks that groups of instructions share: one a rank, or one a rank and kind of instruction.

An integer program: every group takes one of the clocks that all its instructions have, and no path
through the network may be longer than the iteration. There are more paths than can be written down,
so those are added that the answer so far makes too long, until there is none (as Dantzig, Fulkerson
and Johnson 1954 did with tours).

Shape letters: n instructions, K cells (a rank's profile in a group), G groups, C clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from underclock.arrays import Floats, Ints
from underclock.core.job.tables import Choice, JobTable

_MOST_CUTS = 300
_ENOUGH = 1e-7  # of a time: a path longer by less is short enough
_GAP = 1e-4  # of the energy at which the search for integers ends


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Instructions that share a clock.

    Attributes:
        table: Of the job.
        of: Group of each planned instruction of a first stream; -1 for others. Shape (n,).
        counted_s: What rows count as. Shape (P, R).
        wait_w: What each rank draws waiting at least. Shape (ranks,).
    """

    table: JobTable
    of: Ints
    counted_s: Floats
    wait_w: Floats

    @cached_property
    def _cells(self) -> tuple[Ints, Ints, Ints]:
        """Pair and group of each cell, shapes (K,), and the cell of each instruction: (n,)."""
        at = np.flatnonzero(self.of >= 0)
        keys = np.stack([self.table.pair[at], self.of[at]])
        (pair, group), which = np.unique(keys, axis=1, return_inverse=True)
        cell = np.full(len(self.of), -1)
        cell[at] = which.ravel()
        return pair, group, cell

    @cached_property
    def _times_s(self) -> Floats:
        """What an instruction of a cell counts as at each clock. Shape (K, C)."""
        pair = self._cells[0]
        times_s: Floats = self.counted_s[pair[:, None], self.table.at_clocks[pair]]
        return times_s

    @cached_property
    def _columns(self) -> tuple[Ints, Ints]:
        """Group and clock of each variable: clocks that all cells have and none beats."""
        pair, group, _ = self._cells
        rows = self.table.at_clocks[pair]
        has = self.table.first[pair[:, None], rows] == np.arange(rows.shape[1])
        common = np.array([has[group == g].all(axis=0) for g in range(int(group.max()) + 1)])
        cost_j = self._costs_j(0.0)
        for g, may in enumerate(common):
            times_s = self._times_s[group == g]
            slower = (times_s[:, None] <= times_s[:, :, None]).all(axis=0)
            dearer = cost_j[g][None] <= cost_j[g][:, None]
            same = (slower & slower.T) & (dearer & dearer.T)
            first = np.triu(np.ones_like(same), 1).astype(bool)
            beaten = slower & dearer & may[None] & (~same | first.T)
            np.fill_diagonal(beaten, val=False)
            common[g] = may & ~beaten.any(axis=1)
        groups, clocks = np.nonzero(common)
        return groups, clocks

    def _costs_j(self, budget_s: float) -> Floats:
        """Return what each group costs at each clock, less what waiting would draw. Shape (G, C).

        A rank's wait is shared out among its groups by how long they are busy at auto.
        """
        pair, group, cell = self._cells
        rows, table = self.table.at_clocks[pair], self.table
        rank = np.array([of for of, _ in table.pairs])[pair]
        count = np.bincount(cell[cell >= 0], table.weight[cell >= 0])
        time_s = table.time_s[pair[:, None], rows]
        wait_w = table.wait_w[pair[:, None], rows]
        energy_j = count[:, None] * (table.energy_j[pair[:, None], rows] - wait_w * time_s)
        busy_s = count * table.time_s[pair, table.auto[pair]]
        share = busy_s / np.bincount(rank, busy_s)[rank]
        above_w = (wait_w - self.wait_w[rank, None]) * (share * table.rank_weight[rank])[:, None]
        cost_j = np.zeros((int(group.max()) + 1, rows.shape[1]))
        np.add.at(cost_j, group, energy_j + above_w * budget_s)
        return cost_j

    def chosen(self, budget_s: float) -> tuple[Choice, float] | None:
        """Return the best clocks within a budget, and what such clocks cost at least.

        The latter is without what no clock changes. ``None`` where no clocks are as fast.
        """
        group, clock = self._columns
        cost_j = self._costs_j(budget_s)[group, clock]
        total_w = float(self.wait_w @ self.table.rank_weight)
        cuts: list[Floats] = []
        picked, whole = np.zeros(len(group)), False
        first = np.unique(group, return_index=True)[1]
        picked[first] = 1.0
        least_s, bound_j = 0.0, -np.inf
        for _ in range(_MOST_CUTS):
            longest_s, cut = self._longest(picked)
            if longest_s <= least_s * (1.0 + _ENOUGH):
                if whole:
                    return self._choice(picked), bound_j
                whole = True
            else:
                cuts.append(cut)
            answer = milp(
                np.append(cost_j, total_w),
                integrality=np.append(np.full(len(group), int(whole)), 0),
                bounds=Bounds(0.0, np.append(np.ones(len(group)), budget_s)),
                constraints=self._constraints(group, cuts),
                options={"mip_rel_gap": _GAP},
            )
            if answer.x is None:
                return None
            picked, least_s = answer.x[:-1], float(answer.x[-1])
            bound_j = float(answer.mip_dual_bound) if whole else -np.inf
        return None

    def _constraints(self, group: Ints, cuts: Sequence[Floats]) -> list[LinearConstraint]:
        one = np.zeros((int(group.max()) + 1, len(group) + 1))
        one[group, np.arange(len(group))] = 1.0
        paths = np.array([np.append(cut[:-1], -1.0) for cut in cuts])
        fixed_s = np.array([cut[-1] for cut in cuts])
        return [LinearConstraint(one, 1.0, 1.0), LinearConstraint(paths, -np.inf, -fixed_s)]

    def _longest(self, picked: Floats) -> tuple[float, Floats]:
        """Return how long the longest path is, and it as what each variable adds, and the rest."""
        group, clock = self._columns
        cells, at_group, cell = self._cells
        part = np.zeros((int(group.max()) + 1, self._times_s.shape[1]))
        part[group, clock] = picked
        cell_s = (part[at_group] * self._times_s).sum(axis=1)
        network = self.table.network
        duration_s = np.where(cell >= 0, cell_s[cell], self.table.fixed_s)
        longest_s = float(network.iteration_s(duration_s))
        path = np.zeros(len(network.waits), dtype=bool)
        path[network.longest_path(duration_s)] = True
        on = cell[path[network.activity] & (cell >= 0)]
        counts = np.bincount(on, minlength=len(cells))
        adds_s = np.zeros_like(part)
        np.add.at(adds_s, at_group, counts[:, None] * self._times_s)
        return longest_s, np.append(adds_s[group, clock], longest_s - counts @ cell_s)

    def _choice(self, picked: Floats) -> Choice:
        group, clock = self._columns
        of_group = np.zeros(int(group.max()) + 1, dtype=np.int64)
        on = picked > 0.5  # noqa: PLR2004 - it is 0 or 1, but for rounding
        of_group[group[on]] = clock[on]
        clocks = np.where(self.of >= 0, of_group[self.of], 0)
        row = np.where(self.table.pair >= 0, self.table.at_clocks[self.table.pair, clocks], 0)
        return Choice.rows(row)
