"""Ways of choosing a job's clocks: one for all, one a group, one an instruction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.job.relaxation import Groups, Relaxation, following
from underclock.core.job.tables import JobTable, RowChoice, taken, total, waiting_j
from underclock.records.choices import Strategy
from underclock.records.job import InstructionKind

_ROUNDING = 1e-9  # of a time
ENOUGH = 1e-4  # of the energy: what is as near to its bound is not looked at further
_TRIES = 6  # of aims below a time that changes of clocks overran
_DIGITS = 6  # of shares
_CLOSER = 1e-6  # of a time: an aim is lowered by so much more than it was overrun by


@dataclass(frozen=True, kw_only=True)
class Found:
    """Clocks."""

    choice: RowChoice  # of rows
    # less than this no clocks of the kind take in the time; ``None`` where unknown
    bound_j: float | None


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What finds clocks of a job."""

    table: JobTable  # of the job; lags of its network may have room for what times may be off by
    kinds: tuple[InstructionKind, ...]  # what each instruction does. Length n
    latency_s: float  # how late changes of clocks come
    dwell_s: float  # least time between changes

    @cached_property
    def auto(self) -> RowChoice:
        """What runs where nothing is set."""
        pair = self.table.pair
        return RowChoice.rows(np.where(pair >= 0, self.table.auto[pair], 0))

    def cost(self, choice: RowChoice) -> tuple[float, float]:
        """Return time in s and energy in J where nothing scatters."""
        time_s, energy_j = total(self.table, taken(self.table, choice, self.latency_s))
        return float(time_s), float(energy_j)

    def fixed(self) -> list[RowChoice]:
        """Return choices of one clock for all ranks, those of least energy first."""
        table, choices = self.table, [self.auto]
        pairs = np.arange(len(table.pairs))
        for clocks in range(1, table.at_clocks.shape[1]):
            row = table.at_clocks[:, clocks]
            if (table.first[pairs, row] == clocks).all():
                choices.append(RowChoice.rows(np.where(table.pair >= 0, row[table.pair], 0)))
        return sorted(choices, key=lambda choice: self.cost(choice)[1])

    def grouped(self, name: Strategy, budget_s: float) -> RowChoice | None:
        """Return one clock a rank, or one a rank and kind; ``None`` where none is fast enough.

        Ranks with an instruction that is too short to change clocks for have one clock.
        """
        table = self.table
        ours = (table.pair >= 0) & (table.network.stream == 0)
        kinds, short = [""] * len(self.kinds), np.zeros(len(table.rank_weight), dtype=bool)
        if name is Strategy.DIRECTION:
            kinds = [str(kind) for kind in self.kinds]
            at = np.flatnonzero(ours & ((self._units[1] < self._long_s) | self._tied_by_talk))
            short[table.network.rank[at]] = True
        numbers: dict[tuple[int, str], int] = {}
        of = [
            numbers.setdefault((rank, "" if short[rank] else kind), len(numbers)) if mine else -1
            for rank, kind, mine in zip(
                table.network.rank.tolist(), kinds, ours.tolist(), strict=True
            )
        ]
        return Groups(table, np.array(of), self._least_w(None)).chosen(budget_s)

    def _least_w(self, rows: Bools | None) -> Floats:
        """Return the least that each rank may draw waiting. Shape (ranks,)."""
        table, least_w = self.table, self.table.auto_wait_w.copy()
        known = np.isfinite(table.time_s) if rows is None else rows
        for (rank, _), wait_w, may in zip(table.pairs, table.wait_w, known, strict=True):
            least_w[rank] = min(least_w[rank], wait_w[may].min())
        return least_w

    def free(
        self, rows: Bools, times_s: Sequence[float], mean_s: float
    ) -> tuple[Found | None, ...]:
        """Return clocks of each instruction's own within each time; ``None`` where none is as fast.

        Args:
            rows: That may be used. Shape (P, R).
            times_s: Of the iteration.
            mean_s: What waiting draws is taken from the plan for a time near this one.
        """
        bounding = Relaxation(self.table, rows, self._least_w(rows))
        bounds = bounding.solved(times_s)
        program, answers = bounding, bounds
        usual = bounds[int(np.argmin(np.abs(np.array(times_s) - mean_s)))]
        if usual is not None:
            # What ranks draw waiting in the mean with some clocks. Shape (ranks,).
            each = taken(self.table, bounding.mixed(usual[0]))
            blocked_s = self.table.network.blocked_s(each.time_s)
            waited_j = waiting_j(self.table, each)
            some = blocked_s > _ROUNDING * each.time_s.max()
            mean_w: Floats = np.divide(waited_j, blocked_s, where=some, out=bounding.wait_w.copy())
            mean_w = np.maximum(mean_w, bounding.wait_w)
            if (mean_w > bounding.wait_w).any():
                program = Relaxation(self.table, rows, mean_w)
                answers = program.solved(times_s)
        found: list[Found | None] = []
        for time_s, bound, answer in zip(times_s, bounds, answers, strict=True):
            choice = None if answer is None else self._real(program, answer, time_s)
            bound_j = None if bound is None else bound[1]
            found.append(None if choice is None else Found(choice=choice, bound_j=bound_j))
        return tuple(found)

    def range_s(self, rows: Bools) -> tuple[float, float]:
        """Return the shortest iteration, and the one beyond which more time saves nothing."""
        return Relaxation(self.table, rows, self._least_w(rows)).range_s

    def _real(
        self, program: Relaxation, relaxed: tuple[Floats, float], time_s: float
    ) -> RowChoice | None:
        """Return clocks that can be held: relaxed ones where nothing is late, or rows."""
        duration_s, bound_j = relaxed
        if not self.latency_s and not self.dwell_s:
            return program.mixed(duration_s)
        most_s, found = time_s * (1.0 + _ROUNDING), list[RowChoice | None]()
        if not self._short or not (self.dwell_s or self._tied_by_talk.any()):
            faster = self._in_parts(self._together(program, duration_s, faster=True), faster=True)
            took_s, energy_j = self.cost(faster)
            if took_s <= most_s and energy_j <= bound_j * (1.0 + ENOUGH):
                return faster
            found += [faster, self._aimed(program, duration_s, time_s, self._in_parts)]
        if self._short:
            found.append(self._aimed(program, duration_s, time_s, self._tied))
            found.append(self.grouped(Strategy.RANK, time_s))
        costs = [(self.cost(each), each) for each in found if each is not None]
        kept = [(energy_j, each) for (took_s, energy_j), each in costs if took_s <= most_s]
        return min(kept, key=lambda each: each[0])[1] if kept else None

    def _aimed(
        self,
        program: Relaxation,
        duration_s: Floats,
        time_s: float,
        made: Callable[[RowChoice], RowChoice],
    ) -> RowChoice | None:
        """Return what is made of a relaxed plan for a time, or for less until it keeps that."""
        aim_s = time_s
        for _ in range(_TRIES):
            choice = made(self._together(program, duration_s))
            took_s = self.cost(choice)[0]
            if took_s <= time_s * (1.0 + _ROUNDING):
                return choice
            aim_s *= time_s / took_s - _CLOSER
            [lower] = program.solved([aim_s])
            duration_s = duration_s if lower is None else lower[0]
        return None

    @property
    def _long_s(self) -> float:
        return max(self.latency_s, self.dwell_s)

    @cached_property
    def _units(self) -> tuple[Ints, Floats, Floats, Floats]:
        """Units: parts of a pass that are too short for clocks of their own have them together."""
        # All of a pass that a collective overlaps is one unit too. Of each instruction: the unit's
        # first instruction, what the unit takes at auto in s, how much of its work is done before
        # the instruction, and how much of it the instruction is. Shapes (n,).
        table = self.table
        ours = np.flatnonzero((table.pair >= 0) & (table.network.stream == 0))
        pair = table.pair[ours]
        auto_s = np.zeros(len(table.pair))
        auto_s[ours] = table.time_s[pair, table.auto[pair]]
        units: list[list[int]] = [[]]
        for last, i in pairwise([-1, *ours.tolist()]):
            is_long = not table.quiet[i] and auto_s[units[-1]].sum() >= self._long_s
            if not self._goes_on(last, i) or is_long:
                units.append([])
            units[-1].append(i)
        for at in range(len(units) - 1, 1, -1):  # what is too short at the end of a pass
            is_short = auto_s[units[at]].sum() < self._long_s
            if is_short and self._goes_on(units[at - 1][-1], units[at][0]):
                units[at - 1] += units.pop(at)
        first = np.arange(len(table.pair))
        for unit in units[1:]:
            first[unit] = unit[0]
        whole_s: Floats = np.bincount(first, auto_s)[first].astype(np.float64)
        done_s, some = np.cumsum(auto_s) - auto_s, whole_s > 0.0
        before = np.divide(done_s - done_s[first], whole_s, where=some, out=0.0 * done_s)
        share = np.divide(auto_s, whole_s, where=some, out=1.0 + 0.0 * auto_s)
        return first, whole_s, before, share

    @cached_property
    def _tied_by_talk(self) -> Bools:
        """Instructions before which no clock can be asked for, for collectives run. Shape (n,)."""
        table = self.table
        tied: Bools = table.quiet & (table.before >= 0) & table.quiet[table.before]
        return tied & (self._long_s > 0.0)

    def _goes_on(self, before: int, i: int) -> bool:
        """Whether an instruction is the rest of the pass before it, with the same clocks."""
        table = self.table
        rows, earlier = (table.first[table.pair[each]] for each in (i, before))
        of_one = before >= 0 and table.network.rank[before] == table.network.rank[i]
        return bool(table.rest[i] and of_one and np.array_equal(rows, earlier))

    def _together(
        self, program: Relaxation, duration_s: Floats, *, faster: bool = False
    ) -> RowChoice:
        """Return a relaxed plan where a part of a unit is run as all of it, or as its fastest."""
        first, _, _, share = self._units
        if (share == 1.0).all():
            return program.mixed(duration_s)
        whole_s = np.bincount(first, duration_s)
        if faster:
            np.minimum.at(whole_s, first, duration_s / share)
        return program.mixed(whole_s[first] * share).spread(first)

    @cached_property
    def _short(self) -> list[int]:
        """Instructions that clocks may not change for, each after the one whose clock it keeps."""
        # Of a rank whose instructions are all too short, all but the longest.
        table, short = self.table, list[int]()
        ours = (table.pair >= 0) & (table.network.stream == 0)
        least_s = np.where(ours, table.time_s.min(axis=1)[table.pair], 0.0) / self._units[3]
        for rank in range(len(table.rank_weight)):
            own = np.flatnonzero(ours & (table.network.rank == rank))
            may = (least_s[own] >= self._long_s) & ~self._tied_by_talk[own]
            if len(own):
                may[least_s[own].argmax()] |= not may.any()
                turn = np.roll(np.arange(len(own)), -int(may.argmax()))
                short += own[turn][~may[turn]].tolist()
        return short

    def _tied(self, choice: RowChoice) -> RowChoice:
        """Return it where what is too short keeps the clock before it."""
        table, parts = self.table, self._in_parts(choice)
        row, then, share = parts.row.copy(), parts.then.copy(), parts.share.copy()
        for i in self._short:
            before = table.before[i]
            clock = table.last[table.pair[before], then[before]]
            row[i] = then[i] = table.at_clocks[table.pair[i], clock]
            share[i] = 1.0
        return following(table, RowChoice(row, then, share))

    def _in_parts(self, choice: RowChoice, *, faster: bool = False) -> RowChoice:
        """Drop parts too short to change clocks in, or lengthen those that may take longer."""
        table, at, (_, _, done, part) = self.table, self.table.planned, self._units
        pair, row, then, share = table.pair[at], choice.row[at], choice.then[at], choice.share[at]
        long_s = np.where(table.quiet[at], np.inf, self._long_s * part[at])
        least = long_s / table.time_s[pair, row]  # of the work, first and rest
        most = 1.0 - long_s / table.time_s[pair, then]
        none, all_ = (0.0, most) if faster else (0.5 * least, 0.5 * (1.0 + most))
        share = np.where(share < none, 0.0, np.maximum(share, least))
        share = np.where(share > all_, 1.0, np.minimum(share, most))
        whole = 1.0 if faster else np.round(choice.share[at])
        share = np.where(least > most, whole, share)
        if (part < 1.0).any():  # of a unit first, then of each of its parts
            share = ((share - done[at]) / part[at]).clip(0.0, 1.0).round(_DIGITS)
        first, rest = np.where(share > 0.0, row, then), np.where(share < 1.0, then, row)
        share = np.where((share > 0.0) & (row != then), share, 1.0)
        return following(table, choice.changed(at, first, rest, share))
