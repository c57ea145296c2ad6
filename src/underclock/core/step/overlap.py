"""Launches beside others: a step does not wait for them, and they run at the clocks of others.

A collective beside a product adds nothing to the step's time, and its clock is the product's. So a
kernel counts for as many launches as a step waits for; what its others draw beyond what the GPU
draws anyway is the same at every setting, for no setting of its own is theirs.

Shape letters: K kernels, S settings, n launches.
"""

from collections.abc import Sequence

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.errors import DataError
from underclock.records import Kernel


def overlapped(kernels: Sequence[Kernel]) -> Bools:
    """Return which kernels a step does not wait for at all. Shape (K,)."""
    return np.array([kernel.overlapped for kernel in kernels], dtype=bool)


def waited_counts(kernels: Sequence[Kernel]) -> Floats:
    """Return how many launches' time a step waits for. Shape (K,)."""
    return np.array([kernel.waited_count for kernel in kernels], dtype=np.float64)


def overlapped_counts(kernels: Sequence[Kernel]) -> Floats:
    """Return how many launches' time lies beside others. Shape (K,)."""
    return np.array([kernel.count - kernel.waited_count for kernel in kernels], dtype=np.float64)


def waited_shares(kernels: Sequence[Kernel]) -> Floats:
    """Return for which share of its launches' time a step waits. Shape (K,)."""
    return np.array([kernel.waited_count / kernel.count for kernel in kernels], dtype=np.float64)


def at_any_clocks(kernels: Sequence[Kernel], costs: Floats, baseline: int) -> Floats:
    """Return costs, alike at all settings of a kernel that runs beside others. Shape (K, S).

    Args:
        kernels: Of the step. Length K.
        costs: Shape (K, S).
        baseline: Index of the setting whose cost stands for all.
    """
    alike: Floats = np.where(overlapped(kernels)[:, None], costs[:, [baseline]], costs)
    return alike


def shared_out(kernels: Sequence[Kernel], order: Ints, of_launches: Floats, total: float) -> Floats:
    """Share a step's cost out among its kernels; what runs beside others keeps its own. (K,).

    Args:
        kernels: Of the step. Length K.
        order: Kernel of each launch. Shape (n,).
        of_launches: In proportion to what. Shape (n,).
        total: What parts add up to, in s or J.

    Raises:
        DataError: What runs beside others alone comes to as much.
    """
    beside = overlapped(kernels)
    of_kernels = np.bincount(order, weights=of_launches, minlength=len(kernels)).astype(np.float64)
    fixed = float(of_kernels[beside].sum())
    if fixed >= total:
        raise DataError(
            f"the whole step cost {total:g} s or J, no more than the {fixed:g} of launches that it "
            "does not wait for",
            hint="trace the step again, and measure it anew",
        )
    scale = (total - fixed) / (float(of_kernels.sum()) - fixed)
    parts: Floats = np.where(beside, of_kernels, scale * of_kernels)
    return parts


def overlap_notes(kernels: Sequence[Kernel], launch_s: Floats) -> tuple[str, ...]:
    """Say what a reader of costs must know of launches beside others; nothing where none are.

    Args:
        kernels: Of the step. Length K.
        launch_s: What a launch of each takes at auto. Shape (K,).
    """
    some = np.array([kernel.waited_for < 1.0 for kernel in kernels], dtype=bool)
    if not some.any():
        return ()
    names = [kernels[k].name for k in np.flatnonzero(some).tolist()]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    waited_s = float((waited_counts(kernels) * launch_s)[some].sum())
    all_s = waited_s + float((overlapped_counts(kernels) * launch_s).sum())
    run = "run" if len(names) > 1 else "runs"
    sentence = (
        f"{names[0]!r}{more} {run} beside other launches: the step waits for "
        f"{waited_s / all_s:.0%} of the time; the rest adds none and runs at the clocks of others, "
        "so its energy is counted, and no saving of it"
    )
    return (sentence,)
