"""For how much of a step the GPU waits for the host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.tracing.host_bound import busy_s, told_of_host
from underclock.records.launches import NodeKind, TracedActivity


def _launches(*spans_s: tuple[float, float]) -> list[TracedActivity]:
    return [
        TracedActivity(kind=NodeKind.KERNEL, start_s=begin_s, duration_s=end_s - begin_s)
        for begin_s, end_s in spans_s
    ]


SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda one: (one[0], one[0] + one[1]))
)


def test_launches_side_by_side_are_busy_once() -> None:
    assert busy_s(_launches((2.0, 3.0), (0.0, 1.0), (0.5, 0.75), (2.5, 3.5))) == 2.5
    assert busy_s([]) == 0.0


@given(SPANS)
def test_the_gpu_is_busy_whenever_any_launch_runs(spans: list[tuple[int, int]]) -> None:
    busy = {second for begin, end in spans for second in range(begin, end)}
    assert busy_s(_launches(*spans)) == len(busy)


def test_a_step_that_waits_for_its_host_says_so() -> None:
    launches = _launches((0.0, 0.010), (0.020, 0.030))
    words = told_of_host(launches, 0.040)
    assert words is not None
    assert words.startswith("the GPU waits for the host for 50% of the step, which takes 40 ms")
    assert words.endswith("launches, which take 20 ms")


@pytest.mark.parametrize("step_s", [0.0221, 0.020, 0.015, None])
def test_a_step_that_the_gpu_bounds_says_nothing(step_s: float | None) -> None:
    assert told_of_host(_launches((0.0, 0.010), (0.020, 0.030)), step_s) is None
