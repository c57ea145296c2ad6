"""The trades of energy for time of many groups at once, best first, and the frontier they make.

Every group's lower convex hull is a chain of trades. Any number of them, in order of energy saved
per time, leads to a supported point of the time-energy frontier: the cheapest choice at some
multiplier of time. Energy x time^p (EDP: p = 1, ED²P: p = 2) is quasi-concave where both are
positive, for its logarithm is a sum of concave functions; so over all choices, mixtures included,
it is least at a corner of their convex hull, which is a supported point. Looking at each of them is
exact.

Shape letters: G groups, S settings, T trades.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.solvers.problems import Problem, Solution, costed
from underclock.records import Status

# Sums of integers below this are exact in a float64 too, with three bits to spare.
_LARGEST_SUM = 2.0**50
_MOST_DIGITS = 300  # a power of ten that a float64 still holds
_TOGETHER = 1_000  # groups wrapped at a time, so that their tables stay in the processor's cache


class Quanta:
    """A problem in whole numbers, so that comparing two sums leaves nothing to rounding.

    A quantum is the least power of ten of a second or joule that keeps every sum exact: a
    picosecond for steps up to 1000 s, finer for shorter ones. (Nanoseconds would be a part in a
    thousand of a microsecond kernel.) Where a table is itself on a coarser grid, the quantum is the
    grid's: two choices that differ then differ by a whole step of it, which makes proofs shorter.

    Attributes:
        time: 0 where a setting is not available. Shape (G, S).
        energy: 0 in the same places. Shape (G, S).
        budget: In time quanta; -1 for any that is negative.
        rounding_j: What rounding can at most change the energy of a choice by.
    """

    def __init__(self, problem: Problem) -> None:
        self.available = np.isfinite(problem.time_s)
        self.time, fine, coarse = _whole(np.where(self.available, problem.time_s, 0.0))
        # A budget that is the sum of rounded times must admit the rounded sum: half a quantum each.
        budget = (problem.budget_s * fine + 0.5 * len(self.time)) / coarse
        self.budget = math.floor(max(-1.0, min(budget, float(self.time.max(axis=1).sum()))))
        self.energy, fine, coarse = _whole(np.where(self.available, problem.energy_j, 0.0))
        self.per_joule, self.rounding_j = fine / coarse, 0.5 * len(self.time) / fine


def _whole(values: Floats) -> tuple[Ints, float, int]:
    """Return values in quanta, the fine quanta in a unit, and the fine quanta in a quantum."""
    most = float(values.max(axis=1).sum())
    digits = math.floor(math.log10(_LARGEST_SUM) - math.log10(most)) if most > 0 else 0
    fine = 10.0 ** min(digits, _MOST_DIGITS)
    whole = np.rint(values * fine).astype(np.int64)
    step = max(1, int(np.gcd.reduce(whole, axis=None)))
    return whole // step, fine, step


@dataclass(frozen=True, slots=True)
class Trades:
    """Every step along every group's hull, from its fastest setting to its cheapest.

    Taking the first n trades from ``start`` gives a supported point of the time-energy frontier,
    for every n: within a group trades come in hull order.
    """

    start: Ints  # fastest setting of each group, the cheapest of equals, (G,)
    group: Ints  # (T,)
    source: Ints  # setting the trade departs from, (T,)
    target: Ints  # setting the trade leads to, (T,)
    time: Ints  # time quanta it costs, (T,)
    energy: Ints  # energy quanta it saves, (T,)
    rate: Floats  # energy saved per time, descending, (T,)

    def choice_after(self, count: int) -> Ints:
        """Return the setting of every group after the first ``count`` trades. Shape (G,)."""
        choice = self.start.copy()
        # A group's later trades overwrite its earlier ones: numpy assigns in order.
        choice[self.group[:count]] = self.target[:count]
        return choice


def trades(quanta: Quanta) -> Trades:
    """Wrap every group's hull, some groups at a time, all of them one corner at a time."""
    start = np.empty(len(quanta.time), dtype=np.int64)
    corners: list[tuple[Ints, Ints, Ints, Floats]] = []
    for first in range(0, len(start), _TOGETHER):
        part = slice(first, first + _TOGETHER)
        blocked = ~quanta.available[part]
        time = np.where(blocked, np.inf, quanta.time[part])
        energy = np.where(blocked, np.inf, quanta.energy[part])
        least = time.min(axis=1, keepdims=True)
        start[part] = np.where(time == least, energy, np.inf).argmin(axis=1)
        active, here = np.arange(len(time)), start[part]
        rate_cap = np.full(len(time), np.inf)
        while len(active):
            # Moving to a setting that a group has not got saves less than nothing.
            cost = time[active] - time[active, here][:, None]
            saving = energy[active, here][:, None] - energy[active]
            trade = (cost > 0) & (saving > 0)
            rate = np.divide(saving, cost, out=np.zeros_like(cost), where=trade)
            # The steepest trade; of collinear ones the longest, so that rates strictly fall.
            steepest = rate.max(axis=1)
            target = np.where(rate == steepest[:, None], cost, -1.0).argmax(axis=1)
            on = steepest > 0
            active, here, target = active[on], here[on], target[on]
            # Rounding may make a later rate greater by one part in 2^52; order matters more.
            rate_cap = np.minimum(rate_cap[on], steepest[on])
            corners.append((first + active, here, target, rate_cap))
            here = target
    group, source, target, rate = map(np.concatenate, zip(*corners, strict=True))
    order = np.argsort(-rate, kind="stable")
    group, source, target, rate = group[order], source[order], target[order], rate[order]
    takes = quanta.time[group, target] - quanta.time[group, source]
    saves = quanta.energy[group, source] - quanta.energy[group, target]
    return Trades(start, group, source, target, takes, saves, rate)


def supported(problem: Problem, steps: Trades | None = None) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of every supported point, fastest first. Shape (T + 1,)."""
    steps = steps or trades(Quanta(problem))
    rows = np.arange(len(steps.start))
    source, target = (steps.group, steps.source), (steps.group, steps.target)
    time_s = problem.time_s[target] - problem.time_s[source]
    energy_j = problem.energy_j[target] - problem.energy_j[source]
    first = problem.time_s[rows, steps.start].sum(), problem.energy_j[rows, steps.start].sum()
    return np.cumsum(np.append(first[0], time_s)), np.cumsum(np.append(first[1], energy_j))


def least_product(problem: Problem, *, power: int) -> Solution:
    """Minimise energy x time^power over all choices, ignoring the budget; exact."""
    steps = trades(Quanta(problem))
    time_s, energy_j = supported(problem, steps)
    best = steps.choice_after(int(np.argmin(energy_j * time_s**power)))
    return costed(problem, best, Status.OPTIMAL)


def subsampled(time_s: Floats, energy_j: Floats, most: int) -> tuple[Floats, Floats]:
    """Keep at most so many points, both ends included, so that a line through them misses little.

    The point whose energy the line misses by most is added until there are enough (Ramer 1972,
    Douglas and Peucker 1973): the points stand close where the frontier bends.

    Args:
        time_s: Ascending. Shape (T + 1,).
        energy_j: At each time. Shape (T + 1,).
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
