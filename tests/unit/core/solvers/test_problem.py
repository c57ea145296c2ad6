"""What a problem refuses, and that whole numbers stand for real ones faithfully."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.solvers import Problem, Solution, infeasible
from underclock.core.solvers.hull import Quanta
from underclock.records import Status

inf, nan = math.inf, math.nan


@st.composite
def tables(draw: st.DrawFn) -> Floats:
    groups, count = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size = 10.0 ** draw(st.integers(-270, 12))
    cells = (st.just(0.0) | st.floats(1e-9, 1.0)).map(lambda share: share * size)
    row = st.lists(cells, min_size=count, max_size=count)
    return np.array(draw(st.lists(row, min_size=groups, max_size=groups)))


@pytest.mark.parametrize(
    ("time_s", "energy_j", "why"),
    [
        ([[1.0, 2.0]], [[1.0]], "need two"),
        ([1.0, 2.0], [1.0, 2.0], "need two"),
        ([[[1.0]]], [[[1.0]]], "need two"),
        ([[1.0, inf]], [[1.0, 2.0]], "both a time and an energy"),
        ([[1.0, 2.0]], [[1.0, inf]], "both a time and an energy"),
        ([[1.0, nan]], [[1.0, 2.0]], "both a time and an energy"),
        ([[1.0], [inf]], [[1.0], [inf]], "every group needs a setting"),
        (np.ones((0, 3)), np.ones((0, 3)), "every group needs a setting"),
        (np.ones((3, 0)), np.ones((3, 0)), "every group needs a setting"),
        ([[-1.0]], [[1.0]], "negative"),
        ([[1.0]], [[-1.0]], "negative"),
        ([[1.0, -inf]], [[1.0, -inf]], "negative"),
    ],
)
def test_a_table_that_is_no_problem_is_refused(time_s: object, energy_j: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Problem(time_s=np.array(time_s), energy_j=np.array(energy_j))


@settings(max_examples=30)
@given(tables())
def test_quanta_are_within_half_of_one_and_their_sums_are_exact(energy_j: Floats) -> None:
    quanta = Quanta.of(Problem(time_s=np.ones_like(energy_j), energy_j=energy_j))

    assert quanta.energy.min() >= 0
    assert int(quanta.energy.max(axis=1).sum()) <= 2**50 + len(energy_j)
    error_j = np.abs(quanta.energy / quanta.per_joule - energy_j)
    assert error_j.max() * len(energy_j) <= quanta.rounding_j + 1e-15 * energy_j.max()


@settings(max_examples=30)
@given(tables(), st.data())
def test_a_budget_that_a_choice_takes_exactly_admits_it(
    time_s: Floats, data: st.DataObject
) -> None:
    groups, count = time_s.shape
    choice = data.draw(st.lists(st.integers(0, count - 1), min_size=groups, max_size=groups))
    rows = np.arange(groups)

    quanta = Quanta.of(
        Problem(
            time_s=time_s,
            energy_j=np.ones_like(time_s),
            budget_s=math.fsum(time_s[rows, choice]),
        )
    )

    assert int(quanta.time[rows, choice].sum()) <= quanta.budget


def test_the_gap_is_what_the_energy_may_be_above_the_optimum() -> None:
    def gap(energy_j: float, bound_j: float) -> float | None:
        return Solution(
            status=Status.BOUNDED,
            choice=np.zeros(1, dtype=np.int64),
            time_s=1.0,
            energy_j=energy_j,
            bound_j=bound_j,
        ).gap

    assert gap(100.0, 99.0) == pytest.approx(0.01)
    assert gap(100.0, 100.0) == 0.0
    assert gap(0.0, 0.0) == 0.0
    assert infeasible().gap is None
