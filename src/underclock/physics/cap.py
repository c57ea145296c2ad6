"""The core clock at which a power limit holds, over a kernel that repeats.

The driver's loop steps between clock bins many times a second. Over a kernel that runs for long
it settles into alternating between the two bins around the limit, so the mean clock lies between.
The power that is held below the limit is a mean in which the past counts less the older it is.

Shape letters: n launches; further axes are sequences side by side.
"""

import numpy as np

from underclock.arrays import Floats
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import busy_w

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
        bins_mhz: Clocks the loop may use, ascending; the last is what is asked for.

    Returns:
        The greatest bin if it fits, the least if none does.
    """
    power_w = busy_w(gpu, kernel, bins_mhz, np.full_like(bins_mhz, mem_mhz), temperature_c)
    return settled_mhz(bins_mhz, power_w, limit_w)


def settled_mhz(bins_mhz: Floats, power_w: Floats, limit_w: float) -> float:
    """Return the mean core clock in MHz at which no more than the limit is drawn."""
    fits = np.flatnonzero(power_w <= limit_w)
    if len(fits) == 0:
        return float(bins_mhz[0])
    last = int(fits[-1])
    if last == len(bins_mhz) - 1:
        return float(bins_mhz[last])
    share = (limit_w - power_w[last]) / (power_w[last + 1] - power_w[last])
    return float(bins_mhz[last] + share * (bins_mhz[last + 1] - bins_mhz[last]))


def window_means_w(time_s: Floats, energy_j: Floats, window_s: float = WINDOW_S) -> Floats:
    """Return the mean power at the end of each launch of a round that repeats for ever.

    It rises or falls steadily during a launch, so no moment exceeds what two ends do.

    Args:
        time_s: Of each launch. Shape (n, ...).
        energy_j: Likewise. Shape (n, ...).

    Raises:
        ValueError: A round takes no time.
    """
    round_s = time_s.sum(axis=0)
    if not (round_s > 0.0).all():
        raise ValueError("a round that takes no time has no mean power")
    left = np.exp(-time_s / window_s)
    gained_w = energy_j / window_s * early_part(time_s / window_s)
    means_w, mean_w = np.empty_like(gained_w), 0.0
    for launch, (share, gain_w) in enumerate(zip(left, gained_w, strict=True)):
        mean_w = mean_w * share + gain_w
        means_w[launch] = mean_w
    # The rounds before: what was left at the end of the last is there at the start of this.
    before_w = mean_w / -np.expm1(-round_s / window_s)
    whole_w: Floats = means_w + before_w * np.cumprod(left, axis=0)
    return whole_w


def early_part(x: Floats) -> Floats:
    """Return what is left, on average over x, of what decays by the end of it. Shape of x."""
    return np.where(x > 0.0, -np.expm1(-x) / np.where(x > 0.0, x, 1.0), 1.0)
