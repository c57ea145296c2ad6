"""The nouns that stages hand to one another. Frozen, validated, JSON-friendly.

Reading order: what a number rests on (`Evidence`), what can be set (`Clocks`), what runs
(`Kernel`, `Step`), what was measured (`Sample`, `Profile`), what was decided (`Arm`, `Plan`) and
what became of it (`Score`, `Validation`). Every record that is a file of its own carries a
``schema`` number; a reader refuses a newer one.
"""

import hashlib
import math
from collections import Counter
from enum import StrEnum
from typing import Self

import msgspec

SCHEMA = 1


class Evidence(StrEnum):
    """Where a number comes from; a number never travels without it."""

    MEASURED = "measured"  # on this GPU, by us
    REPLAYED = "replayed"  # from a table somebody measured
    SIMULATED = "simulated"  # from a model of a GPU


class Pass(StrEnum):
    """The part of a training step that a kernel belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    OTHER = "other"


class Kind(StrEnum):
    """What a kernel mostly does: matrix products, or moving memory."""

    GEMM = "gemm"
    MEMORY = "mem"


class Objective(StrEnum):
    """What a plan minimises."""

    WASTE = "waste"  # energy, while total time stays within the budget
    EDP = "edp"  # energy x time
    ED2P = "ed2p"  # energy x time squared
    ENERGY = "energy"  # energy, whatever the time


class Granularity(StrEnum):
    """What gets clocks of its own."""

    KERNEL = "kernel"
    PASS = "pass"  # noqa: S105 - of a training step, not a password
    STEP = "step"  # one fixed clock pair for the whole step


class Aggregate(StrEnum):
    """Who keeps the time budget: all together, or each alone."""

    GLOBAL = "global"
    LOCAL = "local"


class Status(StrEnum):
    """How a choice came about; the value is the sentence shown to the user."""

    BASELINE = "baseline: nothing is set"
    GIVEN = "given: costed, not chosen"
    OPTIMAL = "optimal"
    BOUNDED = "feasible; optimal within the stated gap"
    INFEASIBLE = "no choice of clocks meets the time budget; raise it"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every record: immutable, unknown fields refused.

    Frozen and keyword-only are said again at each class: msgspec does not inherit the latter, nor
    type checkers the former.
    """


def _check_positive(record: Record, *names: str) -> None:
    """Reject zero, negative and non-finite quantities; ``None`` means unknown and passes."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")


class Clocks(Record, frozen=True, kw_only=True):
    """Clocks to hold on one GPU; ``None`` leaves that domain to the driver (auto).

    Attributes:
        core_mhz: Core (SM) clock.
        mem_mhz: Memory clock.
    """

    core_mhz: int | None = None
    mem_mhz: int | None = None

    def __post_init__(self) -> None:
        """Reject clocks no GPU can have."""
        _check_positive(self, "core_mhz", "mem_mhz")

    @property
    def is_auto(self) -> bool:
        """Whether both domains are left to the driver."""
        return self.core_mhz is None and self.mem_mhz is None

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key from slow to fast; auto counts as faster than any number."""
        return (
            math.inf if self.mem_mhz is None else self.mem_mhz,
            math.inf if self.core_mhz is None else self.core_mhz,
        )

    def __str__(self) -> str:
        core = "auto" if self.core_mhz is None else f"{self.core_mhz} MHz"
        mem = "auto" if self.mem_mhz is None else f"{self.mem_mhz} MHz"
        return f"core {core}, memory {mem}"


AUTO = Clocks()


class Launch(Record, frozen=True, kw_only=True):
    """How a traced kernel is launched, and by what: all that decides its cost but the GPU.

    Attributes:
        function: Demangled name of the GPU function; ``memset`` or ``copy`` where none runs.
        grid: Blocks in x, y, z.
        block: Threads of a block in x, y, z.
        shared_bytes: Dynamic shared memory of a block.
        attributes: Launch attributes that are not at their default, as text.
        operator: Innermost operator that launched it; empty when unknown.
        shapes: Its input tensors as ``dtype[sizes]``, strides added where they are not dense.
        module: Path of the module it ran for, every layer number a ``*``; empty when unknown.
        served_by: Memsets and copies that run before it on its behalf.
        identity: Hash under which equal invocations share measurements.
    """

    function: str
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    attributes: str = ""
    operator: str = ""
    shapes: str = ""
    module: str = ""
    served_by: tuple[str, ...] = ()
    identity: str


class Kernel(Record, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """One distinct kernel of a step and how often the step runs it.

    Attributes:
        name: Unique within its step.
        kind: What bounds it by design; ``None`` when unknown.
        pass_: Part of the step (``pass`` in files).
        section: Finer part of the step, in the workload's own words.
        shape: Problem size as text, e.g. ``6144x40960x2048``.
        count: Invocations per step.
        flops: Floating-point operations of one invocation; ``None`` when unknown.
        bytes_moved: Least bytes of DRAM traffic of one invocation; ``None`` when unknown.
        launch: How a traced kernel is launched; ``None`` for one known by its sizes only.
    """

    name: str
    kind: Kind | None = None
    pass_: Pass = Pass.OTHER
    section: str = ""
    shape: str = ""
    count: int = 1
    flops: float | None = None
    bytes_moved: float | None = None
    launch: Launch | None = None

    def __post_init__(self) -> None:
        """Reject nameless kernels and impossible quantities."""
        if not self.name:
            raise ValueError("a kernel needs a name")
        _check_positive(self, "count", "bytes_moved")
        if self.flops is not None and not (self.flops >= 0 and math.isfinite(self.flops)):
            raise ValueError(f"flops must be finite and not negative, got {self.flops}")


class Step(Record, frozen=True, kw_only=True):
    """The kernels of one training step.

    Attributes:
        name: Workload name.
        kernels: Distinct kernels, in order of first launch.
        order: The launch sequence, as indices into ``kernels``.
        parameters: What the workload was built with (batch, sequence, …).
        source: ``FILE.py:FUNCTION`` of a traced step, to run it again; empty for any other.
        obstacle: Why a traced step's kernels cannot be isolated; empty when they can.
        warnings: Sentences the reader must see beside the trace.
    """

    schema: int = SCHEMA
    name: str
    kernels: tuple[Kernel, ...]
    order: tuple[int, ...]
    parameters: dict[str, int] = {}
    source: str = ""
    obstacle: str = ""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject steps whose order and counts disagree, or whose names repeat."""
        if not self.kernels:
            raise ValueError("a step needs at least one kernel")
        twice = [n for n, c in Counter(k.name for k in self.kernels).items() if c > 1]
        if twice:
            raise ValueError(f"kernel names must be unique; repeated: {twice[0]!r}")
        counts = Counter(self.order)
        for index, kernel in enumerate(self.kernels):
            if counts[index] != kernel.count:
                raise ValueError(
                    f"{kernel.name!r} has count {kernel.count} but is launched {counts[index]} x"
                )
        if len(counts) != len(self.kernels):
            raise ValueError("the launch order names a kernel that is not listed")

    @property
    def fingerprint(self) -> str:
        """Short hash of everything that decides the step's cost."""
        kernels = msgspec.to_builtins(self.kernels)
        for kernel in kernels:
            # Steps that were never traced keep the fingerprint they had before tracing existed.
            if kernel["launch"] is None:
                del kernel["launch"]
        body = msgspec.json.encode((kernels, self.order))
        return hashlib.sha256(body).hexdigest()[:16]


class GpuInfo(Record, frozen=True, kw_only=True):
    """Which GPU numbers belong to.

    Attributes:
        name: Marketing name as the driver or table gives it.
        driver: Driver version; ``None`` when unknown.
        power_limit_w: Enforced board power limit; ``None`` when unknown.
    """

    name: str
    driver: str | None = None
    power_limit_w: float | None = None

    def __post_init__(self) -> None:
        """Reject a nameless GPU and an impossible limit."""
        if not self.name:
            raise ValueError("a GPU needs a name")
        _check_positive(self, "power_limit_w")


class Utilisation(Record, frozen=True, kw_only=True):
    """How busy the parts of a GPU were in a window, each as a fraction of its peak.

    Attributes:
        sm: Time in which multiprocessors had work.
        tensor: Tensor pipes.
        fp32: FP32 pipes.
        dram: DRAM bandwidth.
    """

    sm: float
    tensor: float
    fp32: float
    dram: float

    def __post_init__(self) -> None:
        """Reject what is no fraction; a counter may overshoot its peak by a little."""
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) <= 1.1:  # noqa: PLR2004 - see above
                raise ValueError(f"{name} must be a fraction, got {getattr(self, name)}")


class Sample(Record, frozen=True, kw_only=True):
    """One measurement of one kernel (or of the whole step) at one pair of asked clocks.

    Attributes:
        kernel: Kernel name.
        asked: Clocks asked for.
        repeat: 0 for the first measurement of this kernel at these clocks, then 1, 2, …
        time_s: Mean duration of one invocation.
        energy_j: Mean energy of one invocation, whole board.
        observed: Clocks read back under load; ``None`` when not read.
        window_s: Length of the measuring window; ``None`` when unknown.
        ticks: Energy-counter steps inside the window; ``None`` when unknown.
        temperature_c: GPU temperature at the end of the window; ``None`` when unknown.
        event_reasons: Bits of the driver's clock event reasons seen in the window; ``None`` when
            unknown. Bit 0x4 is the software power cap.
        utilisation: Of the GPU in the window; ``None`` where no counters could be read.
    """

    kernel: str
    asked: Clocks = AUTO
    repeat: int = 0
    time_s: float
    energy_j: float
    observed: Clocks | None = None
    window_s: float | None = None
    ticks: int | None = None
    temperature_c: float | None = None
    event_reasons: int | None = None
    utilisation: Utilisation | None = None

    def __post_init__(self) -> None:
        """Reject impossible quantities."""
        _check_positive(self, "time_s", "energy_j", "window_s")
        if self.repeat < 0:
            raise ValueError(f"repeat must not be negative, got {self.repeat}")


POWER_CAP_REASON = 0x4  # NVML: nvmlClocksEventReasonSwPowerCap


class Profile(Record, frozen=True, kw_only=True):
    """Everything measured of one step on one GPU.

    Attributes:
        evidence: How the samples were obtained; one kind per profile.
        gpu: The GPU they belong to.
        workload: Name of the step, or of the table.
        kernels: The kernels, with counts.
        samples: Measurements of isolated kernels.
        in_situ: Measurements of the whole step at auto clocks, one invocation being one step.
        fingerprint: Of the step; ``None`` for a table, which has none.
        settings: Clock pairs the measuring set out to visit; empty when unknown.
        repeats: Measurements it set out to take of each kernel at each pair.
        expected_samples: How many samples the measuring set out to take; ``None`` when unknown.
        order: The launch sequence, as indices into ``kernels``; empty when unknown.
        source: ``FILE.py:FUNCTION`` of a traced step; empty for any other.
        lacking: Clock pairs of ``settings`` at which a kernel cannot be measured, by its name.
        warnings: Sentences the reader must see beside the numbers.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    kernels: tuple[Kernel, ...]
    samples: tuple[Sample, ...] = ()
    in_situ: tuple[Sample, ...] = ()
    fingerprint: str | None = None
    settings: tuple[Clocks, ...] = ()
    repeats: int = 1
    expected_samples: int | None = None
    order: tuple[int, ...] = ()
    source: str = ""
    lacking: dict[str, tuple[Clocks, ...]] = {}
    warnings: tuple[str, ...] = ()


class Choice(Record, frozen=True, kw_only=True):
    """Clocks chosen for one kernel and what they do to it, as fractions of its auto cost."""

    core_mhz: int | None
    mem_mhz: int | None
    time_change: float
    energy_change: float

    @property
    def clocks(self) -> Clocks:
        """The chosen pair."""
        return Clocks(core_mhz=self.core_mhz, mem_mhz=self.mem_mhz)


class Cost(Record, frozen=True, kw_only=True):
    """What a choice of clocks costs per step, and against auto as a fraction of it."""

    time_s: float
    energy_j: float
    time_change: float
    energy_change: float


class Arm(Record, frozen=True, kw_only=True):
    """What one way of choosing clocks costs per step.

    Attributes:
        name: ``auto``, ``best_fixed``, ``pass``, ``kernel_local``, ``kernel_global`` or
            ``achievable``.
        time_s: Per step; ``None`` when infeasible.
        energy_j: Per step; ``None`` when infeasible.
        time_change: Fraction of auto; ``None`` when infeasible.
        energy_change: Fraction of auto; ``None`` when infeasible.
        status: How the choice came about.
        gap: How far the objective may be from its optimum, as a fraction; ``None`` where nothing
            was optimised or nothing found.
        time_interval: Least and greatest ``time_change`` with 95 % confidence; ``None`` where
            costs are taken as measured, without a fit.
        energy_interval: Likewise of ``energy_change``.
    """

    name: str
    time_s: float | None
    energy_j: float | None
    time_change: float | None
    energy_change: float | None
    status: Status
    gap: float | None
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, name: str, cost: Cost | None, status: Status, gap: float | None = None) -> Self:
        """Build an arm from a cost; ``None`` where nothing feasible was found."""
        return cls(
            name=name,
            time_s=cost.time_s if cost else None,
            energy_j=cost.energy_j if cost else None,
            time_change=cost.time_change if cost else None,
            energy_change=cost.energy_change if cost else None,
            status=status,
            gap=gap,
        )

    @property
    def cost(self) -> Cost | None:
        """Return the four numbers together; ``None`` when infeasible."""
        if (
            self.time_s is None
            or self.energy_j is None
            or self.time_change is None
            or self.energy_change is None
        ):
            return None
        return Cost(
            time_s=self.time_s,
            energy_j=self.energy_j,
            time_change=self.time_change,
            energy_change=self.energy_change,
        )


class Closure(Record, frozen=True, kw_only=True):
    """Isolated kernels summed, against the step as it really runs, at auto clocks.

    Attributes:
        time: Isolated sum over in-situ time.
        energy: Isolated sum over in-situ energy.
    """

    time: float
    energy: float


class Segment(Record, frozen=True, kw_only=True):
    """A stretch of a step's launches at one pair of clocks.

    Attributes:
        launches: How many.
        core_mhz: Core clock; ``None`` is auto.
        mem_mhz: Memory clock, likewise.
    """

    launches: int
    core_mhz: int | None
    mem_mhz: int | None

    def __post_init__(self) -> None:
        """Reject empty stretches and impossible clocks."""
        _check_positive(self, "launches", "core_mhz", "mem_mhz")

    @property
    def clocks(self) -> Clocks:
        """The pair."""
        return Clocks(core_mhz=self.core_mhz, mem_mhz=self.mem_mhz)


class ClockSchedule(Record, frozen=True, kw_only=True):
    """Clocks over the launches of a step, round and round.

    Attributes:
        segments: In launch order; the last and the first may be one stretch round the end.
        switches: Changes in one round.
        latency: Which switching latency it keeps, in words.
    """

    segments: tuple[Segment, ...]
    switches: int
    latency: str


class LatencyPoint(Record, frozen=True, kw_only=True):
    """What can be achieved on a GPU whose clocks take a given time to change.

    Attributes:
        latency_s: From call to new clock, of every change.
        time_change: Fraction of auto; ``None`` where no schedule was found.
        energy_change: Fraction of auto; ``None`` where no schedule was found.
        switches: In one step; ``None`` where no schedule was found.
        gap: How far the energy may be from the least, as a fraction; ``None`` likewise.
        hardware: Known hardware with about that latency; empty for none.
    """

    latency_s: float
    time_change: float | None
    energy_change: float | None
    switches: int | None
    gap: float | None
    hardware: str = ""


class Proposal(Record, frozen=True, kw_only=True):
    """A way to run a step that makes switching pay, planned as if it were done.

    Attributes:
        name: What would be done.
        needs: What it takes.
        time_change: Fraction of the same step's auto time.
        energy_change: Fraction of its auto energy.
        switches: In one such step.
    """

    name: str
    needs: str
    time_change: float
    energy_change: float
    switches: int


class Plan(Record, frozen=True, kw_only=True):
    """Clocks per kernel, what they promise, and what that rests on.

    Attributes:
        evidence: Of every number in the plan.
        gpu: The GPU the plan is valid for.
        workload: Name of the step or table.
        fingerprint: Of the step; ``None`` for a table.
        objective: What was minimised.
        max_slowdown: Time budget as a fraction above auto; ``None`` where time was free.
        granularity: What got clocks of its own in the chosen arm.
        aggregate: Who kept the budget in the chosen arm.
        baseline: The clocks called auto; other than auto/auto where a table has no such row.
        chosen: Name of the arm whose clocks are in ``kernels``.
        arms: The ways compared, in order of freedom.
        kernels: Clocks per kernel of the chosen arm.
        fixed: The best fixed clock pair; ``None`` when infeasible.
        frontier: Choices no mixture of others beats in both time and energy, at the chosen
            granularity, fastest first.
        closure: Isolated sum against in situ; ``None`` where the step was not run whole.
        runs: What the step runs, with counts.
        order: The launch sequence, as indices into ``runs``; empty when unknown.
        source: ``FILE.py:FUNCTION`` of a traced step; empty for any other.
        schedule: What the arm ``achievable`` does; ``None`` where switching was taken as free.
        latency_curve: What could be achieved at other latencies, shortest first; empty likewise.
        proposals: What longer segments would bring, greatest saving first; empty likewise.
        warnings: Sentences the reader must see beside the numbers.
    """

    schema: int = SCHEMA
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    fingerprint: str | None = None
    objective: Objective
    max_slowdown: float | None
    granularity: Granularity
    aggregate: Aggregate
    baseline: Clocks
    chosen: str
    arms: tuple[Arm, ...]
    kernels: dict[str, Choice]
    fixed: Clocks | None
    frontier: tuple[Cost, ...] = ()
    closure: Closure | None = None
    runs: tuple[Kernel, ...] = ()
    order: tuple[int, ...] = ()
    source: str = ""
    schedule: ClockSchedule | None = None
    latency_curve: tuple[LatencyPoint, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject a plan whose chosen arm is missing or infeasible."""
        if all(arm.name != self.chosen or arm.cost is None for arm in self.arms):
            raise ValueError(f"the chosen arm {self.chosen!r} has no costs")

    @property
    def promise(self) -> Cost:
        """What the chosen arm says the plan costs."""
        cost = self.arm(self.chosen).cost
        if cost is None:
            raise AssertionError("checked when the plan was made")
        return cost

    def arm(self, name: str) -> Arm:
        """Return the arm of that name.

        Raises:
            KeyError: No such arm.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


class Score(Record, frozen=True, kw_only=True):
    """What a plan really costs on a full table, in a plan's own terms.

    Attributes:
        time_s: Per step, under the plan's clocks.
        energy_j: Per step, under the plan's clocks.
        time_change: Fraction of the table's auto cost.
        energy_change: Fraction of the table's auto cost.
        promised_time_change: What the plan said.
        promised_energy_change: What the plan said.
        arms: The table's ``auto`` and the plan's chosen arm, costed on the table.
    """

    schema: int = SCHEMA
    evidence: Evidence
    gpu: GpuInfo
    plan: str
    time_s: float
    energy_j: float
    time_change: float
    energy_change: float
    promised_time_change: float
    promised_energy_change: float
    arms: tuple[Arm, ...]
    warnings: tuple[str, ...] = ()


class Spread(Record, frozen=True, kw_only=True):
    """A quantity over all pairs of repeats.

    Attributes:
        mean: Mean over the pairs.
        best: Least value: the pair most in the plan's favour.
        worst: Greatest value.
    """

    mean: float
    best: float
    worst: float


MOST_REPEATS = 1000  # more than anybody runs: where these would not decide, no number is named


class Verdict(StrEnum):
    """Whether a plan kept its promise."""

    KEPT = "kept"
    NOT_KEPT = "not kept"
    INCONCLUSIVE = "inconclusive"


class OtherArm(Record, frozen=True, kw_only=True):
    """A simpler way of choosing clocks, run in turns with auto and plan, and compared with auto.

    Attributes:
        name: As of an `Arm`: ``best_fixed``.
        clocks: What it holds for the whole step.
        time_s: One total per repeat.
        energy_j: One total per repeat.
        time_change: Against auto, over all pairs.
        energy_change: Likewise.
        time_interval: Low and high end of the true change at 95 %; ``None`` of a single run.
        energy_interval: Likewise.
    """

    name: str
    clocks: Clocks
    time_s: tuple[float, ...]
    energy_j: tuple[float, ...]
    time_change: Spread
    energy_change: Spread
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None


class Validation(Record, frozen=True, kw_only=True):
    """Auto and plan measured again, every auto run paired with every plan run.

    Files of older versions have no verdict, nor anything it rests on.

    Attributes:
        repeats: Runs of each arm.
        auto_time_s: One total per repeat. So the other three.
        time_change: Plan against auto over all ``repeats``² pairs.
        energy_change: Likewise.
        promised_time_change: What the plan said.
        promised_energy_change: What the plan said.
        pairs_keeping_energy: Pairs that save at least the promised energy.
        pairs_keeping_time: Pairs no slower than the plan's budget allows; ``None`` where time was
            free.
        time_interval: Low and high end of the true change of time at 95 %; ``None`` where single
            runs tell no spread.
        energy_interval: Likewise, of energy.
        max_slowdown: The plan's time budget; ``None`` where time was free.
        tolerance: How far beyond promise or budget still counts as kept, as a fraction of auto.
        verdict: Whether the promise held; ``None`` in older files.
        further_repeats: About how many more repeats would decide; ``None`` where the verdict is
            known, nothing can be said, or no reasonable number would do.
        others: What ran in turns with auto and plan besides.
    """

    schema: int = SCHEMA
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    chosen: str
    repeats: int
    auto_time_s: tuple[float, ...]
    auto_energy_j: tuple[float, ...]
    plan_time_s: tuple[float, ...]
    plan_energy_j: tuple[float, ...]
    time_change: Spread
    energy_change: Spread
    promised_time_change: float
    promised_energy_change: float
    pairs_keeping_energy: int
    pairs_keeping_time: int | None
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None
    max_slowdown: float | None = None
    tolerance: float | None = None
    verdict: Verdict | None = None
    further_repeats: int | None = None
    others: tuple[OtherArm, ...] = ()
    warnings: tuple[str, ...] = ()
