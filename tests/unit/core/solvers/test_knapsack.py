"""The exact solver where it is hard: judged by dynamic programming over every whole time.

Shape letters: G groups, S settings.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Ints
from underclock.core.solvers import Problem, Solution
from underclock.core.solvers.knapsack import Exact
from underclock.records import Status

Family = Callable[[np.random.Generator, int, int], tuple[Ints, Ints]]


def uniform(random: np.random.Generator, groups: int, count: int) -> tuple[Ints, Ints]:
    return random.integers(1, 60, (groups, count)), random.integers(1, 60, (groups, count))


def strongly_correlated(random: np.random.Generator, groups: int, count: int) -> tuple[Ints, Ints]:
    time = random.integers(1, 400, (groups, count))
    return time, 500 - time  # a subset sum: every choice that fills the budget is optimal


def weakly_correlated(random: np.random.Generator, groups: int, count: int) -> tuple[Ints, Ints]:
    time = random.integers(1, 400, (groups, count))
    return time, 500 - time + random.integers(0, 5, (groups, count))


def only_even_times(random: np.random.Generator, groups: int, count: int) -> tuple[Ints, Ints]:
    time = 2 * random.integers(1, 200, (groups, count))
    return time, 500 - time  # no choice fills an odd budget, so no bound is ever met


def all_alike(random: np.random.Generator, groups: int, count: int) -> tuple[Ints, Ints]:
    time, energy = random.integers(1, 90, (2, 1, count))
    return time.repeat(groups, axis=0), energy.repeat(groups, axis=0)


def four_decades(random: np.random.Generator, groups: int, count: int) -> tuple[Ints, Ints]:
    size = np.rint(10.0 ** random.uniform(0.0, 4.0, (groups, 1)))
    shape = (groups, count)
    time = np.rint(size * random.uniform(0.3, 3.0, shape)).astype(np.int64)
    return time, np.rint(size * random.uniform(0.3, 3.0, shape)).astype(np.int64)


def budget_between(time: Ints, energy: Ints, share: float) -> int:
    """Return a budget part of the way from the fastest to the cheapest choice."""
    fastest = int(time.min(axis=1).sum())
    cheapest = int(time[np.arange(len(time)), energy.argmin(axis=1)].sum())
    return fastest + int(share * (cheapest - fastest))


def least_energy(time: Ints, energy: Ints, budget: int) -> int:
    """Return the optimum: the least energy for every time, one group after the other."""
    never = np.int64(2**60)
    least = np.zeros(budget + 1, dtype=np.int64)
    for row_time, row_energy in zip(time.tolist(), energy.tolist(), strict=True):
        after = np.full(budget + 1, never)
        for t, e in zip(row_time, row_energy, strict=True):
            if t <= budget:
                np.minimum(after[t:], least[: budget + 1 - t] + e, out=after[t:])
        least = after
    return int(least.min())


def problem_of(time: Ints, energy: Ints, budget: int) -> Problem:
    return Problem(
        time_s=time.astype(np.float64), energy_j=energy.astype(np.float64), budget_s=float(budget)
    )


def assert_within(problem: Problem, solution: Solution, optimum: float) -> None:
    rows = np.arange(len(problem.time_s))
    assert problem.time_s[rows, solution.choice].sum() <= problem.budget_s
    assert problem.energy_j[rows, solution.choice].sum() == solution.energy_j
    assert solution.bound_j <= optimum * (1 + 1e-15)
    assert optimum <= solution.energy_j


@settings(max_examples=40)
@given(
    family=st.sampled_from([uniform, weakly_correlated, all_alike, four_decades]),
    seed=st.integers(0, 2**32 - 1),
    groups=st.integers(1, 40),
    count=st.integers(1, 8),
    share=st.floats(0.0, 1.0),
)
def test_whatever_the_table_the_optimum_is_found_and_proven(
    family: Family, seed: int, groups: int, count: int, share: float
) -> None:
    time, energy = family(np.random.default_rng(seed), groups, count)
    budget = budget_between(time, energy, share)
    problem = problem_of(time, energy, budget)

    solution = Exact().solve(problem)

    assert_within(problem, solution, least_energy(time, energy, budget))
    assert solution.status is Status.OPTIMAL
    assert solution.gap == 0.0
    assert solution.energy_j == least_energy(time, energy, budget)


@pytest.mark.parametrize("family", [strongly_correlated, only_even_times])
@pytest.mark.parametrize("groups", [5, 30])
def test_a_subset_sum_is_solved_too(family: Family, groups: int) -> None:
    time, energy = family(np.random.default_rng(groups), groups, 6)
    budget = budget_between(time, energy, 0.5) | 1

    solution = Exact().solve(problem_of(time, energy, budget))

    assert solution.status is Status.OPTIMAL
    assert solution.energy_j == least_energy(time, energy, budget)


@settings(max_examples=30)
@given(
    family=st.sampled_from([uniform, strongly_correlated, only_even_times, four_decades]),
    seed=st.integers(0, 2**32 - 1),
    max_labels=st.integers(1, 3_000),
)
def test_out_of_labels_the_answer_is_feasible_and_its_bound_is_true(
    family: Family, seed: int, max_labels: int
) -> None:
    time, energy = family(np.random.default_rng(seed), 25, 6)
    budget = budget_between(time, energy, 0.4) | 1
    problem, optimum = problem_of(time, energy, budget), least_energy(time, energy, budget)

    solution = Exact(max_labels=max_labels).solve(problem)

    assert solution.status in {Status.OPTIMAL, Status.BOUNDED}
    assert_within(problem, solution, optimum)
    if solution.status is Status.OPTIMAL:
        assert solution.energy_j == optimum


def test_out_of_labels_the_status_says_so_and_the_gap_is_small() -> None:
    time, energy = only_even_times(np.random.default_rng(5), 30, 6)
    budget = budget_between(time, energy, 0.5) | 1
    problem = problem_of(time, energy, budget)

    solution = Exact(max_labels=500).solve(problem)

    assert solution.status is Status.BOUNDED
    assert solution.gap is not None
    assert 0.0 < solution.gap < 0.01
    assert_within(problem, solution, least_energy(time, energy, budget))


def test_a_choice_is_proven_on_a_table_as_large_as_a_real_step() -> None:
    random = np.random.default_rng(7)
    size = 10.0 ** random.uniform(-5.0, -2.0, (2_000, 1))
    time_s = size * random.uniform(0.3, 1.0, (2_000, 40))
    energy_j = size * random.uniform(50.0, 300.0, (2_000, 40))
    fastest_s = time_s.min(axis=1).sum()
    problem = Problem(time_s=time_s, energy_j=energy_j, budget_s=float(1.2 * fastest_s))

    solution = Exact().solve(problem)

    assert solution.status is Status.OPTIMAL
    assert fastest_s <= solution.time_s <= problem.budget_s
    assert math.isclose(solution.time_s, problem.budget_s, rel_tol=1e-6)
