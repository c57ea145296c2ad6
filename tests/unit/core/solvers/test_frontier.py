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
def test_the_frontier_falls_through_costs_of_choices_and_none_is_below_it(
    problem: Problem,
) -> None:
    time_s, energy_j = supported(problem)
    rows = np.arange(len(problem.time_s))

    assert (np.diff(time_s) > 0).all()
    assert (np.diff(energy_j) < 0).all()
    assert time_s[0] == pytest.approx(problem.time_s.min(axis=1).sum())
    assert energy_j[-1] == pytest.approx(problem.energy_j.min(axis=1).sum())
    missed = set(range(len(time_s)))
    for choice in itertools.product(range(problem.time_s.shape[1]), repeat=len(rows)):
        takes_s, takes_j = (each[rows, choice].sum() for each in (problem.time_s, problem.energy_j))
        assert takes_j >= np.interp(takes_s, time_s, energy_j) * (1 - 1e-12)
        near = np.isclose(time_s, takes_s, rtol=1e-9) & np.isclose(energy_j, takes_j, rtol=1e-9)
        missed -= set(np.flatnonzero(near).tolist())
    assert not missed  # each is the cost of a choice


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
