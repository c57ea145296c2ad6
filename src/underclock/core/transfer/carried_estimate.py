"""How surely choices of clocks change a step whose auto is expected too.

Errors of choice and auto are of the same kernels, so their levels cancel. Where the cap holds
either, what is missed of its power is made good by its time: a power that is a part ε higher is a
limit that is ε lower. With T and E the settled step's time and energy, L its limit, and τ, ε the
shares of launches in both,

    δ log T = Σ τ·δ log t + T'·δ log P,     δ log E = Σ ε·(δ log t + δ log p) + E'·δ log P,

where δ log P = Σ ε·(δ log t + δ log p) - Σ τ·δ log t and T', E' are -∂ log T, -∂ log E by log L.

Shape letters: K kernels, C settings but the baseline, n launches.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.cost_estimate import OF_HEAT, CostEstimate
from underclock.core.model.posterior import Posterior
from underclock.core.model.predicted_change import PredictedChange, TimeVariance
from underclock.core.step.cap import SettledStep, settle
from underclock.core.step.table import CostTable, waited_shares
from underclock.core.step.under_cap import (
    KnownStep,
    cap_of,
    nearest_settings,
    settled_step,
    step_cost_and_heat,
)
from underclock.records import Closure

_LESS = 0.99  # of the limit, to see how the step follows power


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedEstimate:
    """What other steps' samples say of a step.

    Attributes:
        posterior: Of the settings but the baseline. Length C.
        table: Expected costs; the baseline is its last setting.
        at_auto: How logarithms of time and energy at auto move with log time and log power of each
            kernel at each setting. Shape (2, 2, K, C).
        step_error: How well the model is known to close on a step at auto, as fractions: time,
            energy.
    """

    posterior: Posterior
    table: CostTable
    at_auto: Floats
    step_error: tuple[float, float]

    @classmethod
    def of(cls, known: CostEstimate, posterior: Posterior, expected: KnownStep) -> Self:
        """Join what is known of kernels with what the cap is expected to make of auto."""
        auto = np.full(len(cap_of(expected.table).order), expected.table.baseline)
        error = _closing_error(known, expected.table)
        return cls(
            posterior=posterior,
            table=expected.table,
            at_auto=_moves(expected.table, posterior, auto),
            step_error=error,
        )

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
        if (choice == self.table.baseline).all():
            spreads = [0.0, 0.0]
        else:
            moves = _moves(self.table, self.posterior, choice) - self.at_auto
            spreads = [
                math.hypot(self._spread(each), error)
                for each, error in zip(moves, self.step_error, strict=True)
            ]
        # What heat adds is as unsure as the ambient temperature is against the step's own.
        return PredictedChange(
            time_change=cost.time_change,
            energy_change=cost.energy_change,
            time_spread=(1.0 + cost.time_change) * spreads[0],
            energy_spread=math.hypot((1.0 + cost.energy_change) * spreads[1], OF_HEAT * added),
        )

    def hangs_on(self, setting: Ints) -> Floats:
        """Return the variance of energy saved that errors of each kernel alone make. Shape (K,).

        Args:
            setting: Index into the table's settings, of each kernel. Shape (K,).
        """
        choice = setting[cap_of(self.table).order]
        of_energy = (_moves(self.table, self.posterior, choice) - self.at_auto)[1]
        alone = [np.zeros_like(of_energy) for _ in setting]
        for k, moves in enumerate(alone):
            moves[:, k] = of_energy[:, k]
        return np.array([self._spread(moves) ** 2 for moves in alone])

    def time_variance(self, setting: Ints) -> TimeVariance | None:
        """Return nothing: auto is expected too, and what a kernel adds depends on all others."""

    def _spread(self, moves: Floats) -> float:
        kernels, columns = np.nonzero(np.abs(moves).sum(axis=0))
        weights = moves[:, kernels, columns]
        return math.sqrt(self.posterior.sum_variance(kernels, columns, weights).variance)


def _closing_error(known: CostEstimate, table: CostTable) -> tuple[float, float]:
    """Return how unsure what the model misses of the known step at auto is, of another step.

    Its own runs scatter; beyond that the miss may be the known step's own, or of any step; and what
    a lag of the power loop makes of the new one is a model's.
    """
    one = Closure(time=1.0, energy=1.0)
    was, now = known.table.closure or one, table.closure or one
    pairs = (was.time, now.time), (was.energy, now.energy)
    time, energy = (
        math.hypot(spread, _OF_MISS * math.log(before), _OF_MISS * math.log(after / before))
        for spread, (before, after) in zip(known.baseline.spread, pairs, strict=True)
    )
    return time, energy


_OF_MISS = 0.5  # of what the model misses of one step at auto, and of what a lag makes of another


def _moves(table: CostTable, posterior: Posterior, choice: Ints) -> Floats:
    """Return how log time and energy of a schedule move with each entry. Shape (2, 2, K, C)."""
    cap = cap_of(table)
    settled = settled_step(table, choice)
    follows = [0.0, 0.0]
    if settled.held > 0.0:
        less = dataclasses.replace(cap, limit_w=_LESS * cap.limit_w)
        asked = np.where(choice == table.baseline, cap.boost, choice)
        lower = settle(less, table.launches, asked)
        follows = [
            math.log(float(now.sum()) / float(was.sum())) / -math.log(_LESS)
            for now, was in (
                (lower.time_s, settled.time_s),
                (lower.energy_j, settled.energy_j),
            )
        ]
    at = _nearest(table, settled, choice)
    waited = waited_shares(table.kernels)[cap.order]
    shape = posterior.log_s.shape
    of_time, of_energy = np.zeros(shape), np.zeros(shape)
    np.add.at(of_time, (cap.order, at), settled.time_s * waited)
    np.add.at(of_energy, (cap.order, at), settled.energy_j * waited)
    of_time, of_energy = of_time / of_time.sum(), of_energy / of_energy.sum()
    by_power = np.stack([of_energy - of_time, of_energy])
    nothing = np.zeros(shape)
    moves: Floats = np.stack(
        [
            np.stack([of_time, nothing]) + follows[0] * by_power,
            np.stack([of_energy, of_energy]) + follows[1] * by_power,
        ]
    )
    return moves


def _nearest(table: CostTable, settled: SettledStep, choice: Ints) -> Ints:
    """Return the locked setting nearest to where each launch runs. Shape (n,)."""
    cap = cap_of(table)
    asked = np.where(choice == table.baseline, cap.boost, choice)
    core = np.array([clocks.core_mhz or math.inf for clocks in table.settings])
    nearest = asked.copy()
    slower = settled.core_mhz < core[asked]
    for memory in {table.settings[s].mem_mhz for s in asked[slower].tolist()}:
        of = np.array([table.settings[s].mem_mhz == memory for s in asked.tolist()]) & slower
        boost = next(s for s in asked[of].tolist())
        nearest[of] = nearest_settings(table, settled, boost)[of]
    return nearest
