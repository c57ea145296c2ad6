"""What a plan minimises, within which time budget, and at what granularity."""

import math
from dataclasses import dataclass

from underclock.records import Aggregate, Granularity, Objective, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What to minimise, and who keeps the time budget."""

    objective: Objective = Objective.WASTE
    max_slowdown: float = 0.0
    """Budget of the waste objective, as a fraction above auto; 0 is strict. May be negative."""
    granularity: Granularity = Granularity.KERNEL
    """Of the arm whose clocks the plan holds."""
    aggregate: Aggregate = Aggregate.GLOBAL
    """Of that arm."""

    def __post_init__(self) -> None:
        """Reject budgets no step can have."""
        if not -1.0 < self.max_slowdown < math.inf:
            raise ValueError(f"max_slowdown must be above -1, got {self.max_slowdown}")

    @property
    def chosen(self) -> Strategy:
        """The strategy whose clocks the plan holds."""
        if self.granularity is Granularity.STEP:
            return Strategy.BEST_FIXED
        if self.granularity is Granularity.PASS:
            return Strategy.PASS
        return PER_KERNEL[self.aggregate]


PER_KERNEL = {
    Aggregate.LOCAL: Strategy.KERNEL_LOCAL,
    Aggregate.GLOBAL: Strategy.KERNEL_GLOBAL,
}
"""The strategy that gives every kernel clocks of its own, by who keeps the time budget."""
