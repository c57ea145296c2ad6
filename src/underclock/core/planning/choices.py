"""What a choice of clocks costs, and how arms and plans tell of it.

A choice is one setting per kernel: an index into the settings of a cost table.

Shape letters: K kernels.
"""

import math

import msgspec
import numpy as np

from underclock.arrays import Ints
from underclock.core.model.costs import PredictedChange
from underclock.core.step.table import CostTable, overlapped
from underclock.core.step.under_cap import against_auto, auto_core_mhz, step_cost
from underclock.records import Arm, Choice, Cost


def choice_cost(table: CostTable, setting: Ints) -> Cost:
    """Return what a choice costs, against auto: under a power cap, of the step as it settles.

    Args:
        setting: Of each kernel. Shape (K,).
    """
    if table.power_cap is not None:
        return step_cost(table, setting[table.power_cap.order])
    rows = np.arange(len(table.kernels))
    return against_auto(
        table, math.fsum(table.time_s[rows, setting]), math.fsum(table.energy_j[rows, setting])
    )


def as_neighbours(table: CostTable, setting: Ints) -> Ints:
    """Return a choice in which what runs beside others has the clocks of what it runs beside.

    A kernel has one setting, and its launches may have several neighbours: most of their time
    decides. Where the order is not known, all of the step does.

    Args:
        setting: Of each kernel. Shape (K,).
    """
    beside = overlapped(table.kernels)
    if not beside.any():
        return setting
    near_s = np.zeros((len(setting), len(setting)))  # of neighbours, column by column
    if table.power_cap is None:
        near_s[:] = table.time_s[:, table.baseline]
    else:
        order = table.power_cap.order
        at_auto_s = table.launches.time_s[:, table.baseline]
        others = np.flatnonzero(~beside[order])
        for launch in np.flatnonzero(beside[order]).tolist():
            # The launch before it, round the end of the step; the first has the last before it.
            neighbour = order[others[np.searchsorted(others, launch) - 1]]
            near_s[order[launch], neighbour] += at_auto_s[neighbour]
    found: Ints = setting.copy()
    for k in np.flatnonzero(beside).tolist():
        found[k] = np.bincount(setting[~beside], weights=near_s[k, ~beside]).argmax()
    return found


def choices(table: CostTable, setting: Ints, order: Ints | None = None) -> dict[str, Choice]:
    """Return the clocks of every kernel and what they do to it.

    Args:
        setting: Of each kernel, shape (K,), or of each launch of ``order``, both of shape (n,).
    """
    by_kernel = {}
    at_auto = auto_core_mhz(table)
    launches = np.zeros(table.time_s.shape)
    np.add.at(launches, (np.arange(len(setting)) if order is None else order, setting), 1)
    shares = launches / launches.sum(axis=1, keepdims=True)
    times_s, energies_j = (
        shares * np.where(shares > 0.0, each, 0.0) for each in (table.time_s, table.energy_j)
    )
    for k, kernel in enumerate(table.kernels):
        clocks = table.settings[times_s[k].argmax()]
        auto_s = float(table.time_s[k, table.baseline])
        auto_j = float(table.energy_j[k, table.baseline])
        by_kernel[kernel.name] = Choice(
            core_mhz=clocks.core_mhz,
            mem_mhz=clocks.mem_mhz,
            # What runs beside others is not changed by clocks that are theirs.
            time_change=0.0 if kernel.overlapped else math.fsum(times_s[k]) / auto_s - 1.0,
            energy_change=0.0 if kernel.overlapped else math.fsum(energies_j[k]) / auto_j - 1.0,
            auto_time_s=auto_s,
            auto_energy_j=auto_j,
            auto_core_mhz=at_auto.get(k),
        )
    return by_kernel


def with_intervals(arm: Arm, change: PredictedChange) -> Arm:
    """Return an arm with the 95 % intervals of its changes."""
    time, energy = change.intervals
    return msgspec.structs.replace(
        arm,
        time_interval=(change.time_change + time[0], change.time_change + time[1]),
        energy_interval=(change.energy_change + energy[0], change.energy_change + energy[1]),
    )
