"""One row for every instruction within a time, as plans of `lowtime` have them.

Every instruction takes, in the order of the network, the best row that it has room for, until
nothing gets better.

Shape letters: n instructions, P pairs of rank and profile, R rows, C clocks, A activities.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.job.relaxation import Relaxation, following
from underclock.core.job.tables import JobTable, RowChoice, late, taken

_BETTER = 1e-7  # of the energy of an instruction: less is none
_TIGHT = 1e-12  # of a time


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """What is needed to find rows.

    Attributes:
        program: The relaxed plan's.
        rows: That may be used. Shape (P, R).
        latency_s: How late a change comes.
        dwell_s: Least time between changes.
    """

    program: Relaxation
    rows: Bools
    latency_s: float
    dwell_s: float

    @property
    def table(self) -> JobTable:
        """Of the job."""
        return self.program.table

    @cached_property
    def changes(self) -> Bools:
        """At which instructions clocks may change. Shape (n,)."""
        table = self.table
        first_s = table.time_s[table.pair, table.auto[table.pair]]
        long = first_s >= max(self.latency_s, self.dwell_s)
        long |= table.before == np.arange(len(table.pair))  # the only one of its rank
        may: Bools = (table.pair >= 0) & (table.network.stream == 0) & long
        return may

    @cached_property
    def after(self) -> Ints:
        """The instruction of its rank that has the clock next; -1 for none. Shape (n,)."""
        table, after = self.table, np.full(len(self.table.pair), -1)
        at = table.planned[table.network.stream[table.planned] == 0]
        after[table.before[at]] = at
        return after

    @cached_property
    def late(self) -> tuple[Floats, Floats]:
        """What changing from a clock to a row adds in s and J. Shapes (P, C, R)."""
        table = self.table
        pair = np.arange(len(table.pairs))[:, None, None]
        row = np.arange(table.time_s.shape[1])[None, None]
        with np.errstate(invalid="ignore"):
            late_s, late_j = late(
                table, (pair, table.at_clocks[:, :, None], row), np.ones(1), self.latency_s
            )
        clock = np.arange(table.at_clocks.shape[1])[None, :, None]
        stays = clock == table.first[:, None, :]
        return np.where(stays, 0.0, late_s), np.where(stays, 0.0, late_j)

    def improved(
        self, choice: RowChoice, budget_s: float, near: RowChoice | None = None
    ) -> RowChoice:
        """Return a choice of rows made better within a time, one instruction after another.

        Args:
            choice: Of rows, within the time.
            budget_s: For the iteration.
            near: Only its rows are tried at first: the earliest would take what room others need.
        """
        network = self.table.network
        while True:
            time_s = taken(self.table, choice, self.latency_s).time_s
            better, gained = self._swept(choice, time_s, budget_s, near)
            better_s = taken(self.table, better, self.latency_s).time_s
            # A change that came later may be in the way of who was given room before.
            if network.iteration_s(better_s) > budget_s or not (gained or near):
                return choice
            choice, near = better, near if gained else None

    def _swept(
        self, choice: RowChoice, time_s: Floats, budget_s: float, near: RowChoice | None
    ) -> tuple[RowChoice, bool]:
        """Give every instruction the best row that it has room for.

        Args:
            choice: What runs now.
            time_s: What instructions take by it. Shape (n,).
            budget_s: For the iteration.
            near: Rows that may be tried; ``None`` for all.

        Returns:
            The choice, and whether it is better.
        """
        table, network = self.table, self.table.network
        late_s, late_j = self.late
        taken_s = network.taken_s(time_s)
        due_s = network.due_s(taken_s, budget_s * (1.0 - _TIGHT))
        ends_s = np.zeros(len(taken_s))
        row, gained = choice.row.copy(), False
        instruction = self._free
        rows_of = [np.flatnonzero(each) for each in self.rows]
        for a in network.order:
            begin_s = 0.0
            for on, lag_s in network.waits[a]:
                begin_s = max(begin_s, ends_s[on] + lag_s)
            i = instruction[a]
            if i >= 0:
                p, n = table.pair[i], self.after[i]
                q, rows = table.pair[n], rows_of[p]
                clock = table.last[table.pair[table.before[i]], row[table.before[i]]]
                last = table.last[p, rows]
                add_s, add_j = late_s[p, clock, rows], late_j[p, clock, rows]
                next_s = late_s[q, last, row[n]] - late_s[q, table.last[p, row[i]], row[n]]
                now_s = table.time_s[p, rows] + add_s
                cost_j = table.energy_j[p, rows] + add_j + late_j[q, last, row[n]]
                wait_w = self.program.wait_w[network.rank[i]]
                cost_j -= wait_w * (now_s + next_s)
                may = begin_s + now_s + np.maximum(next_s, 0.0) <= due_s[a]
                if near is not None:
                    may &= (rows == near.row[i]) | (rows == near.then[i])
                may[rows == row[i]] = True
                here = int(np.flatnonzero(rows == row[i])[0])
                best = int(np.where(may, cost_j, np.inf).argmin())
                if cost_j[best] < cost_j[here] - _BETTER * table.energy_j[p, row[i]]:
                    gained = True
                    row[i] = rows[best]
                    taken_s[a] = now_s[best]
                    taken_s[network.activity[n]] += next_s[best]
            ends_s[a] = begin_s + taken_s[a]
        return following(table, RowChoice.rows(row)), gained

    @cached_property
    def _free(self) -> Ints:
        """The instruction of each activity that may change by itself; -1 for none. Shape (A,)."""
        free = np.full(len(self.table.network.waits), -1)
        at = np.flatnonzero(self.changes & self.changes[self.after] & (self.after >= 0))
        at = at[self.after[at] != at]
        free[self.table.network.activity[at]] = at
        return free
