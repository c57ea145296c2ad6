"""Choices of clocks: the ways of choosing, what they choose for one kernel, and what they cost."""

from enum import StrEnum
from typing import Self

from underclock.records.common import (
    Clocks,
    Record,
    check_change,
    check_gap,
    check_interval,
    check_mhz,
    check_positive,
    check_same,
)


class Objective(StrEnum):
    """What a plan minimises."""

    WASTE = "waste"  # energy, while total time stays within the budget
    EDP = "edp"  # energy x time
    ED2P = "ed2p"  # energy x time squared
    ENERGY = "energy"  # energy, whatever the time
    TIME = "time"  # time, while mean power stays within the power limit


class Granularity(StrEnum):
    """What gets clocks of its own."""

    KERNEL = "kernel"
    PASS = "pass"  # noqa: S105 - of a training step, not a password
    STEP = "step"  # one fixed clock pair for the whole step


class Aggregate(StrEnum):
    """Who keeps the time budget: all together, or each alone."""

    GLOBAL = "global"
    LOCAL = "local"


class Accounting(StrEnum):
    """What a number of a whole step is the sum of."""

    STEP = "step"  # the step as it runs, under its power cap
    ISOLATED = "isolated"  # kernels measured alone, as in arXiv 2601.08539


class Strategy(StrEnum):
    """A way of choosing clocks, in order of freedom."""

    AUTO = "auto"  # nothing is set
    BEST_FIXED = "best_fixed"  # one clock pair for the whole step
    PASS = "pass"  # noqa: S105 - one a pass of the step
    KERNEL_LOCAL = "kernel_local"  # one a kernel, each within the time budget by itself
    KERNEL_GLOBAL = "kernel_global"  # one a kernel, together within the time budget
    ACHIEVABLE = "achievable"  # one a launch, as fast as this GPU switches


class Status(StrEnum):
    """How a choice came about; the value is the sentence shown to the user."""

    BASELINE = "baseline: nothing is set"
    GIVEN = "given: costed, not chosen"
    OPTIMAL = "optimal"
    BOUNDED = "feasible; optimal within the stated gap"
    INFEASIBLE = "no choice of clocks meets the time budget; raise it"


class Choice(Record, frozen=True, kw_only=True):
    """Clocks chosen for one kernel and what they do to it.

    Attributes:
        core_mhz: Core clock; ``None`` is auto.
        mem_mhz: Memory clock; ``None`` is auto.
        time_change: Fraction of its time at auto.
        energy_change: Fraction of its energy at auto.
        auto_time_s: Per step at auto, all its runs together.
        auto_energy_j: Per step at auto, all its runs together.
    """

    core_mhz: int | None
    mem_mhz: int | None
    time_change: float
    energy_change: float
    auto_time_s: float
    auto_energy_j: float

    def __post_init__(self) -> None:
        """Reject clocks that no GPU has, and impossible costs."""
        check_mhz(self, "core_mhz", "mem_mhz")
        check_positive(self, "auto_time_s", "auto_energy_j")
        check_change(self, "time_change", "energy_change")

    @property
    def clocks(self) -> Clocks:
        """The chosen pair."""
        return Clocks(core_mhz=self.core_mhz, mem_mhz=self.mem_mhz)

    @property
    def saved_j(self) -> float:
        """Energy of a step that these clocks save; negative where they cost some."""
        return -self.energy_change * self.auto_energy_j


class Cost(Record, frozen=True, kw_only=True):
    """What a choice of clocks costs per step, and against auto as a fraction of it."""

    time_s: float
    energy_j: float
    time_change: float
    energy_change: float

    def __post_init__(self) -> None:
        """Reject a step that takes nothing."""
        check_positive(self, "time_s", "energy_j")
        check_change(self, "time_change", "energy_change")

    def check_against(self, auto: "Cost") -> None:
        """Reject changes that are not those of its time and energy against auto's."""
        check_same("time_change", self.time_change, self.time_s / auto.time_s - 1.0)
        check_same("energy_change", self.energy_change, self.energy_j / auto.energy_j - 1.0)


class Arm(Record, frozen=True, kw_only=True):
    """What one way of choosing clocks costs per step.

    Attributes:
        name: The strategy.
        time_s: Per step; ``None`` when infeasible.
        energy_j: Per step; ``None`` when infeasible.
        time_change: Fraction of auto; ``None`` when infeasible.
        energy_change: Fraction of auto; ``None`` when infeasible.
        status: How the choice came about.
        gap: How far the objective may be from its optimum, as a fraction; ``None`` where nothing
            was optimised or nothing found.
        time_interval: Least and greatest ``time_change`` with 95 % confidence; ``None`` where
            costs are taken as measured, without a fit.
        energy_interval: Least and greatest ``energy_change`` with 95 % confidence; ``None`` in the
            same case.
    """

    name: Strategy
    time_s: float | None
    energy_j: float | None
    time_change: float | None
    energy_change: float | None
    status: Status
    gap: float | None
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Reject a step that takes nothing, half a cost, and a gap or an interval that is none."""
        check_positive(self, "time_s", "energy_j")
        check_change(self, "time_change", "energy_change")
        check_gap(self.gap)
        check_interval(self, "time_interval", self.time_change)
        check_interval(self, "energy_interval", self.energy_change)
        parts = (self.time_s, self.energy_j, self.time_change, self.energy_change)
        known = sum(part is not None for part in parts)
        if known not in {0, len(parts)} or (known and self.status is Status.INFEASIBLE):
            raise ValueError(f"the arm {self.name!r} is {self.status}, and has {known} of 4 costs")

    @classmethod
    def of(
        cls, name: Strategy, cost: Cost | None, status: Status, gap: float | None = None
    ) -> Self:
        """Build an arm from a cost; ``None`` where nothing feasible was found."""
        return cls(
            name=name,
            time_s=cost.time_s if cost else None,
            energy_j=cost.energy_j if cost else None,
            time_change=cost.time_change if cost else None,
            energy_change=cost.energy_change if cost else None,
            status=status,
            gap=gap,
        )

    @property
    def cost(self) -> Cost | None:
        """Return the four numbers together; ``None`` when infeasible."""
        if (
            self.time_s is None
            or self.energy_j is None
            or self.time_change is None
            or self.energy_change is None
        ):
            return None
        return Cost(
            time_s=self.time_s,
            energy_j=self.energy_j,
            time_change=self.time_change,
            energy_change=self.energy_change,
        )


class Closure(Record, frozen=True, kw_only=True):
    """What kernels say of the step at auto clocks, against the step as it really runs.

    In the accounting of the step it tests the model: kernels at the clocks that the cap leaves
    them. In the isolated one it is the plain sum of kernels alone.

    Attributes:
        time: Of kernels over in-situ time.
        energy: Of kernels over in-situ energy.
    """

    time: float
    energy: float

    def __post_init__(self) -> None:
        """Reject ratios that are none."""
        check_positive(self, "time", "energy")
