"""The step at another power limit: what the driver's own cap would make of it.

Shape letters: K kernels, S settings, n launches.
"""

import dataclasses

import numpy as np

from underclock.core.costs.beside import shared_out
from underclock.core.costs.power_window import settle
from underclock.core.costs.step import KnownStep, cap_of, nearest_settings
from underclock.core.costs.table import CostTable


def under_limit(table: CostTable, limit_w: float, known_limit_w: float) -> KnownStep:
    """Return the costs of a step under a power limit; auto is what the driver's cap leaves it.

    The loop settles as far below one limit as below another. Whatever is chosen draws about the
    limit, so all of it runs at the temperature that belongs to that.

    Args:
        table: Costs of the step under the limit it was measured at.
        limit_w: The other limit.
        known_limit_w: The one it was measured at.

    Raises:
        ValueError: Costs are of kernels alone.
    """
    cap = cap_of(table)
    settles_w = cap.limit_w - known_limit_w + limit_w
    energy_j = table.energy_j.copy()
    if table.heat is not None:
        cooler_c = table.heat.c_per_w * min(0.0, settles_w - table.auto_w)
        known = np.isfinite(table.time_s)
        per_s = np.broadcast_to(table.heat.w_per_c * cooler_c, table.time_s.shape)
        energy_j[known] += table.time_s[known] * per_s[known]
    cap = dataclasses.replace(cap, limit_w=settles_w)
    cooled = dataclasses.replace(table, energy_j=energy_j, power_cap=cap, heat=None)
    settled = settle(cap, cooled.launches, np.full(len(cap.order), cap.boost))
    time_s = table.time_s.copy()
    # What the model misses of the step at its own limit, it is taken to miss at another.
    time, energy = (
        (1.0, 1.0) if table.closure is None else (table.closure.time, table.closure.energy)
    )
    for costs, each, ratio in (
        (time_s, settled.time_s, time),
        (energy_j, settled.energy_j, energy),
    ):
        total = float(each.sum()) / ratio
        costs[:, table.baseline] = shared_out(table.kernels, cap.order, each, total)
    return KnownStep(
        table=dataclasses.replace(cooled, time_s=time_s, energy_j=energy_j),
        at_auto=nearest_settings(table, settled, cap.boost),
    )
