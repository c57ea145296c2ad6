"""Who waits for whom between ranks: their collectives, and transfers between their stages.

What a rank waits for inside of a send, a receive or a collective is not its duration: a transfer
takes the least for which both ends of any of its microbatches were under way, a collective the
least of its ranks. One that begins inside of a
pass and outlasts it runs beside: it begins where so much of the pass is done, and what began after
it waits for it. A send that ended while its rank did nothing else held the rank up: what the rank
did next waited for the receiver. Any other collective inside of a piece belongs to it, less what
the rank waited there, and its ranks meet once more at the piece's end.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from underclock.core.tracing.rank_places import Beside, PlacedRank
from underclock.core.tracing.rank_trace import SAME_S, Gathering, Message, PassRun
from underclock.errors import DataError
from underclock.records.job import InstructionKind

_NEXT = {InstructionKind.FORWARD: 1, InstructionKind.BACKWARD: -1}
Place = tuple[int, int]
"""A rank, and which of its pieces."""
Boundary = tuple[int, InstructionKind, int]
"""Pipeline, kind and stage of what sends."""
_NOWHERE: Place = (-1, -1)
_Where = tuple[PlacedRank, int, Beside | None]
"""A rank, and the piece that a collective follows or runs beside."""
_Met = tuple[float, float, list[_Where]]
"""When the last rank came to a collective, what it takes, and where it comes."""
_DIGITS = 3  # of the part of a pass that is done


def meetings(ranks: Sequence[PlacedRank]) -> list[float]:
    """Say after which pieces collectives come, and take what ranks waited inside out of those.

    Returns:
        What each meeting takes, in s.

    Raises:
        DataError: Ranks of a group have not the same number of collectives.
    """
    groups: dict[str, list[tuple[PlacedRank, list[Gathering]]]] = {}
    replicas = len({rank.pipeline for rank in ranks}) > 1
    for rank in ranks:
        unnamed = f"of stage {rank.stage}" if replicas else "of all ranks"
        mine: dict[str, list[Gathering]] = {}
        for each in rank.step.gatherings:
            mine.setdefault(each.group or unnamed, []).append(each)
        for name, some in mine.items():
            groups.setdefault(name, []).append((rank, some))
    found: list[_Met] = []
    for stream, (name, members) in enumerate(groups.items(), start=1):
        (first, some), *_ = members
        for other, others in members:
            if len(others) != len(some):
                raise DataError(
                    f"ranks {first.trace.rank} and {other.trace.rank} have {len(some)} and "
                    f"{len(others)} collectives in group {name}",
                    hint="profile the same step on every rank",
                )
        if len(members) > 1:
            found += _of_group(members, stream)
    found.sort(key=lambda each: each[0])  # one order for all ranks, or they could wait in a circle
    for number, (_, _, where) in enumerate(found):
        for rank, at, beside in where:
            rank.after[at] += [number] if beside is None else []
            rank.beside[at] += [] if beside is None else [beside._replace(meeting=number)]
    return [time_s for _, time_s, _ in found]


def _of_group(members: Sequence[tuple[PlacedRank, Sequence[Gathering]]], stream: int) -> list[_Met]:
    """Return a group's meetings; those that follow the same pieces on all ranks are one."""
    found: list[_Met] = []
    for seen in zip(*(some for _, some in members), strict=True):
        least_s = min(each.ends_s - each.begins_s for each in seen)
        if beside := _beside(members, seen, stream):
            found.append((max(each.begins_s for each in seen), least_s, beside))
            continue
        where, exposed_s = list[_Where](), [least_s]
        for (rank, _), each in zip(members, seen, strict=True):
            at = bisect_right(rank.begins_s, each.begins_s) - 1
            where.append((rank, at, None))
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


def _beside(
    members: Sequence[tuple[PlacedRank, Sequence[Gathering]]],
    seen: Sequence[Gathering],
    stream: int,
) -> list[_Where]:
    """Say where a collective begins beside a microbatch's pass that it outlasts on some rank.

    On ranks where it began later that is after all of what was before. Empty for other collectives.
    """
    where, outlasts = list[_Where](), False
    for (rank, _), each in zip(members, seen, strict=True):
        at = bisect_right(rank.begins_s, each.begins_s) - 1
        if at < 0:
            return []
        piece = rank.pieces[at]
        share = (each.begins_s - piece.begins_s) / max(piece.ends_s - piece.begins_s, SAME_S)
        share = max(round(share, _DIGITS), 10.0**-_DIGITS) if share < 1.0 else 1.0
        if share < 1.0 and (piece.microbatch is None or each.ends_s <= piece.ends_s + SAME_S):
            return []
        outlasts |= share < 1.0
        where.append((rank, at, Beside(-1, share, each.ends_s, stream)))
    return where if outlasts else []


def _idle_s(span: tuple[float, float], piece: PassRun) -> float:
    """Return how much of a span a rank was not busy with a piece."""
    busy_s = (max(0.0, min(e, span[1]) - max(b, span[0])) for b, e in piece.work)
    return max(0.0, span[1] - span[0] - sum(busy_s))


@dataclass(kw_only=True)
class Transfers:
    """What a step's transfers took, and what waited for them.

    Attributes:
        least_s: Over each boundary.
        waits: Which place waits for which other because of a transfer over which boundary.
        others: How many carry no result that a pass waits for.
        common: Whether ranks have one clock, as far as messages tell: none ended before it began.
    """

    least_s: dict[Boundary, float] = field(default_factory=dict)
    waits: list[tuple[Place, Place, Boundary]] = field(default_factory=list)
    others: int = 0
    common: bool = False


def transfers(ranks: Sequence[PlacedRank]) -> Transfers:
    """Say what waits for what of another rank, by the stages of passes and by what was sent."""
    where = {
        (rank.pipeline, *task): (rank.index, at)
        for rank in ranks
        for at, task in enumerate(rank.tasks)
        if task is not None
    }
    found = Transfers()
    to: dict[Place, Place] = {}
    over: dict[Place, Boundary] = {}
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


def _paired(sender: PlacedRank, receiver: PlacedRank) -> list[tuple[Message, Message]]:
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
