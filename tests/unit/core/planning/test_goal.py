"""Goals: what may be asked for, as what, and what a plan says it was made for."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invented import with_plan
from underclock.core.planning.best_choice import Goal
from underclock.records import Aggregate, Granularity, Objective


@pytest.mark.parametrize("max_slowdown", [-1.0, -2.0, 1, 1.0, 3, math.inf, math.nan])
def test_a_budget_no_step_can_have_is_refused(max_slowdown: float) -> None:
    with pytest.raises(ValueError, match=r"max_slowdown must be a fraction.*0\.01 for 1 %"):
        Goal(max_slowdown=max_slowdown)


def test_choices_may_be_given_as_text_and_are_refused_where_unknown() -> None:
    text: dict[str, Any] = {"objective": "energy", "granularity": "pass", "aggregate": "local"}
    goal = Goal(**text)

    assert goal.objective is Objective.ENERGY
    assert goal == Goal(
        objective=Objective.ENERGY, granularity=Granularity.PASS, aggregate=Aggregate.LOCAL
    )
    for name in text:
        unknown: dict[str, Any] = {name: "foo"}
        with pytest.raises(ValueError, match=f"unknown {name} 'foo'; known: "):
            Goal(**unknown)


@given(
    st.sampled_from(Granularity),
    st.sampled_from(Aggregate),
    st.sampled_from(Objective),
    st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.9]),
)
def test_the_goal_of_a_plan_is_found_in_it(
    granularity: Granularity, aggregate: Aggregate, objective: Objective, budget: float
) -> None:
    waste = objective is Objective.WASTE
    goal = Goal(
        objective=objective,
        granularity=granularity,
        aggregate=aggregate,
        max_slowdown=budget if waste else 0.0,
    )
    made = with_plan(
        objective=goal.objective,
        max_slowdown=goal.max_slowdown if waste else None,
        granularity=goal.granularity,
        aggregate=goal.aggregate,
    )

    assert Goal.of(made) == goal
