"""Steps of ranks that wait for one another in collectives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rank_steps import RankStep, steps_s
from underclock.core.tracing.streams import Streams
from underclock.errors import DataError


def _rank(*taken_s: float, collectives: tuple[int, ...] = (), lag_s: float = 0.0) -> RankStep:
    """Return launches one after another."""
    count = len(taken_s)
    return RankStep(
        streams=Streams(
            duration_s=np.array(taken_s, dtype=np.float64),
            waits=tuple((i - 1,) if i else () for i in range(count)),
            lag_s=np.full(count, lag_s),
            order=tuple(range(count)),
        ),
        collectives=collectives,
    )


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.floats(0.0, 0.1))
def test_a_rank_alone_takes_its_longest_path(taken_s: list[float], lag_s: float) -> None:
    alone = _rank(*taken_s, lag_s=lag_s)
    assert steps_s([alone], gap_s=math.inf) == pytest.approx((alone.streams.step_s(),))
    assert steps_s([alone], gap_s=0.0) == pytest.approx((sum(taken_s),))


def test_a_collective_begins_when_the_last_rank_is_there_and_takes_what_that_one_saw() -> None:
    # The first is there after 1 s and waits 2 s of the 2.5 s that it saw.
    early = _rank(1.0, 2.5, 1.0, collectives=(1,))
    late = _rank(3.0, 0.5, 2.0, collectives=(1,))

    assert steps_s([early, late]) == pytest.approx((4.5, 5.5))
    assert steps_s([late, early]) == pytest.approx((5.5, 4.5))


@given(st.permutations(range(3)), st.floats(0.1, 2.0))
def test_no_rank_is_done_before_the_slowest_has_come_to_the_last_collective(
    order: list[int], slow_s: float
) -> None:
    ranks = [_rank(0.1, 0.2, collectives=(1,)) for _ in order]
    ranks[order[0]] = _rank(slow_s, 0.2, collectives=(1,))

    assert steps_s(ranks) == pytest.approx((max(slow_s, 0.1) + 0.2,) * 3)


def test_ranks_of_different_steps_are_refused() -> None:
    with pytest.raises(DataError, match=r"these have \[1, 0\]") as refused:
        steps_s([_rank(1.0, collectives=(0,)), _rank(1.0)])
    assert refused.value.hint


def test_ranks_that_wait_in_a_ring_are_refused() -> None:
    with pytest.raises(DataError, match="in different orders"):
        steps_s([_rank(1.0, 1.0, collectives=(0, 1)), _rank(1.0, 1.0, collectives=(1, 0))])
