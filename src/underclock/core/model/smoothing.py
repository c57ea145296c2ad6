"""A quantity of one kernel over clocks, from noisy runs, without any physics: a Gaussian process.

It follows a straight line in log f, a departure from it that bends where clocks throttle (Matérn
3/2, for such bends are sharp), and what every row has of its own, such as a clock bin. Runs weigh
by how far they are from what all of them say (`core.statistics.repeats`), so a wild run is known by
its neighbours too, where it was not repeated.

Shape letters: N runs, C rows.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.statistics.repeats import Runs, counts_for, means, nearest

_LENGTH = 0.3  # core clocks this far apart, as a logarithm, still bend together
_ACROSS = 0.5  # correlation at two memory clocks
_BROAD = 4.0  # variance of the line's height and slope: nothing is known of them
_BENDS = (0.003, 0.01, 0.03, 0.1, 0.3)  # standard deviations to choose from
_OWN = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
_ROUNDS, _CHOOSING = 8, (0, 2, 5)  # when the two deviations are chosen anew
_LIKE_KERNEL = 2.0  # rows at like clocks that the kernel's usual size is worth
_FACTOR = 1.4  # by which kernels differ in either, as a logarithm
_ENOUGH = 64  # rows to choose them by
_SETTLED = 1e-3
_VAST = 1e300  # more than any means come to, however little they scatter
_BOUND = 4.0  # deviations that a row counts for at most, where a wild run may be all there is of it
_ATTESTED = 1.5  # runs: from here on one has another beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """What is expected of every row. Each of shape (C,), the weights of shape (N,)."""

    mean: Floats
    variance: Floats
    weight: Floats


def smoothed(runs: Runs, mem_mhz: Floats, scatter: Floats) -> Smoothed:
    """Return what the rows of one kernel say of each other.

    Args:
        runs: Of one kernel, at locked core clocks.
        mem_mhz: Memory clock of each row. Shape (C,).
        scatter: Usual deviation of a run of each row. Shape (C,).
    """
    core_mhz = np.exp(runs.log_mhz)
    bend, line = bends(core_mhz, mem_mhz, core_mhz, mem_mhz), _lines(runs.log_mhz, mem_mhz)
    weight = np.ones(len(runs.log))
    # A run that another one of its row confirms is not odd, wherever rows beside it lie.
    confirmed2 = 0.5 * nearest(runs) ** 2
    deviations, own2 = (_BENDS[0], _OWN[0]), np.full(len(scatter), _OWN[0] ** 2)
    mean = variance = np.empty(0)
    for turn in range(_ROUNDS):
        measured = means(runs, weight)
        noise2 = scatter**2 / np.bincount(runs.row, weight)
        level = float(np.average(measured, weights=1.0 / noise2))
        if turn in _CHOOSING:
            shape = own2 / deviations[1] ** 2
            counted: Floats = np.bincount(runs.row, weight).astype(np.float64)
            deviations = likeliest(bend, line, noise2, measured - level, shape, counted)
            own2 = deviations[1] ** 2 * shape
        prior = line + deviations[0] ** 2 * bend + np.diag(own2)
        precision = np.asarray(np.linalg.inv(prior + np.diag(noise2)), dtype=np.float64)
        pull = precision @ (measured - level)
        mean = level + prior @ pull
        variance = np.maximum(
            np.diag(prior) - np.einsum("ij,jk,ki->i", prior, precision, prior), 0.0
        )
        off2 = np.minimum((runs.log - mean[runs.row]) ** 2 + variance[runs.row], confirmed2)
        before, weight = weight, counts_for(off2, scatter[runs.row])
        own2 = own_variances(own2, pull, precision, bend, deviations[1] ** 2)
        if np.abs(weight - before).max() < _SETTLED and turn >= _CHOOSING[1]:
            break
    return Smoothed(mean=mean, variance=variance, weight=weight)


def own_variances(
    own2: Floats, pull: Floats, precision: Floats, alike: Floats, usual2: float
) -> Floats:
    """Return variances of what each row has of its own, better than those they rest on. Shape (C,).

    Rows are off by more at some clocks than at others; rows at like clocks share a size.

    Args:
        own2: Variances as they were. Shape (C,).
        pull: Precision times how far the rows are off. Shape (C,).
        precision: Inverse covariance of the rows' means. Shape (C, C).
        alike: Correlation of rows at like clocks. Shape (C, C).
        usual2: What is usual of the kernel.
    """
    expected2 = (own2 * pull) ** 2 + own2 - own2**2 * np.diag(precision)
    nearby = alike**2
    local: Floats = (nearby @ expected2 + _LIKE_KERNEL * usual2) / (
        nearby.sum(axis=1) + _LIKE_KERNEL
    )
    return local


def bends(core_mhz: Floats, mem_mhz: Floats, other_core: Floats, other_mem: Floats) -> Floats:
    """Return the correlation of bends at points. Shape (len(core), len(other))."""
    apart = np.sqrt(3.0) * np.abs(np.log(core_mhz)[:, None] - np.log(other_core)) / _LENGTH
    same = np.where(mem_mhz[:, None] == other_mem, 1.0, _ACROSS)
    bend: Floats = same * (1.0 + apart) * np.exp(-apart)
    return bend


def _lines(log_mhz: Floats, mem_mhz: Floats) -> Floats:
    """Return the covariance of lines. Shape (C, C)."""
    same = np.where(mem_mhz[:, None] == mem_mhz, 1.0, _ACROSS)
    centred = log_mhz - log_mhz.mean()
    line: Floats = _BROAD * (1.0 + np.outer(centred, centred)) * same
    return line


def likeliest(
    bend: Floats,
    line: Floats,
    noise2: Floats,
    centred: Floats,
    shape: Floats,
    counted: Floats,
    usual: tuple[float, float] | None = None,
) -> tuple[float, float]:
    """Return the deviations of bends and of what is a row's own that explain means best.

    Args:
        bend: Correlation of bends. Shape (C, C).
        line: Covariance of all else that rows have in common. Shape (C, C).
        noise2: Variance of each mean, as repeats tell. Shape (C,).
        centred: The means. Shape (C,).
        shape: Variance of what is each row's own, against the usual. Shape (C,).
        counted: Runs of each row, as far as they count. Shape (C,).
        usual: What both mostly are, within a factor of some four; by default anything.
    """
    some = _spread_evenly(len(centred))
    # Each row is judged by those before it: first all of which the runs agree.
    some = some[np.argsort(counted[some] < _ATTESTED, kind="stable")]
    bend, line, centred = bend[np.ix_(some, some)], line[np.ix_(some, some)], centred[some]
    own, noise = np.diag(shape[some]), np.diag(noise2[some])
    # A wild run is no reason to take all rows for wild. Runs of a row that agree are not wild.
    most = np.where(counted[some] < _ATTESTED, _BOUND**2, np.inf)
    bends2, owns2 = np.square(_BENDS)[:, None, None, None], np.square(_OWN)[:, None, None]
    covariance = line + noise + bends2 * bend + owns2 * own
    # Of a matrix that has the means as one row more, the last row of the factor whitens them.
    whole = np.empty((*covariance.shape[:2], len(some) + 1, len(some) + 1))
    whole[..., :-1, :-1], whole[..., -1, :-1], whole[..., -1, -1] = covariance, centred, _VAST
    factors = np.linalg.cholesky(whole)
    misfit = np.minimum(factors[..., -1, :-1] ** 2, most).sum(axis=-1)
    spread = np.log(np.diagonal(factors, axis1=-2, axis2=-1)[..., :-1]).sum(axis=-1)
    likelihood = -0.5 * misfit - spread
    if usual is not None:
        away = [
            np.log(np.divide(each, one)) for each, one in zip((_BENDS, _OWN), usual, strict=True)
        ]
        likelihood -= 0.5 * np.add.outer(away[0] ** 2, away[1] ** 2) / _FACTOR**2
    # Of those that explain the means alike, the greatest bend and the least of a row's own.
    bend_, own_ = np.divmod(likelihood[::-1].argmax(), len(_OWN))
    return _BENDS[len(_BENDS) - 1 - int(bend_)], _OWN[int(own_)]


def _spread_evenly(rows: int) -> Ints:
    """Return rows to choose by: all, or some from end to end."""
    return np.unique(np.linspace(0, rows - 1, min(rows, _ENOUGH)).astype(np.int64))
