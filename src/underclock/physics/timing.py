"""How long a kernel takes at given clocks.

t = (t_core^n + t_dram^n + t_xbar^n)^(1/n) + fixed. With n near 3.4 the greatest error on a
measured layer-norm sweep was 0.6 %; n → ∞ would be the roofline. A kernel with too few warps in
flight overlaps nothing: its parts add, n = 1.
"""

import numpy as np

from underclock.physics.constants import GpuConstants, KernelLike, Values

_SHORTEST_S = 1e-15  # keeps a kernel that is all fixed time from dividing by zero


def xbar_mhz(gpu: GpuConstants, core_mhz: Values) -> Values:
    """Return the crossbar clock in MHz: a floor, then a fixed lag behind the core.

    Source: an RTX 3070 Ti holds 1335 MHz until the core passes about 1450, then core - 80.
    """
    clock: Values = np.maximum(gpu.xbar_floor_mhz, core_mhz - gpu.xbar_lag_mhz)
    return clock


def dram_mhz(gpu: GpuConstants, mem_mhz: Values) -> Values:
    """Return the memory clock in MHz that would move as many bytes at full efficiency."""
    efficiency: Values = np.interp(mem_mhz, gpu.mem_points_mhz, gpu.mem_points_efficiency)
    return mem_mhz * efficiency


def duration_s(
    gpu: GpuConstants,
    kernel: KernelLike[float] | KernelLike[Values],
    core_mhz: Values,
    mem_mhz: Values,
) -> Values:
    """Return the duration of one launch in s."""
    core_s, dram_s, xbar_s = parts_s(gpu, kernel, core_mhz, mem_mhz)
    duration: Values = joined(core_s, dram_s, xbar_s, kernel.exponent(gpu)) + kernel.fixed_s
    return duration


def parts_s(
    gpu: GpuConstants,
    kernel: KernelLike[float] | KernelLike[Values],
    core_mhz: Values,
    mem_mhz: Values,
) -> tuple[Values, Values, Values]:
    """Return what core, DRAM and crossbar would take in s, each with nothing else in the way."""
    core_s: Values = kernel.core_mcycles / core_mhz
    dram_s: Values = kernel.dram_mcycles / dram_mhz(gpu, mem_mhz)
    xbar_s: Values = kernel.xbar_mcycles / xbar_mhz(gpu, core_mhz)
    return core_s, dram_s, xbar_s


def joined(core_s: Values, dram_s: Values, xbar_s: Values, exponent: float | Values) -> Values:
    """Return the p-norm in s of the parts of a kernel's time."""
    # Relative to the longest part, so that no power overflows.
    longest: Values = np.maximum(np.maximum(np.maximum(core_s, dram_s), xbar_s), _SHORTEST_S)
    total: Values = (
        (core_s / longest) ** exponent
        + (dram_s / longest) ** exponent
        + (xbar_s / longest) ** exponent
    )
    together: Values = longest * total ** (1.0 / exponent)
    return together
