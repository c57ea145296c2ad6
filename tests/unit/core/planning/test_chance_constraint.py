"""A time budget that holds with confidence: no choice overruns it, and little of it is unused."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Ints
from underclock.core.model.predicted_change import ONE_SIDED, PredictedChange
from underclock.core.planning.chance_constraint import Candidate, room, within_confidence
from underclock.core.planning.under_cap import Proof
from underclock.records import Status

_ANY = Proof(status=Status.OPTIMAL, gap=0.0)


def candidate(setting: int) -> Candidate:
    return Candidate(setting=np.array([setting]), proof=_ANY)


@dataclass(frozen=True)
class Risk:
    """Says what a table of changes says of one kernel's setting."""

    of: Callable[[int], PredictedChange]

    def predicted_change(self, setting: Ints) -> PredictedChange:
        return self.of(int(setting[0]))


@given(
    st.floats(-0.05, 0.2),
    st.lists(
        st.tuples(st.floats(-0.2, 0.3), st.floats(-0.5, 0.5), st.floats(0.0, 0.1)), max_size=8
    ),
)
def test_no_choice_overruns_the_budget(
    budget: float, menu: list[tuple[float, float, float]]
) -> None:
    def choose(aim: float) -> Candidate | None:
        within = [i for i, (time, _, _) in enumerate(menu) if time <= aim]
        return candidate(min(within, key=lambda i: menu[i][1])) if within else None

    def change(setting: int) -> PredictedChange:
        time, energy, spread = menu[setting]
        return PredictedChange(
            time_change=time, energy_change=energy, time_spread=spread, energy_spread=0.0
        )

    kept = within_confidence(budget, choose, Risk(change))
    if kept is not None:
        time, _, spread = menu[int(kept.setting[0])]
        assert time + ONE_SIDED * spread <= budget + 1e-5
    elif menu:
        time, _, spread = min(menu, key=lambda each: each[1])
        assert time + ONE_SIDED * spread > budget - 1e-6 or time > budget


@given(st.floats(0.0, 0.05), st.floats(0.0, 0.01))
def test_room_is_kept_for_half_of_the_tolerance_as_expected_and_all_with_confidence(
    spread: float, tolerance: float
) -> None:
    least = room(spread, tolerance)

    assert -least <= 0.5 * tolerance
    assert ONE_SIDED * spread - least <= tolerance + 1e-12
    assert room(spread, 0.0) == ONE_SIDED * spread
    assert least in {ONE_SIDED * spread - tolerance, -0.5 * tolerance}


@given(st.floats(0.0, 0.2), st.floats(0.0, 0.002), st.just(0.001))
def test_a_tolerance_is_used_where_every_time_can_be_had(
    budget: float, spread: float, tolerance: float
) -> None:
    def change(setting: int) -> PredictedChange:
        return PredictedChange(
            time_change=setting / 1e9,
            energy_change=-float(setting),
            time_spread=spread,
            energy_spread=0.0,
        )

    def choose(aim: float) -> Candidate:
        return candidate(int(1e9 * aim))

    kept = within_confidence(budget, choose, Risk(change), tolerance)

    assert kept is not None
    expected = budget - room(spread, tolerance)
    assert kept.setting[0] / 1e9 <= expected + 1e-6
    assert kept.setting[0] / 1e9 == pytest.approx(expected, abs=0.2 * spread + 1e-4)


@given(st.floats(0.0, 0.2), st.floats(0.0, 0.05))
def test_where_every_time_can_be_had_almost_all_of_the_budget_is_used(
    budget: float, spread: float
) -> None:
    def change(setting: int) -> PredictedChange:
        return PredictedChange(
            time_change=setting / 1e9,
            energy_change=-float(setting),
            time_spread=spread,
            energy_spread=0.0,
        )

    kept = within_confidence(budget, lambda aim: candidate(round(1e9 * aim)), Risk(change))

    assert kept is not None
    assert kept.setting[0] / 1e9 == pytest.approx(
        budget - ONE_SIDED * spread, abs=0.2 * spread + 1e-5
    )


@pytest.mark.parametrize(("later_energy", "expected"), [(-0.04, 1), (-0.12, 2)])
def test_of_the_choices_that_keep_the_budget_the_one_of_least_energy_is_taken(
    later_energy: float, expected: int
) -> None:
    def choose(aim: float) -> Candidate:
        # The first aim is the budget; the next one leaves room, so that a third one is tried.
        return candidate(0 if aim >= 0.05 else 2 if aim > 0.03 else 1)

    def change(setting: int) -> PredictedChange:
        time, energy, spread = [(0.05, -0.2, 0.02), (0.0, -0.08, 0.001), (0.03, later_energy, 0.0)][
            setting
        ]
        return PredictedChange(
            time_change=time, energy_change=energy, time_spread=spread, energy_spread=0.0
        )

    kept = within_confidence(0.05, choose, Risk(change))

    assert kept is not None
    assert kept.setting.tolist() == [expected]
