"""Traces of all ranks of a job, as one job: who does what, and who waits for whom.

Ranks run their pieces in the order that was seen. A forward of a stage waits for that of the stage
before it, a backward for that of the stage after it, each of the same microbatch. What a rank waits
for inside of a send, a receive or a collective is not its duration: a transfer takes the least that
either end of any of its microbatches saw, a collective the least of its ranks. A send that ended
while its rank did nothing else held the rank up: what the rank did next waited for the receiver.

A collective inside of a piece belongs to it, less what the rank waited there, and its ranks meet
once more at the piece's end.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from underclock.core.tracing.rank_trace import (
    HOW_TO_MARK,
    SAME_S,
    Gathering,
    Message,
    Piece,
    RankStep,
    RankTrace,
)
from underclock.errors import DataError
from underclock.records import Evidence, GpuInfo
from underclock.records.job import (
    Instruction,
    InstructionKind,
    Job,
    Profile,
    ProfileRow,
    Rank,
    Wait,
    Waiting,
)

_Task = tuple[InstructionKind, int, int]
"""Kind, stage of the whole pipeline, microbatch."""
_NEXT = {InstructionKind.FORWARD: 1, InstructionKind.BACKWARD: -1}
_Place = tuple[int, int]
"""A rank, and which of its pieces."""
_Boundary = tuple[int, InstructionKind, int]
"""Pipeline, kind and stage of what sends."""
_NOWHERE: _Place = (-1, -1)
_SHARED = ("data", "tensor", "sequence")
_SHORTEST_S = 1e-9  # a profile has no row of no time
_DEVIATIONS = 1.4826  # median absolute ones in a normal distribution's standard deviation


@dataclass(eq=False)
class _Laid:
    """One rank's step, with its place in the job.

    Attributes:
        index: Among the job's ranks.
        pipeline: Number of the one that it is in.
        stage: Its place there.
        tasks: Of each piece; ``None`` for what belongs to no microbatch.
        time_s: Of each piece, without what it waited inside.
        after: Meetings that follow each piece; -1 is before the first.
    """

    index: int
    trace: RankTrace
    step: RankStep
    pipeline: int = 0
    stage: int = 0
    tasks: list[_Task | None] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    after: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """What it does, in the order in which it began."""
        return self.step.pieces

    @cached_property
    def begins_s(self) -> list[float]:
        """When its pieces began, ascending."""
        return [each.begins_s for each in self.pieces]

    @cached_property
    def ends_s(self) -> list[float]:
        """When its pieces ended: one after the other, so ascending too."""
        return [each.ends_s for each in self.pieces]

    @cached_property
    def chunks(self) -> list[int]:
        """Which of the rank's stages each piece is of."""
        mine = sorted({task[1] for task in self.tasks if task is not None})
        return [0 if task is None else mine.index(task[1]) for task in self.tasks]

    @cached_property
    def profiles(self) -> list[str]:
        """Names of what pieces cost."""
        return [
            f"stage {self.stage} {f'chunk {chunk} ' if chunk else ''}{piece.kind}"
            for piece, chunk in zip(self.pieces, self.chunks, strict=True)
        ]

    @cached_property
    def places(self) -> list[int]:
        """Which of the rank's instructions each piece is, once its meetings are known."""
        before = (len(self.after.get(at, ())) for at in range(-1, len(self.pieces) - 1))
        return [at + met for at, met in enumerate(accumulate(before))]


_Met = tuple[float, float, list[tuple[_Laid, int]]]
"""When the last rank came to a collective, what it takes, and after which pieces it comes."""


def traced_job(
    traces: Sequence[RankTrace], *, workload: str, waiting_w: float | None = None
) -> tuple[Job, float]:
    """Make a job of the traces of all its ranks; only times are known of it.

    Args:
        traces: One of each rank. The last step that all of them have says the order, and every such
            step how long things take.
        workload: What is trained.
        waiting_w: What a rank draws while it waits; ``None`` where that is not known.

    Returns:
        The job, and how long its iteration took in the last step, in s.

    Raises:
        DataError: Ranks are missing or of different jobs, did not take the same microbatches, or
            one receives what none sends.
    """
    traces = sorted(traces, key=lambda each: each.rank)
    _check_ranks(traces)
    numbers = set.intersection(*({step.number for step in each.steps} for each in traces))
    if not numbers:
        raise DataError(
            "the ranks' traces have no step in common", hint="profile the same steps on every rank"
        )
    steps = [_laid(traces, number) for number in sorted(numbers)]
    met_s = [_meetings(step) for step in steps]
    lags = [_transfers(step) for step in steps]
    last = steps[-1]
    if lags[-1].others and all(piece.stage is None for each in last for piece in each.pieces):
        raise DataError(
            "ranks send to others than their neighbours, and nothing tells their stages",
            hint=f"where ranks have several stages each, {HOW_TO_MARK}",
        )
    profiles = _profiles(steps)
    places = _places(last)
    job = Job(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name=traces[0].gpu or "CPU"),
        workload=workload,
        schedule="traced",
        microbatches=1 + max(task[2] for each in last for task in each.tasks if task),
        ranks=tuple(
            Rank(
                stage=each.stage,
                data=data,
                tensor=tensor,
                sequence=sequence,
                gpu=None if each.trace.gpu == traces[0].gpu else GpuInfo(name=each.trace.gpu),
                waiting=(Waiting(power_w=waiting_w or 0.0),),
                instructions=tuple(_instructions(each, met_s[-1])),
            )
            for each, (data, tensor, sequence) in zip(last, places, strict=True)
        ),
        waits=tuple(_waits(last, lags)),
        profiles=profiles,
        warnings=_warnings(last, lags[-1], len(steps), waiting_w),
    )
    return job, _took_s(last, common=lags[-1].common)


def _check_ranks(traces: Sequence[RankTrace]) -> None:
    """Refuse what is not all of one job.

    Raises:
        DataError: It is not.
    """
    same = "give the traces of one run, one of each rank"
    counts = Counter(each.rank for each in traces)
    world = max([len(counts), *(each.world or 0 for each in traces)])
    twice = [str(rank) for rank, count in counts.items() if count > 1]
    if twice:
        raise DataError(f"two traces are of rank {twice[0]}", hint=same)
    for one, other in pairwise(traces):
        facts = {"world size": str(one.world), **one.identity}
        others = {"world size": str(other.world), **other.identity}
        for name in (*facts, *others):
            if facts.get(name) != others.get(name):
                raise DataError(
                    f"ranks {one.rank} and {other.rank} are of different jobs: the {name} is "
                    f"{facts.get(name)} and {others.get(name)}",
                    hint=same,
                )
    missing = sorted(set(range(world)) - counts.keys())
    if missing:
        raise DataError(
            f"of {world} ranks, the traces of {', '.join(map(str, missing))} are missing", hint=same
        )


def _laid(traces: Sequence[RankTrace], number: int) -> list[_Laid]:
    """Give every rank its place, and every piece its task, in a step."""
    ranks = [
        _Laid(at, each, next(step for step in each.steps if step.number == number))
        for at, each in enumerate(traces)
    ]
    for pipeline, members in enumerate(_pipelines(ranks)):
        told = {
            each.index: [p.stage for p in each.pieces if p.stage is not None] for each in members
        }
        members.sort(key=lambda each: (min(told[each.index], default=0), each.index))
        for at, each in enumerate(members):
            each.pipeline, each.stage = pipeline, at
    ids = sorted({p.microbatch for r in ranks for p in r.pieces if p.microbatch is not None})
    number_of = {each: at for at, each in enumerate(ids)}
    for rank in ranks:
        # What no range tells may be in parts with waiting between: of it the work alone counts.
        rank.time_s = [
            sum(ends_s - begins_s for begins_s, ends_s in piece.work)
            if piece.microbatch is None
            else piece.ends_s - piece.begins_s
            for piece in rank.pieces
        ]
        for piece in rank.pieces:
            stage = rank.stage if piece.stage is None else piece.stage
            mb = None if piece.microbatch is None else number_of[piece.microbatch]
            rank.tasks.append(None if mb is None else (piece.kind, stage, mb))
    _check_microbatches(ranks, len(ids))
    return ranks


def _pipelines(ranks: Sequence[_Laid]) -> list[list[_Laid]]:
    """Return ranks by pipeline: as groups say, else who sends to whom, else by their stages."""
    talk = any(each.step.messages for each in ranks)
    root = list(range(len(ranks)))

    def find(at: int) -> int:
        while root[at] != at:
            at = root[at]
        return at

    seen: Counter[frozenset[int | None]] = Counter()
    found: dict[object, list[_Laid]] = {}
    for each in ranks:
        for message in each.step.messages:
            if message.peer >= len(ranks):
                raise DataError(
                    f"rank {each.trace.rank} has a transfer with rank {message.peer}, of "
                    f"{len(ranks)}",
                    hint="give the traces of one run, one of each rank",
                )
            root[find(max(each.index, message.peer))] = find(min(each.index, message.peer))
    for each in ranks:
        stages = frozenset(piece.stage for piece in each.pieces)
        key: object = each.trace.groups.get("stage")
        if key is None:
            key = find(each.index) if talk else seen[stages]
        seen[stages] += 1
        found.setdefault(key, []).append(each)
    return list(found.values())


def _check_microbatches(ranks: Sequence[_Laid], count: int) -> None:
    """Refuse ranks that do not take every microbatch through their passes once.

    Raises:
        DataError: They do not.
    """
    for rank in ranks:
        done = Counter(task for task in rank.tasks if task is not None)
        for (kind, stage, microbatch), often in done.items():
            if often > 1:
                raise DataError(
                    f"rank {rank.trace.rank} runs the {kind} of microbatch {microbatch} {often} "
                    f"times on stage {stage}",
                    hint=f"a rank with several stages says which: {HOW_TO_MARK}",
                )
        passes = Counter((kind, stage) for kind, stage, _ in done)
        for (kind, stage), taken in passes.items():
            if taken != count and kind is not InstructionKind.RECOMPUTE:
                raise DataError(
                    f"rank {rank.trace.rank} takes {taken} of {count} microbatches through the "
                    f"{kind} of stage {stage}",
                    hint="every rank of a job takes the same: trace one whole step of all",
                )


def _meetings(ranks: Sequence[_Laid]) -> list[float]:
    """Say after which pieces collectives come, and take what ranks waited inside out of those.

    Returns:
        What each meeting takes, in s.

    Raises:
        DataError: Ranks of a group have not the same number of collectives.
    """
    groups: dict[str, list[tuple[_Laid, list[Gathering]]]] = {}
    replicas = len({rank.pipeline for rank in ranks}) > 1
    for rank in ranks:
        unnamed = f"of stage {rank.stage}" if replicas else "of all ranks"
        mine: dict[str, list[Gathering]] = {}
        for each in rank.step.gatherings:
            mine.setdefault(each.group or unnamed, []).append(each)
        for name, some in mine.items():
            groups.setdefault(name, []).append((rank, some))
    found: list[_Met] = []
    for name, members in groups.items():
        (first, some), *_ = members
        for other, others in members:
            if len(others) != len(some):
                raise DataError(
                    f"ranks {first.trace.rank} and {other.trace.rank} have {len(some)} and "
                    f"{len(others)} collectives in group {name}",
                    hint="profile the same step on every rank",
                )
        if len(members) > 1:
            found += _of_group(members)
    found.sort(key=lambda each: each[0])  # one order for all ranks, or they could wait in a circle
    for number, (_, _, where) in enumerate(found):
        for rank, at in where:
            rank.after[at].append(number)
    return [time_s for _, time_s, _ in found]


def _of_group(members: Sequence[tuple[_Laid, Sequence[Gathering]]]) -> list[_Met]:
    """Return a group's meetings; those that follow the same pieces on all ranks are one."""
    found: list[_Met] = []
    for seen in zip(*(some for _, some in members), strict=True):
        least_s = min(each.ends_s - each.begins_s for each in seen)
        where, exposed_s = [], [least_s]
        for (rank, _), each in zip(members, seen, strict=True):
            at = bisect_right(rank.begins_s, each.begins_s) - 1
            where.append((rank, at))
            if at >= 0:
                until_s = rank.pieces[at].ends_s
                exposed_s.append(max(0.0, each.ends_s - max(each.begins_s, until_s)))
                waited = each.begins_s, min(each.ends_s - least_s, until_s)
                rank.time_s[at] -= _idle_s(waited, rank.pieces[at])
        begun_s, time_s = max(each.begins_s for each in seen), min(exposed_s)
        if found and found[-1][2] == where:
            begun_s, before_s, _ = found.pop()
            time_s += before_s
        found.append((begun_s, time_s, where))
    return found


def _idle_s(span: tuple[float, float], piece: Piece) -> float:
    """Return how much of a span a rank was not busy with a piece."""
    busy_s = (max(0.0, min(e, span[1]) - max(b, span[0])) for b, e in piece.work)
    return max(0.0, span[1] - span[0] - sum(busy_s))


@dataclass(kw_only=True)
class _Transfers:
    """What a step's transfers took, and what waited for them.

    Attributes:
        least_s: Over each boundary.
        waits: Which place waits for which other because of a transfer over which boundary.
        others: How many carry no result that a pass waits for.
        common: Whether ranks have one clock, as far as messages tell: none ended before it began.
    """

    least_s: dict[_Boundary, float] = field(default_factory=dict)
    waits: list[tuple[_Place, _Place, _Boundary]] = field(default_factory=list)
    others: int = 0
    common: bool = False


def _transfers(ranks: Sequence[_Laid]) -> _Transfers:
    """Say what waits for what of another rank, by the stages of passes and by what was sent."""
    where = {
        (rank.pipeline, *task): (rank.index, at)
        for rank in ranks
        for at, task in enumerate(rank.tasks)
        if task is not None
    }
    found = _Transfers()
    to: dict[_Place, _Place] = {}
    over: dict[_Place, _Boundary] = {}
    for (pipeline, kind, stage, microbatch), place in where.items():
        other = where.get((pipeline, kind, stage + _NEXT.get(kind, 0), microbatch), place)
        if other[0] != place[0]:
            to[place], over[place] = other, (pipeline, kind, stage)
            found.waits.append((other, place, over[place]))
    pairs = [
        (rank, ranks[peer], _paired(rank, ranks[peer]))
        for rank in ranks
        for peer in sorted({message.peer for message in rank.step.messages})
    ]
    # Clocks of two machines may differ; if so, when the other end began says nothing.
    spans = [got.ends_s - sent.begins_s for *_, ends in pairs for sent, got in ends]
    common = found.common = min(spans, default=-1.0) >= 0.0
    for sender, receiver, ends in pairs:
        going = sorted(
            (piece.asked_s, at)
            for at, piece in enumerate(sender.pieces)
            if to.get((sender.index, at), _NOWHERE)[0] == receiver.index
        )
        for sent, got in ends:
            nth = bisect_right(going, (sent.asked_s, math.inf)) - 1
            if nth < 0:
                found.others += 1
                continue
            place = sender.index, going[nth][1]
            key = over[place]
            taken_s = min(sent.ends_s - sent.begins_s, got.ends_s - got.begins_s)
            if common:  # from when the later end began to when the first one had done
                both_s = min(sent.ends_s, got.ends_s) - max(sent.begins_s, got.begins_s)
                taken_s = max(0.0, both_s)
            found.least_s[key] = min(taken_s, found.least_s.get(key, math.inf))
            # Who receives has to be there, which it is after what it ended last; a send that ended
            # while its rank did nothing was waited for, unless it ended before that.
            there = receiver.index, bisect_right(receiver.ends_s, got.begins_s + SAME_S) - 1
            if there[1] < 0:
                continue
            found.waits.append((to[place], there, key))
            after = bisect_left(sender.begins_s, sent.ends_s - SAME_S)
            idle = sender.ends_s[after - 1] < sent.ends_s - SAME_S
            ahead = common and sent.ends_s < got.begins_s
            if after < len(sender.pieces) and idle and not ahead:
                held_up = sender.index, after
                found.waits += [(held_up, there, key), (held_up, place, key)]
    return found


def _paired(sender: _Laid, receiver: _Laid) -> list[tuple[Message, Message]]:
    """Return both ends of all that one rank sends to another.

    Raises:
        DataError: One of them sends or receives more than the other.
    """
    sent = [m for m in sender.step.messages if m.sends and m.peer == receiver.index]
    got = [m for m in receiver.step.messages if not m.sends and m.peer == sender.index]
    if len(sent) != len(got):
        raise DataError(
            f"rank {receiver.trace.rank} receives {len(got)} times from rank {sender.trace.rank}, "
            f"which sends {len(sent)} times",
            hint="trace one whole step of every rank of the job",
        )
    return list(zip(sent, got, strict=True))


def _waits(last: Sequence[_Laid], steps: Sequence[_Transfers]) -> Iterator[Wait]:
    """Yield who waits for whom, each pair once, with the least that the transfer took."""
    found: dict[tuple[tuple[int, int], tuple[int, int]], float] = {}
    for of, on, key in steps[-1].waits:
        lag_s = min(each.least_s.get(key, 0.0) for each in steps)
        if of[0] != on[0] or lag_s > 0.0:
            found[of, on] = max(lag_s, found.get((of, on), 0.0))
    for ((rank, at), (on_rank, on_at)), lag_s in found.items():
        yield Wait(rank, last[rank].places[at], on_rank, last[on_rank].places[on_at], lag_s)


def _profiles(steps: Sequence[Sequence[_Laid]]) -> dict[str, Profile]:
    """Return what pieces cost, by name: the median of all that are alike, and how they scatter."""
    times_s: dict[str, list[float]] = {}
    for step in steps:
        for rank in step:
            for name, time_s in zip(rank.profiles, rank.time_s, strict=True):
                times_s.setdefault(name, []).append(max(time_s, _SHORTEST_S))
    found = {}
    for name, some in sorted(times_s.items()):
        middle_s = statistics.median(some)
        scatter_s = _DEVIATIONS * statistics.median(abs(each - middle_s) for each in some)
        row = ProfileRow(time_s=middle_s, energy_j=None, time_error_s=scatter_s)
        found[name] = Profile(rows=(row,), auto=0)
    return found


def _instructions(rank: _Laid, met_s: Sequence[float]) -> Iterator[Instruction]:
    """Yield a rank's instructions, in order."""
    for at in range(-1, len(rank.pieces)):
        if at >= 0:
            task = rank.tasks[at]
            yield Instruction(
                kind=rank.pieces[at].kind,
                microbatch=task[2] if task else None,
                chunk=rank.chunks[at],
                profile=rank.profiles[at],
            )
        for meeting in rank.after.get(at, ()):
            yield Instruction(
                kind=InstructionKind.COLLECTIVE, time_s=met_s[meeting], meeting=meeting
            )


def _places(ranks: Sequence[_Laid]) -> list[tuple[int, int, int]]:
    """Return the data, tensor and sequence index of each rank, by its groups or its pipeline."""

    def index(rank: _Laid, what: str) -> int | None:
        group = rank.trace.groups.get(what, ())
        return group.index(rank.trace.rank) if rank.trace.rank in group else None

    told = [
        (data or 0 if "data" in rank.trace.groups else rank.pipeline, tensor or 0, sequence or 0)
        for rank in ranks
        for data, tensor, sequence in ([index(rank, name) for name in _SHARED],)
    ]
    if len({(rank.stage, *each) for rank, each in zip(ranks, told, strict=True)}) == len(ranks):
        return told
    return [(rank.pipeline, 0, 0) for rank in ranks]


def _took_s(ranks: Sequence[_Laid], *, common: bool) -> float:
    """Return how long a step took: of all ranks, or of the longest where clocks may differ."""
    begun_s = [rank.begins_s[0] for rank in ranks]
    ended_s = [
        max([*rank.ends_s, *(each.ends_s for each in rank.step.gatherings)]) for rank in ranks
    ]
    if common:
        return max(ended_s) - min(begun_s)
    return max(end - begin for begin, end in zip(begun_s, ended_s, strict=True))


def _warnings(
    ranks: Sequence[_Laid], transfers: _Transfers, steps: int, waiting_w: float | None
) -> tuple[str, ...]:
    """Say what a reader must know of a traced job."""
    seen = f"traces of {steps} steps" if steps > 1 else "the trace of one step"
    words = [f"time only: {seen} tells nothing of energy, and times at the clocks that ran alone"]
    if waiting_w is None:
        words.append("what waiting draws is not known and counts as nothing: --blocked-power")
    if not any(rank.trace.gpu for rank in ranks):
        words.append("no GPU was seen: these are times of CPUs")
    if transfers.waits and not transfers.least_s:
        words.append("the traces have no transfers between stages: they count as no time")
    if transfers.others:
        words.append(
            f"{transfers.others} transfers carry nothing that a pass waits for, and are left out"
        )
    return tuple(words)
