"""A time budget as a chance constraint: it holds with 95 % confidence.

The expected time is within the budget. A verdict allows for a tenth of a point, for the time of a
step is measured no better; within that the budget holds with 95 % confidence.

What a choice of clocks does to the time is known with an error. So the solver is given an aim below
the budget, such that the aim and the margin of the choice made for it add up to the budget: by
iteration, as the margin depends on the choice.

A lower aim makes every kernel a little faster, and leaves in the plan the kernels whose costs are
unsure. So where the margin costs anything, variance is priced: a deviation s is the least of
(s² + w²) / 2w over all widths w, and at a fixed width variances of kernels add up, as times do.
Prices are tangents, and what is chosen by them may overrun the budget by little: groups of such
choices go back to clocks that keep it, until all together do. Any choice that keeps the budget with
a margin keeps it without one, so the solver's own bound at the whole budget bounds the best one.

Shape letters: K kernels, S settings.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.costs import ONE_SIDED, PredictedChange, TimeVariance
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import Grouped
from underclock.records import Status

_ROUNDS = 8
_SMALL = 1e-6  # of auto's time
_PROVEN = 1e-9  # of what is minimised: what rounding leaves
_UNUSED = 0.1  # of the margin: less room than this in the budget is not worth another round
_FARTHEST = 0.05  # of auto's time: an aim so far below one that overran is low enough to try
_WORTH = 2e-4  # of auto's energy: margins that cost less are not worth a price
_WIDTHS = (1.0, 0.3)  # of the deviation of the choice made without a price
_TURNS = 3  # of choosing and setting the width to what was chosen
_TAKEN_IN_PART = 12  # choices that overrun the budget, those first that do by least


class RiskModel(Protocol):
    """What `Costs` says of choices of clocks, a setting for each kernel. Shapes (K,)."""

    def predicted_change(self, setting: Ints, /) -> PredictedChange:
        """Return what a choice is expected to change, and the deviations of that."""

    def time_variance(self, setting: Ints, /) -> TimeVariance | None:
        """Return what each kernel adds to the variance of the change of time, where they do."""


Choose = Callable[[float, Floats | None], "Candidate | None"]
"""Return the choice of least energy whose change of time and prices are within an aim, if any.

Prices are those of each kernel at each setting, none negative, as parts of auto's time: (K, S).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A choice of clocks, and what is proven of it."""

    setting: Ints  # index into the cost table's settings, of each kernel, (K,)
    status: Status
    # how far what is minimised may be from the least that any choice within the limit gives, as a
    # fraction; ``None`` where nothing is known
    gap: float | None

    @classmethod
    def bounded(cls, setting: Ints, bound: float, reached: float) -> "Candidate":
        """Return a choice with the gap between a bound and what it reaches."""
        gap = max(0.0, 1.0 - bound / reached)
        status = Status.OPTIMAL if gap <= _PROVEN else Status.BOUNDED
        return cls(setting=setting, status=status, gap=gap)


def room(time_spread: float, tolerance: float) -> float:
    """Return by how much less than a budget the expected change of time has to be."""
    return max(ONE_SIDED * time_spread - tolerance, 0.0)


class _Search:
    """A search for the choice of least energy that keeps a budget with confidence."""

    def __init__(self, budget: float, choose: Choose, risk: RiskModel, tolerance: float) -> None:
        self.budget, self.choose, self.risk, self.tolerance = budget, choose, risk, tolerance
        # What would be chosen if all were certain, and the best choice that keeps the budget; each
        # with what it changes.
        self.free: tuple[Candidate, PredictedChange] | None = None
        self.best: tuple[Candidate, PredictedChange] | None = None
        self.overran: list[tuple[Candidate, PredictedChange]] = []

    def by_aim(self) -> None:
        """Lower the aim of the whole until it and the margin add up to the budget."""
        # Greatest aim that keeps the budget or that no choice can meet, least that overruns it.
        low, high = -1.0, self.budget
        aim = high
        for _ in range(_ROUNDS):
            candidate = self.choose(aim, None)
            if candidate is None:
                low = max(low, aim)
            else:
                change = self._met(candidate)
                margin = room(change.time_spread, self.tolerance)
                overrun = self._late(change)
                if overrun <= _SMALL:
                    low = max(low, aim)
                    if overrun > -_UNUSED * max(abs(margin), _SMALL):
                        break
                else:
                    high = min(high, aim)
                aim = min(high, self.budget - margin)
                if low < aim < high:
                    continue
            if high - low < _SMALL:
                break
            aim = 0.5 * (max(low, high - _FARTHEST) + high)

    def by_price(self) -> None:
        """Price variance, at several widths; each choice's own deviation is the next width."""
        if self.free is None:
            return
        here, change = self.free
        spread = change.time_spread
        for share in _WIDTHS:
            if not self._margin_costs():
                return
            width = share * spread
            for _ in range(_TURNS):
                aim = self._priced(here.setting, width)
                candidate = None if aim is None else self.choose(*aim)
                if candidate is None or (candidate.setting == here.setting).all():
                    break
                here, width = candidate, self._met(candidate).time_spread

    def in_part(self, table: CostTable, groups: Grouped) -> None:
        """Take of choices that overrun the budget what it allows, group by group."""
        # Those go back first that save least for what they are late by; some fit after all.
        every, member = np.unique(groups.member, return_index=True)
        if self.best is None:
            self._keeps(np.full(len(groups.member), table.baseline))
        found: list[Ints] = []
        for over, change in sorted(self.overran, key=lambda each: self._late(each[1])):
            if self.best is None or not self._margin_costs() or len(found) == _TAKEN_IN_PART:
                return
            kept, taken = self.best[0].setting[member], over.setting[member]
            worse = change.energy_change >= self.best[1].energy_change
            if worse or any((taken == each).all() for each in found):
                continue
            found.append(taken)
            saved_j = groups.energy_j[every, kept] - groups.energy_j[every, taken]
            late = (groups.time_s[every, taken] - groups.time_s[every, kept]) / table.auto_time_s
            parts = self.risk.time_variance(over.setting)
            if parts is not None and change.time_spread > 0.0:
                of_entries = groups.added(parts.of_entries)
                more = of_entries[every, taken] - of_entries[every, kept]
                late += 0.5 * ONE_SIDED / change.time_spread * more
            back = np.flatnonzero((kept != taken) & (late > 0.0))
            mixed, dropped = taken.copy(), list[int]()
            for g in back[np.argsort(saved_j[back] / late[back])].tolist():
                mixed[g] = kept[g]
                if self._keeps(groups.spread(mixed)):
                    break  # with this group as it was taken it did not
                dropped.append(g)
            else:
                mixed = kept.copy()
            for g in reversed(dropped):
                again = mixed.copy()
                again[g] = taken[g]
                if saved_j[g] > 0.0 and self._keeps(groups.spread(again)):
                    mixed = again

    def _keeps(self, setting: Ints) -> bool:
        candidate = Candidate(setting=setting, status=Status.BOUNDED, gap=None)
        return self._late(self._met(candidate)) <= _SMALL

    def _met(self, candidate: Candidate) -> PredictedChange:
        """Take a choice if it is better than the best; say what it changes."""
        change = self.risk.predicted_change(candidate.setting)
        if self.free is None:
            self.free = candidate, change
        if self._late(change) > _SMALL:
            self.overran.append((candidate, change))
        elif self.best is None or change.energy_change < self.best[1].energy_change:
            self.best = candidate, change
        return change

    def _late(self, change: PredictedChange) -> float:
        """Return by how much a choice with its margin overruns the budget."""
        return change.time_change + room(change.time_spread, self.tolerance) - self.budget

    def _margin_costs(self) -> bool:
        """Whether what confidence costs, as a part of auto's energy, is worth a search."""
        if self.best is None or self.free is None:
            return True
        return self.best[1].energy_change - self.free[1].energy_change > _WORTH

    def _priced(self, setting: Ints, width: float) -> tuple[float, Floats] | None:
        """Return an aim, and the prices of variance at a width, around a choice."""
        shared = self.risk.time_variance(setting) if width > 0.0 else None
        if shared is None:
            return None
        price = 0.5 * ONE_SIDED / width
        prices = price * shared.of_entries
        # Where an error makes up for another's the price is negative: that is off the aim for all.
        least = prices.min(axis=1)
        spent = price * shared.rest + 0.5 * ONE_SIDED * width + math.fsum(least)
        return self.budget + self.tolerance - spent, prices - least[:, None]


def within_confidence(
    budget: float,
    choose: Choose,
    risk: RiskModel | None,
    tolerance: float = 0.0,
    parts: tuple[CostTable, Grouped] | None = None,
) -> Candidate | None:
    """Choose so that a time budget holds with 95 % confidence.

    Args:
        risk: How sure costs are; ``None`` takes them as certain, and the first choice as it is.
        tolerance: To what the budget is kept, as a fraction of auto.
        parts: Costs, and the groups of kernels that keep the budget together: variance is priced,
            and choices that overrun it are taken in part.

    Returns:
        Of the choices that keep the budget the one of least energy; ``None`` where none does.
    """
    if risk is None:
        return choose(budget, None)
    search = _Search(budget, choose, risk, tolerance)
    search.by_aim()
    if parts is not None:
        search.by_price()
        search.in_part(*parts)
    if search.best is None or search.free is None:
        return None
    (best, change), (free, freed) = search.best, search.free
    if best is free or free.gap is None:
        return Candidate(setting=best.setting, status=free.status, gap=free.gap)
    # Whatever keeps the budget with confidence keeps it as expected.
    bound = (1.0 + freed.energy_change) * (1.0 - free.gap)
    return Candidate.bounded(best.setting, bound, 1.0 + change.energy_change)
