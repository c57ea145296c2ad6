"""HiGHS as a second opinion, and the simpler rules that the exact scheduler is compared with."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivals.brute import ScheduleBruteForce
from rivals.milp import ScheduleMilp
from rivals.rules import (
    FixedClock,
    Genetic,
    LeastProduct,
    Local,
)
from underclock.core.solvers import SequenceProblem, Solver, cost_of, violations
from underclock.core.solvers.cyclic import Cyclic
from underclock.errors import NotSupportedError
from underclock.records import Status

NONE = np.zeros((0, 0))
seeds = st.integers(0, 2**32 - 1)


def steps(
    seed: int, *, n: int = 12, kernels: int = 4, count: int = 5, holes: bool = False
) -> SequenceProblem:
    """Draw a step of few kernels without dwell, with a budget that matters."""
    random = np.random.default_rng(seed)
    time, energy = random.uniform(1.0, 3.0, (2, kernels, count))
    if holes:
        missing = random.random(time.shape) < 0.3
        missing[:, 0] = False
        time[missing], energy[missing] = np.inf, np.inf
    order = random.integers(0, kernels, n)
    off = 1.0 - np.eye(count)
    return SequenceProblem(
        time_s=time,
        energy_j=energy,
        order=order,
        switch_time_s=random.uniform(0.0, 0.3, (count, count)) * off,
        switch_energy_j=random.uniform(0.0, 0.3, (count, count)) * off,
        blocked=random.random(n) < 0.2,
        budget_s=1.05 * float(time[order][:, 0].sum()),
    )


@pytest.mark.parametrize("seed", range(12))
def test_highs_agrees_on_small_problems_with_every_rule_it_knows(seed: int) -> None:
    pytest.importorskip("highspy")
    problem = steps(seed, n=1 + seed % 6, kernels=3, count=3, holes=seed % 2 == 0)
    problem = replace(problem, max_switches=[None, 0, 2][seed % 3])
    if seed % 4 == 3:
        problem = replace(problem, budget_s=0.5 * problem.budget_s)
    reference, schedule = ScheduleBruteForce().solve(problem), ScheduleMilp().solve(problem)

    assert schedule.status is reference.status
    assert schedule.energy_j == pytest.approx(reference.energy_j, rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_highs_agrees_on_medium_problems(seed: int) -> None:
    pytest.importorskip("highspy")
    problem = steps(seed, n=30)
    exact, highs = Cyclic().solve(problem), ScheduleMilp().solve(problem)

    assert exact.status is Status.OPTIMAL
    assert highs.energy_j == pytest.approx(exact.energy_j, rel=1e-8)
    assert highs.bound_j <= exact.energy_j * (1 + 1e-9)


def test_highs_out_of_time_answers_with_what_it_was_given() -> None:
    pytest.importorskip("highspy")
    problem = steps(1, n=60, count=12)
    best = Cyclic().solve(problem)
    schedule = ScheduleMilp(time_limit_s=1e-9).solve(problem, [best.choice])

    assert schedule.energy_j == best.energy_j
    assert schedule.bound_j <= best.energy_j


def test_highs_says_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = steps(0)
    with pytest.raises(NotSupportedError, match="has no dwell"):
        ScheduleMilp().solve(replace(problem, dwell_s=1.0 - np.eye(5)))
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(NotSupportedError, match="needs highspy"):
        ScheduleMilp().solve(problem)


@settings(max_examples=30)
@given(seeds)
def test_local_is_no_slower_kernel_by_kernel_but_pays_its_switches(seed: int) -> None:
    problem = steps(seed, holes=True)
    schedule = Local(reference=0).solve(problem)

    chosen_s = problem.time_s[problem.order, schedule.choice]
    assert (chosen_s <= problem.time_s[problem.order, 0]).all()
    assert schedule.status is Status.GIVEN
    assert schedule.energy_j == cost_of(problem, schedule.choice).energy_j
    # A kernel that has not got the reference setting is free to choose.
    free = replace(problem, time_s=problem.time_s.copy(), energy_j=problem.energy_j.copy())
    free.time_s[0], free.energy_j[0] = np.inf, np.inf
    free.time_s[0, 1], free.energy_j[0, 1] = 9.0, 9.0
    assert (Local(reference=0).solve(free).choice[problem.order == 0] == 1).all()


def test_the_least_product_weighs_time_by_its_power() -> None:
    problem = SequenceProblem(
        time_s=np.array([[1.0, 2.0, 4.0, np.inf]]),
        energy_j=np.array([[9.0, 3.0, 1.0, np.inf]]),
        order=np.array([0, 0]),
        switch_time_s=np.zeros((4, 4)),
        switch_energy_j=np.zeros((4, 4)),
    )

    assert LeastProduct(power=1.0).solve(problem).choice.tolist() == [2, 2]
    assert LeastProduct(power=2.0).solve(problem).choice.tolist() == [0, 0]
    assert LeastProduct(power=0.0).solve(problem).choice.tolist() == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [FixedClock(), Genetic(generations=20, population=12)],
    ids=["fixed", "genetic"],
)
@settings(max_examples=12)
@given(seed=seeds)
def test_baselines_that_keep_the_rules_never_beat_the_proven_optimum(
    rule: Solver[SequenceProblem], seed: int
) -> None:
    problem = steps(seed, holes=seed % 2 == 0)
    exact, schedule = Cyclic().solve(problem), rule.solve(problem)

    assert schedule.status is Status.BOUNDED  # setting 0 keeps all rules
    assert violations(problem, schedule.choice) == []
    assert exact.energy_j <= schedule.energy_j * (1 + 1e-9)
    assert rule.solve(problem, [exact.choice]).energy_j <= exact.energy_j


def test_no_fixed_clock_within_the_budget_is_infeasible() -> None:
    problem = replace(steps(0), budget_s=0.1)

    assert FixedClock().solve(problem).status is Status.INFEASIBLE


def test_the_genetic_search_repeats_with_its_seed_and_improves_with_time() -> None:
    problem = replace(steps(3, kernels=8, n=16), blocked=np.zeros(16, dtype=np.bool_))
    long = Genetic(seed=1, generations=60).solve(problem)

    assert long.choice.tolist() == Genetic(seed=1, generations=60).solve(problem).choice.tolist()
    assert long.energy_j < FixedClock().solve(problem).energy_j
