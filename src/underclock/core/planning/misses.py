"""What changes cost that come early or late, and how far from its launch each is best aimed.

A change that is asked for ahead happens near its launch, early or late by what its delay scatters.
Early, the launches before it run at the clocks of those behind; late, the other way round. The two
are rarely as dear: work that DRAM bounds takes several times as long at a slow memory clock, and
work that the core bounds none the longer. So each change is aimed where what it costs on average is
least.

Shape letters: n launches, S settings, C changes, L launches looked at on either side, A aims,
Q quantiles.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr, ndtri

from underclock.arrays import Floats, Ints, turned
from underclock.core.step.cap import LaunchCosts

_LOOKED_AT = 8  # launches on either side; a change further off costs as if the last went on
_QUANTILES = 25
_SPREADS = np.array([NormalDist().inv_cdf((q + 0.5) / _QUANTILES) for q in range(_QUANTILES)])
_FURTHEST = 3.0  # deviations
_AIMS = np.linspace(-_FURTHEST, _FURTHEST, 25)  # deviations after the launch begins
_PAIRS = 24  # of launches that follow each other, the most frequent: what is usual shows in them
WORTH = 2.5  # of its mean power: energy that plans give for a second, near a budget of 1 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """What the changes of a round cost on average, aimed as they are best.

    Attributes:
        at: Launch before which each change lies; 0 is the wrap. Shape (C,).
        aim_s: How long after its launch begins each change is best aimed. Shape (C,).
        time_s: What each adds to the step, on average. Shape (C,).
        energy_j: The same of energy. Shape (C,).
    """

    at: Ints
    aim_s: Floats
    time_s: Floats
    energy_j: Floats


def misses(
    costs: LaunchCosts, order: Ints, choice: Ints, jitter_s: Floats, power_w: float
) -> Misses:
    """Aim the changes of a schedule, and say what they cost.

    Args:
        order: Kernel of each launch. Shape (n,).
        choice: Setting of each launch. Shape (n,).
        jitter_s: Standard deviation of a change's delay, row to column. Shape (S, S).
        power_w: Mean power of the step; says what a second is worth.
    """
    before = turned(choice, 1)
    at = np.flatnonzero(choice != before)
    spread_s = jitter_s[before[at], choice[at]]
    if not spread_s.any():
        return Misses(at=at, aim_s=spread_s, time_s=spread_s, energy_j=spread_s)
    aims: Floats = spread_s[:, None] * _AIMS
    off_s = aims[:, :, None] + spread_s[:, None, None] * _SPREADS  # (C, A, Q)
    time_s, energy_j = np.zeros((2, *off_s.shape))
    reach = np.arange(min(_LOOKED_AT, len(order)))
    for launches, lasting, missed, sign in (
        ((at[:, None] - 1 - reach) % len(order), None, choice[at], -1.0),
        ((at[:, None] + reach) % len(order), before[at], before[at], 1.0),
    ):
        kernel, planned = order[launches], choice[launches]
        instead = np.broadcast_to(missed[:, None], kernel.shape)
        lasts_s = costs.time_s[kernel, planned if lasting is None else lasting[:, None]]
        added_s, added_j = (
            each[kernel, instead] - each[kernel, planned] for each in (costs.time_s, costs.energy_j)
        )
        missed_s = np.maximum(sign * off_s, 0.0)
        time_s += _summed(lasts_s, added_s, missed_s)
        energy_j += _summed(lasts_s, added_j, missed_s)
    mean_s, mean_j = time_s.mean(axis=2), energy_j.mean(axis=2)
    best = (mean_j + WORTH * power_w * mean_s).argmin(axis=1)
    each = np.arange(len(at))
    return Misses(
        at=at, aim_s=aims[each, best], time_s=mean_s[each, best], energy_j=mean_j[each, best]
    )


def usual_misses(
    costs: LaunchCosts, order: Ints, jitter_s: Floats, power_w: float
) -> tuple[Floats, Floats]:
    """Return what changes cost on average where they are made, in time and energy. Shapes (S, S).

    They are made where the launch before fares better at the clocks before, and the launch behind
    at those behind.

    Args:
        order: Kernel of each launch. Shape (n,).
        jitter_s: Standard deviation of a change's delay, row to column. Shape (S, S).
        power_w: Mean power of the step; says what a second is worth.
    """
    if not jitter_s.any():
        return jitter_s, jitter_s
    pairs, counts = np.unique(np.stack((turned(order, 1), order)), axis=1, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:_PAIRS]
    time_s, energy_j, weight = np.zeros((3, *jitter_s.shape))
    for (before, behind), count in zip(pairs.T[often], counts[often].tolist(), strict=True):
        with np.errstate(invalid="ignore"):
            # For a second early or late, row to column; infinite where a cost is not known.
            rates = [
                (each[before][None, :] - each[before][:, None]) / costs.time_s[before][:, None]
                for each in (costs.time_s, costs.energy_j)
            ] + [
                (each[behind][:, None] - each[behind][None, :]) / costs.time_s[behind][:, None]
                for each in (costs.time_s, costs.energy_j)
            ]
        known = np.isfinite(rates).all(axis=0)
        early_s, early_j, late_s, late_j = (np.where(known, each, 0.0) for each in rates)
        early = early_j + WORTH * power_w * early_s
        late = late_j + WORTH * power_w * late_s
        made = (early > 0.0) & (late > 0.0)
        odds = np.where(made, late, 1.0) / np.where(made, early + late, 2.0)
        aim = -np.clip(ndtri(odds), -_FURTHEST, _FURTHEST)
        density = np.exp(-0.5 * aim**2) / math.sqrt(2.0 * math.pi)
        is_late, is_early = density + aim * ndtr(aim), density - aim * ndtr(-aim)
        time_s += count * made * (is_early * early_s + is_late * late_s)
        energy_j += count * made * (is_early * early_j + is_late * late_j)
        weight += count * made
    share = jitter_s / np.maximum(weight, 1.0)
    # Which of the two a change takes is not told from what it gives of the other.
    return np.maximum(time_s * share, 0.0), np.maximum(energy_j * share, 0.0)


def _summed(lasts_s: Floats, added: Floats, missed_s: Floats) -> Floats:
    """Return what is added when launches run at other clocks for some time."""
    known = np.isfinite(lasts_s) & np.isfinite(added)
    rate = np.where(known, added, 0.0) / np.where(known, lasts_s, 1.0)
    ends_s = np.cumsum(np.where(known, lasts_s, 0.0), axis=1)
    total = np.zeros(missed_s.shape)
    begins_s = np.zeros(len(ends_s))
    for launch in range(ends_s.shape[1]):
        last = launch == ends_s.shape[1] - 1
        ends = np.full(len(ends_s), np.inf) if last else ends_s[:, launch]
        inside = np.clip(missed_s, begins_s[:, None, None], ends[:, None, None])
        total += rate[:, launch, None, None] * (inside - begins_s[:, None, None])
        begins_s = ends_s[:, launch]
    return total
