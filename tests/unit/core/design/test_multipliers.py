"""What a second is worth where a limit is just kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats
from underclock.core.design.sample_value import multiplier_within

_SETTINGS = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(1.0, 100.0)), min_size=4, max_size=4)
_TABLES = st.lists(_SETTINGS, min_size=3, max_size=3)


def _costs(table: list[list[tuple[float, float]]]) -> tuple[Floats, Floats]:
    costs = np.array(table)
    return costs[:, :, 0], costs[:, :, 1]


def _taken(time_s: Floats, energy_j: Floats, multiplier: float) -> tuple[float, float]:
    at = np.arange(len(time_s)), np.argmin(energy_j + multiplier * time_s, axis=1)
    return float(time_s[at].sum()), float(energy_j[at].sum())


@given(_TABLES, st.floats(0.0, 0.5))
def test_a_limit_of_time_is_kept_and_a_looser_one_costs_less(
    table: list[list[tuple[float, float]]], slack: float
) -> None:
    time_s, energy_j = _costs(table)
    fastest_s = float(time_s.min(axis=1).sum())
    tight, loose = (
        multiplier_within(time_s, energy_j, fastest_s * (1.01 + more))
        for more in (slack, slack + 0.2)
    )

    assert tight >= loose >= 0
    if tight < 0.99 * 100.0 * float((energy_j / time_s).max()):  # else nobody pays so much
        assert _taken(time_s, energy_j, tight)[0] <= fastest_s * (1.01 + slack)


def test_what_cannot_be_chosen_plays_no_part() -> None:
    time_s, energy_j = np.array([[1.0, np.inf, 2.0]]), np.array([[10.0, np.inf, 4.0]])

    assert multiplier_within(time_s, energy_j, 1.5) == pytest.approx(6.0)
    assert multiplier_within(time_s, energy_j, 2.0) == pytest.approx(0.0, abs=1e-6)
