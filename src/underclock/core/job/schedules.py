"""Pipeline schedules by name: what each stage does in which order, and who waits for whom.

* ``gpipe``: every forward, then every backward (Huang et al., 2019).
* ``1f1b``: a stage runs ahead by as many forwards as stages follow it, then a forward and a
  backward in turn (PipeDream-Flush, Narayanan et al., 2021).
* ``interleaved``: the same with several pieces of the model on each rank (Megatron-LM, Narayanan
  et al., SC'21).
* ``zero-bubble``: gradients of weights fill what would be waiting (ZB-H1, Qi et al., 2024): no rank
  has more microbatches in flight than the first has in ``1f1b``.

A piece of the model is a virtual stage: with S ranks, chunk c of rank s is virtual stage c S + s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records import Evidence, GpuInfo
from underclock.records.job import Instruction, InstructionKind, Job, Profile, Rank, Wait, Waiting
from underclock.units import name_hint

FORWARD, BACKWARD, WEIGHTS = (
    InstructionKind.FORWARD,
    InstructionKind.BACKWARD,
    InstructionKind.WEIGHTS,
)
_Task = tuple[InstructionKind, int, int]
"""What is done, of which microbatch, of which chunk."""
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
_RENDEZVOUS = {"1f1b", "gpipe"}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a job is laid out over ranks."""

    stages: int  # ranks of one pipeline
    microbatches: int  # that a pipeline takes in one iteration
    chunks: int = 1  # pieces of the model on each rank
    data: int = 1  # pipelines that train together
    tensor: int = 1  # ranks that share each stage
    # what moving a microbatch over each boundary between stages takes; one number is of every
    # boundary, none is no time at all
    transfer_s: tuple[float, ...] = ()
    load_s: float = 0.0  # what bringing a microbatch's data takes on the first stage
    reduce_s: float = 0.0  # what summing gradients over pipelines takes at the end

    def __post_init__(self) -> None:
        for name in ("stages", "microbatches", "chunks", "data", "tensor"):
            if getattr(self, name) < 1:
                raise UsageError(f"a job has one or more {name}, not {getattr(self, name)}")
        times = (*self.transfer_s, self.load_s, self.reduce_s)
        if not all(0.0 <= each_s < 1e9 for each_s in times):  # noqa: PLR2004 - 30 years
            raise UsageError(f"times are not negative, got {min(times)} s")
        if len(self.transfer_s) not in {0, 1, self.stages - 1}:
            raise UsageError(
                f"{len(self.transfer_s)} transfer times for {self.stages - 1} boundaries",
                hint="give one for all, or one per boundary: --transfer 5ms,43ms,5ms",
            )

    def transfer_between_s(self, stage: int, other: int) -> float:
        """Return what a transfer between two stages takes; from last to first as the slowest."""
        if not self.transfer_s:
            return 0.0
        if len(self.transfer_s) == 1:
            return self.transfer_s[0]
        return (
            self.transfer_s[min(stage, other)] if abs(stage - other) == 1 else max(self.transfer_s)
        )


def pipeline(
    schedule: str,
    shape: Layout,
    profiles: Mapping[str, Profile],
    *,
    waiting: Mapping[int, tuple[Waiting, ...]],
    gpu: GpuInfo,
    workload: str,
    evidence: Evidence = Evidence.REPLAYED,
) -> Job:
    """Lay out one iteration of a pipeline.

    Args:
        profiles: ``stage 0 forward``, ``stage 0 backward`` and so on; per virtual stage or per
            rank, whose chunks then share it evenly. With ``weights``, ``recompute`` and
            ``optimizer`` given too, these are instructions of their own.
        waiting: What ranks of each stage draw while they wait.

    Raises:
        UsageError: There is no such schedule, or not of this shape.
        DataError: A stage lacks a profile.
    """
    if schedule not in SCHEDULES:
        raise UsageError(f"there is no schedule {schedule!r}", hint=name_hint(schedule, SCHEDULES))
    if (shape.chunks > 1) != (schedule == "interleaved"):
        raise UsageError(
            f"{schedule} with {shape.chunks} chunks a rank",
            hint="interleaved has two or more (--chunks 2), other schedules have one",
        )
    named = _Profiles(dict(profiles), shape, splits=schedule == "zero-bubble")
    orders = [_ORDERS[schedule](shape, stage) for stage in range(shape.stages)]
    ranks: list[Rank] = []
    places: list[dict[_Task, int]] = []
    for replica, tensor in product(range(shape.data), range(shape.tensor)):
        for stage, order in enumerate(orders):
            line = _Line(shape, stage, named, schedule, replica=replica * shape.tensor + tensor)
            for task in order:
                line.add(task)
            line.end(tensor)
            places.append(line.places)
            ranks.append(
                Rank(
                    stage=stage,
                    data=replica,
                    tensor=tensor,
                    waiting=waiting[stage],
                    instructions=tuple(line.instructions),
                )
            )
    return Job(
        evidence=evidence,
        gpu=gpu,
        workload=workload,
        schedule=schedule,
        microbatches=shape.microbatches,
        ranks=tuple(ranks),
        waits=() if _meets(schedule, shape) else tuple(_waits(shape, ranks, places)),
        profiles=named.used,
        warnings=tuple(named.warnings),
    )


def _gpipe(shape: Layout, stage: int) -> list[_Task]:
    del stage
    every = range(shape.microbatches)
    return [*((FORWARD, m, 0) for m in every), *((BACKWARD, m, 0) for m in every)]


def _one_forward_one_backward(shape: Layout, stage: int) -> list[_Task]:
    count = shape.microbatches
    ahead = min(shape.stages - 1 - stage, count)  # forwards before the first backward may follow
    order: list[_Task] = [(FORWARD, m, 0) for m in range(ahead)]
    for m in range(ahead, count):
        order += [(FORWARD, m, 0), (BACKWARD, m - ahead, 0)]
    return [*order, *((BACKWARD, m, 0) for m in range(count - ahead, count))]


def _interleaved(shape: Layout, stage: int) -> list[_Task]:
    if shape.microbatches % shape.stages:
        raise UsageError(
            f"{shape.microbatches} microbatches on {shape.stages} stages cannot be interleaved",
            hint="their number must be a multiple of the stages",
        )
    total = shape.microbatches * shape.chunks
    ahead = min(2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages, total)

    def task(kind: InstructionKind, turn: int) -> _Task:
        group, within = divmod(turn, shape.stages * shape.chunks)
        chunk, m = divmod(within, shape.stages)
        if kind is BACKWARD:
            chunk = shape.chunks - 1 - chunk
        return kind, group * shape.stages + m, chunk

    order = [task(FORWARD, turn) for turn in range(ahead)]
    for turn in range(ahead, total):
        order += [task(FORWARD, turn), task(BACKWARD, turn - ahead)]
    return [*order, *(task(BACKWARD, turn) for turn in range(total - ahead, total))]


def _zero_bubble(shape: Layout, stage: int) -> list[_Task]:
    """Return the order of ZB-H1: a later stage leaves its weights as many microbatches behind."""
    # So each runs ahead by as many forwards as in 1F1B, and backwards go on to the stage before at
    # once; the weights left behind fill the end.
    count = shape.microbatches
    ahead = min(shape.stages - stage, count)
    order: list[_Task] = [(FORWARD, m, 0) for m in range(ahead)]
    for m in range(count):
        order.append((BACKWARD, m, 0))
        if m >= stage:
            order.append((WEIGHTS, m - stage, 0))
        if m + ahead < count:
            order.append((FORWARD, m + ahead, 0))
    return [*order, *((WEIGHTS, m, 0) for m in range(max(0, count - stage), count))]


_ORDERS = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
}


@dataclass
class _Profiles:
    """Which profile an instruction has; chunks that share a rank's are an even part of it."""

    given: dict[str, Profile]
    shape: Layout
    splits: bool
    used: dict[str, Profile] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    def name(self, kind: InstructionKind, stage: int, chunk: int) -> str | None:
        """Return a profile's name; ``None`` where nothing like it was given."""
        shape = self.shape
        virtual = chunk * shape.stages + stage
        per_chunk = shape.chunks > 1 and f"stage {shape.stages} forward" in self.given
        name = f"stage {virtual if per_chunk else stage} {kind}"
        split = self.splits and f"stage {stage} {WEIGHTS}" not in self.given
        source = f"stage {stage} {BACKWARD}" if split and kind is WEIGHTS else name
        if source not in self.given:
            if kind in {FORWARD, BACKWARD, WEIGHTS}:
                raise DataError(
                    f"there is no profile of {source!r}",
                    hint=f"profiles are of {', '.join(sorted(self.given)[:4])} …: as many stages "
                    "as --stages says (times --chunks, where chunks have their own)",
                )
            return None
        parts = 1 if per_chunk or shape.chunks == 1 else shape.chunks
        if split and kind in {BACKWARD, WEIGHTS}:
            parts = 2
            words = "no profile is of weights: half of each backward is taken for them, assumed"
            self.warnings[words] = None
        elif parts > 1:
            words = f"a chunk is taken for one of {parts} even parts of its rank's stage, assumed"
            self.warnings[words] = None
        if name not in self.used:
            profile = self.given[source]
            rows = (row.scaled(1.0 / parts) for row in profile.rows if not row.inside)
            self.used[name] = (
                profile if parts == 1 else msgspec.structs.replace(profile, rows=tuple(rows))
            )
        return name


def _meets(schedule: str, shape: Layout) -> bool:
    return schedule in _RENDEZVOUS and any(shape.transfer_s)


class _Line:
    """The instructions of one rank as they are laid out."""

    def __init__(
        self, shape: Layout, stage: int, profiles: _Profiles, schedule: str, *, replica: int
    ) -> None:
        self._shape, self._stage, self._profiles = shape, stage, profiles
        self._replica = replica  # meetings of each are numbered apart
        self._meets = _meets(schedule, shape)
        self._together = schedule == "1f1b"  # forward and backward may cross a boundary at once
        self._last: _Task | None = None
        self.instructions: list[Instruction] = []
        self.places: dict[_Task, int] = {}

    def add(self, task: _Task) -> None:
        """Add a task, with what is moved before it."""
        kind, m, chunk = task
        self._transfers(task)
        if kind is FORWARD and self._stage == 0 and chunk == 0 and self._shape.load_s:
            load_s = self._shape.load_s
            self.instructions.append(
                Instruction(kind=InstructionKind.LOAD, microbatch=m, time_s=load_s)
            )
        for does in (InstructionKind.RECOMPUTE, kind) if kind is BACKWARD else (kind,):
            name = self._profiles.name(does, self._stage, chunk)
            if name is not None:
                self.places[task] = len(self.instructions)  # of the last, which is its own
                self.instructions.append(
                    Instruction(kind=does, microbatch=m, chunk=chunk, profile=name)
                )

    def end(self, tensor: int) -> None:
        """Add what follows the last task: its transfer, the sum of gradients, the optimizer."""
        self._transfers(None)
        if self._shape.data > 1 and self._shape.reduce_s:
            meeting = -1 - (tensor * self._shape.stages + self._stage)
            reduce_s, kind = self._shape.reduce_s, InstructionKind.COLLECTIVE
            self.instructions.append(Instruction(kind=kind, time_s=reduce_s, meeting=meeting))
        name = self._profiles.name(InstructionKind.OPTIMIZER, self._stage, 0)
        if name is not None:
            self.instructions.append(Instruction(kind=InstructionKind.OPTIMIZER, profile=name))

    def _transfers(self, after: _Task | None) -> None:
        """Add what is sent after the last task and received before the next."""
        # In the steady part of 1F1B a forward that goes out and the backward that comes in over the
        # same boundary are one transfer: else two stages would each wait for the other to receive.
        before, self._last = self._last, after
        if not self._meets:
            return
        out, into = self._boundary(before, out=True), self._boundary(after, out=False)
        if out is not None and into is not None and out[0] == into[0] and self._together:
            forward, backward = sorted((out[1], into[1]), key=lambda task: task[0] is BACKWARD)
            if forward[1] - backward[1] == self._shape.stages - 1 - out[0]:
                self._transfer(out[0], forward)
                return
        for boundary in (out, into):
            if boundary is not None:
                self._transfer(*boundary)

    def _boundary(self, task: _Task | None, *, out: bool) -> tuple[int, _Task] | None:
        """Return the boundary over which a task's result goes, or its input comes, and the task."""
        # Forwards go on to the next stage, all else to the one before; ``None`` where there is
        # none.
        if task is None:
            return None
        boundary = self._stage if (task[0] is FORWARD) == out else self._stage - 1
        return (boundary, task) if 0 <= boundary < self._shape.stages - 1 else None

    def _transfer(self, boundary: int, task: _Task) -> None:
        kind, m, _ = task
        link = (self._replica * self._shape.stages + boundary) * 2 + (kind is FORWARD)
        meeting = link * self._shape.microbatches + m
        sends = (boundary == self._stage) == (kind is FORWARD)
        time_s = self._shape.transfer_between_s(boundary, boundary + 1)
        way = InstructionKind.SEND if sends else InstructionKind.RECEIVE
        self.instructions.append(
            Instruction(kind=way, microbatch=m, time_s=time_s, meeting=meeting)
        )


def _waits(shape: Layout, ranks: list[Rank], places: list[dict[_Task, int]]) -> list[Wait]:
    """Return the waits between passes of stages whose transfers block neither side."""
    last = shape.stages * shape.chunks - 1
    at = {rank.place: i for i, rank in enumerate(ranks)}
    waits = []
    for i, rank in enumerate(ranks):
        for (kind, m, chunk), place in places[i].items():
            virtual = chunk * shape.stages + rank.stage
            on = virtual - 1 if kind is FORWARD else virtual + 1
            if kind is WEIGHTS or not 0 <= on <= last:
                continue
            on_chunk, on_stage = divmod(on, shape.stages)
            for tensor in range(shape.tensor):
                other = at[on_stage, rank.data, tensor, 0]
                if other == i:
                    continue  # one stage alone: its own order says it
                lag_s = shape.transfer_between_s(rank.stage, on_stage)
                waits.append(Wait(i, place, other, places[other][kind, m, on_chunk], lag_s))
    return waits
