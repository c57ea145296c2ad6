"""Which settings there are, where each kernel was measured, and where it has an answer at all.

Shape letters: K kernels, C settings but the baseline.
"""

import math
from collections.abc import Sequence

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.model.row_runs import sample_weights
from underclock.core.model.rows import Rows
from underclock.core.model.sample_sets import ceiling_mhz
from underclock.core.steering import clock_range
from underclock.core.step.power_cap import HALF_BIN_MHZ
from underclock.core.step.power_capped_step import memories_like_auto
from underclock.records import Clocks, SampleSet


def offered_settings(sample_set: SampleSet, auto: Clocks) -> tuple[Clocks, ...]:
    """Return every setting but the baseline, slowest first."""
    known = dict.fromkeys((*sample_set.settings, *(sample.asked for sample in sample_set.samples)))
    reach = clock_range(sample_set)
    return tuple(
        sorted(
            (
                s
                for s in known
                if s != auto and not s.is_auto and (reach is None or _is_reached(s, *reach))
            ),
            key=lambda clocks: clocks.rank,
        )
    )


def with_boost(settings: tuple[Clocks, ...], sample_set: SampleSet) -> tuple[Clocks, ...]:
    """Return settings, with the clock that the GPU boosts to by itself where none comes near it.

    Every kernel ran there at auto, so it is known as well as any, and auto is told from it.
    """
    boost_mhz = ceiling_mhz(sample_set.samples)
    for memory in memories_like_auto(settings, sample_set)[:1]:
        cores = [c.core_mhz or 0 for c in settings if c.mem_mhz == memory]
        fastest_mhz = max((mhz for mhz in cores if mhz <= boost_mhz), default=0)
        if fastest_mhz < boost_mhz - HALF_BIN_MHZ and math.isfinite(boost_mhz):
            boost = Clocks(core_mhz=round(boost_mhz), mem_mhz=memory)
            return tuple(sorted((*settings, boost), key=lambda clocks: clocks.rank))
    return settings


def _is_reached(clocks: Clocks, lowest_mhz: float, highest_mhz: float) -> bool:
    """Whether steering went there: it sees no other memory clocks, and no lower core clocks."""
    core_mhz = clocks.core_mhz
    if clocks.mem_mhz is not None or core_mhz is None:
        return False
    return lowest_mhz - HALF_BIN_MHZ <= core_mhz <= highest_mhz + HALF_BIN_MHZ


def measured_means(
    sample_set: SampleSet, settings: Sequence[Clocks], weights: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return logarithms of the mean measured time and power, ``nan`` where none, and repeats.

    An odd repeat counts for little, in the means and as a repeat.

    Args:
        settings: Length C.
        weights: How much each sample counts in time and energy, where that is known already.
            Shape (2, N).
    """
    place = {clocks: c for c, clocks in enumerate(settings)}
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    sums = np.zeros((4, len(index), len(settings)))
    each = sample_weights(sample_set) if weights is None else weights
    for sample, (of_time, of_energy) in zip(sample_set.samples, each.T.tolist(), strict=True):
        c = place.get(sample.asked)
        if c is not None:
            cell = sums[:, index[sample.kernel], c]
            cell += (of_time, of_energy, of_time * sample.time_s, of_energy * sample.energy_j)
    with np.errstate(divide="ignore", invalid="ignore"):
        time_s, energy_j = sums[2:] / sums[:2]
        return np.log(time_s), np.log(energy_j / time_s), sums[:2].min(axis=0)


def measurable(sample_set: SampleSet, rows: Rows, settings: Sequence[Clocks]) -> Bools:
    """Return where the GPU holds a lock and the table has a row. Shape (K, C).

    Args:
        settings: Length C.
    """
    can = np.ones((len(sample_set.kernels), len(settings)), dtype=bool)
    can[:, [(clocks.core_mhz or 0) > rows.ceiling_mhz for clocks in settings]] = False
    place = {clocks: c for c, clocks in enumerate(settings)}
    for k, kernel in enumerate(sample_set.kernels):
        # What a table lacks may be auto, which is no setting to choose.
        lacking = [place[c] for c in sample_set.lacking.get(kernel.name, ()) if c in place]
        can[k, lacking] = False
    return can
