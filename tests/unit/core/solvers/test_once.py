"""Launches that run through once: at each price nothing is cheaper, and every segment dwells."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.solvers import SequenceProblem, once_through
from underclock.core.solvers.problems import DWELL_SLACK


def problem_from(seed: int) -> SequenceProblem:
    """Draw a few launches, some of which may not be preceded by a change."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(1, 7)), int(random.integers(1, 4))
    off = 1.0 - np.eye(count)
    time, energy = random.uniform(0.1, 5.0, (2, n, count))
    holes = (random.random(time.shape) < 0.2) & bool(random.random() < 0.5)
    holes[np.arange(n), random.integers(0, count, n)] = False
    time[holes], energy[holes] = np.inf, np.inf
    return SequenceProblem(
        time_s=time,
        energy_j=energy,
        order=np.arange(n),
        switch_time_s=random.uniform(0.0, 1.0, (count, count)) * off,
        switch_energy_j=random.uniform(0.0, 1.0, (count, count)) * off,
        dwell_s=random.choice([0.0, 3.0, 6.0], (count, count)) * off,
        blocked=random.random(n) < 0.2,
    )


def cost(problem: SequenceProblem, choice: tuple[int, ...], price_w: float) -> float:
    """Return energy and paid time of a schedule; ``inf`` where it breaks a rule."""
    known_s = np.where(np.isfinite(problem.time_s), problem.time_s, 0.0)
    costs = problem.energy_j + price_w * known_s
    changes = problem.switch_energy_j + price_w * problem.switch_time_s
    total, lasts_s = 0.0, 0.0
    for at, (here, after) in enumerate(itertools.zip_longest(choice, choice[1:])):
        total += float(costs[at, here])
        lasts_s += float(problem.time_s[at, here])
        if here == after:
            continue
        least_s = problem.dwell_s[here].max() if after is None else problem.dwell_s[here, after]
        shut = after is not None and problem.blocked[at + 1]
        if lasts_s < least_s * (1.0 - DWELL_SLACK) or shut:
            return np.inf
        total += 0.0 if after is None else float(changes[here, after])
        lasts_s = 0.0
    return total


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_nothing_is_cheaper_at_its_price(seed: int) -> None:
    problem = problem_from(seed)
    n, count = problem.time_s.shape
    every = list(itertools.product(range(count), repeat=n))
    for price_w in (0.0, 0.7, 30.0):
        least = min(cost(problem, choice, price_w) for choice in every)
        choice = once_through(problem)(price_w)
        assert (choice is None) == np.isinf(least)
        if choice is not None:
            assert cost(problem, tuple(choice.tolist()), price_w) == pytest.approx(least)
