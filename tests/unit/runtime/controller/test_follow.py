"""What a controller does with a page, a machine and a setter, and when any of them fails."""

import dataclasses
import functools
import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from followed import CLOCK, Asked, Given, Virtual
from small_training import plan
from underclock.errors import NotPermittedError, NotSupportedError
from underclock.hw.base import SystemClock
from underclock.hw.nvml_calls import Value
from underclock.learning.blocks import JobLearning
from underclock.learning.pieces import write_places
from underclock.records import AUTO, Clocks, ThrottleReason
from underclock.records.runs import AskLine, EndLine, EventLine, Line, StepLine
from underclock.runtime.controller.follow import Follow, GpuController
from underclock.runtime.controller.gauges import (
    EnergyCounterSampler,
    Gauge,
    Gauges,
    TelemetryBuffer,
)
from underclock.runtime.controller.log import Log, read_log
from underclock.runtime.controller.polling import Polling, PollingThread
from underclock.runtime.controller.process import WorkDone
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.position import Position
from underclock.runtime.machine.timetable import PassedStep, State, timetable_of
from underclock.runtime.policy.parts import observed_part
from underclock.runtime.policy.policy import LearningPolicy, policy_of
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page, word_of
from underclock.runtime.trainer.sites import marked, scheduled
from underclock.units import Domain

_LAUNCH_S = 1e-3
PLAN = plan(launch_s=_LAUNCH_S)
MARKS = tuple(site.launch for site in marked(PLAN)[0])
_PID = 128  # where a page has it


class Bench:
    """One GPU's page, and who follows it."""

    def __init__(self, folder: Path) -> None:
        self.page = Page.create(folder / "run.page", digest=bytes(32), marks=MARKS)
        self.page.tell(pages.MARKING)
        self.log = folder / "log.jsonl"
        self.shown = Given()
        self.clock = Virtual()
        self.begun = 0
        self._follow: Follow | None = None

    def follow(
        self,
        setter: Callable[[Domain, Value], None] | None,
        learns: JobLearning | None = None,
    ) -> Follow:
        part = observed_part()
        machine = Machine(part.timetable(0) if learns else timetable_of(scheduled(PLAN), MARKS))
        policy = policy_of(machine, PLAN, arms="", window=0)
        if learns is not None:
            policy = LearningPolicy(machine, part.schedules[0], learns)
        follower = GpuController(
            0,
            self.page,
            machine,
            policy,
            setter=setter,
            gauges=self.shown,
            clock=self.clock,
        )
        self._follow = Follow((follower,), Log(self.log), self.clock)
        return self._follow

    def steps(self, follow: Follow, count: int) -> None:
        """Let the stream reach every mark of some steps, at the time planned."""
        begins_s = self.clock.now_s() + 0.01
        for step in range(count):
            self.begun += 1
            for value, launch in enumerate(MARKS, start=1):
                at_s = begins_s + (step * len(PLAN.step.order) + launch) * _LAUNCH_S
                word = word_of(value, self.begun)
                self.clock.at(at_s, functools.partial(self.page.write, word))
        self.until(follow, at_s + 0.005)

    def until(self, follow: Follow, until_s: float) -> None:
        while (now_s := self.clock.now_s()) < until_s:
            self.clock.sleep_s(max(0.0, min(follow.next_s(), until_s) - now_s) + 1e-6)
            follow.wake(self.clock.now_s())

    def lines(self) -> tuple[Line, ...]:
        if self._follow is not None:
            self._follow.close()
        return read_log(self.log)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.page.close()


def test_clocks_are_asked_for_and_every_step_is_noted(bench: Bench) -> None:
    asked = Asked()
    bench.steps(bench.follow(asked), 5)

    lines = bench.lines()
    steps = [line for line in lines if isinstance(line, StepLine)]
    assert {(Domain.CORE, 1110), (Domain.CORE, None)} <= set(asked.values)
    assert len(steps) == 4
    assert all(line.planned == 2 for line in steps)
    assert sum(isinstance(line, AskLine) for line in lines) == len(asked.values)
    assert isinstance(lines[-1], EndLine)


def test_places_that_a_trainer_chose_cut_steps_and_changes_are_timed(bench: Bench) -> None:
    write_places(bench.page.path, [("step", "", 0, 1), *(("enter", "h", 0, 1),) * (len(MARKS) - 1)])
    learning, asked = JobLearning([1000, 1500], 0.01), list[Value]()
    follow = bench.follow(lambda _setting, mhz: asked.append(mhz), learning)
    (follower,) = follow.followers
    bench.steps(follow, 4)
    assert follower.machine.timetable.marks == tuple(range(len(MARKS)))
    assert follower.polling.position is follower.machine.position
    assert follower.machine.position.between_s == pytest.approx(
        [
            (after - before) * _LAUNCH_S
            for before, after in itertools.pairwise((*MARKS, len(PLAN.step.order)))
        ],
        abs=5e-4,
    )

    for hold in learning.holds:
        hold((1500,) * len(MARKS))
    bench.steps(follow, 2)
    assert asked == [1500]
    assert bench.shown.awaited == [1500]
    steps = [line for line in bench.lines() if isinstance(line, StepLine)]
    assert [line.arm for line in steps] == ["auto"] * len(steps)


@pytest.mark.parametrize(("counts", "asleep_s"), [((5, 7), 3.0), ((9, 4, 6), 0.4), ((4, 30), 20.0)])
def test_a_trainer_that_was_started_again_is_counted_with_those_before(
    bench: Bench, counts: tuple[int, ...], asleep_s: float
) -> None:
    follow = bench.follow(Asked())
    for process, count in enumerate(counts, start=4711):
        bench.page.write(process, _PID)
        bench.steps(follow, count)
        bench.until(follow, bench.clock.now_s() + asleep_s)

    lines = bench.lines()
    steps = [line for line in lines if isinstance(line, StepLine)]
    told = [line.text for line in lines if isinstance(line, EventLine)]
    end = lines[-1]
    # Of each process the beginning of the first step or two is not seen.
    seen = sum(line.steps for line in steps)
    assert sum(counts) - 2 * len(counts) <= seen <= sum(counts) - len(counts)
    assert max(line.time_s for line in steps) < asleep_s
    assert sum("started again" in text for text in told) == len(counts) - 1
    assert not any("not counted" in text for text in told)
    assert isinstance(end, EndLine)
    assert end.restarts == len(counts) - 1


@pytest.mark.parametrize(("setter", "overruled"), [(None, False), (Asked(), True)])
def test_clocks_that_nobody_asked_for_overrule_no_lock(
    bench: Bench, setter: Asked | None, *, overruled: bool
) -> None:
    follow = bench.follow(setter)
    begins_s = bench.clock.now_s()
    for step in range(40):  # at the power cap, whatever is or would be locked
        at_s = begins_s + 0.0101 * step
        capped = dataclasses.replace(_gauge(at_s, None), reasons=ThrottleReason.SW_POWER_CAP)
        bench.clock.at(at_s, functools.partial(bench.shown.gives, capped))
    bench.steps(follow, 6)

    lines = bench.lines()
    steps = [line for line in lines if isinstance(line, StepLine)]
    told = [line.text for line in lines if isinstance(line, EventLine)]
    assert any(line.overruled for line in steps) is overruled
    assert any("was asked for and 1500 MHz runs" in text for text in told) is overruled
    assert 1500 in {line.core_mhz for line in steps}  # the gauge is shown all the same


@pytest.mark.parametrize(
    "error", [NotPermittedError("the right was taken away"), OSError("no space left on device")]
)
def test_what_a_setter_refuses_is_given_back_once_it_takes_that(
    bench: Bench, error: Exception
) -> None:
    def fail() -> None:
        if bench.clock.now_s() < until_s:
            raise error

    asked = Asked(fail)
    follow = bench.follow(asked)
    until_s = bench.clock.now_s() + 1.5
    bench.steps(follow, 40)

    locks = [each for each in asked.values if each != (Domain.CORE, None)]
    assert locks == [(Domain.CORE, 1110)]
    assert 2 <= len(asked.values) - len(locks) <= 4  # at once, and then every second
    told = [line.text for line in bench.lines() if isinstance(line, EventLine)]
    assert len(told) == 2
    assert str(error) in told[0]
    assert told[1] == "the core was given back to the driver"


def test_marks_that_pass_while_a_setter_blocks_are_not_missed(bench: Bench) -> None:
    polling = Polling(bench.page, CLOCK, Position(timetable_of(scheduled(PLAN), MARKS)))
    seen: list[int] = []
    others = PollingThread(CLOCK, [(polling, lambda mark, _at_s, _steps: seen.append(mark))])

    def passes() -> None:
        for value in (1, 2, 3):
            CLOCK.sleep_s(0.05)  # who looks on may not run for some ms on a busy machine
            bench.page.write(value)

    thread = threading.Thread(target=passes)
    with others.during():
        thread.start()
        thread.join()
        CLOCK.sleep_s(0.05)

        assert seen == []

    assert seen == [1, 2, 3]
    assert polling.poll() is None


def test_a_trainer_that_refuses_leaves_clocks_to_the_driver(bench: Bench) -> None:
    asked = Asked()
    follow = bench.follow(asked)
    bench.page.tell(pages.REFUSED, "the step is not the plan's")

    with pytest.raises(WorkDone, match="the step is not the plan's"):
        bench.until(follow, bench.clock.now_s() + 1.0)

    assert asked.values == [(Domain.CORE, None), (Domain.MEMORY, None)]
    assert [line.text for line in bench.lines() if isinstance(line, EventLine)] == [
        "the step is not the plan's"
    ]


def test_a_page_that_was_removed_is_told(bench: Bench) -> None:
    follow = bench.follow(Asked())
    bench.page.tell(pages.WAITING)
    Path(bench.page.path).unlink()
    bench.until(follow, bench.clock.now_s() + 0.3)

    (line,) = [line for line in bench.lines() if isinstance(line, EventLine)]
    assert "was removed" in line.text


def _gauge(at_s: float, energy_j: float | None, limit_w: float | None = None) -> Gauge:
    return Gauge(
        at_s=at_s,
        clocks=Clocks(core_mhz=1500, mem_mhz=9501),
        reasons=ThrottleReason.NONE,
        power_w=200.0,
        energy_j=energy_j,
        limit_w=limit_w,
    )


def _step(began_s: float, time_s: float) -> PassedStep:
    return PassedStep(
        number=0,
        began_s=began_s,
        time_s=time_s,
        state=State.FOLLOWING,
        planned=0,
        asked=0,
    )


def _energies(shown: TelemetryBuffer) -> list[float | None]:
    """Return what steps of 0.5 s drew, one after the other."""
    return [shown.line(0, _step(0.5 * step, 0.5), "").energy_j for step in range(1, 7)]


def test_a_counter_that_falls_tells_nothing_of_the_step_in_which_it_did() -> None:
    shown = TelemetryBuffer()
    words = shown.add([_gauge(0.2 * i, 40.0 * (i if i < 9 else i - 9)) for i in range(20)])

    assert len(words) == 1
    assert "fell from 320 to 0 J" in words[0]
    assert _energies(shown) == [pytest.approx(100.0)] * 2 + [None] + [pytest.approx(100.0)] * 3
    assert shown.upto_s() == pytest.approx(3.8)


def test_a_full_disk_loses_lines_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    log = Log(Path("/dev/full"))
    log.write(EventLine(gpu=0, at_s=0.0, text="lost"))
    log.close()
    log.write(EventLine(gpu=0, at_s=0.0, text="too late"))

    assert log.lost == 1
    assert "lines of /dev/full are lost" in capfd.readouterr().err


def test_a_line_that_a_full_disk_cuts_does_not_spoil_the_next(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "log.jsonl"
    log = Log(path)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, usual[1]))
    try:
        for text in ("cut", "lost"):
            log.write(EventLine(gpu=0, at_s=0.0, text=text))
            log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    log.write(EventLine(gpu=0, at_s=0.0, text="whole"))
    log.close()

    assert log.lost == 2
    assert [line.text for line in read_log(path) if isinstance(line, EventLine)] == ["whole"]


_WAIT_S = 0.36  # as a controller that compares arms waits between readings
_STEP_S, _BLOCK, _SETTLING = 0.02, 250, 50


class Board:
    """A counter that climbs now and then, and blocks whoever reads it; and the clock it goes by."""

    def __init__(
        self, every_s: float, blocks_s: float, power_w: tuple[float, ...], off_s: float = 0.0
    ) -> None:
        self.now, self.reads = 1000.0, 0
        self.every_s, self.blocks_s, self.power_w = every_s, blocks_s, power_w
        self.is_stuck, self.off_s = False, off_s

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, duration_s: float) -> None:
        self.now += duration_s

    def energy_j(self) -> float:
        self.reads += 1
        self.now += self.blocks_s
        tick = 0 if self.is_stuck else math.floor(self.now / self.every_s)
        if tick and self.climbs_s(tick) > self.now:
            tick -= 1
        return self.drawn_j(self.climbs_s(tick))

    def climbs_s(self, tick: int) -> float:
        """Return when it climbs: as uneven as was seen on an H200, or even."""
        return tick * self.every_s + self.off_s * (tick * 0.6180339887 % 1.0)

    def drawn_j(self, at_s: float) -> float:
        """Return what was drawn: blocks of 5 s draw one power, those between them another."""
        whole, part_s = divmod(max(0.0, at_s - 1000.0), _STEP_S * _BLOCK)
        whole = int(whole)
        drawn_w = sum(self.power_w[at % 2] for at in range(whole))
        return drawn_w * _STEP_S * _BLOCK + self.power_w[whole % 2] * part_s


@given(
    every_s=st.floats(0.0983, 0.1017),
    blocks_s=st.sampled_from([0.0, 5e-6, 1e-3, 4.8e-3]),
    other_w=st.floats(400.0, 600.0),
    off_s=st.sampled_from([0.0, 5e-3, 18e-3]),
)
def test_few_questions_tell_the_energy_of_a_block(
    every_s: float, blocks_s: float, other_w: float, off_s: float
) -> None:
    board = Board(every_s, blocks_s, (500.0, other_w), off_s)
    climbs, shown = EnergyCounterSampler(board.energy_j, board), TelemetryBuffer()
    climbs.next()  # the first learns how often the counter climbs
    learned_s, learned = board.now, board.reads

    while board.now < 1062.0:
        board.sleep_s(_WAIT_S)
        energy_s, energy_j = climbs.next()
        shown.add([gauge(board.now, energy_s, energy_j)])

    reads_hz = (board.reads - learned) / (board.now - learned_s)
    assert reads_hz < (16.0 if off_s else 8.0)  # many only where they take no time
    assert reads_hz * blocks_s < 0.05  # of the processor; 0.08 to 0.18 where each climb is sought
    for block in range(1, 12):
        began_s = 1000.0 + _STEP_S * (block * _BLOCK + _SETTLING)
        ended_s = 1000.0 + _STEP_S * (block + 1) * _BLOCK
        told_j = shown.line(0, passed(began_s, ended_s), "").energy_j
        assert told_j is not None
        true_j = board.drawn_j(ended_s) - board.drawn_j(began_s)
        off_j = 9e-3 * 600.0 + 0.5 / 4 * abs(other_w - 500.0)
        assert told_j == pytest.approx(true_j, abs=off_j)


def gauge(at_s: float, energy_s: float, energy_j: float) -> Gauge:
    return Gauge(
        at_s=at_s,
        clocks=AUTO,
        reasons=ThrottleReason(0),
        power_w=0.0,
        energy_s=energy_s,
        energy_j=energy_j,
    )


def passed(began_s: float, ended_s: float) -> PassedStep:
    return PassedStep(
        number=0,
        began_s=began_s,
        time_s=ended_s - began_s,
        state=State.HELD,
        planned=0,
        asked=0,
    )


@pytest.mark.parametrize(("powers_w", "is_known"), [([100.0, 140.0, None], True), ([None], False)])
def test_power_is_integrated_where_there_is_no_counter(
    powers_w: list[float | None], *, is_known: bool
) -> None:
    clock, shown = SystemClock(), TelemetryBuffer()
    unknown = dict.fromkeys(("throttle_reasons", "temperature_c", "power_limit_w"), lambda: None)
    powers = itertools.cycle(powers_w)

    def energy_j() -> float:
        raise NotSupportedError("boards before 2017 have none")

    gpu: Any = SimpleNamespace(energy_j=energy_j, power_w=lambda: next(powers), **unknown)
    gpu.observed = lambda: AUTO
    gauges = Gauges(gpu, clock, exactly=True)
    clock.sleep_s(0.7)
    gauges.close()
    some = gauges.taken()
    words = shown.add(some)
    known = [(gauge.at_s, gauge.power_w) for gauge in some if gauge.power_w is not None]
    drawn_j = sum(
        0.5 * (one_w + other_w) * (other_s - one_s)
        for (one_s, one_w), (other_s, other_w) in itertools.pairwise(known)
    )

    assert (shown.energy_j is not None) == is_known
    assert "the GPU has no energy counter" in words[0]
    assert shown.energy_j == pytest.approx(drawn_j if is_known else None)


_LIMIT_W = 350.0


def _shown(readings: list[tuple[float, float]], *, dropped: int = 0) -> TelemetryBuffer:
    shown = TelemetryBuffer()
    shown.add(
        [
            Gauge(
                at_s=at_s,
                clocks=Clocks(core_mhz=1500),
                reasons=ThrottleReason.NONE,
                power_w=300.0,
                energy_j=energy_j,
                limit_w=_LIMIT_W,
                dropped=dropped,
            )
            for at_s, energy_j in readings
        ]
    )
    return shown


def _counted(seed: int, count: int) -> list[tuple[float, float]]:
    drawn = random.Random(seed)  # noqa: S311
    readings, at_s, energy_j = [], drawn.uniform(0.0, 1e6), drawn.uniform(0.0, 1e9)
    for _ in range(count):
        readings.append((at_s, energy_j))
        waited_s = drawn.uniform(0.05, 1.0)
        at_s, energy_j = at_s + waited_s, energy_j + drawn.uniform(30.0, _LIMIT_W) * waited_s
    return readings


@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_of_a_counter_in_another_unit_nothing_is_known(seed: int, scale: float) -> None:
    readings = [(at_s, scale * energy_j) for at_s, energy_j in _counted(seed, 60)]

    assert _shown(readings).energy_j is None


@pytest.mark.parametrize("seed", range(5))
def test_of_a_run_in_which_the_counter_leapt_nothing_is_known(seed: int) -> None:
    readings = _counted(seed, 60)
    leapt = [(s, j + (1e9 if n >= 1 + seed * 11 else 0.0)) for n, (s, j) in enumerate(readings)]

    shown = _shown(leapt)

    assert shown.energy_j is None
    assert "1 readings of the energy counter cannot be" in shown.dropped()
