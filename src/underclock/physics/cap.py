"""The core clock at which a power limit holds, over a kernel that repeats.

The driver's loop steps between clock bins many times a second. Over a kernel that runs for long
it settles into alternating between the two bins around the limit, so the mean clock lies between.
The power that is held below the limit is a mean in which the past counts less the older it is.

Shape letters: n launches; further axes are sequences side by side.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import busy_w

WINDOW_S = 0.1
"""Over so long, in s, a driver's loop averages what it holds below the limit: what is shorter has
one clock."""


def capped_core_mhz(
    gpu: GpuConstants,
    kernel: KernelConstants,
    bins_mhz: Floats,
    mem_mhz: float,
    temperature_c: float,
    limit_w: float,
) -> float:
    """Return the mean core clock in MHz at which a kernel draws no more than the limit.

    The loop may use ascending bins, of which the last is asked for: the greatest if it fits, the
    least if none does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fading:
    """How the past fades in the mean power that a loop holds below the limit."""

    each_s: float  # time constant of each stage, in s
    stages: int = 1  # 1 or 2: a second one takes the mean of the first

    def means_w(self, time_s: Floats, energy_j: Floats) -> Floats:
        """Return the mean power in W at the end of each launch of a round that repeats for ever.

        Shapes (n, ...).

        Raises:
            ValueError: A round takes no time.
        """
        past = time_s / self.each_s
        round_ = past.sum(axis=0)
        if not (round_ > 0.0).all():
            raise ValueError("a round that takes no time has no mean power")
        left, early = np.exp(-past), early_part(past)
        means_w = _follow(left, energy_j / self.each_s * early)
        # The rounds before: what was left at the end of the last is there at the start of this.
        before_w, fades = means_w[-1] / -np.expm1(-round_), np.cumprod(left, axis=0)
        whole_w: Floats = means_w + before_w * fades
        if self.stages == 1:
            return whole_w
        # A launch's own power reaches the second stage late; what the first had comes after it.
        had_w = np.concatenate([before_w[None], whole_w[:-1]])
        second_w = _follow(left, energy_j / self.each_s * (early - left) + had_w * past * left)
        twice_w: Floats = second_w + second_w[-1] / -np.expm1(-round_) * fades
        return twice_w

    def weights(self, time_s: Floats, windows: Floats) -> Floats:
        """Return how much a joule of each launch counts in some windows together. Shapes (n,).

        ``windows`` is how much the window that ends with each launch counts.
        """
        past = time_s / self.each_s
        left, early = np.exp(-past), early_part(past)
        round_ = float(past.sum())
        counts = np.zeros(len(past))
        first = second = 0.0
        for _ in range(2):
            for launch in range(len(past) - 1, -1, -1):
                if self.stages == 1:
                    first += windows[launch]
                else:
                    second += windows[launch]
                counts[launch] = first * early[launch] + second * (early[launch] - left[launch])
                first = (first + second * past[launch]) * left[launch]
                second *= left[launch]
            # The rounds after: what the windows of one leave for its beginning, they all do.
            fading = -math.expm1(-round_)
            second /= fading
            first = (first + math.exp(-round_) * round_ * second) / fading
        return counts


def _follow(left: Floats, gained_w: Floats) -> Floats:
    """Return a mean after each launch, from nothing: what is left of it and what is gained."""
    means_w, mean_w = np.empty_like(gained_w), 0.0
    for launch, (share, gain_w) in enumerate(zip(left, gained_w, strict=True)):
        mean_w = mean_w * share + gain_w
        means_w[launch] = mean_w
    return means_w


SIMULATED = Fading(each_s=WINDOW_S)
"""Of the loops that simulated GPUs have."""
REAL = Fading(each_s=0.02, stages=2)
"""As clocks inside long steps tell it of H200s (docs/evidence/h200/steering.md); else assumed."""


def early_part(x: Floats) -> Floats:
    """Return what is left, on average over x, of what decays by the end of it. Shape of x."""
    return np.where(x > 0.0, -np.expm1(-x) / np.where(x > 0.0, x, 1.0), 1.0)
