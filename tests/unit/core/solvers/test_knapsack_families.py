"""Every solver on every problem, judged by brute force, a known optimum, and each other."""

import math
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from judges.brute import KnapsackBruteForce
from judges.milp import KnapsackMilp
from underclock.arrays import Floats
from underclock.core.solvers import Problem, Solution, Solver
from underclock.core.solvers.knapsack import Exact
from underclock.errors import NotSupportedError
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


@every_solver
def test_every_solver_finds_a_known_optimum(solver: Solver[Problem]) -> None:
    # Of 5 s to spend, the best trade (12 J for 4 s) leaves 1 s that buys nothing; the next two
    # (8 J for 3 s, 5 J for 2 s) save more together.
    problem = Problem(
        time_s=np.array([[1.0, 5.0, 9.0], [2.0, 5.0, 9.0], [1.0, 3.0, 9.0]]),
        energy_j=np.array([[20.0, 8.0, 7.9], [20.0, 12.0, 11.9], [20.0, 15.0, 14.9]]),
        budget_s=9.0,
    )

    solution = solver.solve(problem)

    assert solution.choice.tolist() == [0, 1, 1]
    assert (solution.time_s, solution.energy_j) == (9.0, 47.0)
    assert solution.status is Status.OPTIMAL
    assert solution.gap == pytest.approx(0.0, abs=1e-12)


@pytest.mark.untraced
@every_solver
@given(table=tables())
@settings(max_examples=25)
def test_without_a_budget_every_group_takes_its_cheapest(
    solver: Solver[Problem], table: tuple[Floats, Floats]
) -> None:
    solution = solver.solve(Problem(time_s=table[0], energy_j=table[1]))

    assert solution.status is Status.OPTIMAL
    assert solution.energy_j == pytest.approx(table[1].min(axis=1).sum(), rel=1e-9)


@pytest.mark.slow
@every_solver
@given(table=tables())
@settings(max_examples=25)
def test_the_fastest_choice_is_the_edge_of_feasibility(
    solver: Solver[Problem], table: tuple[Floats, Floats]
) -> None:
    fastest_s = math.fsum(table[0].min(axis=1))

    def status(budget_s: float) -> Status:
        return solver.solve(Problem(time_s=table[0], energy_j=table[1], budget_s=budget_s)).status

    assume(fastest_s > 0)
    assert status(fastest_s) is Status.OPTIMAL
    assert status(0.99 * fastest_s) is Status.INFEASIBLE


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


def test_highs_keeps_the_budget_though_some_settings_take_longer_than_all_of_it() -> None:
    random = np.random.default_rng(0)
    shape = (50, 60)
    size = 10.0 ** random.uniform(-5.0, -2.0, (50, 1)) * random.choice([1, 24], (50, 1))
    slowness = np.geomspace(1.0, 40.0, 60)
    time_s = size * slowness * random.normal(1.0, 0.01, shape)
    energy_j = size * (200.0 / slowness + 30.0 * slowness) * random.normal(1.0, 0.01, shape)
    problem = Problem(time_s=time_s, energy_j=energy_j, budget_s=float(time_s[:, 2].sum()))

    exact, highs = Exact().solve(problem), KnapsackMilp().solve(problem)

    assert highs.time_s <= problem.budget_s * (1 + 1e-8)
    assert highs.energy_j == pytest.approx(exact.energy_j, rel=1e-8)


def hard_for_highs() -> Problem:
    random = np.random.default_rng(3)
    time_s = random.uniform(0.1, 1.0, (60, 20))
    return Problem(time_s=time_s, energy_j=2.0 - time_s, budget_s=30.0)


@pytest.mark.parametrize("limit_s", [0.0, 0.3])
def test_highs_stopped_early_still_gives_a_feasible_choice_and_a_bound(limit_s: float) -> None:
    problem = hard_for_highs()

    solution = KnapsackMilp(time_limit_s=limit_s).solve(problem)

    assert solution.status is Status.BOUNDED
    assert_keeps_its_word(problem, solution)
    assert 0.0 <= solution.bound_j <= Exact(max_labels=10_000).solve(problem).energy_j


def test_highs_stopped_before_it_starts_still_knows_what_cannot_be_met() -> None:
    problem = hard_for_highs()
    hopeless = Problem(
        time_s=problem.time_s,
        energy_j=problem.energy_j,
        budget_s=0.99 * float(problem.time_s.min(axis=1).sum()),
    )

    assert KnapsackMilp(time_limit_s=0.0).solve(hopeless).status is Status.INFEASIBLE


def test_without_highspy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)  # Python's own way to say "not installed"

    with pytest.raises(NotSupportedError, match="highspy") as caught:
        KnapsackMilp().solve(hard_for_highs())

    assert "pip install" in caught.value.hint
