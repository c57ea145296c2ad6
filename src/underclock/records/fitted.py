"""What a fit says of a GPU and of the kernels measured on it."""

from underclock.records import SCHEMAS, Clocks, Evidence, GpuInfo, Record
from underclock.records.common import check_not_negative


class Constant(Record, frozen=True, kw_only=True):
    """A constant of the GPU, shared by all kernels.

    Attributes:
        unit: Of what follows; empty for a plain number.
        told: Share of its prior variance that the samples remove, 0 to 1.
    """

    name: str
    unit: str
    value: float
    error: float
    told: float

    def __post_init__(self) -> None:
        check_not_negative(self, "error", "told")


class KernelFit(Record, frozen=True, kw_only=True):
    """How one kernel is described.

    Attributes:
        samples: Taken of it.
        rows: Of which so many were at clocks that held, away from the power cap.
        clocks: Where the shares and the energy hold; ``None`` without rows, like all that follows.
        core_share: Of its time, what goes with the core clock.
        dram_share: With the memory clock; the crossbar's part too.
        fixed_share: With neither.
        energy_j: Of a launch.
        energy_error_j: Standard error of that.
        time_rms: Residual of the rows' time, as a fraction.
        described: Whether the model holds for it. Where it does not, trust its own samples only.
    """

    name: str
    samples: int
    rows: int
    clocks: Clocks | None = None
    core_share: float | None = None
    dram_share: float | None = None
    fixed_share: float | None = None
    energy_j: float | None = None
    energy_error_j: float | None = None
    time_rms: float | None = None
    power_rms: float | None = None
    described: bool

    def __post_init__(self) -> None:
        check_not_negative(self, "samples", "rows", "core_share", "dram_share", "fixed_share")
        check_not_negative(self, "energy_j", "energy_error_j", "time_rms", "power_rms")


class GpuFit(Record, frozen=True, kw_only=True, tag_field="kind", tag="fit"):
    """One model of all kernels on one GPU.

    Attributes:
        workload: Names of the steps or tables.
        samples: Of all kernels, those with a co-load and of the whole step included.
        rows: Observations of single kernels at known clocks. A whole step or a sample with a
            co-load may hold several, and one at the power cap none.
        cap_w: Power that capped samples settle at; ``None`` where none was capped.
        boost_mhz: Least core clock the GPU boosted to by itself; ``None`` where it was not seen.
        time_noise: Standard deviation of one sample's time about its mean, as a fraction; of power
            likewise, here and below.
        time_discrepancy: Standard deviation of the part of the residuals that samples at like
            clocks share, which noise does not explain, as a fraction.
        time_rms: Residual over all rows, as a fraction.
        common_share: Of the variance of all kernels' summed energy, the part that an error in a
            constant of the GPU moves in all of them together.
    """

    schema: int = SCHEMAS["fit"]
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    samples: int
    rows: int
    constants: tuple[Constant, ...]
    cap_w: float | None
    boost_mhz: float | None
    time_noise: float
    power_noise: float
    time_discrepancy: float
    power_discrepancy: float
    time_rms: float
    power_rms: float
    common_share: float
    kernels: tuple[KernelFit, ...]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_not_negative(self, "samples", "rows", "cap_w", "boost_mhz", "time_noise")
        check_not_negative(self, "power_noise", "time_discrepancy", "power_discrepancy")
        check_not_negative(self, "time_rms", "power_rms", "common_share")
