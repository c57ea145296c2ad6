"""The least energy of a job within any iteration time, each instruction mixed of rows as it likes.

A linear program: what an instruction costs is what it takes less what its rank would draw waiting
as long, and the iteration's time costs what all ranks draw waiting. It ends where that no longer
pays: the rest of the time asked for is an activity after the end, which saves what waiting draws.

Waiting is counted at one power per rank. With the least that it may draw nothing that a plan can do
costs less than the program says, so that is the bound of every plan.

Shape letters: n instructions, P pairs of rank and profile, R rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.job.tables import JobTable, RowChoice
from underclock.core.solvers import TradeCurve, TradeoffProblem, solve_tradeoff
from underclock.records import Status

_SAME = 1e-9  # of a time or a cost: rows that differ by less are one
_DIGITS = 1e6  # shares have six decimals, for shorter files, and are rounded to the faster


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """The least within a time.

    Attributes:
        choice: Rows, mixed.
        bound_j: Less than this no plan takes that ends within the time asked for.
        duration_s: Of each instruction. Shape (n,).
    """

    choice: RowChoice
    bound_j: float
    duration_s: Floats


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """The program of a job.

    Attributes:
        table: Of the job.
        wait_w: What each rank draws waiting. Shape (ranks,).
        hulls: Rows of each pair on its hull, fastest first.
        problem: The program; its last activity is what comes after the end.
        constant_j: What no clock changes.
    """

    table: JobTable
    wait_w: Floats
    hulls: tuple[Ints, ...]
    problem: TradeoffProblem
    constant_j: float

    @classmethod
    def of(cls, table: JobTable, rows: Bools, wait_w: Floats) -> "Relaxation":
        """State the program of a job.

        Args:
            table: Of the job.
            rows: That may be used. Shape (P, R).
            wait_w: What each rank draws waiting. Shape (ranks,).
        """
        network, count = table.network, len(table.network.waits)
        rank = np.array([each for each, _ in table.pairs])
        with np.errstate(invalid="ignore"):
            cost_j = np.where(rows, table.energy_j - wait_w[rank, None] * table.time_s, np.inf)
        time_s = np.where(rows, table.time_s, np.inf)
        hulls = tuple(hull(*each) for each in zip(time_s, cost_j, strict=True))
        curves = [
            TradeCurve(time_s=time_s[p, on], cost_j=cost_j[p, on]) for p, on in enumerate(hulls)
        ]
        fixed_s, constant_j = _fixed(table, wait_w)
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
        end = (
            TradeCurve(time_s=np.array([0.0, most_s]), cost_j=np.array([0.0, -total_w * most_s]))
            if total_w
            else TradeCurve(time_s=np.zeros(1), cost_j=np.zeros(1))
        )
        of, on, lag_s = zip(*waits, strict=True)
        problem = TradeoffProblem(
            waits_of=np.array(of),
            waits_on=np.array(on),
            lag_s=np.array(lag_s),
            fixed_s=np.append(activity_s, 0.0),
            curve=curve,
            curves=(*curves, end),
            weight=weight,
        )
        return cls(
            table=table,
            wait_w=wait_w,
            hulls=hulls,
            problem=problem,
            constant_j=constant_j,
        )

    @property
    def range_s(self) -> tuple[float, float]:
        """The shortest iteration, and the one beyond which more time saves nothing."""
        least_s, most_s = self.problem.range_s
        [answer] = solve_tradeoff(self.problem, [most_s])
        taken_s = answer.duration_s[self.table.network.activity]
        return least_s, float(self.table.network.iteration_s(taken_s))

    def solved(self, times_s: Sequence[float]) -> tuple[Relaxed | None, ...]:
        """Return the least within each time; ``None`` where nothing is as fast."""
        answers = solve_tradeoff(self.problem, times_s)
        waiting_w = self.wait_w @ self.table.rank_weight
        return tuple(
            None
            if answer.status is Status.INFEASIBLE
            else Relaxed(
                choice=self.mixed(answer.duration_s[self.table.network.activity]),
                bound_j=answer.bound_j + float(waiting_w * time_s) + self.constant_j,
                duration_s=answer.duration_s[self.table.network.activity],
            )
            for time_s, answer in zip(times_s, answers, strict=True)
        )

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
    """Return a choice where what runs beside the first stream has its clocks."""
    at = table.planned[table.network.stream[table.planned] > 0]
    beside = table.holder[at]
    clocks = np.where(beside >= 0, table.last[table.pair[beside], choice.then[beside]], 0)
    row = table.at_clocks[table.pair[at], clocks]
    return choice.changed(at, row, row, np.ones(len(at)))


def _fixed(table: JobTable, wait_w: Floats) -> tuple[Floats, float]:
    """Return what takes how long whatever the clocks, shape (n,), and what that costs at least."""
    beside = table.network.stream > 0
    fixed_s = table.fixed_s.copy()
    free = np.flatnonzero(beside & (table.pair >= 0))
    fixed_s[free] = table.time_s[table.pair[free]].min(axis=1, initial=np.inf)
    above_w = np.nan_to_num(table.power_w - wait_w[table.network.rank])
    above_w = np.where(beside, np.maximum(above_w, 0.0), above_w)
    return fixed_s, float((above_w * table.fixed_s) @ table.weight)


def hull(time_s: Floats, cost_j: Floats) -> Ints:
    """Return the corners of the lower convex hull as it falls, fastest first.

    Args:
        time_s: inf where there is no such row. Shape (R,).
        cost_j: Shape (R,).
    """
    corners: list[int] = []
    for at in np.lexsort((cost_j, time_s)).tolist():
        if not np.isfinite(time_s[at]):
            break
        if corners and not cost_j[at] < cost_j[corners[-1]] - _SAME * abs(cost_j[corners[-1]]):
            continue
        if corners and time_s[at] <= time_s[corners[-1]] * (1.0 + _SAME):
            continue
        while len(corners) > 1 and _above(time_s, cost_j, (*corners[-2:], at)):
            corners.pop()
        corners.append(at)
    return np.array(corners, dtype=np.int64)


def _above(time_s: Floats, cost_j: Floats, three: tuple[int, int, int]) -> bool:
    """Whether the middle of three corners is on or above the line through the others."""
    a, b, c = three
    return bool(
        (cost_j[b] - cost_j[a]) * (time_s[c] - time_s[b])
        >= (cost_j[c] - cost_j[b]) * (time_s[b] - time_s[a])
    )
