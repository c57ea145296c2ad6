"""The core clock at which a power limit holds, over a kernel that repeats.

The driver's loop steps between clock bins many times a second. Over a kernel that runs for long
it settles into alternating between the two bins around the limit, so the mean clock lies between.
"""

import numpy as np

from underclock.arrays import Floats
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.power import busy_w

WINDOW_S = 0.1
"""Time constant of the mean power that the driver's loop holds below the limit, in s: on an H200 it
averages over about 100 ms."""


def capped_core_mhz(
    gpu: GpuConstants,
    kernel: KernelConstants,
    bins_mhz: Floats,
    mem_mhz: float,
    temperature_c: float,
    limit_w: float,
) -> float:
    """Return the mean core clock in MHz at which a kernel draws no more than the limit.

    Args:
        gpu: The GPU.
        kernel: What runs, over and over.
        bins_mhz: Clocks the loop may use, ascending; the last is what is asked for.
        mem_mhz: Memory clock.
        temperature_c: Temperature.
        limit_w: Power the loop settles at.

    Returns:
        The greatest bin if it fits, the least if none does.
    """
    power_w = busy_w(gpu, kernel, bins_mhz, np.full_like(bins_mhz, mem_mhz), temperature_c)
    return settled_mhz(bins_mhz, power_w, limit_w)


def settled_mhz(bins_mhz: Floats, power_w: Floats, limit_w: float) -> float:
    """Return the mean core clock in MHz at which no more than the limit is drawn.

    Args:
        bins_mhz: As of `capped_core_mhz`.
        power_w: Drawn at each of them.
        limit_w: Power the loop settles at.
    """
    fits = np.flatnonzero(power_w <= limit_w)
    if len(fits) == 0:
        return float(bins_mhz[0])
    last = int(fits[-1])
    if last == len(bins_mhz) - 1:
        return float(bins_mhz[last])
    share = (limit_w - power_w[last]) / (power_w[last + 1] - power_w[last])
    return float(bins_mhz[last] + share * (bins_mhz[last + 1] - bins_mhz[last]))
