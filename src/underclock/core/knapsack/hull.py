"""Lower convex hulls of many groups at once: the trades worth making, best first.

Shape letters: G groups, S settings, T trades.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.knapsack.problem import Quanta


@dataclass(frozen=True, slots=True)
class Trades:
    """Every step along every group's hull, from its fastest setting to its cheapest.

    Taking the first n trades from ``start`` gives a supported point of the time-energy frontier,
    for every n: within a group trades come in hull order.

    Attributes:
        start: Fastest setting of each group, the cheapest of equals. Shape (G,).
        group: Shape (T,).
        source: Setting the trade departs from. Shape (T,).
        target: Setting the trade leads to. Shape (T,).
        time: Time quanta it costs. Shape (T,).
        energy: Energy quanta it saves. Shape (T,).
        rate: Energy saved per time, descending. Shape (T,).
    """

    start: Ints
    group: Ints
    source: Ints
    target: Ints
    time: Ints
    energy: Ints
    rate: Floats

    def choice_after(self, count: int) -> Ints:
        """Return the setting of every group after the first ``count`` trades. Shape (G,)."""
        choice = self.start.copy()
        # A group's later trades overwrite its earlier ones: numpy assigns in order.
        choice[self.group[:count]] = self.target[:count]
        return choice


def trades(quanta: Quanta) -> Trades:
    """Wrap every group's hull, all groups one corner at a time."""
    blocked = ~quanta.available
    time = np.where(blocked, np.inf, quanta.time)
    energy = np.where(blocked, np.inf, quanta.energy)
    start = _fastest(time, energy)
    active = np.arange(len(time))
    here = start.copy()
    rate_cap = np.full(len(time), np.inf)
    corners: list[tuple[Ints, Ints, Ints, Floats]] = []
    while len(active):
        cost, saving = _offers(time[active], energy[active], here)
        trade = (cost > 0) & (saving > 0)
        rate = np.divide(saving, cost, out=np.zeros_like(cost), where=trade)
        # The steepest trade; of collinear ones the longest, so that rates strictly fall.
        steepest = rate.max(axis=1)
        target = np.where(rate == steepest[:, None], cost, -1.0).argmax(axis=1)
        on = steepest > 0
        active, here, target = active[on], here[on], target[on]
        # Rounding may make a later rate greater by one part in 2^52; order matters more.
        rate_cap = np.minimum(rate_cap[on], steepest[on])
        corners.append((active, here, target, rate_cap))
        here = target
    return _sorted(quanta, start, corners)


def _fastest(time: Floats, energy: Floats) -> Ints:
    least = time.min(axis=1, keepdims=True)
    cheapest: Ints = np.where(time == least, energy, np.inf).argmin(axis=1)
    return cheapest


def _offers(time: Floats, energy: Floats, here: Ints) -> tuple[Floats, Floats]:
    """Return what moving from ``here`` to every setting costs in time and saves in energy.

    Moving to a setting that a group has not got saves less than nothing.
    """
    rows = np.arange(len(here))
    return time - time[rows, here][:, None], energy[rows, here][:, None] - energy


def _sorted(quanta: Quanta, start: Ints, corners: list[tuple[Ints, Ints, Ints, Floats]]) -> Trades:
    group = np.concatenate([c[0] for c in corners])
    source = np.concatenate([c[1] for c in corners])
    target = np.concatenate([c[2] for c in corners])
    rate = np.concatenate([c[3] for c in corners])
    order = np.argsort(-rate, kind="stable")
    group, source, target, rate = group[order], source[order], target[order], rate[order]
    return Trades(
        start=start,
        group=group,
        source=source,
        target=target,
        time=quanta.time[group, target] - quanta.time[group, source],
        energy=quanta.energy[group, source] - quanta.energy[group, target],
        rate=rate,
    )
