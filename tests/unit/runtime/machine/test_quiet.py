"""No call is made while a GPU communicates: driven by a step played on a time of its own."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playing import CALL_S, Player, state, table_of, usual
from underclock.records import AUTO
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import State

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
    usual_s = usual(player.machine.timetable)
    player.steps(3, usual_s)
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
    usual_s = usual(player.machine.timetable)
    player.steps(3, usual_s)
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
    quiet = tuple((at, at + 1) for at in sorted(spans))
    player = _player(quiet, call_s=1e-3 * call_ms)
    usual_s = usual(player.machine.timetable)
    for _ in range(8):  # until it has learned how long calls take
        player.step(usual_s)
    since_s = player.now_s
    assert not _disturbed(player, 8)
    assert {ask.to_mhz for at_s, ask in player.calls if at_s >= since_s} == {900, 1500}


def test_what_a_rank_computes_is_told_apart_from_what_it_waits() -> None:
    table = dataclasses.replace(table_of(), busy=frozenset({0, 1, 4, 5}))
    player = Player(Machine(table))
    lasts_s = [0.01, 0.012, 0.05, 0.03, 0.01, 0.013, 0.002, 0.01]
    player.steps(3, lasts_s)
    assert [step.busy_s for step in player.machine.passed()] == [pytest.approx(0.045)] * 3
