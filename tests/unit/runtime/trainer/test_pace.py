"""What a server's pace allows, as its requests meet it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.runtime.trainer.notes import Pace


def test_a_step_may_take_what_the_request_with_least_slack_has_left() -> None:
    pace = Pace(0.1)
    pace.began("one", 0.0)
    for _ in range(4):
        pace.stepped()
    pace.began("two", 0.05)

    # Less than the target is aimed at, 0.07 s a token, and two tokens ahead: the first request,
    # which makes its fifth, has until the third would be due, the second has no slack yet.
    assert pace.within_s(0.05) < 0.0
    pace.ended("two", 0.06)  # it made no token, so that nothing is told of it
    assert pace.within_s(0.15) == pytest.approx(3 * 0.07 - 0.15)
    assert pace.within_s(0.05) == pytest.approx(0.1)  # no step is slower than the target
    assert pace.within_s(0.3) < 0.0


def test_a_prompt_may_take_what_waiting_left_unless_others_wait() -> None:
    pace = Pace(0.1, 1.0)

    assert pace.rise_s() == pytest.approx(0.7)
    assert Pace(0.1).rise_s() == 0.0
    assert pace.first_within_s(0.0, 0.3, 0) == pytest.approx(0.4)
    assert pace.first_within_s(0.0, 0.3, 1) == 0.0
    assert Pace(0.1).first_within_s(0.0, 0.0, 0) == 0.0


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([0.9, 0.99]))
def test_as_many_are_in_time_as_are_to_be(seed: int, quantile: float) -> None:
    """Requests take what is aimed at and a chance more, as prompts in between have it."""
    draw, pace, late, count = (
        np.random.default_rng(seed),
        Pace(1.0, 1.0, quantile=quantile),
        0,
        2000,
    )
    now_s = 0.0
    for number in range(count):
        pace.began(number, now_s, pace.rise_s() * draw.lognormal(0.0, 0.2))
        pace.stepped()
        took_s = pace.within_s(now_s) * draw.lognormal(0.0, 0.2)
        now_s += took_s
        pace.ended(number, now_s)
        late += took_s > 1.0 and number >= count // 2

    assert late / (count / 2) < 2.0 * (1.0 - quantile)
    assert pace.rise_s() > 0.4  # and no more is given away than that asks for


def test_what_is_no_pace_is_refused() -> None:
    for target_s, quantile in ((0.0, 0.5), (1.0, 1.0), (float("inf"), 0.5)):
        with pytest.raises(ValueError, match="no pace"):
            Pace(target_s, quantile=quantile)
