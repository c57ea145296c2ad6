"""What a plan minimises, within which time budget, and at what granularity."""

from dataclasses import dataclass
from typing import Self

from underclock.errors import UsageError
from underclock.records import Aggregate, Granularity, Objective, Plan, Strategy
from underclock.units import as_fraction, member

DEFAULT_SLOWDOWN = 0.01  # time budget where none is named, of a step and of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What to minimise, and who keeps the time budget; choices may be given as text."""

    objective: Objective = Objective.WASTE
    max_slowdown: float = DEFAULT_SLOWDOWN
    """Budget of the waste objective, as a fraction above auto: 0.01 is 1 %, 0 is strict; ``"1%"``
    is read as well. May be negative."""
    granularity: Granularity = Granularity.KERNEL
    """Of the choice with free switching."""
    aggregate: Aggregate = Aggregate.GLOBAL
    """Of that choice."""

    def __post_init__(self) -> None:
        """Read choices and fractions given as text; reject unknown ones, and impossible budgets.

        Raises:
            UsageError: One of them means nothing.
        """
        for name, choices in (
            ("objective", Objective),
            ("granularity", Granularity),
            ("aggregate", Aggregate),
        ):
            object.__setattr__(self, name, member(choices, getattr(self, name), name))
        slowdown = as_fraction(self.max_slowdown, "max_slowdown")
        object.__setattr__(self, "max_slowdown", slowdown)
        if not -1.0 < self.max_slowdown < 1.0:
            raise UsageError(
                "max_slowdown must be a fraction above -1 and below 1, such as 0.01 for 1 %; "
                f"got {self.max_slowdown}",
                hint="write for example --max-slowdown 1%",
            )

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the goal that a plan was made for."""
        return cls(
            objective=plan.objective,
            max_slowdown=plan.max_slowdown or 0.0,
            granularity=plan.granularity,
            aggregate=plan.aggregate,
        )

    @property
    def chosen(self) -> Strategy:
        """The strategy of its choice with free switching."""
        if self.granularity is Granularity.STEP:
            return Strategy.BEST_FIXED
        if self.granularity is Granularity.PASS:
            return Strategy.PASS
        return Strategy(f"kernel_{self.aggregate}")
