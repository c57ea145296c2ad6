"""Schedules that a GPU can follow, and what other latencies or longer segments would bring."""

import itertools
import math

from underclock.records.common import (
    Clocks,
    Record,
    check_change,
    check_gap,
    check_mhz,
    check_not_negative,
    check_positive,
    check_same,
)
from underclock.records.latencies import LatencyTable


class Segment(Record, frozen=True, kw_only=True):
    """A stretch of a step's launches at one pair of clocks.

    Attributes:
        launches: How many.
        core_mhz: Core clock; ``None`` is auto.
        mem_mhz: Memory clock; ``None`` is auto.
        aim_s: How long after its first launch begins the change to it is best aimed, for changes
            scatter; negative before.
        pays_j: What it saves against the clocks of the stretch before, a second that it saves
            counted as energy; ``None`` where that is not known.
    """

    launches: int
    core_mhz: int | None
    mem_mhz: int | None
    aim_s: float = 0.0
    pays_j: float | None = None

    def __post_init__(self) -> None:
        """Reject empty stretches, impossible clocks and aims."""
        check_positive(self, "launches")
        check_mhz(self, "core_mhz", "mem_mhz")
        for name in ("aim_s", "pays_j"):
            if not math.isfinite(getattr(self, name) or 0.0):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")

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
        latencies: The latencies themselves: whoever runs it asks ahead by them.
        launch_s: What each launch is expected to take at its clocks, stalls apart.
    """

    segments: tuple[Segment, ...]
    switches: int
    latency: str
    latencies: LatencyTable
    launch_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Reject durations that are none, or not one for each launch."""
        scheduled = sum(segment.launches for segment in self.segments)
        if scheduled != len(self.launch_s):
            raise ValueError(
                f"the schedule is of {scheduled} launches and has {len(self.launch_s)} durations"
            )
        if not all(0 < each_s < math.inf for each_s in self.launch_s):
            raise ValueError("every launch_s must be positive and finite")
        before = (*self.segments[-1:], *self.segments[:-1])
        changes = sum(a.clocks != b.clocks for a, b in zip(before, self.segments, strict=True))
        check_same("switches", self.switches, changes)

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


class PowerPoint(Record, frozen=True, kw_only=True):
    """The fastest step within a power limit, against what the driver's own cap makes of it.

    Attributes:
        limit_w: The limit.
        auto_time_s: Of a step that only the cap holds.
        time_s: Of the fastest step found.
        time_change: Of it against that.
        energy_change: Of it against that.
    """

    limit_w: float
    auto_time_s: float
    time_s: float
    time_change: float
    energy_change: float

    def __post_init__(self) -> None:
        """Reject a step that takes nothing."""
        check_positive(self, "limit_w", "auto_time_s", "time_s")
        check_change(self, "time_change", "energy_change")
        check_same("time_change", self.time_change, self.time_s / self.auto_time_s - 1.0)


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
        """Reject a gap that is none, and costs that cannot be."""
        check_gap(self.gap)
        check_not_negative(self, "latency_s", "switches")
        check_change(self, "time_change", "energy_change")
        found = {each is None for each in (self.time_change, self.energy_change, self.switches)}
        if len(found) > 1:
            raise ValueError("a schedule was found, with all that it costs, or none was")


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

    def __post_init__(self) -> None:
        """Reject costs that cannot be."""
        check_change(self, "time_change", "energy_change")
        check_not_negative(self, "switches")
