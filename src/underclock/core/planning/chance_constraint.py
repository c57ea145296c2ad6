"""A time budget as a chance constraint: it holds with 95 % confidence."""

from collections.abc import Callable

from underclock.arrays import Ints
from underclock.core.model.predicted_change import ONE_SIDED, PredictedChange

_ROUNDS = 8
_SMALL = 1e-6  # of a budget


def keeping(
    budget: float, choose: Callable[[float], Ints | None], judge: Callable[[Ints], PredictedChange]
) -> tuple[Ints, PredictedChange] | None:
    """Choose so that a time budget holds with 95 % confidence.

    Args:
        budget: Fraction above auto.
        choose: The best choice whose expected change of time is within its argument.
        judge: What a choice is expected to change.

    Returns:
        ``None`` where nothing holds it.
    """
    aim, best = budget, None
    low, high = -1.0, budget
    for _ in range(_ROUNDS):
        found = choose(aim)
        if found is None:
            low = max(low, aim)
        else:
            seen = judge(found)
            over = seen.time_change + ONE_SIDED * seen.time_spread - budget
            if over <= _SMALL:
                if best is None or seen.energy_change < best[1].energy_change:
                    best = found, seen
                low = max(low, aim)
                if over > -0.1 * max(ONE_SIDED * seen.time_spread, _SMALL):
                    return best
            else:
                high = min(high, aim)
            aim = min(high, budget - ONE_SIDED * seen.time_spread)
            if low < aim < high:
                continue
        if high - low < _SMALL:
            break
        aim = 0.5 * (max(low, high - 0.05) + high)
    return best
