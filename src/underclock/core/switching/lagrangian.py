"""Lagrangian costs: at given multipliers of time and of a switch, one cost in place of three.

Shape letters: m items, S settings, C dwell classes.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.switching.ring import Ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagrangian:
    """A ring with one cost instead of energy, time and switches.

    Attributes:
        time_multiplier: In joules per second.
        switch_multiplier: In joules per change of setting.
        sums: Cost of the items before each boundary, half of item 0 included. Shape (m + 1, S).
        half: Half the cost of item 0; ``inf`` where it cannot run. Shape (S,).
        change: Cost of each change by dwell class; ``inf`` in the other classes. From a setting to
            itself it is free, in the first. Shape (C, S, S).
        error: What rounding can at most do to the cost of a cycle.
    """

    time_multiplier: float
    switch_multiplier: float
    sums: Floats
    half: Floats
    change: Floats
    error: float


def lagrangian_of(ring: Ring, time: float, switch: float = 0.0) -> Lagrangian:
    """Add multiplied time and switches to the energy of a ring's items and changes.

    Args:
        ring: The ring.
        time: Multiplier of time, in joules per second.
        switch: Multiplier of a change of setting, in joules.
    """
    cost = ring.energy + time * ring.time
    half = 0.5 * cost[0]
    cost[0] = half
    sums = np.concatenate([np.zeros((1, cost.shape[1])), cost])
    np.cumsum(sums, axis=0, out=sums)
    base = ring.switch_energy + time * ring.switch_time + switch
    change = base[None]
    if ring.dwell is not None:
        classes = np.arange(len(ring.dwell.levels_s))[:, None, None]
        change = np.where(ring.dwell.kind == classes, base, np.inf)
    np.einsum("css->cs", change)[:] = np.inf
    np.fill_diagonal(change[0], 0.0)
    size = float(sums[-1].max() + half.max()) + len(ring.time) * float(base.max())
    return Lagrangian(
        time_multiplier=time,
        switch_multiplier=switch,
        sums=sums,
        half=half if ring.shut is None else half + ring.shut[0],
        change=change,
        error=2.0 * float(np.finfo(np.float64).eps) * (len(ring.time) + 8) * size,
    )
