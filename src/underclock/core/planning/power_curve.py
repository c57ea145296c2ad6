"""The frontier of time against power limit: what choosing clocks gains over the driver's cap."""

from underclock.core.planning.fastest import fastest
from underclock.core.solvers import Effort
from underclock.core.step.table import CostTable
from underclock.core.step.under_cap import grouped, under_limit
from underclock.records import Granularity, PowerPoint

_PARTS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_ROUNDS = 12  # choices looked at for a point; a plan looks at more


def power_curve(
    table: CostTable, known_limit_w: float, least_w: float, *, granularity: Granularity
) -> tuple[PowerPoint, ...]:
    """Find the fastest step at limits from half of the GPU's own to all of it.

    Args:
        table: Costs of the step under the limit it was measured at.
        known_limit_w: That limit.
        least_w: Least limit that the GPU takes.
        granularity: Who shares clocks.
    """
    points = []
    for part in _PARTS:
        limit_w = part * known_limit_w
        if limit_w < least_w:
            continue
        limited = under_limit(table, limit_w, known_limit_w).table
        groups = grouped(limited, granularity)
        fast = fastest(limited, groups, Effort.QUICK, rounds=_ROUNDS)
        cost = None if fast is None else fast.cost
        if cost is None or cost.time_s > limited.auto_time_s:
            cost = None
        points.append(
            PowerPoint(
                limit_w=limit_w,
                auto_time_s=limited.auto_time_s,
                time_s=limited.auto_time_s if cost is None else cost.time_s,
                time_change=0.0 if cost is None else cost.time_change,
                energy_change=0.0 if cost is None else cost.energy_change,
            )
        )
    return tuple(points)
