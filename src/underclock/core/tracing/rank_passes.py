"""Passes of microbatches in what one rank did in a step, by PyTorch's marks or by ranges.

A pass lasts from the first to the last kernel of the stream that computes longest; kernels of
another stream count between these. Work between two passes belongs to the earlier (a loss, to its
forward), what comes before the first to no microbatch, what comes after the last to the optimizer.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import accumulate, dropwhile

from underclock.core.tracing.streams import GAP_S
from underclock.errors import DataError
from underclock.records import Pass
from underclock.records.job import InstructionKind

HOW_TO_MARK = (
    'put a range around each pass: `with torch.profiler.record_function("forward mb=3 stage=1"):`'
)
SAME_S = 1e-8
"""Of times, which profiles round."""
ON_HOST = -2
"""Stream of what no GPU ran."""
_Span = tuple[float, float]
_OF_PASS = {
    Pass.FORWARD: InstructionKind.FORWARD,
    Pass.BACKWARD: InstructionKind.BACKWARD,
    Pass.OPTIMIZER: InstructionKind.OPTIMIZER,
}


@dataclass(frozen=True, slots=True)
class Timed:
    """Something of a rank: when its host began to ask for it, when it began and ended, in s."""

    asked_s: float
    begins_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Activity(Timed):
    """Something that a GPU did, or without one the host."""

    pass_: Pass
    stream: int
    # whether the profiler lost when it ran; then its times are when it was asked for
    lost: bool = False
    known: tuple[bool, bool] = (True, True)  # whether nothing unknown ran before it, and after it


@dataclass(frozen=True, slots=True)
class PassRun(Timed):
    """What a rank did of one instruction."""

    kind: InstructionKind
    microbatch: int | None = None
    stage: int | None = None  # as its range says; ``None`` where that says none
    work: tuple[_Span, ...] = ()  # merged spans in which the rank was busy with it, in s
    # spans between these in which its GPU had nothing to do because the host, which a profiler
    # slows, had not asked yet
    late: tuple[_Span, ...] = ()
    whole: bool = True  # whether the profiler saw when it began and ended


@dataclass(frozen=True, slots=True)
class Message(Timed):
    """One end of a transfer between two ranks."""

    sends: bool
    peer: int


@dataclass(frozen=True, slots=True)
class Gathering(Timed):
    """A collective as one rank saw it, or a copy that overlaps its passes."""

    group: str  # whose collective; empty where the trace does not name it. Of copies their stream
    # when the first work that waits for it began; infinite where none does, ``None`` where that is
    # unknown
    until_s: float | None = None
    meets: bool = True  # whether it is a collective


def homes_of(work: Sequence[Activity], main: int) -> dict[Pass, int]:
    """Return the stream of each pass: the main one where any of it ran there, else its longest."""
    taken_s: dict[Pass, Counter[int]] = {pass_: Counter() for pass_ in _OF_PASS}
    for one in work:
        if one.pass_ in taken_s and not one.lost:
            taken_s[one.pass_][one.stream] += one.ends_s - one.begins_s  # type: ignore[assignment]
    return {
        pass_: main if main in some or not some else max(some, key=lambda each: some[each])
        for pass_, some in taken_s.items()
    }


def passes_by_marks(
    work: Sequence[Activity], messages: Sequence[Message], homes: Mapping[Pass, int], where: str
) -> list[PassRun]:
    """Return the passes of a step without ranges by PyTorch's marks and by messages between them.

    Forward work that no backward follows is after the last one: gradients clipped, a loss logged.

    Raises:
        DataError: There are none, or not as many of forwards as of backwards.
    """
    runs = _runs(work, [each.asked_s for each in messages], homes)
    while runs and runs[-1][0] is InstructionKind.OPTIMIZER:
        runs.pop()
    runs = list(dropwhile(lambda run: run[0] is InstructionKind.OPTIMIZER, runs))
    counts = Counter[InstructionKind]()
    pieces: list[PassRun] = []
    for kind, first_s, last_s in runs:
        span = first_s, first_s, math.nextafter(last_s, math.inf)
        if kind is not InstructionKind.OPTIMIZER:
            pieces.append(PassRun(*span, kind, counts[kind]))
        else:
            pieces.append(PassRun(*span, kind))
        counts[kind] += 1
    del counts[InstructionKind.OPTIMIZER]
    if len(set(counts.values())) > 1:
        said = " and ".join(f"{count} {kind}s" for kind, count in counts.items())
        raise DataError(
            f"no range names microbatches in {where}, which has {said}", hint=HOW_TO_MARK
        )
    if not counts:
        raise DataError(f"{where} has neither a forward nor a backward", hint=HOW_TO_MARK)
    first = pieces[0]  # whose kernels of another stream may be asked for earlier
    begun_s = next(one.asked_s for one in work if _OF_PASS.get(one.pass_) is first.kind)
    return [replace(first, asked_s=min(begun_s, first.asked_s)), *pieces[1:]]


def _runs(
    work: Sequence[Activity], sent_s: Sequence[float], homes: Mapping[Pass, int]
) -> list[tuple[InstructionKind, float, float]]:
    """Return what is asked for in a row of one pass, and when its first and last are."""
    some = [one for one in work if one.pass_ in homes and one.stream == homes[one.pass_]]
    forward, backward, optimizer = _OF_PASS.values()
    kinds = [_OF_PASS[one.pass_] for one in some]
    follows = None
    if backward in kinds:
        for at in range(len(kinds) - 1, -1, -1):
            if kinds[at] is not forward:
                follows = kinds[at]
            elif follows is not backward:
                kinds[at] = optimizer
    found: list[tuple[InstructionKind, float, float]] = []
    before = None
    for one, kind in zip(some, kinds, strict=True):
        key = kind, bisect_left(sent_s, one.asked_s) if kind is not optimizer else 0
        begun_s = found.pop()[1] if key == before else one.asked_s
        found.append((kind, begun_s, one.asked_s))
        before = key
    return found


def laid_passes(
    pieces: Sequence[PassRun],
    work: Sequence[Activity],
    messages: Sequence[Message],
    *,
    homes: AbstractSet[int],
    main: int,
) -> tuple[PassRun, ...]:
    """Give each piece its work, and what passes' streams ran for none pieces of their own."""
    asked = [each.asked_s for each in pieces]
    owned: dict[int, list[Activity]] = {}
    for one in work:
        owner = bisect_right(asked, one.asked_s) - 1
        after = owner == len(pieces) - 1 and one.asked_s >= pieces[-1].ends_s
        owned.setdefault(len(pieces) if after else owner, []).append(one)
    laid: list[PassRun] = []
    for at, piece in enumerate(pieces):
        mine, whole = _together(owned.get(at, []), main)
        work_s = _spans(mine)
        # When the GPU was done with all that it had been asked for, but for a usual gap. What began
        # as it was asked for is of a trace that does not tell when that was.
        ordered = sorted(mine, key=lambda each: each.begins_s) if main != ON_HOST else []
        done = accumulate((one.ends_s for one in ordered), max)
        late = tuple(
            (done_s, one.begins_s - GAP_S)
            for done_s, one in zip(done, ordered[1:], strict=False)
            if done_s < one.asked_s < one.begins_s - GAP_S
        )
        begins_s, ends_s = piece.begins_s, piece.ends_s
        if main == ON_HOST:  # the host's own time, from when it has what it waited for
            begun_s = work_s[0][0] if work_s else ends_s
            had = [each.ends_s for each in messages if begins_s < each.ends_s <= begun_s]
            begins_s, ends_s = max([begins_s, *had]), max([ends_s, *(end for _, end in work_s)])
        elif work_s:
            begins_s, ends_s = work_s[0][0], work_s[-1][1]
        else:
            begins_s = ends_s = laid[-1].ends_s if laid else begins_s
        whole = whole and (piece.microbatch is not None or _untouched(owned.get(at, [])))
        laid.append(
            replace(piece, begins_s=begins_s, ends_s=ends_s, work=work_s, late=late, whole=whole)
        )
    for at, kind in ((-1, InstructionKind.OTHER), (len(pieces), InstructionKind.OPTIMIZER)):
        mine, _ = _together([one for one in owned.get(at, []) if one.stream in homes], main)
        if work_s := _spans(mine):
            whole = _untouched(owned[at])
            laid.append(
                PassRun(work_s[0][0], work_s[0][0], work_s[-1][1], kind, work=work_s, whole=whole)
            )
        elif any(one.lost and one.pass_ is Pass.OPTIMIZER for one in owned.get(at, [])) and laid:
            end_s = laid[-1].ends_s
            laid.append(PassRun(end_s, end_s, end_s, kind, whole=False))
    laid.sort(key=lambda each: (each.begins_s, each.asked_s))
    for at in range(1, len(laid)):  # the part that overlaps the one before is hidden by it
        begins_s = max(laid[at].begins_s, laid[at - 1].ends_s)
        ends_s = max(begins_s, laid[at].ends_s)
        inside = tuple((max(begins_s, b), e) for b, e in laid[at].late if e > begins_s)
        laid[at] = replace(laid[at], begins_s=begins_s, ends_s=ends_s, late=inside)
    return tuple(laid)


def _untouched(work: Sequence[Activity]) -> bool:
    return all(not one.lost and all(one.known) for one in work)


def _together(work: Sequence[Activity], main: int) -> tuple[list[Activity], bool]:
    """Return a piece's work from its stream's first to its last, and whether both are known."""
    timed = [one for one in work if not one.lost]
    if not timed:
        return [], not work
    taken_s = Counter[int]()
    for one in timed:
        taken_s[one.stream] += one.ends_s - one.begins_s  # type: ignore[assignment]
    stream = main if main in taken_s else max(taken_s, key=lambda each: taken_s[each])
    mine = [one for one in work if one.lost or one.stream == stream]
    begins_s = min(one.begins_s for one in timed if one.stream == stream)
    ends_s = max(one.ends_s for one in timed if one.stream == stream)
    inside = [
        replace(one, begins_s=max(one.begins_s, begins_s), ends_s=min(one.ends_s, ends_s))
        if one.begins_s < begins_s or one.ends_s > ends_s
        else one
        for one in timed
        if one.stream == stream or (one.begins_s < ends_s and one.ends_s > begins_s)
    ]
    first, last = mine[0], mine[-1]
    return inside, not (first.lost or last.lost) and first.known[0] and last.known[1]


def _spans(work: Sequence[Activity]) -> tuple[_Span, ...]:
    return merged([(one.begins_s, one.ends_s) for one in work])


def merged(spans: Sequence[_Span]) -> tuple[_Span, ...]:
    """Return spans in order, those that touch as one."""
    found: list[_Span] = []
    for begins_s, ends_s in sorted(spans):
        if found and begins_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ends_s)
        else:
            found.append((begins_s, ends_s))
    return tuple(found)
