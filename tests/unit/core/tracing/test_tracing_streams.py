"""What waits for what on several streams, and what could take longer for nothing."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.tracing.lockstep import told_of_collectives
from underclock.core.tracing.streams import Streams, streams
from underclock.records import Pass
from underclock.records.launches import NodeKind, TracedActivity


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
_DDP = (  # three products; the first's gradient is reduced beside the others, then all is applied
    _launch(100.0, 101.0, _COMPUTE),
    _launch(101.0, 103.0, _COMPUTE),
    _launch(101.0, 102.0, _NETWORK, Pass.COMMUNICATION),
    _launch(103.0, 103.5, _NETWORK, Pass.COMMUNICATION),
    _launch(103.5, 104.5, _COMPUTE, Pass.OPTIMIZER),
)


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
    return found.step_s(taken_s)


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


@given(_profiles())
def test_something_has_no_slack(seen: Sequence[TracedActivity]) -> None:
    assert streams(seen).slack_s().min() == pytest.approx(0.0, abs=1e-9)


@given(_profiles(), st.lists(st.floats(0.0, 2.0), min_size=18, max_size=18))
def test_no_launch_that_takes_longer_makes_the_step_shorter(
    seen: Sequence[TracedActivity], more_s: list[float]
) -> None:
    found = streams(seen)
    assert found.step_s(found.duration_s + more_s[: len(seen)]) >= found.step_s() - 1e-9


@given(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=8))
def test_one_stream_leaves_no_slack_and_takes_the_sum(durations_s: list[float]) -> None:
    ends = np.cumsum(durations_s)
    seen = [_launch(end - s, end, 0) for s, end in zip(durations_s, ends, strict=True)]
    found = streams(seen)

    assert found.slack_s() == pytest.approx(np.zeros(len(seen)), abs=1e-9)
    assert found.step_s(2.0 * found.duration_s) == pytest.approx(2.0 * ends[-1])


def test_a_collective_beside_the_backward_pass_could_take_longer() -> None:
    found = streams(_DDP)

    assert found.waits == ((), (0,), (0,), (1, 2), (1, 3))
    assert found.slack_s() == pytest.approx([0.0, 0.0, 1.0, 0.0, 0.0])
    assert found.step_s() == pytest.approx(4.5)


def test_a_wait_that_was_over_already_is_known_only_where_it_is_listed() -> None:
    seen = (
        _launch(0.0, 1.0, _COMPUTE),
        _launch(0.0, 0.5, _NETWORK, Pass.COMMUNICATION),
        _launch(1.0, 2.0, _COMPUTE),
    )

    assert streams(seen).slack_s()[1] == pytest.approx(1.5)
    assert streams(seen, [(2, 1)]).slack_s()[1] == pytest.approx(0.5)
    assert streams(seen, [(1, 2)]).waits == streams(seen).waits  # none waits for what comes later


def test_of_nothing_nothing_is_said() -> None:
    assert streams(()).step_s() == 0.0
    assert not len(streams(()).slack_s())
    assert told_of_collectives(()) is None
    assert told_of_collectives(_DDP[:2]) is None


def test_it_is_said_how_much_of_the_collectives_is_off_the_critical_path() -> None:
    assert told_of_collectives(_DDP) == (
        "collectives take 1.5e+03 ms of the step, 1e+03 ms of these off its critical path: they "
        "could take 1e+03 ms longer at most; where the host keeps ahead, it takes 4.5e+03 ms"
    )
    assert told_of_collectives((*_DDP[:2], *_DDP[3:])) == (
        "the step waits for all of its collectives; where the host keeps ahead, it takes 4.5e+03 ms"
    )
