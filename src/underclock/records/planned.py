"""What was decided: choices of clocks, what they cost, and schedules that a GPU can follow."""

import math
from collections import Counter
from enum import StrEnum
from typing import Self

from underclock.records.common import Clocks, Evidence, Record, check_mhz, check_positive
from underclock.records.measured import GpuInfo, Provenance
from underclock.records.schemas import SCHEMAS
from underclock.records.shown import as_html, as_line
from underclock.records.work import Kernel, StepSource
from underclock.units import format_percent


class Objective(StrEnum):
    """What a plan minimises."""

    WASTE = "waste"  # energy, while total time stays within the budget
    EDP = "edp"  # energy x time
    ED2P = "ed2p"  # energy x time squared
    ENERGY = "energy"  # energy, whatever the time


class Granularity(StrEnum):
    """What gets clocks of its own."""

    KERNEL = "kernel"
    PASS = "pass"  # noqa: S105 - of a training step, not a password
    STEP = "step"  # one fixed clock pair for the whole step


class Aggregate(StrEnum):
    """Who keeps the time budget: all together, or each alone."""

    GLOBAL = "global"
    LOCAL = "local"


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
        """Reject a step that takes nothing, and a gap that is none."""
        check_positive(self, "time_s", "energy_j")
        _check_gap(self.gap)

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
    """Isolated kernels summed, against the step as it really runs, at auto clocks.

    Attributes:
        time: Isolated sum over in-situ time.
        energy: Isolated sum over in-situ energy.
    """

    time: float
    energy: float

    def __post_init__(self) -> None:
        """Reject ratios that are none."""
        check_positive(self, "time", "energy")


class Segment(Record, frozen=True, kw_only=True):
    """A stretch of a step's launches at one pair of clocks.

    Attributes:
        launches: How many.
        core_mhz: Core clock; ``None`` is auto.
        mem_mhz: Memory clock; ``None`` is auto.
    """

    launches: int
    core_mhz: int | None
    mem_mhz: int | None

    def __post_init__(self) -> None:
        """Reject empty stretches and impossible clocks."""
        check_positive(self, "launches")
        check_mhz(self, "core_mhz", "mem_mhz")

    @property
    def clocks(self) -> Clocks:
        """The pair."""
        return Clocks(core_mhz=self.core_mhz, mem_mhz=self.mem_mhz)


class ClockSchedule(Record, frozen=True, kw_only=True):
    """Clocks over the launches of a step, round and round.

    Attributes:
        segments: In launch order; the last and the first may be one stretch round the end.
        switches: Changes in one round.
        latency: Which switching latency it keeps, in words.
    """

    segments: tuple[Segment, ...]
    switches: int
    latency: str


class LatencyPoint(Record, frozen=True, kw_only=True):
    """What can be achieved on a GPU whose clocks take a given time to change.

    Attributes:
        latency_s: From call to new clock, of every change.
        time_change: Fraction of auto; ``None`` where no schedule was found.
        energy_change: Fraction of auto; ``None`` where no schedule was found.
        switches: In one step; ``None`` where no schedule was found.
        gap: How far the energy may be from the least, as a fraction; ``None`` where no schedule was
            found.
        hardware: Known hardware with about that latency; empty for none.
    """

    latency_s: float
    time_change: float | None
    energy_change: float | None
    switches: int | None
    gap: float | None
    hardware: str = ""

    def __post_init__(self) -> None:
        """Reject a gap that is none."""
        _check_gap(self.gap)


class Proposal(Record, frozen=True, kw_only=True):
    """A way to run a step that makes switching pay, planned as if it were done.

    Attributes:
        name: What would be done.
        needs: What it takes.
        time_change: Fraction of the same step's auto time.
        energy_change: Fraction of its auto energy.
        switches: In one such step.
    """

    name: str
    needs: str
    time_change: float
    energy_change: float
    switches: int


def _check_gap(gap: float | None) -> None:
    """Reject what is no distance from an optimum."""
    if gap is not None and not 0 <= gap < math.inf:
        raise ValueError(f"gap must be finite and not negative, got {gap}")


class Plan(Record, frozen=True, kw_only=True, tag_field="kind", tag="plan"):
    """Clocks per kernel, what they promise, and what that rests on.

    Attributes:
        evidence: Of every number in the plan.
        gpu: The GPU the plan is valid for.
        workload: Name of the step or table.
        fingerprint: Of the step; ``None`` for a table.
        objective: What was minimised.
        max_slowdown: Time budget as a fraction above auto; ``None`` where time was free.
        granularity: What got clocks of its own in the chosen arm.
        aggregate: Who kept the budget in the chosen arm.
        baseline: The clocks called auto; other than auto/auto where a table has no such row.
        chosen: The strategy whose clocks are in ``kernels``.
        arms: The ways compared, in order of freedom.
        kernels: Clocks per kernel of the chosen arm.
        fixed: The best fixed clock pair; ``None`` when infeasible.
        frontier: Choices no mixture of others beats in both time and energy, at the chosen
            granularity, fastest first.
        closure: Isolated sum against in situ; ``None`` where the step was not run whole.
        runs: What the step runs, with counts.
        order: The launch sequence, as indices into ``runs``; empty when unknown.
        source: Of a traced step; ``None`` for any other.
        provenance: How the samples came about; ``None`` when unknown.
        version: Of the program that planned; ``None`` when unknown.
        schedule: What the arm ``achievable`` does; ``None`` where switching was taken as free.
        latency_curve: What could be achieved at other latencies, shortest first; empty where
            switching was taken as free.
        proposals: What longer segments would bring, greatest saving first; empty where switching
            was taken as free.
        warnings: Sentences the reader must see beside the numbers.
    """

    schema: int = SCHEMAS["plan"]
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    fingerprint: str | None = None
    objective: Objective
    max_slowdown: float | None
    granularity: Granularity
    aggregate: Aggregate
    baseline: Clocks
    chosen: Strategy
    arms: tuple[Arm, ...]
    kernels: dict[str, Choice]
    fixed: Clocks | None
    frontier: tuple[Cost, ...] = ()
    closure: Closure | None = None
    runs: tuple[Kernel, ...] = ()
    order: tuple[int, ...] = ()
    source: StepSource | None = None
    provenance: Provenance | None = None
    version: str | None = None
    schedule: ClockSchedule | None = None
    latency_curve: tuple[LatencyPoint, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject a plan that lacks what it compares, or contradicts itself."""
        costed = {arm.name for arm in self.arms if arm.cost is not None}
        if self.chosen not in costed:
            raise ValueError(f"the chosen arm {self.chosen!r} has no costs")
        if "auto" not in costed:
            raise ValueError("the arm 'auto' has no costs, and everything is compared with it")
        check_mhz(self.baseline, "core_mhz", "mem_mhz")
        if self.fixed is not None:
            check_mhz(self.fixed, "core_mhz", "mem_mhz")
        if self.runs:
            self._check_runs()
        if self.order:
            self._check_order()

    def _check_runs(self) -> None:
        """Reject kernels without clocks, and clocks without a kernel."""
        names = Counter(kernel.name for kernel in self.runs)
        for name, count in names.items():
            if count > 1:
                raise ValueError(f"the step lists {name!r} {count} times")
        for which, sentence in (
            (names.keys() - self.kernels.keys(), "the plan has no clocks for {!r}, which it runs"),
            (self.kernels.keys() - names.keys(), "the plan has clocks for {!r}, which it lacks"),
        ):
            if which:
                raise ValueError(sentence.format(min(which)))

    def _check_order(self) -> None:
        """Reject launches of kernels that are not listed, or not as often as they count."""
        launches = Counter(self.order)
        outside = launches.keys() - set(range(len(self.runs)))
        if outside:
            raise ValueError(
                f"the launch order names kernel {min(outside)}, but {len(self.runs)} are listed"
            )
        for index, kernel in enumerate(self.runs):
            if launches[index] != kernel.count:
                raise ValueError(
                    f"{kernel.name!r} has count {kernel.count} but is launched {launches[index]} x"
                )
        if self.schedule is not None:
            scheduled = sum(segment.launches for segment in self.schedule.segments)
            if scheduled != len(self.order):
                raise ValueError(
                    f"the schedule is of {scheduled} launches, the step of {len(self.order)}"
                )

    @property
    def promise(self) -> Cost:
        """What the chosen arm says the plan costs."""
        cost = self.arm(self.chosen).cost
        if cost is None:
            raise AssertionError("checked when the plan was made")
        return cost

    def arm(self, name: str) -> Arm:
        """Return the arm of a strategy.

        Args:
            name: The strategy, or its value, such as ``kernel_global``.

        Raises:
            KeyError: The plan has no such arm.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)

    def __repr__(self) -> str:
        return as_line("Plan", self._heading, self._facts)

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        return as_html("Plan", self._heading, self._facts)

    @property
    def _heading(self) -> str:
        return f"{self.workload} on {self.gpu.name}, {self.evidence}"

    @property
    def _facts(self) -> tuple[tuple[str, str], ...]:
        achievable = next((a.cost for a in self.arms if a.name == "achievable"), None)
        held = (("achievable", _changes(achievable)),) if achievable is not None else ()
        budget = self.max_slowdown
        return (
            (self.chosen, _changes(self.promise)),
            *held,
            ("budget", "none" if budget is None else format_percent(budget)),
            ("kernels", str(len(self.kernels))),
        )


def _changes(cost: Cost) -> str:
    energy, time = format_percent(cost.energy_change), format_percent(cost.time_change)
    return f"{energy} energy at {time} time"


class Score(Record, frozen=True, kw_only=True, tag_field="kind", tag="score"):
    """What a plan really costs on a full table, in a plan's own terms.

    Attributes:
        plan: The strategy whose clocks the plan holds.
        time_s: Per step, under the plan's clocks.
        energy_j: Per step, under the plan's clocks.
        time_change: Fraction of the table's auto cost.
        energy_change: Fraction of the table's auto cost.
        promised_time_change: What the plan said.
        promised_energy_change: What the plan said.
        arms: The table's ``auto`` and the plan's chosen arm, costed on the table.
    """

    schema: int = SCHEMAS["score"]
    evidence: Evidence
    gpu: GpuInfo
    plan: Strategy
    time_s: float
    energy_j: float
    time_change: float
    energy_change: float
    promised_time_change: float
    promised_energy_change: float
    arms: tuple[Arm, ...]
    warnings: tuple[str, ...] = ()
