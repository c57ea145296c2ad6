"""One way through every piece: the cheapest that keeps the limits together.

Without a limit on switches this is the planning problem of `core.solvers`, and its exact solver
does it. With one there are two limits; then labels (time, energy, switches) are extended piece by
piece, the piece that can move most time first, and cut by bounds at several pairs of prices.

Shape letters: G pieces, W ways, N labels, R pairs of prices.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.knapsack import Exact, Problem
from underclock.core.switching.decomposition import Piece

_CELLS = 10_000_000  # of the tables of ways, by which wide ones are cut
_MADE = 1_000_000  # labels at a time, before they are cut
_NARROW = 16  # ways that are never cut
_STEPS = (0.0, 0.5, 0.9, 1.0, 1.1, 2.0)  # of each price, for the bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the ways may take together, relative to the cheapest lap.

    Attributes:
        time: Most time.
        switches: Most switches; ``None`` for no limit.
        energy: Only what costs less is of interest.
        time_price: Price of time near the optimum.
        switch_price: Likewise of a switch.
        labels: Most labels at a time.
    """

    time: float
    switches: int | None
    energy: float
    time_price: float
    switch_price: float
    labels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Ways that fit together.

    Attributes:
        ways: One per piece, the cheapest found; ``None`` if none was. Shape (G,).
        bound: No other costs less, relative to the cheapest lap, but for those left out.
        lost: Least excess, by price, of the ways left out.
    """

    ways: Ints | None
    bound: float
    lost: float = math.inf


def join(pieces: list[Piece], limits: Limits) -> Joined:
    """Pick a way through every piece."""
    if not pieces:
        fits = limits.time >= 0 and (limits.switches is None or limits.switches >= 0)
        empty = np.zeros(0, dtype=np.int64)
        return Joined(ways=empty, bound=0.0) if fits else Joined(ways=None, bound=math.inf)
    found = _by_time(pieces, limits)
    if found.ways is None or limits.switches is None:
        return found
    used = sum(int(p.ways.switches[w]) for p, w in zip(pieces, found.ways.tolist(), strict=True))
    return found if used <= limits.switches else _by_both(pieces, limits)


def _by_time(pieces: list[Piece], limits: Limits) -> Joined:
    width = min(max(len(piece.ways.time) for piece in pieces), max(_NARROW, _CELLS // len(pieces)))
    time, energy = np.full((2, len(pieces), width), np.inf)
    names = np.zeros((len(pieces), width), dtype=np.int64)
    lost = math.inf
    for row, piece in enumerate(pieces):
        which = np.arange(len(piece.ways.time))
        if len(which) > width:
            price = piece.ways.energy + limits.time_price * piece.ways.time
            which = np.argsort(price, kind="stable")
            lost = min(lost, float(price[which[width]] - price[which[0]]))
            which = which[:width]
        time[row, : len(which)] = piece.ways.time[which]
        energy[row, : len(which)] = piece.ways.energy[which]
        names[row, : len(which)] = which
    least_time, least_energy = time.min(axis=1), energy.min(axis=1)
    budget = limits.time - math.fsum(least_time)
    if budget < 0:  # the solver's quantum may be coarser than so little
        return Joined(ways=None, bound=math.inf, lost=lost)
    solution = Exact(max_labels=limits.labels).solve(
        Problem(
            time_s=time - least_time[:, None],
            energy_j=energy - least_energy[:, None],
            budget_s=budget,
        )
    )
    return Joined(
        ways=names[np.arange(len(pieces)), solution.choice],
        bound=solution.bound_j + math.fsum(least_energy),
        lost=lost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """What the pieces not yet decided can at best contribute.

    Attributes:
        price: At each pair of prices. Shape (G + 1, R).
        time: Shape (G + 1,).
        switches: Shape (G + 1,).
    """

    price: Floats
    time: Floats
    switches: Ints

    @classmethod
    def of(cls, pieces: list[Piece], rates: Floats) -> "_Ahead":
        price = np.zeros((len(pieces) + 1, len(rates)))
        time, switches = np.zeros(len(pieces) + 1), np.zeros(len(pieces) + 1, dtype=np.int64)
        for row, piece in enumerate(pieces):
            ways = piece.ways
            cost = ways.energy[:, None] + np.column_stack([ways.time, ways.switches]) @ rates.T
            price[row], time[row], switches[row] = (
                cost.min(axis=0),
                ways.time.min(),
                ways.switches.min(),
            )
        return cls(
            price=price[::-1].cumsum(axis=0)[::-1],
            time=time[::-1].cumsum()[::-1],
            switches=switches[::-1].cumsum()[::-1],
        )


def _by_both(pieces: list[Piece], limits: Limits) -> Joined:
    order = sorted(range(len(pieces)), key=lambda g: -float(np.ptp(pieces[g].ways.time)))
    pieces = [pieces[g] for g in order]
    most = limits.switches if limits.switches is not None else 0
    prices = limits.time_price, limits.switch_price
    rates = np.unique([(a * prices[0], b * prices[1]) for a in _STEPS for b in _STEPS], axis=0)
    ahead = _Ahead.of(pieces, rates)
    # Sums of floats: what meets a limit exactly must not be cut.
    size = math.fsum(float(np.abs(piece.ways.energy).max()) for piece in pieces)
    latest = limits.time + 1e-13 * math.fsum(float(np.abs(p.ways.time).max()) for p in pieces)
    floor = ahead.price - rates @ (latest, most) - 1e-12 * size
    time, energy, switches = np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64)
    trail, bound_lost = [], math.inf
    # Labels times ways are made before they are cut.
    widest = min(limits.labels, max(_NARROW, _MADE // max(len(p.ways.time) for p in pieces)))
    for row, piece in enumerate(pieces):
        ways, count = piece.ways, len(time)
        time = (ways.time[:, None] + time).ravel()
        energy = (ways.energy[:, None] + energy).ravel()
        switches = (ways.switches[:, None] + switches).ravel()
        bound = np.full(len(time), -np.inf)
        for (per_time, per_switch), add in zip(
            rates.tolist(), floor[row + 1].tolist(), strict=True
        ):
            np.maximum(bound, per_time * time + per_switch * switches + add, out=bound)
        bound += energy
        keep = np.flatnonzero(
            (bound < limits.energy)
            & (time <= latest - ahead.time[row + 1])
            & (switches <= most - ahead.switches[row + 1])
        )
        keep = keep[_front(time[keep], energy[keep], switches[keep])]
        if len(keep) > widest:
            by_bound = keep[np.argsort(bound[keep], kind="stable")]
            bound_lost = min(bound_lost, float(bound[by_bound[widest]]))
            keep = by_bound[:widest]
        if len(keep) == 0:
            return Joined(ways=None, bound=bound_lost)
        trail.append((keep // count, keep % count))
        time, energy, switches = time[keep], energy[keep], switches[keep]
    which = int(energy.argmin())
    least = float(energy[which])
    found = np.zeros(len(pieces), dtype=np.int64)
    for row in range(len(pieces) - 1, -1, -1):
        found[order[row]] = trail[row][0][which]
        which = int(trail[row][1][which])
    return Joined(ways=found, bound=min(least, bound_lost))


def _front(time: Floats, energy: Floats, switches: Ints) -> Ints:
    """Return the labels that none with as many switches beats, by switches and time."""
    order = np.lexsort((energy, time, switches))
    rank = np.unique(energy, return_inverse=True)[1][order] - switches[order] * len(order)
    keep = np.ones(len(order), dtype=np.bool_)
    keep[1:] = rank[1:] < np.minimum.accumulate(rank)[:-1]
    return order[keep]
