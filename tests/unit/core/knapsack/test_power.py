"""Choices below a power limit, window by window, judged by trying all."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.arrays import Floats, Ints
from underclock.core.knapsack import Exact, PowerWindows, Problem, Solution, within_power
from underclock.records import Status

seeds = st.integers(0, 2**32 - 1)


def by_simulation(
    windows: PowerWindows, time_s: Floats, energy_j: Floats, rounds: int = 400
) -> Floats:
    """Follow the window through so many rounds that the beginning is forgotten."""
    mean_w, means_w = 0.0, np.zeros(len(time_s))
    for _ in range(rounds):
        for launch, (each_s, each_j) in enumerate(zip(time_s, energy_j, strict=True)):
            left = math.exp(-each_s / windows.window_s)
            power_w = each_j / each_s
            mean_w = power_w + (mean_w - power_w) * left
            means_w[launch] = mean_w
    return means_w


@settings(max_examples=20)
@given(seeds)
def test_the_mean_is_that_of_a_window_that_has_slid_for_ever(seed: int) -> None:
    random = np.random.default_rng(seed)
    time_s, power_w = random.uniform(1e-3, 0.3, 7), random.uniform(50.0, 700.0, 7)
    windows = PowerWindows(limit_w=400.0)
    means_w = windows.mean_w(time_s, power_w * time_s)

    assert means_w == pytest.approx(by_simulation(windows, time_s, power_w * time_s))
    worst_w, launch = windows.worst(time_s, power_w * time_s)
    assert worst_w == means_w[launch] == means_w.max()
    assert windows.keeps(time_s, power_w * time_s) == (worst_w <= 400.0)
    # A launch that takes no time is over before its power counts.
    none_s, none_j = np.append(time_s, 0.0), np.append(power_w * time_s, 0.0)
    assert windows.mean_w(none_s, none_j)[:-1] == pytest.approx(means_w)


@settings(max_examples=20)
@given(seeds, st.integers(0, 6))
def test_weights_say_by_what_a_window_exceeds_the_limit(seed: int, last: int) -> None:
    random = np.random.default_rng(seed)
    time_s, power_w = random.uniform(1e-3, 0.3, 7), random.uniform(50.0, 700.0, 7)
    windows = PowerWindows(limit_w=400.0)
    weights = windows.weights(time_s, last)
    over_w = windows.mean_w(time_s, power_w * time_s)[last] - 400.0

    drawn_j = weights @ (power_w * time_s - 400.0 * time_s)
    assert drawn_j / (weights @ time_s) == pytest.approx(over_w, abs=1e-9)
    assert weights.max() <= 1.0
    assert weights.min() >= 0.0


def test_windows_that_mean_nothing_are_refused() -> None:
    for limit_w, window_s in ((0.0, 0.1), (math.inf, 0.1), (100.0, 0.0), (100.0, math.nan)):
        with pytest.raises(ValueError, match="must be positive"):
            PowerWindows(limit_w=limit_w, window_s=window_s)
    with pytest.raises(ValueError, match="takes no time"):
        PowerWindows(limit_w=1.0).mean_w(np.zeros(2), np.ones(2))


def drawn(seed: int) -> tuple[Problem, Ints, PowerWindows]:
    """Draw groups with a hot fast setting, launched in any order."""
    random = np.random.default_rng(seed)
    groups, count = int(random.integers(1, 5)), int(random.integers(2, 5))
    order = np.concatenate([np.arange(groups), random.integers(0, groups, 4)])
    random.shuffle(order)
    launches = np.bincount(order, minlength=groups)[:, None]
    speed = np.linspace(0.5, 1.0, count)
    size_s = random.uniform(0.01, 0.2, (groups, 1))
    time_s = size_s * (0.2 + 0.8 / speed) * random.uniform(0.97, 1.03, (groups, count))
    power_w = 80.0 + random.uniform(50.0, 500.0, (groups, 1)) * speed**3
    if random.random() < 0.3:
        time_s[0, -1] = power_w[0, -1] = np.inf
    problem = Problem(
        time_s=time_s * launches,
        energy_j=time_s * power_w * launches,
        budget_s=float(random.choice([math.inf, 1.1, 1.4]) * (time_s * launches).min(axis=1).sum()),
    )
    means_w = power_w[np.isfinite(power_w)]
    limit_w = float(random.uniform(means_w.min(), means_w.max()))
    return problem, order, PowerWindows(limit_w=limit_w)


def tried_all(problem: Problem, order: Ints, windows: PowerWindows) -> float:
    """Return the least energy of all choices within the budget and the limit."""
    least_j, count = math.inf, np.bincount(order)
    rows = np.arange(len(count))
    for each in itertools.product(*(np.flatnonzero(row) for row in np.isfinite(problem.time_s))):
        time_s, energy_j = problem.time_s[rows, each], problem.energy_j[rows, each]
        launches = (time_s / count)[order], (energy_j / count)[order]
        if time_s.sum() <= problem.budget_s and windows.keeps(*launches):
            least_j = min(least_j, float(energy_j.sum()))
    return least_j


def found(
    problem: Problem, order: Ints, windows: PowerWindows, **options: object
) -> tuple[Solution, float]:
    solution = within_power(problem, Exact(), windows, order, **options)  # type: ignore[arg-type]
    return solution, tried_all(problem, order, windows)


@pytest.mark.parametrize("part", range(3))
def test_what_is_found_keeps_the_limit_and_its_bound_holds(part: int) -> None:
    missed = gaps = 0
    for seed in range(part, 36, 3):
        problem, order, windows = drawn(seed)
        solution, least_j = found(problem, order, windows)
        assert solution.bound_j <= least_j * (1.0 + 1e-9), seed
        if solution.status is Status.INFEASIBLE:
            missed += least_j < math.inf
            continue
        rows, count = np.arange(len(problem.time_s)), np.bincount(order)
        launches = (
            (table[rows, solution.choice] / count)[order]
            for table in (problem.time_s, problem.energy_j)
        )
        assert windows.keeps(*launches)
        assert solution.time_s <= problem.budget_s
        assert solution.energy_j >= least_j * (1.0 - 1e-9)
        assert (solution.status is Status.OPTIMAL) == (
            solution.gap is not None and solution.gap <= 1e-9
        )
        gaps += solution.energy_j > least_j * 1.01
    # So few and so different groups leave multipliers little to find.
    assert missed <= 2
    assert gaps <= 4


def test_a_limit_that_nothing_exceeds_changes_nothing() -> None:
    problem, order, _ = drawn(3)
    solution = within_power(problem, Exact(), PowerWindows(limit_w=1e5), order)

    assert solution == Exact().solve(problem)


def test_a_start_within_the_limit_is_not_made_worse() -> None:
    problem, order, windows = next(
        (problem, order, windows)
        for problem, order, windows in map(drawn, range(200))
        if tried_all(problem, order, windows) < math.inf
    )
    choices = itertools.product(range(problem.time_s.shape[1]), repeat=len(problem.time_s))
    start = tuple(np.array(choice) for choice in choices)
    solution, least_j = found(problem, order, windows, start=start, rounds=1)

    assert solution.energy_j == pytest.approx(least_j)


def test_no_choice_within_the_budget_is_proven_and_none_below_the_limit_is_not() -> None:
    problem, order, _ = drawn(3)
    problem = Problem(time_s=problem.time_s, energy_j=problem.energy_j)
    late = Problem(time_s=problem.time_s, energy_j=problem.energy_j, budget_s=0.0)
    hopeless, cold = PowerWindows(limit_w=1e5), PowerWindows(limit_w=1.0)

    assert within_power(late, Exact(), hopeless, order).bound_j == math.inf
    none = within_power(problem, Exact(), cold, order)
    assert none.status is Status.INFEASIBLE
    assert none.bound_j < math.inf


@pytest.mark.parametrize("order", [[0], [0, 1, 2]])
def test_an_order_of_other_groups_is_refused(order: list[int]) -> None:
    problem = Problem(time_s=np.ones((2, 1)), energy_j=np.ones((2, 1)))
    with pytest.raises(ValueError, match="each of 2 groups"):
        within_power(problem, Exact(), PowerWindows(limit_w=1.0), np.array(order))


def test_more_energy_than_the_limit_gives_in_the_time_is_proven_impossible_at_once() -> None:
    problem, order, _ = drawn(3)
    problem = Problem(time_s=problem.time_s, energy_j=problem.energy_j, budget_s=10.0)

    none = within_power(problem, Exact(), PowerWindows(limit_w=0.01), order, rounds=1)
    assert none.status is Status.INFEASIBLE
    assert none.bound_j == math.inf
