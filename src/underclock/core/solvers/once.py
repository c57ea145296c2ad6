"""The cheapest schedules of launches that run through once, at prices of time.

What runs before and after is another's, at clocks of its own. So every segment, the first and the
last too, must be long enough to be followed by any setting: a launch that takes nothing is put
between end and begin of the ring, at a setting that only it has. The ring is cut there, where
nothing dwells, so one shortest path is exact at each price.

Shape letters: n launches, K kernels, S settings.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.solvers.problems import SequenceProblem
from underclock.core.solvers.ring import lagrangian_of, ring_of, shortest_path


def once_through(problem: SequenceProblem) -> Callable[[float], Ints | None]:
    """Return what finds the schedule of least energy and paid time, at a price of time.

    Of a price in joules per second it makes a setting for each launch, (n,), and ``None`` where no
    schedule keeps the rules. Budget and number of switches are not looked at; changes at begin and
    end cost nothing here.
    """
    ring = ring_of(_opened(problem))

    def cheapest(price_w: float) -> Ints | None:
        if ring is None:
            return None
        least, choice = shortest_path(ring, lagrangian_of(ring, price_w))
        return ring.expanded(choice[:-1])[1:] if np.isfinite(least) else None

    return cheapest


def _opened(problem: SequenceProblem) -> SequenceProblem:
    """Put a launch of nothing between the end and the begin."""
    kernels, settings = problem.time_s.shape

    def with_nothing(costs: Floats) -> Floats:
        wider = np.pad(costs, ((0, 1), (0, 1)), constant_values=np.inf)
        wider[kernels, settings] = 0.0
        return wider

    def with_outside(changes: Floats) -> Floats:
        return np.pad(changes, ((0, 1), (0, 1)))

    dwell_s = with_outside(problem.dwell_s)
    dwell_s[:-1, -1] = problem.dwell_s.max(axis=1)
    return replace(
        problem,
        time_s=with_nothing(problem.time_s),
        energy_j=with_nothing(problem.energy_j),
        order=np.append(kernels, problem.order),
        switch_time_s=with_outside(problem.switch_time_s),
        switch_energy_j=with_outside(problem.switch_energy_j),
        dwell_s=dwell_s,
        jitter_s=with_outside(problem.jitter_s),
        miss_time_s=with_outside(problem.miss_time_s),
        miss_energy_j=with_outside(problem.miss_energy_j),
        blocked=np.concatenate([[False, False], problem.blocked[1:]]),
    )
