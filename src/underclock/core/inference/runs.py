"""Runs and rows: how much each run counts, whatever its neighbours and the physics say of it.

Most runs scatter alike. Some scatter more, and a few were disturbed altogether; which they are is
told by how far a run is off what all others say of its row. None is thrown away.

Shape letters: N runs, K kernels, n rows of a kernel; a leading 2 is time and power.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.inference.field import FieldPosterior, FieldRows, LeftOut, log_sum
from underclock.core.inference.sizes import Within

_SCALES = np.array([1.0, 3.0, 10.0])  # of the noise of usual runs
_ODD = 0.3  # standard deviation of a disturbed run's logarithm
_LOG_ODDS = np.log([0.86, 0.12, 0.015, 0.005])  # of these scales, and of a disturbed run
_LOG_WILD = np.log(0.01)  # of a row of which all runs scatter as the worst do
_LOG_ODD_ROW = np.log(0.003)  # of a row that is its only run: a cliff looks much like that
_SURELY = 0.9  # how likely a disturbance must be there, to be believed
_LEAST = 1e-4  # that a run counts for
_FAR_OFF = 0.15  # from the median of its row: where a first guess finds a run odd
_AT_FIRST = 0.01
_MANY = 3  # runs of a row that have a median
_KNOWN = 0.02  # of what all say: others know at least so much of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLogs:
    """Runs of kernels.

    Attributes:
        log: Logarithms of time in s and power in W. Shape (2, N).
    """

    kernel: Ints
    setting: Ints
    log: Floats
    kernels: int

    @property
    def single(self) -> bool:
        """Whether every row is one run."""
        return len(np.unique(self.row)) == len(self.kernel)

    @property
    def row(self) -> Ints:
        """Which row each run is of, counted over all kernels. Shape (N,)."""
        places = self.kernel * (int(self.setting.max()) + 1) + self.setting
        row: Ints = np.unique(places, return_inverse=True)[1]
        return row


def first_weights(runs: RunLogs) -> Floats:
    """Return a first guess of how much runs count: those far off the median of their row hardly."""
    row = runs.row
    order = np.argsort(row, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(row[order])) + 1)
    weights = np.ones(len(row))
    for group in groups:
        if len(group) >= _MANY:
            log = runs.log[:, group]
            off = np.abs(log - np.median(log, axis=1, keepdims=True)).max(axis=0)
            weights[group[off > _FAR_OFF]] = _AT_FIRST
    return weights


def mean_rows(runs: RunLogs, weights: Floats, quantity: int) -> FieldRows:
    """Return the means of rows, and for how many usual runs each stands.

    Args:
        weights: How much each counts, in usual runs. Shape (N,).
    """
    count = np.bincount(runs.row, weights)
    log = np.bincount(runs.row, weights * runs.log[quantity]) / count
    kernel, setting, place = _places(runs)
    shape = runs.kernels, int(place.max()) + 1
    at, means, counts = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
    at[kernel, place], means[kernel, place], counts[kernel, place] = setting, log, count
    return FieldRows(setting=at, log=means, runs=counts)


def _places(runs: RunLogs) -> tuple[Ints, Ints, Ints]:
    """Return of each row its kernel, its setting, and its place among the kernel's rows."""
    first = np.unique(runs.row, return_index=True)[1]
    kernel, setting = runs.kernel[first], runs.setting[first]
    return kernel, setting, np.arange(len(kernel)) - np.searchsorted(kernel, kernel)


def scatter_within(runs: RunLogs, weights: Floats, quantity: int) -> Within:
    """Return how usual runs scatter within their rows."""
    row, log = runs.row, runs.log[quantity]
    count = np.bincount(row, weights)
    mean = np.bincount(row, weights * log) / count
    squares = np.bincount(row, weights * (log - mean[row]) ** 2)
    freedom = np.where(np.bincount(row) > 1, np.maximum(count - 1.0, 0.0), 0.0)
    return Within(squares=float(squares[freedom > 0.0].sum()), freedom=float(freedom.sum()))


def reweighed(
    runs: RunLogs,
    weights: Floats,
    told: tuple[FieldPosterior, FieldPosterior],
    noises: tuple[float, float],
) -> Floats:
    """Return how much each run counts, told by all others.

    Args:
        noises: Standard deviations of a usual run, of time and power.
    """
    log_odds = np.tile(_LOG_ODDS[:, None], len(runs.kernel))
    for log, each, noise in zip(runs.log, told, noises, strict=True):
        at = runs.kernel, runs.setting
        mean, precision = each.mean[at], 1.0 / np.maximum(each.variance[at], 1e-12)
        own = weights / noise**2
        others = np.maximum(precision - own, _KNOWN * precision)
        expected = (mean * precision - own * log) / others
        scatter = np.append(_SCALES**2 * noise**2, noise**2 + _ODD**2)
        spread = np.minimum(1.0 / others, 1.0) + scatter[:, None]
        log_odds = log_odds - 0.5 * np.log(spread) - 0.5 * (log - expected) ** 2 / spread
    odds = np.exp(log_odds - log_sum(log_odds, 0))
    wild = _wild(runs.row, log_odds)[runs.row]
    worst = np.exp(log_odds[2:] - _LOG_ODDS[2:, None])
    worst = worst / np.maximum(worst.sum(axis=0), 1e-300)
    odds = (1.0 - wild) * odds + wild * np.concatenate([np.zeros_like(worst), worst])
    counted: Floats = (odds[:-1] / _SCALES[:, None] ** 2).sum(axis=0) + _LEAST
    return counted


def _wild(row: Ints, log_odds: Floats) -> Floats:
    """Return how likely each row is one whose runs all scatter as the worst do."""
    usual = np.bincount(row, log_sum(log_odds, 0))
    worst = np.array([np.bincount(row, log_odds[s] - _LOG_ODDS[s]) for s in (2, 3)])
    all_wild = _LOG_WILD + log_sum(worst, 0) - np.log(2.0)
    wild: Floats = 1.0 / (1.0 + np.exp(np.clip(usual - all_wild, -500.0, 500.0)))
    return wild


def without_odd(runs: RunLogs, left_out: tuple[LeftOut, LeftOut]) -> Floats:
    """Return how much rows of one run each count: those hardly that were surely disturbed.

    Args:
        left_out: Rows of time and of power, each against all others.
    """
    log_odds = _LOG_ODD_ROW + sum(each.oddness(_ODD) for each in left_out)
    odd = log_odds > np.log(_SURELY / (1.0 - _SURELY))
    kernel, _, place = _places(runs)
    return np.where(odd[kernel, place][runs.row], _LEAST, 1.0)
