"""Schedules made of two: they keep every rule, and meet the budget almost exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.switching import CyclicExact, SequenceProblem, cost_of, violations
from underclock.core.switching.crossover import offer_cycles, offer_mixtures
from underclock.core.switching.dual import DualSearch
from underclock.core.switching.incumbent import Incumbent
from underclock.core.switching.ring import ring_of


def layers(seed: int, *, dwell_s: float = 0.0, repeats: int = 40) -> SequenceProblem:
    """Draw six kernels that are launched over and over, as the layers of a step are."""
    random = np.random.default_rng(seed)
    kernels, count = 6, 8
    speed = np.linspace(0.4, 1.0, count)
    bound = random.uniform(0.1, 0.9, (kernels, 1))
    size_s = random.uniform(0.5e-3, 3e-3, (kernels, 1))
    time_s = size_s * (bound / speed + 1.0 - bound)
    energy_j = time_s * (80.0 + 220.0 * speed**3)
    order = np.tile(np.arange(kernels), repeats)
    off = 1.0 - np.eye(count)
    return SequenceProblem(
        time_s=time_s,
        energy_j=energy_j,
        order=order,
        switch_time_s=20e-6 * off,
        switch_energy_j=2e-3 * off,
        dwell_s=dwell_s * off,
        blocked=np.arange(len(order)) % 9 == 0,
        budget_s=1.03 * float(time_s[order, -1].sum()),
    )


def searched(problem: SequenceProblem) -> DualSearch:
    """Find the best multipliers, which leaves paths on both sides of the budget."""
    ring = ring_of(problem)
    assert ring is not None
    search = DualSearch(ring=ring, latest=problem.latest_s, most=problem.max_switches)
    assert search.run()
    return search


def mixed(problem: SequenceProblem, search: DualSearch) -> Incumbent:
    """Return the best mixture."""
    best = Incumbent(problem)
    offer_mixtures(best, search)
    return best


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 2e-3, 6e-3]))
def test_mixtures_keep_the_rules(seed: int, dwell_s: float) -> None:
    problem = layers(seed, dwell_s=dwell_s)
    search = searched(problem)
    best = mixed(problem, search)

    if best.choice is None:  # the segment across the cut may be too short in all of them
        assert dwell_s > 0
        return
    assert violations(problem, best.choice) == []
    assert best.energy == cost_of(problem, best.choice).energy_j
    assert best.energy >= search.bound


@pytest.mark.parametrize("dwell_s", [0.0, 2e-3])
def test_mixtures_are_mostly_near_the_bound(dwell_s: float) -> None:
    """Layers are alike, so their settings change all at once: a path by itself is far off."""
    gaps = []
    for seed in range(9):
        problem = layers(seed, dwell_s=dwell_s)
        search = searched(problem)
        unmixed = Incumbent(problem)
        for path in search.paths:
            unmixed.offer(search.ring.expanded(path.choice[:-1]))
        ends = (mixed(problem, search).energy, unmixed.energy)
        gaps.append([energy / search.bound - 1.0 for energy in ends])
    with_mixing, without = np.median(gaps, axis=0)

    assert with_mixing < 1e-3
    assert with_mixing < 0.5 * without


def test_without_any_effort_a_step_of_layers_is_planned_near_its_bound() -> None:
    problem = layers(1, dwell_s=2e-3)
    schedule = CyclicExact(effort=0).solve(problem)

    assert schedule.gap is not None
    assert schedule.gap < 1e-3


def test_paths_on_one_side_of_the_budget_make_no_mixture() -> None:
    problem = layers(0)
    search = searched(problem)
    search.paths = [path for path in search.paths if path.keeps_limits]
    best = Incumbent(problem)
    offer_mixtures(best, search)

    assert best.choice is None


@pytest.mark.parametrize(("dwell_s", "blocked"), [(3.0, False), (0.0, True)])
def test_two_choices_that_may_not_be_joined_anywhere_are_left_alone(
    *, dwell_s: float, blocked: bool
) -> None:
    problem = SequenceProblem(
        time_s=np.array([[2.0, 1.0]]),
        energy_j=np.array([[1.0, 3.0]]),
        order=np.zeros(4, dtype=np.int64),
        switch_time_s=np.zeros((2, 2)),
        switch_energy_j=np.zeros((2, 2)),
        dwell_s=dwell_s * (1.0 - np.eye(2)),
        blocked=np.full(4, blocked),
        budget_s=6.0,
    )
    ring = ring_of(problem)
    assert ring is not None
    search = DualSearch(ring=ring, latest=problem.latest_s, most=None)
    search.run()
    best = Incumbent(problem)
    offer_mixtures(best, search)

    assert best.choice is None or violations(problem, best.choice) == []


@settings(max_examples=6)
@given(st.integers(0, 2**32 - 1))
def test_cycles_keep_the_rules_also_across_the_cut(seed: int) -> None:
    problem = layers(seed, dwell_s=30e-3)
    search = searched(problem)
    best = Incumbent(problem)
    offer_cycles(best, search)

    assert best.choice is None or violations(problem, best.choice) == []
    assert best.energy >= search.bound


@pytest.mark.untraced
def test_cycles_are_found_where_no_path_closes() -> None:
    """With long dwell the segment across the cut is too short in most paths."""
    found = np.zeros(2)
    for seed in range(8):
        problem = layers(seed, dwell_s=30e-3)
        search = searched(problem)
        cycles = Incumbent(problem)
        offer_cycles(cycles, search)
        energies = np.array([mixed(problem, search).energy, cycles.energy])
        found += energies <= search.bound * 1.003

    assert found[1] > found[0]


def test_a_path_that_never_switches_is_cut_in_its_longest_item() -> None:
    problem = SequenceProblem(
        time_s=np.array([[1.0], [3.0]]),
        energy_j=np.array([[1.0], [3.0]]),
        order=np.array([0, 1, 0]),
        switch_time_s=np.zeros((1, 1)),
        switch_energy_j=np.zeros((1, 1)),
        budget_s=6.0,
    )
    best = Incumbent(problem)
    offer_cycles(best, searched(problem))

    assert best.energy == 5.0


def test_where_no_cycle_through_the_longest_segment_is_fast_enough_none_is_offered() -> None:
    problem = layers(0)
    search = searched(problem)
    search.latest = 0.5 * problem.budget_s
    best = Incumbent(problem)
    offer_cycles(best, search)

    assert best.choice is None
