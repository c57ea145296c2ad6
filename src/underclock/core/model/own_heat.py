"""How warm the GPU is while a kernel runs: at a lock that saves power it is cooler, and leaks less.

Inside a step all kernels share one temperature. Alone, a kernel that is measured for longer than
the GPU takes to warm up meets its own; one that is measured for a second meets that of its
neighbours. What was read tells which.

Shape letters: K kernels, C settings.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.records import SampleSet

STEADY_C = 55.0  # where no temperature was read


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """Temperature of every kernel: a line in the power it draws.

    Attributes:
        at_rest_c: Where the line begins, of each kernel. Shape (K,).
        c_per_w: Its slope.
    """

    at_rest_c: Floats
    c_per_w: float = 0.0

    @classmethod
    def steady(cls, kernels: int, temperature_c: float) -> Self:
        """Return one temperature for all, whatever they draw."""
        return cls(at_rest_c=np.full(kernels, temperature_c))

    @classmethod
    def own(cls, sample_set: SampleSet) -> Self:
        """Return the heat that kernels have by themselves, as it was read.

        The slope is that within kernels, so that kernels measured for a second do not hide it.
        """
        index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
        known = [s for s in sample_set.samples if s.temperature_c is not None]
        if not known:
            return cls.steady(len(index), STEADY_C)
        place = np.array([index[s.kernel] for s in known])
        power_w = np.array([s.energy_j / s.time_s for s in known])
        warm_c = np.array([s.temperature_c for s in known], dtype=np.float64)
        mean_w, mean_c = (_means(place, each, len(index)) for each in (power_w, warm_c))
        off_w = power_w - mean_w[place]
        drawn2 = float(off_w @ off_w)
        slope = max(0.0, float(off_w @ (warm_c - mean_c[place])) / drawn2) if drawn2 else 0.0
        at_rest_c = mean_c - slope * mean_w
        # A kernel of which no temperature was read is as warm as the others.
        return cls(
            at_rest_c=np.where(np.isfinite(at_rest_c), at_rest_c, np.nanmean(at_rest_c)),
            c_per_w=slope,
        )

    def at(self, kernels: Ints, power_w: Floats | float) -> Floats:
        """Return the temperature of some kernels in °C, in the shape of their power.

        Args:
            kernels: Which. Shape (N,).
            power_w: What they draw. Shape (N, C), or one for all.
        """
        warm_c: Floats = self.at_rest_c[kernels][:, None] + self.c_per_w * np.asarray(power_w)
        return warm_c


def _means(place: Ints, values: Floats, count: int) -> Floats:
    """Return the mean of the values of each kernel, ``nan`` of none. Shape (K,)."""
    with np.errstate(invalid="ignore"):
        means: Floats = np.bincount(place, values, count) / np.bincount(place, minlength=count)
    return means
