"""When a page is looked at, and when a mark is taken to have been reached."""

import sys
from pathlib import Path
from types import FrameType

import pytest

from underclock.records import Clocks
from underclock.records.latencies import LatencyTable
from underclock.runtime.controller.polling import Polling
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.position import Position
from underclock.runtime.machine.timetable import Timetable, timetable
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page

LAUNCH_S = 10e-3
CLOCKS = (Clocks(core_mhz=900),) * 8 + (Clocks(core_mhz=1500),) * 8
MARKS = tuple(range(0, 16, 2))


class Hands:
    """A clock that a test sets."""

    now = 0.0

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, duration_s: float) -> None:
        self.now += duration_s


def table() -> Timetable:
    latencies = LatencyTable.constant(4e-3, call_s=1e-3)
    return timetable(CLOCKS, latencies, [LAUNCH_S] * len(CLOCKS), MARKS)


class Bench:
    """A page that a machine follows, looked at whenever that is due."""

    def __init__(self, folder: Path) -> None:
        self.page = Page.create(folder / "run.page", digest=bytes(32), marks=MARKS)
        self.page.tell(pages.MARKING)
        self.clock = Hands()
        self.machine = Machine(table())
        self.polling = Polling(self.page, self.clock, self.machine.position)
        self.seen: list[tuple[int, float]] = []
        self.begun = 0

    def mark(self, value: int) -> None:
        """Reach a mark; the first is of another step."""
        self.begun += value == 1
        self.page.write(pages.word_of(value, self.begun))

    def poll(self) -> None:
        seen = self.polling.poll()
        if seen is not None:
            self.seen.append(seen[:2])
            self.machine.saw(*seen)
            self.polling.expect(self.machine.position.next_mark_s(), self.clock.now)

    def until(self, until_s: float) -> None:
        """Look whenever that is due."""
        while self.polling.next_s <= until_s:
            self.clock.now = max(self.clock.now, self.polling.next_s) + 50e-6  # woken late
            self.poll()
        self.clock.now = max(self.clock.now, until_s)

    def steps(self, count: int, off_s: float = 0.0) -> None:
        """Have steps pass, whose marks come so much later than their time."""
        begins_s = self.clock.now + 1e-3
        for step in range(count):
            for index, launch in enumerate(MARKS):
                at_s = begins_s + (step * len(CLOCKS) + launch) * LAUNCH_S + off_s * (index > 0)
                self.until(at_s)
                self.mark(index + 1)
        self.until(self.clock.now + 1e-3)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_one_looks_about_once_where_marks_come_on_time(bench: Bench) -> None:
    bench.steps(12)
    looks, marks = bench.polling.polls, len(bench.seen)
    bench.steps(3)

    assert len(bench.seen) > marks
    assert (bench.polling.polls - looks) / (len(bench.seen) - marks) < 4.0


def test_a_mark_is_taken_to_be_reached_between_two_looks(bench: Bench) -> None:
    bench.steps(12)
    bench.clock.now = before_s = bench.machine.position.next_mark_s()
    bench.poll()
    bench.mark(1)
    bench.clock.now += 80e-6
    bench.poll()

    mark, at_s = bench.seen[-1]
    assert mark == 1
    assert at_s == pytest.approx(before_s + 40e-6, abs=1e-9)


@pytest.mark.parametrize(("late_s", "off_s"), [(2e-3, 0.0), (5e-3, 0.0), (-4e-3, -4e-3)])
def test_who_is_woken_much_too_late_believes_what_was_expected_and_else_what_is_seen(
    bench: Bench, late_s: float, off_s: float
) -> None:
    bench.steps(12)
    expected_s = bench.machine.position.next_mark_s()
    bench.mark(1)
    bench.clock.now = expected_s + late_s
    bench.poll()

    mark, at_s = bench.seen[-1]
    assert mark == 1
    assert at_s == pytest.approx(expected_s + off_s, abs=0.3e-3 if off_s else 0.1e-3)


def test_steps_that_are_known_are_seen_by_the_marks_that_are_needed(bench: Bench) -> None:
    bench.steps(11)
    position = bench.machine.position
    before = len(bench.seen)
    bench.steps(2)

    assert not position.closely
    assert position.wanted is not None
    # The step's begin, its middle, and before each of two changes, one of them the next step's.
    assert {0, 3, 7} <= position.wanted <= {0, 3, 4, 7}
    assert {mark - 1 for mark, _ in bench.seen[before + 1 :]} <= position.wanted
    bench.steps(5)
    assert len({mark for mark, _ in bench.seen[before:]}) == len(MARKS)  # one step was seen closely


def test_steps_that_differ_are_seen_closely(bench: Bench) -> None:
    position = bench.machine.position
    at_s = 0.0
    for step in range(14):
        for index in range(len(MARKS)):
            bench.machine.saw(index + 1, at_s)
            at_s += 2 * LAUNCH_S * (0.7, 1.0, 1.3)[step % 3]

    assert position.closely


def test_what_lasts_how_long_is_kept_apart_for_clocks_that_are_held() -> None:
    machine = Machine(table())
    at_s = 0.0

    def steps(count: int, factor: float) -> None:
        nonlocal at_s
        for _ in range(count):
            for index in range(len(MARKS)):
                machine.saw(index + 1, at_s)
                at_s += 2 * LAUNCH_S * factor
        machine.saw(1, at_s)

    steps(5, 1.0)
    machine.hold(Clocks(core_mhz=1500))
    steps(5, 0.8)
    assert machine.position.intervals.step_s == pytest.approx(0.16 * 0.8)
    machine.follow(machine.timetable)
    assert machine.position.intervals.step_s == pytest.approx(0.16)
    machine.hold(Clocks(core_mhz=1500))
    assert machine.position.intervals.step_s == pytest.approx(0.16 * 0.8)


def test_nothing_is_expected_after_a_mark_that_is_none() -> None:
    position = Position(table())

    assert position.after_s(99, 1.0) == float("inf")
    assert position.reaches_s(3, 0) == float("inf")


def test_one_looks_early_where_it_is_not_known_how_fast_a_step_goes(bench: Bench) -> None:
    position = bench.machine.position
    for stretch in (1.0, 1.05, 0.95) * 5:
        begins_s = bench.clock.now
        for index, launch in enumerate(MARKS):
            bench.until(begins_s + launch * LAUNCH_S * stretch)
            bench.mark(index + 1)
        bench.until(begins_s + len(CLOCKS) * LAUNCH_S * stretch)
    bench.mark(1)
    bench.until(bench.clock.now + 1e-3)

    assert position.mark == 0
    unsure_s = position.unsure_s
    assert unsure_s == pytest.approx(0.07 * (position.next_mark_s() - position.at_s), rel=0.3)
    assert position.next_mark_s() - bench.polling.next_s >= 3.0 * unsure_s - 1e-9


def test_a_look_that_finds_nothing_runs_little_code(bench: Bench) -> None:
    """What counts is how much each wake-up touches: it runs some hundred times a second."""
    bench.steps(12)
    called: list[str] = []

    def note(frame: FrameType, event: str, _of: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    bench.clock.now = bench.polling.next_s
    sys.setprofile(note)
    try:
        found = bench.polling.poll()
    finally:
        sys.setprofile(None)

    assert found is None
    assert len(called) <= 6, called
