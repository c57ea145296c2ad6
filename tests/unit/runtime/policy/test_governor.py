"""The governor as a server and a GPU see it: what is said, and which clocks are asked for when."""

import itertools
import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from invented import SERVING_PLAN as PLAN
from underclock.records import AUTO, Clocks, Pass
from underclock.records.serving import ServingPlan
from underclock.runtime.controller.governor import CALM_S, MOST_CALM_S, Governor, Note
from underclock.runtime.trainer.notes import BEGIN, END, LATE

SLOW, MIDDLE, FAST = (Clocks(core_mhz=mhz) for mhz in (900, 1200, 1800))
LOWEST = Clocks(core_mhz=600)
LATENCY_S = 0.01


def _begin(phase: Pass, batch: int, **more: object) -> Note:
    return Note(BEGIN, phase, batch, **more)  # type: ignore[arg-type]


def _with_lower() -> ServingPlan:
    """Return the plan with a lower clock in the smallest decode's frontier than is chosen there."""
    least, *others = PLAN.buckets
    slowest = least.frontier[-1]
    lower = msgspec.structs.replace(
        slowest, clocks=LOWEST, time_s=2.0, time_interval_s=(2.0, 2.0), energy_j=1.0,
        energy_interval_j=(1.0, 1.0),
    )  # fmt: skip
    more = msgspec.structs.replace(least, frontier=(*least.frontier, lower))
    return msgspec.structs.replace(PLAN, buckets=(more, *others))


def _asked(
    governor: Governor, said: Sequence[tuple[float, Note]], until_s: float
) -> list[tuple[float, Clocks]]:
    """Drive it as a controller would; return what was asked for, and when."""
    asked: list[tuple[float, Clocks]] = []
    now_s, waiting = 0.0, list(said)
    while True:
        next_s = min(governor.next_s(now_s), waiting[0][0] if waiting else math.inf)
        if next_s > until_s:
            return asked
        now_s = max(now_s, next_s)
        while waiting and waiting[0][0] <= now_s:
            governor.noted(waiting.pop(0)[1], now_s)
        clocks = governor.ask(now_s)
        if clocks is not None:
            asked.append((round(now_s, 6), clocks))
            governor.changed(clocks, now_s)


def test_a_step_has_the_clocks_of_the_smallest_bucket_that_it_fits_into() -> None:
    governor = Governor(PLAN, LATENCY_S)

    asked = _asked(governor, [(1.0, _begin(Pass.DECODE, 5)), (2.0, _begin(Pass.DECODE, 9))], 3.0)

    assert asked == [(1.0 + 2 * LATENCY_S, SLOW), (2.0, MIDDLE)]


def test_clocks_go_up_at_once_and_down_after_what_a_change_and_one_back_take() -> None:
    governor = Governor(PLAN, LATENCY_S)
    said = [
        (1.0, _begin(Pass.DECODE, 5)),
        (2.0, _begin(Pass.PREFILL, 1)),
        (2.005, _begin(Pass.DECODE, 5)),
    ]

    assert _asked(governor, said, 3.0)[1:] == [(2.0, FAST), (2.005 + 2 * LATENCY_S, SLOW)]


def test_where_deadlines_are_known_the_cheapest_clocks_that_keep_them_are_held() -> None:
    governor = Governor(PLAN, 0.0)
    said = [
        (1.0, _begin(Pass.DECODE, 5, within_s=0.0135)),
        (2.0, _begin(Pass.DECODE, 5, within_s=0.5)),
        (3.0, _begin(Pass.DECODE, 5, within_s=0.0)),
    ]

    assert _asked(governor, said, 4.0) == [(1.0, MIDDLE), (2.0, SLOW), (3.0, AUTO)]


def test_an_idle_gpu_waits_at_the_clocks_of_the_smallest_decode() -> None:
    governor = Governor(PLAN, LATENCY_S)

    asked = _asked(governor, [(1.0, _begin(Pass.PREFILL, 1)), (2.0, Note(END))], 3.0)

    assert asked == [(1.02, FAST), (2.02, SLOW)]


@pytest.mark.parametrize(("within_s", "clocks"), [(0.9 * LATENCY_S, SLOW), (LATENCY_S, LOWEST)])
def test_it_sinks_to_the_lowest_where_rising_again_takes_no_longer_than_it_may(
    within_s: float, clocks: Clocks
) -> None:
    governor = Governor(_with_lower(), LATENCY_S)

    asked = _asked(
        governor, [(1.0, _begin(Pass.PREFILL, 1)), (2.0, Note(END, within_s=within_s))], 3.0
    )

    assert asked[-1] == (2.02, clocks)


def test_a_late_request_means_auto_at_once_and_for_a_while() -> None:
    governor = Governor(PLAN, LATENCY_S)

    asked = _asked(governor, [(1.0, _begin(Pass.DECODE, 5)), (2.0, Note(LATE))], 5.0)

    assert asked[1:] == [(2.0, AUTO), (2.0 + CALM_S, SLOW)]


def test_that_while_doubles_where_it_was_too_short_and_not_while_it_lasts() -> None:
    governor = Governor(PLAN, 0.0)
    governor.noted(_begin(Pass.DECODE, 5), 0.0)
    now_s, calms_s = 1.0, []
    for _ in range(9):
        for _ in range(3):  # one after the other, as in a burst
            governor.noted(Note(LATE), now_s)
        governor.changed(AUTO, now_s)
        back_s = governor.next_s(now_s)
        calms_s.append(back_s - now_s)
        now_s = back_s + 0.5

    assert calms_s == pytest.approx([min(CALM_S * 2**i, MOST_CALM_S) for i in range(9)])
    governor.noted(Note(LATE), now_s + 1000.0)  # forgiven by then
    governor.changed(AUTO, now_s + 1000.0)
    assert governor.next_s(now_s + 1000.0) == pytest.approx(now_s + 1000.0 + CALM_S)


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 0.2),
            st.sampled_from([Note(END), Note(LATE)])
            | st.builds(_begin, st.sampled_from([Pass.DECODE, Pass.PREFILL]), st.integers(1, 40)),
        ),
        max_size=60,
    ),
    st.sampled_from([1e-6, 1e-3, 6e-3, 0.15]),
)
def test_it_changes_no_faster_than_the_gpu_can_and_ends_where_it_should(
    gaps: list[tuple[float, Note]], latency_s: float
) -> None:
    governor, at_s, said = Governor(PLAN, latency_s), 0.0, []
    for gap_s, note in gaps:
        at_s += gap_s
        said.append((at_s, note))

    asked = _asked(governor, [*said, (at_s + 100.0, _begin(Pass.DECODE, 5))], at_s + 200.0)

    times_s = [each_s for each_s, _ in asked]
    assert all(b - a >= latency_s - 2e-6 for a, b in itertools.pairwise(times_s))
    assert governor.asked == SLOW
