"""At which clocks samples ran, where those are not the clocks asked for.

The power cap holds what would draw more, no core runs above what it boosts to, and what was left to
the driver runs where it was read.
"""

import math
from collections.abc import Sequence

import numpy as np

from underclock.core.model.sample_sets import clocks_asked
from underclock.core.step.cap import CapMargin, driver_says, is_power_capped
from underclock.records import SampleSet, Window

UNKNOWN_MHZ = 1.0
"""Stands for the one memory clock of samples that do not name it."""
_PILE = 3  # kernels at the same greatest power, from which a cap is concluded


def memory_mhz(sample_set: SampleSet) -> list[float]:
    """Return the GPU's memory clocks, ascending: as asked, else as read back, else one unknown."""
    asked = {float(clocks.mem_mhz) for clocks in clocks_asked(sample_set) if clocks.mem_mhz}
    observed = [sample.observed for sample in sample_set.samples if sample.observed]
    read = {float(clocks.mem_mhz) for clocks in observed if clocks.mem_mhz}
    return sorted(asked or read or {UNKNOWN_MHZ})


def own_memory_mhz(sample_set: SampleSet, memory: list[float]) -> float:
    """Return the memory clock of a GPU left to itself: as read there, else the fastest.

    Args:
        memory: Memory clocks of the GPU, ascending.
    """
    return float(sample_set.auto_mem_mhz or memory[-1])


def ceiling_mhz(samples: Sequence[Window]) -> float:
    """Return the least core clock a GPU boosted to away from its cap; ``inf`` if never seen."""
    seen = [
        float(s.observed.core_mhz)
        for s in samples
        if s.observed
        and s.observed.core_mhz
        and not driver_says(s.throttle_reasons)
        and (s.asked.core_mhz is None or not holds(s))
    ]
    return min(seen, default=math.inf)


def seen_cap(sample_set: SampleSet) -> tuple[float, list[bool]]:
    """Return what samples show of the power cap.

    Returns:
        The power in W that capped samples settle at, ``inf`` where none was capped; and of each
        sample whether it was.
    """
    samples = sample_set.samples
    powers = [sample.energy_j / sample.time_s for sample in samples]
    limit_w = sample_set.gpu.power_limit_w or max(powers, default=math.inf)
    capped = is_power_capped(samples, limit_w, CapMargin.FIT).tolist()
    if all(driver_says(sample.throttle_reasons) is None for sample in samples):
        capped = [
            yes and s.asked.core_mhz is not None for yes, s in zip(capped, samples, strict=True)
        ]
        # Where the driver was not asked, a cap shows as many kernels that draw the same at most.
        held = {sample.kernel for sample, yes in zip(samples, capped, strict=True) if yes}
        capped = capped if len(held) >= _PILE else [False] * len(powers)
    at_cap = [power_w for power_w, yes in zip(powers, capped, strict=True) if yes]
    return (float(np.median(at_cap)) if at_cap else math.inf), capped


def held_back(sample_set: SampleSet) -> tuple[Window, ...]:
    """Return the samples at locks that did not hold: what ran was slower than was asked for."""
    _, capped = seen_cap(sample_set)
    return tuple(
        sample
        for sample, at_cap in zip(sample_set.samples, capped, strict=True)
        if sample.asked.core_mhz is not None and (at_cap or not holds(sample))
    )


def held_at_auto(sample_set: SampleSet) -> tuple[Window, ...]:
    """Return the samples at auto clocks that the power cap held, where the driver said so."""
    return tuple(
        sample
        for sample in sample_set.samples
        if sample.asked.core_mhz is None and driver_says(sample.throttle_reasons)
    )


def ran_mem_mhz(sample: Window, auto_mem_mhz: float) -> float:
    """Return the memory clock of a sample: as read, else as asked, else as auto's."""
    mem_mhz = sample.observed.mem_mhz if sample.observed else sample.asked.mem_mhz
    return float(mem_mhz or auto_mem_mhz)


def holds(sample: Window) -> bool:
    """Whether the core ran at what was asked, as far as anybody looked."""
    seen = sample.observed.core_mhz if sample.observed else None
    return seen is None or seen == sample.asked.core_mhz
