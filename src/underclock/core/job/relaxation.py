"""The least energy of a job within an iteration time: linear relaxation, and clocks by groups.

Relaxed, an instruction is any mixture of its profile's rows. Its cost is its energy less the energy
its rank would draw waiting for as long; iteration time costs the waiting power of all ranks. Time
beyond the point where a longer iteration saves nothing is an activity after the end, which saves
waiting power. Waiting is counted at one power per rank: with the least waiting power of each, the
relaxed cost bounds every plan from below.

With clocks by groups (one per rank, or one per rank and kind of instruction), each group takes a
clock that all its instructions have, and no path through the network may be longer than the
iteration. Paths are added as cuts where the solution violates them (Dantzig, Fulkerson and Johnson
1954). From the clocks just faster than the mixtures of that linear program, one or two groups
change as long as the cost falls.

Shape letters: n instructions, P pairs of rank and profile, R rows; of groups K cells (a rank's
profile in a group), G groups, C clocks.
"""

from collections.abc import Sequence

import numpy as np
import scipy

from underclock.arrays import Bools, Floats, Ints
from underclock.core.job.tables import JobTable, RowChoice
from underclock.core.solvers import TradeCurve, TradeoffProblem, solve_tradeoff
from underclock.records import Status

_SAME = 1e-9  # of a time or a cost: rows that differ by less are one
_DIGITS = 1e6  # shares have six decimals, for shorter files, and are rounded to the faster


class Relaxation:
    """The program of a job.

    Args:
        rows: That may be used. Shape (P, R).
        wait_w: What each rank draws waiting. Shape (ranks,).

    Attributes:
        hulls: Rows of each pair on its hull, fastest first.
        problem: The program; its last activity is what comes after the end.
        constant_j: What no clock changes.
    """

    def __init__(self, table: JobTable, rows: Bools, wait_w: Floats) -> None:
        self.table, self.wait_w = table, wait_w
        network, count = table.network, len(table.network.waits)
        rank = np.array([each for each, _ in table.pairs])
        with np.errstate(invalid="ignore"):
            cost_j = np.where(rows, table.energy_j - wait_w[rank, None] * table.time_s, np.inf)
        time_s = np.where(rows, table.time_s, np.inf)
        self.hulls = [_hull(*each) for each in zip(time_s, cost_j, strict=True)]
        curves = [
            TradeCurve(time_s=time_s[p, on], cost_j=cost_j[p, on])
            for p, on in enumerate(self.hulls)
        ]
        # Durations that no clock changes, shape (n,), and their least cost.
        further = network.stream > 0
        fixed_s = table.fixed_s.copy()
        free = np.flatnonzero(further & (table.pair >= 0))
        fixed_s[free] = table.time_s[table.pair[free]].min(axis=1, initial=np.inf)
        above_w = np.nan_to_num(table.power_w - wait_w[network.rank])
        above_w = np.where(further, np.maximum(above_w, 0.0), above_w)
        self.constant_j = float((above_w * table.fixed_s) @ table.weight)
        activity_s = network.taken_s(fixed_s)
        ours = table.planned[network.stream[table.planned] == 0]
        curve, weight = np.full(count + 1, -1), np.zeros(count + 1)
        curve[network.activity[ours]] = table.pair[ours]
        weight[network.activity[ours]] = table.weight[ours]
        # What comes after the end.
        curve[count], weight[count] = len(curves), 1.0
        waits = [(of, on, lag_s) for of, each in enumerate(network.waits) for on, lag_s in each]
        followed = {on for _, on, _ in waits}
        waits += [(count, on, 0.0) for on in range(count) if on not in followed]
        slowest_s = np.where(curve[:count] >= 0, 0.0, activity_s)
        slowest_s += [curves[c].time_s[-1] if c >= 0 else 0.0 for c in curve[:count]]
        most_s = float(slowest_s.sum() + sum(lag_s for _, _, lag_s in waits))
        total_w = float(wait_w @ table.rank_weight)
        end_s = np.array([0.0, most_s] if total_w else [0.0])
        end = TradeCurve(time_s=end_s, cost_j=0.0 - total_w * end_s)
        of, on, lag_s = zip(*waits, strict=True)
        self.problem = TradeoffProblem(
            waits_of=np.array(of),
            waits_on=np.array(on),
            lag_s=np.array(lag_s),
            fixed_s=np.append(activity_s, 0.0),
            curve=curve,
            curves=(*curves, end),
            weight=weight,
        )

    @property
    def range_s(self) -> tuple[float, float]:
        """The shortest iteration, and the one beyond which more time saves nothing."""
        least_s, most_s = self.problem.range_s
        [answer] = solve_tradeoff(self.problem, [most_s])
        taken_s = answer.duration_s[self.table.network.activity]
        return least_s, float(self.table.network.iteration_s(taken_s))

    def solved(self, times_s: Sequence[float]) -> list[tuple[Floats, float] | None]:
        """Return the least within each time; ``None`` where nothing is as fast.

        Of each the duration of every instruction, (n,), which `mixed` turns into rows, and in J
        what no plan that ends within the time takes less than.
        """
        answers = solve_tradeoff(self.problem, times_s)
        waiting_w = self.wait_w @ self.table.rank_weight
        return [
            None
            if answer.status is Status.INFEASIBLE
            else (
                answer.duration_s[self.table.network.activity],
                answer.bound_j + float(waiting_w * time_s) + self.constant_j,
            )
            for time_s, answer in zip(times_s, answers, strict=True)
        ]

    def mixed(self, duration_s: Floats) -> RowChoice:
        """Return the rows of hulls that take given times. Shape (n,)."""
        count = len(duration_s)
        row, then, share = np.zeros(count, np.int64), np.zeros(count, np.int64), np.ones(count)
        for p, on in enumerate(self.hulls):
            own = np.flatnonzero(self.table.pair == p)
            time_s = self.table.time_s[p, on]
            fast = np.clip(np.searchsorted(time_s, duration_s[own], "right") - 1, 0, len(on) - 1)
            slow = np.minimum(fast + 1, len(on) - 1)
            span_s = np.where(slow > fast, time_s[slow] - time_s[fast], 1.0)
            part = np.clip((time_s[slow] - duration_s[own]) / span_s, 0.0, 1.0)
            part = np.where(slow > fast, np.ceil(part * _DIGITS - 1e-3) / _DIGITS, 1.0)
            row[own] = np.where(part > 0.0, on[fast], on[slow])
            then[own] = np.where(part < 1.0, on[slow], on[fast])
            share[own] = np.where(part > 0.0, part, 1.0)
        return following(self.table, RowChoice(row, then, share))


def following(table: JobTable, choice: RowChoice) -> RowChoice:
    """Return a choice in which instructions of further streams have the first stream's clocks."""
    at = table.planned[table.network.stream[table.planned] > 0]
    holder = table.holder[at]
    clocks = np.where(holder >= 0, table.last[table.pair[holder], choice.then[holder]], 0)
    row = table.at_clocks[table.pair[at], clocks]
    return choice.changed(at, row, row, np.ones(len(at)))


def _hull(time_s: Floats, cost_j: Floats) -> Ints:
    """Return the corners of the lower convex hull of rows as it falls, fastest first."""
    # Time is inf where there is no such row.

    def is_above(a: int, b: int, c: int) -> bool:
        """Whether the middle of three corners is on or above the line through the outer two."""
        left = (cost_j[b] - cost_j[a]) * (time_s[c] - time_s[b])
        return bool(left >= (cost_j[c] - cost_j[b]) * (time_s[b] - time_s[a]))

    corners: list[int] = []
    for at in np.lexsort((cost_j, time_s)).tolist():
        if not np.isfinite(time_s[at]):
            break
        if corners and not cost_j[at] < cost_j[corners[-1]] - _SAME * abs(cost_j[corners[-1]]):
            continue
        if corners and time_s[at] <= time_s[corners[-1]] * (1.0 + _SAME):
            continue
        while len(corners) > 1 and is_above(corners[-2], corners[-1], at):
            corners.pop()
        corners.append(at)
    return np.array(corners, dtype=np.int64)


_ENOUGH = 1e-9  # of a time: a path longer by less is short enough
_LOOSE = 1e-6  # the same of mixtures, more than what the program may be off by
_GAP = 1e-9  # of what groups cost: a move that gains less is none


class Groups:
    """Instructions that share a clock.

    Args:
        of: Group of each planned instruction of a first stream, else -1. Shape (n,).
        wait_w: What each rank draws waiting at least. Shape (ranks,).

    Attributes:
        _cells: Pair and group of each cell, shapes (K,), and the cell of each instruction: (n,).
        _times_s: What an instruction of a cell takes at each clock. Shape (K, C).
        _columns: Group and clock of each variable: clocks that all cells have.
    """

    def __init__(self, table: JobTable, of: Ints, wait_w: Floats) -> None:
        self.table, self.of, self.wait_w = table, of, wait_w
        at = np.flatnonzero(of >= 0)
        keys = np.stack([table.pair[at], of[at]])
        (pair, group), which = np.unique(keys, axis=1, return_inverse=True)
        cell = np.full(len(of), -1)
        cell[at] = which.ravel()
        self._cells = pair, group, cell
        rows = table.at_clocks[pair]
        self._times_s: Floats = table.time_s[pair[:, None], rows]
        has = table.first[pair[:, None], rows] == np.arange(rows.shape[1])
        common = np.array([has[group == g].all(axis=0) for g in range(int(group.max()) + 1)])
        self._columns = np.nonzero(common)

    def chosen(self, budget_s: float) -> RowChoice | None:
        """Return good clocks within a budget; ``None`` where none are as fast."""
        # What each group costs at each clock, less what waiting would draw. Shape (G, C).
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
        cost_j = cost_j[self._columns]
        cuts: list[Floats] = []
        mixed = self._mixed(cost_j, budget_s, cuts)
        if mixed is None:
            return None
        # One variable of each group at which nothing is slower than in the mixture: the slowest of
        # those; the fastest of all where mixing rows is faster than each.
        (column, clock), cell_s, faster = self._columns, self._cell_s(mixed), []
        for g in range(int(column.max()) + 1):
            own = np.flatnonzero(column == g)
            times_s = self._times_s[group == g][:, clock[own]]
            late = (times_s > cell_s[group == g, None] * (1.0 + _ENOUGH)).any(axis=0)
            sums_s = times_s.sum(axis=0)
            best = sums_s.argmin() if late.all() else np.where(late, -np.inf, sums_s).argmax()
            faster.append(own[best])
        start, most_s = np.array(faster), budget_s * (1.0 + _ENOUGH)
        if self._longest(self._only(start))[0] > most_s:
            return None
        while True:
            at = self._exchanged(start, cost_j, np.array(cuts), most_s)
            longest_s, cut = self._longest(self._only(at))
            if longest_s <= most_s * (1.0 + _ENOUGH):
                clocks = np.where(self.of >= 0, self._columns[1][at][self.of], 0)
                row = table.at_clocks[table.pair, clocks]
                return RowChoice.rows(np.where(table.pair >= 0, row, 0))
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
            answer = scipy.optimize.linprog(
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
        """Return variables with 1 at these places and 0 elsewhere."""
        only = np.zeros(len(self._columns[0]))
        only[at] = 1.0
        return only

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
