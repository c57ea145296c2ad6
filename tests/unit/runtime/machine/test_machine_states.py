"""A machine whose step stands still, whose marks are lost, or whose clocks are not as asked for."""

import math

import pytest

from playing import (
    CALL_S,
    CAP,
    FAST,
    LAUNCH_S,
    NO_REASON,
    SLOW,
    Player,
    played,
    state,
    table_of,
    usual,
)
from underclock.records import AUTO, Clocks, ThrottleReason
from underclock.records.latencies import Domain
from underclock.runtime.machine.clock_domains import Lock, LockState
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import Ask, State


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


def _read(lock: Lock, at_s: float, mhz: int) -> bool:
    """Hold a clock for 50 ms, and see another once; return whether that is told."""
    lock.ask(900, at_s)
    lock.accept(at_s, at_s + 0.01)
    changed = lock.observe(Clocks(core_mhz=mhz), NO_REASON, at_s + 0.02)
    overruled = changed and lock.state is LockState.OVERRULED
    lock.ask(None, at_s + 0.05)
    lock.accept(at_s + 0.05, at_s + 0.06)
    return overruled
