"""What clocks to ask for at which launch of a step, and which launches are seen to begin.

Nothing here knows the time of day: a timetable says how far the launches of a round lie apart.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from underclock.records import Clocks, ClockSchedule
from underclock.records.latencies import Domain, LatencyTable, Switch, changed, mhz_of


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
