"""Shortest paths: what a path costs, and that no other costs less."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.core.solvers import SequenceProblem
from underclock.core.solvers.cyclic_paths import (
    Lagrangian,
    Ring,
    lagrangian_of,
    ring_of,
    shortest_path,
)
from underclock.core.solvers.problems import DWELL_SLACK

seeds = st.integers(0, 2**32 - 1)


def ring_from(seed: int) -> Ring:
    """Draw a ring with holes, dwell and blocked boundaries, or without."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(2, 9)), int(random.integers(1, 6))
    time, energy = random.uniform(0.1, 5.0, (2, n, count))
    holes = (random.random(time.shape) < 0.2) & bool(random.random() < 0.5)
    holes[:, 0] = False
    time[holes], energy[holes] = np.inf, np.inf
    off = 1.0 - np.eye(count)
    dwell = random.choice([0.0, 3.0, 6.0], (count, count)) * off * int(random.random() < 0.5)
    ring = ring_of(
        SequenceProblem(
            time_s=time,
            energy_j=energy,
            order=np.arange(n),
            switch_time_s=random.uniform(0.0, 2.0, (count, count)) * off,
            switch_energy_j=random.uniform(0.0, 2.0, (count, count)) * off,
            dwell_s=dwell,
            blocked=random.random(n) < 0.2,
        ),
        int(random.integers(0, n)),
    )
    assert ring is not None
    return ring


def least_by_segments(ring: Ring, lagrangian: Lagrangian) -> float:
    """Return the least cost of a path, every segment looked at from every boundary."""
    items, settings = ring.time.shape
    shut = np.zeros_like(ring.time) if ring.shut is None else ring.shut
    least = np.full((items + 1, settings), np.inf)  # of a segment that begins at a boundary
    least[0] = 0.0
    ends = np.inf
    for j in range(1, items + 1):
        for i in range(j):
            open_at = shut[i:j].sum(axis=0) == 0.0
            paid = least[i] + lagrangian.sums[j] - (lagrangian.sums[i] if i else 0.0)
            paid = np.where(open_at, paid, np.inf)
            if j == items:
                ends = min(ends, float((paid + lagrangian.half).min()))
            change = lagrangian.change.min(axis=0) + np.diag(np.full(settings, np.inf))
            if ring.dwell is not None and i:
                need_s = ring.dwell.levels_s[ring.dwell.kind] * (1.0 - DWELL_SLACK)
                lasts_s = (ring.lasts[j] - ring.lasts[i])[:, None]
                change = np.where(lasts_s >= need_s, change, np.inf)
            least[j] = np.minimum(least[j], (paid[:, None] + change).min(axis=0))
    return min(ends, float((least[items] + lagrangian.half).min()))


@settings(max_examples=40)
@given(seeds, st.floats(0.0, 3.0), st.floats(0.0, 2.0))
def test_the_least_cost_is_what_the_path_costs_and_no_other_costs_less(
    seed: int, time: float, switch: float
) -> None:
    ring = ring_from(seed)
    lagrangian = lagrangian_of(ring, time, switch)
    least, choice = shortest_path(ring, lagrangian)

    assert least == pytest.approx(least_by_segments(ring, lagrangian))
    items = np.arange(len(choice)) % len(ring.time)
    weight = np.where(np.isin(np.arange(len(choice)), [0, len(choice) - 1]), 0.5, 1.0)
    changes = choice[:-1], choice[1:]
    cost = weight @ (ring.energy + time * ring.time)[items, choice]
    cost += (ring.switch_energy + time * ring.switch_time)[changes].sum()
    cost += switch * (changes[0] != changes[1]).sum()
    assert cost == pytest.approx(least)


def many_settings(switch_s: float, *dwell_s: float) -> Ring:
    """Draw a ring whose settings are too many to look at each as a source."""
    random = np.random.default_rng(5)
    n, count = 12, 140
    time, energy = random.uniform(0.1, 5.0, (2, n, count))
    ring = ring_of(
        SequenceProblem(
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
    reference = least_by_segments(ring, lagrangian)

    assert len(lagrangian.change) == len(dwell_s)
    assert shortest_path(ring, lagrangian)[0] == pytest.approx(reference)
