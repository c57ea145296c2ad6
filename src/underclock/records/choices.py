"""Choices of clocks: ways of choosing, what they choose and cost, and schedules GPUs can follow."""

import itertools
from enum import StrEnum
from typing import Any

from underclock.records.common import (
    AtLeastOne,
    Change,
    Clocks,
    Mhz,
    NotNegative,
    Number,
    Positive,
    Record,
    ShownRecord,
    check_agrees,
    check_interval,
)
from underclock.records.latencies import LatencyTable
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
    RANK = "rank"  # of a job, as those that follow: one a rank
    DIRECTION = "direction"  # one a rank and kind of instruction
    INSTRUCTION = "instruction"  # one an instruction, or two in turn where that can be switched
    KERNEL = "kernel"  # instructions with clocks of their own inside


class Status(StrEnum):
    """How a choice came about; the value is the sentence shown to the user."""

    BASELINE = "baseline: nothing is set"
    GIVEN = "given: costed, not chosen"
    OPTIMAL = "optimal"
    BOUNDED = "feasible; optimal within the stated gap"
    INFEASIBLE = "no choice of clocks meets the time budget; raise it"


class Choice(Record, frozen=True, kw_only=True):
    """Clocks held for one kernel (``None`` is auto), and what changes, as fractions of auto.

    A schedule may hold several for its launches: those are its clocks at which it runs longest, and
    what changes is the sum of all launches.

    What it costs at auto is per step, all its runs together; ``auto_core_mhz`` is the core clock
    that the driver is expected to give it there, on average, and ``None`` where unknown.
    """

    clocks: Clocks
    time_change: Change
    energy_change: Change
    auto_time_s: Positive
    auto_energy_j: Positive
    auto_core_mhz: Mhz | None = None

    def launch(self, count: int) -> tuple[float, float]:
        """Return what one of its launches takes and draws, in s and J, of so many in a step."""
        return (
            self.auto_time_s * (1.0 + self.time_change) / count,
            self.auto_energy_j * (1.0 + self.energy_change) / count,
        )

    def auto_launch(self, count: int) -> tuple[float, float]:
        """Return the same at auto."""
        return self.auto_time_s / count, self.auto_energy_j / count

    @property
    def saved_j(self) -> float:
        """Energy of a step that these clocks save; negative where they cost some."""
        return -self.energy_change * self.auto_energy_j


class Cost(Record, frozen=True, kw_only=True):
    """What a choice of clocks costs per step, and against auto as a fraction of it."""

    time_s: Positive
    energy_j: Positive
    time_change: Change
    energy_change: Change

    def __str__(self) -> str:
        energy, time = format_percent(self.energy_change), format_percent(self.time_change)
        return f"{energy} energy at {time} time"


class Arm(Record, frozen=True):
    """What one way of choosing clocks costs per step."""

    name: Strategy
    cost: Cost | None  # ``None`` when infeasible
    status: Status
    # how far the objective may be from its optimum, as a fraction; ``None`` where none was found
    gap: NotNegative | None = None
    # least and greatest ``time_change`` with 95 % confidence; ``None`` where costs are as measured
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None  # the same of ``energy_change``

    def __post_init__(self) -> None:
        check_interval(self, "time_interval", self.cost.time_change if self.cost else None)
        check_interval(self, "energy_interval", self.cost.energy_change if self.cost else None)
        if self.cost is not None and self.status is Status.INFEASIBLE:
            raise ValueError(f"the arm {self.name!r} is infeasible, and has costs")

    @property
    def time_change(self) -> float | None:
        """What it changes of auto's time, as a fraction; ``None`` when infeasible."""
        return None if self.cost is None else self.cost.time_change

    @property
    def energy_change(self) -> float | None:
        """What it changes of auto's energy, as a fraction; ``None`` when infeasible."""
        return None if self.cost is None else self.cost.energy_change


class ChosenArm(ShownRecord, frozen=True, kw_only=True):
    """What every plan has: ways of choosing clocks side by side, and the one that it holds."""

    chosen: Strategy  # the strategy whose clocks the plan holds
    arms: tuple[Arm, ...]  # the ways compared, in order of freedom

    def arm(self, name: str) -> Arm:
        """Return the arm of a strategy, or of its value, such as ``kernel_global``.

        Raises:
            KeyError: The plan has no such arm.
        """
        return {str(arm.name): arm for arm in self.arms}[name]

    def find(self, name: Strategy) -> Arm | None:
        """Return the arm of a strategy; ``None`` where the plan has no such arm."""
        return next((arm for arm in self.arms if arm.name is name), None)

    @property
    def promise(self) -> Cost:
        """What the clocks that the plan holds cost."""
        return self._cost(self.chosen)

    @property
    def auto(self) -> Cost:
        """What auto costs."""
        return self._cost(Strategy.AUTO)

    def __repr__(self) -> str:
        this: Any = self
        text = f"<{self._heading}: {' '.join(this.answer[:2])}>"
        return "".join(c for c in text if c.isprintable())  # what would move a terminal's cursor

    @property
    def _heading(self) -> str:
        this: Any = self
        return f"{type(self).__name__} of {this.workload}, {this.evidence}"

    @property
    def _facts(self) -> tuple[tuple[str, str], ...]:
        this: Any = self
        return tuple(zip(("saves", "takes", "rests on"), this.answer, strict=True))

    def _cost(self, name: Strategy) -> Cost:
        cost = self.arm(name).cost
        if cost is None:
            raise AssertionError("checked when the plan was made")
        return cost


class Closure(Record, frozen=True, kw_only=True):
    """What kernels say of the step at auto clocks, over what the step really takes.

    In the accounting of the step it tests the model: kernels at the clocks that the cap leaves
    them. In the isolated one it is the plain sum of kernels alone.
    """

    time: Positive
    energy: Positive


class Segment(Record, frozen=True, kw_only=True):
    """A stretch of a step's launches at one pair of clocks."""

    launches: AtLeastOne
    clocks: Clocks
    # how long after its first launch begins the change to it is best aimed, for changes scatter;
    # negative before
    aim_s: float = 0.0
    # what it saves against the clocks of the stretch before, a second that it saves counted as
    # energy; ``None`` where that is not known
    pays_j: float | None = None


class ClockSchedule(Record, frozen=True, kw_only=True):
    """Clocks over the launches of a step, round and round."""

    # in launch order; the last and the first may be one stretch round the end
    segments: tuple[Segment, ...]
    switches: int  # changes in one round
    latency: str  # which switching latency it keeps, in words
    latencies: LatencyTable  # the latencies themselves: changes are asked for ahead by them
    # what each launch is expected to take at its clocks, stalls apart
    launch_s: tuple[Positive, ...]
    launch_j: tuple[Positive, ...] = ()  # likewise its energy; empty where that is not known

    def __post_init__(self) -> None:
        scheduled = sum(segment.launches for segment in self.segments)
        if scheduled != len(self.launch_s):
            raise ValueError(
                f"the schedule is of {scheduled} launches and has {len(self.launch_s)} durations"
            )
        if self.launch_j and len(self.launch_j) != len(self.launch_s):
            raise ValueError(f"{len(self.launch_s)} launches have {len(self.launch_j)} energies")
        before = (*self.segments[-1:], *self.segments[:-1])
        changes = sum(a.clocks != b.clocks for a, b in zip(before, self.segments, strict=True))
        check_agrees("switches", self.switches, changes)

    @property
    def clocks(self) -> tuple[Clocks, ...]:
        """The pair of each launch."""
        pairs = (itertools.repeat(each.clocks, each.launches) for each in self.segments)
        return tuple(itertools.chain.from_iterable(pairs))

    @property
    def aims_s(self) -> tuple[float, ...]:
        """How long after each launch begins a change to its clocks is best aimed."""
        aims_s = [0.0] * len(self.launch_s)
        begins = 0
        for each in self.segments:
            aims_s[begins] = each.aim_s
            begins += each.launches
        return tuple(aims_s)


class LatencyPoint(Record, frozen=True, kw_only=True):
    """What can be achieved on a GPU whose clocks take a given time to change.

    All but the latency is ``None`` where no schedule was found.
    """

    latency_s: NotNegative  # from call to new clock, of every change
    time_change: Change | None  # fraction of auto, as ``energy_change``
    energy_change: Change | None
    switches: Number | None  # in one step
    gap: NotNegative | None  # how far the energy may be from the least, as a fraction
    hardware: str = ""  # known hardware with about that latency; empty for none
    # what schedules cost at other time budgets under it, fastest first; may be empty
    frontier: tuple[Cost, ...] = ()

    def __post_init__(self) -> None:
        found = {each is None for each in (self.time_change, self.energy_change, self.switches)}
        if len(found) > 1:
            raise ValueError("a schedule was found, with all that it costs, or none was")
