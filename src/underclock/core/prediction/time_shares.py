"""Time shares: which part of a kernel's time follows which clock, and the constants they imply.

One run cannot tell how a kernel's time divides between core and memory. DRAM utilisation roughly
can: a kernel that keeps DRAM as busy as any does is bound by it, and what DRAM does not explain is
left to the core. Switching energy is what the run's power leaves over.

Where nothing tells the shares, they can be tried: `kernel_with_shares` gives the kernel that would
have given shares and still reproduce the run.
"""

import math
from dataclasses import dataclass

from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import dram_mhz, idle_w, voltage_v, xbar_mhz

BUSIEST_DRAM = 0.93  # utilisation of a plain copy; nothing measured goes beyond about this


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """What a kernel's time follows at one pair of clocks; the shares add to 1.

    Each share is an elasticity: with a core share of 0.7, a core clock 1 % slower costs 0.7 % of
    time. Unlike cycles, shares can be carried to another GPU or another kernel.
    """

    core: float
    """Follows the core clock."""
    dram: float
    """Follows the memory clock."""
    xbar: float = 0.0
    """Follows the crossbar's clock, which follows the core above a floor."""
    fixed: float
    """Follows no clock."""
    serial: bool = False
    """Whether core and memory shares add, as in `KernelConstants`."""

    def __post_init__(self) -> None:
        """Reject shares that are negative or do not add to 1."""
        shares = (self.core, self.dram, self.xbar, self.fixed)
        if min(shares) < 0 or not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise ValueError(f"time shares must add to 1 and not be negative, got {shares}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """The conditions of one run of a kernel, and what it took."""

    time_s: float
    """Duration of a launch."""
    power_w: float
    """Mean board power; where it is less than clocks alone draw, nothing is left to switching."""
    core_mhz: float
    mem_mhz: float
    temperature_c: float


def time_shares(
    gpu: GpuConstants, kernel: KernelConstants, core_mhz: float, mem_mhz: float
) -> TimeShares:
    """Return a kernel's time shares at given clocks."""
    core_s = kernel.core_mcycles / core_mhz
    dram_s = kernel.dram_mcycles / float(dram_mhz(gpu, mem_mhz))
    xbar_s = kernel.xbar_mcycles / float(xbar_mhz(gpu, core_mhz))
    n = 1.0 if kernel.serial else gpu.exponent
    longest_s = max(core_s, dram_s, xbar_s)
    if longest_s == 0:
        return TimeShares(core=0.0, dram=0.0, fixed=1.0, serial=kernel.serial)
    core, dram, xbar = ((part_s / longest_s) ** n for part_s in (core_s, dram_s, xbar_s))
    moving_s = longest_s * (core + dram + xbar) ** (1.0 / n)
    fixed = kernel.fixed_s / (moving_s + kernel.fixed_s)
    scale = (1.0 - fixed) / (core + dram + xbar)
    return TimeShares(
        core=scale * core,
        dram=scale * dram,
        xbar=scale * xbar,
        fixed=fixed,
        serial=kernel.serial,
    )


def shares_from_dram(
    gpu: GpuConstants, *, dram_busy: float, fixed: float, serial: bool
) -> TimeShares:
    """Return the shares of a kernel that keeps DRAM busy for a known part of its time.

    Args:
        gpu: Shared constants.
        dram_busy: The part of its time in which DRAM is busy, 0 to 1.
        fixed: The part of its time that follows no clock, 0 to 1.
        serial: Whether core and memory shares add.
    """
    n = 1.0 if serial else gpu.exponent
    moving = 1.0 - fixed
    dram = moving * min(1.0, dram_busy / moving) ** n if moving > 0 else 0.0
    return TimeShares(core=moving - dram, dram=dram, fixed=fixed, serial=serial)


def kernel_with_shares(
    gpu: GpuConstants, shares: TimeShares, run: OperatingPoint, dram_j_per_mcycle: float
) -> KernelConstants:
    """Return the kernel that has given time shares and reproduces a run.

    Args:
        gpu: Shared constants.
        shares: At the clocks of the run.
        run: What to reproduce.
        dram_j_per_mcycle: Energy of DRAM traffic.
    """
    n = 1.0 if shares.serial else gpu.exponent
    moving = shares.core + shares.dram + shares.xbar
    core_s, dram_s, xbar_s = (
        run.time_s * moving * (share / moving) ** (1.0 / n) if share else 0.0
        for share in (shares.core, shares.dram, shares.xbar)
    )
    dram_mcycles = dram_s * float(dram_mhz(gpu, run.mem_mhz))
    dram_j = dram_j_per_mcycle * dram_mcycles
    static_w = float(idle_w(gpu, run.core_mhz, run.mem_mhz, run.temperature_c))
    switching_j = max(0.0, (run.power_w - static_w) * run.time_s - dram_j)
    return KernelConstants(
        core_mcycles=core_s * run.core_mhz,
        dram_mcycles=dram_mcycles,
        xbar_mcycles=xbar_s * float(xbar_mhz(gpu, run.core_mhz)),
        fixed_s=run.time_s * shares.fixed,
        work_j_per_v2=switching_j / float(voltage_v(gpu, run.core_mhz)) ** 2,
        dram_j=dram_j,
        serial=shares.serial,
    )


def kernel_from_auto(
    gpu: GpuConstants,
    *,
    time_s: float,
    power_w: float,
    core_mhz: float,
    dram_share: float,
    temperature_c: float,
    dram_w: float,
) -> KernelConstants:
    """Derive constants that reproduce one run.

    Args:
        gpu: Shared constants.
        time_s: Duration of a launch.
        power_w: Mean board power.
        core_mhz: Mean core clock.
        dram_share: DRAM bandwidth utilisation, 0 to 1.
        temperature_c: During the run.
        dram_w: Power of DRAM traffic at full utilisation.
    """
    mem = gpu.mem_points_mhz[-1]
    busy = min(0.999, dram_share / BUSIEST_DRAM)
    n = gpu.exponent
    core_s = time_s * (1.0 - busy**n) ** (1.0 / n)
    traffic_w = dram_w * min(1.0, dram_share)
    static_w = float(idle_w(gpu, core_mhz, mem, temperature_c))
    switching_w = max(0.0, power_w - static_w - traffic_w)
    volts = float(voltage_v(gpu, core_mhz))
    return KernelConstants(
        core_mcycles=max(core_s, 1e-3 * time_s) * core_mhz,
        dram_mcycles=time_s * busy * float(dram_mhz(gpu, mem)),
        work_j_per_v2=switching_w * time_s / volts**2,
        dram_j=traffic_w * time_s,
    )
