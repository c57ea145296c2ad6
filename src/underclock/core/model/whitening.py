"""Residuals along axes in which they are independent: whitening.

The residual of a row is noise of its own and a discrepancy of the model that it has in common with
rows of the same kernel at like clocks. Rotated and scaled, the rows of a kernel have neither in
common, so weighing them is a product instead of the inverse of a matrix.

Shape letters: R rows, K kernels, L rows of the kernel with most; a leading 2 is time and power.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.rows import Rows

_REACH = 0.2  # core clocks this far apart, as a logarithm, still share most of their discrepancy
_ACROSS = 0.5  # correlation of the discrepancy at two memory clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """Standard deviations of the residuals' two parts, as fractions. Each of shape (2,).

    Attributes:
        noise: Of a row, independent of every other.
        discrepancy: Of the model, shared by rows of a kernel at like clocks.
    """

    noise: Floats
    discrepancy: Floats


def alike(core_mhz: Floats, mem_mhz: Floats, other_core: Floats, other_mem: Floats) -> Floats:
    """Return the correlation of the discrepancy at points. Shape (len(core), len(other))."""
    apart = (np.log(core_mhz)[:, None] - np.log(other_core)) / _REACH
    same = np.where(mem_mhz[:, None] == other_mem, 1.0, _ACROSS)
    shared: Floats = same * np.exp(-0.5 * apart**2)
    return shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Whitening:
    """Rotates the rows of each kernel so that they are independent.

    Attributes:
        rotation: Shape (2, K, L, L).
        correlation: Eigenvalues of the correlations, zero where there is no axis. Shape (2, K, L).
        place: Where each row goes among all axes. Shape (R,).
        real: Where there is an axis: a kernel has as many as rows that tell of a quantity.
            Shape (2, K, L).
        copies: Of all kernels, whose rows are whitened side by side.
    """

    rotation: Floats
    correlation: Floats
    place: Ints
    real: Bools
    copies: int = 1

    @classmethod
    def of(cls, rows: Rows) -> "Whitening":
        """Find the axes of some rows."""
        bounds = rows.bounds
        counts = np.diff(bounds)
        most = int(counts.max())
        rotation = np.zeros((2, len(counts), most, most))
        correlation = np.zeros((2, len(counts), most))
        real = np.zeros(correlation.shape, dtype=bool)
        for k, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
            for c, windows in enumerate(rows.windows[:, low:high]):
                if c == 1 and np.array_equal(windows, rows.windows[0, low:high]):
                    for of_both in (rotation, correlation, real):
                        of_both[1, k] = of_both[0, k]
                    break
                told = low + np.flatnonzero(windows)
                core, mem, n = rows.core_mhz[told], rows.mem_mhz[told], len(told)
                # Scaled by the root of its windows, every row has the same noise.
                root = np.sqrt(windows[told - low])
                values, axes = np.linalg.eigh(root[:, None] * alike(core, mem, core, mem) * root)
                correlation[c, k, :n] = np.maximum(values, 0.0)
                rotation[c, k, :n, told - low] = (axes.T * root).T
                real[c, k, :n] = True
        place = rows.kernel * most + np.arange(len(rows.kernel)) - bounds[rows.kernel]
        return cls(rotation=rotation, correlation=correlation, place=place, real=real)

    def repeated(self, times: int) -> "Whitening":
        """Return a whitening of so many copies of all rows, which are of kernels of their own."""
        axes = self.real[0].size
        place = np.tile(self.place, times) + np.repeat(axes * np.arange(times), len(self.place))
        return dataclasses.replace(self, place=place, copies=times)

    def whitened(self, values: Floats) -> Floats:
        """Return what belongs to rows, (2, R, ...), along the axes of kernels, (2, K, L, ...)."""
        _, kernels, most, _ = self.rotation.shape
        spaced = np.zeros((2, self.copies * kernels * most, math.prod(values.shape[2:])))
        spaced[:, self.place] = values.reshape(2, values.shape[1], -1)
        rotated: Floats = self.rotation[:, None] @ spaced.reshape(2, self.copies, kernels, most, -1)
        return rotated.reshape(2, self.copies * kernels, most, *values.shape[2:])

    def weights(self, errors: ErrorModel, scale: Floats) -> Floats:
        """Return the precision along each axis, zero where there is none. Shape (2, K, L).

        ``scale`` is by how much each kernel's residuals are larger, shape (K,).
        """
        noise2, discrepancy2 = errors.noise**2, errors.discrepancy**2
        variance = noise2[:, None, None] + discrepancy2[:, None, None] * self.correlation
        precision: Floats = self.real / (variance * scale[:, None] ** 2)
        return precision
