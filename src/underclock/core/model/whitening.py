"""What a fit leaves over of its rows, along axes in which it is independent.

The residual of a row is noise of its own and a discrepancy it has in common with rows of the same
kernel at like clocks. Turned and scaled, the rows of a kernel have neither in common, so weighing
them is a product instead of the inverse of a matrix.

Shape letters: R rows, K kernels, L rows of the kernel with most; a leading 2 is time and power.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.rows import Rows

REACH = (
    0.2  # rows whose core clocks differ by this, as a logarithm, share most of their discrepancy
)
ACROSS = 0.5  # correlation of the discrepancy at two memory clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """Standard deviations of what the model leaves over, as fractions. Each of shape (2,).

    Attributes:
        noise: Of a row, independent of every other.
        discrepancy: Shared by rows of a kernel at like clocks.
    """

    noise: Floats
    discrepancy: Floats


def alike(core_mhz: Floats, mem_mhz: Floats, other_core: Floats, other_mem: Floats) -> Floats:
    """Return how much of their discrepancy points share, 0 to 1. Shape (len(core), len(other))."""
    apart = (np.log(core_mhz)[:, None] - np.log(other_core)) / REACH
    same = np.where(mem_mhz[:, None] == other_mem, 1.0, ACROSS)
    shared: Floats = same * np.exp(-0.5 * apart**2)
    return shared


class Whitening:
    """The axes of some rows.

    Attributes:
        real: Where there is an axis: a kernel has as many as rows. Shape (K, L).
    """

    def __init__(self, rows: Rows) -> None:
        bounds = rows.bounds
        counts = np.diff(bounds)
        most = int(counts.max())
        self._turn, self._alike = np.zeros((len(counts), most, most)), np.zeros((len(counts), most))
        for k, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
            core, mem = rows.core_mhz[low:high], rows.mem_mhz[low:high]
            # Scaled by the root of its windows, every row has the same noise.
            root = np.sqrt(rows.windows[low:high])
            values, axes = np.linalg.eigh(root[:, None] * alike(core, mem, core, mem) * root)
            self._alike[k, : high - low] = np.maximum(values, 0.0)
            self._turn[k, : high - low, : high - low] = axes.T * root
        within = np.arange(len(rows.kernel)) - bounds[rows.kernel]
        self._place = rows.kernel * most + within
        self.real = np.zeros(self._alike.shape, dtype=bool)
        self.real.ravel()[self._place] = True

    def whitened(self, values: Floats) -> Floats:
        """Return what belongs to rows, shape (2, R, ...), along the axes. Shape (2, K, L, ...)."""
        kernels, most, _ = self._turn.shape
        spaced = np.zeros((2, kernels * most, math.prod(values.shape[2:])))
        spaced[:, self._place] = values.reshape(2, values.shape[1], -1)
        turned: Floats = self._turn @ spaced.reshape(2, kernels, most, -1)
        return turned.reshape(2, kernels, most, *values.shape[2:])

    def weights(self, errors: ErrorModel, scale: Floats) -> Floats:
        """Return the precision along each axis, zero where there is none. Shape (2, K, L).

        Args:
            errors: Of all kernels.
            scale: How much more each kernel leaves over. Shape (K,).
        """
        noise2, discrepancy2 = errors.noise**2, errors.discrepancy**2
        variance = noise2[:, None, None] + discrepancy2[:, None, None] * self._alike
        found: Floats = self.real / (variance * scale[:, None] ** 2)
        return found
