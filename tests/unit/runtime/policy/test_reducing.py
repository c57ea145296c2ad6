"""Schedules without what pays least, or without locks that the cap forbids."""

from underclock.records import ClockSchedule, Segment
from underclock.records.latencies import LatencyTable
from underclock.runtime.machine.timetable import timetable_of
from underclock.runtime.policy.policy import without_least_paying, without_locks


def schedule(*segments: tuple[int, int | None, float | None]) -> ClockSchedule:
    made = tuple(
        Segment(launches=count, core_mhz=mhz, mem_mhz=None, pays_j=pays_j)
        for count, mhz, pays_j in segments
    )
    return ClockSchedule(
        segments=made,
        switches=len(made) if len(made) > 1 else 0,
        latency="6ms",
        latencies=LatencyTable.constant(6e-3),
        launch_s=(0.01,) * sum(count for count, _, _ in segments),
    )


def cores(some: ClockSchedule) -> list[tuple[int, int | None]]:
    return [(each.launches, each.core_mhz) for each in some.segments]


def test_what_pays_least_runs_on_at_the_clocks_before() -> None:
    plan = schedule((2, 900, 5.0), (2, 1500, 9.0), (1, 1200, 0.1), (3, 1400, 7.0))
    reduced = without_least_paying(plan, share=0.25)

    assert reduced is not None
    assert cores(reduced) == [(2, 900), (3, 1500), (3, 1400)]
    assert reduced.switches == 3
    assert len(reduced.launch_s) == 8


def test_half_of_the_stretches_go_and_no_two_beside_each_other() -> None:
    plan = schedule((1, 900, 0.1), (1, 1500, 0.2), (1, 1200, 0.3), (1, 1400, 9.0))
    reduced = without_least_paying(plan)

    assert reduced is not None
    # The first takes the clocks of the last, round the end; the second is its neighbour.
    assert cores(reduced) == [(1, 1400), (2, 1500), (1, 1400)]
    assert reduced.switches == 2
    assert timetable_of(reduced, (0,)).planned == 2


def test_what_is_not_known_to_pay_little_stays() -> None:
    assert without_least_paying(schedule((1, 900, None), (1, 1500, None))) is None
    assert without_least_paying(schedule((2, 900, 1.0))) is None


def test_locks_above_the_cap_are_left_to_the_driver_and_become_one() -> None:
    plan = schedule((2, 900, None), (2, 1845, None), (1, 1860, None), (3, 1200, None))
    freed = without_locks(plan, {2, 4})

    assert cores(freed) == [(2, 900), (3, None), (3, 1200)]
    assert freed.switches == 3
