"""What a second is worth, in J: the multiplier of time at which a choice just keeps a limit.

With it, least E + λ·T of each kernel is the choice of all. A limit of time is kept at a high λ. A
limit of mean power is kept at a low one: time costs power, and what is fastest draws most.

Shape letters: K kernels, S settings.
"""

from collections.abc import Callable

import numpy as np

from underclock.arrays import Floats

_STEEPEST = 100.0  # of the greatest power: nobody pays more for a second
_HALVINGS = 40


def multiplier_within(time_s: Floats, energy_j: Floats, limit_s: float) -> float:
    """Return the least multiplier at which the choice takes no more than a time.

    Args:
        time_s: Of each setting; ``inf`` where it cannot be chosen. Shape (K, S).
        energy_j: Energy in J of the same. Shape (K, S).
    """
    return _bisected(time_s, energy_j, lambda taken_s, _: taken_s > limit_s)[1]


def multiplier_under(time_s: Floats, energy_j: Floats, limit_w: float) -> float:
    """Return the greatest multiplier at which the choice draws no more than a mean power."""
    return _bisected(time_s, energy_j, lambda taken_s, taken_j: taken_j <= limit_w * taken_s)[0]


def _bisected(
    time_s: Floats, energy_j: Floats, is_below: Callable[[float, float], bool]
) -> tuple[float, float]:
    """Return the multipliers next to where a condition on the choice's time and energy ends."""
    known = np.isfinite(time_s)
    low, high = 0.0, _STEEPEST * float((energy_j[known] / time_s[known]).max())
    kernels = np.arange(len(time_s))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        at = kernels, np.argmin(energy_j + middle * time_s, axis=1)
        below = is_below(float(time_s[at].sum()), float(energy_j[at].sum()))
        low, high = (middle, high) if below else (low, middle)
    return low, high
