"""The time-cost trade-off of a network of activities: least cost at every completion time.

Each activity begins after those that it waits for, and may take longer for less (Kelley 1961,
Fulkerson 1961: crashing a project). Where costs are convex and piecewise linear this is a linear
program, and its dual is a flow through the network: what a second is worth on each path (Phillips
and Dessouky 1977 walk along it cut by cut, as Perseus, SOSP'24, does). `crashing` solves it.

Shape letters: A activities, E waits, P points of a curve.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from underclock.arrays import Floats, Ints

_ROUNDING = 1e-14  # of the magnitudes summed: what rounding may add to a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeCurve:
    """What an activity costs by how long it takes: convex, and never dearer when slower."""

    time_s: Floats  # ascending, (P,)
    cost_j: Floats  # descending; may be negative, (P,)

    @property
    def slope_w(self) -> Floats:
        """Cost per time from each point to the next: negative, ascending. Shape (P - 1,)."""
        return np.diff(self.cost_j) / np.diff(self.time_s)


@dataclass(frozen=True, kw_only=True)
class TradeoffProblem:
    """Activities that wait for one another, and what each costs by how long it takes."""

    waits_of: Ints  # activity that waits, (E,)
    waits_on: Ints  # activity that it waits for, (E,)
    lag_s: Floats  # from the end of that to the beginning of this, (E,)
    fixed_s: Floats  # duration of an activity without a curve, else 0, (A,)
    curve: Ints  # which curve an activity has; -1 for none, (A,)
    curves: tuple[TradeCurve, ...]  # that activities share
    weight: Floats  # an activity costs this many times its curve, (A,)

    @cached_property
    def forwards(self) -> "Sweep":
        """Activities from the first to the last."""
        return Sweep(len(self.curve), self.waits_of, self.waits_on)

    @cached_property
    def after_s(self) -> Floats:
        """What comes after each activity's end takes at least. Shape (A,)."""
        backwards = Sweep(len(self.curve), self.waits_on, self.waits_of)
        return backwards.begins(self.shortest_s, self.waits_of, self.lag_s)

    @cached_property
    def members(self) -> tuple[Ints, ...]:
        """Activities of each curve."""
        return tuple(np.flatnonzero(self.curve == at) for at in range(len(self.curves)))

    @cached_property
    def shortest_s(self) -> Floats:
        """What activities take at least. Shape (A,)."""
        return self._ends(0)

    @cached_property
    def longest_s(self) -> Floats:
        """What activities take where they cost least. Shape (A,)."""
        return self._ends(-1)

    def _ends(self, which: int) -> Floats:
        time_s = self.fixed_s.copy()
        for curve, members in zip(self.curves, self.members, strict=True):
            time_s[members] = curve.time_s[which]
        return time_s

    @cached_property
    def range_s(self) -> tuple[float, float]:
        """Shortest time in which all can end, and the one beyond which more time saves nothing."""
        return self.makespan_s(self.shortest_s), self.makespan_s(self.longest_s)

    def makespan_s(self, duration_s: Floats) -> float:
        """Return when the last activity ends. The longest path, O(A + E)."""
        return float(self.ends_s(duration_s).max())

    def ends_s(self, duration_s: Floats) -> Floats:
        """Return when activities end, each begun as early as it can. Shape (A,)."""
        return self.forwards.begins(duration_s, self.waits_on, self.lag_s) + duration_s

    def cost_j(self, duration_s: Floats) -> float:
        """Return what all activities together cost."""
        return math.fsum(self.weight * self._costs(duration_s))

    def _costs(self, duration_s: Floats) -> Floats:
        cost_j = np.zeros_like(duration_s)
        for curve, members in zip(self.curves, self.members, strict=True):
            cost_j[members] = np.interp(duration_s[members], curve.time_s, curve.cost_j)
        return cost_j

    @cached_property
    def at_stake_j(self) -> float:
        """Magnitude of all costs: what a gap is a fraction of."""
        ends = np.abs([self._costs(self.shortest_s), self._costs(self.longest_s)])
        return math.fsum(self.weight * ends.max(axis=0))

    def within(self, duration_s: Floats, time_s: float) -> Floats:
        """Cut durations so that all ends in time: the last possible where it would not.

        Args:
            duration_s: Any; nan for as long as there is room. Shape (A,).
            time_s: At least the shortest possible.
        """
        latest_s = time_s - self.after_s
        cut_s = np.fmin(duration_s, self.longest_s)
        begins_s, ends_s = np.zeros_like(cut_s), np.zeros_like(cut_s)
        for at, waits, firsts in self.forwards.steps:
            if len(waits):
                ready_s = ends_s[self.waits_on[waits]] + self.lag_s[waits]
                begins_s[at] = np.maximum.reduceat(ready_s, firsts)
            left_s = latest_s[at] - begins_s[at]
            cut_s[at] = np.maximum(self.shortest_s[at], np.minimum(cut_s[at], left_s))
            ends_s[at] = begins_s[at] + cut_s[at]
        return cut_s

    def bound_j(self, flow_w: Floats, source_w: Floats, sink_w: Floats, time_s: float) -> float:
        """Return what no plan that ends in time costs less than, whatever multipliers are given.

        They are made a flow first: what enters an activity leaves it, split as they say. What
        rounding leaves of it is charged at the whole time.

        Args:
            flow_w: Multiplier of each wait. Shape (E,).
            source_w: Of each activity's not beginning before 0. Shape (A,).
            sink_w: Of each activity's ending in time. Shape (A,).
        """
        given_w, source_w, sink_w = (
            np.nan_to_num(each, posinf=0.0) for each in (flow_w, source_w, sink_w)
        )
        split_w = (sink_w + np.bincount(self.waits_on, given_w, minlength=len(sink_w)))[
            self.waits_on
        ]
        flow_w = np.zeros_like(split_w)
        share = np.divide(given_w, split_w, where=split_w > 0.0, out=np.zeros_like(split_w))
        through_w = source_w.copy()
        for at, waits, firsts in self.forwards.steps[1:]:
            flow_w[waits] = share[waits] * through_w[self.waits_on[waits]]
            through_w[at] += np.add.reduceat(flow_w[waits], firsts)
        in_w: Floats = source_w + np.bincount(self.waits_of, flow_w, minlength=len(sink_w))
        on_w = np.bincount(self.waits_on, flow_w, minlength=len(sink_w))
        sink_w = np.maximum(through_w - on_w, 0.0)
        lost_w = np.abs(through_w - in_w).sum() + np.abs(through_w - on_w - sink_w).sum()
        least_j = self.fixed_s * through_w
        for curve, members in zip(self.curves, self.members, strict=True):
            worth_w, weight = through_w[members], self.weight[members]
            # The least of weight * cost + worth * time is where the slope passes their ratio.
            ratio_w = np.divide(
                worth_w, weight, where=weight > 0.0, out=np.full_like(weight, np.inf)
            )
            best = np.searchsorted(curve.slope_w, -ratio_w)
            least_j[members] = weight * curve.cost_j[best] + worth_w * curve.time_s[best]
        terms_j = np.concatenate([least_j, self.lag_s * flow_w, -sink_w * time_s])
        unsure_j = 2.0 * lost_w * time_s + _ROUNDING * np.abs(terms_j).sum()
        return math.fsum(terms_j) - float(unsure_j)


class Sweep:
    """Activities in an order in which each comes after all those that it looks at.

    They are ordered by how many are before them; those in a circle have no place.

    Attributes:
        steps: Activities that can be done at once; the links by which they look at earlier ones,
            sorted by activity; and where each activity's links begin. The first step has no links;
            in later steps every activity has one.
    """

    def __init__(self, count: int, of: Ints, on: Ints) -> None:
        by_on = np.argsort(on, kind="stable")
        starts = np.searchsorted(on[by_on], np.arange(count + 1))
        left = np.bincount(of, minlength=count)
        level = np.full(count, count)
        ready, depth = np.flatnonzero(left == 0), 0
        while len(ready):
            level[ready] = depth
            depth += 1
            links = np.concatenate([by_on[starts[at] : starts[at + 1]] for at in ready])
            after, seen = np.unique(of[links], return_counts=True)
            left[after] -= seen
            ready = after[left[after] == 0]
        order = np.argsort(level, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(count)
        by_of = np.argsort(rank[of], kind="stable")
        first = np.searchsorted(rank[of][by_of], np.arange(count + 1))
        ends = np.searchsorted(level[order], np.arange(depth + 1))
        self.steps = [
            (order[a:b], by_of[first[a] : first[b]], first[a:b] - first[a])
            for a, b in pairwise(ends.tolist())
        ]

    def begins(self, taken_s: Floats, on: Ints, lag_s: Floats) -> Floats:
        """Return when activities that take so long begin as early as they can. Shapes (A, ...).

        Links wait for activities ``on``, (E,), and a lag, (E,), after that.
        """
        begins_s, ends_s = np.zeros_like(taken_s), taken_s.copy()
        lag_s = lag_s.reshape(-1, *[1] * (taken_s.ndim - 1))
        for at, links, firsts in self.steps[1:]:
            ready_s = ends_s[on[links]] + lag_s[links]
            begins_s[at] = np.maximum.reduceat(ready_s, firsts, axis=0)
            ends_s[at] += begins_s[at]
        return begins_s
