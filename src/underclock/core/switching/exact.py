"""The proven optimum of a sequence with switches.

1. `dual` finds the prices of time and switches whose cheapest lap bounds all schedules best.
2. The ring is cut where the cheapest lap is least in doubt, so that few settings are left to begin
   and end with; each is taken in turn.
3. `pieces` takes the laps within a margin of the cheapest apart, `join` puts the best schedule
   together again. Whatever is not within the margin costs more than the bound plus the margin. So
   a small margin is tried first, then greater ones, until the best schedule is within.

Shape letters: n invocations, m items, S settings.
"""

import itertools
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Ints
from underclock.core.switching.crossover import offer_mixtures
from underclock.core.switching.cycle import Lap, lap_of
from underclock.core.switching.decomposition import Around, Walker, around
from underclock.core.switching.dual import Search
from underclock.core.switching.incumbent import PROVEN, Incumbent
from underclock.core.switching.merge import Limits, join
from underclock.core.switching.problem import Schedule, SequenceProblem, infeasible
from underclock.core.switching.viterbi import backward, cheapest, forward, priced
from underclock.core.switching.warm_start import searched

_FINEST = 3e-4  # the first margin is so small a part of what an item costs
_WIDER = 4.0  # from one margin to the next
_FEW_LABELS, _MORE_LABELS = 2_000, 10  # that a piece may hold at first; times as many, if needed
_SETTING = 100  # labels, for each item, that looking at one setting of the cut item is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicExact:
    """Exact within its limits: past them the answer is feasible, with a bound.

    Dwell of more than four values is rounded up to four; the bound is for the true dwell. Where
    limits or rounding leave no schedule, the status is ``INFEASIBLE`` with a finite bound.
    """

    gap: float = PROVEN
    """Fraction of the energy between schedule and bound at which to stop."""
    max_labels: int = 5_000_000
    """Most labels at a time when pieces are joined."""
    piece_labels: int = 200_000
    """Most labels at a time within a piece."""
    effort: int = 50_000_000
    """Most labels made in all, an item counting as some hundreds."""

    def solve(self, problem: SequenceProblem, start: Items[Ints] = ()) -> Schedule:
        """Return the cheapest schedule that keeps the rules, no worse than any given."""
        best = Incumbent.among(problem, start)
        best.offer_constants()
        heaviest = problem.energy_j.min(axis=1)[problem.order]
        lap = lap_of(problem, int(heaviest.argmax()))
        if lap is None:
            return infeasible()
        if len(lap.time) == 1:
            return best.answer(best.energy)
        search = searched(problem, lap, enough=max(1e-7, 0.1 * self.gap))
        if search is None:
            return best.answer(0.0 if lap.rounded or best.choice is not None else math.inf)
        for walk in search.walks:
            best.offer(search.lap.expanded(walk.choice[:-1]))
        _offer_mixtures(best, search)
        bound = _Rounds(solver=self, problem=problem, best=best, search=search).run(lap)
        if lap.rounded:
            bound = min(bound, _rounded_down(problem, search))
        return best.answer(bound)


def _offer_mixtures(best: Incumbent, search: Search) -> None:
    """Offer schedules between the best within the limits and the best beyond them."""
    by_cost = sorted(
        search.walks, key=lambda w: w.energy + search.time * w.over + search.switch * w.extra
    )
    within = [walk for walk in by_cost if walk.over <= 0 and walk.extra <= 0][:2]
    beyond = [walk for walk in by_cost if walk.over > 0 or walk.extra > 0][:2]
    for one, other in itertools.product(within, beyond):
        offer_mixtures(
            best,
            search.lap.expanded(one.choice[:-1]),
            search.lap.expanded(other.choice[:-1]),
        )


def _rounded_down(problem: SequenceProblem, search: Search) -> float:
    """Return a bound for the true dwell, when what was solved had it rounded up."""
    lap = lap_of(problem, int(search.lap.first[0]), down=True)
    down = Search(lap=lap or search.lap, latest=search.latest, most=search.most)
    down.visit(search.time, search.switch)
    return down.bound


@dataclass(slots=True, kw_only=True)
class _Rounds:
    """Closes the gap, setting by setting of the item that is cut.

    Attributes:
        solver: Its options.
        problem: The problem.
        best: The best schedule so far.
        search: The prices.
        worth: What the limits are worth at these prices.
        left: Labels that may still be made.
    """

    solver: CyclicExact
    problem: SequenceProblem
    best: Incumbent
    search: Search
    worth: float = field(init=False)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        search = self.search
        self.left = self.solver.effort
        self.worth = search.time * search.latest + search.switch * (search.most or 0)

    def run(self, lap: Lap) -> float:
        """Return a bound on every schedule."""
        search, items = self.search, len(lap.time)
        prices = priced(lap, search.time, search.switch)
        ahead = forward(lap, prices, np.zeros(len(prices.half)))
        least, choice = cheapest(lap, prices, ahead, prices.half)
        self.best.offer(lap.expanded(choice[:-1]))
        if least - prices.error - self.worth >= self._enough():
            return least - prices.error - self.worth
        through = ahead[:items] + backward(lap, prices, prices.half).any[1 : items + 1]
        if lap.shut is not None:
            through += lap.shut
        # Cut the ring where the cheapest lap leaves least doubt. What a lap with some setting there
        # costs at least is known already.
        others = through.copy()
        others[np.arange(items), choice[:-1]] = np.inf
        cut = int(others.min(axis=1).argmax())
        floor = through[cut] - prices.error - self.worth
        lap = lap_of(self.problem, int(lap.first[cut])) or lap
        prices = priced(lap, search.time, search.switch)
        del ahead, through, others
        bound = math.inf
        for s in np.argsort(floor, kind="stable").tolist():
            if floor[s] >= self._enough() or self.left < 0:
                return min(bound, float(floor[s]))
            self.left -= _SETTING * items
            bound = min(bound, max(float(floor[s]), self._close(around(lap, prices, s))))
        return bound

    def _enough(self) -> float:
        """Return the bound at which there is nothing left to prove."""
        if self.best.choice is None:
            return math.inf
        return self.best.energy * (1.0 - self.solver.gap)

    def _close(self, at: Around) -> float:
        """Return a bound on the laps from one setting of the cut item."""
        base = at.bound - self.worth
        bound, margin, most = base, self._first_margin(at, base), self._most(at)
        labels = min(_FEW_LABELS, self.solver.piece_labels)
        while bound < self._enough():
            walker = Walker(
                around=at,
                margin=margin + 4.0 * at.prices.error,
                counted=self.search.most is not None,
                most=labels,
                effort=self.left,
            )
            reached = self._joined(walker, base + margin)
            self.left = walker.effort
            bound = max(bound, min(reached, base + walker.lost - 4.0 * at.prices.error))
            left = self.best.energy - base
            if walker.lost < min(margin, left):
                # The limits cut off what is needed: lift them, if that is allowed.
                if labels >= self.solver.piece_labels or walker.effort < 0:
                    return bound
                labels = min(labels * _MORE_LABELS, self.solver.piece_labels)
                margin = min(margin, left)
                continue
            if margin >= most and left == math.inf and reached >= base + margin:
                return math.inf
            if margin >= min(most, left):
                return bound
            # Not beyond what the best schedule leaves to be looked at, if that is known.
            margin = min(margin * _WIDER, most, left)
        return bound

    def _most(self, at: Around) -> float:
        """Return a margin that no lap exceeds."""
        return 2.0 * float(at.prices.error / np.finfo(np.float64).eps)

    def _first_margin(self, at: Around, base: float) -> float:
        item = abs(at.least) / len(at.lap.time)
        return max(min(_FINEST * item, self.best.energy - base), 8.0 * at.prices.error)

    def _joined(self, walker: Walker, reach: float) -> float:
        """Offer the best schedule within a margin; return a bound on all schedules.

        Args:
            walker: Takes laps apart within the margin.
            reach: What every schedule beyond the margin costs at least.
        """
        pieces = walker.pieces()
        if pieces is None:
            return reach
        at = walker.around
        time, energy, switches = at.paid()
        energy_there = float(energy[-1] + 0.5 * at.lap.energy[0, at.choice[0]])
        search = self.search
        joined = join(
            pieces,
            Limits(
                time=search.latest - float(time[-1] + 0.5 * at.lap.time[0, at.choice[0]]),
                switches=None if search.most is None else search.most - int(switches[-1]),
                energy=self.best.energy - energy_there,
                time_price=search.time,
                switch_price=search.switch,
                labels=self.solver.max_labels,
            ),
        )
        if joined.ways is not None:
            choice = at.choice[:-1].copy()
            for piece, way in zip(pieces, joined.ways.tolist(), strict=True):
                settings = piece.settings(way)[: len(choice) - piece.first]
                choice[piece.first : piece.first + len(settings)] = settings
            self.best.offer(at.lap.expanded(choice))
        walker.lost = min(walker.lost, joined.lost)
        return min(reach, energy_there + joined.bound - at.prices.error)
