"""What was measured: samples of kernels on a GPU."""

import msgspec

from underclock.records.common import AUTO, Clocks, Evidence, Record, check_positive
from underclock.records.shown import as_html, as_line
from underclock.records.work import Kernel


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
        check_positive(self, "power_limit_w")


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
        check_positive(self, "time_s", "energy_j", "window_s")
        if self.repeat < 0:
            raise ValueError(f"repeat must not be negative, got {self.repeat}")


POWER_CAP_REASON = 0x4  # NVML: nvmlClocksEventReasonSwPowerCap


class SampleSet(Record, frozen=True, kw_only=True):
    """Everything measured of one step on one GPU.

    Attributes:
        evidence: How the samples were obtained; one kind per sample_set.
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
    lacking: dict[str, tuple[Clocks, ...]] = msgspec.field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return as_line("SampleSet", self._heading, self._facts)

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        return as_html("SampleSet", self._heading, self._facts)

    @property
    def _heading(self) -> str:
        return f"{self.workload} on {self.gpu.name}, {self.evidence}"

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
