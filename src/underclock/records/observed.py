"""What was seen of a step: where its energy goes, what its clocks do, what a schedule did."""

from enum import StrEnum

from underclock.records import (
    Closure,
    Evidence,
    GpuInfo,
    Record,
    check_positive,
)


class Bound(StrEnum):
    """What keeps a kernel from being faster, by utilisation and at the clocks it has alone."""

    TENSOR = "tensor"
    FP32 = "fp32"
    DRAM = "dram"
    LATENCY = "latency"  # nothing is busy: too little in flight, or too short
    UNKNOWN = "unknown"  # no counters were read


class Follows(StrEnum):
    """How a kernel's time follows the core clock, as measured."""

    CORE = "core"  # with an exponent above 0.6
    SHARED = "shared"  # with an exponent of 0.25 to 0.6
    NOT_CORE = "not core"  # with a lower one: a lower core clock hardly slows it
    UNDECIDED = "undecided"  # the exponent is too unsure
    UNMEASURED = "not measured"  # it was seen at one core clock only


class Exponent(Record, frozen=True, kw_only=True):
    """How the time of a kernel follows the core clock: as the clock to the power of ``-value``."""

    value: float
    error: float
    points: int
    least_mhz: float
    most_mhz: float

    def __post_init__(self) -> None:
        check_positive(self, "error", "points", "least_mhz", "most_mhz")


class StepClock(Record, frozen=True, kw_only=True):
    """The core clock at which a whole step runs at auto.

    Attributes:
        spread_mhz: Standard deviation within a window; ``None`` where the clock was not read
            throughout, but once at the end of each.
    """

    core_mhz: float
    spread_mhz: float | None

    def __post_init__(self) -> None:
        check_positive(self, "core_mhz")


class KernelPart(Record, frozen=True, kw_only=True):
    """One kernel of a step at auto clocks; launches and energy are per step.

    Attributes:
        exponent: The same as a number; ``None`` where it was seen at one core clock only.
        bound: What bounds it by utilisation, at the clock it has alone.
        in_step_change: Duration of a launch inside the step against alone, as a fraction of the
            latter; ``None`` where launches inside the step were not timed.
    """

    kernel: str
    launches: int
    energy_j: float
    energy_share: float
    follows: Follows
    exponent: Exponent | None
    bound: Bound
    in_step_change: float | None


class Share(Record, frozen=True, kw_only=True):
    """One part of a step: what it launches and takes in each."""

    name: str
    launches: int
    time_s: float
    energy_j: float
    time_share: float
    energy_share: float


class Breakdown(Record, frozen=True, kw_only=True):
    """Where the energy of a step at auto clocks goes, three ways and kernel by kernel.

    Attributes:
        time_s: Of the step; as it runs whole where that was measured.
        energy_j: Of the step; as it runs whole where that was measured.
        by_pass: By pass of the step; this and the two that follow list most energy first.
        by_bound: By how times follow the core clock (see `Follows`); kernels of which that is not
            known go by utilisation, and their parts say so.
        kernels: Most energy first.
        reachable_j: Energy of kernels that do not follow the core clock: a lower clock hardly slows
            them. ``None`` where no kernel's following is known.
        undecided_j: Energy of kernels whose following is undecided or not measured.
        step_clock: At which the step runs; ``None`` where nobody read it.
        capped_share: Fraction of the time of kernels alone that is spent at the power cap.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    time_s: float
    energy_j: float
    by_pass: tuple[Share, ...]
    by_operator: tuple[Share, ...]
    by_bound: tuple[Share, ...]
    kernels: tuple[KernelPart, ...]
    reachable_j: float | None
    undecided_j: float
    step_clock: StepClock | None
    capped_share: float
    closure: Closure | None
    warnings: tuple[str, ...] = ()
