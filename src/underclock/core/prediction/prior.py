"""What is known of a GPU before its kernels are measured: constants, their spread, other kernels.

Shape letters: N known kernels.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from underclock.arrays import Floats
from underclock.core.prediction.time_shares import Split, split_of
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.power import busy_w
from underclock.records import Utilisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviation of the logarithm of shared constants."""

    exponent: float
    """Of the p-norm."""
    knee: float
    """Of the clock above which voltage rises."""
    rise: float
    """Of how much it rises."""
    leak: float
    """Of leakage."""
    clock: float
    """Of the clock tree."""
    board: float
    """Of what no clock changes."""
    memory: float
    """Of the memory's power without traffic."""
    traffic: float
    """Of the energy of traffic."""
    efficiency: float
    """Of bytes per cycle at slower memory clocks."""
    time: float
    """Of time at other clocks beside that of the run, for all that these constants do not say.
    Where nothing may be slower, it decides what is."""
    power: float
    """Of power, likewise."""


FITTED = Spread(
    exponent=0.1,
    knee=0.04,
    rise=0.2,
    leak=0.3,
    clock=0.3,
    board=0.3,
    memory=0.15,
    traffic=0.3,
    efficiency=0.03,
    time=0.01,
    power=0.02,
)
"""Where a sweep told the constants: about what fits to other kernels of it differ by."""
PUBLISHED = Spread(
    exponent=0.4,
    knee=0.12,
    rise=0.6,
    leak=0.6,
    clock=0.6,
    board=0.5,
    memory=0.4,
    traffic=0.6,
    efficiency=0.15,
    time=0.01,
    power=0.02,
)
"""Where none did: about what fits to sweeps differ by from the figures they began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A known kernel.

    Attributes:
        split: At auto clocks.
        power_share: Its power there over the power limit.
    """

    split: Split
    power_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a GPU before anything is measured.

    Attributes:
        gpu: Shared constants.
        spread: How well they are known.
        members: Kernels that are known, of it or of others. Length N.
        dram_j_per_mcycle: Energy of DRAM traffic.
        limit_w: Power at which a capped GPU settles.
    """

    gpu: GpuConstants
    spread: Spread
    members: tuple[Member, ...]
    dram_j_per_mcycle: float
    limit_w: float

    def __post_init__(self) -> None:
        """Reject a population of none."""
        if not self.members:
            raise ValueError("without known kernels nothing can be said of others")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one kernel did at the baseline.

    Attributes:
        time_s: Of a launch.
        power_w: Mean.
        core_mhz: ``None`` where nobody read it.
        mem_mhz: Memory clock.
        temperature_c: ``None`` where nobody read it.
        capped: Whether it was at the power cap.
        locked: Whether its core clock was held rather than auto.
        utilisation: ``None`` where there were no counters.
    """

    time_s: float
    power_w: float
    core_mhz: float | None
    mem_mhz: float
    temperature_c: float | None = None
    capped: bool = False
    locked: bool = False
    utilisation: Utilisation | None = None


def members_of(
    gpu: GpuConstants, kernels: Iterable[KernelConstants], bins_mhz: Floats, limit_w: float
) -> tuple[Member, ...]:
    """Say what known kernels are like at auto clocks.

    Args:
        gpu: Shared constants of the GPU they are known on.
        kernels: Their constants.
        bins_mhz: Its core clocks, ascending.
        limit_w: Power at which it settles when capped.
    """
    mem_mhz = gpu.mem_points_mhz[-1]
    hot_c = steady_c(gpu, limit_w)
    found = []
    for kernel in kernels:
        core_mhz = capped_core_mhz(gpu, kernel, bins_mhz, mem_mhz, hot_c, limit_w)
        drawn_w = float(busy_w(gpu, kernel, core_mhz, mem_mhz, hot_c))
        split = split_of(gpu, kernel, core_mhz, mem_mhz)
        found.append(Member(split=split, power_share=drawn_w / limit_w))
    return tuple(found)


def steady_c(gpu: GpuConstants, power_w: float) -> float:
    """Return the steady temperature in °C at a power."""
    return gpu.ambient_c + gpu.c_per_w * power_w
