"""The exact solver where it is hard: judged by dynamic programming over every whole time.

Shape letters: G groups, S settings.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.brute import KnapsackBruteForce
from judges.milp import KnapsackMilp
from underclock.arrays import Floats, Ints
from underclock.core.solvers import Problem, Solution, infeasible
from underclock.core.solvers.hull import Quanta
from underclock.core.solvers.knapsack import solve_knapsack
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

    solution = solve_knapsack(problem)

    assert_within(problem, solution, least_energy(time, energy, budget))
    assert solution.status is Status.OPTIMAL
    assert solution.gap == 0.0
    assert solution.energy_j == least_energy(time, energy, budget)


@pytest.mark.parametrize("family", [strongly_correlated, only_even_times])
@pytest.mark.parametrize("groups", [5, 30])
def test_a_subset_sum_is_solved_too(family: Family, groups: int) -> None:
    time, energy = family(np.random.default_rng(groups), groups, 6)
    budget = budget_between(time, energy, 0.5) | 1

    solution = solve_knapsack(problem_of(time, energy, budget))

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

    solution = solve_knapsack(problem, max_labels)

    assert solution.status in {Status.OPTIMAL, Status.BOUNDED}
    assert_within(problem, solution, optimum)
    if solution.status is Status.OPTIMAL:
        assert solution.energy_j == optimum


def test_out_of_labels_the_status_says_so_and_the_gap_is_small() -> None:
    time, energy = only_even_times(np.random.default_rng(5), 30, 6)
    budget = budget_between(time, energy, 0.5) | 1
    problem = problem_of(time, energy, budget)

    solution = solve_knapsack(problem, 500)

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

    solution = solve_knapsack(problem)

    assert solution.status is Status.OPTIMAL
    assert fastest_s <= solution.time_s <= problem.budget_s
    assert math.isclose(solution.time_s, problem.budget_s, rel_tol=1e-6)


every_solver = pytest.mark.parametrize(
    "solver",
    [solve_knapsack, KnapsackBruteForce().solve, KnapsackMilp().solve],
    ids=["exact", "brute", "milp"],
)
# A unit in which whole numbers have no exact binary form: sums are then rounded, as real ones are.
units = st.sampled_from([1.0, 1e-3, 0.7e-6])


@st.composite
def tables(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Draw up to four groups with ties, zeros, identical rows and settings not available."""
    groups, count = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    cells = st.integers(0, draw(st.sampled_from([2, 60])))
    rows = st.lists(cells, min_size=count, max_size=count)
    holes = st.lists(st.booleans(), min_size=count, max_size=count)
    time = draw(st.lists(rows, min_size=groups, max_size=groups))
    energy = draw(st.lists(rows, min_size=groups, max_size=groups))
    missing = np.array(draw(st.lists(holes, min_size=groups, max_size=groups)))
    missing[
        np.arange(groups),
        draw(st.lists(st.integers(0, count - 1), min_size=groups, max_size=groups)),
    ] = False
    if draw(st.booleans()):
        time, energy, missing = (
            [time[0]] * groups,
            [energy[0]] * groups,
            missing[:1].repeat(groups, 0),
        )
    return (
        np.where(missing, math.inf, np.array(time, dtype=np.float64)) * draw(units),
        np.where(missing, math.inf, np.array(energy, dtype=np.float64)) * draw(units),
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw a budget too: exactly what some choice takes, a little less, none, or plenty."""
    time_s, energy_j = draw(tables())
    taken_s = math.fsum(draw(st.sampled_from(row[np.isfinite(row)].tolist())) for row in time_s)
    budget_s = draw(st.sampled_from([taken_s, taken_s * 0.999, 0.0, math.inf]))
    return Problem(time_s=time_s, energy_j=energy_j, budget_s=budget_s)


def assert_keeps_its_word(problem: Problem, solution: Solution) -> None:
    """What a solution says of itself is true, whatever the solver."""
    if solution.status is Status.INFEASIBLE:
        assert len(solution.choice) == 0
        assert solution.energy_j == solution.time_s == solution.bound_j == math.inf
        assert solution.gap is None
        return
    rows = np.arange(len(problem.time_s))
    assert len(solution.choice) == len(rows)
    assert solution.time_s == pytest.approx(problem.time_s[rows, solution.choice].sum())
    assert solution.energy_j == pytest.approx(problem.energy_j[rows, solution.choice].sum())
    assert solution.time_s <= problem.budget_s * (1 + 1e-12)
    assert solution.bound_j <= solution.energy_j < math.inf
    assert solution.gap is not None
    assert solution.gap >= 0.0


@pytest.mark.untraced
@every_solver
@settings(max_examples=30)
@given(problem=problems())
def test_every_solver_agrees_with_brute_force(solver: Any, problem: Problem) -> None:
    reference, solution = KnapsackBruteForce().solve(problem), solver(problem)

    assert_keeps_its_word(problem, solution)
    assert solution.status is reference.status
    assert solution.energy_j == pytest.approx(reference.energy_j, rel=1e-9)
    if solution.status is Status.OPTIMAL:
        assert solution.bound_j == pytest.approx(reference.energy_j, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "count"), [(200, 12), (800, 12)])
def test_exact_and_highs_agree_on_large_instances(groups: int, count: int) -> None:
    random = np.random.default_rng(groups)
    size = 10.0 ** random.uniform(-4.0, -1.0, (groups, 1))
    time_s = size * random.uniform(1.0, 3.0, (groups, count))
    energy_j = size * 300.0 * random.uniform(1.0, 3.0, (groups, count))
    cheapest_s = time_s[np.arange(groups), energy_j.argmin(axis=1)].sum()
    budget_s = 0.6 * time_s.min(axis=1).sum() + 0.4 * cheapest_s
    problem = Problem(time_s=time_s, energy_j=energy_j, budget_s=float(budget_s))

    exact, highs = solve_knapsack(problem), KnapsackMilp(gap=1e-7).solve(problem)

    assert_keeps_its_word(problem, exact)
    assert exact.status is highs.status is Status.OPTIMAL
    assert exact.energy_j == pytest.approx(highs.energy_j, rel=2e-7)
    assert highs.bound_j <= exact.energy_j * (1 + 1e-9)


@st.composite
def any_tables(draw: st.DrawFn) -> Floats:
    groups, count = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size = 10.0 ** draw(st.integers(-270, 12))
    cells = (st.just(0.0) | st.floats(1e-9, 1.0)).map(lambda share: share * size)
    row = st.lists(cells, min_size=count, max_size=count)
    return np.array(draw(st.lists(row, min_size=groups, max_size=groups)))


@settings(max_examples=30)
@given(any_tables(), st.data())
def test_a_budget_that_a_choice_takes_exactly_admits_it(
    time_s: Floats, data: st.DataObject
) -> None:
    groups, count = time_s.shape
    choice = data.draw(st.lists(st.integers(0, count - 1), min_size=groups, max_size=groups))
    rows = np.arange(groups)

    quanta = Quanta(
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
