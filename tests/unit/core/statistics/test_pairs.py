"""All pairs of repeats of two arms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.statistics.pairs import count_within, pair_changes, spread

totals = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12)


@given(totals, totals)
def test_every_run_of_one_arm_meets_every_run_of_the_other(
    auto: list[float], plan: list[float]
) -> None:
    changes = pair_changes(np.array(auto), np.array(plan))

    assert changes.shape == (len(auto), len(plan))
    for i, base in enumerate(auto):
        for j, new in enumerate(plan):
            assert base * (1.0 + changes[i, j]) == pytest.approx(new)


@given(totals)
def test_an_arm_against_itself_changes_nothing_on_the_diagonal(auto: list[float]) -> None:
    changes = pair_changes(np.array(auto), np.array(auto))

    assert np.diag(changes) == pytest.approx(0.0)


@given(totals, totals, st.floats(0.1, 10.0))
def test_the_unit_of_both_arms_does_not_matter(
    auto: list[float], plan: list[float], unit: float
) -> None:
    changes = pair_changes(np.array(auto), np.array(plan))

    scaled = pair_changes(np.array(auto) * unit, np.array(plan) * unit)

    assert scaled == pytest.approx(changes, rel=1e-9, abs=1e-9)


@given(totals, totals)
def test_the_spread_encloses_its_mean_and_every_pair(auto: list[float], plan: list[float]) -> None:
    changes = pair_changes(np.array(auto), np.array(plan))

    extremes = spread(changes)

    assert extremes.best <= extremes.mean + 1e-9
    assert extremes.mean <= extremes.worst + 1e-9
    assert count_within(changes, extremes.worst) == changes.size
    assert count_within(changes, extremes.best) >= 1
    assert count_within(changes, extremes.best - 1e-6) == 0


def test_a_pair_exactly_at_the_limit_is_within_it() -> None:
    changes = pair_changes(np.array([3.0, 1.0]), np.array([3.3, 1.0]))

    assert count_within(changes, 0.1) == 3  # 3.3 / 3 - 1 is a little above 0.1 in floats
    assert count_within(changes, 0.0) == 2
