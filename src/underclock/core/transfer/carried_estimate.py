"""How surely choices of clocks change a step whose auto is expected too.

Errors of choice and auto are of the same kernels, so their levels cancel. But where the step is
expected to be held by its cap, it may not be, and a lock that costs nothing then costs time: what
is unsure is drawn, and each draw's auto and choice are settled under the cap.

Shape letters: K kernels, C settings but the baseline, n launches, D draws.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.cost_estimate import OF_HEAT, CostEstimate
from underclock.core.model.predicted_change import (
    STANDARD,
    WITHIN,
    PredictedChange,
    TimeVariance,
)
from underclock.core.step.drawn_costs import DrawnCosts
from underclock.core.step.table import CostTable
from underclock.core.step.under_cap import cap_of, step_cost_and_heat


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedEstimate:
    """What other steps' samples say of a step.

    Attributes:
        table: Expected costs; the baseline is its last setting.
        off: How far draws of log time and log power are off those expected. Shape (D, 2, K, C).
        drawn: The same draws as costs.
        step_error: How well the model is known to close on a step at auto, as fractions: time,
            energy.
    """

    table: CostTable
    off: Floats
    drawn: DrawnCosts
    step_error: tuple[float, float]

    @classmethod
    def of(cls, known: CostEstimate, off: Floats, table: CostTable) -> Self:
        """Join what is known of kernels with what the cap is expected to make of auto.

        Args:
            off: How far draws of log time and log power are off those expected. Shape (D, 2, K, C).
            table: Of the step, auto as expected.
        """
        return cls(
            table=table,
            off=off,
            drawn=DrawnCosts.of(table, off),
            step_error=_closing_error(known, table),
        )

    @property
    def auto_s(self) -> tuple[float, float]:
        """Between which times in s the step is expected to lie at auto, with 95 % confidence."""
        error = self.step_error[0] * STANDARD[:, None]
        each = self.drawn.auto[:, 0] / self.drawn.expected[0] * np.exp(error)
        least, most = self.table.auto_time_s * np.quantile(each, WITHIN)
        return float(least), float(most)

    @property
    def entry_spreads(self) -> tuple[Floats, Floats]:
        """How sure log time and log energy of every entry are: deviations. Shapes (K, C)."""
        time, power = self.off[:, 0], self.off[:, 1]
        return time.std(axis=0), (time + power).std(axis=0)

    @property
    def exact(self) -> bool:
        """Whether a measurement is the truth: none was made."""
        return False

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice of the table's settings, (K,), changes against auto."""
        return self.predicted_schedule(setting[cap_of(self.table).order])

    def predicted_schedule(self, choice: Ints) -> PredictedChange:
        """Say what a setting for each launch changes, changes of clocks apart.

        Args:
            choice: Index into the table's settings. Shape (n,).
        """
        cost, added = step_cost_and_heat(self.table, choice)
        left = (choice == self.table.baseline).all()
        time, energy = (0.0, 0.0) if left else self.step_error
        # What heat adds is as unsure as the ambient temperature is against the step's own.
        known = PredictedChange(
            time_change=cost.time_change,
            energy_change=cost.energy_change,
            time_spread=(1.0 + cost.time_change) * time,
            energy_spread=math.hypot((1.0 + cost.energy_change) * energy, OF_HEAT * added),
        )
        return known if left else known.among(self.drawn.away(self.table, choice))

    def hangs_on(self, setting: Ints) -> Floats:
        """Return the variance of energy saved that errors of each kernel alone make. Shape (K,).

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        choice, variance = setting[cap_of(self.table).order], np.zeros(len(setting))
        for k in range(len(setting)):
            alone = np.zeros_like(self.off)
            alone[:, :, k] = self.off[:, :, k]
            variance[k] = DrawnCosts.of(self.table, alone).changes(self.table, choice)[:, 1].var()
        return variance

    def time_variance(self, setting: Ints) -> TimeVariance | None:
        """Return nothing: auto is expected too, and what a kernel adds depends on all others."""


def _closing_error(known: CostEstimate, table: CostTable) -> tuple[float, float]:
    """Return how unsure what the model misses of the known step at auto is, of another step.

    Its own runs scatter; beyond that the miss may be the known step's own, or of any step; and what
    a lag of the power loop makes of the new one is a model's.
    """
    was, now = known.table.missed, table.missed
    pairs = (was.time, now.time), (was.energy, now.energy)
    time, energy = (
        math.hypot(spread, _OF_MISS * math.log(before), _OF_MISS * math.log(after / before))
        for spread, (before, after) in zip(known.baseline.spread, pairs, strict=True)
    )
    return time, energy


_OF_MISS = 0.5  # of what the model misses of one step at auto, and of what a lag makes of another
