"""One option of every component: the cheapest that keep the limits together.

Without a limit on switches this is the planning problem of `core.knapsack`, and its exact solver
does it. With one there are two limits; then labels (time, energy, switches) are extended component
by component, the one that can move most time first, and cut by bounds at several pairs of
multipliers.

Shape letters: G components, W options, N labels, R pairs of multipliers.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.knapsack import Exact, Problem
from underclock.core.switching.decomposition import Component

_MADE = 1_000_000  # labels at a time, before they are cut
_FEWEST = 16  # labels that are kept however many options there are
_STEPS = (0.0, 0.5, 0.9, 1.0, 1.1, 2.0)  # of each multiplier, for the bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """What the options may take together, relative to the shortest cycle.

    Attributes:
        time: Most time.
        switches: Most switches; ``None`` for no limit.
        energy: Only what costs less is of interest.
        time_multiplier: Multiplier of time near the optimum.
        switch_multiplier: Multiplier of a switch near the optimum.
        labels: Most labels at a time.
        cells: Most cells of the table of options, by which wide components are cut.
    """

    time: float
    switches: int | None
    energy: float
    time_multiplier: float
    switch_multiplier: float
    labels: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Options that fit together.

    Attributes:
        options: One per component, the cheapest found; ``None`` if none was. Shape (G,).
        bound: No other costs less, relative to the shortest cycle, but for those left out.
        lost: Least Lagrangian cost beyond the best of the options left out.
    """

    options: Ints | None
    bound: float
    lost: float = math.inf


def merge(components: list[Component], limits: MergeLimits) -> Merged:
    """Pick an option of every component."""
    if not components:
        fits = limits.time >= 0 and (limits.switches is None or limits.switches >= 0)
        empty = np.zeros(0, dtype=np.int64)
        return Merged(options=empty, bound=0.0) if fits else Merged(options=None, bound=math.inf)
    merged = _within_time(components, limits)
    if merged.options is None or limits.switches is None:
        return merged
    switches = sum(
        int(component.options.switches[option])
        for component, option in zip(components, merged.options.tolist(), strict=True)
    )
    return merged if switches <= limits.switches else _within_both(components, limits)


def _within_time(components: list[Component], limits: MergeLimits) -> Merged:
    widest = max(len(component.options.time) for component in components)
    width = min(widest, max(1, limits.cells // len(components)))
    time, energy = np.full((2, len(components), width), np.inf)
    names = np.zeros((len(components), width), dtype=np.int64)
    lost = math.inf
    for row, component in enumerate(components):
        which = np.arange(len(component.options.time))
        if len(which) > width:
            cost = component.options.energy + limits.time_multiplier * component.options.time
            which = np.argsort(cost, kind="stable")
            lost = min(lost, float(cost[which[width]] - cost[which[0]]))
            which = which[:width]
        time[row, : len(which)] = component.options.time[which]
        energy[row, : len(which)] = component.options.energy[which]
        names[row, : len(which)] = which
    least_time, least_energy = time.min(axis=1), energy.min(axis=1)
    budget = limits.time - math.fsum(least_time)
    if budget < 0:  # the solver's quantum may be coarser than so little
        return Merged(options=None, bound=math.inf, lost=lost)
    solution = Exact(max_labels=limits.labels).solve(
        Problem(
            time_s=time - least_time[:, None],
            energy_j=energy - least_energy[:, None],
            budget_s=budget,
        )
    )
    return Merged(
        options=names[np.arange(len(components)), solution.choice],
        bound=solution.bound_j + math.fsum(least_energy),
        lost=lost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Undecided:
    """What the components not yet decided can at best contribute.

    Attributes:
        cost: Least Lagrangian cost at each pair of multipliers. Shape (G + 1, R).
        time: Shape (G + 1,).
        switches: Shape (G + 1,).
    """

    cost: Floats
    time: Floats
    switches: Ints

    @classmethod
    def of(cls, components: list[Component], rates: Floats) -> Self:
        """Add up the least of every component from the last one on."""
        count = len(components) + 1
        cost, time = np.zeros((count, len(rates))), np.zeros(count)
        switches = np.zeros(count, dtype=np.int64)
        for row, component in enumerate(components):
            options = component.options
            limited = np.column_stack([options.time, options.switches])
            cost[row] = (options.energy[:, None] + limited @ rates.T).min(axis=0)
            time[row], switches[row] = options.time.min(), options.switches.min()
        return cls(
            cost=cost[::-1].cumsum(axis=0)[::-1],
            time=time[::-1].cumsum()[::-1],
            switches=switches[::-1].cumsum()[::-1],
        )


def _within_both(components: list[Component], limits: MergeLimits) -> Merged:
    order = sorted(range(len(components)), key=lambda g: -float(np.ptp(components[g].options.time)))
    components = [components[g] for g in order]
    most = limits.switches if limits.switches is not None else 0
    per_time, per_switch = limits.time_multiplier, limits.switch_multiplier
    rates = np.unique([(a * per_time, b * per_switch) for a in _STEPS for b in _STEPS], axis=0)
    ahead = _Undecided.of(components, rates)
    # Sums of floats: what meets a limit exactly must not be cut.
    size = math.fsum(float(np.abs(component.options.energy).max()) for component in components)
    longest = math.fsum(float(np.abs(component.options.time).max()) for component in components)
    latest = limits.time + 1e-13 * longest
    floor = ahead.cost - rates @ (latest, most) - 1e-12 * size
    time, energy, switches = np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64)
    trail, bound_lost = [], math.inf
    # Labels times options are made before they are cut.
    widest = min(limits.labels, max(_FEWEST, _MADE // max(len(p.options.time) for p in components)))
    for row, component in enumerate(components):
        options, count = component.options, len(time)
        time = (options.time[:, None] + time).ravel()
        energy = (options.energy[:, None] + energy).ravel()
        switches = (options.switches[:, None] + switches).ravel()
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
            return Merged(options=None, bound=bound_lost)
        trail.append((keep // count, keep % count))
        time, energy, switches = time[keep], energy[keep], switches[keep]
    which = int(energy.argmin())
    least = float(energy[which])
    chosen = np.zeros(len(components), dtype=np.int64)
    for row in range(len(components) - 1, -1, -1):
        chosen[order[row]] = trail[row][0][which]
        which = int(trail[row][1][which])
    return Merged(options=chosen, bound=min(least, bound_lost))


def _front(time: Floats, energy: Floats, switches: Ints) -> Ints:
    """Return the labels that none with as many switches beats, by switches and time."""
    order = np.lexsort((energy, time, switches))
    rank = np.unique(energy, return_inverse=True)[1][order] - switches[order] * len(order)
    keep = np.ones(len(order), dtype=np.bool_)
    keep[1:] = rank[1:] < np.minimum.accumulate(rank)[:-1]
    return order[keep]
