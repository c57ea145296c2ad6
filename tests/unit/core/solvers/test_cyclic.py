"""The scheduler, judged by brute force, by its own bound, and by what must not change."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from judges.brute import ScheduleBruteForce
from made_switches import sequence
from underclock.arrays import Floats, Ints
from underclock.core.solvers import SequenceProblem, Solution, costed, violations
from underclock.core.solvers.cyclic import solve_cyclic
from underclock.core.solvers.cyclic_paths import (
    Lagrangian,
    Ring,
    lagrangian_of,
    ring_of,
    shortest_path,
)
from underclock.core.solvers.problems import DWELL_SLACK
from underclock.records import Status

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
    return sequence(
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


def like_a_gpu(n: int, seed: int, *, core: int = 6) -> SequenceProblem:
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
    return sequence(
        time_s=time_s,
        energy_j=energy_j,
        order=np.arange(n),
        switch_time_s=switch_s,
        switch_energy_j=100.0 * switch_s,
        budget_s=1.1 * float(time_s[:, -1].sum()),
    )


def layers(seed: int, *, dwell_s: float) -> SequenceProblem:
    """Draw six kernels that are launched over and over, as the layers of a step are."""
    random = np.random.default_rng(seed)
    kernels, count = 6, 8
    speed = np.linspace(0.4, 1.0, count)
    bound = random.uniform(0.1, 0.9, (kernels, 1))
    time_s = random.uniform(0.5e-3, 3e-3, (kernels, 1)) * (bound / speed + 1.0 - bound)
    energy_j = time_s * (80.0 + 220.0 * speed**3)
    order = np.tile(np.arange(kernels), 40)
    off = 1.0 - np.eye(count)
    return sequence(
        time_s=time_s,
        energy_j=energy_j,
        order=order,
        switch_time_s=20e-6 * off,
        switch_energy_j=2e-3 * off,
        dwell_s=dwell_s * off,
        blocked=np.arange(len(order)) % 9 == 0,
        budget_s=1.03 * float(time_s[order, -1].sum()),
    )


def assert_keeps_its_word(problem: SequenceProblem, schedule: Solution) -> None:
    """What a schedule says of itself is true."""
    if schedule.status is Status.INFEASIBLE:
        assert len(schedule.choice) == 0
        assert schedule.energy_j == schedule.time_s == math.inf
        return
    cost = costed(problem, schedule.choice)
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
        reference, schedule = ScheduleBruteForce().solve(problem), solve_cyclic(problem)

        assert_keeps_its_word(problem, schedule)
        assert (schedule.status is Status.INFEASIBLE) == (reference.status is Status.INFEASIBLE)
        assert schedule.energy_j == pytest.approx(reference.energy_j, rel=1e-9), seed
        assert schedule.bound_j <= reference.energy_j, seed


@settings(max_examples=12)
@given(seeds)
@example(4)  # whose dwell is rounded
def test_dwell_of_more_than_four_values_leaves_answers_feasible_and_bounds_valid(seed: int) -> None:
    random, problem = np.random.default_rng(seed), small(seed)
    longest_s = problem.time_s[np.isfinite(problem.time_s)].max()
    dwell_s = random.uniform(0.0, 3.0, problem.dwell_s.shape) * longest_s
    problem = replace(problem, dwell_s=dwell_s * (1.0 - np.eye(len(dwell_s))))
    reference, schedule = ScheduleBruteForce().solve(problem), solve_cyclic(problem)

    if schedule.status is Status.INFEASIBLE:  # of all, or with the longer dwell
        return
    assert_keeps_its_word(problem, schedule)
    assert schedule.bound_j <= reference.energy_j <= schedule.energy_j


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_long_ring_is_near_its_bound_and_beats_any_fixed_clock(seed: int) -> None:
    problem = like_a_gpu(600, seed)
    schedule = solve_cyclic(problem)

    assert_keeps_its_word(problem, schedule)
    assert schedule.gap is not None
    assert schedule.gap < 1e-4
    assert schedule.switches > 0
    # From another cut and in another order.
    turned = solve_cyclic(replace(problem, order=np.roll(problem.order, 217)))
    assert turned.bound_j <= schedule.energy_j
    assert schedule.bound_j <= turned.energy_j


@pytest.mark.parametrize("max_paths", [3, 60])
def test_dwell_blocks_and_a_limit_on_switches_are_kept_on_a_long_ring(max_paths: int) -> None:
    problem = like_a_gpu(300, 5)
    problem = replace(
        problem, dwell_s=10.0 * problem.switch_time_s, blocked=np.arange(300) % 7 == 0
    )
    free = solve_cyclic(problem, max_paths=max_paths)
    few = solve_cyclic(
        replace(problem, max_switches=free.switches // 2), [free.choice], max_paths=max_paths
    )

    assert few.switches <= free.switches // 2
    assert few.energy_j >= free.bound_j
    assert few.bound_j >= free.bound_j * (1.0 - 0.02)
    for schedule in (free, few):
        assert_keeps_its_word(problem, schedule)
        assert schedule.gap is not None
        assert schedule.gap < 0.03


@pytest.mark.untraced
@pytest.mark.parametrize("dwell_s", [0.0, 2e-3, 30e-3])
def test_a_step_of_layers_is_planned_near_its_bound(dwell_s: float) -> None:
    """Layers are alike, so their settings change all at once: a path by itself is far off."""
    gaps = []
    for seed in range(6):
        problem = layers(seed, dwell_s=dwell_s)
        schedule = solve_cyclic(problem, gap=1e-4)
        assert_keeps_its_word(problem, schedule)
        gaps.append(schedule.gap or 0.0)

    assert np.median(gaps) < (1e-3 if dwell_s < 30e-3 else 1e-2)


def test_a_schedule_is_chosen_by_whoever_judges_it() -> None:
    problem = layers(0, dwell_s=2e-3)
    plain = solve_cyclic(problem, gap=1e-4)
    late_s = 0.01 * problem.budget_s

    def judge(choice: Ints) -> tuple[float, float]:
        """Every change makes the step later than its costs say, and dearer."""
        cost = costed(problem, choice)
        extra = cost.switches / max(plain.switches, 1)
        lateness_s = cost.time_s + extra * late_s - problem.budget_s
        return lateness_s, cost.energy_j * (1.0 + 1e-3 * extra)

    judged = solve_cyclic(problem, [], judge, gap=1e-4)
    assert judge(plain.choice)[0] > 0.0
    assert violations(problem, judged.choice) == []
    assert judge(judged.choice)[0] <= 0.0
    constants = [np.full(len(problem.order), s) for s in range(problem.time_s.shape[1])]
    fixed = [judge(each)[1] for each in constants if judge(each)[0] <= 0.0]
    assert judge(judged.choice)[1] < min(fixed)
    assert judged.bound_j <= plain.energy_j

    def hopeless(choice: Ints) -> tuple[float, float]:
        return 1.0, costed(problem, choice).energy_j

    none = solve_cyclic(problem, [plain.choice], hopeless)
    assert none.status is Status.INFEASIBLE
    assert none.bound_j <= plain.energy_j


@pytest.mark.slow
def test_many_settings_with_many_dwells_take_no_long_time() -> None:
    problem = like_a_gpu(200, 3, core=160)
    dwell_s = problem.switch_time_s * np.random.default_rng(3).uniform(1, 9, problem.dwell_s.shape)
    problem = replace(problem, dwell_s=dwell_s)
    began_s = time.process_time()
    schedule = solve_cyclic(problem, gap=0.0)

    assert_keeps_its_word(problem, schedule)
    # It took 8 s where all sources were looked at.
    assert time.process_time() - began_s < 4.0


def test_a_coarser_gap_stops_earlier_and_says_so() -> None:
    problem = like_a_gpu(600, 2)
    fine, coarse = solve_cyclic(problem, gap=1e-5), solve_cyclic(problem, gap=0.01)

    assert fine.gap is not None
    assert coarse.gap is not None
    assert fine.gap <= coarse.gap <= 0.01
    assert coarse.bound_j <= fine.energy_j <= coarse.energy_j


def least_by_segments(ring: Ring, lagrangian: Lagrangian, levels_s: Floats) -> float:
    """Return the least cost of a path, every segment looked at from every boundary."""
    items, settings = ring.time.shape
    shut = np.zeros_like(ring.time) if ring.shut is None else ring.shut
    least = np.full((items + 1, settings), np.inf)  # of a segment that begins at a boundary
    least[0] = 0.0
    ends = np.inf
    begins_s = np.concatenate([np.zeros((1, settings)), np.cumsum(ring.time, axis=0)])
    for j in range(1, items + 1):
        for i in range(j):
            open_at = shut[i:j].sum(axis=0) == 0.0
            paid = least[i] + lagrangian.sums[j] - (lagrangian.sums[i] if i else 0.0)
            paid = np.where(open_at, paid, np.inf)
            if j == items:
                ends = min(ends, float((paid + lagrangian.half).min()))
            change = lagrangian.change.min(axis=0) + np.diag(np.full(settings, np.inf))
            if i:
                need_s = levels_s[ring.kind] * (1.0 - DWELL_SLACK)
                lasts_s = (begins_s[j] - begins_s[i])[:, None]
                change = np.where(lasts_s >= need_s, change, np.inf)
            least[j] = np.minimum(least[j], (paid[:, None] + change).min(axis=0))
    return min(ends, float((least[items] + lagrangian.half).min()))


def many_settings(switch_s: float, *dwell_s: float) -> Ring:
    """Draw a ring whose settings are too many to look at each as a source."""
    random = np.random.default_rng(5)
    n, count = 12, 140
    time, energy = random.uniform(0.1, 5.0, (2, n, count))
    ring = ring_of(
        sequence(
            time_s=time,
            energy_j=energy,
            order=np.arange(n),
            switch_time_s=switch_s * random.uniform(0.5, 1.0, (count, count)) * (1 - np.eye(count)),
            switch_energy_j=np.zeros((count, count)),
            dwell_s=random.choice(dwell_s, (count, count)) * (1 - np.eye(count)),
        )
    )
    assert ring is not None
    return ring


@pytest.mark.parametrize("switch_s", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("dwell_s", [(0.0,), (0.0, 3.0, 40.0), (2.0, 5.0)])
def test_leaving_sources_out_changes_no_cost(switch_s: float, dwell_s: tuple[float, ...]) -> None:
    ring = many_settings(switch_s, *dwell_s)
    lagrangian = lagrangian_of(ring, 1.3)
    reference = least_by_segments(ring, lagrangian, np.unique(dwell_s))

    assert len(lagrangian.change) == len(dwell_s)
    assert shortest_path(ring, lagrangian)[0] == pytest.approx(reference)
