"""Whether the power cap held the clocks of a sample: one rule for all who ask.

What the driver said decides where it was asked. Elsewhere a sample that draws nearly the limit is
taken to be held; how nearly depends on what a mistake would cost.

Shape letters: K kernels.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.records import AUTO, Sample, SampleSet, ThrottleReason


class CapMargin(float, Enum):
    """Part of the limit from which a sample counts as held."""

    FIT = 0.985
    """To leave locked rows out of a fit: each row left out in error is knowledge lost."""
    NEIGHBOUR = 0.95
    """Of the power of kernels that are held: on a warmer GPU the cap holds these too."""
    UNREAD = 0.93
    """Of runs of which neither clocks nor throttle reasons were read: their mean power includes
    moments below the limit."""


def driver_says(reasons: ThrottleReason | None) -> bool | None:
    """Return whether the driver named the power cap; ``None`` where it was not asked.

    Args:
        reasons: What it gave for the clocks of a sample or a reading.
    """
    if reasons is None:
        return None
    return bool(reasons & ThrottleReason.SW_POWER_CAP)


def draws_limit(power_w: Floats, limit_w: float, margin: CapMargin) -> Bools:
    """Return where power is next to a limit."""
    return np.asarray(power_w >= margin.value * limit_w, dtype=np.bool_)


def is_power_capped(samples: Sequence[Sample], limit_w: float, margin: CapMargin) -> Bools:
    """Return which samples the power cap held.

    Args:
        samples: Of one campaign; where the driver was asked of any, what it said decides for all.
        limit_w: Power limit.
        margin: Part of it, where the driver was not asked.
    """
    said = [driver_says(sample.throttle_reasons) for sample in samples]
    if any(word is not None for word in said):
        return np.array([bool(word) for word in said])
    power_w = np.array([sample.energy_j / sample.time_s for sample in samples])
    return draws_limit(power_w, limit_w, margin)


def capped_kernels(sample_set: SampleSet) -> Bools:
    """Return which kernels were at the power cap at auto clocks, or next to it. Shape (K,)."""
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    capped = np.zeros(len(index), dtype=bool)
    power_w = np.zeros(len(index))
    for sample in sample_set.samples:
        if sample.asked == AUTO:
            k = index[sample.kernel]
            capped[k] |= bool(driver_says(sample.throttle_reasons))
            power_w[k] = max(power_w[k], sample.energy_j / sample.time_s)
    return near_cap(power_w, capped)


def near_cap(power_w: Floats, capped: Bools) -> Bools:
    """Return which kernels draw about as much as those the cap holds: warmer, it holds them too.

    Args:
        power_w: Of each kernel alone at auto. Shape (K,).
        capped: Which the driver said were at the cap. Shape (K,).
    """
    if not capped.any():
        return capped
    held_w = float(np.median(power_w[capped]))
    return capped | draws_limit(power_w, held_w, CapMargin.NEIGHBOUR)
