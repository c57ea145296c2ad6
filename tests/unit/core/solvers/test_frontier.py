"""The supported frontier and the objectives that lie on it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.solvers import Problem, least_product, subsampled, supported


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw costs that are positive, as EDP needs them."""
    groups, count = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    cells = st.integers(1, draw(st.sampled_from([4, 1000]))).map(lambda cell: cell * 1e-3)
    row = st.lists(cells, min_size=count, max_size=count)
    rows = st.lists(row, min_size=groups, max_size=groups)
    return Problem(time_s=np.array(draw(rows)), energy_j=np.array(draw(rows)))


@given(problems())
def test_the_frontier_falls_from_the_fastest_to_the_cheapest_and_no_choice_is_below_it(
    problem: Problem,
) -> None:
    time_s, energy_j = supported(problem)
    rows = np.arange(len(problem.time_s))

    assert (np.diff(time_s) > 0).all()
    assert (np.diff(energy_j) < 0).all()
    assert time_s[0] == pytest.approx(problem.time_s.min(axis=1).sum())
    assert energy_j[-1] == pytest.approx(problem.energy_j.min(axis=1).sum())
    for choice in itertools.product(range(problem.time_s.shape[1]), repeat=len(rows)):
        least_j = np.interp(problem.time_s[rows, choice].sum(), time_s, energy_j)
        assert problem.energy_j[rows, choice].sum() >= least_j * (1 - 1e-12)


@pytest.mark.untraced
@given(problems(), st.sampled_from([1, 2]))
def test_the_least_product_is_that_of_all_choices(problem: Problem, power: int) -> None:
    rows = np.arange(len(problem.time_s))
    least = min(
        problem.energy_j[rows, choice].sum() * problem.time_s[rows, choice].sum() ** power
        for choice in itertools.product(range(problem.time_s.shape[1]), repeat=len(rows))
    )

    solution = least_product(problem, power=power)

    assert solution.energy_j * solution.time_s**power == pytest.approx(least, rel=1e-12)
    assert solution.gap == 0.0


# Ties, because two trades may round to one time.
@settings(max_examples=30)
@given(
    st.lists(st.floats(1.0, 2.0) | st.sampled_from([1.0, 2.0]), min_size=1, max_size=200),
    st.integers(2, 50),
)
def test_a_thinned_frontier_keeps_both_ends_and_invents_nothing(
    times: list[float], most: int
) -> None:
    time_s, energy_j = np.sort(np.array(times)), np.linspace(2.0, 1.0, len(times))

    few_s, few_j = subsampled(time_s, energy_j, most)

    assert len(few_s) == len(few_j) <= most
    assert (few_s[0], few_j[0]) == (time_s[0], energy_j[0])
    assert (few_s[-1], few_j[-1]) == (time_s[-1], energy_j[-1])
    assert (np.diff(few_j) < 0).all()
    points = set(zip(time_s.tolist(), energy_j.tolist(), strict=True))
    assert set(zip(few_s.tolist(), few_j.tolist(), strict=True)) <= points


@settings(max_examples=30)
@given(st.integers(2, 200))
def test_a_frontier_that_is_short_enough_is_kept_whole(count: int) -> None:
    time_s, energy_j = np.arange(1.0, count + 1.0), np.arange(count, 0.0, -1.0)

    few_s, few_j = subsampled(time_s, energy_j, count)

    assert few_s.tolist() == time_s.tolist()
    assert few_j.tolist() == energy_j.tolist()


def test_a_straight_frontier_needs_its_ends_only() -> None:
    time_s = np.arange(64.0)

    few_s, few_j = subsampled(time_s, time_s[::-1], 10)

    assert few_s.tolist() == [0.0, 63.0]
    assert few_j.tolist() == [63.0, 0.0]


@given(st.integers(3, 20), st.floats(0.01, 0.5))
def test_a_bent_frontier_is_missed_by_less_than_points_even_in_time_would(
    most: int, bend: float
) -> None:
    time_s = np.linspace(0.0, 1.0, 2001)
    energy_j = bend / (bend + time_s)  # falls steeply first, as lent time does
    even = np.linspace(0, 2000, most).astype(np.int64)

    few_s, few_j = subsampled(time_s, energy_j, most)

    missed_j = (np.interp(time_s, few_s, few_j) - energy_j).max()
    evenly_j = (np.interp(time_s, time_s[even], energy_j[even]) - energy_j).max()
    assert 0.0 < missed_j <= evenly_j * (1 + 1e-9)


def test_two_hundred_points_draw_a_frontier_of_many_trades() -> None:
    random = np.random.default_rng(1)
    problem = Problem(time_s=random.random((500, 20)) + 0.1, energy_j=random.random((500, 20)) + 1)
    time_s, energy_j = supported(problem)

    few_s, few_j = subsampled(time_s, energy_j, 200)

    missed_j = (np.interp(time_s, few_s, few_j) - energy_j).max()
    assert len(time_s) > 900
    assert missed_j < 2e-5 * energy_j[0]
