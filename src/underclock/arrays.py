"""The element types that arrays have here, in one place, and how a ring of launches is turned."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Quantities; the name that holds them says the unit."""
Ints = NDArray[np.int64]
"""Indices and whole numbers."""
Bools = NDArray[np.bool_]
"""Which entries."""
_Element = TypeVar("_Element", bound=np.generic)


def turned(values: NDArray[_Element], by: int) -> NDArray[_Element]:
    """Return what `np.roll` does of one axis, which for some launches takes ten times as long."""
    cut = len(values) - by % (len(values) or 1)
    return np.concatenate((values[cut:], values[:cut]))
