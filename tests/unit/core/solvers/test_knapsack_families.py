"""Every solver on every problem, judged by brute force, a known optimum, and each other."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.brute import KnapsackBruteForce
from judges.milp import KnapsackMilp
from underclock.arrays import Floats
from underclock.core.solvers import Problem, Solution, Solver
from underclock.core.solvers.knapsack import Exact
from underclock.records import Status

every_solver = pytest.mark.parametrize(
    "solver", [Exact(), KnapsackBruteForce(), KnapsackMilp()], ids=["exact", "brute", "milp"]
)
# A unit in which whole numbers have no exact binary form: sums are then rounded, as real ones are.
units = st.sampled_from([1.0, 1e-3, 0.7e-6])


@st.composite
def tables(draw: st.DrawFn, *, most: int = 60) -> tuple[Floats, Floats]:
    """Draw up to four groups with ties, zeros, identical rows and settings not available."""
    groups, count = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    cells = st.integers(0, draw(st.sampled_from([2, most])))
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
def test_every_solver_agrees_with_brute_force(solver: Solver[Problem], problem: Problem) -> None:
    reference, solution = KnapsackBruteForce().solve(problem), solver.solve(problem)

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

    exact, highs = Exact().solve(problem), KnapsackMilp(gap=1e-7).solve(problem)

    assert_keeps_its_word(problem, exact)
    assert exact.status is highs.status is Status.OPTIMAL
    assert exact.energy_j == pytest.approx(highs.energy_j, rel=2e-7)
    assert highs.bound_j <= exact.energy_j * (1 + 1e-9)
