"""Kernels that a campaign did not reach: what the whole step tells of them.

Their times inside the step were read with all others. Of their power one knows what is left of the
step's energy once that of the other kernels is taken off, which tells much where they take much of
the time and nothing where they take little; and that kernels of a kind draw alike, more or less.

Shape letters: K kernels, U kernels that were not reached.
"""

import dataclasses
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.records import AUTO, SampleSet, Window
from underclock.units import first_and_more

_LEAST_SPREAD = 0.3  # of the power of a kernel of which nothing but its kind is known
_FEWEST = 3  # kernels of a kind from which its power is told
_CLOSES = 0.05  # of the step's energy, by which kernels alone do not add up to it: 4.5 % on an H200


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """What is taken for kernels that never ran by themselves, at auto.

    Attributes:
        places: Which kernels they are. Shape (U,).
        power_w: As expected. Shape (U,).
        spread: Standard deviation of its logarithm. Shape (U,).
    """

    places: Ints
    time_s: Floats
    power_w: Floats
    spread: Floats
    warnings: tuple[str, ...] = ()

    def without(self, reached: Ints) -> "Unmeasured":
        """Return what is taken for the others."""
        kept = ~np.isin(self.places, reached)
        arrays = ("places", "time_s", "power_w", "spread")
        return dataclasses.replace(self, **{name: getattr(self, name)[kept] for name in arrays})


def unmeasured(sample_set: SampleSet) -> Unmeasured:
    """Say what the step tells of kernels that no sample is of; nothing where it was not timed."""
    none = np.zeros(0)
    nobody = Unmeasured(places=none.astype(np.int64), time_s=none, power_w=none, spread=none)
    reached = {sample.kernel for sample in sample_set.samples}
    missing = [k for k, one in enumerate(sample_set.kernels) if one.name not in reached]
    launch_s = in_step_s(sample_set) if missing and sample_set.in_situ else None
    power_w = _powers_w(sample_set)
    known = np.flatnonzero(np.isfinite(power_w))
    if launch_s is None or not len(known):
        return nobody
    places = np.array(missing, dtype=np.int64)
    taken_s = launch_s * [kernel.waited_count for kernel in sample_set.kernels]
    # Every kernel as those of its kind, and then all as what they leave of the step asks.
    means_w, spreads_w = _of_kind(sample_set, places, power_w)
    whole_j = float(np.mean([sample.energy_j for sample in sample_set.in_situ]))
    left_j = whole_j - float(taken_s[known] @ power_w[known])
    of_sum = spreads_w**2 * taken_s[places]
    gain = of_sum / (float(of_sum @ taken_s[places]) + (_CLOSES * whole_j) ** 2)
    expected_w = means_w + gain * (left_j - float(taken_s[places] @ means_w))
    expected_w = np.clip(expected_w, power_w[known].min(), power_w[known].max())
    variance = spreads_w**2 - gain * of_sum
    share = float(taken_s[places].sum() / taken_s.sum())
    return Unmeasured(
        places=places,
        time_s=launch_s[places],
        power_w=expected_w,
        spread=np.sqrt(variance) / expected_w,
        warnings=(_sentence([sample_set.kernels[k].name for k in missing], share),),
    )


def _powers_w(sample_set: SampleSet) -> Floats:
    """Return the power of each kernel alone at auto, ``nan`` where it was not run. Shape (K,)."""
    sums = {kernel.name: np.zeros(2) for kernel in sample_set.kernels}
    for sample in sample_set.samples:
        if sample.asked == AUTO and sample.kernel in sums:
            sums[sample.kernel] += sample.energy_j, sample.time_s
    with np.errstate(invalid="ignore"):
        return np.array([energy_j / time_s for energy_j, time_s in sums.values()])


def _of_kind(sample_set: SampleSet, places: Ints, power_w: Floats) -> tuple[Floats, Floats]:
    """Return what kernels of the kind of some draw, and how much that differs. Shapes (U,)."""
    kinds = [kernel.kind for kernel in sample_set.kernels]
    known = np.isfinite(power_w)
    means, spreads = [], []
    for k in places.tolist():
        alike = power_w[known & np.array([kind is kinds[k] for kind in kinds])]
        if len(alike) < _FEWEST:
            alike = power_w[known]
        means.append(float(alike.mean()))
        spreads.append(max(float(alike.std()), _LEAST_SPREAD * means[-1]))
    return np.array(means), np.array(spreads)


def _sentence(names: list[str], share: float) -> str:
    takes, was = ("take", "were") if len(names) > 1 else ("takes", "was")
    return (
        f"{first_and_more(names)} {was} never run alone and {takes} {100.0 * share:.2g} % of the "
        "step's time: times are those inside the step, powers what other kernels leave of the "
        "step's, both less sure at other clocks; `underclock measure` goes on from here"
    )


def step_mhz(sample_set: SampleSet) -> float | None:
    """Return the core clock in MHz at which the step runs at auto; ``None`` where it is unknown."""
    whole = [sample.at_mhz for sample in _whole_at_auto(sample_set)]
    seen = [
        sample.observed.core_mhz
        for sample in sample_set.in_situ
        if sample.observed is not None and sample.observed.core_mhz is not None
    ]
    return fmean(whole or seen) if whole or seen else None


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
