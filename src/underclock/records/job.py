"""A job of many GPUs: what every rank does in one iteration, and who waits for whom.

A rank runs its instructions in order, those of each of its streams by themselves. An instruction
begins when the one before it in its stream has ended and everything that it waits for has. Where
several ranks meet (a transfer that blocks both sides, a collective), all begin when the last of
them is there, and end together. The iteration ends when every rank has ended.
"""

import math
from collections import Counter
from enum import StrEnum
from itertools import pairwise

import msgspec

from underclock.records.answers import job_answer
from underclock.records.choices import ChosenArm, Cost, Segment, Strategy
from underclock.records.common import (
    SCHEMAS,
    AtLeastOne,
    Budget,
    Clocks,
    Evidence,
    Mhz,
    NotNegative,
    Number,
    Positive,
    Record,
    ShownRecord,
)
from underclock.records.samples import GpuInfo


class InstructionKind(StrEnum):
    """What an instruction does."""

    LOAD = "load"  # brings the data of a microbatch
    FORWARD = "forward"
    BACKWARD = "backward"  # of inputs alone where a schedule splits it
    WEIGHTS = "weights"  # gradients of weights, where a schedule splits them off
    RECOMPUTE = "recompute"  # activations again, before a backward
    REST = "rest"  # of the pass before it, from where an overlap began
    SEND = "send"
    RECEIVE = "receive"
    COLLECTIVE = "collective"
    COPY = "copy"  # between host and GPU, or within it, overlapping passes
    OPTIMIZER = "optimizer"
    OTHER = "other"


TALKS = frozenset({InstructionKind.SEND, InstructionKind.RECEIVE, InstructionKind.COLLECTIVE})
"""Kinds in which a rank communicates."""
_EACH = {InstructionKind.FORWARD, InstructionKind.BACKWARD, InstructionKind.WEIGHTS}
COMPUTES = frozenset({*_EACH, InstructionKind.RECOMPUTE, InstructionKind.REST})
"""Kinds that belong to one microbatch each; of ``_EACH`` a rank that has one has all."""


class ProfileRow(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One way to run an instruction."""

    core_mhz: Mhz | None = None  # ``None`` is auto, as of memory
    mem_mhz: Mhz | None = None
    time_s: Positive
    # of the whole instruction on one GPU; ``None`` where only time is known
    energy_j: Positive | None
    time_error_s: NotNegative = 0.0  # standard error of ``time_s``
    energy_error_j: NotNegative = 0.0  # standard error of ``energy_j``
    # where clocks change inside it: stretches of its launches; else it runs at one pair
    inside: tuple[Segment, ...] = ()

    @property
    def clocks(self) -> Clocks:
        """The pair that it runs at, or begins with."""
        if self.inside:
            return self.inside[0].clocks
        return Clocks(core_mhz=self.core_mhz, mem_mhz=self.mem_mhz)

    def scaled(self, ratio: float) -> "ProfileRow":
        """Return a row that takes so many times as long, and as much."""
        return msgspec.structs.replace(
            self,
            time_s=ratio * self.time_s,
            energy_j=None if self.energy_j is None else ratio * self.energy_j,
            time_error_s=ratio * self.time_error_s,
            energy_error_j=ratio * self.energy_error_j,
        )


def part_of(name: str, share: float) -> str:
    """Return the profile's name of a part of what has a profile."""
    return f"{name}, {share:.1%} of it"


def whole_of(name: str) -> str:
    """Return the profile's name of what something is a part of."""
    return name.partition(", ")[0]


class Profile(Record, frozen=True, kw_only=True):
    """What equal instructions cost at every clock that was measured."""

    rows: tuple[ProfileRow, ...]  # ways to run it, as measured: some may be slower and dearer
    auto: int  # which row is auto: what runs where nothing is set

    def __post_init__(self) -> None:
        if not self.rows or not 0 <= self.auto < len(self.rows):
            raise ValueError(f"row {self.auto} of {len(self.rows)} cannot be auto")
        plain = Counter(row.clocks for row in self.rows if not row.inside)
        for clocks, count in plain.items():
            if count > 1:
                raise ValueError(f"a profile has {clocks} {count} times")

    @property
    def has_energy(self) -> bool:
        """Whether every row says what it takes of energy."""
        return all(row.energy_j is not None for row in self.rows)


class Instruction(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a rank does in an iteration."""

    kind: InstructionKind  # what it does
    # which it belongs to; ``None`` where it belongs to the iteration
    microbatch: Number | None = None
    chunk: Number = 0  # which of the rank's pieces of the model
    # name of what it costs at each clock; ``None`` where clocks do not matter to it
    profile: str | None = None
    # what it takes where it has no profile, once all ranks that it meets are there
    time_s: NotNegative | None = None
    # what a rank draws in it where it has no profile; ``None`` for what waiting draws
    power_w: NotNegative | None = None
    # instructions of other ranks with the same number begin and end with it
    meeting: int | None = None
    stream: Number = 0  # instructions of different streams of a rank run side by side

    def __post_init__(self) -> None:
        if (self.profile is None) == (self.time_s is None):
            raise ValueError(f"a {self.kind} has a profile or a time of its own, one of them")
        if self.profile is not None and (self.meeting is not None or self.power_w is not None):
            raise ValueError(f"a {self.kind} with a profile has no meeting and no power")
        if self.kind in COMPUTES and self.microbatch is None:
            raise ValueError(f"a {self.kind} belongs to a microbatch")

    def __str__(self) -> str:
        chunk = f" of chunk {self.chunk}" if self.chunk else ""
        batch = "" if self.microbatch is None else f" of microbatch {self.microbatch}"
        return f"{self.kind}{chunk}{batch}"


class Waiting(Record, frozen=True, kw_only=True):
    """What a rank draws while it waits, with its core at a clock; ``None`` is auto."""

    core_mhz: Mhz | None = None
    power_w: NotNegative


class Rank(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a job."""

    stage: Number  # of the pipeline, as the other indices are of other ways to be parallel
    data: Number = 0
    tensor: Number = 0
    sequence: Number = 0
    gpu: GpuInfo | None = None  # what it runs on; ``None`` for what the job says
    waiting: tuple[Waiting, ...]  # what it draws while it waits, lowest clock first, auto last
    instructions: tuple[Instruction, ...]  # of one iteration; those of one stream run in this order

    def __post_init__(self) -> None:
        if not self.instructions:
            raise ValueError("a rank has something to do")
        clocks = [math.inf if each.core_mhz is None else each.core_mhz for each in self.waiting]
        if not clocks or clocks[-1] != math.inf or any(a >= b for a, b in pairwise(clocks)):
            raise ValueError("what waiting draws is listed from the lowest clock to auto")

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where in the job it is: stage, data, tensor and sequence index."""
        return self.stage, self.data, self.tensor, self.sequence

    def waiting_w(self, core_mhz: int | None) -> float:
        """Return what waiting draws with the core at a clock, by the line between those listed."""
        last = self.waiting[-1]
        if core_mhz is None or len(self.waiting) == 1:
            return last.power_w
        held = [(each.core_mhz or 0, each.power_w) for each in self.waiting[:-1]]
        if core_mhz <= held[0][0]:
            return held[0][1]
        for (low_mhz, low_w), (high_mhz, high_w) in pairwise(held):
            if core_mhz <= high_mhz:
                share = (core_mhz - low_mhz) / (high_mhz - low_mhz)
                return low_w + share * (high_w - low_w)
        return held[-1][1]


class Wait(Record, frozen=True, array_like=True):
    """An instruction begins no earlier than ``lag_s`` after one of another rank or stream ended."""

    rank: int  # of the one that waits, as an index into the job's ranks
    instruction: int  # which of that rank's
    on_rank: int  # of the one that it waits for
    on_instruction: int  # which of that rank's
    lag_s: NotNegative = 0.0  # what a transfer between them takes


class Job(ShownRecord, frozen=True, kw_only=True, tag_field="kind", tag="job"):
    """One iteration of a job of many GPUs.

    Attributes:
        gpu: The model that ranks run on where they do not say another.
        workload: What is trained.
        schedule: Name of the pipeline schedule, such as ``1f1b``; ``traced`` where it was seen.
        microbatches: That each pipeline takes in one iteration.
        ranks: In the order of the job's ranks.
        waits: Who waits for whom, meetings apart.
        profiles: What instructions cost, by name.
        warnings: What a reader must know of how it came about.
    """

    schema: int = SCHEMAS["job"]
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    schedule: str
    microbatches: AtLeastOne
    ranks: tuple[Rank, ...]
    waits: tuple[Wait, ...] = ()
    profiles: dict[str, Profile]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("a job has ranks")
        for place, count in Counter(rank.place for rank in self.ranks).items():
            if count > 1:
                raise ValueError(f"stage, data, tensor and sequence {place} is {count} ranks")
        for rank in self.ranks:
            for each in rank.instructions:
                if each.profile is not None and each.profile not in self.profiles:
                    raise ValueError(f"no profile is called {each.profile!r}")
                if each.microbatch is not None and each.microbatch >= self.microbatches:
                    raise ValueError(f"{each} is beyond the job's {self.microbatches} microbatches")
        for wait in self.waits:
            for at, which in (
                (wait.rank, wait.instruction),
                (wait.on_rank, wait.on_instruction),
            ):
                if not (
                    0 <= at < len(self.ranks) and 0 <= which < len(self.ranks[at].instructions)
                ):
                    raise ValueError(
                        f"a wait names instruction {which} of rank {at}: there is none"
                    )
        self._check_microbatches()
        self._check_meetings()

    def _check_microbatches(self) -> None:
        for at, rank in enumerate(self.ranks):
            done = Counter(
                (each.kind, each.chunk, each.microbatch)
                for each in rank.instructions
                if each.kind in COMPUTES
            )
            for (kind, chunk, _), count in done.items():
                if count > 1 and kind is not InstructionKind.REST:
                    raise ValueError(f"rank {at} runs a {kind} of chunk {chunk} {count} times")
            per_pass = Counter((kind, chunk) for kind, chunk, _ in done)
            for (kind, chunk), count in per_pass.items():
                if kind in _EACH and count != self.microbatches:
                    raise ValueError(
                        f"rank {at} takes {count} of {self.microbatches} microbatches through the "
                        f"{kind} of chunk {chunk}"
                    )

    def _check_meetings(self) -> None:
        met: dict[int, list[tuple[int, Instruction]]] = {}
        for at, rank in enumerate(self.ranks):
            for each in rank.instructions:
                if each.meeting is not None:
                    met.setdefault(each.meeting, []).append((at, each))
        for members in met.values():
            at, first = members[0]
            kinds = Counter(each.kind for _, each in members)
            sends, receives = kinds[InstructionKind.SEND], kinds[InstructionKind.RECEIVE]
            if sends != receives:
                missing = "receive" if sends > receives else "send"
                raise ValueError(f"the {first} of rank {at} meets no {missing}")
            if len(members) == 1:
                raise ValueError(f"the {first} of rank {at} has a meeting of its own")
            if len({rank for rank, _ in members}) < len(members):
                raise ValueError(f"rank {at} meets itself in its {first}")

    def gpu_of(self, rank: int) -> GpuInfo:
        """Return what a rank runs on."""
        return self.ranks[rank].gpu or self.gpu

    @property
    def instructions(self) -> int:
        """How many all ranks run in an iteration."""
        return sum(len(rank.instructions) for rank in self.ranks)

    @property
    def has_energy(self) -> bool:
        """Whether what instructions take of energy is known."""
        return bool(self.profiles) and all(each.has_energy for each in self.profiles.values())

    @property
    def _facts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("schedule", self.schedule),
            ("ranks", str(len(self.ranks))),
            ("microbatches", str(self.microbatches)),
            ("instructions", str(self.instructions)),
        )


class Held(Record, frozen=True, array_like=True):
    """How an instruction is run: by one row of its profile, or by one row after another."""

    row: int  # of its profile
    then: int | None = None  # row of the rest of it; ``None`` where all of it runs by ``row``
    # of the instruction's work done by ``row``: it takes ``share`` of that row's time and energy,
    # and the rest of ``then``'s
    share: float = 1.0

    def __post_init__(self) -> None:
        if (self.then is None) != (self.share == 1.0) or not 0.0 < self.share <= 1.0:
            raise ValueError(f"a share of {self.share} with {self.then} to follow")

    @property
    def parts(self) -> tuple[tuple[int, float], ...]:
        """Rows that it is run by, one after the other, and which share of the work each does."""
        if self.then is None:
            return ((self.row, self.share),)
        return (self.row, self.share), (self.then, 1.0 - self.share)


RankClocks = tuple[Held | None, ...]
"""How a rank runs each of its instructions; ``None`` for those without a profile."""


class Span(Record, frozen=True, kw_only=True):
    """When a rank runs an instruction, or a part of it at one clock."""

    rank: int  # as an index into the job's ranks
    stream: int  # of that rank
    what: str  # the instruction in words
    has_profile: bool  # whether clocks matter to it
    core_mhz: int | None  # what it runs at; ``None`` is auto, or unknown
    begins_s: float  # from where the iteration begins
    ends_s: float


class JobPoint(Record, frozen=True, kw_only=True):
    """A plan of the stored frontier."""

    cost: Cost  # of one iteration, all ranks together
    gap: NotNegative | None  # how far its energy may be from the least at this time, as a fraction
    clocks: tuple[RankClocks, ...]  # of each rank


class JobPlan(ChosenArm, frozen=True, kw_only=True, tag_field="kind", tag="job plan"):
    """Clocks for every instruction of every rank, and what they promise.

    Attributes:
        job: What it is for.
        max_slowdown: Time budget of the iteration, as a fraction above auto.
        confidence: With which the budget holds, boards and times scattering as assumed.
        latency_s: What a change of clocks takes, at most.
        board_spread: Standard deviation of boards' speed that was allowed for, as a fraction.
        clocks: Of each rank, of the chosen arm.
        frontier: Plans of the chosen kind over iteration time, fastest first; the chosen one is
            among them.
        version: Of the program that planned; ``None`` when unknown.
    """

    schema: int = SCHEMAS["job plan"]
    evidence: Evidence
    job: Job
    max_slowdown: Budget
    confidence: float = 0.95
    latency_s: NotNegative = 0.0
    board_spread: NotNegative = 0.0
    clocks: tuple[RankClocks, ...]
    frontier: tuple[JobPoint, ...] = ()
    version: str | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        costs = {str(arm.name): arm.cost for arm in self.arms}
        if len(costs) < len(self.arms):
            raise ValueError("every arm is compared once")
        for name in (Strategy.AUTO, self.chosen):
            if costs.get(name) is None:
                raise ValueError(f"the arm {name!r} has no costs")
        for clocks in (self.clocks, *(point.clocks for point in self.frontier)):
            # Reject clocks for other instructions than the job's, and rows that profiles lack.
            if len(clocks) != len(self.job.ranks):
                raise ValueError(f"clocks of {len(clocks)} ranks for {len(self.job.ranks)}")
            for at, (held, rank) in enumerate(zip(clocks, self.job.ranks, strict=True)):
                if len(held) != len(rank.instructions):
                    raise ValueError(f"rank {at} has clocks for another number of instructions")
                for each, instruction in zip(held, rank.instructions, strict=True):
                    if (each is None) != (instruction.profile is None):
                        raise ValueError(f"the {instruction} of rank {at}: a profile and no clocks")
                    if each is not None and instruction.profile is not None:
                        rows = len(self.job.profiles[instruction.profile].rows)
                        if not 0 <= each.row < rows or not 0 <= (each.then or 0) < rows:
                            raise ValueError(f"the {instruction} of rank {at} has no such row")
        times = [point.cost.time_s for point in self.frontier]
        if any(a > b for a, b in pairwise(times)):
            raise ValueError("a frontier goes from fast to slow")

    @property
    def gpu(self) -> GpuInfo:
        """The model that it is for."""
        return self.job.gpu

    @property
    def workload(self) -> str:
        """What is trained."""
        return self.job.workload

    @property
    def answer(self) -> tuple[str, str, str]:
        """What it saves, what that costs in time, and how sure both are."""
        return job_answer(self)
