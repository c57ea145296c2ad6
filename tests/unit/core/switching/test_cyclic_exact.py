"""The exact scheduler, judged by brute force, by the rules, and by what must not change."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivals.schedule_brute import ScheduleBruteForce
from underclock.arrays import Floats
from underclock.core.switching import (
    CyclicExact,
    Schedule,
    SequenceProblem,
    cost_of,
    violations,
)
from underclock.core.switching.lagrangian import lagrangian_of
from underclock.core.switching.ring import ring_of
from underclock.core.switching.viterbi import shortest_path
from underclock.core.switching.warm_start import (
    SearchLimits,
    WarmStart,
    search_multipliers,
    warm_start,
)
from underclock.records import Status

# In the last ones no schedule is known until the ring is decomposed.
PROBLEMS = [*range(120), 243, 415, 435, 461]
seeds = st.integers(0, 2**32 - 1)


def small(seed: int) -> SequenceProblem:
    """Draw a small problem with every rule, ties, holes, and budgets met exactly."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(1, 7)), int(random.integers(1, 5))
    while count**n > 260:
        n -= 1
    kernels = int(random.integers(1, n + 1))
    whole, zeros = bool(random.random() < 0.5), int(random.random() < 0.8)

    def draw(*shape: int) -> Floats:
        cells = random.integers(zeros, 8, shape).astype(np.float64)
        return cells if whole else random.uniform(0.1, 5.0, shape)

    time, energy = draw(kernels, count), draw(kernels, count)
    if random.random() < 0.4:
        holes = random.random(time.shape) < 0.3
        holes[np.arange(kernels), random.integers(0, count, kernels)] = False
        time[holes], energy[holes] = np.inf, np.inf
    off = 1.0 - np.eye(count)
    cost = random.choice([0.0, 0.03, 0.3, 1.2])
    dwell = off * random.choice([0.0, 2.0, 5.0, 9.0], (count, count))
    order = random.integers(0, kernels, n)
    unit = random.choice([1.0, 0.7e-6])  # one in which whole numbers have no exact binary form
    rows = np.arange(n)
    some = np.where(np.isfinite(time[order]), random.random((n, count)), -1.0).argmax(axis=1)
    least = time[order].min(axis=1).sum()
    cheap = time[order][rows, energy[order].argmin(axis=1)].sum()
    taken = time[order][rows, some].sum()
    budget = random.choice([math.inf, least, 1.2 * least, 1.5 * least, taken, cheap, 0.9 * least])
    return SequenceProblem(
        time_s=time * unit,
        energy_j=energy,
        order=order,
        switch_time_s=draw(count, count) * off * cost * unit,
        switch_energy_j=draw(count, count) * off * cost,
        dwell_s=dwell * unit * int(random.random() < 0.6),
        blocked=random.random(n) < random.choice([0.0, 0.3, 0.7]),
        max_switches=None if random.random() < 0.5 else int(random.integers(0, 5)),
        budget_s=float(budget * unit),
    )


def like_a_gpu(n: int, seed: int, *, core: int = 6, slack: float = 1.1) -> SequenceProblem:
    """Draw kernels at a grid of core and memory clocks, with 25 and 150 µs to switch them."""
    random = np.random.default_rng(seed)
    grid = np.meshgrid(np.linspace(0.1, 1.0, core), np.array([0.1, 0.5, 1.0]))
    speed, memory = (axis.ravel() for axis in grid)
    size_s = 10.0 ** random.uniform(-5.0, -2.0, n)
    share = random.uniform(0.02, 0.98, n)
    core_s, mem_s = (size_s * share)[:, None] / speed, (size_s * (1 - share))[:, None] / memory
    time_s = (core_s**3.4 + mem_s**3.4) ** (1 / 3.4) * random.normal(1.0, 0.002, (n, len(speed)))
    energy_j = time_s * (60.0 + 40.0 * memory + 250.0 * speed**3 * core_s / time_s)
    switch_s = 25e-6 * (speed[:, None] != speed) + 150e-6 * (memory[:, None] != memory)
    return SequenceProblem(
        time_s=time_s,
        energy_j=energy_j,
        order=np.arange(n),
        switch_time_s=switch_s,
        switch_energy_j=100.0 * switch_s,
        budget_s=slack * float(time_s[:, -1].sum()),
    )


def assert_keeps_its_word(problem: SequenceProblem, schedule: Schedule) -> None:
    """What a schedule says of itself is true."""
    if schedule.status is Status.INFEASIBLE:
        assert len(schedule.choice) == 0
        assert schedule.energy_j == schedule.time_s == schedule.bound_j == math.inf
        return
    cost = cost_of(problem, schedule.choice)
    assert violations(problem, schedule.choice) == []
    assert (cost.time_s, cost.energy_j) == (schedule.time_s, schedule.energy_j)
    assert cost.switches == schedule.switches
    assert 0.0 <= schedule.bound_j <= schedule.energy_j
    assert schedule.gap is not None
    assert (schedule.gap <= 1e-9) == (schedule.status is Status.OPTIMAL)


@pytest.mark.parametrize("part", range(4))
def test_it_agrees_with_brute_force(part: int) -> None:
    for seed in PROBLEMS[part::4]:
        problem = small(seed)
        reference, schedule = ScheduleBruteForce().solve(problem), CyclicExact().solve(problem)

        assert_keeps_its_word(problem, schedule)
        assert schedule.status is reference.status, seed
        assert schedule.energy_j == pytest.approx(reference.energy_j, rel=1e-9), seed
        assert schedule.bound_j <= reference.energy_j, seed


@settings(max_examples=12)
@given(seeds)
def test_dwell_of_more_than_four_values_leaves_answers_feasible_and_bounds_valid(seed: int) -> None:
    random, problem = np.random.default_rng(seed), small(seed)
    longest_s = problem.time_s[np.isfinite(problem.time_s)].max()
    dwell_s = random.uniform(0.0, 3.0, problem.dwell_s.shape) * longest_s
    problem = replace(problem, dwell_s=dwell_s * (1.0 - np.eye(len(dwell_s))))
    reference, schedule = ScheduleBruteForce().solve(problem), CyclicExact().solve(problem)

    if schedule.status is Status.INFEASIBLE:  # of all, or with the longer dwell
        return
    assert_keeps_its_word(problem, schedule)
    assert schedule.bound_j <= reference.energy_j <= schedule.energy_j


@settings(max_examples=12)
@given(seeds, st.integers(1, 3), st.sampled_from([0, 700, 2_000]), st.sampled_from([1, 50]))
def test_short_of_labels_the_answer_is_feasible_and_its_bound_holds(
    seed: int, component_labels: int, effort: int, max_labels: int
) -> None:
    problem = small(seed)
    reference = ScheduleBruteForce().solve(problem)
    solver = CyclicExact(component_labels=component_labels, effort=effort, max_labels=max_labels)
    schedule = solver.solve(problem, [reference.choice])

    if reference.status is Status.INFEASIBLE:
        assert schedule.status is Status.INFEASIBLE
        return
    assert_keeps_its_word(problem, schedule)
    assert schedule.energy_j == pytest.approx(reference.energy_j)
    assert schedule.bound_j <= reference.energy_j


@settings(max_examples=12)
@given(seeds, st.integers(0, 5))
def test_turning_the_ring_turns_the_answer(seed: int, by: int) -> None:
    problem = small(seed)
    turned = replace(
        problem, order=np.roll(problem.order, by), blocked=np.roll(problem.blocked, by)
    )

    assert CyclicExact().solve(turned).energy_j == pytest.approx(
        CyclicExact().solve(problem).energy_j
    )


@settings(max_examples=12)
@given(seeds, st.floats(1.0, 3.0))
def test_a_looser_budget_and_cheaper_switches_cost_no_more(seed: int, factor: float) -> None:
    problem = small(seed)
    looser = replace(
        problem,
        budget_s=problem.budget_s * factor,
        switch_time_s=problem.switch_time_s / factor,
        switch_energy_j=problem.switch_energy_j / factor,
    )

    assert CyclicExact().solve(looser).energy_j <= CyclicExact().solve(problem).energy_j * (
        1 + 1e-9
    )


@settings(max_examples=12)
@given(seeds)
def test_it_is_never_worse_than_what_it_is_given(seed: int) -> None:
    problem = small(seed)
    random = np.random.default_rng(seed)
    given_choices = [
        random.integers(0, problem.time_s.shape[1], len(problem.order)) for _ in range(20)
    ]
    schedule = CyclicExact(component_labels=1, effort=0).solve(problem, given_choices)

    constants = [np.full(len(problem.order), s) for s in range(problem.time_s.shape[1])]
    for choice in [*given_choices, *constants]:
        if not violations(problem, choice):
            assert schedule.energy_j <= cost_of(problem, choice).energy_j


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_long_ring_is_proven_and_beats_any_fixed_clock(seed: int) -> None:
    problem = like_a_gpu(600, seed)
    schedule = CyclicExact().solve(problem)

    assert schedule.status is Status.OPTIMAL
    assert_keeps_its_word(problem, schedule)
    assert schedule.switches > 0
    # A second proof, from another cut and in another order.
    turned = replace(problem, order=np.roll(problem.order, 217))
    assert CyclicExact().solve(turned).energy_j == pytest.approx(schedule.energy_j, rel=1e-9)


def test_many_settings_change_nothing_but_the_speed() -> None:
    problem = like_a_gpu(60, 1, core=50)
    few = CyclicExact().solve(problem)
    used = np.union1d(np.unique(few.choice), np.arange(0, 150, 9))
    pairs = np.ix_(used, used)
    part = replace(
        problem,
        time_s=problem.time_s[:, used],
        energy_j=problem.energy_j[:, used],
        switch_time_s=problem.switch_time_s[pairs],
        switch_energy_j=problem.switch_energy_j[pairs],
        dwell_s=problem.dwell_s[pairs],
        jitter_s=problem.jitter_s[pairs],
    )

    assert few.status is Status.OPTIMAL
    assert CyclicExact().solve(part).energy_j == pytest.approx(few.energy_j, rel=1e-9)


def test_dwell_and_a_limit_on_switches_are_kept_on_a_long_ring() -> None:
    problem = like_a_gpu(300, 5)
    problem = replace(
        problem, dwell_s=10.0 * problem.switch_time_s, blocked=np.arange(300) % 7 == 0
    )
    free = CyclicExact().solve(problem)
    few = CyclicExact().solve(replace(problem, max_switches=free.switches // 2))

    assert free.status is few.status is Status.OPTIMAL
    assert few.switches <= free.switches // 2
    assert few.energy_j > free.energy_j
    assert_keeps_its_word(problem, free)


@pytest.mark.parametrize(
    "options",
    [{"max_paths": 3}, {"max_cells": 0}, {"first_labels": 1}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("most", [None, 12])
def test_tight_limits_cost_precision_and_never_truth(
    options: dict[str, int], most: int | None
) -> None:
    problem = replace(like_a_gpu(500 if most is None else 60, 4), max_switches=most)
    best = CyclicExact().solve(problem)
    schedule = CyclicExact(effort=300_000, component_labels=500, **options).solve(problem)

    assert best.status is Status.OPTIMAL
    assert_keeps_its_word(problem, schedule)
    assert schedule.bound_j <= best.energy_j <= schedule.energy_j * (1 + 1e-9)


@pytest.mark.untraced
@pytest.mark.parametrize(
    "start",
    [
        WarmStart(multiplier=1.0, settings=np.array([17])),
        WarmStart(multiplier=1e9, settings=np.array([0, 17])),
        WarmStart(multiplier=1.0, settings=np.array([0])),
        WarmStart(multiplier=None, settings=np.arange(18)),
    ],
    ids=["one setting", "far too high", "a slow setting", "cold"],
)
def test_a_poor_warm_start_costs_time_and_never_the_bound(start: WarmStart) -> None:
    problem = like_a_gpu(500, 4)
    ring = ring_of(problem)
    assert ring is not None
    limits = SearchLimits(tolerance=1e-7)
    warm = search_multipliers(problem, ring, warm_start(problem, ring), limits)
    poor = search_multipliers(problem, ring, start, limits)

    assert warm is not None
    assert poor is not None
    # A search with few settings bounds the schedules of these only; with all, all schedules.
    least = [
        shortest_path(ring, lagrangian_of(ring, search.time))[0] - search.multiplied_limits
        for search in (warm, poor)
    ]
    assert least[1] == pytest.approx(least[0], rel=1e-6)


def test_a_start_without_a_fast_enough_path_is_given_up_for_all_settings() -> None:
    problem = like_a_gpu(60, 4)
    ring = ring_of(problem)
    assert ring is not None
    slow = WarmStart(multiplier=1.0, settings=np.array([0]))

    limits = SearchLimits(tolerance=1e-7)
    assert search_multipliers(problem, ring, slow, limits) is not None
    hopeless = replace(problem, budget_s=0.5 * problem.budget_s / 1.1)
    assert search_multipliers(hopeless, ring, slow, limits) is None


@pytest.mark.parametrize("restarts", [0, 1])
def test_out_of_restarts_all_settings_are_searched(restarts: int) -> None:
    problem = like_a_gpu(60, 4)
    ring = ring_of(problem)
    assert ring is not None
    start = WarmStart(multiplier=1.0, settings=np.array([17]))
    limits = SearchLimits(tolerance=1e-7, restarts=restarts)
    search = search_multipliers(problem, ring, start, limits)

    assert search is not None
    assert len(search.ring.settings) == len(ring.settings)


def test_short_of_labels_for_two_limits_the_bound_holds() -> None:
    problem = replace(like_a_gpu(60, 4), max_switches=12)
    best, schedule = CyclicExact().solve(problem), CyclicExact(max_labels=5).solve(problem)

    assert_keeps_its_word(problem, schedule)
    assert schedule.bound_j <= best.energy_j <= schedule.energy_j * (1 + 1e-9)


def test_a_budget_no_schedule_meets_is_infeasible_on_a_long_ring() -> None:
    problem = like_a_gpu(600, 2)

    schedule = CyclicExact().solve(replace(problem, budget_s=0.5 * problem.budget_s))

    assert schedule.status is Status.INFEASIBLE
    assert schedule.bound_j == math.inf


def test_out_of_effort_without_a_schedule_claims_no_proof() -> None:
    inf = math.inf
    problem = SequenceProblem(
        time_s=np.array([[1.0, inf], [inf, 1.0], [1.0, 2.0], [2.0, 1.0]]),
        energy_j=np.array([[1.0, inf], [inf, 1.0], [3.0, 1.0], [1.0, 3.0]]),
        order=np.array([0, 2, 3, 1, 2, 3]),
        switch_time_s=np.zeros((2, 2)),
        switch_energy_j=np.zeros((2, 2)),
        budget_s=8.0,
        max_switches=2,
        dwell_s=np.array([[0.0, 3.5], [3.5, 0.0]]),
    )
    full, none = CyclicExact().solve(problem), CyclicExact(effort=0).solve(problem)

    assert full.status is ScheduleBruteForce().solve(problem).status
    assert none.bound_j <= full.energy_j


@pytest.mark.slow
def test_many_settings_with_many_dwells_are_not_closed_at_any_price() -> None:
    problem = like_a_gpu(200, 3, core=160)
    dwell_s = problem.switch_time_s * np.random.default_rng(3).uniform(1, 9, problem.dwell_s.shape)
    problem = replace(problem, dwell_s=dwell_s)
    began_s = time.process_time()
    schedule = CyclicExact(gap=0.0, effort=100_000).solve(problem)

    assert_keeps_its_word(problem, schedule)
    # It took 8 s where all sources were looked at, and paths were not counted for what they take.
    assert time.process_time() - began_s < 4.0


def test_a_coarser_gap_stops_earlier_and_says_so() -> None:
    problem = like_a_gpu(600, 2)
    exact, coarse = CyclicExact().solve(problem), CyclicExact(gap=0.01).solve(problem)

    assert coarse.status is Status.BOUNDED
    assert coarse.gap is not None
    assert coarse.gap <= 0.01
    assert coarse.bound_j <= exact.energy_j <= coarse.energy_j


def test_blocked_everywhere_is_one_fixed_clock() -> None:
    problem = replace(like_a_gpu(20, 3), blocked=np.ones(20, dtype=np.bool_))
    schedule = CyclicExact().solve(problem)

    assert schedule.status is Status.OPTIMAL
    assert schedule.switches == 0


def test_no_setting_for_an_item_that_may_not_switch_is_infeasible() -> None:
    inf = math.inf
    problem = SequenceProblem(
        time_s=np.array([[1.0, inf], [inf, 1.0], [1.0, 1.0]]),
        energy_j=np.array([[1.0, inf], [inf, 1.0], [1.0, 1.0]]),
        order=np.array([0, 1, 2]),
        switch_time_s=np.zeros((2, 2)),
        switch_energy_j=np.zeros((2, 2)),
        blocked=np.array([False, True, False]),
    )

    assert CyclicExact().solve(problem).status is Status.INFEASIBLE
    assert ScheduleBruteForce().solve(problem).status is Status.INFEASIBLE
