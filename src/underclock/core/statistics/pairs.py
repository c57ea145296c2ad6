"""Repeats of two arms compared pair by pair, as arXiv 2601.08539 validates.

Shape letters: N repeats.
"""

import numpy as np

from underclock.arrays import Floats
from underclock.records import Spread


def pair_changes(auto: Floats, plan: Floats) -> Floats:
    """Return plan over auto minus one for every pair. Shapes (N,), (N,) to (N, N)."""
    return plan[None, :] / auto[:, None] - 1.0


def spread(changes: Floats) -> Spread:
    """Return mean and extremes; less is better."""
    return Spread(
        mean=float(np.mean(changes)), best=float(np.min(changes)), worst=float(np.max(changes))
    )


def count_within(changes: Floats, limit: float, *, rounding: float = 1e-9) -> int:
    """Count the pairs whose change does not exceed a limit."""
    return int(np.count_nonzero(changes <= limit + rounding))
