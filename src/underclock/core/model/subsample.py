"""A fit of many rows, to as many of them as tell something new.

Rows of one kernel at like clocks share most of their discrepancy, so a kernel with hundreds of them
is known by some spread over all; and what kernels share is known by some of every kind and size.
"""

import dataclasses

import numpy as np

from underclock.arrays import Ints
from underclock.core.model.most_likely import FittedModel, fit_all, fit_kernels
from underclock.core.model.parameters import Shared
from underclock.core.model.rows import OF_ROWS, Rows

MOST_ROWS = 64  # of a kernel
MOST_KERNELS = 150  # that what is shared is fitted to
_GOLDEN = 0.6180339887498949  # its multiples, less their whole part, are spread evenly


def fitted(
    rows: Rows, family: Shared, *, most_rows: int = MOST_ROWS, most_kernels: int = MOST_KERNELS
) -> FittedModel:
    """Fit rows: all of them where they are few.

    Args:
        rows: To fit.
        family: What kernels share.
        most_rows: Rows of a kernel that are used; `FittedModel.rows` says which.
        most_kernels: Kernels that what is shared is fitted to.
    """
    light = _only(rows, spread_rows(rows, most_rows))
    some = spread_kernels(light, most_kernels)
    if len(some) == len(rows.names):
        return fit_all(light, family)
    return fit_kernels(light, fit_all(_of(light, some), family))


def spread_rows(rows: Rows, most: int) -> Ints:
    """Choose rows of each kernel evenly from slow to fast, another part of them for each kernel.

    The fastest row is always chosen.

    Args:
        rows: To choose from.
        most: Rows of a kernel.

    Returns:
        Indices, ascending.
    """
    chosen = []
    for k, (low, high) in enumerate(zip(rows.bounds[:-1], rows.bounds[1:], strict=True)):
        count = int(high - low)
        if count <= most:
            chosen.append(np.arange(low, high))
            continue
        order = low + np.lexsort((rows.core_mhz[low:high], rows.mem_mhz[low:high]))
        places = ((np.arange(most) + k * _GOLDEN % 1.0) * count / most).astype(np.int64)
        places[-1] = count - 1
        chosen.append(np.sort(order[places]))
    rows_chosen: Ints = np.concatenate(chosen)
    return rows_chosen


def spread_kernels(rows: Rows, most: int) -> Ints:
    """Choose kernels evenly from short to long within each kind; all where they are few.

    Args:
        rows: Of all kernels; those without rows are chosen only where all are.
        most: Kernels.

    Returns:
        Indices, ascending.
    """
    counts = np.diff(rows.bounds)
    if len(counts) <= most:
        return np.arange(len(counts))
    known = np.flatnonzero(counts)
    fastest_s = np.minimum.reduceat(rows.log_s, rows.bounds[known])
    order = known[np.lexsort((fastest_s, rows.kinds[known]))]
    places = np.linspace(0, len(order) - 1, min(most, len(order))).astype(np.int64)
    kernels: Ints = np.sort(order[places])
    return kernels


def _only(rows: Rows, chosen: Ints) -> Rows:
    """Return some rows of the same kernels."""
    some = {name: getattr(rows, name)[..., chosen] for name in OF_ROWS}
    apart = None if rows.apart is None else rows.apart[chosen]
    return dataclasses.replace(rows, **some, apart=apart, company=rows.by_company[chosen])


def _of(rows: Rows, kernels: Ints) -> Rows:
    """Return the rows of some kernels, which become all there are."""
    mine = _only(rows, np.flatnonzero(np.isin(rows.kernel, kernels)))
    return dataclasses.replace(
        mine,
        names=tuple(rows.names[k] for k in kernels.tolist()),
        kinds=rows.kinds[kernels],
        kernel=np.searchsorted(kernels, mine.kernel).astype(np.int64),
    )
