"""How far errors can be believed: rows that are left out, disturbed ones, chosen ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.model.left_out import LeftOut, Selection

_K, _N = 8, 6


def _left_out(error: Floats, variance: float = 1e-4) -> LeftOut:
    """Return rows that are so far off, of time and energy. Shape (2, K, n)."""
    there = np.ones(error.shape, dtype=bool)
    return LeftOut(there=there, error=error, variance=np.full(error.shape, variance))


@given(st.integers(0, 100), st.floats(0.2, 5.0))
def test_errors_are_widened_until_rows_left_out_hold_as_they_should(seed: int, size: float) -> None:
    off = size * np.random.default_rng(seed).standard_t(3, (2, 40, 25))
    left_out = _left_out(off, 1.0)

    for q in (0, 1):
        factor = left_out.factor(q)
        inside = np.mean(np.abs(off[q]) <= 1.96 * factor)
        assert factor >= 1.0
        assert inside == pytest.approx(0.97, abs=2e-3) or (factor == 1.0 and inside > 0.97)


def test_of_few_rows_nothing_is_learned() -> None:
    few = _left_out(np.full((2, 3, _N), 0.5))

    assert few.factor(0) == 1.0
    assert Selection.of(few, np.zeros((2, 3, _N)), (1.0, 1.0)) == Selection()
    # Nor of kernels with a row each, which leave nothing to choose.
    lone = _left_out(np.full((2, 30, 1), 0.5))
    assert Selection.of(lone, np.zeros((2, 30, 1)), (1.0, 1.0)) == Selection()


@pytest.mark.parametrize(("time", "energy"), [(0.5, 0.5), (-0.33, 0.0), (0.0, 0.8)])
def test_a_row_that_was_disturbed_is_odd_and_no_other(time: float, energy: float) -> None:
    error = np.random.default_rng(1).normal(0.0, 0.01, (2, _K, _N))
    error[:, 2, 3] += time, energy
    odd = _left_out(error).odd

    assert np.argwhere(odd).tolist() == [[2, 3]]
    rest = _left_out(error).without(odd)
    assert not rest.there[:, 2, 3].any()
    assert not rest.odd.any()


def test_a_row_that_is_far_off_where_little_is_known_is_not_odd() -> None:
    error = np.zeros((2, _K, _N))
    error[:, 2, 3] = 0.5

    assert not _left_out(error, 0.3**2).odd.any()


def _drawn(seed: int, shared: float = 0.0) -> tuple[LeftOut, Floats]:
    """Return rows as unsure as they are said to be, and what was measured there."""
    random = np.random.default_rng(seed)
    error = random.normal(0.0, 0.01, (2, 40, 10)) + shared
    expected = random.normal(0.0, 0.02, (2, 40, 10))
    return _left_out(error), expected + error


def test_chosen_rows_are_off_by_no_more_where_others_are_expected_at_random() -> None:
    found = [Selection.of(*_drawn(seed), (1.0, 1.0)) for seed in range(20)]

    deviations = np.array([each.deviations for each in found])
    assert deviations.min() >= 0.0
    assert deviations.mean() < 0.15
    assert np.mean([each.wider for each in found]) < 1.2


def test_what_chosen_rows_cost_more_together_is_learned() -> None:
    found = Selection.of(*_drawn(0, shared=0.02), (1.0, 2.0))

    assert found.deviations[0] == pytest.approx(2.0, abs=0.3)
    # Errors that are widened already need fewer of them.
    assert found.deviations[1] == pytest.approx(1.0, abs=0.2)
