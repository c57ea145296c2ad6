"""Timetables and the locks that come of them: what is refused, and what became of a lock."""

import pytest

from underclock.errors import DataError
from underclock.records import Clocks, ClockSchedule, Segment, ThrottleReason
from underclock.records.latencies import Domain, LatencyTable
from underclock.runtime.machine.clock_domains import DomainChanges, Lock, LockState
from underclock.runtime.machine.position import Intervals
from underclock.runtime.machine.timetable import timetable, timetable_of

SLOW, FAST = Clocks(core_mhz=900), Clocks(core_mhz=1500)
TABLE = LatencyTable.constant(6e-3)


def test_a_plans_schedule_becomes_changes_round_and_round() -> None:
    schedule = ClockSchedule(
        segments=(
            Segment(launches=2, core_mhz=900, mem_mhz=None, aim_s=-1e-3),
            Segment(launches=1, core_mhz=1500, mem_mhz=None, aim_s=2e-3),
        ),
        switches=2,
        latency="6ms",
        latencies=TABLE,
        launch_s=(0.1, 0.2, 0.3),
    )
    made = timetable_of(schedule, (0, 2))

    assert made.upto_s == pytest.approx((0.0, 0.1, 0.3, 0.6))
    assert [(c.at, c.to_mhz, c.aim_s) for c in made.changes[Domain.CORE]] == [
        (0, 900, -1e-3),
        (2, 1500, 2e-3),
    ]
    assert (made.launches, made.planned, made.calls) == (3, 2, 0.0)
    core = DomainChanges(made.changes[Domain.CORE], made.launches)
    assert [core.launch(number) for number in (-1, 0, 1, 2)] == [-1, 0, 2, 3]


def test_another_timetable_is_expected_to_take_what_this_one_took_against_its_plan() -> None:
    intervals = Intervals(timetable([SLOW, FAST, FAST], TABLE, [0.1, 0.1, 0.2], (0, 2)))
    intervals.learn([0.4, 0.2])  # twice as long as planned between the first marks
    assert intervals.into_s(1) == pytest.approx(0.2)

    intervals.follow(timetable([SLOW, FAST, FAST], TABLE, [0.2, 0.1, 0.2], (0, 2)))
    assert intervals.remembered == 0
    assert [intervals.into_s(at) for at in range(3)] == pytest.approx([0.0, 0.4, 0.6])
    assert intervals.step_s == pytest.approx(0.8)


def test_latencies_must_know_the_clock_that_changes() -> None:
    core = LatencyTable(evidence=None, gpu=None, switches=TABLE.switches[:1])
    with pytest.raises(DataError, match="no switch of the memory clock"):
        timetable([Clocks(mem_mhz=5001), FAST], core, [0.1] * 2, (0,))


def lock() -> Lock:
    made = Lock(Domain.CORE)
    made.ask(1500, 0.0)
    asked = made.state
    made.accept(1e-3, sure_s=7e-3)
    assert (asked, made.state) == (LockState.ASKED, LockState.ACCEPTED)
    return made


def test_a_lock_is_in_force_once_the_clock_is_read_back() -> None:
    made = lock()

    assert not made.observe(SLOW, ThrottleReason.NONE, 2e-3)  # it may still come
    assert made.observe(Clocks(core_mhz=1485), ThrottleReason.NONE, 5e-3)
    assert (made.state, made.since_s) == (LockState.IN_FORCE, 5e-3)
    assert not made.observe(FAST, ThrottleReason.NONE, 6e-3)


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (ThrottleReason.NONE, "does not follow it, and gives no reason"),
        (ThrottleReason.SW_POWER_CAP, "power limit"),
        (ThrottleReason.SW_THERMAL_SLOWDOWN | ThrottleReason.SW_POWER_CAP, "temperature"),
        (ThrottleReason.HW_SLOWDOWN | ThrottleReason.HW_THERMAL_SLOWDOWN, "too hot"),
        (ThrottleReason.HW_POWER_BRAKE_SLOWDOWN, "power supply"),
    ],
)
def test_a_lock_that_is_overruled_says_by_what(reasons: ThrottleReason, words: str) -> None:
    made = lock()

    assert not made.observe(SLOW, reasons, 8e-3)  # one reading may fall on the very change
    assert made.observe(SLOW, reasons, 9e-3)
    assert made.state is LockState.OVERRULED
    assert words in made.why
    assert made.why.startswith("core 1500 MHz was asked for and ")
    assert made.observe(FAST, ThrottleReason.NONE, 10e-3)
    assert (made.state, made.why) == (LockState.IN_FORCE, "")
