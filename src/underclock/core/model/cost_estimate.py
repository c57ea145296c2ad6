"""What samples say of every setting, and of choices and schedules made of them.

Shape letters: K kernels, C settings but the baseline, n launches.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import (
    Baseline,
    PredictedChange,
    TimeVariance,
    predicted_change,
    scheduled_change,
    time_variance,
)
from underclock.core.model.rows import Rows
from underclock.core.step.table import CostTable, share_of_sum, waited_shares
from underclock.core.step.under_cap import cap_of, step_cost_and_heat
from underclock.records import Closure

_FAR_OFF = 2.0  # deviations by which a model that is right misses one step in twenty
_ALONE = 0.985  # of the limit: a kernel expected to draw more may be held by the cap
OF_HEAT = 0.2  # relative error of what heat adds: 8 °C of ambient, against 40 above it


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What samples say of every setting, measured or not.

    Attributes:
        posterior: Of the settings but the baseline. Length C.
        counts: Launches of each kernel that the step waits for. Shape (K,).
        baseline: What auto costs.
        table: Expected costs; the baseline is its last setting.
        measurable: Which settings a kernel has an answer at, of those to be visited. Shape (K, C).
        can: Which can be planned. A kernel without rows, because all of its
            samples ran at the power cap, say, only where it was measured; so is every kernel of a
            table, of which another row costs nothing but a look. Shape (K, C).
        step_error: By how much more than its own errors the model misses the step at auto, as
            fractions: time, energy.
    """

    rows: Rows
    model: FittedModel
    posterior: Posterior
    counts: Floats
    baseline: Baseline
    table: CostTable
    measurable: Bools
    can: Bools
    step_error: tuple[float, float] = (0.0, 0.0)

    @property
    def exact(self) -> bool:
        """Whether a measurement is the truth: on a GPU it is none."""
        return False

    @property
    def holds_alone(self) -> Bools:
        """Where a kernel that runs alone draws less than the cap leaves it. Shape (K, C)."""
        below: Bools = self.posterior.log_w < math.log(_ALONE * self.rows.limit_w)
        return below

    def without_step_error(self) -> "CostEstimate":
        """Return an estimate without what no further sample takes away: what the model misses."""
        return dataclasses.replace(self, step_error=(0.0, 0.0))

    def with_step_error(self, closure: Closure, at_auto: Ints) -> "CostEstimate":
        """Return an estimate that knows by how much it misses the step at auto, errors apart.

        Args:
            closure: How far the step as predicted is from the step as it ran.
            at_auto: Setting of each launch in it. Shape (n,).
        """
        change = self.predicted_schedule(at_auto)
        errors = [
            math.sqrt(max(0.0, math.log(ratio) ** 2 - (_FAR_OFF * spread) ** 2))
            for ratio, spread in (
                (closure.time, change.time_spread),
                (closure.energy, change.energy_spread),
            )
        ]
        return dataclasses.replace(self, step_error=(errors[0], errors[1]))

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change.

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        columns = np.where(setting == self.table.baseline, -1, setting)
        change = predicted_change(self.posterior, self.counts, self.baseline, columns)
        if self.table.power_cap is None or (columns < 0).all():
            return change
        return self._under_cap(change, setting[self.table.power_cap.order])

    def time_variance(self, setting: Ints) -> TimeVariance:
        """Share the variance of a choice's change of time out among kernels.

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        columns = np.where(setting == self.table.baseline, -1, setting)
        spread = self.predicted_change(setting).time_spread
        return time_variance(self.posterior, self.counts, self.baseline, columns, spread**2)

    def predicted_schedule(self, choice: Ints) -> PredictedChange:
        """Say what a schedule is expected to change, changes of clocks apart.

        Args:
            choice: Index into the table's settings, of each launch. Shape (n,).
        """
        order = cap_of(self.table).order
        pairs, launches = np.unique(np.stack([order, choice]), axis=1, return_counts=True)
        locked = pairs[1] != self.table.baseline
        waited = launches * waited_shares(self.table.kernels)[pairs[0]]
        change = scheduled_change(self.posterior, self.baseline, pairs[:, locked], waited[locked])
        return self._under_cap(change, choice)

    def change_spread(self, chosen: Floats, auto: Floats) -> tuple[float, float]:
        """Return how sure a ratio of sums is: deviations of its logarithm, of time and of energy.

        Errors that both sums have, of a kernel's level say, are not in it.

        Args:
            chosen: Launches of each kernel at each of the table's settings. Shape (K, S).
            auto: The same of what is compared with. Shape (K, S).
        """
        kernels, settings = np.nonzero(chosen + auto)
        locked = settings != self.table.baseline
        at = kernels[locked], settings[locked]
        each, spreads = self.table.launches, []
        for costs, powers, of_kernels in (
            (each.time_s, [[1.0], [0.0]], self.baseline.of_kernels[0]),
            (each.energy_j, [[1.0], [1.0]], self.baseline.of_kernels[1]),
        ):
            of = share_of_sum(chosen, costs) - share_of_sum(auto, costs)
            moved = self.posterior.sum_variance(*at, np.array(powers) * of[at])
            rest = of[:, self.table.baseline] * of_kernels
            spreads.append(math.sqrt(moved.variance + float(rest @ rest)))
        return spreads[0], spreads[1]

    def _under_cap(self, change: PredictedChange, choice: Ints) -> PredictedChange:
        """Add what the cap makes of a schedule, and how well the model knows the step."""
        cost, added = step_cost_and_heat(self.table, choice)
        left = (choice == self.table.baseline).all()
        time, energy = (0.0, 0.0) if left else self.step_error
        # What heat adds is as unsure as the ambient temperature is against the step's own.
        energy = math.hypot(energy, OF_HEAT * added)
        return PredictedChange(
            time_change=cost.time_change,
            energy_change=cost.energy_change,
            time_spread=math.hypot(change.time_spread, (1.0 + cost.time_change) * time),
            energy_spread=math.hypot(change.energy_spread, (1.0 + cost.energy_change) * energy),
        )
