"""A job as numbers: what its profiles cost, who holds which clock, and what a choice comes to.

A choice runs each instruction by a row of its profile, or by two in turn. A change of clocks is
asked for a latency ahead, but not before the one before it has come: where what runs in between, at
one clock, is shorter than the latency it comes late by the rest, and until then work is done by the
row of the clock before. That is counted where it takes time, never where it saves some. How long a
rank waits in between is not counted on.

While a rank waits it draws what waiting draws at the clock of the instruction before the gap, for
how long a gap lasts is known only when it is over; the first gap of an iteration is one with the
last. Before what comes next it has that one's clock, by as much as a change takes. A gap in which
it communicates has it all through, for no clock changes while a transfer is under way. An
instruction without a power of its own draws the same; one of a further stream adds its power above
waiting, and has the clock of the first stream's instruction that is listed before it. A pass that a
collective overlaps has one clock, and the next change is asked for when it has ended.

Shape letters: n instructions, P pairs of rank and profile, R rows (padded), C clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, Self

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.job.network import Network, colours, network_of, quotient
from underclock.records.common import AUTO, Clocks
from underclock.records.job import TALKS, Held, Instruction, InstructionKind, Job, RankClocks, Span


@dataclass(frozen=True, kw_only=True)
class JobTable:
    """What instructions of a job cost, by row of their profiles."""

    network: Network  # who waits for whom
    rank_weight: Ints  # how many equal ranks each rank stands for, (ranks,)
    pair: Ints  # of rank and profile, of each instruction; -1 where it has no profile, (n,)
    fixed_s: Floats  # what it takes where it has no profile, else 0, (n,)
    power_w: Floats  # what it draws there; nan for what waiting draws, (n,)
    talks: Bools  # whether it communicates, (n,)
    rest: Bools  # whether it is the rest of the pass before it, (n,)
    quiet: Bools  # whether a collective overlaps its pass at auto, (n,)
    auto_wait_w: Floats  # what ranks draw waiting where nothing is set, (ranks,)
    pairs: tuple[tuple[int, str], ...]  # rank and name of the profile. Length P
    auto: Ints  # row of each pair, (P,)
    time_s: Floats  # of an instruction; inf where a profile has no such row, (P, R)
    energy_j: Floats  # (P, R)
    time_error_s: Floats  # (P, R)
    energy_error_j: Floats  # (P, R)
    wait_w: Floats  # what the rank draws waiting after it, (P, R)
    first: Ints  # clocks that a row begins with, as an index; 0 is auto, (P, R)
    last: Ints  # clocks that it ends with, (P, R)
    inside: Bools  # which rows change clocks inside, (P, R)
    at_clocks: Ints  # row of each pair that runs at some clocks, or at the nearest, (P, C)

    @cached_property
    def planned(self) -> Ints:
        """Instructions that have a profile."""
        return np.flatnonzero(self.pair >= 0)

    @cached_property
    def weight(self) -> Ints:
        """How many equal instructions each stands for. Shape (n,)."""
        return self.rank_weight[self.network.rank]

    @cached_property
    def holder(self) -> Ints:
        """Instruction whose clock is held at, and after, each; -1 for none. Shape (n,)."""
        return self._holders("right", 1)

    @cached_property
    def next_held(self) -> tuple[Ints, Bools]:
        """Instruction that has the clock next after each, and whether it has it as it waits.

        Shapes (n,) and (n,); -1 for none.
        """
        after = self._holders("right", 0)
        main = (self.network.stream == 0) & (after >= 0)
        talks = np.bincount(after[main], self.talks[main], len(after))
        return after, main & (talks[after] > 0)

    @cached_property
    def before(self) -> Ints:
        """Instruction whose clock is held until each begins; -1 for none. Shape (n,)."""
        return self._holders("left", 1)

    def _holders(self, side: Literal["left", "right"], back: int) -> Ints:
        holder = np.full(len(self.pair), -1)
        holds = (self.pair >= 0) & (self.network.stream == 0)
        for rank in range(len(self.rank_weight)):
            at = np.flatnonzero(self.network.rank == rank)
            held = at[holds[at]]
            if len(held):
                holder[at] = held[(np.searchsorted(held, at, side) - back) % len(held)]
        return holder


@dataclass(frozen=True, eq=False)
class RowChoice:
    """The rows that planned instructions run at; entries of unplanned ones are unused."""

    row: Ints  # of the pair, (n,)
    then: Ints  # row of the rest; the same where there is none, (n,)
    share: Floats  # of the work that is done by ``row``, (n,)

    @classmethod
    def rows(cls, row: Ints) -> Self:
        """Run each instruction by one row."""
        return cls(row, row, np.ones(len(row)))

    @classmethod
    def held(cls, clocks: Sequence[RankClocks]) -> Self:
        """Return what a plan's clocks say."""
        every = [held or Held(0) for rank in clocks for held in rank]
        return cls(
            np.array([each.row for each in every]),
            np.array([each.row if each.then is None else each.then for each in every]),
            np.array([each.share for each in every]),
        )

    def clocks(self, table: JobTable) -> tuple[RankClocks, ...]:
        """Return it as a plan's clocks."""
        columns = (each.tolist() for each in (table.pair, self.row, self.then, self.share))
        every = [
            None if pair < 0 else Held(row) if row == then else Held(row, then, share)
            for pair, row, then, share in zip(*columns, strict=True)
        ]
        ends = np.cumsum(np.bincount(table.network.rank)).tolist()
        return tuple(tuple(every[a:b]) for a, b in zip([0, *ends], ends, strict=False))

    def changed(self, at: Ints, row: Ints, then: Ints, share: Floats) -> "RowChoice":
        """Return the choice with some instructions run otherwise."""
        made = RowChoice(self.row.copy(), self.then.copy(), self.share.copy())
        made.row[at], made.then[at], made.share[at] = row, then, share
        return made

    def spread(self, of: Ints) -> "RowChoice":
        """Return the choice for all instructions that those of this one stand for."""
        return RowChoice(self.row[of], self.then[of], self.share[of])


class Taken(NamedTuple):
    """What a choice makes of each instruction."""

    time_s: Floats  # (..., n)
    energy_j: Floats  # in further streams the part above waiting, (..., n)
    wait_w: Floats  # what its rank draws waiting after it, (n,)
    ready_w: Floats  # what it draws at the end of that wait, at the clock of what comes next, (n,)
    ready_s: float  # how long before that it has that clock


def taken(table: JobTable, choice: RowChoice, latency_s: float = 0.0) -> Taken:
    """Return what each instruction takes, and what waiting after it draws."""
    at = table.planned
    pair, row, then, share = table.pair[at], choice.row[at], choice.then[at], choice.share[at]
    time_s, energy_j = table.fixed_s.copy(), np.zeros(len(table.pair))
    time_s[at] = share * table.time_s[pair, row] + (1.0 - share) * table.time_s[pair, then]
    energy_j[at] = share * table.energy_j[pair, row] + (1.0 - share) * table.energy_j[pair, then]
    if latency_s:
        for late_s, late_j in _changes(table, choice, latency_s):
            time_s[at] += late_s
            energy_j[at] += late_j
    (after, talking), held = table.next_held, np.maximum(table.holder, 0)
    after_w = table.wait_w[table.pair[after], choice.row[after]]
    held_w = np.where(talking, after_w, table.wait_w[table.pair[held], choice.then[held]])
    auto_w = table.auto_wait_w[table.network.rank]
    held_w, ready_w = (np.where(table.holder >= 0, each, auto_w) for each in (held_w, after_w))
    power_w = np.where(np.isnan(table.power_w), held_w, table.power_w)
    energy_j = np.where(table.pair < 0, power_w * time_s, energy_j)
    further = table.network.stream > 0
    energy_j = np.where(further, np.maximum(energy_j - held_w * time_s, 0.0), energy_j)
    return Taken(time_s, energy_j, held_w, ready_w, latency_s)


def _changes(
    table: JobTable, choice: RowChoice, latency_s: float
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return what changes of clocks add to planned instructions: before them, and inside."""
    at = table.planned
    pair, row, then, share = table.pair[at], choice.row[at], choice.then[at], choice.share[at]
    before = np.where(table.before[at] >= 0, table.before[at], at)
    earlier = table.last[table.pair[before], choice.then[before]]
    main = table.network.stream[at] == 0
    ours = main & (earlier != table.first[pair, row])
    lates = table.at_clocks[pair, earlier]
    first_s, rest_s = share * table.time_s[pair, row], (1.0 - share) * table.time_s[pair, then]
    ahead_s = np.zeros(len(table.pair))  # how long the clock before was held, at least
    ahead_s[at] = np.where(table.quiet[at], 0.0, np.where(share < 1.0, rest_s, first_s))
    goes_on = main & ~ours & (share == 1.0) & ~table.inside[pair, row] & (before < at)
    # How long what goes on has lasted at the end of each. Shape (n,).
    lasts_s = ahead_s[at[main]]
    done_s = np.cumsum(lasts_s)
    first = np.maximum.accumulate(np.where(goes_on[main], 0, np.arange(len(lasts_s))))
    ahead_s[at[main]] = done_s - (done_s - lasts_s)[first]
    late_s = np.maximum(latency_s - ahead_s[before], 0.0)
    inside_s = np.maximum(latency_s - first_s, 0.0)

    def late(held: Ints, asked: Ints, part: Floats, late_s: Floats) -> tuple[Floats, Floats]:
        """Return what a change adds in s and J where a part of the work is late in its row."""
        done = np.minimum(part, late_s / table.time_s[pair, held])
        more_s = done * (table.time_s[pair, held] - table.time_s[pair, asked])
        more_j: Floats = done * (table.energy_j[pair, held] - table.energy_j[pair, asked])
        return np.maximum(more_s, 0.0), more_j

    begun = late(lates, row, np.where(ours, share, 0.0), late_s)
    return begun, late(row, then, 1.0 - share, inside_s)


def waiting_j(table: JobTable, each: Taken) -> Floats:
    """Return what every rank takes of energy while it waits. Shape (..., ranks)."""
    network = table.network
    begins_s, end_s = network.begins_s(each.time_s), network.iteration_s(each.time_s)
    waited_j = end_s[..., None] * table.auto_wait_w
    for rank in range(len(table.rank_weight)):
        own = np.flatnonzero((network.rank == rank) & (network.stream == 0))
        if len(own):
            done_s = begins_s[..., own] + each.time_s[..., own]
            again_s = end_s + begins_s[..., own[0]]
            next_s = np.concatenate([begins_s[..., own[1:]], again_s[..., None]], axis=-1)
            ready_s = np.minimum(next_s - done_s, each.ready_s)
            more_w = (each.ready_w - each.wait_w)[own]
            waited_j[..., rank] = (next_s - done_s) @ each.wait_w[own] + ready_s @ more_w
    return waited_j


def total(table: JobTable, each: Taken) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of an iteration, all ranks together. Shapes (...)."""
    energy_j: Floats = each.energy_j @ table.weight + waiting_j(table, each) @ table.rank_weight
    return table.network.iteration_s(each.time_s), energy_j


def table_of(job: Job) -> JobTable:
    """Return a job as numbers. Energies that are not known are nan.

    Raises:
        DataError: Ranks wait in a circle.
    """
    network = network_of(job)
    every = [each for rank in job.ranks for each in rank.instructions]
    pairs: dict[tuple[int, str], int] = {}
    pair = [
        -1 if each.profile is None else pairs.setdefault((rank, each.profile), len(pairs))
        for rank, each in zip(network.rank.tolist(), every, strict=True)
    ]
    known: dict[Clocks, int] = {AUTO: 0}
    for profile in job.profiles.values():
        for row in profile.rows:
            for each in (row.clocks, *(segment.clocks for segment in row.inside[-1:])):
                known.setdefault(each, len(known))
    profiles = [(job.ranks[rank], job.profiles[name]) for rank, name in pairs]
    shape = len(profiles), max((len(each.rows) for _, each in profiles), default=0)
    of_row = {name: np.full(shape, np.inf) for name in _QUANTITIES}
    first, last = np.zeros((2, *shape), dtype=np.int64)
    inside, wait_w = np.zeros(shape, dtype=bool), np.zeros(shape)
    for p, (rank, profile) in enumerate(profiles):
        for r, row in enumerate(profile.rows):
            ends = row.inside[-1].clocks if row.inside else row.clocks
            first[p, r], last[p, r] = known[row.clocks], known[ends]
            inside[p, r] = bool(row.inside)
            wait_w[p, r] = rank.waiting_w(ends.core_mhz)
            for name, values in of_row.items():
                value = getattr(row, name)
                values[p, r] = np.nan if value is None else value
        first[p, profile.auto] = last[p, profile.auto] = 0
    at_clocks = np.zeros((len(pairs), len(known)), dtype=np.int64)
    for p, (_, profile) in enumerate(profiles):
        plain = [at for at, row in enumerate(profile.rows) if not row.inside]
        clocks_mhz = np.array([profile.rows[at].core_mhz or _AUTO_MHZ for at in plain])
        for clocks, at in known.items():
            away = np.abs(clocks_mhz - (clocks.core_mhz or _AUTO_MHZ))
            is_auto = clocks.is_auto or not plain
            at_clocks[p, at] = profile.auto if is_auto else plain[int(away.argmin())]
    rest = np.array([each.kind is InstructionKind.REST for each in every])
    talks = np.array([each.kind in TALKS for each in every])
    return JobTable(
        network=network,
        rank_weight=np.ones(len(job.ranks), dtype=np.int64),
        pair=np.array(pair),
        fixed_s=np.array([each.time_s or 0.0 for each in every]),
        power_w=np.array([np.nan if each.power_w is None else each.power_w for each in every]),
        talks=talks,
        rest=rest,
        quiet=_quiet(network, talks, rest, [instruction_s(job, each) for each in every]),
        auto_wait_w=np.array([rank.waiting_w(None) for rank in job.ranks]),
        pairs=tuple(pairs),
        auto=np.array([profile.auto for _, profile in profiles], dtype=np.int64),
        wait_w=wait_w,
        first=first,
        last=last,
        inside=inside,
        at_clocks=at_clocks,
        **of_row,
    )


def shared(job: Job, table: JobTable) -> tuple[JobTable, Ints]:
    """Return the table of one rank of each kind, and what each instruction is there.

    Returns:
        The table, and for each instruction of the job the one that stands for it. Shape (n,).
    """
    network = table.network
    firsts = np.cumsum([0, *(len(rank.instructions) for rank in job.ranks)])
    colour, kind = colours(job, network, firsts)
    _, ranks, of, weight = np.unique(
        kind, return_index=True, return_inverse=True, return_counts=True
    )
    if len(ranks) == len(job.ranks):
        return table, np.arange(len(table.pair))
    ranks_at = np.argsort(np.argsort(ranks))  # kinds in the order of their first ranks
    ranks, weight, of = np.sort(ranks), weight[np.argsort(ranks)], ranks_at[of]
    kept = np.concatenate([np.arange(firsts[rank], firsts[rank + 1]) for rank in ranks])
    begins = np.cumsum([0, *(firsts[rank + 1] - firsts[rank] for rank in ranks)])
    stands = np.concatenate(
        [np.arange(begins[of[r]], begins[of[r] + 1]) for r in range(len(job.ranks))]
    )
    pair_at = {pair: at for at, pair in enumerate(table.pairs)}
    pairs = [each for each in table.pairs if each[0] in set(ranks.tolist())]
    picked = np.array([pair_at[each] for each in pairs], dtype=np.int64)
    number = np.full(len(table.pairs) + 1, -1)
    number[picked] = np.arange(len(picked))
    new_rank = {int(rank): at for at, rank in enumerate(ranks)}
    return replace(
        table,
        network=quotient(network, colour, kept, ranks),
        rank_weight=weight,
        pair=number[table.pair[kept]],
        auto_wait_w=table.auto_wait_w[ranks],
        pairs=tuple((new_rank[rank], name) for rank, name in pairs),
        **{name: getattr(table, name)[kept] for name in _OF_INSTRUCTIONS},
        **{name: getattr(table, name)[picked] for name in _OF_PAIRS},
    ), stands


_OF_INSTRUCTIONS = ("fixed_s", "power_w", "talks", "rest", "quiet")
_OF_PAIRS = (
    *("auto", "time_s", "energy_j", "time_error_s", "energy_error_j"),
    *("wait_w", "first", "last", "inside", "at_clocks"),
)


def instruction_s(job: Job, each: Instruction) -> float:
    """Return what an instruction takes at auto, in s."""
    profile = None if each.profile is None else job.profiles[each.profile]
    return each.time_s or 0.0 if profile is None else profile.rows[profile.auto].time_s


def _quiet(network: Network, talks: Bools, rest: Bools, auto_s: Sequence[float]) -> Bools:
    """Return the instructions whose passes a collective overlaps. Shape (n,)."""
    main, quiet = network.stream == 0, np.zeros(len(talks), dtype=bool)
    if not (talks & ~main).any():
        return quiet
    begins_s, ends_s = network.begins_s(np.array(auto_s)), network.ends_s(np.array(auto_s))
    for rank in range(int(network.rank.max()) + 1):
        own = np.flatnonzero(main & ~talks & (network.rank == rank))
        talking = np.flatnonzero(~main & talks & (network.rank == rank))
        both_s = np.minimum(ends_s[own, None], ends_s[talking])
        both_s -= np.maximum(begins_s[own, None], begins_s[talking])
        pass_ = np.cumsum(~rest[own])
        quiet[own] = np.bincount(pass_, (both_s > _BESIDE_S).any(axis=1))[pass_] > 0
    return quiet


_BESIDE_S = 1e-9  # less is rounding
_QUANTITIES = ("time_s", "energy_j", "time_error_s", "energy_error_j")
_AUTO_MHZ = 20_000  # a core clock that stands for auto: further from each lock than any other


def auto_clocks(job: Job) -> tuple[RankClocks, ...]:
    """Return what runs where nothing is set."""
    return tuple(
        tuple(
            None if each.profile is None else Held(job.profiles[each.profile].auto)
            for each in rank.instructions
        )
        for rank in job.ranks
    )


def timeline(job: Job, clocks: tuple[RankClocks, ...], latency_s: float = 0.0) -> tuple[Span, ...]:
    """Return what every rank does in an iteration; an instruction at two clocks is two spans.

    What meets other ranks is drawn from where the last is there; clocks come a latency late.

    Raises:
        DataError: Ranks wait in a circle.
    """
    table = table_of(job)
    taken_s = taken(table, RowChoice.held(clocks), latency_s).time_s
    begins_s, ends_s = (
        of(taken_s).tolist() for of in (table.network.begins_s, table.network.ends_s)
    )
    spans = []
    at = 0
    for rank, held in enumerate(clocks):
        for each, how in zip(job.ranks[rank].instructions, held, strict=True):
            turns_s, cores_mhz = [begins_s[at], ends_s[at]], list[int | None]([None])
            if how is not None and each.profile is not None:
                rows = job.profiles[each.profile].rows
                cores_mhz = [rows[row].clocks.core_mhz for row, _ in how.parts]
                if how.then is not None:
                    first_s, rest_s = (share * rows[row].time_s for row, share in how.parts)
                    part = first_s / (first_s + rest_s)
                    turns_s.insert(1, begins_s[at] + (ends_s[at] - begins_s[at]) * part)
            spans += [
                Span(
                    rank=rank,
                    stream=each.stream,
                    what=str(each),
                    has_profile=how is not None,
                    core_mhz=core_mhz,
                    begins_s=from_s,
                    ends_s=to_s,
                )
                for core_mhz, (from_s, to_s) in zip(cores_mhz, pairwise(turns_s), strict=True)
            ]
            at += 1
    return tuple(spans)
