"""What was measured: samples of kernels on a GPU."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from enum import IntFlag
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec

from underclock.records.common import (
    AUTO,
    AtLeastOne,
    Celsius,
    Clocks,
    Evidence,
    NotNegative,
    Number,
    Positive,
    Record,
    ShownRecord,
    as_frame,
)
from underclock.records.work import Kernel, Step


def gpu_name(driver_says: str) -> str:
    """Return a GPU's name without its maker's, which the driver and PyTorch put before it."""
    return driver_says.removeprefix("NVIDIA ").removeprefix("GeForce ")


class GpuInfo(Record, frozen=True, kw_only=True):
    """Which GPU numbers belong to."""

    # marketing name without its maker's, as the driver or table gives it
    name: Annotated[str, msgspec.Meta(min_length=1)]
    # of this board, as the driver gives it; ``None`` when unknown, as of a table
    uuid: str | None = None
    driver: str | None = None  # driver version; ``None`` when unknown
    power_limit_w: Positive | None = None  # enforced board power limit; ``None`` when unknown
    # least and greatest limit that may be set; ``None`` when unknown
    power_range_w: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        least_w, most_w = self.power_range_w or (1.0, 1.0)
        if not 0 < least_w <= most_w < math.inf:
            raise ValueError(
                f"a range of power limits is positive and ascends, got {self.power_range_w}"
            )

    def is_another_board(self, other: "GpuInfo") -> bool:
        """Whether both boards are known and differ; their model may be the same."""
        return None not in (self.uuid, other.uuid) and self.uuid != other.uuid


class MeasurementSettings(Record, frozen=True, kw_only=True):
    """How long to wait and to measure; the defaults are arXiv 2601.08539's."""

    warm_s: NotNegative = 100.0  # least time at full load before the first measurement
    steady_c: Positive = 1.0  # warm until the temperature moves less than this in ``steady_s``
    steady_s: Positive = 20.0  # see ``steady_c``
    longest_warm_s: NotNegative = 600.0  # warm no longer than this
    settle_s: NotNegative = 1.0  # wait after a change of clocks
    kernel_warm_s: NotNegative = 25.0  # each kernel runs this long before its window
    window_s: Positive = 5.0  # least length of the measuring window
    launches: AtLeastOne = 20  # least in a window: parts of a launch at its ends blur its power

    @property
    def least_warm_s(self) -> float:
        """How long warming up takes where the temperature is steady as soon as it may be."""
        looks = max(1, math.ceil(min(self.warm_s, self.longest_warm_s) / self.steady_s))
        return looks * self.steady_s

    def takes_s(self, launch_s: float) -> float:
        """Return about how long it takes to measure a kernel whose launch takes that long."""
        return self.kernel_warm_s + max(self.window_s, self.launches * launch_s)


class Provenance(Record, frozen=True, kw_only=True):
    """How measurements came about: what they rest on besides the GPU."""

    # how long was waited and measured; ``None`` of a table, which does not say
    measuring: MeasurementSettings | None = None
    in_situ: bool = False  # whether the step was to be run whole too, which settles what auto costs
    seed: int | None = None  # of a simulated GPU's noise; ``None`` where nothing is simulated
    table: str | None = None  # hash of the table that was replayed; ``None`` where there is none
    # of the program that began the measuring; ``None`` where it was not this one
    version: str | None = None


class _Utilisation(Record, frozen=True, kw_only=True):
    """How busy the parts of a GPU were, 0 to 1, in files of versions that read its counters."""

    sm: float
    tensor: float
    fp32: float
    dram: float


class ThrottleReason(IntFlag):
    """Why a GPU's clocks are what they are: bits of `nvmlDeviceGetCurrentClocksEventReasons`.

    Each member is NVML's ``nvmlClocksEventReason...`` of the same value (`nvml.h`, where older
    versions say ``nvmlClocksThrottleReason...``). Bits that a newer driver adds are kept.
    """

    NONE = 0x0  # None of them: the clocks are as high as they may be
    GPU_IDLE = 0x1  # GpuIdle: nothing runs
    APPLICATIONS_CLOCKS_SETTING = 0x2  # ApplicationsClocksSetting: application clocks are set
    SW_POWER_CAP = 0x4  # SwPowerCap: the driver holds the board's power under its limit
    # HwSlowdown: heat, a power brake or a supply that gives way, by halves or more
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10  # SyncBoost: a group of GPUs boosts as far as its slowest
    # SwThermalSlowdown: the driver holds chip and memory under their temperatures
    SW_THERMAL_SLOWDOWN = 0x20
    # HwThermalSlowdown: too hot, by halves or more; comes with HW_SLOWDOWN
    HW_THERMAL_SLOWDOWN = 0x40
    # HwPowerBrakeSlowdown: a supply asks for less, by halves or more; with HW_SLOWDOWN
    HW_POWER_BRAKE_SLOWDOWN = 0x80
    DISPLAY_CLOCK_SETTING = 0x100  # DisplayClockSetting: a display needs other clocks


class Mix(Record, frozen=True, kw_only=True):
    """What a kernel or a whole step runs with, round and round, so that its clock can be chosen.

    With a heater a power cap lowers the clock; with idling it lets the clock rise.
    """

    launches: Number = 1  # of the kernel, or of the step, in a round
    hot: Number = 0  # launches of the heater in a round: a large matrix product
    idle_s: NotNegative = 0.0  # idling in a round, nearly: a GPU idles by counting core cycles
    # launches of the round after which an equal piece of its co-load runs; empty: one at its end
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (self.launches or self.hot or self.idle_s):
            raise ValueError("a mix without launches, heater and idling is nothing")
        if any(b <= a for a, b in itertools.pairwise((0, *self.after))):
            raise ValueError(f"places of co-load must be positive and ascend, got {self.after}")
        if self.hot % self.pieces:
            raise ValueError(f"{self.hot} heaters do not make {self.pieces} pieces that are alike")

    @property
    def pieces(self) -> int:
        """How often co-load runs in a round."""
        return max(1, len(self.after))


ALONE: Final = Mix()
"""One launch of a kernel, or the step once, with nothing besides."""

_INSIDE = 1.3  # of the whole: short launches overlap, and are timed after it; 1.12 was seen


class Window(Record, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One window of measuring: what ran in it round and round, what was asked, what was read.

    A kernel by itself, a kernel with co-load, co-load by itself, the whole step in situ, and a row
    of a table are all windows. Times and energies are of a round, whole board.
    """

    kernel: str = ""  # whose launches ran; empty for those of the whole step, or where none did
    mix: Mix = ALONE  # how many launches a round has, and their co-load
    asked: Clocks = AUTO  # clocks asked for
    repeat: Number = 0  # 0 for the first window of this at these clocks, then 1, 2, …
    time_s: Positive  # mean duration of a round
    energy_j: Positive  # mean energy of a round
    # clocks read back under load, at the end; ``None`` when not read
    observed: Clocks | None = None
    # mean core clock, as read many times all through; ``None`` when not read so
    core_mhz: Positive | None = None
    core_spread_mhz: NotNegative | None = None  # standard deviation of those readings
    # mean duration of one launch, on the GPU's own clock: of the kernel, or of each kernel of the
    # step in the order of the sample set. Empty where launches were not timed
    kernel_s: tuple[Positive, ...] = ()
    # core clock of each of these, read while idling before and after it; empty where all have one
    kernel_mhz: tuple[Positive, ...] = ()
    # mean duration of a launch of the heater; ``None`` without one, or when not timed
    hot_s: Positive | None = None
    # idling in a round as it was; ``None`` without any, or when not timed
    idle_s: Positive | None = None
    # core clock while launches were timed, by how long a count of cycles took; ``None`` without one
    spin_mhz: Positive | None = None
    window_s: Positive | None = None  # length of the window; ``None`` when unknown
    ticks: Number | None = None  # energy-counter steps inside it; ``None`` when unknown
    temperature_c: Celsius | None = None  # GPU temperature at its end; ``None`` when unknown
    # why the clocks were what they were at its end; ``None`` when unknown
    throttle_reasons: ThrottleReason | None = None
    utilisation: _Utilisation | None = None  # ``None`` in files that this version writes

    def __post_init__(self) -> None:
        if not (0 < self.time_s < math.inf and 0 < self.energy_j < math.inf):
            raise ValueError(
                f"time_s and energy_j must be positive and finite, got {self.time_s} and "
                f"{self.energy_j}"
            )
        # A table has a million windows: look closer only where there is more to see.
        if self.core_spread_mhz is None and not self.kernel_s and self.mix is ALONE:
            return
        if (self.core_mhz is None) != (self.core_spread_mhz is None):
            raise ValueError("core_mhz and core_spread_mhz come from the same readings")
        if len(self.kernel_mhz) not in {0, len(self.kernel_s)}:
            raise ValueError("kernel_mhz and kernel_s are of the same kernels")
        if self.core_mhz is None and (self.kernel_s or self.mix != ALONE):
            raise ValueError(
                "a window with co-load, or with launches timed inside, needs the core clock read "
                "all through: core_mhz"
            )
        if self.kernel and len(self.kernel_s) > 1:
            raise ValueError(f"one kernel ran, and {len(self.kernel_s)} were timed")
        inside_s = self.mix.hot * (self.hot_s or 0.0) + (self.idle_s or 0.0)
        if self.kernel:
            inside_s += self.mix.launches * math.fsum(self.kernel_s)
        if inside_s > _INSIDE * self.time_s:
            raise ValueError(
                f"durations inside a round sum up to {inside_s:.4g} s, and the round took "
                f"{self.time_s:.4g} s"
            )

    @property
    def at_mhz(self) -> float:
        """Mean core clock of a window in which it was read all through.

        Raises:
            ValueError: It was not.
        """
        if self.core_mhz is None:
            raise ValueError("the core clock was not read all through this window")
        return self.core_mhz

    @property
    def spread_mhz(self) -> float:
        """Standard deviation of that clock's readings; as `at_mhz` where there are none."""
        if self.core_spread_mhz is None:
            raise ValueError("the core clock was not read all through this window")
        return self.core_spread_mhz

    @property
    def timed_mhz(self) -> tuple[float, ...]:
        """Core clock of each of ``kernel_s`` while it was timed."""
        return self.kernel_mhz or (self.spin_mhz or self.at_mhz,) * len(self.kernel_s)

    def untimed(self) -> "Window":
        """Return a window of a kernel or the step by itself without the times of its launches."""
        return msgspec.structs.replace(
            self, core_mhz=None, core_spread_mhz=None, kernel_s=(), kernel_mhz=()
        )

    @property
    def power_w(self) -> float:
        """Mean power, whole board."""
        return self.energy_j / self.time_s

    @property
    def is_step(self) -> bool:
        """Whether the whole step ran, by itself or with co-load."""
        return not self.kernel and self.mix.launches > 0

    @property
    def in_company(self) -> bool:
        """Whether anything ran besides the kernel or the step."""
        return self.mix.hot > 0 or self.mix.idle_s > 0

    @property
    def what(self) -> tuple[str, Mix, Clocks]:
        """What ran at which clocks: windows of the same are repeats."""
        return self.kernel, self.mix, self.asked


def renumbered(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Return windows of several sources as of one: those of the same thing are its repeats."""
    count, found = Counter[object](), []
    for window in windows:
        found.append(msgspec.structs.replace(window, repeat=count[window.what]))
        count[window.what] += 1
    return tuple(found)


class SampleSet(ShownRecord, frozen=True, kw_only=True, dict=True):
    """Everything measured of one step on one GPU.

    Attributes:
        evidence: How the samples were obtained; one kind per sample_set.
        gpu: The GPU they belong to.
        step: What was measured: the step, or a table's kernels.
        windows: Everything measured, in the order taken.
        settings: Clock pairs the measuring set out to visit; empty when unknown.
        repeats: Measurements it set out to take of each kernel at each pair.
        expected_samples: How many samples the measuring set out to take; ``None`` when unknown.
        provenance: How the samples came about; ``None`` when unknown.
        sampled: Whether a table that was replayed has repeats, even if none was taken: it is a
            sample of the GPU.
        lacking: Clock pairs of ``settings`` at which a kernel cannot be measured, by its name.
        warnings: Sentences the reader of the numbers must see.
    """

    evidence: Evidence
    gpu: GpuInfo
    step: Step
    windows: tuple[Window, ...] = ()
    settings: tuple[Clocks, ...] = ()
    repeats: AtLeastOne = 1
    expected_samples: Number | None = None
    provenance: Provenance | None = None
    sampled: bool = False
    lacking: dict[str, tuple[Clocks, ...]] = msgspec.field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Reject durations that are not one of each kernel that ran, or do not make the step.
        for window in self.mixed:
            if window.kernel or not window.kernel_s:
                continue
            if len(window.kernel_s) != len(self.kernels):
                raise ValueError(
                    f"a run of the whole step timed {len(window.kernel_s)} kernels, where "
                    f"{len(self.kernels)} ran"
                )
            of_kernels = zip(self.kernels, window.kernel_s, strict=True)
            step_s = math.fsum(k.count * k.waited_for * each for k, each in of_kernels)
            inside_s = window.mix.launches * step_s
            if inside_s > _INSIDE * window.time_s:
                raise ValueError(
                    f"launches inside the step sum up to {inside_s:.4g} s, and it took "
                    f"{window.time_s:.4g} s"
                )

    @property
    def workload(self) -> str:
        """Name of the step, or of the table."""
        return self.step.name

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels, with counts."""
        return self.step.kernels

    @property
    def order(self) -> tuple[int, ...]:
        """The launch sequence, as indices into ``kernels``; empty when unknown."""
        return self.step.order

    @property
    def measuring(self) -> MeasurementSettings | None:
        """How long was waited and measured; ``None`` where unknown."""
        return self.provenance.measuring if self.provenance else None

    @cached_property
    def samples(self) -> tuple[Window, ...]:
        """Windows of kernels by themselves."""
        return tuple(w for w in self.windows if w.kernel and w.mix == ALONE)

    @cached_property
    def in_situ(self) -> tuple[Window, ...]:
        """Windows of the whole step by itself at auto clocks."""
        return tuple(w for w in self.windows if not w.kernel and w.mix == ALONE and w.asked.is_auto)

    @cached_property
    def locked_steps(self) -> tuple[Window, ...]:
        """The same at a locked core clock."""
        return tuple(w for w in self.windows if w.is_step and w.mix == ALONE and w.asked.core_mhz)

    @cached_property
    def mixed(self) -> tuple[Window, ...]:
        """Windows that tell more than their whole: with co-load, or with launches timed inside."""
        return tuple(w for w in self.windows if w.kernel_s or w.mix != ALONE)

    @property
    def launches(self) -> tuple[Kernel, ...]:
        """The kernel of every launch of the step, in order; none where the order is unknown."""
        return tuple(self.kernels[k] for k in self.order)

    @property
    def auto_mem_mhz(self) -> int | None:
        """Memory clock that runs where none is locked, as read; ``None`` where it was not read."""
        there = [*self.in_situ, *(s for s in self.samples if s.asked.mem_mhz is None)]
        read = [s.observed.mem_mhz for s in there if s.observed and s.observed.mem_mhz]
        return statistics.median_low(read) if read else None

    def unlike(self, other: "SampleSet") -> tuple[str, object, object] | None:
        """Return what keeps samples of two boards from being compared: its name and both values.

        ``None`` where only the boards may differ.
        """
        for noun, mine, theirs in (
            ("GPU models", self.gpu.name, other.gpu.name),
            ("drivers", self.gpu.driver, other.gpu.driver),
            ("power limits", self.gpu.power_limit_w, other.gpu.power_limit_w),
            ("kinds of evidence", self.evidence, other.evidence),
            ("steps", self.workload, other.workload),
            ("captures of the step", self.step.fingerprint, other.step.fingerprint),
        ):
            if mine != theirs:
                return noun, mine, theirs
        return None

    @property
    def is_table(self) -> bool:
        """Whether these are rows of a table, measured or simulated."""
        return self.evidence is Evidence.REPLAYED or bool(self.provenance and self.provenance.table)

    @property
    def is_exact(self) -> bool:
        """Whether a row is all there is to know, as in a table without repeats."""
        return self.is_table and not self.sampled and not any(s.repeat for s in self.samples)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is not needed
        """Return samples of single kernels as a pandas DataFrame, with the columns of a CSV table.

        Its column ``evidence`` says how rows were obtained, and goes along into a CSV file.

        `plan` and whatever else takes samples takes it back.

        Raises:
            NotSupportedError: pandas is not installed.
        """
        kernels = {kernel.name: kernel for kernel in self.kernels}
        return as_frame(
            {
                "gpu": self.gpu.name,
                "evidence": self.evidence.value,
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
