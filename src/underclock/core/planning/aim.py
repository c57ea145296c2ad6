"""What a choice of clocks may take of the time budget: its time, and what is asked beside it.

Shape letters: K kernels, S settings.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a choice may take.

    Attributes:
        slowdown: Expected change of time and prices together, as a fraction above auto.
        prices: Of each kernel at each setting, none negative, as fractions of auto's time; ``None``
            for none at all. Shape (K, S).
    """

    slowdown: float
    prices: Floats | None = None

    def paid(self, setting: Ints) -> float:
        """Return the price of a choice. Shape of the argument: (K,)."""
        if self.prices is None:
            return 0.0
        return math.fsum(self.prices[np.arange(len(setting)), setting])
