"""Schedules with fewer changes than a plan's: without what pays least, or what the cap forbids."""

import math
from collections.abc import Collection

import msgspec

from underclock.records import ClockSchedule, Segment
from underclock.records.latencies import changed

_SHARE = 0.5  # of the stretches are left away


def without_least_paying(schedule: ClockSchedule, share: float = _SHARE) -> ClockSchedule | None:
    """Return a schedule without its least-paying stretches; ``None`` where none can go.

    A stretch that goes runs at the clocks of the one before, which stays.

    Args:
        schedule: Of the plan.
        share: Of its stretches.
    """
    segments = list(schedule.segments)
    count = len(segments)
    pays_j = [math.inf if each.pays_j is None else each.pays_j for each in segments]
    gone: set[int] = set()
    for index in sorted(range(count), key=lambda i: pays_j[i]):
        neighbours = {(index - 1) % count, (index + 1) % count}
        if len(gone) >= share * count or pays_j[index] == math.inf:
            break
        if index in neighbours or gone & neighbours:
            continue
        gone.add(index)
    if not gone:
        return None
    kept = [
        _like(each, segments[index - 1]) if index in gone else each
        for index, each in enumerate(segments)
    ]
    return _joined(schedule, kept)


def without_locks(schedule: ClockSchedule, launches: Collection[int]) -> ClockSchedule:
    """Return a schedule that leaves the core clock to the driver in some stretches.

    Args:
        schedule: Of the plan.
        launches: At which those stretches begin.
    """
    kept, begins = [], 0
    for each in schedule.segments:
        free = begins in launches
        kept.append(msgspec.structs.replace(each, core_mhz=None) if free else each)
        begins += each.launches
    return _joined(schedule, kept)


def _like(segment: Segment, other: Segment) -> Segment:
    return msgspec.structs.replace(segment, core_mhz=other.core_mhz, mem_mhz=other.mem_mhz)


def _joined(schedule: ClockSchedule, segments: list[Segment]) -> ClockSchedule:
    """Return the schedule of other stretches; those of the same clocks become one."""
    joined: list[Segment] = []
    for each in segments:
        if joined and joined[-1].clocks == each.clocks:
            longer = joined[-1].launches + each.launches
            joined[-1] = msgspec.structs.replace(joined[-1], launches=longer, pays_j=None)
        else:
            joined.append(each)
    last = joined[-1].clocks
    switches = 0
    for each in joined:
        switches += bool(changed(last, each.clocks))
        last = each.clocks
    return msgspec.structs.replace(schedule, segments=tuple(joined), switches=switches)
