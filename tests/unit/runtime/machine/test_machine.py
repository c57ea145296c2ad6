"""What the machine asks for and when, driven by a step played on a time of its own."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from underclock.records import AUTO, Clocks, ThrottleReason
from underclock.records.latencies import Domain, LatencyTable, Switch
from underclock.runtime.machine.locks import Lock, LockState
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import Ask, PassedStep, State
from underclock.runtime.machine.timetable import Timetable, timetable

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
    assert [outcome.late_s for outcome in step.outcomes] == pytest.approx([0.0] * 2, abs=1e-9)
    assert [outcome.error_s for outcome in step.outcomes] == pytest.approx([0.0] * 2, abs=1e-9)


def test_what_the_plan_did_not_know_is_learned_from_past_steps() -> None:
    player = played((0, 2, 4, 6))
    lasts_s = [0.01, 0.05, 0.03, 0.02]
    began_s = player.steps(6, lasts_s)

    assert player.asked(began_s) == [
        (pytest.approx(0.06 - CALL_S - DELAY_S, abs=1e-4), 1500),
        (pytest.approx(0.11 - CALL_S - DELAY_S, abs=1e-4), 900),
    ]


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_a_step_of_another_length_is_known_after_its_first_marks(factor: float) -> None:
    player = played()
    table = player.machine.timetable
    player.steps(9, usual(table))
    player.machine.passed()
    player.step(usual(table, factor))
    player.machine.saw(1, player.now_s)

    (step,) = player.machine.passed()
    assert step.time_s == pytest.approx(0.08 * factor)
    assert [outcome.late_s for outcome in step.outcomes] == pytest.approx([0.0] * 2, abs=1e-3)


def test_one_odd_stretch_moves_nothing_that_comes_later() -> None:
    player = played()
    lasts_s = usual(player.machine.timetable)
    player.steps(9, lasts_s)
    player.machine.passed()
    player.step([0.03, *lasts_s[1:]])
    player.machine.saw(1, player.now_s)

    (step,) = player.machine.passed()
    assert [outcome.late_s for outcome in step.outcomes] == pytest.approx([0.0] * 2, abs=2e-4)
    began_s = player.steps(1, lasts_s)
    assert player.asked(began_s)[0][0] == pytest.approx(0.035, abs=1e-4)


def test_a_change_waits_for_a_late_mark_before_it() -> None:
    player = played((0, 3, 4))
    lasts_s = usual(player.machine.timetable)
    player.steps(4, lasts_s)
    began_s = player.step([0.05, *lasts_s[1:]])  # mark 1, at launch 3, comes 20 ms late

    first_s, mhz = player.asked(began_s)[0]
    assert (first_s, mhz) == (pytest.approx(0.055, abs=3e-3), 1500)


def test_marks_that_are_not_seen_are_done_without() -> None:
    player = played()
    table = player.machine.timetable
    player.steps(3, usual(table))
    for _ in range(5):  # nobody waits for what is never seen
        began_s = player.step(usual(table), skipped=(3, 4))

    assert player.asked(began_s)[0] == (pytest.approx(0.035, abs=1e-4), 1500)


def test_what_is_overdue_gives_way_to_what_is_newer() -> None:
    clocks = (SLOW, FAST, Clocks(core_mhz=1200), SLOW)
    machine = Machine(table_of(clocks, marks=(0, 3)), first=SLOW)
    machine.saw(1, 0.0)
    assert machine.ask(0.0) is None
    machine.saw(2, 0.03)  # all three are overdue, and the newest is what holds already

    assert machine.ask(0.03) is None
    assert machine.locks[Domain.CORE].mhz == 900


def test_a_lock_is_not_replaced_before_it_was_followed() -> None:
    clocks = (SLOW, FAST) * 4
    machine = Machine(
        table_of(clocks, latencies=switches(jitter_s=4e-3), launch_s=3e-3), first=SLOW
    )
    player = Player(machine)
    player.steps(4, usual(machine.timetable))

    calls_s = [at_s for at_s, _ in player.calls]
    apart_s = min(b - a for a, b in itertools.pairwise(calls_s))
    assert apart_s >= CALL_S + DELAY_S + 4e-3 - 1e-9
    steps = player.machine.passed()
    assert all(step.asked < step.planned for step in steps)


def test_of_two_clocks_at_one_launch_calls_follow_each_other() -> None:
    both = Clocks(core_mhz=1500, mem_mhz=5001)
    machine = Machine(table_of((SLOW,) * 4 + (both,) * 4))
    player = Player(machine)
    began_s = player.steps(3, usual(machine.timetable))

    asked = [(at_s, ask.domain) for at_s, ask in player.calls if at_s >= began_s][:2]
    assert [at_s - began_s for at_s, _ in asked] == pytest.approx([0.034, 0.035])
    assert {domain for _, domain in asked} == set(Domain)


def test_a_stall_of_the_memory_is_no_longer_launch() -> None:
    clocks = (Clocks(mem_mhz=9501),) * 4 + (Clocks(mem_mhz=5001),) * 4
    machine = Machine(table_of(clocks, latencies=switches(stall_s=5e-3)))
    player = Player(machine)
    lasts_s = usual(machine.timetable)
    lasts_s[4] += 5e-3
    lasts_s[0] += 5e-3
    began_s = player.steps(6, lasts_s)

    assert [at_s for at_s, _ in player.asked(began_s)] == pytest.approx([0.040, 0.085], abs=2e-4)
    assert machine.position.step_s == pytest.approx(0.08, abs=1e-3)


def test_calls_that_take_longer_are_asked_for_earlier() -> None:
    player = played()
    player.call_s = 3e-3
    began_s = player.steps(8, usual(player.machine.timetable))

    assert player.asked(began_s)[0] == (pytest.approx(0.04 - 3e-3 - DELAY_S), 1500)
    player.call_s = 10.0  # one that hangs says little of the next
    player.step(usual(player.machine.timetable))
    player.call_s = 3e-3
    began_s = player.steps(8, usual(player.machine.timetable))
    assert player.asked(began_s)[0][0] == pytest.approx(0.04 - 3e-3 - DELAY_S, abs=5e-4)


def test_delays_are_learned_where_the_clock_is_looked_at_often() -> None:
    player = played()
    machine = player.machine
    lasts_s = usual(machine.timetable)
    for _ in range(8):
        player.step(lasts_s)
        for at_s, ask in player.calls[-2:]:
            # Asked, but looked at as if the clock followed 2 ms after the call's return.
            lock = machine.locks[ask.domain]
            lock.ask(ask.to_mhz, at_s)
            lock.accept(at_s + CALL_S, at_s + CALL_S)
            other = 900 if ask.to_mhz == 1500 else 1500
            machine.observed(Clocks(core_mhz=other), NO_REASON, at_s + CALL_S + 1.9e-3)
            machine.observed(Clocks(core_mhz=ask.to_mhz), NO_REASON, at_s + CALL_S + 2.1e-3)

    change = machine.timetable.changes[Domain.CORE][0]
    assert machine.latencies.lead_s(change) == pytest.approx(CALL_S + 2e-3)


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


def test_a_step_that_stands_still_for_long_is_told_of_once() -> None:
    player = played(low_mhz=300)
    _, still_s = stand_still(player, power_w=150.0)

    low = Clocks(core_mhz=300)
    for later_s in (0.5, 2.5, 3.5):
        player.machine.observed(low, NO_REASON, still_s + later_s, power_w=150.0)
    assert player.machine.events == [
        (still_s + 2.5, "no mark was seen for 3.5 s: the step stands still")
    ]


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


def test_first_steps_may_take_as_long_as_they_like() -> None:
    player = played(low_mhz=300)
    player.step([5.0] * 8)

    assert state(player.machine) is State.FOLLOWING
    assert player.machine.events == []
    began_s = player.steps(12, usual(player.machine.timetable))
    assert player.machine.events == []
    assert player.asked(began_s)[0] == (pytest.approx(0.035, abs=1e-3), 1500)


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


def test_a_mark_that_the_step_has_not_got_is_not_believed() -> None:
    player = played()
    player.machine.saw(0, 0.0)
    assert state(player.machine) is State.WAITING
    player.machine.saw(1, 0.0)
    player.machine.saw(99, 0.01)
    assert state(player.machine) is State.LOST
    player.machine.saw(98, 0.02)
    assert len(player.machine.events) == 1


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


def test_another_timetable_takes_over_within_the_step() -> None:
    player = played()
    machine = player.machine
    player.steps(2, usual(machine.timetable))
    third = Clocks(core_mhz=1200)
    machine.follow(table_of((third,) * 4 + (FAST,) * 4))
    player.run(player.now_s + 2e-3)

    assert player.calls[-1][1].to_mhz == 1200
    with pytest.raises(ValueError, match="cannot take the place"):
        machine.follow(table_of(CLOCKS[1:]))


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


def test_heat_is_told_once_whether_or_not_something_is_locked() -> None:
    machine = Machine(table_of())
    for at_s in (1.0, 2.0):
        for reasons in (ThrottleReason.SW_THERMAL_SLOWDOWN, CAP):
            machine.observed(Clocks(core_mhz=1200), reasons, at_s)

    assert machine.events == [(1.0, "the driver keeps the GPU under its temperature")]


def test_a_lock_is_found_not_to_be_followed_though_stretches_are_short() -> None:
    """Readings are 100 ms apart, and the next lock comes before the second."""
    lock = Lock(Domain.CORE)
    told = [_read(lock, 0.1 * step, 1800) for step in range(11)]

    assert told == [False] * 10 + [True]


def test_a_lock_that_is_followed_later_than_believed_is_no_such() -> None:
    lock = Lock(Domain.CORE)
    for step in range(40):
        _read(lock, 0.1 * step, 900 if step % 3 == 0 else 1800)
        assert lock.state is not LockState.OVERRULED


def _read(lock: Lock, at_s: float, mhz: int) -> bool:
    """Hold a clock for 50 ms, and see another once; return whether that is told."""
    lock.ask(900, at_s)
    lock.accept(at_s, at_s + 0.01)
    changed = lock.observe(Clocks(core_mhz=mhz), NO_REASON, at_s + 0.02)
    overruled = changed and lock.state is LockState.OVERRULED
    lock.ask(None, at_s + 0.05)
    lock.accept(at_s + 0.05, at_s + 0.06)
    return overruled


@given(
    looks=st.lists(st.floats(0.1, 5.0), min_size=8, max_size=40),
    factor=st.sampled_from([0.33, 1.0, 2.5]),
    held=st.booleans(),
)
def test_whoever_looks_late_knows_how_many_steps_ended(
    looks: list[float], factor: float, *, held: bool
) -> None:
    """Two marks a step tell by themselves no step from three."""
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


@pytest.mark.parametrize("first", [5, 6])
def test_steps_that_nobody_counts_are_told_once(first: int) -> None:
    """A graph has the marks: as an eager step's, or counted from a word that nobody writes."""
    machine = Machine(table_of(marks=(0, 4)))
    for step in range(3):
        machine.saw(1, 0.08 * step, first)
        machine.saw(2, 0.08 * step + 0.04, 5)

    assert [step.counted for step in machine.passed()] == [False, False]
    assert [text for _, text in machine.events if "not counted" in text]
    assert len(machine.events) == 1


def test_one_mark_a_step_will_do_where_steps_are_numbered() -> None:
    player = played((0,))
    for number in range(5):
        began_s = player.now_s
        player.machine.saw(1, began_s, number)
        player.run(began_s + 0.08)

    lead_s = CALL_S + DELAY_S
    assert player.asked(began_s) == [
        (pytest.approx(0.04 - lead_s), 1500),
        (pytest.approx(0.08 - lead_s), 900),
    ]
    passed = player.machine.passed()
    assert [step.time_s for step in passed] == pytest.approx([0.08] * 4)
    assert [step.steps for step in passed] == [1] * 4
