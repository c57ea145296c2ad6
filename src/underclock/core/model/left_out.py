"""How far errors can be believed: rows that are left out.

Each row is predicted by all the rest of its kernel's, time and power together. Errors are widened
until as many of these predictions hold as are said to; a row that these exclude was disturbed.

Shape letters: K kernels, n rows of a kernel; a leading 2 is time and energy.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from underclock.arrays import Bools, Floats
from underclock.core.model.conditioning import Conditioned

_TWO_SIDED = 1.96  # deviations, within which 95 % of errors lie
_INSIDE = 0.97  # of left-out rows: sizes and priors were learned from these rows too
_FEWEST = 20  # rows, from which on left-out rows say how wide errors are
_ODD = 0.3  # standard deviation of a disturbed row's logarithm
_ODD_ROW, _SURELY = 0.003, 0.9  # how often rows are disturbed, and how likely that must be


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows against what all other rows say of them."""

    there: Bools  # which rows have other rows of their kernel, (2, K, n)
    error: Floats  # by how much each is off, (2, K, n)
    variance: Floats  # of that; 1 where there is none, (2, K, n)

    @classmethod
    def of(cls, given: Conditioned) -> "LeftOut":
        """Leave each row out, what all kernels share being known."""
        kernels, both = given.real.shape
        n = both // 2
        real = given.real.reshape(kernels, 2, n)
        pulled = (given.inverse @ given.left(given.shared)[:, None, :, None])[..., 0]
        first, second = np.arange(n), np.arange(n, 2 * n)
        time, power = given.inverse[..., first, first], given.inverse[..., second, second]
        cross = given.inverse[..., first, second]
        of_time, of_power = pulled[..., :n], pulled[..., n:]
        determinant = time * power - cross**2
        variance = np.stack([power, time, -cross]) / determinant
        error = np.stack(
            [
                variance[0] * of_time + variance[2] * of_power,
                variance[2] * of_time + variance[1] * of_power,
            ]
        )
        # Odds of the scales as the other rows have them.
        odds = np.log(np.maximum(given.odds, 1e-300))[..., None] - 0.5 * np.log(determinant)
        odds = odds + 0.5 * (error[0] * of_time + error[1] * of_power)
        odds = np.exp(odds - logsumexp(odds, axis=1, keepdims=True))
        errors, variances = [], []
        for each, var in (
            (error[0], variance[0]),
            (error.sum(axis=0), variance[0] + variance[1] + 2.0 * variance[2]),
        ):
            mean = (odds * each).sum(axis=1)
            errors.append(mean)
            variances.append((odds * (var + each**2)).sum(axis=1) - mean**2)
        enough: Bools = np.stack([real[:, 0], real.all(axis=1)]).astype(bool)
        enough = enough & (enough.sum(axis=2) > 1)[..., None]
        return cls(
            there=enough,
            error=np.where(enough, np.array(errors), 0.0),
            variance=np.where(enough, np.array(variances), 1.0),
        )

    def without(self, odd: Bools) -> "LeftOut":
        """Return the same of all rows but some. Shape (K, n)."""
        return dataclasses.replace(self, there=self.there & ~odd)

    @property
    def odd(self) -> Bools:
        """Which rows were surely disturbed: a disturbance makes them far likelier. Shape (K, n)."""
        log_odds = np.full(self.there.shape[1:], math.log(_ODD_ROW))
        for there, error, variance in zip(self.there, self.error, self.variance, strict=True):
            wide = variance + _ODD**2
            likelier = 0.5 * (np.log(variance / wide) + error**2 * (1.0 / variance - 1.0 / wide))
            log_odds += np.where(there, likelier, 0.0)
        return log_odds > math.log(_SURELY / (1.0 - _SURELY))

    def factor(self, q: int) -> float:
        """Return by how much wider errors of entries must be for 95 % to hold; at least 1.

        Args:
            q: 0 for time, 1 for energy.
        """
        squares = (self.error[q] ** 2 / self.variance[q])[self.there[q]]
        if len(squares) < _FEWEST:
            return 1.0
        return max(1.0, math.sqrt(float(np.quantile(squares, _INSIDE))) / _TWO_SIDED)
