"""What choosing makes of predictions: what nobody measured is chosen because it looks good.

The best of many predictions is one that flatters. By how much, rows tell that are left out: each is
predicted by all others, of each kernel the best is chosen at many prices of time, and what was
measured there is held against what was said. Sums of chosen rows are off by more than their errors,
and to one side; both are taken over to entries without a row.

Shape letters: K kernels, n rows of a kernel.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.inference.field import FieldRows

_TWO_SIDED = 1.96  # deviations, within which 95 % of errors lie
# Of single times more of the rows left out lie within as many: what kernels share, and how large
# parts are, these rows told as well.
_INSIDE, _INSIDE_ALONE = 0.95, 0.97
_PRICES = np.geomspace(0.05, 20.0, 25)  # of time in energy, both as fractions


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimism:
    """By how much chosen entries flatter; time, energy.

    Attributes:
        deviations: How many standard deviations they cost more than predicted, not below zero.
        wider: By how much sums of them are off more than their errors say, not below one.
    """

    deviations: tuple[float, float] = (0.0, 0.0)
    wider: tuple[float, float] = (1.0, 1.0)


def optimism(
    time_rows: FieldRows,
    power_rows: FieldRows,
    time: tuple[Floats, Floats],
    power: tuple[Floats, Floats],
) -> Optimism:
    """Learn from rows that are left out how much choosing flatters.

    Args:
        time: How far each row is off what others say of its log time, and the variance of that.
    """
    if (time_rows.real.sum(axis=1) == 1).all():
        return Optimism()
    (time_off, time_variance), (power_off, power_variance) = time, power
    told = time_rows.log - time_off, power_rows.log - power_off
    off = time_off, time_off + power_off
    # A time too long goes with a power too low: what power's variance has of it, energy's has too.
    variance = time_variance, power_variance
    deviations, wider = [], []
    picks = [_best(told[0] + told[1] + price * told[0], time_rows) for price in _PRICES]
    for each, var in zip(off, variance, strict=True):
        chosen = [(each[pick], var[pick]) for pick in picks]
        ahead = float(np.mean([o.sum() / np.sqrt(v).sum() for o, v in chosen]))
        deviations.append(max(ahead, 0.0))
        wider.append(_wider(chosen, deviations[-1]))
    return Optimism(deviations=(deviations[0], deviations[1]), wider=(wider[0], wider[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """By how much errors are greater than told, as rows that are left out show; at least one.

    Attributes:
        time: Of the log time of a single entry.
        energy: Of its log energy.
        sums: Of sums of entries, over that of single ones: time, energy.
    """

    time: float
    energy: float
    sums: tuple[float, float]

    @classmethod
    def learned(cls, time: tuple[Floats, Floats], power: tuple[Floats, Floats]) -> "Beyond":
        """Learn it of rows.

        Args:
            time: How far each is off what others say of its log time, and the variance of that.
            power: The same of log power.
        """
        told = time[1] != 1.0
        times = (time[0] ** 2 / time[1])[told]
        energies = ((time[0] + power[0]) ** 2 / power[1])[told]
        alone, together = _factor(times, _INSIDE_ALONE), _factor(times, _INSIDE)
        return cls(time=alone, energy=_factor(energies, _INSIDE), sums=(together / alone, 1.0))


def _factor(squares: Floats, inside: float) -> float:
    """Return by how much wider errors must be told for so many to lie in their 95 % interval.

    Args:
        squares: Of errors over what was told of them.
    """
    beyond = float(np.quantile(squares, inside)) if len(squares) else 0.0
    return max(1.0, math.sqrt(beyond) / _TWO_SIDED)


def _best(merit: Floats, rows: FieldRows) -> tuple[Ints, Ints]:
    kernels = np.flatnonzero(rows.real.sum(axis=1) > 1)
    at = np.where(rows.real, merit, np.inf)[kernels].argmin(axis=1)
    return kernels, at


def _wider(chosen: list[tuple[Floats, Floats]], deviations: float) -> float:
    """Return by how much sums are off more than their errors say."""
    squares = []
    for off, variance in chosen:
        left = off - deviations * np.sqrt(variance)
        squares += [
            float(left.sum() ** 2 / variance.sum()),
            float((left**2).sum() / variance.sum()),
        ]
    return max(1.0, float(np.sqrt(np.mean(squares))))
