"""The supported time-energy frontier, and the objectives whose optimum lies on it.

A supported point is the cheapest choice at some multiplier of time; there is one for every trade of
the hull. Energy x time^p (EDP: p = 1, ED²P: p = 2) is quasi-concave where both are positive, for
its logarithm is a sum of concave functions; so over all choices, mixtures included, it is least at
a corner of their convex hull, which is a supported point. Looking at each of them is exact.

Shape letters: T trades.
"""

import heapq

import numpy as np

from underclock.arrays import Floats
from underclock.core.knapsack.hull import Trades, trades
from underclock.core.knapsack.problem import Problem, Quanta, Solution, solution_of


def supported(problem: Problem) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of every supported point, fastest first. Shape (T + 1,)."""
    return _points(problem, trades(Quanta.of(problem)))


def _points(problem: Problem, steps: Trades) -> tuple[Floats, Floats]:
    """Cost every prefix of the trades. Shapes (T + 1,)."""
    rows = np.arange(len(steps.start))
    source, target = (steps.group, steps.source), (steps.group, steps.target)
    time_s = problem.time_s[target] - problem.time_s[source]
    energy_j = problem.energy_j[target] - problem.energy_j[source]
    first = problem.time_s[rows, steps.start].sum(), problem.energy_j[rows, steps.start].sum()
    return (
        np.cumsum(np.append(first[0], time_s)),
        np.cumsum(np.append(first[1], energy_j)),
    )


def least_product(problem: Problem, *, power: int) -> Solution:
    """Minimise energy x time^power over all choices, ignoring the budget; exact."""
    steps = trades(Quanta.of(problem))
    time_s, energy_j = _points(problem, steps)
    return solution_of(problem, steps.choice_after(int(np.argmin(energy_j * time_s**power))))


def subsampled(time_s: Floats, energy_j: Floats, most: int) -> tuple[Floats, Floats]:
    """Keep at most so many points, both ends included, so that a line through them misses little.

    The point whose energy the line misses by most is added until there are enough (Ramer 1972,
    Douglas and Peucker 1973): the points stand close where the frontier bends.

    Args:
        time_s: Ascending. Shape (T + 1,).
        energy_j: At each time. Shape (T + 1,).
        most: At least 2.
    """
    if len(time_s) <= most:
        return time_s, energy_j
    kept = [0, len(time_s) - 1]
    chords = [_missed(time_s, energy_j, *kept)]
    while len(kept) < most and chords[0][0] < 0.0:
        _, start, point, end = heapq.heappop(chords)
        kept.append(point)
        heapq.heappush(chords, _missed(time_s, energy_j, start, point))
        heapq.heappush(chords, _missed(time_s, energy_j, point, end))
    kept.sort()
    return time_s[kept], energy_j[kept]


def _missed(time_s: Floats, energy_j: Floats, start: int, end: int) -> tuple[float, int, int, int]:
    """Return by how much energy, negated, a chord misses which point, between which ends."""
    span_s = time_s[end] - time_s[start]
    if end - start < 2 or span_s == 0.0:  # noqa: PLR2004 - no point between, or all in its time
        return 0.0, start, start, end
    inner = slice(start + 1, end)
    slope_w = (energy_j[end] - energy_j[start]) / span_s
    off_j = np.abs(energy_j[inner] - energy_j[start] - slope_w * (time_s[inner] - time_s[start]))
    worst = int(np.argmax(off_j))
    return -float(off_j[worst]), start, start + 1 + worst, end
