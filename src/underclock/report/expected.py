"""What a frontier lets expect: the least energy at a time that nobody asked a plan for."""

from collections.abc import Sequence

from underclock.records import Cost


def expected_energy_change(frontier: Sequence[Cost], time_change: float) -> float | None:
    """Return the least energy change expected at a time change; ``None`` before the fastest point.

    Between two points a mixture of both is meant; beyond the last, more time saves nothing more.

    Args:
        frontier: Fastest first, energy falling.
        time_change: Fraction of auto.
    """
    if not frontier or time_change < frontier[0].time_change:
        return None
    before = frontier[0]
    for point in frontier:
        if point.time_change >= time_change:
            span = point.time_change - before.time_change
            part = (time_change - before.time_change) / span if span > 0 else 1.0
            return before.energy_change + part * (point.energy_change - before.energy_change)
        before = point
    return before.energy_change
