"""The proven optimum of a sequence with switches.

1. `dual` finds the multipliers of time and switches at which the shortest cycle bounds all
   schedules best; `crossover` makes a first schedule of the paths met on the way.
2. The ring is cut where the shortest cycle is least in doubt, so that few settings are left to
   begin and end with; each is taken in turn.
3. `decomposition` takes apart the cycles within a margin of the shortest, `merge` puts the best
   schedule together again. What is not within the margin costs more than the bound plus the margin.
   So a small margin is tried first, then greater ones, until the best schedule is within.

Shape letters: n invocations, m items, S settings.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Ints
from underclock.core.switching.crossover import offer_cycles, offer_paths
from underclock.core.switching.decomposition import Decomposer
from underclock.core.switching.dual import DualSearch
from underclock.core.switching.incumbent import PROVEN, Incumbent
from underclock.core.switching.lagrangian import lagrangian_of
from underclock.core.switching.merge import MergeLimits, merge
from underclock.core.switching.problem import SequenceProblem
from underclock.core.switching.ring import Ring, ring_of
from underclock.core.switching.schedule import Schedule, infeasible
from underclock.core.switching.shortest_cycle import ShortestCycle, shortest_cycle
from underclock.core.switching.viterbi import backward, cheapest, forward
from underclock.core.switching.warm_start import SearchLimits, search_multipliers, warm_start

_FINEST = 1e-3  # the first margin is so small a part of what an item costs
_WIDER = 4.0  # from one margin to the next
_MORE_LABELS = 10  # times as many labels for a component, where the first were too few
_SETTING = 20  # labels, for each item, that looking at one setting of the cut item counts as
_CELLS = 3000  # of the table of switches, to be looked at for an item, that count as a label more


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicExact:
    """Exact within its limits: past them the answer is feasible, with a bound.

    Dwell of more than four values is rounded up to four; the bound is for the true dwell. Where
    limits or rounding leave no schedule, the status is ``INFEASIBLE`` with a finite bound.
    """

    gap: float = PROVEN
    """Fraction of the energy between schedule and bound at which to stop."""
    max_labels: int = 5_000_000
    """Most labels at a time when components are merged."""
    component_labels: int = 200_000
    """Most labels at a time within a component."""
    first_labels: int = 2_000
    """Most labels at a time within a component at first; more only where they are needed."""
    effort: int = 50_000_000
    """Most labels made in all, an item counting as some hundreds."""
    max_paths: int = 60
    """Most shortest paths in the search for one multiplier, or for a pair of them."""
    max_cells: int = 10_000_000
    """Most cells of a table of components and their options; past it the dearest are left out."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Schedule:
        """Return the cheapest schedule that keeps the rules, no worse than any given."""
        best = Incumbent.among(problem, start)
        best.offer_constants()
        heaviest = problem.energy_j.min(axis=1)[problem.order]
        ring = ring_of(problem, int(heaviest.argmax()))
        if ring is None:
            return infeasible()
        if len(ring.time) == 1:
            return best.answer(best.energy)
        limits = SearchLimits(tolerance=max(1e-7, 0.1 * self.gap), max_paths=self.max_paths)
        begin = warm_start(problem, ring, max_paths=self.max_paths)
        search = search_multipliers(problem, ring, begin, limits)
        if search is None:
            return best.answer(0.0 if ring.rounded or best.choice is not None else math.inf)
        offer_paths(best, search)
        if best.energy * (1.0 - self.gap) > search.bound:
            offer_cycles(best, search)
        bound = _GapClosing(solver=self, problem=problem, best=best, search=search).run(ring)
        if ring.rounded:
            bound = min(bound, _rounded_down(problem, search))
        return best.answer(bound)


def _rounded_down(problem: SequenceProblem, search: DualSearch) -> float:
    """Return a bound for the true dwell, when what was solved had it rounded up."""
    ring = ring_of(problem, int(search.ring.first[0]), down=True)
    down = DualSearch(ring=ring or search.ring, latest=search.latest, most=search.most)
    down.visit(search.time, search.switch)
    return down.bound


@dataclass(slots=True, kw_only=True)
class _GapClosing:
    """Brings schedule and bound together, setting by setting of the item that is cut.

    Attributes:
        solver: Its options.
        problem: The problem.
        best: The best schedule so far.
        search: The multipliers.
        limits: What the multiplied limits take off the Lagrangian cost of a cycle.
        effort: Labels that may still be made.
    """

    solver: CyclicExact
    problem: SequenceProblem
    best: Incumbent
    search: DualSearch
    limits: float = field(init=False)
    effort: int = field(init=False)

    def __post_init__(self) -> None:
        self.effort = self.solver.effort
        self.limits = self.search.multiplied_limits

    def run(self, ring: Ring) -> float:
        """Return a bound on every schedule."""
        search, items = self.search, len(ring.time)
        lagrangian = lagrangian_of(ring, search.time, search.switch)
        ahead = forward(ring, lagrangian, np.zeros(len(lagrangian.half)))
        least, choice = cheapest(ring, lagrangian, ahead, lagrangian.half)
        self.best.offer(ring.expanded(choice[:-1]))
        each = items * _SETTING
        if len(lagrangian.change) > 1:
            each += items * lagrangian.change.size // _CELLS
        bound = least - lagrangian.error - self.limits
        if bound >= self._sufficient() or self.effort < each:
            return bound
        through = ahead[:items] + backward(ring, lagrangian, lagrangian.half).any[1 : items + 1]
        if ring.shut is not None:
            through += ring.shut
        # Cut the ring where the shortest cycle leaves least doubt. What a cycle with some setting
        # there costs at least is known already.
        others = through.copy()
        others[np.arange(items), choice[:-1]] = np.inf
        cut = int(others.min(axis=1).argmax())
        floor = through[cut] - lagrangian.error - self.limits
        ring = ring_of(self.problem, int(ring.first[cut])) or ring
        lagrangian = lagrangian_of(ring, search.time, search.switch)
        del ahead, through, others
        bound = math.inf
        for s in np.argsort(floor, kind="stable").tolist():
            if floor[s] >= self._sufficient() or self.effort < 0:
                return min(bound, float(floor[s]))
            self.effort -= each
            reached = self._close(shortest_cycle(ring, lagrangian, s))
            bound = min(bound, max(float(floor[s]), reached))
        return bound

    def _sufficient(self) -> float:
        """Return the bound at which there is nothing left to prove."""
        if self.best.choice is None:
            return math.inf
        return self.best.energy * (1.0 - self.solver.gap)

    def _close(self, cycle: ShortestCycle) -> float:
        """Return a bound on the cycles from one setting of the cut item."""
        base = cycle.bound - self.limits
        bound, margin, most = base, self._first_margin(cycle, base), self._most(cycle)
        labels = min(self.solver.first_labels, self.solver.component_labels)
        while bound < self._sufficient():
            decomposer = Decomposer(
                cycle=cycle,
                margin=margin + 4.0 * cycle.lagrangian.error,
                counted=self.search.most is not None,
                most=labels,
                effort=self.effort,
            )
            reached = self._merged(decomposer, base + margin)
            self.effort = decomposer.effort
            bound = max(bound, min(reached, base + decomposer.lost - 4.0 * cycle.lagrangian.error))
            wanted = self.best.energy - base
            if decomposer.lost < min(margin, wanted):
                # The limits cut off what is needed: lift them, if that is allowed.
                if labels >= self.solver.component_labels or decomposer.effort < 0:
                    return bound
                labels = min(labels * _MORE_LABELS, self.solver.component_labels)
                margin = min(margin, wanted)
                continue
            if margin >= most and wanted == math.inf and reached >= base + margin:
                return math.inf
            if margin >= min(most, wanted):
                return bound
            # Not beyond what the best schedule leaves to be looked at, if that is known.
            margin = min(margin * _WIDER, most, wanted)
        return bound

    def _most(self, cycle: ShortestCycle) -> float:
        """Return a margin that no cycle exceeds."""
        return 2.0 * float(cycle.lagrangian.error / np.finfo(np.float64).eps)

    def _first_margin(self, cycle: ShortestCycle, base: float) -> float:
        item = abs(cycle.least) / len(cycle.ring.time)
        return max(min(_FINEST * item, self.best.energy - base), 8.0 * cycle.lagrangian.error)

    def _merged(self, decomposer: Decomposer, reach: float) -> float:
        """Offer the best schedule within a margin; return a bound on all schedules.

        Args:
            decomposer: Takes cycles apart within the margin.
            reach: What every schedule beyond the margin costs at least.
        """
        components = decomposer.components()
        if components is None:
            return reach
        cycle = decomposer.cycle
        time, energy, switches = cycle.paid()
        energy_there = float(energy[-1] + 0.5 * cycle.ring.energy[0, cycle.choice[0]])
        search = self.search
        merged = merge(
            components,
            MergeLimits(
                time=search.latest - float(time[-1] + 0.5 * cycle.ring.time[0, cycle.choice[0]]),
                switches=None if search.most is None else search.most - int(switches[-1]),
                energy=self.best.energy - energy_there,
                time_multiplier=search.time,
                switch_multiplier=search.switch,
                labels=self.solver.max_labels,
                cells=self.solver.max_cells,
            ),
        )
        if merged.options is not None:
            choice = cycle.choice[:-1].copy()
            for component, option in zip(components, merged.options.tolist(), strict=True):
                settings = component.settings(option)[: len(choice) - component.first]
                choice[component.first : component.first + len(settings)] = settings
            self.best.offer(cycle.ring.expanded(choice))
        decomposer.lost = min(decomposer.lost, merged.lost)
        return min(reach, energy_there + merged.bound - cycle.lagrangian.error)
