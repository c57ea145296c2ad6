"""The exact optimum of one setting per group within a time budget, with its proof.

Three steps. The hull's trades taken in order of energy saved per time solve the relaxed problem:
they give a multiplier, a feasible base choice, and a bound that no choice can beat. Any setting
whose reduced cost alone exceeds the difference between the two is struck out (Pisinger's core: A
minimal algorithm for the multiple-choice knapsack problem, 1995). What is left is searched with
labels, pairs of (time, energy) relative to the base, one group after the other. A label goes when
another is no slower and no dearer, or when a bound shows that nothing better than the best known
choice can come of it.

Groups are decided in order of how much time they can move, greatest first. The small ones that
come last can then only reach budgets close to a label's own time, so nearly all labels are cut
before they multiply; in the opposite order some instances take a thousand times as many.

Times and energies are whole numbers, so dominance and feasibility are exact; bounds are floats
and cut only beyond their rounding error.

Shape letters: G groups, S settings, I moves of one group, N labels, M multipliers.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from underclock.core.solvers.base import (
    INFEASIBLE,
    Floats,
    Ints,
    Problem,
    Quanta,
    Solution,
    solution_of,
)
from underclock.core.solvers.hull import Trades, trades
from underclock.records import Status

_Bools = NDArray[np.bool_]

# (groups, labels) of the searches made before the full one: each is cheap, and the better the
# choice it finds, the more the next can strike out.
_SCOUTS = ((20, 500), (100, 200), (400, 200), (2_000, 500))
_GREEDY_TRADES = 5_000
_NEARBY = (-64, -16, -4, 4, 16, 64)  # trades from the break whose rates serve as multipliers too


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Exact within memory: past ``max_labels`` the answer is feasible, with a bound."""

    max_labels: int = 1_000_000
    """Most labels kept at once; each takes about 100 bytes."""

    def solve(self, problem: Problem) -> Solution:
        """Return the cheapest choice within the budget, proven."""
        quanta = Quanta.of(problem)
        steps = trades(quanta)
        rows = np.arange(len(steps.start))
        spare = quanta.budget - int(quanta.time[rows, steps.start].sum())
        if spare < 0:
            return INFEASIBLE
        fits = int(np.searchsorted(np.cumsum(steps.time), spare, side="right"))
        if fits == len(steps.time):
            return solution_of(problem, steps.choice_after(fits))
        core = _Core.around(quanta, steps, fits)
        for groups, labels in (*_SCOUTS, (len(rows), self.max_labels)):
            lost = core.search(groups, labels)
            if lost is None:
                return solution_of(problem, core.choice())
        base_j = math.fsum(problem.energy_j[rows, core.base])
        return solution_of(
            problem,
            core.choice(),
            status=Status.BOUNDED,
            bound_j=base_j + (lost or 0.0) / quanta.per_joule,
        )


def _base_choice(steps: Trades, fits: int, left: int) -> Ints:
    """Take every trade that fits, best first, also past the first that does not."""
    choice = steps.choice_after(fits)
    end = fits + _GREEDY_TRADES
    stuck: set[int] = set()
    for group, to, time in zip(
        steps.group[fits:end].tolist(),
        steps.to[fits:end].tolist(),
        steps.time[fits:end].tolist(),
        strict=True,
    ):
        if group in stuck:
            continue
        if time <= left:
            choice[group] = to
            left -= time
        else:
            stuck.add(group)
    return choice


@dataclass(slots=True)
class _Core:
    """The problem around the break of the relaxed solution, and the best choice known.

    Times and energies of labels and moves are relative to the base choice.

    Attributes:
        quanta: The problem.
        base: Base choice. Shape (G,).
        slack: Time the base leaves unused.
        rate: The relaxed optimum's multiplier, in energy per time.
        rates: It and its neighbours. Shape (M,).
        reduced: Cost of a setting beyond the least of its group at ``rate``; ``inf`` where not
            available. Shape (G, S).
        offset: Sum of the base's reduced costs.
        error: Bound on the rounding error of any bound computed here.
        saved: Energy of the best known choice, relative to the base; not positive.
        moves: Group and setting of each of its differences from the base.
    """

    quanta: Quanta
    base: Ints
    slack: int
    rate: float
    rates: Floats
    reduced: Floats
    offset: float
    error: float
    saved: int = 0
    moves: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def around(cls, quanta: Quanta, steps: Trades, fits: int) -> "_Core":
        """Set up the core at the first trade that does not fit."""
        rows = np.arange(len(steps.start))
        relaxed = steps.choice_after(fits)
        base = _base_choice(steps, fits, quanta.budget - int(quanta.time[rows, relaxed].sum()))
        rate = float(steps.rate[fits])
        priced = np.where(quanta.available, quanta.energy + rate * quanta.time, np.inf)
        least = priced.min(axis=1)
        magnitude = float(np.where(quanta.available, priced, 0.0).max(axis=1).sum())
        nearby = np.clip([fits + k for k in _NEARBY], 0, len(steps.rate) - 1)
        return cls(
            quanta=quanta,
            base=base,
            slack=quanta.budget - int(quanta.time[rows, base].sum()),
            rate=rate,
            rates=np.unique(np.append(steps.rate[nearby], rate)),
            reduced=priced - least[:, None],
            offset=float((priced[rows, base] - least).sum()),
            error=64 * float(np.finfo(np.float64).eps) * magnitude,
        )

    def choice(self) -> Ints:
        """Return the best choice known. Shape (G,)."""
        choice = self.base.copy()
        for group, setting in self.moves:
            choice[group] = setting
        return choice

    def search(self, groups: int, max_labels: int) -> float | None:
        """Improve the best choice, moving the groups nearest the break.

        Args:
            groups: How many groups may move.
            max_labels: How many labels may be kept; the least promising are lost.

        Returns:
            ``None`` when the best choice is now proven; else a bound on the energy of what was
            lost, relative to the base.
        """
        stages, complete = self._stages(groups)
        # What the stages not yet decided can at best contribute at each multiplier. Shape (·, M).
        ahead = np.zeros((len(stages) + 1, len(self.rates)))
        shortest = [0] * (len(stages) + 1)
        for j in range(len(stages) - 1, -1, -1):
            stage = stages[j]
            priced = stage.energy[:, None] + stage.time[:, None] * self.rates
            ahead[j] = ahead[j + 1] + priced.min(axis=0)
            shortest[j] = shortest[j + 1] + int(stage.time.min())
        labels = _Labels.root()
        lost: float | None = None
        trail: list[Ints] = []
        found: tuple[int, int] | None = None
        for j, stage in enumerate(stages):
            labels, come, dropped = labels.extended(
                stage,
                limit=self.saved - 1 + self.error,
                latest=self.slack - shortest[j + 1],
                rates=self.rates,
                floor=ahead[j + 1] - self.rates * self.slack,
                max_labels=max_labels,
            )
            trail.append(come)
            lost = dropped if lost is None else lost if dropped is None else min(lost, dropped)
            if len(come) == 0:
                break
            energy, which = labels.cheapest(self.slack)
            if energy < self.saved:
                self.saved, found = energy, (j, which)
        if found:
            self.moves = _retrace(stages, trail, *found)
        if complete:
            return lost
        return -math.inf if lost is None else lost

    def _stages(self, groups: int) -> tuple[list["_Stage"], bool]:
        """Return the groups that may move, and whether those are all that need to."""
        most = self.saved + self.offset + self.rate * self.slack - 1 + self.error
        rows = np.arange(len(self.base))
        live: _Bools = self.reduced <= most
        live[rows, self.base] = False
        movable = np.flatnonzero(live.any(axis=1))
        complete = len(movable) <= groups
        if not complete:
            nearest = np.where(live[movable], self.reduced[movable], np.inf).min(axis=1)
            movable = movable[np.argpartition(nearest, groups)[:groups]]
        stages = [self._stage(int(g), np.flatnonzero(live[g])) for g in movable]
        stages.sort(key=lambda stage: -int(np.abs(stage.time).max()))
        return stages, complete

    def _stage(self, group: int, settings: Ints) -> "_Stage":
        stay = int(self.base[group])
        settings = np.concatenate(([stay], settings))
        time, energy = self.quanta.time[group], self.quanta.energy[group]
        return _Stage(group, settings, time[settings] - time[stay], energy[settings] - energy[stay])


@dataclass(frozen=True, slots=True)
class _Stage:
    """One group's moves; the first is to stay.

    Attributes:
        group: Index of the group.
        settings: Shape (I,).
        time: Relative to the base. Shape (I,).
        energy: Likewise. Shape (I,).
    """

    group: int
    settings: Ints
    time: Ints
    energy: Ints


@dataclass(frozen=True, slots=True)
class _Labels:
    """Partial choices that nothing dominates, fastest first.

    Attributes:
        time: Relative to the base. Shape (N,).
        energy: Likewise; falls where time rises. Shape (N,).
    """

    time: Ints
    energy: Ints

    @classmethod
    def root(cls) -> "_Labels":
        """Return the base itself."""
        return cls(np.zeros(1, np.int64), np.zeros(1, np.int64))

    def extended(
        self,
        stage: _Stage,
        *,
        limit: float,
        latest: int,
        rates: Floats,
        floor: Floats,
        max_labels: int,
    ) -> tuple["_Labels", Ints, float | None]:
        """Make every move of a stage from every label and keep what may still win.

        Args:
            stage: The group to decide.
            limit: Greatest energy bound worth keeping.
            latest: Greatest time from which the budget can still be met.
            rates: Multipliers. Shape (M,).
            floor: What a label's price is short of its bound, at each multiplier. Shape (M,).
            max_labels: How many to keep.

        Returns:
            The labels, for each the flat index of its parent and move, and the least bound among
            those lost to ``max_labels``.
        """
        time = (self.time[:, None] + stage.time).ravel()
        energy = (self.energy[:, None] + stage.energy).ravel()
        bound = energy + rates[0] * time + floor[0]
        for rate, add in zip(rates[1:], floor[1:], strict=True):
            np.maximum(bound, energy + rate * time + add, out=bound)
        alive = np.flatnonzero((bound <= limit) & (time <= latest))
        order = alive[np.lexsort((energy[alive], time[alive]))]
        if len(order) > 1:
            cheapest = np.minimum.accumulate(energy[order])
            front = np.ones(len(order), dtype=bool)
            front[1:] = energy[order][1:] < cheapest[:-1]
            order = order[front]
        lost = None
        if len(order) > max_labels:
            ranked = np.argpartition(bound[order], max_labels)
            lost = float(bound[order[ranked[max_labels:]]].min())
            order = order[np.sort(ranked[:max_labels])]
        return _Labels(time[order], energy[order]), order, lost

    def cheapest(self, slack: int) -> tuple[int, int]:
        """Return the least energy among labels within the slack, and which; 0 if none is."""
        # Energy falls as time rises, so it is the last label that fits.
        which = int(np.searchsorted(self.time, slack, side="right")) - 1
        return (int(self.energy[which]), which) if which >= 0 else (0, -1)


def _retrace(
    stages: list[_Stage], trail: list[Ints], last: int, which: int
) -> list[tuple[int, int]]:
    """Follow a label back to the root, collecting its moves."""
    moves = []
    for j in range(last, -1, -1):
        which, move = divmod(int(trail[j][which]), len(stages[j].settings))
        if move:
            moves.append((stages[j].group, int(stages[j].settings[move])))
    return moves
