"""How much more kernels draw inside the step than by themselves.

Alone, a kernel meets its own data in the cache over and over; in the step it meets what others
left. Where the whole step ran at several clocks with co-load, the ratio is measured; it is one for
all kernels.

Shape letters: K kernels, C settings.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.posterior import Posterior
from underclock.core.model.rows import Rows

_USUAL = 0.03  # deviation of the logarithm of the ratio, before anything was seen
_LEAST = 0.005  # of one run's power, besides what co-load leaves unsure: which clock it ran at


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRatio:
    """Power in the step over power alone.

    Attributes:
        spread: Standard deviation of its logarithm.
    """

    ratio: float = 1.0
    spread: float = 0.0


def step_ratio(
    rows: Rows, posterior: Posterior, counts: Floats, beside_j: float = 0.0
) -> StepRatio:
    """Compare what the step drew with what its kernels are expected to draw.

    Args:
        counts: Launches of each kernel that the step waits for. Shape (K,).
    """
    fastest = max((clocks.mem_mhz or math.inf for clocks in posterior.settings), default=math.inf)
    places = [
        c for c, clocks in enumerate(posterior.settings) if (clocks.mem_mhz or math.inf) == fastest
    ]
    if not rows.step or not places:
        return StepRatio()
    core = np.array([posterior.settings[c].core_mhz or math.nan for c in places])
    time_s, energy_j = (costs[:, places].sum(axis=0) for costs in posterior.costs(counts))
    order = np.argsort(core)
    core, power_w = core[order], ((energy_j + beside_j) / time_s)[order]
    unsure2 = np.array([_power_variance(posterior, counts, places[c]) for c in order])
    logs, precisions = [], []
    for draw in rows.step:
        if not core[0] <= draw.core_mhz <= core[-1]:
            continue
        expected_w = float(np.interp(draw.core_mhz, core, power_w))
        logs.append(math.log(draw.power_w / expected_w))
        # Where kernels by themselves are hardly known, the step tells little of the ratio.
        by_itself2 = float(np.interp(draw.core_mhz, core, unsure2))
        precisions.append(1.0 / ((draw.spread_w / draw.power_w) ** 2 + _LEAST**2 + by_itself2))
    precision = math.fsum(precisions) + _USUAL**-2.0
    mean = math.fsum(x * w for x, w in zip(logs, precisions, strict=True)) / precision
    off2 = sum(w * (x - mean) ** 2 for x, w in zip(logs, precisions, strict=True))
    wider = max(1.0, off2 / max(1, len(logs) - 1))
    return StepRatio(ratio=math.exp(mean), spread=math.sqrt(wider / precision))


def _power_variance(posterior: Posterior, counts: Floats, place: int) -> float:
    """Return the variance of the logarithm of the power of all kernels at one setting."""
    time_s, energy_j = (costs[:, place] for costs in posterior.costs(counts))
    of_energy, of_time = energy_j / energy_j.sum(), time_s / time_s.sum()
    moves = posterior.moves[:, :, place]
    moved = (of_energy - of_time)[:, None] * moves[0] + of_energy[:, None] * moves[1]
    shared = moved[:, : posterior.shared].sum(axis=0)
    return float(shared @ shared + (moved[:, posterior.shared :] ** 2).sum())
