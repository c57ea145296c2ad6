"""The mean power that a driver's loop holds below its limit: the past counts less the older it is.

Shape letters: n launches; further axes are sequences side by side.
"""

import numpy as np

from underclock.arrays import Floats
from underclock.physics.cap import WINDOW_S


def window_means_w(time_s: Floats, energy_j: Floats, window_s: float = WINDOW_S) -> Floats:
    """Return the mean power at the end of each launch of a round that repeats for ever.

    It rises or falls steadily during a launch, so no moment exceeds what two ends do.

    Args:
        time_s: Of each launch. Shape (n, ...).
        energy_j: Likewise. Shape (n, ...).
        window_s: Time in which the past's weight falls to 1/e.

    Raises:
        ValueError: A round takes no time.
    """
    round_s = time_s.sum(axis=0)
    if not (round_s > 0.0).all():
        raise ValueError("a round that takes no time has no mean power")
    left = np.exp(-time_s / window_s)
    gained_w = energy_j / window_s * early_part(time_s / window_s)
    means_w, mean_w = np.empty_like(gained_w), 0.0
    for launch, (share, gain_w) in enumerate(zip(left, gained_w, strict=True)):
        mean_w = mean_w * share + gain_w
        means_w[launch] = mean_w
    # The rounds before: what was left at the end of the last is there at the start of this.
    before_w = mean_w / -np.expm1(-round_s / window_s)
    whole_w: Floats = means_w + before_w * np.cumprod(left, axis=0)
    return whole_w


def early_part(x: Floats) -> Floats:
    """Return what is left, on average over x, of what decays by the end of it. Shape of x."""
    return np.where(x > 0.0, -np.expm1(-x) / np.where(x > 0.0, x, 1.0), 1.0)
