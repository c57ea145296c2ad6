"""Promises against what came of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.statistics.promises import Outcomes, halves, mean_of, share_of


@given(st.lists(st.integers(2, 6), min_size=1, max_size=20), st.integers(0, 1000))
def test_each_half_has_a_run_of_every_row(taken: list[int], seed: int) -> None:
    row = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(taken)), taken))

    first = halves(row, np.random.default_rng(seed))

    mine = np.bincount(row[first], minlength=len(taken))
    assert (np.abs(2 * mine - np.array(taken)) <= 1).all()


def test_a_run_too_many_goes_to_either_half_alike() -> None:
    row = np.repeat(np.arange(2000), 3)
    first = halves(row, np.random.default_rng(0))

    assert first.mean() == pytest.approx(0.5, abs=0.02)
    # And any of the three may be it.
    assert first.reshape(-1, 3).mean(axis=0) == pytest.approx([0.5] * 3, abs=0.05)


def _outcomes(executed: float, *, promised: float = 0.0, noise: float = 0.01) -> Outcomes:
    return Outcomes(
        promised=np.array([promised]),
        spread=np.array([0.01]),
        executed=np.array([executed]),
        noise=np.array([noise]),
    )


@pytest.mark.parametrize(("executed", "covered"), [(0.027, True), (-0.027, True), (0.028, False)])
def test_both_errors_count_for_coverage(executed: float, covered: bool) -> None:  # noqa: FBT001
    assert _outcomes(executed).covered.tolist() == [covered]


def test_a_budget_breaks_beyond_the_noise_only() -> None:
    assert _outcomes(0.026).breaks(0.01).tolist() == [False]
    assert _outcomes(0.027).breaks(0.01).tolist() == [True]
    assert _outcomes(0.01, noise=0.0).breaks(0.01).tolist() == [False]
    assert _outcomes(-0.1, promised=-0.2).bias[0] == pytest.approx(-0.1)


def test_intervals_are_student_s_and_wilson_s() -> None:
    mean = mean_of(np.array([1.0, 2.0, 3.0]))
    assert (mean.value, mean.low, mean.high) == pytest.approx((2.0, -0.484, 4.484), abs=1e-3)
    alone = mean_of(np.array([1.0]))
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    share = share_of(np.array([True] * 10))
    assert (share.value, share.low, share.high) == pytest.approx((1.0, 0.722, 1.0), abs=1e-3)
