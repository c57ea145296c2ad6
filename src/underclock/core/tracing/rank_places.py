"""Where each rank stands in its job, and which pass of which microbatch its pieces are."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from underclock.core.tracing.rank_passes import HOW_TO_MARK, SAME_S, PassRun, merged
from underclock.core.tracing.rank_trace import RankIteration, RankTrace
from underclock.errors import DataError
from underclock.records.job import InstructionKind

Task = tuple[InstructionKind, int, int]
"""Kind, stage of the whole pipeline, microbatch."""
_DIGITS = 3  # of the part of a pass that is done
_SHARED = ("data", "tensor", "sequence")


class Overlap(NamedTuple):
    """A collective or a copy that overlaps pieces."""

    begins_s: float  # when it began here
    ends_s: float  # when it ended here
    until_s: float  # when what waits for it began; infinite where nothing does
    stream: int  # that it runs in
    meets: bool  # whether it is a collective
    meeting: int = -1  # its number


class LaidItem(NamedTuple):
    """One of a rank's instructions: a part of a piece, a meeting after it, or an overlap."""

    at: int  # which piece
    share: float = 1.0  # of it, where it is a part of it
    done: float = 0.0  # how much of the piece was done before that part
    meeting: int | None = None  # number of the meeting after the piece, else ``None``
    overlap: Overlap | None = None  # work of a further stream; ``None`` for the first stream


class PlacedRank:
    """One rank's step, with its place in the job.

    Attributes:
        index: Among the job's ranks.
        pipeline: Number of the one that it is in; ``stage`` is its place there.
        tasks: Of each piece; ``None`` for what belongs to no microbatch.
        time_s: Of each piece, without what it waited inside.
        after: Meetings that follow each piece; -1 is before the first.
        overlaps: Work that began during or after each piece and is waited for later.
        waited: When each piece waited for those; once settled, for its host too.
    """

    def __init__(self, index: int, trace: RankTrace, step: RankIteration) -> None:
        self.index, self.trace, self.step = index, trace, step
        self.pipeline = self.stage = 0
        self.tasks, self.time_s = list[Task | None](), list[float]()
        self.after: dict[int, list[int]] = defaultdict(list)
        self.overlaps: dict[int, list[Overlap]] = defaultdict(list)
        self.waited: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._gone_s: dict[int, list[float]] = {}

    @property
    def pieces(self) -> tuple[PassRun, ...]:
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

    def settle(self) -> None:
        """Subtract waits for the host and for overlaps from the durations of pieces."""
        for at, piece in enumerate(self.pieces):
            late = piece.late if piece.microbatch is not None else ()
            spans = [span for span in merged([*late, *self.waited[at]]) if span[1] > span[0]]
            self.waited[at] = spans
            self._gone_s[at] = [0.0, *accumulate(end - begin for begin, end in spans)]
            self.time_s[at] -= self._gone_s[at][-1]

    def at(self, moment_s: float) -> int:
        """Return the piece that began last by then; -1 before the first."""
        return bisect_right(self.begins_s, moment_s + SAME_S) - 1

    def done(self, at: int, moment_s: float) -> float:
        """Return the share of a piece done by then; without a microbatch it has no parts."""
        piece = self.pieces[at]
        if moment_s >= piece.ends_s - SAME_S:
            return 1.0
        if piece.microbatch is None:
            return 0.0
        waited, gone_s = self.waited[at], self._gone_s[at]
        begun = bisect_left(waited, (moment_s,))
        over_s = max(0.0, waited[begun - 1][1] - moment_s) if begun else 0.0
        whole_s = piece.ends_s - piece.begins_s - gone_s[-1]
        share = (moment_s - piece.begins_s - (gone_s[begun] - over_s)) / max(whole_s, SAME_S)
        return round(min(max(share, 0.0), 1.0), _DIGITS)

    @cached_property
    def items(self) -> list[LaidItem]:
        """The rank's instructions in order, once its meetings are known."""
        # Where each piece is cut: where an overlap begins, or is waited for.
        cuts = defaultdict[int, set[float]](lambda: {0.0, 1.0})
        for at, some in self.overlaps.items():
            cuts[at].update(self.done(at, each.begins_s) for each in some if at >= 0)
            for each in some:
                if each.until_s < self.ends_s[-1] and (later := self.at(each.until_s)) >= 0:
                    cuts[later].add(self.done(later, each.until_s))
        items = list[LaidItem]()
        for at in range(-1, len(self.pieces)):
            begun = deque(sorted(self.overlaps.get(at, ()), key=lambda each: each.begins_s))
            for done, following in pairwise(sorted(cuts[at]) if at >= 0 else ()):
                while begun and self.done(at, begun[0].begins_s) <= done:
                    items.append(LaidItem(at, overlap=begun.popleft()))
                items.append(LaidItem(at, round(following - done, _DIGITS), done))
            items += [LaidItem(at, overlap=each) for each in begun]
            items += [LaidItem(at, meeting=each) for each in self.after.get(at, ())]
        return items

    @cached_property
    def parts(self) -> dict[tuple[int, float], int]:
        """Which instruction is the part of a piece that begins where so much of it is done."""
        return {
            (item.at, item.done): i
            for i, item in enumerate(self.items)
            if item.meeting is None and item.overlap is None
        }

    def follower(self, overlap: Overlap) -> int | None:
        """Return the first instruction that waits for an overlap; ``None`` where none does."""
        if overlap.until_s >= self.ends_s[-1]:
            return None
        at = max(self.at(overlap.until_s), 0)
        done = self.done(at, overlap.until_s)
        return self.parts[at, done] if done < 1.0 else self.parts.get((at + 1, 0.0))

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Which of the rank's instructions are each piece's first and last part."""
        parts = defaultdict[int, list[int]](list)
        for (at, _), i in self.parts.items():
            parts[at].append(i)
        return [(parts[at][0], parts[at][-1]) for at in range(len(self.pieces))]


def placed_ranks(traces: Sequence[RankTrace], number: int) -> list[PlacedRank]:
    """Give every rank its place, and every piece its task, in a step."""
    ranks = [
        PlacedRank(at, each, next(step for step in each.steps if step.number == number))
        for at, each in enumerate(traces)
    ]
    for pipeline, members in enumerate(_pipelines(ranks)):
        stages = {
            each.index: [p.stage for p in each.pieces if p.stage is not None] for each in members
        }
        members.sort(key=lambda each: (min(stages[each.index], default=0), each.index))
        for at, each in enumerate(members):
            each.pipeline, each.stage = pipeline, at
    ids = sorted({p.microbatch for r in ranks for p in r.pieces if p.microbatch is not None})
    number_of = {each: at for at, each in enumerate(ids)}
    for rank in ranks:
        for piece in rank.pieces:
            # A piece outside all ranges may have waits between its parts: only its work counts.
            whole = piece.microbatch is not None
            spans = ((piece.begins_s, piece.ends_s),) if whole else piece.work
            rank.time_s.append(sum(ends_s - begins_s for begins_s, ends_s in spans))
            stage = rank.stage if piece.stage is None else piece.stage
            mb = None if piece.microbatch is None else number_of[piece.microbatch]
            rank.tasks.append(None if mb is None else (piece.kind, stage, mb))
    # Refuse ranks that do not take every microbatch through their passes once.
    count = len(ids)
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
    return ranks


def _pipelines(ranks: Sequence[PlacedRank]) -> list[list[PlacedRank]]:
    """Return ranks by pipeline: as groups say, else who sends to whom, else by their stages."""
    talk = any(each.step.messages for each in ranks)
    root = list(range(len(ranks)))

    def find(at: int) -> int:
        while root[at] != at:
            at = root[at]
        return at

    seen: Counter[frozenset[int | None]] = Counter()
    found: dict[object, list[PlacedRank]] = {}
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


def shared_indices(ranks: Sequence[PlacedRank]) -> list[tuple[int, int, int]]:
    """Return the data, tensor and sequence index of each rank, by its groups or its pipeline."""

    def index(rank: PlacedRank, what: str) -> int | None:
        group = rank.trace.groups.get(what, ())
        return group.index(rank.trace.rank) if rank.trace.rank in group else None

    indices = [
        (data or 0 if "data" in rank.trace.groups else rank.pipeline, tensor or 0, sequence or 0)
        for rank in ranks
        for data, tensor, sequence in ([index(rank, name) for name in _SHARED],)
    ]
    if len({(rank.stage, *each) for rank, each in zip(ranks, indices, strict=True)}) == len(ranks):
        return indices
    return [(rank.pipeline, 0, 0) for rank in ranks]
