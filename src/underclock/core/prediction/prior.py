"""The prior of a prediction: what is known of a GPU before its kernels are measured.

It holds the GPU's shared constants, how far off they may be, and reference kernels whose time
shares stand for those of kernels nobody measured at other clocks.

Shape letters: N reference kernels.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from underclock.arrays import Floats
from underclock.core.prediction.time_shares import TimeShares, time_shares
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import busy_w
from underclock.records import Utilisation


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDeviations:
    """Standard deviations of the logarithms of shared constants."""

    exponent: float
    """Of the p-norm's exponent."""
    knee: float
    """Of the clock above which voltage rises."""
    rise: float
    """Of how steeply it rises."""
    leak: float
    """Of leakage power."""
    clock: float
    """Of the clock tree's power."""
    board: float
    """Of the power that no clock changes."""
    memory: float
    """Of the memory's power without traffic."""
    traffic: float
    """Of the energy of traffic."""
    efficiency: float
    """Of bytes per cycle at slower memory clocks."""
    time: float
    """Of time at other clocks than the run's, for all that these constants do not say. Where
    nothing may be slower, this deviation decides which clocks are."""
    power: float
    """Of power at other clocks than the run's, for the same reason."""

    def times(self, factor: float) -> "LogDeviations":
        """Return deviations that are greater by a factor."""
        return LogDeviations(
            **{each.name: factor * getattr(self, each.name) for each in dataclasses.fields(self)}
        )


FITTED = LogDeviations(
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
"""For constants that were fitted to a sweep: about what fits to other kernels of it differ by."""
PUBLISHED = LogDeviations(
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
"""For published figures: about what fits to sweeps differ by from the figures they began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceKernel:
    """A kernel whose sweep is known.

    Attributes:
        shares: Its time shares at auto clocks.
        power_share: Its power at auto clocks over the power limit.
        source: The sweep it was measured in: kernels of one sweep are more alike than others.
    """

    shares: TimeShares
    power_share: float
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of a GPU before anything is measured.

    Attributes:
        gpu: Shared constants.
        deviations: How well they are known.
        references: Kernels that are known, of this GPU or of others. Length N.
        dram_j_per_mcycle: Energy of DRAM traffic.
        limit_w: Power at which a capped GPU settles.
        off: By how much samples lie further from it than it allows for; 1 for what it says.
    """

    gpu: GpuConstants
    deviations: LogDeviations
    references: tuple[ReferenceKernel, ...]
    dram_j_per_mcycle: float
    limit_w: float
    off: float = 1.0

    def __post_init__(self) -> None:
        """Reject a prior without reference kernels."""
        if not self.references:
            raise ValueError("without reference kernels nothing can be said of others")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun:
    """What one kernel did at the baseline clocks.

    Attributes:
        time_s: Duration of a launch.
        power_w: Mean board power.
        core_mhz: Mean core clock; ``None`` where nobody read it.
        mem_mhz: Mean memory clock.
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


def reference_kernels(
    gpu: GpuConstants,
    kernels: Iterable[KernelConstants],
    bins_mhz: Floats,
    limit_w: float,
    source: str = "",
) -> tuple[ReferenceKernel, ...]:
    """Describe fitted kernels as they run at auto clocks.

    Args:
        gpu: Shared constants of the GPU they were fitted on.
        kernels: Their constants.
        bins_mhz: Core clocks of that GPU, ascending.
        limit_w: Power at which it settles when capped.
        source: What to call the sweep.
    """
    mem_mhz = gpu.mem_points_mhz[-1]
    hot_c = steady_c(gpu, limit_w)
    references = []
    for kernel in kernels:
        core_mhz = capped_core_mhz(gpu, kernel, bins_mhz, mem_mhz, hot_c, limit_w)
        drawn_w = float(busy_w(gpu, kernel, core_mhz, mem_mhz, hot_c))
        shares = time_shares(gpu, kernel, core_mhz, mem_mhz)
        references.append(
            ReferenceKernel(shares=shares, power_share=drawn_w / limit_w, source=source)
        )
    return tuple(references)


def steady_c(gpu: GpuConstants, power_w: float) -> float:
    """Return the temperature in °C that a GPU settles at under a power."""
    return gpu.ambient_c + gpu.c_per_w * power_w
