"""When a page is looked at, and when a mark is taken to have been reached."""

from pathlib import Path

import pytest

from underclock.records import Clocks
from underclock.records.latencies import LatencyTable
from underclock.runtime.controller.polling import Polling
from underclock.runtime.machine.machine import Machine
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
