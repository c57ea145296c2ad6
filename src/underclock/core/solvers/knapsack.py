"""The exact optimum of one setting per group within a time budget, with its proof.

The hull's trades taken in order of energy saved per time, as long as they fit, solve the relaxed
problem. They give the multiplier of time, the base choice, and a bound: no choice costs
less than the base minus the time it leaves unused, multiplied. Greedily taking what else fits
gives a first choice; the gap is what separates it from the bound.

Where the first trade that does not fit is a large kernel's, the gap is wide. So its group is fixed
at each of its settings, and each is a problem of its own, with its bound and its greedy choice
(branch and bound, the least bound first), until few trades could still be other than they are in a
choice below the best one. Then any setting whose reduced cost alone exceeds the gap is struck out
(Pisinger's core: A minimal algorithm for the multiple-choice knapsack problem, 1995). A search
decides one group after another and keeps labels, pairs of (time, energy) relative to the base. A
label goes when another is no slower and no dearer, or when a bound shows that nothing below the
best choice can come of it.

Groups that can move most time are decided first: labels then end close to their own time, and are
cut before they multiply; in the opposite order some instances take a thousand times as many.

Times and energies are whole numbers, so dominance and feasibility are exact; bounds are floats
and cut only beyond their rounding error.

Shape letters: G groups, S settings, T trades, J stages, I moves of one group, N labels,
M multipliers.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from underclock.arrays import Bools, Floats, Ints
from underclock.core.solvers.hull import Quanta, trades
from underclock.core.solvers.problems import Effort, Problem, Solution, costed, infeasible
from underclock.records import Status

_GREEDY_TRADES = 5_000
_EPSILON = float(np.finfo(np.float64).eps)
_NEARBY = (-256, -64, -16, 0, 16, 64, 256)  # trades from the break whose rates are multipliers
_FEW = 128  # trades about the break that may still move: no more, and labels are kept
_NODES = 64  # of the tree, after which its root is searched instead
_SHARE = 512  # a group may keep one label in so many of those left

Origins = NDArray[np.unsignedinteger]
"""Which move of which label each label came from, in the least integers that hold it."""


def solve_knapsack(problem: Problem, max_labels: int = Effort.PROOF.labels) -> Solution:
    """Return the cheapest choice within the budget, proven as far as memory allows.

    Args:
        max_labels: Most labels kept in one search, each of up to 4 bytes until it ends; past them
            the answer is feasible, with a bound.
    """
    tree = Tree(Quanta(problem))
    if tree.spare < 0:
        return infeasible()
    lost = tree.search(max_labels)
    if lost > tree.best - 1:
        return costed(problem, tree.choice, Status.OPTIMAL)
    start_j = math.fsum(problem.energy_j[tree.rows, tree.steps.start])
    # The bound is on the difference between two choices, and either was rounded.
    bound_j = start_j + lost / tree.quanta.per_joule - 2.0 * tree.quanta.rounding_j
    return costed(problem, tree.choice, Status.BOUNDED, bound_j)


@dataclass(frozen=True, slots=True)
class SearchNode:
    """The relaxed optimum where some groups are fixed."""

    fixed: dict[int, int]  # setting by group
    base: Ints  # every trade of the other groups before the first that does not fit, (G,)
    fits: int  # the first that does not fit
    slack: int  # time that the base leaves
    energy: int  # of the base
    rate: float  # energy saved per time by the trade that does not fit; 0 where all fit


class Tree:
    """A problem whose groups are fixed one after another, and the best choice known.

    Times and energies of choices are relative to the fastest choice.

    Attributes:
        spare: Time that the fastest choice leaves; negative if it is too slow.
        best: Energy of the best known choice.
        choice: The best known choice. Shape (G,).
    """

    def __init__(self, quanta: Quanta) -> None:
        self.quanta, self.steps = quanta, trades(quanta)
        self.choice, self.best = self.steps.start, 0
        self.rows = np.arange(len(self.choice))
        self.spare = quanta.budget - int(quanta.time[self.rows, self.choice].sum())
        # Of all trades before each, and of all. Shapes (T + 1,).
        self.taken = np.append(0.0, np.cumsum(self.steps.time))
        self.saved = np.append(0.0, np.cumsum(self.steps.energy))
        # What sums come to at most; their rounding errors are fractions of it.
        self.most_energy = float(quanta.energy.max(axis=1).sum())
        self.most_time = float(quanta.time.max(axis=1).sum())

    def search(self, max_labels: int) -> float:
        """Find the best choice; return the least bound of those lost for want of labels."""
        nodes: list[tuple[float, int, dict[int, int]]] = [(-math.inf, 0, {})]
        lost, met = math.inf, 0
        for _ in range(_NODES):
            if not nodes or nodes[0][0] > self.best - 1:
                return lost
            node = self._relaxed(heapq.heappop(nodes)[2])
            if node.rate == 0.0:
                continue
            near = slice(max(0, node.fits - _FEW), node.fits + _FEW)
            reduced = np.abs(self.steps.rate[near] - node.rate) * self.steps.time[near]
            gap = self.best - node.energy + node.rate * node.slack
            if np.count_nonzero(reduced <= gap) <= _FEW:
                lost = min(lost, self._decide(node, max_labels))
                continue
            # The group at the break is fixed at each setting that may lead below the best choice.
            group = int(self.steps.group[node.fits])
            settings = np.flatnonzero(self.quanta.available[group])
            # The relaxed optimum with one more group at each setting; inf if too slow.
            groups = np.array(list(node.fixed), np.int64)
            time, energy = self._beyond(groups, np.array(list(node.fixed.values()), np.int64))
            more_time, more_energy = self._beyond(np.full(len(settings), group), settings)
            left = self.spare - time.sum() - more_time
            taken, less = self._along(np.append(groups, group), left)
            saved = np.interp(taken, self.taken, self.saved) - less
            bounds = energy.sum() + more_energy - saved - 64 * _EPSILON * self.most_energy
            bounds = np.where(left >= 0, bounds, np.inf)
            low = bounds <= self.best - 1
            for bound, setting in zip(bounds[low].tolist(), settings[low].tolist(), strict=True):
                heapq.heappush(nodes, (bound, met := met + 1, node.fixed | {group: setting}))
        return self._decide(self._relaxed({}), max_labels)

    def _beyond(self, groups: Ints, settings: Ints) -> tuple[Ints, Ints]:
        """Return time and energy of settings beyond those of their groups' fastest."""
        start = self.steps.start[groups]
        time, energy = self.quanta.time, self.quanta.energy
        return (
            time[groups, settings] - time[groups, start],
            energy[groups, settings] - energy[groups, start],
        )

    def _along(self, groups: Ints, left: Ints) -> tuple[Floats, Floats]:
        """Return how far trades go within times without some groups', and what those had saved."""
        without = np.zeros(len(self.rows), dtype=np.bool_)
        without[groups] = True
        gone = np.flatnonzero(without[self.steps.group])
        time = np.append(0.0, np.cumsum(self.steps.time[gone]))
        passed = (self.taken[gone + 1] - time[1:]).searchsorted(left, side="right")
        return left + time[passed], np.append(0.0, np.cumsum(self.steps.energy[gone]))[passed]

    def _relaxed(self, fixed: dict[int, int]) -> SearchNode:
        """Solve the relaxed problem where groups are fixed, and offer a choice near it."""
        groups, settings = (np.array(list(each), np.int64) for each in (fixed, fixed.values()))
        times, energies = self._beyond(groups, settings)
        [taken], [less] = self._along(groups, np.array([self.spare - times.sum()]))
        fits = int(self.taken.searchsorted(taken, side="right")) - 1
        base = self.steps.choice_after(fits)
        base[groups] = settings
        node = SearchNode(
            fixed,
            base,
            fits,
            slack=int(taken - self.taken[fits]),
            energy=int(energies.sum() + less - self.saved[fits]),
            rate=float(self.steps.rate[fits]) if fits < len(self.steps.rate) else 0.0,
        )
        # Take what fits past the first trade that does not, best first.
        steps, slack, stuck, gained = self.steps, node.slack, set(fixed), 0
        moves: dict[int, int] = {}
        part = slice(fits, fits + _GREEDY_TRADES)
        columns = (
            each[part].tolist() for each in (steps.group, steps.target, steps.time, steps.energy)
        )
        for group, target, time, saved in zip(*columns, strict=True):
            if group in stuck:
                continue
            if time <= slack:
                moves[group] = target
                slack -= time
                gained -= saved
            else:
                stuck.add(group)
        self._offer(node, moves, gained)
        return node

    def _offer(self, node: SearchNode, moves: dict[int, int], energy: int) -> None:
        """Take a node's base, with some groups moved, if it is better than the best choice."""
        if node.energy + energy < self.best:
            self.best, self.choice = node.energy + energy, node.base.copy()
            self.choice[list(moves)] = list(moves.values())

    def _decide(self, node: SearchNode, max_labels: int) -> float:
        """Decide all groups that may move; return the least bound lost for want of labels."""
        quanta, steps, ceiling = self.quanta, self.steps, self.best - node.energy
        near = np.clip([node.fits + k for k in _NEARBY], 0, len(steps.rate) - 1)
        rates = np.unique(steps.rate[near])
        rounding = 64 * _EPSILON * (self.most_energy + rates * self.most_time)
        cost = quanta.energy + node.rate * quanta.time
        most = cost[self.rows, node.base] + ceiling - 1 + node.rate * node.slack + rounding.max()
        live = (cost <= most[:, None]) & quanta.available
        live[list(node.fixed)] = False
        live[self.rows, node.base] = True
        stages = Stages(quanta, node.base, live)
        ahead, soonest = stages.ahead(rates)
        # Terms added one by one, as many as there are stages, err by so many parts of their sum.
        rounding = rounding + _EPSILON * len(ahead) * np.abs(ahead[0])
        floor = ahead - rates * node.slack - rounding
        time = energy = np.zeros(1, np.int64)  # of the base
        lost = math.inf
        trail: list[Origins] = []
        cheapest: tuple[int, int] | None = None
        if floor[0].max() > ceiling - 1:
            return lost
        for j in range(len(stages.group)):
            part = slice(stages.first[j], stages.first[j + 1])
            time, energy, source, dropped = _extended(
                (time, energy),
                (stages.time[part], stages.energy[part]),
                below=ceiling,
                latest=node.slack - int(soonest[j + 1]),
                rates=rates,
                floor=floor[j + 1],
                most=max(1, max_labels // _SHARE),
            )
            if len(source) == 0:
                break
            trail.append(source)
            max_labels -= len(source)
            lost = min(lost, dropped)
            # Energy falls as time rises, so the cheapest is the last label that fits.
            which = int(time.searchsorted(node.slack, side="right")) - 1
            if which >= 0 and energy[which] < ceiling:
                ceiling, cheapest = int(energy[which]), (j, which)
        if cheapest:
            # Follow the label back to the root, collecting its moves.
            moves: dict[int, int] = {}
            last, which = cheapest
            for j in range(last, -1, -1):
                move, which = divmod(int(trail[j][which]), len(trail[j - 1]) if j else 1)
                moves[int(stages.group[j])] = int(stages.setting[stages.first[j] + move])
            self._offer(node, moves, ceiling)
        return node.energy + lost


class Stages:
    """The groups that have more than to stay, by how much time they can move, and their moves.

    Attributes:
        first: Where a stage's moves begin; one more than there are stages. Shape (J + 1,).
        setting: Of the moves of all stages, end to end. Shape (sum of I,).
        time: Relative to the base, as energy. Shape (sum of I,).
    """

    def __init__(self, quanta: Quanta, base: Ints, live: Bools) -> None:
        group = np.flatnonzero(live.sum(axis=1) > 1)
        stay = base[group]
        time = quanta.time[group] - quanta.time[group, stay][:, None]
        energy = quanta.energy[group] - quanta.energy[group, stay][:, None]
        allowed = live[group]
        order = np.argsort(-np.where(allowed, np.abs(time), 0).max(axis=1), kind="stable")
        allowed = allowed[order]
        row, self.setting = np.nonzero(allowed)
        self.group, self.first = group[order], np.append(0, np.cumsum(allowed.sum(axis=1)))
        self.time, self.energy = (each[order[row], self.setting] for each in (time, energy))

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


def _extended(
    labels: tuple[Ints, Ints],
    moves: tuple[Ints, Ints],
    *,
    below: int,
    latest: int,
    rates: Floats,
    floor: Floats,
    most: int,
) -> tuple[Ints, Ints, Origins, float]:
    """Make every move of a stage, (I,), from every label, (N,), and keep what may still win."""
    # Of labels time ascends and energy falls; ``floor`` is what their Lagrangian costs lack of
    # their bounds, (M,). Returned are time, energy and the flat index (I, N) of move and parent of
    # labels that nothing dominates, and the least bound among those lost to ``most``.
    # Moves first, labels second: runs sorted by time, which a stable sort merges.
    time = (moves[0][:, None] + labels[0]).ravel()
    energy = (moves[1][:, None] + labels[1]).ravel()
    bound = np.full(len(time), -np.inf)
    for rate, add in zip(rates.tolist(), floor.tolist(), strict=True):
        np.maximum(bound, rate * time + add, out=bound)
    bound += energy
    alive = np.flatnonzero((bound <= below - 1) & (time <= latest))
    order = alive[np.argsort(time[alive], kind="stable")]
    # Those that nothing dominates: of equals one, and at one and the same time the cheapest.
    sooner, less = time[order], energy[order]
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = less[1:] < np.minimum.accumulate(less)[:-1]
    kept = np.flatnonzero(keep)
    keep[kept[:-1][sooner[kept[1:]] == sooner[kept[:-1]]]] = False
    order = order[keep]
    lost = math.inf
    if len(order) > most:
        # Half of them the most promising, half spread evenly, for where many promise the same
        # those alone would be alike.
        chosen = np.zeros(len(order), dtype=bool)
        chosen[np.argpartition(bound[order], most // 2)[: most // 2]] = True
        chosen[np.linspace(0, len(order) - 1, most - most // 2, dtype=np.int64)] = True
        lost = float(bound[order[~chosen]].min())
        order = order[chosen]
    source = order.astype(np.min_scalar_type(len(time)))
    return time[order], energy[order], source, lost
