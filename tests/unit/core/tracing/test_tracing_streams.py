"""What waits for what on several streams, and what could take longer for nothing."""

import dataclasses
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.tracing.streams import Streams, beside_note, streams, with_shares
from underclock.records import Pass
from underclock.records.work import NodeKind, TracedActivity


def _launch(
    start_s: float, end_s: float, stream: int, pass_: Pass = Pass.BACKWARD
) -> TracedActivity:
    return TracedActivity(
        kind=NodeKind.KERNEL,
        start_s=start_s,
        duration_s=end_s - start_s,
        stream=stream,
        pass_=pass_,
    )


_COMPUTE, _NETWORK = 7, 20


@st.composite
def _profiles(draw: st.DrawFn) -> tuple[TracedActivity, ...]:
    """Draw launches on up to three streams, those of one after another."""
    launches = []
    for stream in range(draw(st.integers(1, 3))):
        now_s = draw(st.floats(0.0, 5.0))
        for _ in range(draw(st.integers(1, 6))):
            now_s += draw(st.sampled_from([0.0, 0.0, 0.5, 2.0]))
            end_s = now_s + draw(st.floats(0.1, 3.0))
            launches.append(_launch(now_s, end_s, stream))
            now_s = end_s
    return tuple(draw(st.permutations(launches)))


def _with(found: Streams, place: int, more_s: float) -> float:
    taken_s = found.duration_s.copy()
    taken_s[place] += more_s
    return _taking(found, taken_s)


def _taking(found: Streams, duration_s: Floats) -> float:
    return dataclasses.replace(found, duration_s=duration_s).step_s()


@given(_profiles())
def test_the_longest_path_is_the_step_as_it_was_seen(seen: Sequence[TracedActivity]) -> None:
    found = streams(seen)
    begun_s = min(one.start_s for one in seen)

    assert found.ends_s() == pytest.approx(
        [one.start_s + one.duration_s - begun_s for one in seen], abs=1e-9
    )


@given(_profiles(), st.data())
def test_a_launch_may_take_its_slack_longer_and_no_more(
    seen: Sequence[TracedActivity], data: st.DataObject
) -> None:
    found = streams(seen)
    place = data.draw(st.integers(0, len(seen) - 1))
    slack_s = float(found.slack_s()[place])

    assert slack_s >= 0.0
    assert _with(found, place, slack_s) == pytest.approx(found.step_s(), abs=1e-9)
    assert _with(found, place, slack_s + 1.0) == pytest.approx(found.step_s() + 1.0, abs=1e-9)


def test_a_copy_in_another_stream_counts_for_what_of_it_is_waited_for() -> None:
    """Two beside products, of which the second is waited for half; one among the products."""
    copies = [
        msgspec.structs.replace(_launch(begin, end, stream), kind=NodeKind.COPY)
        for begin, end, stream in ((0.0, 0.9, 13), (1.0, 3.0, 13), (3.0, 3.5, _COMPUTE))
    ]
    short = msgspec.structs.replace(_launch(0.5, 0.50005, 14), kind=NodeKind.COPY)
    seen = (_launch(0.0, 1.0, _COMPUTE), _launch(1.0, 2.0, _COMPUTE), *copies, short)
    shared = with_shares(seen)

    assert [one.waited_for for one in shared] == [1.0, 1.0, 0.0, 0.5, 1.0, 1.0]
    said = beside_note(shared) or ""
    assert said.startswith("copies take 2.9e+03 ms of the step, 1.9e+03 ms of these under other")
    both = with_shares((*seen, _launch(0.0, 0.5, _NETWORK, Pass.COMMUNICATION)))
    assert (beside_note(both) or "").startswith("collectives and copies take")


_some = st.lists(st.booleans(), min_size=18, max_size=18)


@given(_profiles(), _some)
def test_what_is_exposed_adds_up_to_what_a_step_without_it_is_shorter_by(
    seen: Sequence[TracedActivity], some: list[bool]
) -> None:
    found, apart = streams(seen), np.array(some[: len(seen)])
    exposed_s = found.exposed_s(apart)
    without_s = _taking(found, np.where(apart, 0.0, found.duration_s))

    assert math.fsum(exposed_s) == pytest.approx(found.step_s() - without_s, abs=1e-9)
    assert (exposed_s >= 0.0).all()
    assert (exposed_s <= found.duration_s + 1e-9).all()
    assert not exposed_s[~apart].any()


def test_waiting_for_another_rank_is_not_what_a_collective_takes() -> None:
    # The second of two alike waits for 2 s, and then outlasts what it runs beside by half of it.
    same = {"operator": "nccl::allreduce", "shapes": "fp32[8] to fp32[8] among 2 ranks"}
    reduced = [
        msgspec.structs.replace(_launch(begin, end, _NETWORK, Pass.COMMUNICATION), **same)
        for begin, end in ((1.0, 2.0), (4.0, 7.0))
    ]
    seen = (
        _launch(0.0, 1.0, _COMPUTE),
        _launch(1.0, 4.0, _COMPUTE),
        _launch(4.0, 4.5, _COMPUTE),
        *reduced,
    )

    assert [one.waited_for for one in with_shares(seen)] == [1.0, 1.0, 1.0, 0.0, 0.5]
    nameless = [msgspec.structs.replace(one, shapes="") for one in seen]
    assert with_shares(nameless)[4].waited_for == pytest.approx(2.5 / 3.0, abs=1e-4)
