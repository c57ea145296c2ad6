"""How sure it is what auto costs: of every kernel by itself, and of the whole step.

Shape letters: K kernels.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Floats
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import ONE_SIDED
from underclock.records import SampleSet, Window

_ONE_SIDE = 0.95
# What repeats in a row do not average out of a step's time. Windows of one kernel, off the cap of
# an H200, differ by 0.027 % (docs/evidence/h200).
_REPEATABLE = 2.7e-4
_FREE_CLOCK = 0.004  # half a clock bin of 15 MHz: what boosts by itself was not at one clock


def kernel_errors(posterior: Posterior) -> Floats:
    """Return the relative errors of each kernel's time and energy at auto. Shape (2, K)."""
    time2, power2 = posterior.noise**2
    errors: Floats = np.sqrt(np.stack([time2, time2 + power2]) + _FREE_CLOCK**2)
    return errors


def auto_spread(
    sample_set: SampleSet,
    posterior: Posterior,
    auto: tuple[Floats, Floats],
    whole: Sequence[Window],
) -> tuple[float, float]:
    """Return the relative errors of what auto costs: of the whole step, or of kernels' sum."""
    time2, power2 = posterior.noise**2
    spreads = []
    for variance, costs, values in (
        (time2, auto[0], [s.time_s for s in whole]),
        (time2 + power2, auto[1], [s.energy_j for s in whole]),
    ):
        if not whole:
            repeats = max(1.0, len(sample_set.samples) / max(1, len(costs)) / 8)
            spreads.append(math.sqrt(float((variance * costs**2).sum()) / repeats) / costs.sum())
            continue
        # One kernel's noise stands for one window's; repeats, where there are some, say more.
        prior2, weight = float(np.median(variance)), 1.0
        off2 = float(np.var(values)) * len(values) / float(np.mean(values)) ** 2
        freedom = weight + len(values) - 1
        each2 = (weight * prior2 + off2) / freedom
        # A scatter known from few runs: Student's t where the others have a normal distribution.
        wider = float(stdtrit(freedom, _ONE_SIDE)) / ONE_SIDED
        spreads.append(wider * math.sqrt(each2 / len(values)))
    return math.hypot(spreads[0], _REPEATABLE if whole else 0.0), spreads[1]
