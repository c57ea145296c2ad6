"""What a choice of clocks changes, and how surely: errors of the choice and of auto, together.

A kernel's level is in its cost at auto and at every other setting alike, so it hardly matters to a
change. So errors are taken of the change itself.

Shape letters: K kernels, S settings.
"""

import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.inference.field import Errors, Sizes
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import Baseline, PredictedChange, TimeVariance
from underclock.core.step.table import CostTable, share_of_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCosts:
    """Costs with the errors of all entries together.

    Attributes:
        time: Errors of log time, by the table's settings. Of (K, S).
        wider: By how much sums are off more than errors of entries say, or less: time, energy.
    """

    table: CostTable
    time: Errors
    energy: Errors
    wider: tuple[float, float] = (1.0, 1.0)

    def predicted_change(self, setting: Ints) -> PredictedChange:
        """Say what a choice is expected to change.

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        time, energy = (
            _Change.of(costs, errors, self.table.baseline, setting)
            for costs, errors in (
                (self.table.time_s, self.time),
                (self.table.energy_j, self.energy),
            )
        )
        return PredictedChange(
            time_change=time.ratio - 1.0,
            energy_change=energy.ratio - 1.0,
            time_spread=self.wider[0] * math.sqrt(time.variance),
            energy_spread=self.wider[1] * math.sqrt(energy.variance),
        )

    def change_spread(self, chosen: Floats, auto: Floats) -> tuple[float, float]:
        """Return how sure a ratio of sums is: deviations of its logarithm, of time and of energy.

        Args:
            chosen: Launches of each kernel at each setting. Shape (K, S).
            auto: The same of what is compared with. Shape (K, S).
        """
        each, spreads = self.table.launches, []
        for costs, errors, wider in (
            (each.time_s, self.time, self.wider[0]),
            (each.energy_j, self.energy, self.wider[1]),
        ):
            of = share_of_sum(chosen, costs) - share_of_sum(auto, costs)
            at = np.nonzero(of)
            weights, own = of[at], np.zeros_like(errors.own[:, 0])
            np.add.at(own, at[0], weights[:, None] * errors.own[at])
            shared = weights @ errors.shared[at]
            rest = float(weights**2 @ errors.rest[at])
            spreads.append(wider * math.sqrt(float((own**2).sum() + shared @ shared) + rest))
        return spreads[0], spreads[1]

    def time_variance(self, setting: Ints) -> TimeVariance:
        """Share the variance of a choice's change of time out among kernels."""
        errors, at = self.time, self.table.baseline
        change = _Change.of(self.table.time_s, errors, at, setting)
        parts = np.where(np.isfinite(self.table.time_s), self.table.time_s, 0.0)
        parts = parts / self.table.auto_time_s
        auto = change.ratio * parts[:, [at]]
        own = parts[..., None] * errors.own - auto[..., None] * errors.own[:, [at]]
        shared = parts[..., None] * errors.shared - auto[..., None] * errors.shared[:, [at]]
        rest = parts**2 * errors.rest + auto**2 * errors.rest[:, [at]]
        rest[:, at] = (parts[:, at] - auto[:, 0]) ** 2 * errors.rest[:, at]
        # What kernels share makes the variance a square of a sum; a tangent stands for it.
        of_entries = (own**2).sum(-1) + rest + 2.0 * shared @ change.shared
        of_entries *= self.wider[0] ** 2
        total = math.fsum(of_entries[np.arange(len(setting)), setting])
        return TimeVariance(
            rest=self.wider[0] ** 2 * change.variance - total, of_entries=of_entries
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFit(JointCosts):
    """Costs of a table of which only some rows were looked at.

    Attributes:
        posterior: Of a launch at every setting but auto; entries without variance are certain.
        counts: Launches of each kernel that the step waits for. Shape (K,).
        baseline: What auto costs.
        measurable: Which settings a kernel has a row at. Shape (K, C - 1).
        exact: Whether a row is all there is to know.
        sizes: How large the parts of the fields are.
    """

    posterior: Posterior
    counts: Floats
    baseline: Baseline
    measurable: Bools
    exact: bool
    sizes: tuple[Sizes, Sizes]
    learned_from: int

    @property
    def holds_alone(self) -> Bools:
        """Where a kernel runs as asked: everywhere, of a table."""
        return np.ones_like(self.measurable)

    def without_step_error(self) -> "TableFit":
        """Return the same: a table knows no step that its kernels miss."""
        return self


@dataclass(frozen=True, slots=True)
class _Change:
    """A sum of chosen costs against the sum at auto.

    Attributes:
        ratio: Of the sums.
        shared: How it moves with what kernels share. Shape (S,).
    """

    ratio: float
    variance: float
    shared: Floats

    @classmethod
    def of(cls, costs: Floats, errors: Errors, baseline: int, setting: Ints) -> "_Change":
        kernels, total = np.arange(len(setting)), math.fsum(costs[:, baseline])
        chosen = costs[kernels, setting] / total
        ratio = math.fsum(chosen)
        auto = ratio * costs[:, baseline] / total
        own, shared = (
            chosen[:, None] * each[kernels, setting] - auto[:, None] * each[:, baseline]
            for each in (errors.own, errors.shared)
        )
        rest = np.where(
            setting == baseline,
            (chosen - auto) ** 2 * errors.rest[:, baseline],
            chosen**2 * errors.rest[kernels, setting] + auto**2 * errors.rest[:, baseline],
        )
        moves = shared.sum(axis=0)
        return cls(ratio, float((own**2).sum() + rest.sum() + moves @ moves), moves)
