"""How kernels' times follow the core clock, as measured: exponents of time against clock.

Utilisation does not tell: on an H200 layer norm, softmax and gelu keep DRAM busiest, and yet their
times follow the core clock with an exponent of 0.86.

Shape letters: P points of one kernel.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from underclock.arrays import Floats
from underclock.core.step.cap import CapMargin, is_power_capped, with_durations
from underclock.records import AUTO, SampleSet, Window
from underclock.records.observed import Exponent, Follows, StepClock

# Our conventions. A roofline bends: a slope counts near the clock at which the step runs only.
_NEAR: Final = 0.75
_CORE_FROM, _SHARED_FROM = 0.6, 0.25
_MOST_ERROR = 0.15  # with it, not core is told from core
# Standard deviation of log time and log clock together: mean clocks of windows repeat to some
# MHz, and times at the power cap to 0.5 % and more (H200).
_NOISE: Final = 0.005
_LEAST_SPREAD: Final = 1e-9  # of squares of log clock: less is one clock, and rounding


class _Point(NamedTuple):
    """One time of one kernel.

    Attributes:
        source: How it ran; times from unlike sources differ by more than their clocks.
    """

    source: str
    core_mhz: float
    time_s: float


def exponents(sample_set: SampleSet) -> dict[str, Exponent]:
    """Fit how the time of each kernel follows the core clock, at the memory clock of auto.

    Only clocks near the step's count, and none that the power cap held: what a kernel at the cap
    was seen to run at for a moment is not what it ran at. Where the driver was not asked, that may
    be so of any kernel at auto.

    Returns:
        By kernel; none for a kernel that was seen at fewer than two clocks.
    """
    points = _points(sample_set)
    clock = step_clock(sample_set)
    highest = max((p.core_mhz for some in points.values() for p in some), default=math.inf)
    near_mhz = highest if clock is None else clock.core_mhz
    fitted = {
        name: _fit([p for p in some if _NEAR <= p.core_mhz / near_mhz <= 1.0 / _NEAR])
        for name, some in points.items()
    }
    return {name: exponent for name, exponent in fitted.items() if exponent is not None}


def follows_core(exponent: Exponent | None) -> Follows:
    """Say in a word how a kernel follows the core clock."""
    if exponent is None:
        return Follows.UNMEASURED
    if exponent.error > _MOST_ERROR:
        return Follows.UNDECIDED
    if exponent.value > _CORE_FROM:
        return Follows.CORE
    return Follows.SHARED if exponent.value >= _SHARED_FROM else Follows.NOT_CORE


def step_clock(sample_set: SampleSet) -> StepClock | None:
    """Return the core clock at which the step runs at auto; ``None`` where nobody read it."""
    whole = _whole_at_auto(sample_set)
    if whole:
        variance = fmean(sample.spread_mhz**2 for sample in whole)
        return StepClock(
            core_mhz=fmean(sample.at_mhz for sample in whole), spread_mhz=math.sqrt(variance)
        )
    seen = [
        sample.observed.core_mhz
        for sample in sample_set.in_situ
        if sample.observed is not None and sample.observed.core_mhz is not None
    ]
    return StepClock(core_mhz=fmean(seen), spread_mhz=None) if seen else None


def in_step_s(sample_set: SampleSet) -> Floats | None:
    """Return how long a launch of each kernel takes inside the step at auto. Shape (K,).

    Returns:
        ``None`` where the launches of the whole step were not timed.
    """
    timed = [sample for sample in _whole_at_auto(sample_set) if sample.kernel_s]
    return np.mean([sample.kernel_s for sample in timed], axis=0) if timed else None


def _whole_at_auto(sample_set: SampleSet) -> list[Window]:
    """Return samples of the whole step by itself, as it trains."""
    return [
        sample
        for sample in sample_set.mixed
        if not sample.kernel
        and sample.asked == AUTO
        and not sample.mix.hot
        and not sample.mix.idle_s
    ]


def _points(sample_set: SampleSet) -> dict[str, list[_Point]]:
    """Return the times of each kernel at the memory clock that auto has."""
    points: dict[str, list[_Point]] = defaultdict(list)
    mem_mhz = _auto_mem_mhz(sample_set)
    for sample in _not_capped(sample_set):
        core_mhz = (sample.observed or sample.asked).core_mhz
        if core_mhz is not None and (sample.asked.mem_mhz or mem_mhz) == mem_mhz:
            points[sample.kernel].append(_Point("alone", core_mhz, sample.time_s))
    names = [kernel.name for kernel in sample_set.kernels]
    for mixed in with_durations(sample_set.mixed):
        if (mixed.asked.mem_mhz or mem_mhz) != mem_mhz:
            continue
        source = "in company" if mixed.kernel else "in the step"
        of = [mixed.kernel] if mixed.kernel else names
        for name, at_mhz, time_s in zip(of, mixed.timed_mhz, mixed.kernel_s, strict=True):
            points[name].append(_Point(source, at_mhz, time_s))
    return points


def _not_capped(sample_set: SampleSet) -> Iterable[Window]:
    limit_w = sample_set.gpu.power_limit_w
    capped = is_power_capped(
        sample_set.samples, math.inf if limit_w is None else limit_w, CapMargin.FIT
    )
    return (
        sample
        for sample, held in zip(sample_set.samples, capped, strict=True)
        if not held and (sample.asked != AUTO or sample.throttle_reasons is not None)
    )


def _auto_mem_mhz(sample_set: SampleSet) -> int | None:
    """Return the memory clock of kernels at auto; where none was read, the highest asked for."""
    asked = [s.asked.mem_mhz for s in sample_set.samples if s.asked.mem_mhz is not None]
    return sample_set.auto_mem_mhz or max(asked, default=None)


def _fit(points: list[_Point]) -> Exponent | None:
    """Fit one exponent, and a time of its own to each source. ``None`` without two clocks."""
    if not points:
        return None
    sources, core_mhz, time_s = zip(*points, strict=True)
    source = np.unique(sources, return_inverse=True)[1]
    at = np.zeros((source.max() + 1, len(points)))
    at[source, np.arange(len(points))] = 1.0
    means = at.T @ (at / at.sum(axis=1, keepdims=True))  # (P, P): averages over a source
    log_f, log_t = np.log([core_mhz, time_s])
    x, y = log_f - means @ log_f, log_t - means @ log_t
    spread = float(x @ x)
    if spread < _LEAST_SPREAD:
        return None
    slope = float(x @ y) / spread
    free = len(points) - len(at) - 1
    noise = math.sqrt(float(np.sum((y - slope * x) ** 2)) / free) if free > 0 else 0.0
    return Exponent(
        value=-slope,
        error=max(noise, _NOISE) / math.sqrt(spread),
        points=len(points),
        least_mhz=min(core_mhz),
        most_mhz=max(core_mhz),
    )
