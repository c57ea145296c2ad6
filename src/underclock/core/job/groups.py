"""Clocks that groups of instructions share: one a rank, or one a rank and kind of instruction.

Every group takes one of the clocks that all its instructions have, and no path through the network
may be longer than the iteration. There are more paths than can be written down, so those are added
that the answer so far makes too long, until there is none (as Dantzig, Fulkerson and Johnson 1954
did with tours). With mixed clocks that is a linear program; from the clocks just faster than its
mixtures, one or two groups change as long as that helps.

Shape letters: n instructions, K cells (a rank's profile in a group), G groups, C clocks.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linprog

from underclock.arrays import Floats, Ints
from underclock.core.job.tables import JobTable, RowChoice

_ENOUGH = 1e-9  # of a time: a path longer by less is short enough
_LOOSE = 1e-6  # the same of mixtures, more than what the program may be off by
_GAP = 1e-9  # of what groups cost: a move that gains less is none


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Instructions that share a clock.

    Attributes:
        table: Of the job.
        of: Group of each planned instruction of a first stream; -1 for others. Shape (n,).
        wait_w: What each rank draws waiting at least. Shape (ranks,).
    """

    table: JobTable
    of: Ints
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
        """What an instruction of a cell takes at each clock. Shape (K, C)."""
        pair = self._cells[0]
        times_s: Floats = self.table.time_s[pair[:, None], self.table.at_clocks[pair]]
        return times_s

    @cached_property
    def _columns(self) -> tuple[Ints, Ints]:
        """Group and clock of each variable: clocks that all cells have."""
        pair, group, _ = self._cells
        rows = self.table.at_clocks[pair]
        has = self.table.first[pair[:, None], rows] == np.arange(rows.shape[1])
        common = np.array([has[group == g].all(axis=0) for g in range(int(group.max()) + 1)])
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

    def chosen(self, budget_s: float) -> RowChoice | None:
        """Return good clocks within a budget; ``None`` where none are as fast."""
        cost_j = self._costs_j(budget_s)[self._columns]
        cuts: list[Floats] = []
        mixed = self._mixed(cost_j, budget_s, cuts)
        start = None if mixed is None else self._faster(mixed)
        most_s = budget_s * (1.0 + _ENOUGH)
        if start is None or self._longest(self._only(start))[0] > most_s:
            return None
        while True:
            at = self._exchanged(start, cost_j, np.array(cuts), most_s)
            longest_s, cut = self._longest(self._only(at))
            if longest_s <= most_s * (1.0 + _ENOUGH):
                return self._choice(at)
            cuts.append(cut)

    def _mixed(self, cost_j: Floats, budget_s: float, cuts: list[Floats]) -> Floats | None:
        """Return how much of each variable is best if clocks may be mixed; paths go to ``cuts``."""
        group = self._columns[0]
        picked = self._only(np.unique(group, return_index=True)[1])
        one = np.zeros((int(group.max()) + 1, len(group) + 1))
        one[group, np.arange(len(group))] = 1.0
        total_w, least = float(self.wait_w @ self.table.rank_weight), 0.0
        scale_j = float(np.abs(cost_j).max())
        while True:
            longest_s, cut = self._longest(picked)
            if longest_s <= (least + _LOOSE) * budget_s:
                return picked
            cuts.append(cut)
            paths = np.array(cuts) / budget_s
            answer = linprog(
                np.append(cost_j, total_w * budget_s) / scale_j,
                A_ub=np.column_stack([paths[:, :-1], -np.ones(len(cuts))]),
                b_ub=-paths[:, -1],
                A_eq=one,
                b_eq=np.ones(len(one)),
                bounds=[(0.0, 1.0)] * (len(group) + 1),
                method="highs",
            )
            if answer.x is None:
                return None
            picked, least = answer.x[:-1], float(answer.x[-1])

    def _only(self, at: Ints) -> Floats:
        """Return variables of which these are 1 and all others 0."""
        only = np.zeros(len(self._columns[0]))
        only[at] = 1.0
        return only

    def _faster(self, mixed: Floats) -> Ints:
        """Return one variable of each group at which nothing is slower than in a mixture.

        The slowest of those; the fastest of all where mixing rows is faster than each.
        """
        group, clock = self._columns
        at_group, cell_s = self._cells[1], self._cell_s(mixed)
        faster = []
        for g in range(int(group.max()) + 1):
            own = np.flatnonzero(group == g)
            times_s = self._times_s[at_group == g][:, clock[own]]
            late = (times_s > cell_s[at_group == g, None] * (1.0 + _ENOUGH)).any(axis=0)
            sums_s = times_s.sum(axis=0)
            best = sums_s.argmin() if late.all() else np.where(late, -np.inf, sums_s).argmax()
            faster.append(own[best])
        return np.array(faster)

    def _exchanged(self, at: Ints, cost_j: Floats, cuts: Floats, most_s: float) -> Ints:
        """Return variables, (G,), made better by changing one or two groups while that helps."""
        group = self._columns[0]
        total_w, at = float(self.wait_w @ self.table.rank_weight), at.copy()
        while True:
            path_s = cuts[:, -1] + cuts[:, at].sum(axis=1)
            more_s, more_j = cuts[:, :-1] - cuts[:, at[group]], cost_j - cost_j[at[group]]
            now_j = total_w * path_s.max()

            def gains_j(path_s: Floats, more_s: Floats = more_s, more_j: Floats = more_j) -> Floats:
                longest_s = (path_s[:, None] + more_s).max(axis=0)
                return np.where(longest_s <= most_s, more_j + total_w * longest_s, np.inf)

            single_j = gains_j(path_s) - now_j
            best = int(single_j.argmin())
            moves = [best]
            if single_j[best] >= -_GAP * abs(cost_j[at]).sum():
                pairs = [
                    gains_j(path_s + more_s[:, c]) + more_j[c] - now_j for c in range(len(group))
                ]
                pair_j = np.where(group[:, None] == group, np.inf, np.array(pairs))
                moves = [int(each) for each in np.unravel_index(pair_j.argmin(), pair_j.shape)]
                if pair_j[*moves] >= -_GAP * abs(cost_j[at]).sum():
                    return at
            at[group[moves]] = moves

    def _longest(self, picked: Floats) -> tuple[float, Floats]:
        """Return how long the longest path is, and it as what each variable adds, and the rest."""
        group, clock = self._columns
        cells, at_group, cell = self._cells
        cell_s = self._cell_s(picked)
        network = self.table.network
        duration_s = np.where(cell >= 0, cell_s[cell], self.table.fixed_s)
        longest_s = float(network.iteration_s(duration_s))
        path = np.zeros(len(network.waits), dtype=bool)
        path[network.longest_path(duration_s)] = True
        on = cell[path[network.activity] & (cell >= 0)]
        counts = np.bincount(on, minlength=len(cells))
        adds_s = np.zeros((int(group.max()) + 1, self._times_s.shape[1]))
        np.add.at(adds_s, at_group, counts[:, None] * self._times_s)
        return longest_s, np.append(adds_s[group, clock], longest_s - counts @ cell_s)

    def _cell_s(self, picked: Floats) -> Floats:
        """Return what an instruction of each cell takes. Shape (K,)."""
        group, clock = self._columns
        part = np.zeros((int(group.max()) + 1, self._times_s.shape[1]))
        part[group, clock] = picked
        cell_s: Floats = (part[self._cells[1]] * self._times_s).sum(axis=1)
        return cell_s

    def _choice(self, at: Ints) -> RowChoice:
        clocks = np.where(self.of >= 0, self._columns[1][at][self.of], 0)
        row = np.where(self.table.pair >= 0, self.table.at_clocks[self.table.pair, clocks], 0)
        return RowChoice.rows(row)
