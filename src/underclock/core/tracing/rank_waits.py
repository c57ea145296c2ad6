"""Who waits for whom between ranks: their collectives, and transfers between their stages.

What a rank waits for inside of a send, a receive or a collective is not its duration: a transfer
takes the least for which both ends of any of its microbatches were under way, a collective the
least of its ranks. A collective or a copy during which other work ran overlaps that work: it
begins where so much of a pass is done, and what waited for it waits for it, a part of the same pass
or of a later one. What lies between may be slower for as long as it lasts. A send that ended while
its rank did nothing else held the rank up: what the rank did next waited for the receiver. Any
other collective inside of a piece belongs to it, less what the rank waited there, and its ranks
meet once more at the piece's end.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice, starmap

from underclock.core.tracing.rank_passes import SAME_S, Gathering, Message
from underclock.core.tracing.rank_places import Overlap, PlacedRank
from underclock.errors import DataError
from underclock.records.job import InstructionKind

_NEXT = {InstructionKind.FORWARD: 1, InstructionKind.BACKWARD: -1}
Place = tuple[int, int]
"""A rank, and which of its pieces."""
Boundary = tuple[int, InstructionKind, int]
"""Pipeline, kind and stage of what sends."""
_NOWHERE: Place = (-1, -1)
_Where = tuple[PlacedRank, int, Overlap | None]
"""A rank, and the piece that a collective or copy follows or overlaps."""
_Met = tuple[float, float, list[_Where]]
"""When the last rank came to a collective, what it takes, and where it comes."""
_LEAST = 0.01  # of a piece: what is done of it while a collective runs is nothing if less


def meetings(ranks: Sequence[PlacedRank]) -> list[float]:
    """Say after which pieces collectives come, and take what ranks waited inside out of those.

    Returns:
        What each meeting takes, in s.

    Raises:
        DataError: Ranks of a group have not the same number of collectives.
    """
    found: list[_Met] = []
    for stream, (name, members) in enumerate(_groups(ranks).items(), start=1):
        (first, some), *_ = members
        for other, theirs in members:
            if len(theirs) != len(some):
                raise DataError(
                    f"ranks {first.trace.rank} and {other.trace.rank} have {len(some)} and "
                    f"{len(theirs)} collectives in group {name}",
                    hint="profile the same step on every rank",
                )
        if len(members) > 1 or not some[0].meets or len(ranks) == 1:
            found += _of_group(members, stream)
    for rank in ranks:
        rank.settle()
    found.sort(key=lambda each: each[0])  # one order for all ranks, or they could wait in a circle
    for number, (_, _, where) in enumerate(found):
        for rank, at, overlap in where:
            rank.after[at] += [number] if overlap is None else []
            rank.overlaps[at] += [] if overlap is None else [overlap._replace(meeting=number)]
    return [time_s for _, time_s, _ in found]


def _groups(ranks: Sequence[PlacedRank]) -> dict[str, list[tuple[PlacedRank, list[Gathering]]]]:
    groups: dict[str, list[tuple[PlacedRank, list[Gathering]]]] = {}
    replicas = len({rank.pipeline for rank in ranks}) > 1
    for rank in ranks:
        unnamed = f"of stage {rank.stage}" if replicas else "of all ranks"
        mine: dict[str, list[Gathering]] = {}
        for each in rank.step.gatherings:
            name = each.group if each.meets else f"{each.group} of rank {rank.index}"
            mine.setdefault(name or unnamed, []).append(each)
        for name, some in mine.items():
            groups.setdefault(name, []).append((rank, some))
    return groups


def _of_group(members: Sequence[tuple[PlacedRank, Sequence[Gathering]]], stream: int) -> list[_Met]:
    """Return a group's meetings; those that follow the same pieces on all ranks are one."""
    found: list[_Met] = []
    for seen in zip(*(some for _, some in members), strict=True):
        least_s = min(each.ends_s - each.begins_s for each in seen)
        overlaps: list[tuple[PlacedRank, int, Overlap]] = []
        for (rank, _), each in zip(members, seen, strict=True):
            at, until_s = rank.at(each.begins_s), each.until_s
            if until_s is None:  # inside of a piece anything may wait for it
                inside = at >= 0 and each.ends_s <= rank.ends_s[at] + SAME_S
                until_s = each.begins_s if inside else each.ends_s
            span = each.begins_s, each.ends_s, until_s
            overlaps.append((rank, at, Overlap(*span, stream, each.meets)))
        if not seen[0].meets or _overlaps(overlaps):
            for rank, _, one in overlaps:
                # What a microbatch's pass waited for an overlap is no time of the pass.
                at = rank.at(one.until_s)
                piece = rank.pieces[max(at, 0)]
                if at < 0 or piece.microbatch is None or one.until_s >= piece.ends_s - SAME_S:
                    continue
                done = bisect_left(piece.work, one.until_s + SAME_S, key=lambda span: span[1])
                begins_s = piece.work[done - 1][1] if done else one.until_s
                waited = max(begins_s, one.begins_s), min(one.ends_s, one.until_s)
                rank.waited[at].append(waited)
            found.append((max(each.begins_s for each in seen), least_s, list(overlaps)))
            continue
        where, exposed_s = list[_Where](), [least_s]
        for rank, at, one in overlaps:
            where.append((rank, at, None))
            if at >= 0:
                until_s = rank.pieces[at].ends_s
                exposed_s.append(max(0.0, one.ends_s - max(one.begins_s, until_s)))
                waited = one.begins_s, min(one.ends_s - least_s, until_s)
                idle_s = waited[1] - waited[0] - _within_s(waited, rank.pieces[at].work)
                # What is taken out for its host's sake, and for another wait, is not taken twice.
                late = rank.pieces[at].late if rank.pieces[at].microbatch is not None else ()
                taken = [(waited, late), *((waited, (other,)) for other in rank.waited[at])]
                idle_s -= math.fsum(starmap(_within_s, taken))
                rank.time_s[at] -= max(0.0, idle_s)
        begun_s, time_s = max(each.begins_s for each in seen), min(exposed_s)
        if found and found[-1][2] == where:
            begun_s, before_s, _ = found.pop()
            time_s += before_s
        found.append((begun_s, time_s, where))
    return found


def _overlaps(members: Sequence[tuple[PlacedRank, int, Overlap]]) -> bool:
    """Whether a rank works on while a collective runs, and each comes to it where it can be cut."""
    some = False
    for rank, at, each in members:
        if at < 0 or (rank.pieces[at].microbatch is None and rank.done(at, each.begins_s) < 1.0):
            return False
        span = each.begins_s, each.until_s
        pieces = rank.pieces[at : rank.at(span[1]) + 1]
        busy_s = sum(_within_s(span, piece.work) for piece in pieces)
        some |= busy_s > _LEAST * (rank.ends_s[at] - rank.begins_s[at])
    return some


def _within_s(span: tuple[float, float], some: Sequence[tuple[float, float]]) -> float:
    """Return how much of some spans, in order, lies within another."""
    first = bisect_right(some, span[0], key=lambda each: each[1])
    inside_s = 0.0
    for begin, end in islice(some, first, None):
        if begin >= span[1]:
            break
        inside_s += max(0.0, min(end, span[1]) - max(begin, span[0]))
    return inside_s


class Transfers:
    """What a step's transfers took, and what waited for them.

    Attributes:
        least_s: What they took at least over each boundary.
        waits: Which place waits for which other because of a transfer over which boundary.
        unpaired: How many transfers carry no result that a pass waits for.
        common: Whether ranks have one clock, by their messages: none ended before it began.
    """

    def __init__(self) -> None:
        self.least_s, self.unpaired, self.common = dict[Boundary, float](), 0, False
        self.waits = list[tuple[Place, Place, Boundary]]()


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
                found.unpaired += 1
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
    sent = [m for m in sender.step.messages if m.sends and m.peer == receiver.index]
    got = [m for m in receiver.step.messages if not m.sends and m.peer == sender.index]
    if len(sent) != len(got):
        raise DataError(
            f"rank {receiver.trace.rank} receives {len(got)} times from rank {sender.trace.rank}, "
            f"which sends {len(sent)} times",
            hint="trace one whole step of every rank of the job",
        )
    return list(zip(sent, got, strict=True))
