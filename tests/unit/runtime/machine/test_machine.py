"""What the machine asks for and when, driven by a step played on a time of its own."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from underclock.errors import DataError
from underclock.records import AUTO, Clocks, ThrottleReason
from underclock.records.latencies import LatencyTable, Switch
from underclock.runtime.machine.clock_domains import Lock, LockState
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import (
    Ask,
    PassedStep,
    State,
    Timetable,
    timetable,
)
from underclock.units import Domain

CALL_S, DELAY_S = 1e-3, 4e-3
LAUNCH_S = 10e-3
SLOW, FAST = Clocks(core_mhz=900), Clocks(core_mhz=1500)
CLOCKS = (SLOW,) * 4 + (FAST,) * 4
NO_REASON, CAP = ThrottleReason.NONE, ThrottleReason.SW_POWER_CAP


def switches(*, jitter_s: float = 0.0, stall_s: float = 0.0) -> LatencyTable:
    return LatencyTable(
        evidence=None,
        gpu=None,
        switches=tuple(
            Switch(
                domain=domain,
                from_mhz=None,
                to_mhz=None,
                call_s=CALL_S,
                delay_s=DELAY_S,
                delay_p05_s=DELAY_S - jitter_s,
                delay_p95_s=DELAY_S + jitter_s,
                jitter_s=jitter_s,
                stall_s=stall_s if domain is Domain.MEMORY else 0.0,
                repeats=0,
            )
            for domain in Domain
        ),
    )


def table_of(
    clocks: Sequence[Clocks] = CLOCKS,
    marks: Sequence[int] | None = None,
    latencies: LatencyTable | None = None,
    launch_s: float = LAUNCH_S,
) -> Timetable:
    marks = range(len(clocks)) if marks is None else marks
    return timetable(clocks, latencies or switches(), [launch_s] * len(clocks), marks)


@dataclasses.dataclass
class Player:
    """Plays steps to a machine: marks in order of their time, and calls as they are asked for."""

    machine: Machine
    call_s: float = CALL_S
    now_s: float = 0.0
    calls: list[tuple[float, Ask]] = dataclasses.field(default_factory=list)

    def run(self, until_s: float) -> None:
        """Let time pass in which no mark is seen."""
        while (at_s := max(self.machine.next_s, self.now_s)) <= until_s:
            self.now_s = at_s
            ask = self.machine.ask(at_s)
            if ask is None:
                break
            self.calls.append((at_s, ask))
            self.now_s += self.call_s
            self.machine.asked(ask, at_s, self.now_s)
        self.now_s = max(self.now_s, until_s)

    def step(self, lasts_s: Iterable[float], skipped: Iterable[int] = ()) -> float:
        """Play a step whose stretches between marks last so long; return when it began."""
        began_s = at_s = self.now_s
        for index, each_s in enumerate(lasts_s):
            if index not in skipped:
                self.machine.saw(index + 1, at_s)
            at_s += each_s
            self.run(at_s)
        return began_s

    def steps(self, count: int, lasts_s: Sequence[float]) -> float:
        began_s = self.now_s
        for _ in range(count):
            began_s = self.step(lasts_s)
        self.machine.saw(1, self.now_s)
        return began_s

    def asked(self, since_s: float) -> list[tuple[object, object]]:
        """Return what was asked for since, and how long after."""
        return [
            (round(at_s - since_s, 6), ask.to_mhz)
            for at_s, ask in self.calls
            if at_s >= since_s - 1e-9
        ]


def state(machine: Machine) -> State:
    """Return what it does; type checkers take it to stay the same otherwise."""
    return machine.state


def usual(table: Timetable, factor: float = 1.0) -> list[float]:
    ends = (*table.marks[1:], table.launches)
    return [
        factor * (table.upto_s[b] - table.upto_s[a]) for a, b in zip(table.marks, ends, strict=True)
    ]


def played(marks: Sequence[int] | None = None, **options: int) -> Player:
    machine = Machine(table_of(marks=marks), **options)  # type: ignore[arg-type]
    return Player(machine)


@pytest.mark.parametrize("marks", [None, (0, 2, 4, 6), (0, 4), (0, 3)])
def test_changes_are_asked_for_as_long_ahead_as_they_take(marks: Sequence[int] | None) -> None:
    player = played(marks)
    began_s = player.steps(3, usual(player.machine.timetable))

    lead_s = CALL_S + DELAY_S
    assert player.asked(began_s) == [
        (pytest.approx(0.04 - lead_s), 1500),
        (pytest.approx(0.08 - lead_s), 900),
    ]
    step = player.machine.passed()[-1]
    assert (step.planned, step.asked, step.state) == (2, 2, State.FOLLOWING)
    assert step.outcomes == [pytest.approx((0.0, 0.0), abs=1e-9)] * 2


def test_marks_that_do_not_match_the_plan_are_told() -> None:
    player = played((0, 2, 4, 6))
    position = player.machine.position
    player.steps(4, usual(player.machine.timetable))
    assert position.mismatch() is None
    player.steps(9, usual(player.machine.timetable, 1.7))  # only the length is another
    assert position.mismatch() is None
    player.steps(9, [0.01, 0.01, 0.08, 0.02])
    assert position.mismatch() == "47% of the step lies between other marks than planned"

    for _ in range(80):  # of which few are seen by every mark
        player.step(usual(player.machine.timetable), skipped=(2,))
    assert position.mismatch() == "1 of 4 marks are never seen, mark 2 first"
    told = [words for _, words in player.machine.events if "trace it again" in words]
    (words,) = told
    assert "47% of the step lies between other marks than planned; trace it again" in words
    single = played((0,))
    single.steps(9, [0.08])
    assert single.machine.position.mismatch() is None


@given(
    words=st.lists(
        st.tuples(st.integers(0, 9), st.floats(0.0, 0.05), st.floats(0.0, 700.0)), max_size=60
    ),
    marks=st.sampled_from([(0,), (0, 4), (0, 1, 5), tuple(range(8))]),
)
@example(
    words=[
        *[(2, 0.0, 0.0), (4, 0.0, 0.0), (3, 0.0, 0.0), (0, 0.03125, 0.0), (1, 0.0, 0.0)],
        *[(2, 0.03125, 0.0), (0, 0.03125, 0.0), (3, 0.0, 0.0)],
    ],
    marks=tuple(range(8)),
)
@example(words=[(2, 0.0, 0.0), (1, 0.0, 0.0), (2, 0.0, 0.0), (1, 0.0, 0.0)], marks=(0, 4))
def test_whatever_marks_come_only_planned_clocks_are_asked_for(
    words: list[tuple[int, float, float]], marks: tuple[int, ...]
) -> None:
    machine = Machine(table_of(marks=marks), low_mhz=300)
    player = Player(machine)
    for word, pause_s, power_w in words:
        player.run(player.now_s + pause_s)
        machine.saw(word, player.now_s)
        machine.observed(SLOW, NO_REASON, player.now_s, power_w=power_w)

    assert {ask.to_mhz for _, ask in player.calls} <= {None, 300, 900, 1500}
    steps: list[PassedStep] = machine.passed()
    assert all(step.time_s >= 0 and step.stalled_s >= 0 for step in steps)
    assert all(step.asked <= step.planned + 1 for step in steps if step.state is State.FOLLOWING)


@given(
    looks=st.lists(st.floats(0.1, 5.0), min_size=8, max_size=40),
    factor=st.sampled_from([0.33, 1.0, 2.5]),
    held=st.booleans(),
)
def test_whoever_looks_late_knows_how_many_steps_ended(
    looks: list[float], factor: float, *, held: bool
) -> None:
    table = table_of(marks=(0, 4))
    machine = Machine(table)
    if held:
        machine.hold(SLOW)
    lasts_s, at_s = usual(table, factor), 0.0
    step_s = sum(lasts_s)
    machine.saw(1, at_s, 7)
    steps = 0.0
    for each in looks:
        at_s += each * step_s
        steps, into_s = divmod(at_s, step_s)
        # In a step that is late by far a mark may be impossibly early; then it begins anew.
        machine.saw(2 if into_s >= lasts_s[0] else 1, at_s, 7 + int(steps))

    passed = machine.passed()
    assert machine.position.rounds == int(steps)
    assert all(step.counted for step in passed)
    for step, after in itertools.pairwise(passed):
        assert after.number >= step.number + step.steps
    whole = sum(step.steps for step in passed)
    if whole and whole == passed[-1].number + passed[-1].steps:  # none began anew
        assert passed[0].number == 0
        assert passed[-1].ended_s / whole == pytest.approx(step_s, rel=1.0 / whole)


def test_marks_that_an_evaluation_sets_again_within_a_step_end_none() -> None:
    machine = Machine(table_of())
    for step in range(20):
        words = (1, 2, 5, 3, 4, 6) if step % 5 == 4 else range(1, len(CLOCKS) + 1)
        for at, word in enumerate(words):
            machine.saw(word, step * len(CLOCKS) * LAUNCH_S + at * LAUNCH_S, 7 + step)
    assert machine.position.rounds == 19
    assert all(step.counted for step in machine.passed())


def stand_still(player: Player, power_w: float | None) -> tuple[float, float]:
    """Follow steps at 600 W, then see no mark; return when the last was seen, and until when."""
    lasts_s = usual(player.machine.timetable)
    for _ in range(3):
        player.step(lasts_s)
        player.machine.observed(SLOW, NO_REASON, player.now_s, power_w=600.0)
    player.machine.saw(1, player.now_s)
    seen_s = player.now_s
    if power_w is not None:
        player.machine.observed(SLOW, NO_REASON, seen_s + 0.049, power_w=power_w)
    player.run(seen_s + 1.0)
    return seen_s, player.now_s


def test_a_step_that_stands_still_waits_at_a_low_clock_and_comes_back() -> None:
    player = played(low_mhz=300)
    seen_s, still_s = stand_still(player, power_w=150.0)

    assert state(player.machine) is State.STALLED
    assert player.calls[-1][1].to_mhz == 300
    assert player.calls[-1][0] == pytest.approx(seen_s + 0.05, abs=1e-3)
    assert not player.machine.events  # training may just be over
    player.machine.saw(2, still_s)
    assert player.machine.events[-1][1] == "no mark was seen for 1 s: the step stood still"
    player.run(still_s + 1e-3)
    assert state(player.machine) is State.FOLLOWING
    assert player.calls[-1][1].to_mhz == 900  # launch 1's
    player.machine.passed()
    player.machine.saw(1, still_s + 0.07)
    (step,) = player.machine.passed()
    assert step.state is State.STALLED
    assert step.stalled_s == pytest.approx(1.0 - LAUNCH_S, abs=1e-3)


def test_a_clock_that_is_held_falls_as_well_while_nothing_runs_where_that_was_asked_for() -> None:
    player = played(low_mhz=300)
    player.machine.waits_low = True
    player.machine.hold(FAST)
    seen_s, still_s = stand_still(player, power_w=150.0)

    assert state(player.machine) is State.STALLED
    assert player.calls[-1][1].to_mhz == 300
    assert seen_s + 0.05 <= player.calls[-1][0] < seen_s + 0.2
    player.machine.saw(2, still_s)
    player.run(still_s + 1e-3)
    assert state(player.machine) is State.HELD
    assert player.calls[-1][1].to_mhz == 1500


@pytest.mark.parametrize(("stall_s", "share"), [(0.3, 0.6), (1.0, 0.85), (3.0, 0.95)])
def test_most_of_a_stall_is_waited_for_at_a_low_clock(stall_s: float, share: float) -> None:
    """Power is read ten times a second; what is spent low after the stall is one change."""
    player = played(low_mhz=300)
    player.machine.waits_low = True
    player.machine.hold(FAST)
    low_s = late_s = 0.0
    for _ in range(10):
        player.steps(50, usual(player.machine.timetable))
        player.machine.observed(FAST, NO_REASON, player.now_s, power_w=600.0)
        began_s = player.now_s
        for tick in range(1, round(stall_s / 0.1) + 1):
            player.run(began_s + 0.1 * tick)
            player.machine.observed(None, NO_REASON, player.now_s, power_w=150.0)
        ended_s, (lowered_s, ask) = player.now_s, player.calls[-1]
        assert ask.to_mhz == 300
        player.machine.saw(2, ended_s)
        player.run(ended_s + LAUNCH_S)
        (back_s, ask) = player.calls[-1]
        assert ask.to_mhz == FAST.core_mhz
        low_s += ended_s - (lowered_s + CALL_S + DELAY_S)
        late_s += back_s + CALL_S + DELAY_S - ended_s
    assert low_s >= share * 10 * stall_s
    assert late_s <= 10 * (CALL_S + DELAY_S) + 1e-6


@pytest.mark.parametrize(
    ("alone", "clocks", "power_w"),
    [("", FAST, 150.0), ("alone", AUTO, 150.0), ("alone", FAST, 590.0), ("alone", FAST, None)],
)
def test_a_clock_that_is_held_stays_where_others_wait_or_the_gpu_may_work(
    alone: str, clocks: Clocks, power_w: float | None
) -> None:
    player = played(low_mhz=300)
    player.machine.waits_low = bool(alone)
    player.machine.hold(clocks)
    stand_still(player, power_w)
    assert [ask.to_mhz for _, ask in player.calls] == [clocks.core_mhz] * len(player.calls)


@pytest.mark.parametrize("power_w", [590.0, None])
def test_a_counter_that_sticks_while_the_gpu_works_leaves_clocks_to_the_driver(
    power_w: float | None,
) -> None:
    player = played(low_mhz=300)
    stand_still(player, power_w)

    if power_w is None:
        player.machine.observed(SLOW, NO_REASON, player.now_s)
        player.run(player.now_s + 0.1)
    assert state(player.machine) is State.STALLED
    assert player.calls[-1][1].to_mhz is None


def test_a_counter_that_runs_backwards_is_not_believed_until_it_makes_sense() -> None:
    player = played()
    machine, lasts_s = player.machine, usual(player.machine.timetable)
    player.steps(3, lasts_s)
    for word, at_s in ((2, 0.01), (3, 0.02), (2, 0.0201), (3, 0.0301)):
        machine.saw(word, player.now_s + at_s)

    assert state(machine) is State.LOST
    assert "faster than the GPU can work" in machine.events[-1][1]
    player.run(player.now_s + 0.04)
    assert player.calls[-1][1].to_mhz is None
    machine.passed()
    for _ in range(5):
        player.step(lasts_s)
    machine.saw(1, player.now_s)
    assert state(machine) is State.FOLLOWING
    assert machine.events[-1][1] == "marks make sense again"
    assert machine.passed()[-1].state is State.FOLLOWING


def test_held_clocks_need_no_marks_and_steps_are_counted_all_the_same() -> None:
    player = played()
    machine, lasts_s = player.machine, usual(player.machine.timetable)
    machine.hold(FAST)
    player.run(0.0)
    assert [ask.to_mhz for _, ask in player.calls] == [1500]
    player.steps(3, lasts_s)
    assert len(player.calls) == 1
    assert [step.state for step in machine.passed()] == [State.HELD] * 3
    machine.saw(99, player.now_s + 1e-3)  # nothing that is held depends on marks
    assert state(machine) is State.HELD

    machine.follow(machine.timetable)
    player.run(player.now_s + 2e-3)
    assert [ask.to_mhz for _, ask in player.calls][-1] == 900
    player.steps(2, lasts_s)
    assert machine.passed()[-1].state is State.FOLLOWING
    machine.hold(AUTO)
    player.run(player.now_s)
    assert [ask.to_mhz for _, ask in player.calls][-1] is None
    assert machine.next_s == math.inf


def test_a_refusal_is_told_and_not_repeated() -> None:
    player = played()
    machine = player.machine
    player.machine.saw(1, 0.0)
    ask = machine.ask(0.0)
    assert ask is not None
    assert machine.next_s == math.inf
    assert machine.ask(0.0) is None
    with pytest.raises(ValueError, match="not what was to be asked for"):
        machine.asked(Ask(domain=Domain.MEMORY, to_mhz=1), 0.0, 0.0)
    with pytest.raises(ValueError, match="not what was to be asked for"):
        machine.refused(Ask(domain=Domain.MEMORY, to_mhz=1), 0.0, "")
    machine.refused(ask, 1e-3, "no permission")

    words = (
        "the driver refused core 900 MHz: no permission; it is given back as soon as the driver "
        "takes that, and asked for no more"
    )
    assert machine.events == [(1e-3, words)]
    assert machine.locks[Domain.CORE].state is LockState.REFUSED
    back = machine.ask(1e-3)
    assert back == Ask(domain=Domain.CORE, to_mhz=None)
    machine.refused(back, 2e-3, "no permission")
    assert len(machine.events) == 1
    assert machine.ask(0.5) is None
    player.steps(15, usual(machine.timetable))
    assert [ask for _, ask in player.calls] == [back]
    assert machine.events[1:] == [(1.002 + CALL_S, "the core was given back to the driver")]
    machine.hold(FAST)
    assert machine.next_s == math.inf


def test_locks_that_the_cap_holds_down_are_found() -> None:
    player = played()
    machine, lasts_s = player.machine, usual(player.machine.timetable)
    for _ in range(8):
        at_s = player.now_s
        for index, each_s in enumerate(lasts_s):
            machine.saw(index + 1, at_s)
            at_s += each_s
            player.run(at_s - 1e-4)
            mhz = machine.locks[Domain.CORE].mhz
            machine.observed(Clocks(core_mhz=min(mhz or 0, 1300)), CAP, player.now_s)
        player.now_s = at_s

    assert machine.above_cap() == {4}
    machine.saw(1, player.now_s)
    told = machine.passed()[-1].overruled
    assert told
    assert "core 1500 MHz was asked for and 1300 MHz runs" in told[0]
    assert "power limit" in told[0]
    assert [words for _, words in machine.events] == [told[0]]  # once, however many steps
    machine.follow(table_of())
    assert machine.above_cap() == frozenset()
    assert Machine(table_of((SLOW,) * 8)).above_cap() == frozenset()


_EVERY = frozenset(range(8))


def _player(quiet: tuple[tuple[int, int], ...], call_s: float = CALL_S) -> Player:
    """Eight launches of 10 ms; clocks change at the first and the fifth."""
    table = dataclasses.replace(table_of(), busy=_EVERY, quiet=quiet)
    return Player(Machine(table), call_s=call_s)


def _disturbed(player: Player, steps: int) -> list[object]:
    """Play steps; return the calls in them that overlap communication."""
    table = player.machine.timetable
    known, begun_s = len(player.calls), [player.step(usual(table)) for _ in range(steps)]
    return [
        (at_s, ask)
        for at_s, ask in player.calls[known:]
        for (first, end), began_s in itertools.product(table.quiet, begun_s)
        if at_s + player.call_s > began_s + table.upto_s[first] + 1e-9
        and at_s < began_s + table.upto_s[end] - 1e-9
    ]


def test_auto_is_asked_for_after_communication_unless_that_never_ends() -> None:
    player = _player(((3, 4),))
    player.steps(3, usual(player.machine.timetable))
    for index in range(4):  # into the fourth launch
        player.machine.saw(index + 1, player.now_s)
        player.run(player.now_s + (0.01 if index < 3 else 0.002))
    known = len(player.calls)
    player.machine.hold(AUTO)
    assert state(player.machine) is State.HELD
    before_s = player.now_s
    player.run(before_s + 0.005)
    assert len(player.calls) == known
    player.run(before_s + 1.0)  # another rank never comes
    assert [ask.to_mhz for _, ask in player.calls[known:]] == [None]
    assert player.calls[known][0] >= before_s + 0.04


def test_a_rank_that_waits_for_others_is_asked_for_nothing() -> None:
    player = _player(((3, 4),))
    player.steps(3, usual(player.machine.timetable))
    for index in range(4):
        player.machine.saw(index + 1, player.now_s)
        player.run(player.now_s + (0.01 if index < 3 else 2.0))  # a straggler elsewhere
    known = player.calls[:]
    player.run(player.now_s + 1.0)
    assert state(player.machine) is State.STALLED
    assert player.calls == known
    player.machine.saw(5, player.now_s)
    assert state(player.machine) is State.FOLLOWING


@pytest.mark.untraced
@given(
    spans=st.sets(st.integers(1, 7), max_size=3),
    call_ms=st.sampled_from([0.5, 1.0, 3.0, 6.0]),
)
def test_no_call_ever_disturbs_communication_that_leaves_room(
    spans: set[int], call_ms: float
) -> None:
    player = _player(tuple((at, at + 1) for at in sorted(spans)), call_s=1e-3 * call_ms)
    usual_s = usual(player.machine.timetable)
    for _ in range(8):  # until it has learned how long calls take
        player.step(usual_s)
    since_s = player.now_s
    assert not _disturbed(player, 8)
    assert {ask.to_mhz for at_s, ask in player.calls if at_s >= since_s} == {900, 1500}


def test_what_a_rank_computes_is_told_apart_from_what_it_waits() -> None:
    table = dataclasses.replace(table_of(), busy=frozenset({0, 1, 4, 5}))
    player = Player(Machine(table))
    player.steps(3, [0.01, 0.012, 0.05, 0.03, 0.01, 0.013, 0.002, 0.01])
    assert [step.busy_s for step in player.machine.passed()] == [pytest.approx(0.045)] * 3


TABLE = LatencyTable.constant(6e-3)


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
