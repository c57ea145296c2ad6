"""What was measured: samples of kernels on a GPU."""

import itertools
import math
import statistics
from enum import IntFlag
from typing import Any

import msgspec

from underclock.records.common import (
    AUTO,
    Clocks,
    Evidence,
    Record,
    ShownRecord,
    as_frame,
    check_celsius,
    check_not_negative,
    check_positive,
)
from underclock.records.work import Kernel, StepSource, check_modules, check_order


class GpuInfo(Record, frozen=True, kw_only=True):
    """Which GPU numbers belong to.

    Attributes:
        name: Marketing name as the driver or table gives it.
        uuid: Of this board, as the driver gives it; ``None`` when unknown, as of a table.
        driver: Driver version; ``None`` when unknown.
        power_limit_w: Enforced board power limit; ``None`` when unknown.
        power_range_w: Least and greatest limit that may be set; ``None`` when unknown.
    """

    name: str
    uuid: str | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    power_range_w: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Reject a nameless GPU and an impossible limit."""
        if not self.name:
            raise ValueError("a GPU needs a name")
        check_positive(self, "power_limit_w")
        if self.power_range_w is not None:
            least_w, most_w = self.power_range_w
            if not 0 < least_w <= most_w < math.inf:
                raise ValueError(
                    f"a range of power limits is positive and ascends, got {self.power_range_w}"
                )

    def is_another_board(self, other: "GpuInfo") -> bool:
        """Whether both boards are known and differ; their model may be the same."""
        return None not in (self.uuid, other.uuid) and self.uuid != other.uuid


class MeasurementSettings(Record, frozen=True, kw_only=True):
    """How long to wait and to measure; the defaults are arXiv 2601.08539's.

    Attributes:
        warm_s: Least time at full load before the first measurement.
        steady_c: Warm until the temperature moves less than this in ``steady_s``.
        steady_s: See ``steady_c``.
        longest_warm_s: Warm no longer than this.
        settle_s: Wait after a change of clocks.
        kernel_warm_s: Each kernel runs this long before its window.
        window_s: Least length of the measuring window.
        launches: Least launches in a window: parts of a launch at its ends blur its power.
    """

    warm_s: float = 100.0
    steady_c: float = 1.0
    steady_s: float = 20.0
    longest_warm_s: float = 600.0
    settle_s: float = 1.0
    kernel_warm_s: float = 25.0
    window_s: float = 5.0
    launches: int = 20

    def __post_init__(self) -> None:
        """Reject windows in which nothing can be measured."""
        if not 0 < self.window_s < math.inf or self.launches < 1:
            raise ValueError("a window needs a positive length and at least one launch")
        check_positive(self, "steady_c", "steady_s")
        for name in ("warm_s", "longest_warm_s", "settle_s", "kernel_warm_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError("waiting times must be finite and not negative")

    @property
    def least_warm_s(self) -> float:
        """How long warming up takes where the temperature is steady as soon as it may be."""
        looks = max(1, math.ceil(min(self.warm_s, self.longest_warm_s) / self.steady_s))
        return looks * self.steady_s


class Provenance(Record, frozen=True, kw_only=True):
    """How measurements came about: what they rest on besides the GPU.

    Attributes:
        measuring: How long was waited and measured; ``None`` of a table, which does not say.
        in_situ: Whether the step was to be run whole too, which settles what auto costs.
        seed: Of a simulated GPU's noise; ``None`` where nothing is simulated.
        table: Hash of the table that was replayed; ``None`` where there is none.
        version: Of the program that began the measuring; ``None`` where it was not this one.
    """

    measuring: MeasurementSettings | None = None
    in_situ: bool = False
    seed: int | None = None
    table: str | None = None
    version: str | None = None


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


class ThrottleReason(IntFlag):
    """Why a GPU's clocks are what they are: bits of `nvmlDeviceGetCurrentClocksEventReasons`.

    Each member is NVML's ``nvmlClocksEventReason...`` of the same value (`nvml.h`, where older
    versions say ``nvmlClocksThrottleReason...``). Bits that a newer driver adds are kept.
    """

    NONE = 0x0
    """None of them: the clocks are as high as they may be."""
    GPU_IDLE = 0x1
    """GpuIdle: nothing runs."""
    APPLICATIONS_CLOCKS_SETTING = 0x2
    """ApplicationsClocksSetting: somebody set application clocks."""
    SW_POWER_CAP = 0x4
    """SwPowerCap: the driver holds the board's power under its limit."""
    HW_SLOWDOWN = 0x8
    """HwSlowdown: heat, a power brake or a supply that gives way, by halves or more."""
    SYNC_BOOST = 0x10
    """SyncBoost: a group of GPUs boosts as far as its slowest."""
    SW_THERMAL_SLOWDOWN = 0x20
    """SwThermalSlowdown: the driver holds chip and memory under their temperatures."""
    HW_THERMAL_SLOWDOWN = 0x40
    """HwThermalSlowdown: too hot, by halves or more; comes with HW_SLOWDOWN."""
    HW_POWER_BRAKE_SLOWDOWN = 0x80
    """HwPowerBrakeSlowdown: a supply asks for less, by halves or more; with HW_SLOWDOWN."""
    DISPLAY_CLOCK_SETTING = 0x100
    """DisplayClockSetting: a display needs other clocks."""


class Sample(Record, frozen=True, kw_only=True, gc=False):
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
        throttle_reasons: Why the clocks were what they were at the end of the window; ``None``
            when unknown.
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
    throttle_reasons: ThrottleReason | None = None
    utilisation: Utilisation | None = None

    def __post_init__(self) -> None:
        """Reject impossible quantities."""
        # A table has a million samples, nearly all possible: look closer only where one is not.
        if not (0 < self.time_s < math.inf and 0 < self.energy_j < math.inf):
            check_positive(self, "time_s", "energy_j")
        if self.window_s is not None:
            check_positive(self, "window_s")
        check_not_negative(self, "repeat", "ticks")
        check_celsius(self.temperature_c)


class Mix(Record, frozen=True, kw_only=True):
    """What a kernel or a whole step runs with, round and round, so that its clock can be chosen.

    With a hot companion a power cap lowers the clock; with idling it lets the clock rise.

    Attributes:
        launches: Of the kernel, or of the step, in a round.
        hot: Launches of the hot companion in a round: a large matrix product.
        idle_s: Idling in a round, nearly: a GPU idles by counting core cycles.
        after: Launches of the round after which a piece of its company runs, counted from its
            begin; all pieces are alike. Empty: there is one, at the end of the round.
    """

    launches: int = 1
    hot: int = 0
    idle_s: float = 0.0
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Reject rounds that cannot be."""
        if self.launches < 0 or self.hot < 0 or not 0 <= self.idle_s < math.inf:
            raise ValueError(f"a mix has no negative parts, got {self}")
        if not (self.launches or self.hot or self.idle_s):
            raise ValueError("a mix without launches, companion and idling is nothing")
        if any(b <= a for a, b in itertools.pairwise((0, *self.after))):
            raise ValueError(f"places of company must be positive and ascend, got {self.after}")
        if self.hot % self.pieces:
            raise ValueError(
                f"{self.hot} companions do not make {self.pieces} pieces that are alike"
            )

    @property
    def pieces(self) -> int:
        """How often company runs in a round."""
        return max(1, len(self.after))


class MixSample(Record, frozen=True, kw_only=True, gc=False):
    """One measurement of a kernel, or of the whole step, in company, as it was read.

    What the company took is in it; `core.steering` takes it off.

    Attributes:
        kernel: Kernel name; empty for the whole step.
        mix: What ran.
        asked: Clocks asked for.
        repeat: 0 for the first measurement of this mix at these clocks, then 1, 2, …
        core_mhz: Mean core clock over the window, as read many times.
        core_spread_mhz: Standard deviation of those readings.
        round_s: Mean duration of a round.
        round_j: Mean energy of a round, whole board.
        kernel_s: Mean duration of one launch, on the GPU's own clock: of the kernel, or of each
            kernel of the step in the order of the sample set. Empty where nothing ran but company.
        hot_s: Mean duration of a launch of the companion; ``None`` without one.
        idle_s: Idling in a round as it was; ``None`` without any.
        spin_mhz: Core clock while launches were timed, by how long a count of cycles took; ``None``
            where there was no idling to tell it.
        kernel_mhz: The same of each kernel of the step, by idling before and after its launches;
            empty where company ran in one piece.
        window_s: Length of the measuring window.
        temperature_c: GPU temperature at its end.
        throttle_reasons: At its end.
    """

    kernel: str
    mix: Mix
    asked: Clocks = AUTO
    repeat: int = 0
    core_mhz: float
    core_spread_mhz: float
    round_s: float
    round_j: float
    kernel_s: tuple[float, ...] = ()
    hot_s: float | None = None
    idle_s: float | None = None
    spin_mhz: float | None = None
    kernel_mhz: tuple[float, ...] = ()
    window_s: float
    temperature_c: float | None = None
    throttle_reasons: ThrottleReason | None = None

    def __post_init__(self) -> None:
        """Reject impossible quantities."""
        check_positive(self, "core_mhz", "round_s", "round_j", "window_s")
        check_positive(self, "hot_s", "idle_s", "spin_mhz")
        check_celsius(self.temperature_c)
        for name in ("kernel_s", "kernel_mhz"):
            if not all(0 < each < math.inf for each in getattr(self, name)):
                raise ValueError(f"every {name} must be positive and finite")
        if len(self.kernel_mhz) not in {0, len(self.kernel_s)}:
            raise ValueError("kernel_mhz and kernel_s are of the same kernels")
        if not 0 <= self.core_spread_mhz < math.inf or self.repeat < 0:
            raise ValueError("core_spread_mhz and repeat must not be negative")

    @property
    def timed_mhz(self) -> tuple[float, ...]:
        """Core clock of each of ``kernel_s`` while it was timed."""
        return self.kernel_mhz or (self.spin_mhz or self.core_mhz,) * len(self.kernel_s)

    @property
    def is_step(self) -> bool:
        """Whether the whole step ran, by itself or in company."""
        return not self.kernel and self.mix.launches > 0

    @property
    def in_company(self) -> bool:
        """Whether anything ran besides the kernel or the step."""
        return self.mix.hot > 0 or self.mix.idle_s > 0


class SampleSet(ShownRecord, frozen=True, kw_only=True):
    """Everything measured of one step on one GPU.

    Attributes:
        evidence: How the samples were obtained; one kind per sample_set.
        gpu: The GPU they belong to.
        workload: Name of the step, or of the table.
        kernels: The kernels, with counts.
        samples: Measurements of isolated kernels.
        in_situ: Measurements of the whole step at auto clocks, one invocation being one step.
        mixed: Measurements in company, and of the launches inside the whole step.
        fingerprint: Of the step; ``None`` for a table, which has none.
        settings: Clock pairs the measuring set out to visit; empty when unknown.
        repeats: Measurements it set out to take of each kernel at each pair.
        expected_samples: How many samples the measuring set out to take; ``None`` when unknown.
        order: The launch sequence, as indices into ``kernels``; empty when unknown.
        modules: As a step's; empty when unknown.
        source: Of a traced step; ``None`` for any other.
        provenance: How the samples came about; ``None`` when unknown.
        sampled: Whether a table that was replayed has repeats, even if none was taken: it is a
            sample of the GPU.
        lacking: Clock pairs of ``settings`` at which a kernel cannot be measured, by its name.
        warnings: Sentences the reader must see beside the numbers.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    kernels: tuple[Kernel, ...]
    samples: tuple[Sample, ...] = ()
    in_situ: tuple[Sample, ...] = ()
    mixed: tuple[MixSample, ...] = ()
    fingerprint: str | None = None
    settings: tuple[Clocks, ...] = ()
    repeats: int = 1
    expected_samples: int | None = None
    order: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    source: StepSource | None = None
    provenance: Provenance | None = None
    sampled: bool = False
    lacking: dict[str, tuple[Clocks, ...]] = msgspec.field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject launches of other kernels, or not as often as they count."""
        if self.order:
            check_order(self.kernels, self.order)
        check_modules(self.modules, self.order)
        check_positive(self, "repeats")
        check_not_negative(self, "expected_samples")

    @property
    def launches(self) -> tuple[Kernel, ...]:
        """The kernel of every launch of the step, in order; none where the order is unknown."""
        return tuple(self.kernels[k] for k in self.order)

    @property
    def auto_mem_mhz(self) -> int | None:
        """Memory clock that runs where none is locked, as read; ``None`` where nobody looked."""
        there = [*self.in_situ, *(s for s in self.samples if s.asked.mem_mhz is None)]
        read = [s.observed.mem_mhz for s in there if s.observed and s.observed.mem_mhz]
        return statistics.median_low(read) if read else None

    @property
    def is_exact(self) -> bool:
        """Whether a row is all there is to know, as in a replayed table without repeats."""
        if self.evidence is not Evidence.REPLAYED or self.sampled:
            return False
        return not any(sample.repeat for sample in self.samples)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is not needed
        """Return samples of single kernels as a pandas DataFrame, with the columns of a CSV table.

        `plan` and whatever else takes samples takes it back.

        Raises:
            NotSupportedError: pandas is not installed.
        """
        kernels = {kernel.name: kernel for kernel in self.kernels}
        return as_frame(
            {
                "gpu": self.gpu.name,
                "kernel": sample.kernel,
                "pass": str(kernels[sample.kernel].pass_),
                "count": kernels[sample.kernel].count,
                "waited_for": kernels[sample.kernel].waited_for,
                "core_mhz": sample.asked.core_mhz,
                "mem_mhz": sample.asked.mem_mhz,
                "time_s": sample.time_s,
                "energy_j": sample.energy_j,
            }
            for sample in self.samples
        )

    @property
    def _facts(self) -> tuple[tuple[str, str], ...]:
        expected = self.expected_samples
        total = "" if expected in (None, len(self.samples)) else f" of {expected}"
        return (
            ("samples", f"{len(self.samples)}{total}"),
            ("kernels", str(len(self.kernels))),
            ("clock pairs", str(len({sample.asked for sample in self.samples}))),
            ("whole-step runs", str(len(self.in_situ))),
        )
