"""What the machine asks for and when, driven by a step played on a time of its own."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from playing import (
    CALL_S,
    DELAY_S,
    FAST,
    NO_REASON,
    SLOW,
    Player,
    played,
    switches,
    table_of,
    usual,
)
from underclock.records import Clocks
from underclock.records.latencies import Domain
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import PassedStep, State


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
