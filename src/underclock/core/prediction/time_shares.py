"""A kernel's constants from one run, with what utilisation or other kernels tell of its bounds.

One run cannot tell how a kernel's time splits between core and memory; DRAM utilisation can, about:
a kernel that keeps DRAM as busy as any does is bound by it, and what DRAM does not explain is left
to the core. Switching energy is what the run's power leaves over.

Where nothing tells the split, it can be tried: `kernel_of_split` gives the kernel that would have
a given split and still reproduce the run.
"""

import math
from dataclasses import dataclass

from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.power import idle_w, voltage_v
from underclock.physics.timing import dram_mhz, xbar_mhz

BUSIEST_DRAM = 0.93  # utilisation of a plain copy; nothing measured goes beyond about this


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What a kernel's time follows at one pair of clocks; the parts add to 1.

    Each is an elasticity: with a core part of 0.7, a core clock 1 % slower costs 0.7 % of time.
    Unlike cycles these can be carried to another GPU, or another kernel.
    """

    core: float
    """Core clock."""
    dram: float
    """Memory clock."""
    xbar: float = 0.0
    """Crossbar clock, which follows the core above a floor."""
    fixed: float
    """No clock."""
    serial: bool = False
    """Core and memory parts add, as in `KernelConstants`."""

    def __post_init__(self) -> None:
        """Reject what is no split."""
        parts = (self.core, self.dram, self.xbar, self.fixed)
        if min(parts) < 0 or not math.isclose(sum(parts), 1.0, abs_tol=1e-6):
            raise ValueError(f"a split has parts that add to 1, got {parts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of a kernel at one pair of clocks."""

    time_s: float
    """Of a launch."""
    power_w: float
    """Mean board power; where it is less than clocks alone draw, nothing is left to switching."""
    core_mhz: float
    mem_mhz: float
    temperature_c: float


def split_of(gpu: GpuConstants, kernel: KernelConstants, core_mhz: float, mem_mhz: float) -> Split:
    """Return how a kernel's time splits at given clocks."""
    core_s = kernel.core_mcycles / core_mhz
    dram_s = kernel.dram_mcycles / float(dram_mhz(gpu, mem_mhz))
    xbar_s = kernel.xbar_mcycles / float(xbar_mhz(gpu, core_mhz))
    n = 1.0 if kernel.serial else gpu.exponent
    longest_s = max(core_s, dram_s, xbar_s)
    if longest_s == 0:
        return Split(core=0.0, dram=0.0, fixed=1.0, serial=kernel.serial)
    core, dram, xbar = ((part_s / longest_s) ** n for part_s in (core_s, dram_s, xbar_s))
    moving_s = longest_s * (core + dram + xbar) ** (1.0 / n)
    fixed = kernel.fixed_s / (moving_s + kernel.fixed_s)
    each = (1.0 - fixed) / (core + dram + xbar)
    return Split(
        core=each * core,
        dram=each * dram,
        xbar=each * xbar,
        fixed=fixed,
        serial=kernel.serial,
    )


def split_of_dram_share(
    gpu: GpuConstants, *, dram_share: float, fixed: float, serial: bool
) -> Split:
    """Return the split of a kernel that keeps DRAM busy for a known part of its time.

    Args:
        gpu: Shared constants.
        dram_share: That part, 0 to 1.
        fixed: Time no clock changes, likewise.
        serial: Whether core and memory parts add.
    """
    n = 1.0 if serial else gpu.exponent
    moving = 1.0 - fixed
    dram = moving * min(1.0, dram_share / moving) ** n if moving > 0 else 0.0
    return Split(core=moving - dram, dram=dram, fixed=fixed, serial=serial)


def kernel_of_split(
    gpu: GpuConstants,
    split: Split,
    seen: Seen,
    dram_j_per_mcycle: float,
) -> KernelConstants:
    """Return the kernel that has a split and reproduces a run.

    Args:
        gpu: Shared constants.
        split: At the clocks of the run.
        seen: The run.
        dram_j_per_mcycle: Energy of DRAM traffic.
    """
    n = 1.0 if split.serial else gpu.exponent
    moving = split.core + split.dram + split.xbar
    core_s, dram_s, xbar_s = (
        seen.time_s * moving * (part / moving) ** (1.0 / n) if part else 0.0
        for part in (split.core, split.dram, split.xbar)
    )
    dram_mcycles = dram_s * float(dram_mhz(gpu, seen.mem_mhz))
    dram_j = dram_j_per_mcycle * dram_mcycles
    static_w = float(idle_w(gpu, seen.core_mhz, seen.mem_mhz, seen.temperature_c))
    switching_j = max(0.0, (seen.power_w - static_w) * seen.time_s - dram_j)
    return KernelConstants(
        core_mcycles=core_s * seen.core_mhz,
        dram_mcycles=dram_mcycles,
        xbar_mcycles=xbar_s * float(xbar_mhz(gpu, seen.core_mhz)),
        fixed_s=seen.time_s * split.fixed,
        work_j_per_v2=switching_j / float(voltage_v(gpu, seen.core_mhz)) ** 2,
        dram_j=dram_j,
        serial=split.serial,
    )
