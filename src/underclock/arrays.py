"""The element types that arrays have here, in one place."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Quantities; the name that holds them says the unit."""
Ints = NDArray[np.int64]
"""Indices and whole numbers."""
Bools = NDArray[np.bool_]
"""Which entries."""
