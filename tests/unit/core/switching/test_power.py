"""Schedules below a power limit, window by window, judged by trying all."""

import itertools
import math
from collections.abc import Sequence as Items
from dataclasses import replace

import numpy as np
import pytest

from underclock.core.knapsack import PowerWindows
from underclock.core.switching import (
    CyclicExact,
    SequenceProblem,
    cost_of,
    launch_costs,
    violations,
    within_power,
)
from underclock.records import Status


def drawn(seed: int) -> tuple[SequenceProblem, PowerWindows]:
    """Draw kernels with a hot fast setting; often a stall of the limit's own power to change."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(2, 6)), int(random.integers(2, 4))
    kernels = int(random.integers(1, n + 1))
    speed = np.linspace(0.5, 1.0, count)
    time_s = random.uniform(0.01, 0.2, (kernels, 1)) * (0.2 + 0.8 / speed)
    power_w = 80.0 + random.uniform(50.0, 500.0, (kernels, 1)) * speed**3
    if random.random() < 0.3:
        time_s[0, -1] = power_w[0, -1] = np.inf
    order = random.integers(0, kernels, n)
    off = 1.0 - np.eye(count)
    change_s = random.choice([0.0, 1e-3]) * off
    known_w = power_w[np.isfinite(power_w)]
    limit_w = float(random.uniform(known_w.min(), known_w.max()))
    problem = SequenceProblem(
        time_s=time_s,
        energy_j=time_s * power_w,
        order=order,
        switch_time_s=change_s,
        switch_energy_j=change_s * random.choice([0.1, 1.0]) * limit_w,
        dwell_s=random.choice([0.0, 0.1]) * off,
        max_switches=None if random.random() < 0.7 else 2,
        budget_s=float(random.choice([math.inf, 1.3]) * time_s.min(axis=1)[order].sum()),
    )
    return problem, PowerWindows(limit_w=limit_w)


def tried_all(problem: SequenceProblem, windows: PowerWindows) -> float:
    """Return the least energy of all schedules that keep the rules and the limit."""
    least_j = math.inf
    settings = [np.flatnonzero(np.isfinite(row)) for row in problem.time_s[problem.order]]
    for each in itertools.product(*settings):
        choice = np.array(each)
        if not violations(problem, choice) and windows.keeps(*launch_costs(problem, choice)):
            least_j = min(least_j, cost_of(problem, choice).energy_j)
    return least_j


@pytest.mark.parametrize("part", range(3))
def test_what_is_found_keeps_the_limit_and_its_bound_holds(part: int) -> None:
    missed = 0
    for seed in range(part, 24, 3):
        problem, windows = drawn(seed)
        schedule = within_power(problem, CyclicExact(), windows)
        least_j = tried_all(problem, windows)
        assert schedule.bound_j <= least_j * (1.0 + 1e-9), seed
        if schedule.status is Status.INFEASIBLE:
            missed += least_j < math.inf
            continue
        assert violations(problem, schedule.choice) == []
        assert windows.keeps(*launch_costs(problem, schedule.choice))
        assert schedule.energy_j >= least_j * (1.0 - 1e-9)
        assert schedule.gap is not None
        assert (schedule.status is Status.OPTIMAL) == (schedule.gap <= 1e-9)
    assert missed <= 2  # so few launches leave multipliers little to find


def layers(order: Items[int] = (0, 1) * 24) -> SequenceProblem:
    """Launch a hot product of seven milliseconds and a cool copy of three."""
    speed = np.linspace(0.6, 1.0, 9)
    time_s = np.array([7e-3 / speed, 3e-3 * (0.9 + 0.1 / speed)])
    power_w = np.array([100.0 + 500.0 * speed**3, 100.0 + 150.0 * speed**3])
    return SequenceProblem(
        time_s=time_s,
        energy_j=time_s * power_w,
        order=np.array(order),
        switch_time_s=np.zeros((9, 9)),
        switch_energy_j=np.zeros((9, 9)),
        budget_s=math.inf,
    )


def test_power_is_lent_like_time_within_the_window() -> None:
    """Below a limit the product runs above the clock that it could hold alone."""
    problem = layers()
    windows = PowerWindows(limit_w=400.0)
    # The fastest step: its energy is its time, times a power that counts for nothing else.
    fastest = replace(problem, budget_s=10.2e-3 * 24 / 0.9)
    schedule = within_power(fastest, CyclicExact(gap=1e-4), windows)

    assert schedule.status is not Status.INFEASIBLE
    assert schedule.gap is not None
    assert windows.keeps(*launch_costs(fastest, schedule.choice))
    alone_w = fastest.energy_j[0] / fastest.time_s[0]
    assert alone_w[schedule.choice[0]] > 400.0
    assert alone_w[schedule.choice[0]] <= 700.0


def test_windows_bind_where_the_mean_of_the_round_does_not() -> None:
    """Hot and cool halves, each much longer than the window: the mean says nothing of either."""
    problem = layers([0] * 60 + [1] * 140)
    free = CyclicExact().solve(replace(problem, budget_s=1.02 * 60 * 7e-3 + 140 * 3.1e-3))
    times = launch_costs(problem, free.choice)
    mean_w = times[1].sum() / times[0].sum()
    windows = PowerWindows(limit_w=float(1.15 * mean_w))
    assert not windows.keeps(*times)

    schedule = within_power(problem, CyclicExact(gap=1e-4), windows)
    assert schedule.status is not Status.INFEASIBLE
    assert windows.keeps(*launch_costs(problem, schedule.choice))


def test_a_start_within_the_limit_is_not_made_worse() -> None:
    problem, windows = next(
        (problem, windows)
        for problem, windows in map(drawn, range(100))
        if tried_all(problem, windows) < math.inf
    )
    settings = [np.flatnonzero(np.isfinite(row)) for row in problem.time_s[problem.order]]
    start = [np.array(each) for each in itertools.product(*settings)]
    schedule = within_power(problem, CyclicExact(), windows, start, rounds=1)

    assert schedule.energy_j == pytest.approx(tried_all(problem, windows))


def test_no_schedule_within_the_budget_is_proven_and_none_below_the_limit_is_not() -> None:
    problem = layers((0, 1) * 3)
    late = replace(problem, budget_s=1e-3)

    none = within_power(late, CyclicExact(), PowerWindows(limit_w=1e5))
    assert none.bound_j == math.inf
    hot = within_power(problem, CyclicExact(), PowerWindows(limit_w=1.0))
    assert hot.status is none.status is Status.INFEASIBLE
    assert hot.bound_j < math.inf
