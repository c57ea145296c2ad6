"""Schedules below a power limit, window by window, judged by trying all."""

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

import numpy as np
import pytest

from underclock.arrays import Floats, Ints
from underclock.core.solvers import (
    Effort,
    PowerWindows,
    SequenceProblem,
    WindowedSequence,
    cost_of,
    launch_costs,
    violations,
)
from underclock.core.solvers.cyclic import Cyclic
from underclock.physics.cap import window_means_w


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


def judged(problem: SequenceProblem, windows: PowerWindows) -> Callable[[Ints], float]:
    def judge(choice: Ints) -> float:
        keeps = windows.keeps(*launch_costs(problem, choice))
        return cost_of(problem, choice).energy_j if keeps else math.inf

    return judge


def cheapest(
    problem: SequenceProblem,
    windows: PowerWindows,
    *,
    rounds: int = 12,
    first: Floats | None = None,
) -> Ints | None:
    sequence = WindowedSequence(problem=problem, windows=windows, judge=judged(problem, windows))
    begin = np.zeros(len(problem.order)) if first is None else first
    return sequence.cheapest(Effort.PLAN, first=begin, rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_what_is_found_keeps_the_rules_and_the_limit(part: int) -> None:
    missed = worse = 0
    for seed in range(part, 18, 3):
        problem, windows = drawn(seed)
        choice, least_j = cheapest(problem, windows), tried_all(problem, windows)
        if choice is None:
            missed += least_j < math.inf
            continue
        assert violations(problem, choice) == []
        assert windows.keeps(*launch_costs(problem, choice))
        energy_j = cost_of(problem, choice).energy_j
        assert energy_j >= least_j * (1.0 - 1e-9)
        worse += energy_j > least_j * 1.05
    # So few launches leave multipliers little to find.
    assert missed <= 2
    assert worse <= 2


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


def test_windows_bind_where_the_mean_of_the_round_does_not() -> None:
    """Hot and cool halves, each much longer than the window: the mean says nothing of either."""
    problem = layers([0] * 60 + [1] * 140)
    problem = replace(problem, budget_s=1.02 * 60 * 7e-3 + 140 * 3.1e-3)
    free = Cyclic(gap=1e-4).solve(problem)
    times = launch_costs(problem, free.choice)
    windows = PowerWindows(limit_w=float(0.96 * window_means_w(*times).max()))
    assert times[1].sum() / times[0].sum() < 0.8 * windows.limit_w

    choice = cheapest(problem, windows, rounds=12)
    assert choice is not None
    assert violations(problem, choice) == []
    assert windows.keeps(*launch_costs(problem, choice))


def test_no_schedule_within_the_budget_is_none() -> None:
    problem = layers((0, 1) * 3)
    late = replace(problem, budget_s=1e-3)
    assert cheapest(late, PowerWindows(limit_w=1e5)) is None
    assert cheapest(problem, PowerWindows(limit_w=1.0), rounds=2) is None
