"""The core of a knapsack problem: what may still change about the relaxed solution.

Shape letters: G groups, S settings, M multipliers.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.knapsack.hull import Trades
from underclock.core.knapsack.labels import Origins, PartialChoices
from underclock.core.knapsack.problem import Quanta
from underclock.core.knapsack.stages import Stages

_GREEDY_TRADES = 5_000
_EPSILON = float(np.finfo(np.float64).eps)
_HALVINGS = 8  # from the greedy choice's gap to the lowest ceiling
_NEARBY = (-256, -64, -16, 0, 16, 64, 256)  # trades from the break whose rates are multipliers
_SCOUT_LABELS = 200  # of a group, in the searches that only look for a good choice
_SHARE = 512  # a group may keep one label in so many of those left


@dataclass(slots=True)
class Core:
    """The problem around the break of the relaxed solution, and the best choice known.

    Times and energies of labels and moves are relative to the base choice.

    Attributes:
        quanta: The problem.
        base: Base choice: every trade before the first that does not fit. Shape (G,).
        slack: Time the base leaves unused.
        rate: The relaxed optimum's multiplier, in energy per time.
        rates: It and some nearby. Shape (M,).
        reduced: Cost of a setting beyond the base's at ``rate``; ``inf`` where not available.
            Shape (G, S).
        size: What sums of Lagrangian costs come to at most, at each multiplier; their rounding
            errors are fractions of it. Shape (M,).
        best: Energy of the best known choice; not positive.
        moves: Setting by group where the best known choice differs from the base.
    """

    quanta: Quanta
    base: Ints
    slack: int
    rate: float
    rates: Floats
    reduced: Floats
    size: Floats
    best: int
    moves: dict[int, int] = field(default_factory=dict)

    @classmethod
    def at_break(cls, quanta: Quanta, steps: Trades, fits: int) -> "Core":
        """Set up the core at the first trade that does not fit."""
        rows = np.arange(len(steps.start))
        base = steps.choice_after(fits)
        slack = quanta.budget - int(quanta.time[rows, base].sum())
        moves, saved = _greedy(steps, fits, slack)
        rate = float(steps.rate[fits])
        rates = np.unique(steps.rate[np.clip([fits + k for k in _NEARBY], 0, len(steps.rate) - 1)])
        cost = np.where(quanta.available, quanta.energy + rate * quanta.time, np.inf)
        return cls(
            quanta=quanta,
            base=base,
            slack=slack,
            rate=rate,
            rates=rates,
            reduced=cost - cost[rows, base][:, None],
            size=quanta.energy.max(axis=1).sum() + rates * quanta.time.max(axis=1).sum(),
            best=-saved,
            moves=moves,
        )

    def choice(self) -> Ints:
        """Return the best choice known. Shape (G,)."""
        choice = self.base.copy()
        for group, setting in self.moves.items():
            choice[group] = setting
        return choice

    def improve(self, max_labels: int) -> float | None:
        """Find the best choice there is, below one ceiling after another.

        Returns:
            ``None`` when the best choice is now proven; else a bound on the energy of any.
        """
        bound = -self.rate * self.slack
        gap = self.best - bound
        for halvings in range(_HALVINGS, -1, -1):
            ceiling = min(self.best, math.floor(bound + gap / 2**halvings))
            improved, lost = self._search(ceiling, max_labels, _SCOUT_LABELS)
            if improved:
                break
        if lost is not None:
            _, lost = self._search(self.best, max_labels, max_labels)
        return None if lost is None or lost > self.best - 1 else lost

    def _search(self, ceiling: int, max_labels: int, each: int) -> tuple[bool, float | None]:
        """Look for the best choice whose energy is below a ceiling.

        Args:
            ceiling: Energy to get below.
            max_labels: How many labels to keep in all.
            each: How many labels a group may keep.

        Returns:
            Whether one was found, now the best known; and, where labels were lost, the least
            bound among them.
        """
        stages = Stages.of(self.quanta, self.base, self._live(ceiling))
        ahead, soonest = stages.ahead(self.rates)
        # Terms added one by one, as many as there are stages, err by so many parts of their sum.
        error = self._error() + _EPSILON * len(ahead) * np.abs(ahead[0])
        floor = ahead - self.rates * self.slack - error
        labels = PartialChoices.root()
        lost: float | None = None
        trail: list[Origins] = []
        cheapest: tuple[int, int] | None = None
        if floor[0].max() > ceiling - 1:
            return False, None
        for j in range(len(stages.group)):
            labels, source, dropped = labels.extended(
                *stages.moves(j),
                below=ceiling,
                latest=self.slack - int(soonest[j + 1]),
                rates=self.rates,
                floor=floor[j + 1],
                most=max(1, min(each, max_labels // _SHARE)),
            )
            if len(source) == 0:
                break
            trail.append(source)
            max_labels -= len(source)
            if dropped is not None:
                lost = dropped if lost is None else min(lost, dropped)
            energy, which = labels.cheapest(self.slack)
            if energy < ceiling:
                ceiling, cheapest = energy, (j, which)
        if cheapest:
            self.best, self.moves = ceiling, stages.retrace(trail, *cheapest)
        return cheapest is not None, lost

    def _error(self) -> Floats:
        """Bound the rounding error of a few sums, at each multiplier. Shape (M,)."""
        return 64 * _EPSILON * self.size

    def _live(self, ceiling: int) -> Bools:
        """Return the settings that a choice below a ceiling may have. Shape (G, S)."""
        error = float(self._error()[np.searchsorted(self.rates, self.rate)])
        live: Bools = self.reduced <= ceiling - 1 + self.rate * self.slack + error
        live[np.arange(len(self.base)), self.base] = True
        return live


def _greedy(steps: Trades, fits: int, left: int) -> tuple[dict[int, int], int]:
    """Take what fits past the first trade that does not, best first.

    Args:
        steps: The hull's trades.
        fits: How many of them the base has taken.
        left: Time the base leaves unused.

    Returns:
        Setting by group where it differs from the base, and the energy this saves.
    """
    moves: dict[int, int] = {}
    stuck: set[int] = set()
    saved = 0
    end = fits + _GREEDY_TRADES
    for group, target, time, energy in zip(
        steps.group[fits:end].tolist(),
        steps.target[fits:end].tolist(),
        steps.time[fits:end].tolist(),
        steps.energy[fits:end].tolist(),
        strict=True,
    ):
        if group in stuck:
            continue
        if time <= left:
            moves[group] = target
            left -= time
            saved += energy
        else:
            stuck.add(group)
    return moves, saved
