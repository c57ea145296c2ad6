"""The rules of a sequence with switches, and what a schedule costs."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_switches import sequence
from underclock.core.solvers import SequenceProblem, costed, once_through, violations
from underclock.core.solvers.problems import DWELL_SLACK


def two_kernels(**changes: Any) -> SequenceProblem:
    """Return four invocations of two kernels at two settings, with some fields changed."""
    usual: dict[str, Any] = {
        "time_s": np.array([[1.0, 2.0], [3.0, 5.0]]),
        "energy_j": np.array([[4.0, 1.0], [9.0, 7.0]]),
        "order": np.array([0, 1, 0, 1]),
        "switch_time_s": np.array([[0.0, 0.25], [0.5, 0.0]]),
        "switch_energy_j": np.array([[0.0, 0.125], [2.0, 0.0]]),
    }
    return sequence(**(usual | changes))


def test_a_round_costs_its_kernels_and_its_switches_the_wrap_included() -> None:
    cost = costed(two_kernels(), np.array([0, 0, 1, 1]))

    assert cost.time_s == 1.0 + 3.0 + 0.25 + 2.0 + 5.0 + 0.5
    assert cost.energy_j == 4.0 + 9.0 + 0.125 + 1.0 + 7.0 + 2.0
    assert cost.switches == 2


@pytest.mark.parametrize(
    ("changes", "choice", "sentence"),
    [
        ({}, [0, 0, 0], "4 invocations need as many settings"),
        ({}, [0, 0, 0, 2], "settings run from 0 to 1"),
        ({}, [0, 0, 0, -1], "settings run from 0 to 1"),
        ({"budget_s": 7.999}, [0, 0, 0, 0], "the budget is 7.999 s"),
        ({"max_switches": 1}, [0, 0, 1, 1], "2 switches, the most allowed is 1"),
        ({"blocked": np.array([True, False, True, False])}, [0, 0, 1, 1], "2 blocked boundaries"),
        ({"blocked": np.array([True, False, False, False])}, [0, 0, 0, 1], "1 blocked boundaries"),
        ({"dwell_s": np.array([[0.0, 4.01], [0.0, 0.0]])}, [0, 0, 1, 1], "1 segments are shorter"),
        ({"dwell_s": np.array([[0.0, 4.01], [7.01, 0.0]])}, [1, 0, 0, 1], "2 segments are shorter"),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, Any], choice: list[int], sentence: str) -> None:
    (broken,) = violations(two_kernels(**changes), np.array(choice))
    assert sentence in broken


def problem_from(seed: int) -> SequenceProblem:
    """Draw a few launches, some of which may not be preceded by a change."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(1, 7)), int(random.integers(1, 4))
    off = 1.0 - np.eye(count)
    time, energy = random.uniform(0.1, 5.0, (2, n, count))
    holes = (random.random(time.shape) < 0.2) & bool(random.random() < 0.5)
    holes[np.arange(n), random.integers(0, count, n)] = False
    time[holes], energy[holes] = np.inf, np.inf
    return sequence(
        time_s=time,
        energy_j=energy,
        order=np.arange(n),
        switch_time_s=random.uniform(0.0, 1.0, (count, count)) * off,
        switch_energy_j=random.uniform(0.0, 1.0, (count, count)) * off,
        dwell_s=random.choice([0.0, 3.0, 6.0], (count, count)) * off,
        blocked=random.random(n) < 0.2,
    )


def cost(problem: SequenceProblem, choice: tuple[int, ...], price_w: float) -> float:
    """Return energy and paid time of a schedule; ``inf`` where it breaks a rule."""
    known_s = np.where(np.isfinite(problem.time_s), problem.time_s, 0.0)
    costs = problem.energy_j + price_w * known_s
    changes = problem.switch_energy_j + price_w * problem.switch_time_s
    total, lasts_s = 0.0, 0.0
    for at, (here, after) in enumerate(itertools.zip_longest(choice, choice[1:])):
        total += float(costs[at, here])
        lasts_s += float(problem.time_s[at, here])
        if here == after:
            continue
        least_s = problem.dwell_s[here].max() if after is None else problem.dwell_s[here, after]
        shut = after is not None and problem.blocked[at + 1]
        if lasts_s < least_s * (1.0 - DWELL_SLACK) or shut:
            return np.inf
        total += 0.0 if after is None else float(changes[here, after])
        lasts_s = 0.0
    return total


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_nothing_is_cheaper_at_its_price(seed: int) -> None:
    problem = problem_from(seed)
    n, count = problem.time_s.shape
    every = list(itertools.product(range(count), repeat=n))
    for price_w in (0.0, 0.7, 30.0):
        least = min(cost(problem, choice, price_w) for choice in every)
        choice = once_through(problem)(price_w)
        assert (choice is None) == np.isinf(least)
        if choice is not None:
            assert cost(problem, tuple(choice.tolist()), price_w) == pytest.approx(least)
