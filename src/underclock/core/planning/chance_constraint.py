"""A time budget as a chance constraint: it holds with 95 % confidence.

The time of a whole step can be told to about a tenth of a per cent, so that is to what its budget
is kept: with 95 % confidence to a tenth of a point, and as expected to half of it. A budget on sums
of kernels is kept as it is written.

What a choice of clocks does to the time is known with an error, so a choice whose expected time
just meets the budget overruns it as often as not. The solver is therefore given an aim below the
budget, such that the aim and the margin of the choice made for it add up to the budget. The margin
depends on the choice, so the aim is found by iteration.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from underclock.arrays import Ints
from underclock.core.model.predicted_change import ONE_SIDED, PredictedChange
from underclock.core.planning.under_cap import Proof

_ROUNDS = 8
_SMALL = 1e-6  # of auto's time
_UNUSED = 0.1  # of the margin: less room than this in the budget is not worth another round
_FARTHEST = 0.05  # of auto's time: an aim so far below one that overran is low enough to try


class RiskModel(Protocol):
    """What tells how sure the costs of a choice of clocks are."""

    def predicted_change(self, setting: Ints, /) -> PredictedChange:
        """Return what a choice is expected to change, and the deviations of that.

        Args:
            setting: Index into the cost table's settings, of each kernel. Shape (K,).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A choice of clocks, and how the solver came to it.

    Attributes:
        setting: Index into the cost table's settings, of each kernel. Shape (K,).
        proof: How good it is.
    """

    setting: Ints
    proof: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bracket:
    """The range that the aim is sought in.

    Attributes:
        low: Greatest aim that keeps the budget, or that no choice can meet.
        high: Least aim whose choice overruns the budget; the budget itself to begin with.
    """

    low: float
    high: float

    def above(self, aim: float) -> "_Bracket":
        return dataclasses.replace(self, low=max(self.low, aim))

    def below(self, aim: float) -> "_Bracket":
        return dataclasses.replace(self, high=min(self.high, aim))

    @property
    def is_narrow(self) -> bool:
        return self.high - self.low < _SMALL

    @property
    def middle(self) -> float:
        return 0.5 * (max(self.low, self.high - _FARTHEST) + self.high)


def room(time_spread: float, tolerance: float) -> float:
    """Return by how much less than a budget the expected change of time has to be.

    Args:
        time_spread: Standard deviation of that change.
        tolerance: To what the budget is kept.
    """
    return max(ONE_SIDED * time_spread - tolerance, -0.5 * tolerance)


def within_confidence(
    budget: float,
    choose: Callable[[float], Candidate | None],
    risk: RiskModel,
    tolerance: float = 0.0,
) -> Candidate | None:
    """Choose so that a time budget holds with 95 % confidence.

    Args:
        budget: Fraction above auto.
        choose: Returns the best choice whose expected change of time is within its argument.
        risk: How sure a choice is.
        tolerance: To what the budget is kept, as a fraction of auto.

    Returns:
        Of the choices that keep the budget the one of least energy; ``None`` where none does.
    """
    best: tuple[float, Candidate] | None = None
    bracket = _Bracket(low=-1.0, high=budget + 0.5 * tolerance)
    aim = bracket.high
    for _ in range(_ROUNDS):
        candidate = choose(aim)
        if candidate is None:
            bracket = bracket.above(aim)
        else:
            change = risk.predicted_change(candidate.setting)
            margin = room(change.time_spread, tolerance)
            overrun = change.time_change + margin - budget
            if overrun <= _SMALL:
                if best is None or change.energy_change < best[0]:
                    best = change.energy_change, candidate
                bracket = bracket.above(aim)
                if overrun > -_UNUSED * max(abs(margin), _SMALL):
                    break
            else:
                bracket = bracket.below(aim)
            aim = min(bracket.high, budget - margin)
            if bracket.low < aim < bracket.high:
                continue
        if bracket.is_narrow:
            break
        aim = bracket.middle
    return best[1] if best is not None else None
