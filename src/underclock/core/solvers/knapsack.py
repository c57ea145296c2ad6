"""The exact optimum of one setting per group within a time budget, with its proof.

The hull's trades taken in order of energy saved per time, as long as they fit, solve the relaxed
problem. They give the multiplier of time, the base choice, and a bound: no choice costs
less than the base minus the time it leaves unused, multiplied. Greedily taking what else fits
gives a first choice; the gap is what separates it from the bound.

The optimum is searched below a ceiling that starts near the bound and doubles its distance until
something is found. Any setting whose reduced cost alone exceeds the ceiling is struck out
(Pisinger's core: A minimal algorithm for the multiple-choice knapsack problem, 1995), so too low a
ceiling costs next to nothing. The search decides one group after another and keeps labels, pairs of
(time, energy) relative to the base. A label goes when another is no slower and no dearer, or when a
bound shows that nothing below the ceiling can come of it. Scouts keep few labels: where none was
lost, what they find is the optimum; else it is nearly that, and the ceiling of the search that
keeps them all.

Groups are decided in order of how much time they can move, greatest first. The small ones that
come last can then only reach budgets close to a label's own time, so nearly all labels are cut
before they multiply; in the opposite order some instances take a thousand times as many.

Times and energies are whole numbers, so dominance and feasibility are exact; bounds are floats
and cut only beyond their rounding error.

Shape letters: G groups, S settings, J stages, I moves of one group, N labels, M multipliers.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from underclock.arrays import Bools, Floats, Ints
from underclock.core.solvers.hull import Quanta, Trades, trades
from underclock.core.solvers.problems import Problem, Solution, infeasible, solution_of
from underclock.records import Status

_GREEDY_TRADES = 5_000
_EPSILON = float(np.finfo(np.float64).eps)
_HALVINGS = 8  # from the greedy choice's gap to the lowest ceiling
_NEARBY = (-256, -64, -16, 0, 16, 64, 256)  # trades from the break whose rates are multipliers
_SCOUT_LABELS = 200  # of a group, in the searches that only look for a good choice
_SHARE = 512  # a group may keep one label in so many of those left

Origins = NDArray[np.unsignedinteger]
"""Which move of which label each label came from, in the least integers that hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Exact within memory: past ``max_labels`` the answer is feasible, with a bound."""

    max_labels: int = 50_000_000
    """Most labels kept in one search; each takes up to 4 bytes until it ends."""

    def solve(self, problem: Problem, start: Items[Ints] = ()) -> Solution:  # noqa: ARG002 - finds the best anyway
        """Return the cheapest choice within the budget, proven."""
        quanta = Quanta.of(problem)
        steps = trades(quanta)
        rows = np.arange(len(steps.start))
        spare = quanta.budget - int(quanta.time[rows, steps.start].sum())
        if spare < 0:
            return infeasible()
        fits = int(np.searchsorted(np.cumsum(steps.time), spare, side="right"))
        if fits == len(steps.time):
            return solution_of(problem, steps.choice_after(fits))
        core = Core.at_break(quanta, steps, fits)
        lost = core.improve(self.max_labels)
        if lost is None:
            return solution_of(problem, core.choice())
        base_j = math.fsum(problem.energy_j[rows, core.base])
        # The bound is on the difference between two choices, and either was rounded.
        bound_j = base_j + lost / quanta.per_joule - 2.0 * quanta.rounding_j
        return solution_of(problem, core.choice(), status=Status.BOUNDED, bound_j=bound_j)


@dataclass(slots=True)
class Core:
    """The problem around the break of the relaxed solution, and the best choice known.

    Times and energies of labels and moves are relative to the base choice.

    Attributes:
        base: Base choice: every trade before the first that does not fit. Shape (G,).
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
        """Look for the best choice whose energy is below a ceiling."""
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
    """Take what fits past the first trade that does not, best first."""
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


@dataclass(frozen=True, slots=True)
class Stages:
    """The groups that may move, by how much time they can move, and their moves, end to end.

    Attributes:
        first: Where a stage's moves begin; one more than there are stages. Shape (J + 1,).
        setting: Shape (sum of I,).
        time: Relative to the base. Shape (sum of I,).
        energy: Relative to the base. Shape (sum of I,).
    """

    group: Ints
    first: Ints
    setting: Ints
    time: Ints
    energy: Ints

    @classmethod
    def of(cls, quanta: Quanta, base: Ints, live: Bools) -> "Stages":
        """Lay out the moves of every group that has more than to stay."""
        group = np.flatnonzero(live.sum(axis=1) > 1)
        stay = base[group]
        time = quanta.time[group] - quanta.time[group, stay][:, None]
        energy = quanta.energy[group] - quanta.energy[group, stay][:, None]
        allowed = live[group]
        order = np.argsort(-np.where(allowed, np.abs(time), 0).max(axis=1), kind="stable")
        allowed = allowed[order]
        row, setting = np.nonzero(allowed)
        return cls(
            group[order],
            np.concatenate(([0], np.cumsum(allowed.sum(axis=1)))),
            setting,
            time[order[row], setting],
            energy[order[row], setting],
        )

    def moves(self, j: int) -> tuple[Ints, Ints]:
        """Return time and energy of a stage's moves. Shapes (I,)."""
        part = slice(self.first[j], self.first[j + 1])
        return self.time[part], self.energy[part]

    def ahead(self, rates: Floats) -> tuple[Floats, Ints]:
        """Return what the stages from each on can at best contribute.

        Returns:
            Least Lagrangian cost at each multiplier, and least time. Shapes (J + 1, M), (J + 1,).
        """
        cost_ahead = np.zeros((len(self.first), len(rates)))
        time = np.zeros(len(self.first), dtype=np.int64)
        if len(self.group):
            cost = self.energy[:, None] + self.time[:, None] * rates
            cost_ahead[:-1] = np.minimum.reduceat(cost, self.first[:-1])
            time[:-1] = np.minimum.reduceat(self.time, self.first[:-1])
        return cost_ahead[::-1].cumsum(axis=0)[::-1], time[::-1].cumsum()[::-1]

    def retrace(self, trail: list[Origins], last: int, which: int) -> dict[int, int]:
        """Follow a label back to the root, collecting its moves as setting by group."""
        moves: dict[int, int] = {}
        for j in range(last, -1, -1):
            move, which = divmod(int(trail[j][which]), len(trail[j - 1]) if j else 1)
            moves[int(self.group[j])] = int(self.setting[self.first[j] + move])
        return moves


@dataclass(frozen=True, slots=True)
class PartialChoices:
    """Partial choices that nothing dominates, fastest first.

    Attributes:
        time: Relative to the base. Shape (N,).
        energy: Relative to the base; falls where time rises. Shape (N,).
    """

    time: Ints
    energy: Ints

    @classmethod
    def root(cls) -> "PartialChoices":
        """Return the base itself."""
        return cls(np.zeros(1, np.int64), np.zeros(1, np.int64))

    def extended(
        self,
        move_time: Ints,
        move_energy: Ints,
        *,
        below: int,
        latest: int,
        rates: Floats,
        floor: Floats,
        most: int,
    ) -> tuple["PartialChoices", Origins, float | None]:
        """Make every move of a stage from every label and keep what may still win.

        Args:
            move_time: Time of every move, relative to the base. Shape (I,).
            move_energy: Energy of every move, relative to the base. Shape (I,).
            latest: Greatest time from which the budget can still be met.
            rates: Multipliers. Shape (M,).
            floor: What a label's Lagrangian cost lacks of its bound, by multiplier. Shape (M,).

        Returns:
            The labels, for each the flat index (I, N) of its move and parent, and the least bound
            among those lost to ``most``.
        """
        # Moves first, labels second: runs sorted by time, which a stable sort merges.
        time = (move_time[:, None] + self.time).ravel()
        energy = (move_energy[:, None] + self.energy).ravel()
        bound = np.full(len(time), -np.inf)
        for rate, add in zip(rates.tolist(), floor.tolist(), strict=True):
            np.maximum(bound, rate * time + add, out=bound)
        bound += energy
        alive = np.flatnonzero((bound <= below - 1) & (time <= latest))
        order = alive[np.argsort(time[alive], kind="stable")]
        order = order[_front(time[order], energy[order])]
        lost = None
        if len(order) > most:
            # Half of them the most promising, half spread evenly, for where many promise the same
            # those alone would be alike.
            chosen = np.zeros(len(order), dtype=bool)
            chosen[np.argpartition(bound[order], most // 2)[: most // 2]] = True
            chosen[np.linspace(0, len(order) - 1, most - most // 2, dtype=np.int64)] = True
            lost = float(bound[order[~chosen]].min())
            order = order[chosen]
        source = order.astype(np.min_scalar_type(len(time)))
        return PartialChoices(time[order], energy[order]), source, lost

    def cheapest(self, slack: int) -> tuple[int, int]:
        """Return the least energy among labels within the slack, and which; 0 if none is."""
        # Energy falls as time rises, so it is the last label that fits.
        which = int(np.searchsorted(self.time, slack, side="right")) - 1
        return (int(self.energy[which]), which) if which >= 0 else (0, -1)


def _front(time: Ints, energy: Ints) -> Bools:
    """Return which labels, in order of time, no other dominates; of equals one. Shape (N,)."""
    keep = np.ones(len(time), dtype=bool)
    keep[1:] = energy[1:] < np.minimum.accumulate(energy)[:-1]
    # Of those that improve at one and the same time, the last is the cheapest.
    kept = np.flatnonzero(keep)
    keep[kept[:-1][time[kept[1:]] == time[kept[:-1]]]] = False
    return keep
