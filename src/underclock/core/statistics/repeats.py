"""Repeats of rows, how far they scatter and how much an odd one counts; and changes of a level.

Most repeats of a kernel at the same clocks lie close together; some are far off, because something
else ran, the GPU was cold or a sensor stuck. Three runs do not tell how far is far, so scatters are
pooled: over rows of a kernel at like clocks, and over kernels. A run within two such deviations
counts nearly fully, one far off by the inverse square of its distance, so that no single run moves
a mean by much. Where odd runs are frequent they widen the scatter, and are odd no more.

Where a series of readings changes, each speaks for one level or the other, and the cut with which
most agree is where the sum of their votes is least: single disturbed readings move nothing.

Values are logarithms. Shape letters: N runs or readings, C rows of a table, K kernels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from underclock.arrays import Bools, Floats, Ints

_RATE, _TIMES = 0.05, 10.0  # how many runs are odd, and how many times as far off these are
_SURE = 200.0  # square of deviations from which a run is odd beyond doubt
_ODD = 1.0 / 36.0  # of a full run: what counts less, from six deviations on, is called odd
_OFF = 0.05  # and differs by this much: less is not worth a reader's time
_REACH = 0.2  # rows whose clocks differ by this, as a logarithm, scatter alike
_OF_KERNEL, _OF_ALL = 6.0, 6.0  # repeats that a kernel's, and all kernels', scatter is worth
_USUAL = 0.01  # scatter where nothing was repeated
OF_USUAL = 4.0  # repeats that it is worth
_BOUND, _WITHIN = 1.5, 0.8  # a row's scatter counts up to so many deviations; what is left then
_LEAST = 1e-9  # clocks and sensors are digital: repeats may agree to the last digit
_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRuns:
    """Runs of the rows of a table."""

    log: Floats  # logarithm of what was measured, (N,)
    row: Ints  # which row a run is of; every row has one, (N,)
    kernel: Ints  # which kernel a row is of, (C,)
    log_mhz: Floats  # logarithm of its core clock; ``nan`` where that was left to the driver, (C,)

    @property
    def taken(self) -> Floats:
        """How many runs each row has. Shape (C,)."""
        return np.bincount(self.row, minlength=len(self.kernel)).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What repeats say of each row."""

    mean: Floats  # weighed, (C,)
    scatter: Floats  # standard deviation of a run that is not odd, (C,)
    weight: Floats  # how much each run counts, against an ordinary one, (N,)
    off: Floats  # how far each run is from its row's mean, (N,)

    @property
    def odd(self) -> Bools:
        """Which runs hardly count, and are so far off that a reader should know. Shape (N,)."""
        return (self.weight < _ODD) & (np.abs(self.off) > _OFF)


def weighed(runs: RepeatedRuns) -> Weighed:
    """Weigh the repeats of every row by how far they are from each other."""
    # The rows of each kernel and how much alike their clocks are: so they scatter alike.
    among = []
    for k in range(int(runs.kernel.max()) + 1):
        rows = np.flatnonzero(runs.kernel == k)
        log_mhz = runs.log_mhz[rows]
        free = np.isnan(log_mhz)
        log_mhz = np.where(free, log_mhz[~free].max(initial=0.0), log_mhz)
        apart = (log_mhz[:, None] - log_mhz) / _REACH
        among.append((rows, np.exp(-0.5 * apart**2)))
    freedom = runs.taken - 1.0
    # The median of every row, from which an odd run shows as odd. Shape (C,).
    ordered = runs.log[np.lexsort((runs.log, runs.row))]
    taken = runs.taken.astype(np.int64)
    first = np.cumsum(taken) - taken
    medians: Floats = 0.5 * (ordered[first + (taken - 1) // 2] + ordered[first + taken // 2])
    weight, mean = np.ones(len(runs.log)), medians
    scatter = np.full(len(runs.kernel), _USUAL)
    for _ in range(_ROUNDS):
        off = runs.log - mean[runs.row]
        squares = np.bincount(runs.row, off**2)
        bounded: Floats = np.minimum(squares, freedom * (_BOUND * scatter) ** 2) / _WITHIN
        scatter = _scatter(runs, among, bounded, freedom)
        unsure = scatter**2 / np.bincount(runs.row, weight)
        weight = counts_for(off**2 + unsure[runs.row], scatter[runs.row])
        mean = np.bincount(runs.row, weight * runs.log) / np.bincount(runs.row, weight)
    off = runs.log - mean[runs.row]
    # A row that was run once has nothing to be odd against.
    alone = freedom[runs.row] == 0.0
    return Weighed(mean=mean, scatter=scatter, weight=np.where(alone, 1.0, weight), off=off)


def counts_for(square: Floats, scatter: Floats) -> Floats:
    """Return how much runs count, against one at the mean.

    A run is ordinary, or one in twenty is odd and ten times as far off. The further off, the surer
    it is odd; then its distance is all that is known of how far such a run is off.

    ``square`` is the expected one of their distance from the mean, ``scatter`` the usual standard
    deviation of each. Shapes (N,).
    """
    away2 = square / scatter**2
    ordinary = _TIMES * np.exp(-0.5 * np.minimum(away2, _SURE) * (1.0 - _TIMES**-2.0))
    odd = _RATE / (_RATE + (1.0 - _RATE) * ordinary)
    # Within a deviation nothing is odd, and no run counts for more than a usual one.
    weight: Floats = 1.0 / ((1.0 - odd) + odd * np.maximum(away2, 1.0))
    return weight


def _scatter(
    runs: RepeatedRuns, among: list[tuple[Ints, Floats]], squares: Floats, freedom: Floats
) -> Floats:
    """Return the usual deviation of a run of each row, pooled over rows that are alike. Shape (C,).

    ``squares`` are weighed sums of squares, ``freedom`` the runs but one of each row. Shapes (C,).
    """
    free = np.isnan(runs.log_mhz)
    ratio = 1.0
    pooled = np.empty(len(squares))
    for _ in range(2):  # once as if auto scattered like locked clocks, once as it does
        alike = np.where(free, squares / ratio, squares)
        of_kernel = np.bincount(runs.kernel, alike) + 1e-300
        repeats = np.bincount(runs.kernel, freedom)
        known = repeats > 0
        # Kernels differ by orders of magnitude: their geometric mean is what is usual.
        logs = np.log(np.maximum(of_kernel[known] / repeats[known], _LEAST**2))
        many = np.minimum(repeats[known], OF_USUAL)
        usual = np.exp(
            (float(many @ logs) + OF_USUAL * np.log(_USUAL**2)) / (many.sum() + OF_USUAL)
        )
        mine = (of_kernel + _OF_ALL * usual) / (repeats + _OF_ALL)
        for k, (rows, near) in enumerate(among):
            sums = near @ alike[rows] + _OF_KERNEL * mine[k]
            pooled[rows] = sums / (near @ freedom[rows] + _OF_KERNEL)
        at_auto = free & (freedom > 0)
        ratio = max(
            1.0,
            (float((squares / pooled)[at_auto].sum()) + OF_USUAL)
            / (float(freedom[at_auto].sum()) + OF_USUAL),
        )
    return np.sqrt(np.maximum(np.where(free, ratio * pooled, pooled), _LEAST**2))


_SIGMA_OF_MAD = 1.4826  # of a normal distribution
_APART = 3.0  # standard deviations of a reading, by which two levels differ at least
_LEAST_CHANGE = 0.003  # fraction of a level: heat and timers move readings by about this
_NEAR, _NEAR_SIGMAS, _NEARER = 0.1, 4.0, 0.4  # of the gap: so near is at a level
_STALL = 3.0  # a reading so many times the greater level stood still, and votes for neither
_SURELY_CHANGED = 7.0  # standard deviations of a mean of as many readings


def find_change(values: Floats, lead: int, tail: int) -> tuple[int, int] | None:
    """Find the one change of level.

    Args:
        values: Readings in turn. Shape (N,).
        lead: So many at the beginning are at the old level.
        tail: So many at the end are at the new one.

    Returns:
        The first reading that is not at the old level, and the first from which on they are at the
        new one; ``None`` where the levels cannot be distinguished.
    """
    old, new = float(np.median(values[:lead])), float(np.median(values[-tail:]))
    gap = abs(new - old)
    noise = max(robust_sigma(values[:lead] - old), robust_sigma(values[-tail:] - new))
    if gap <= max(_APART * noise, _LEAST_CHANGE * old):
        return None
    near = max(_NEAR * gap, min(_NEAR_SIGMAS * noise, _NEARER * gap))
    works = values <= _STALL * max(old, new)
    votes = (
        np.where(each, 1.0, -1.0) * works
        for each in (abs(values - old) > near, abs(values - new) <= near)
    )
    left, arrived = (np.concatenate(([0.0], np.cumsum(each))) for each in votes)
    return int(np.argmin(left)), len(values) - int(np.argmin(arrived[::-1]))


def moves(values: Floats, width: int) -> Iterator[tuple[int, int, bool]]:
    """Find every change of level among readings in turn, (N,), that may have many.

    So many readings on each side are compared: levels that last less are not seen.

    Yields:
        Of each, as `find_change`, the two readings; and whether values rise.
    """
    if len(values) <= 2 * width:
        return
    level = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    change = np.log(level[width:] / level[:-width])
    noise = robust_sigma(np.diff(values)) / float(np.median(values))
    least = max(_LEAST_CHANGE, _SURELY_CHANGED * noise / np.sqrt(width))
    signs = np.sign(change) * (np.abs(change) > least)
    edges = np.flatnonzero(np.diff(np.concatenate(([0.0], signs, [0.0]))))
    for begin, end in pairwise(edges):
        found = find_change(values[begin : end - 1 + 2 * width], width, width)
        if signs[begin] and found is not None:
            yield int(begin) + found[0], int(begin) + found[1], bool(signs[begin] > 0)


def robust_sigma(away: Floats) -> float:
    """Return a standard deviation about 0 from the median distance; odd values hardly move it."""
    return _SIGMA_OF_MAD * float(np.median(np.abs(away)))
