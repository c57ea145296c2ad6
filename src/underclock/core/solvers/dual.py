"""The best multipliers: of time, and of a switch where their number is limited.

At any multipliers the shortest cycle, less the multiplied limits, is a lower bound. Each cycle is a
plane above the bound as a function of the multipliers; the next multipliers are those at which the
least of all planes known so far is greatest: the secant method with one multiplier, Kelley's
cutting planes with two.

Known schedules, or a sample of the ring, first give the settings that matter. With those only, the
search over the whole ring is cheap. It is a warm start all the same: the bound comes from one more
path, with all settings, at the multipliers that were found.

Shape letters: m items, S settings, P planes.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import scipy

from underclock.arrays import Floats, Ints
from underclock.core.solvers.cyclic_paths import Ring, lagrangian_of, ring_of, shortest_path
from underclock.core.solvers.problems import SequenceProblem

_STEP, _STEPS = 1.02, 6  # first step away from a warm start, as a factor; most steps
_HIGHEST = 1e4  # of either multiplier, in what would make the limit cost all the energy
_SAMPLE, _PART, _WINDOWS = 240, 20, 6  # least invocations, or a part of all; stretches of them
_RESTARTS = 6  # searches on a part of the settings, before all are searched
_LATE = 6  # paths at the end of a search whose settings matter


class Path(NamedTuple):
    """A path once round the ring, which may end at another setting than it began with."""

    energy: float  # of the path
    excess_s: float
    excess_switches: float  # switches beyond the most allowed; zero where there is no limit
    choice: Ints  # setting per item, and of item 0 once more, (m + 1,)

    @property
    def keeps_limits(self) -> bool:
        """Whether the path takes no more time and switches than allowed."""
        return self.excess_s <= 0 and self.excess_switches <= 0


@dataclass(slots=True, kw_only=True)
class DualSearch:
    """A search for the best multipliers of one ring."""

    ring: Ring
    latest: float  # most time; finite
    most: int | None  # most switches; ``None`` for no limit
    tolerance: float  # fraction of the bound by which it may still rise when the search ends
    max_paths: int  # most, that one multiplier, or a pair of them, is sought with
    # setting that item 0 must have at both ends; ``None`` for any at either
    through: int | None = None
    paths: list[Path] = field(default_factory=list, init=False)
    # best multiplier of time so far, in joules per second
    time: float = field(default=0.0, init=False)
    switch: float = field(default=0.0, init=False)  # best multiplier of a switch so far, in joules
    bound: float = field(default=-math.inf, init=False)  # no cycle within the limits costs less

    def run(self, start: float | None = None) -> bool:
        """Find the best multipliers, from a warm start of that of time if there is one.

        Returns:
            Whether there are any; if not, no cycle is fast enough.
        """
        # A path within the time, switches not counted.
        hurry = replace(
            self.ring,
            energy=np.zeros_like(self.ring.energy),
            switch_energy=np.zeros_like(self.ring.switch_energy),
        )
        lagrangian = lagrangian_of(hurry, 1.0)
        least, choice = shortest_path(hurry, lagrangian, self.through)
        if least > self.latest + lagrangian.error:
            return False
        fast = self._path(choice)
        self.paths.append(fast)
        slow: Path | None = None
        low, high, time, step = 0.0, math.inf, start or 0.0, _STEP
        for _ in range(_STEPS if start else 0):
            # About the start, until the multiplier is between two that were tried.
            here = self.visit(time)
            if here.excess_s <= 0:
                fast, high, time = here, time, time / step
            else:
                slow, low, time = here, time, time * step
            if slow is not None and high < math.inf:
                break
            step **= _STEPS / 2
        slow = slow or self.visit(0.0)
        below, above = slow.excess_s, fast.excess_s
        for turn in range(self.max_paths):
            if slow.excess_s <= 0:
                break
            time = max(0.0, (fast.energy - slow.energy) / (slow.excess_s - fast.excess_s))
            promise = slow.energy + time * slow.excess_s
            if promise - self.bound <= self.tolerance * abs(promise):
                break
            if turn % 3 and high < math.inf:
                # Cutting planes come in from one side. Time as a function of its multiplier is
                # smoother: regula falsi, an end that stays counting half (the Illinois method).
                time = low + (high - low) * below / (below - above)
            here = self.visit(time)
            if here.excess_s <= 0:
                fast, high, above, below = here, time, here.excess_s, 0.5 * below
            else:
                slow, low, below, above = here, time, here.excess_s, 0.5 * above
        if self.most is not None and any(path.excess_switches > 0 for path in self.paths):
            self._cut_planes()
        return True

    def visit(self, time: float, switch: float = 0.0) -> Path:
        """Find the shortest path at some multipliers; keep these if their bound is the best."""
        lagrangian = lagrangian_of(self.ring, time, switch)
        least, choice = shortest_path(self.ring, lagrangian, self.through)
        self.paths.append(self._path(choice))
        limits = time * self.latest + switch * (self.most or 0)
        bound = least - limits - lagrangian.error - 1e-15 * limits
        if bound > self.bound:
            self.time, self.switch, self.bound = time, switch, bound
        return self.paths[-1]

    def _path(self, choice: Ints) -> Path:
        ring, items = self.ring, np.arange(len(choice)) % len(self.ring.time)
        weight = np.ones(len(choice))
        weight[[0, -1]] = 0.5
        changes = choice[:-1], choice[1:]
        time = weight @ ring.time[items, choice] + ring.switch_time[changes].sum()
        energy = weight @ ring.energy[items, choice] + ring.switch_energy[changes].sum()
        switches = int((changes[0] != changes[1]).sum())
        excess_switches = 0.0 if self.most is None else float(switches - self.most)
        return Path(float(energy), float(time) - self.latest, excess_switches, choice)

    def _cut_planes(self) -> None:
        items, settings = self.ring.time.shape
        for s in range(settings):
            if self.ring.shut is None or not self.ring.shut[:, s].any():
                self.paths.append(self._path(np.full(items + 1, s)))
        energy, excess_s, excess_switches = self._planes().T
        units = (
            energy.max() or 1.0,
            max(self.latest, abs(excess_s).max()) or 1.0,
            abs(excess_switches).max() or 1,
        )
        for _ in range(self.max_paths):
            planes = self._planes() / units
            # The greatest height below every plane: height <= energy + multipliers @ excesses.
            answer = scipy.optimize.linprog(
                [-1.0, 0.0, 0.0],
                A_ub=np.column_stack([np.ones(len(planes)), -planes[:, 1:]]),
                b_ub=planes[:, 0],
                bounds=[(None, None), (0.0, _HIGHEST), (0.0, _HIGHEST)],
            )
            height, time, switch = answer.x
            promise = height * units[0]
            if promise - self.bound <= self.tolerance * abs(promise):
                return
            self.visit(time * units[0] / units[1], switch * units[0] / units[2])

    def _planes(self) -> Floats:
        """Return energy, excess time and excess switches of every path. Shape (P, 3)."""
        return np.array([path[:3] for path in self.paths])


def search_multipliers(
    problem: SequenceProblem,
    ring: Ring,
    start: tuple[float | None, Ints],
    *,
    tolerance: float,
    max_paths: int,
) -> tuple[DualSearch, float, Ints] | None:
    """Find the best multipliers, within ``tolerance`` of the bound as a fraction.

    Args:
        start: A multiplier of time, ``None`` if nothing is known of it, and the problem's numbers
            of the settings that matter. However poor, it costs time and never truth.

    Returns:
        The search, on a ring that may have fewer settings, its bound on the whole ring, and a path
        there; ``None`` if no path is fast enough.
    """
    multiplier, settings = start

    def search_on(some: Ring) -> DualSearch:
        latest, most = most_time(problem, ring), problem.max_switches
        return DualSearch(
            ring=some, latest=latest, most=most, tolerance=tolerance, max_paths=max_paths
        )

    for _ in range(_RESTARTS):
        part = ring_of(problem, int(ring.first[0]), settings)
        if part is None or len(settings) == len(ring.settings):
            break
        search = search_on(part)
        if not search.run(multiplier):
            break
        lagrangian = lagrangian_of(ring, search.time, search.switch)
        least, choice = shortest_path(ring, lagrangian)
        limits = search.time * search.latest + search.switch * (search.most or 0)
        bound = least - lagrangian.error - limits
        if bound >= search.bound - tolerance * abs(search.bound):
            return search, bound, choice
        multiplier = search.time
        settings = np.union1d(settings, ring.settings[choice])
    search = search_on(ring)
    return (search, search.bound, search.paths[-1].choice) if search.run(multiplier) else None


def most_time(problem: SequenceProblem, ring: Ring) -> float:
    """Return the budget, or what no path exceeds if that is less."""
    slowest = ring.time.max(axis=1).sum() + len(ring.time) * ring.switch_time.max()
    return min(problem.latest_s, float(slowest) * 1.001)


def warm_start(
    problem: SequenceProblem, ring: Ring, start: Items[Ints], *, max_paths: int
) -> tuple[float | None, Ints]:
    """Start with given schedules and the fastest, or with what a sample of a long ring leads to."""
    n = len(problem.order)
    if start:
        settings = np.concatenate([*start, problem.time_s.argmin(axis=1)])
        return None, np.intersect1d(ring.settings, settings)
    if n < 2 * _SAMPLE:
        return None, ring.settings
    length = max(_SAMPLE, n // _PART) // _WINDOWS
    begin = np.linspace(0, n, _WINDOWS, endpoint=False).astype(np.int64)
    at = (begin[:, None] + np.arange(length)).ravel()
    blocked = problem.blocked[at]
    blocked[::length] = False
    fastest = problem.time_s.min(axis=1)[problem.order]
    share = float(fastest[at].sum() / max(fastest.sum(), 1e-300))
    order, budget_s = problem.order[at], most_time(problem, ring) * share
    sample = replace(problem, order=order, blocked=blocked, max_switches=None, budget_s=budget_s)
    # Where all items have a setting, so has each part of one.
    sampled = ring_of(sample, int(fastest[at].argmax())) or ring
    latest = most_time(sample, sampled)
    search = DualSearch(ring=sampled, latest=latest, most=None, tolerance=1e-5, max_paths=max_paths)
    if not search.run():
        return None, ring.settings
    late = np.concatenate([path.choice for path in search.paths[:1] + search.paths[-_LATE:]])
    return search.time, np.unique(sampled.settings[late])
