"""What clocks to ask for at which launch of a step, and which launches are seen to begin.

Nothing here knows the time of day: a timetable says how far the launches of a round lie apart.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.records import Clocks, ClockSchedule
from underclock.records.latencies import LatencyTable, Switch, changed, mhz_of
from underclock.units import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChange:
    """One change of one clock in a round."""

    at: int  # the launch that it is for
    domain: Domain  # whose clock
    to_mhz: int | None  # None gives the clock back
    believed: Switch  # what it takes
    aim_s: float = 0.0  # how long after its launch begins it is to happen; negative before
    # the other clock's change at the same launch, where that is asked for after this one
    behind: "ClockChange | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The clocks of a step's launches, round after round, and the marks by which it is seen."""

    clocks: tuple[Clocks, ...]  # of each launch
    marks: tuple[int, ...]  # launches that are seen to begin, ascending; the first is launch 0
    # when each launch begins after the first, as planned, and when the round ends; stalls apart.
    # One more than launches
    upto_s: tuple[float, ...]
    changes: dict[Domain, tuple[ClockChange, ...]]  # of each clock, in order of their launches
    busy: frozenset[int] = frozenset()  # of a job's rank: launches in which it computes
    # and in which it communicates: from one that is marked up to another one
    quiet: tuple[tuple[int, int], ...] = ()

    @property
    def launches(self) -> int:
        """How many a round has."""
        return len(self.clocks)

    @property
    def planned(self) -> int:
        """Changes in a round, those of either clock apart."""
        return sum(len(some) for some in self.changes.values() if len(some) > 1)

    @property
    def calls(self) -> float:
        """For how much of a round the setter is called; a driver takes one call at a time."""
        several = (some for some in self.changes.values() if len(some) > 1)
        calls_s = (each.believed.call_s for some in several for each in some)
        return math.fsum(calls_s) / self.upto_s[-1]


def timetable_of(schedule: ClockSchedule, marks: Sequence[int]) -> Timetable:
    """Return the timetable of a plan's schedule.

    Raises:
        DataError: The latencies lack a clock that changes.
    """
    return timetable(schedule.clocks, schedule.latencies, schedule.launch_s, marks, schedule.aims_s)


def timetable(
    clocks: Sequence[Clocks],
    latencies: LatencyTable,
    launch_s: Sequence[float],
    marks: Sequence[int],
    aims_s: Sequence[float] = (),
) -> Timetable:
    """Return the timetable of clocks for each launch.

    Where both clocks change at one launch, the call that must be made first leaves time for the
    other. If either could be, the core's is: the memory's stall belongs at the boundary.

    Args:
        latencies: What changes are believed to take.
        launch_s: What each launch is expected to take, stalls apart.
        marks: Launches that are seen to begin, ascending; the first is launch 0.
        aims_s: How long after each launch begins a change to its clocks is to happen; by default
            as it begins.

    Raises:
        DataError: The latencies lack a clock that changes.
    """
    changes: dict[Domain, list[ClockChange]] = {domain: [] for domain in Domain}
    for at, (before, after) in enumerate(itertools.pairwise((clocks[-1], *clocks))):
        here = [
            ClockChange(
                at=at,
                domain=domain,
                to_mhz=to_mhz,
                believed=latencies.answer(domain, from_mhz, to_mhz),
                aim_s=aims_s[at] if aims_s else 0.0,
            )
            for domain, from_mhz, to_mhz in reversed(changed(before, after))
        ]
        here.sort(key=lambda change: change.believed.call_s + change.believed.delay_s)
        behind: ClockChange | None = None
        for change in here:
            behind = dataclasses.replace(change, behind=behind)
            changes[change.domain].append(behind)
    for domain in Domain:  # what is one clock all along is asked for once
        to_mhz = mhz_of(clocks[0], domain)
        if not changes[domain] and to_mhz is not None:
            believed = latencies.answer(domain, None, to_mhz)
            changes[domain].append(
                ClockChange(at=0, domain=domain, to_mhz=to_mhz, believed=believed)
            )
    return Timetable(
        clocks=tuple(clocks),
        marks=tuple(marks),
        upto_s=tuple(itertools.accumulate(launch_s, initial=0.0)),
        changes={domain: tuple(some) for domain, some in changes.items() if some},
    )


class State(StrEnum):
    """What the machine does; the value is the sentence shown to the user."""

    WAITING = "no step began yet"
    FOLLOWING = "clocks follow the plan"
    HELD = "clocks are held, whatever the launch"
    STALLED = "the step stands still"
    LOST = "marks make no sense, so clocks are left to the driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to call the setter with."""

    domain: Domain  # whose clock
    to_mhz: int | None  # None gives it back
    call_s: float = 0.0  # how long the call is expected to block
    number: int | None = None  # of the change that it is; None where it holds, whatever the launch
    launch: int | None = None  # that the change is for, counted over all rounds; likewise
    expected_s: float = -math.inf  # when the change's launch is expected to begin


Outcome = tuple[float, float | None]
"""How a change met its launch, as far as is known without seeing the clock: how long after it was
to happen the clock changed, negative where it was before; and how far off the launch was expected,
``None`` where it had begun as the change was asked for. In s."""


@dataclass(slots=True, kw_only=True)
class PassedStep:
    """A step that ended, or several in a row that were not polled in between; or one that runs."""

    number: int = 0  # counted from 0; of the first
    began_s: float = math.nan  # when its first mark was reached; nan where that was not seen
    time_s: float = math.nan  # until the next step's first mark; the mean of several
    state: State  # what the machine did all along; `State.FOLLOWING` only where it did nothing else
    planned: int = 0  # changes that the timetable has
    asked: int = 0  # of which were asked for
    # how those met their launches that began in this step
    outcomes: list[Outcome] = field(default_factory=list)
    stalled_s: float = 0.0  # how long it stood still
    # of every lock that was overruled, why; in words
    overruled: list[str] = field(default_factory=list)
    closely: bool = True  # whether all its marks were to be looked at, so that outcomes are exact
    steps: int = 1  # how many they are
    counted: bool = True  # whether that is known from their numbers; else one is taken to be one
    busy_s: float | None = None  # what launches took that compute; None where that was not seen
    # from each mark to the next, and from the last to the step's end; likewise
    between_s: tuple[float, ...] | None = None

    @property
    def ended_s(self) -> float:
        """When the next step's first mark was reached."""
        return self.began_s + self.steps * self.time_s
