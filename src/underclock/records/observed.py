"""What was seen of a step: where its energy goes, what its clocks do, what a schedule did."""

from enum import StrEnum

from underclock.records import Closure, Evidence, GpuInfo, Record, Strategy, ThrottleReason


class Bound(StrEnum):
    """What keeps a kernel from being faster."""

    TENSOR = "tensor"
    FP32 = "fp32"
    DRAM = "dram"
    LATENCY = "latency"  # nothing is busy: too little in flight, or too short
    UNKNOWN = "unknown"  # no counters were read


class Share(Record, frozen=True, kw_only=True):
    """One part of a step.

    Attributes:
        name: Of the part.
        launches: Per step.
        time_s: Per step.
        energy_j: Per step.
        time_share: Fraction of the step's time.
        energy_share: Fraction of its energy.
    """

    name: str
    launches: int
    time_s: float
    energy_j: float
    time_share: float
    energy_share: float


class Breakdown(Record, frozen=True, kw_only=True):
    """Where the energy of a step at auto clocks goes, three ways, and what of it is waste.

    Attributes:
        evidence: Of every number.
        time_s: Of the step; as it runs whole where that was measured.
        energy_j: Of the step; as it runs whole where that was measured.
        by_pass: By pass of the step; this and the three that follow list most energy first.
        by_operator: By the operator that launched a kernel.
        by_bound: By what keeps kernels from being faster.
        by_clock: Kernels that run at full core clock, by what bounds them; those below it; those
            whose clock was not read.
        reachable_j: Energy at full core clock of kernels that the core does not bound: a plan can
            reach some of it without losing time. ``None`` unless clocks and counters were read.
        capped_share: Fraction of the isolated kernels' time spent at the power cap.
        full_core_mhz: The clock called full: the highest seen; ``None`` where none was read.
        closure: Isolated sum against the whole step; ``None`` where that was not run.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    time_s: float
    energy_j: float
    by_pass: tuple[Share, ...]
    by_operator: tuple[Share, ...]
    by_bound: tuple[Share, ...]
    by_clock: tuple[Share, ...]
    reachable_j: float | None
    capped_share: float
    full_core_mhz: int | None
    closure: Closure | None
    warnings: tuple[str, ...] = ()


class KernelClock(Record, frozen=True, kw_only=True):
    """What a log says of one kernel.

    Attributes:
        kernel: Its name.
        entries: Readings while it ran.
        core_mhz: Their mean core clock.
        power_w: Their mean power, as the driver averages it.
    """

    kernel: str
    entries: int
    core_mhz: float
    power_w: float


class ClockLog(Record, frozen=True, kw_only=True):
    """What a log shows.

    Attributes:
        evidence: Of every number.
        entries: Readings taken.
        rate_hz: Readings a second, as it turned out.
        core_mhz: Least, mean and greatest core clock.
        power_w: Least, mean and greatest power.
        throttle_reasons: All that were seen.
        step_s: Length of a step; ``None`` where none ran.
        kernels: In launch order; empty where none ran.
    """

    evidence: Evidence
    gpu: GpuInfo
    entries: int
    rate_hz: float
    core_mhz: tuple[float, float, float]
    power_w: tuple[float, float, float]
    throttle_reasons: ThrottleReason
    step_s: float | None = None
    kernels: tuple[KernelClock, ...] = ()


class Interval(Record, frozen=True, kw_only=True):
    """A quantity that is predicted rather than measured.

    Attributes:
        expected: Mean over what is possible.
        low: It is hardly less.
        high: It is hardly more.
    """

    expected: float
    low: float
    high: float


class PredictedArm(Record, frozen=True, kw_only=True):
    """What one way of choosing clocks would do, as fractions of auto.

    Attributes:
        name: The strategy.
        time_change: Of the step.
        energy_change: Of the step.
    """

    name: Strategy
    time_change: Interval
    energy_change: Interval


class Prediction(Record, frozen=True, kw_only=True):
    """What clocks of its own choice would save a step, predicted from auto clocks only.

    Attributes:
        evidence: Of the samples; every number here is predicted from them, none measured.
        gpu: The GPU they are of.
        workload: Name of the step or table.
        like: The model whose constants and kernels stand for what was not measured.
        calibration: How well that model is known.
        max_slowdown: Time budget as a fraction above auto.
        confidence: That the truth lies in an interval, as far as the model goes.
        draws: How many possible tables were planned on.
        kernels: Of the step.
        counted: Of which so many have readings of utilisation.
        arms: What measuring at other clocks and planning on it would bring, in order of freedom.
        without_measuring: What locking at once would bring: the plan for the mean of the possible
            tables.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    like: str
    calibration: str
    max_slowdown: float
    confidence: float
    draws: int
    kernels: int
    counted: int
    arms: tuple[PredictedArm, ...]
    without_measuring: PredictedArm
    warnings: tuple[str, ...] = ()

    def arm(self, name: str) -> PredictedArm:
        """Return the arm of a strategy.

        Args:
            name: The strategy, or its value, such as ``kernel_global``.

        Raises:
            KeyError: The prediction has no such arm.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


class Execution(Record, frozen=True, kw_only=True):
    """What a step under a schedule of clocks took. Changes of core and of memory count apart.

    Attributes:
        evidence: Of every number.
        workload: Name of the step.
        fingerprint: Of the step.
        steps: How many were run; what follows is their mean.
        time_s: Of a step.
        energy_j: Of a step.
        time_range_s: Least and greatest of the steps.
        energy_range_j: Least and greatest of the steps.
        planned: Changes that the schedule asks for in a step.
        switches: Of which so many happened; newer ones overtook the others.
        early: Of those, so many came before their launch began, by more than ``off_s``.
        late: Of those, so many came after their launch began, by more than ``off_s``.
        off_s: A change this far off is not counted as either.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    fingerprint: str
    steps: int
    time_s: float
    energy_j: float
    time_range_s: tuple[float, float]
    energy_range_j: tuple[float, float]
    planned: int
    switches: float
    early: float
    late: float
    off_s: float
    warnings: tuple[str, ...] = ()
