"""How sure the costs of a step are under another power limit than it was measured at.

Auto is then expected, not measured, from the same kernels as the plan: what the model misses of
both cancels.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.predicted_change import PredictedChange
from underclock.core.step.cap import settle
from underclock.core.step.table import CostTable, waited_shares
from underclock.core.step.under_cap import cap_of, step_cost, under_limit

_LESS = 0.99  # of the limit, to see how time follows power


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedEstimate:
    """An estimate of a step under a power limit.

    Attributes:
        estimated: Under the limit of the measurements.
        table: Expected costs under the limit asked for.
        at_auto: Setting of each launch nearest to where the cap holds it. Shape (n,).
        s_per_w: By what part time changes for each part of power that the cap leaves.
    """

    estimated: CostEstimate
    table: CostTable
    at_auto: Ints
    s_per_w: float

    @classmethod
    def of(cls, estimated: CostEstimate, limit_w: float, known_limit_w: float) -> Self:
        """Put the estimate of a step under another limit than the known one it was measured at."""
        known = under_limit(estimated.table, limit_w, known_limit_w)
        cap = cap_of(known.table)
        asked = np.full(len(cap.order), cap.boost)
        times = [
            settle(each, known.table.launches, asked).time_s.sum()
            for each in (cap, dataclasses.replace(cap, limit_w=_LESS * cap.limit_w))
        ]
        return cls(
            estimated=estimated,
            table=known.table,
            at_auto=known.at_auto,
            s_per_w=math.log(times[1] / times[0]) / math.log(_LESS),
        )

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice of the table's settings, (K,), changes against the cap alone."""
        if (setting == self.table.baseline).all():
            return PredictedChange(
                time_change=0.0, energy_change=0.0, time_spread=0.0, energy_spread=0.0
            )
        choice = setting[cap_of(self.table).order]
        cost = step_cost(self.table, choice)
        time, energy = (self._spread(choice, power) for power in (0.0, 1.0))
        # What is missed of power, the cap makes good by time.
        return PredictedChange(
            time_change=cost.time_change,
            energy_change=cost.energy_change,
            time_spread=math.hypot(time, self.s_per_w * energy),
            energy_spread=math.hypot(energy, self.s_per_w * energy),
        )

    def time_variance(self, setting: Ints) -> None:
        """Return nothing: auto is expected too, and what a kernel adds depends on all others."""

    def _spread(self, choice: Ints, power: float) -> float:
        """Return the deviation of time, or of energy, against auto, as a fraction of auto."""
        posterior, order = self.estimated.posterior, cap_of(self.table).order
        weights = self._shares(order, choice, power)
        weights -= self._shares(order, self.at_auto, power)
        kernels, columns = np.nonzero(weights)
        moved = weights[kernels, columns]
        spread = posterior.sum_variance(kernels, columns, np.stack([moved, power * moved]))
        return math.sqrt(spread.variance)

    def _shares(self, order: Ints, choice: Ints, power: float) -> Floats:
        """Return the share of each kernel at each setting in a schedule. Shape (K, C)."""
        posterior = self.estimated.posterior
        shares = np.zeros(posterior.log_s.shape)
        each = np.exp(posterior.log_s[order, choice] + power * posterior.log_w[order, choice])
        each *= waited_shares(self.table.kernels)[order]
        np.add.at(shares, (order, choice), each)
        total: Floats = shares / shares.sum()
        return total
