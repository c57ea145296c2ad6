"""What a stage draws at each clock and while it waits, from energies of whole iterations.

A rank's energy is its power at each clock times the time spent there, plus what waiting draws times
the rest. Energies of iterations cannot tell forward from backward: both draw what their stage draws
at that clock. Powers of all stages are one Gaussian process over the logarithm of the clock, alike
but for a level and a little shape of each.

Shape letters: c clocks at which powers are held, with the line between them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from learned_jobs.pass_times import near
from learned_jobs.runs import ExecutedRuns
from underclock.arrays import Floats, Ints

_STEP_MHZ = 30.0
_WAITING = 0.33  # of what passes draw, before anything is known
_RISE = 1.5  # power goes about as the clock to this, before anything is known


class _Sizes(NamedTuple):
    """Standard deviations, relative: of all stages alike, and of each stage's own."""

    level: float = 0.3
    rise: float = 1.5
    shape: float = 0.16
    own_level: float = 0.18
    own_rise: float = 0.3
    own_shape: float = 0.03
    waiting: float = 0.3
    own_waiting: float = 0.12


_SIZES = _Sizes()
_LENGTH, _OWN_LENGTH = 0.25, 0.15
_RANK, _PLAN, _COLD = 0.004, 0.0015, 0.012  # scatter of energies: ranks, plans, cold boards


@dataclass(frozen=True, kw_only=True)
class StagePower:
    """Powers with their joint errors.

    Attributes:
        knots_mhz: Shape (c,).
        power_w: At those, and while waiting as the last. Shape (S, c + 1).
        covariance: Of all of them, stage after stage. Shape (S (c + 1), S (c + 1)).
    """

    knots_mhz: Floats
    power_w: Floats
    covariance: Floats

    @classmethod
    def of(cls, runs: ExecutedRuns) -> "StagePower":
        """Learn them from executed plans."""
        low, high = float(runs.clocks_mhz.min()), float(runs.clocks_mhz.max())
        knots = np.linspace(low, high, int((high - low) / _STEP_MHZ) + 2)
        spent = _spent_s(knots, runs.clocks_mhz, runs.times_s, runs.iteration_s)
        plans, stages, count = spent.shape
        busy_s = spent[..., :-1].sum(axis=-1)
        usual_w = float(np.median(runs.energy_j / (busy_s + _WAITING * spent[..., -1])))
        design = np.zeros((plans, stages, stages, count))
        for s in range(stages):
            design[:, s, s] = spent[:, s]
        rows = design.reshape(plans * stages, -1)
        mean, prior = _prior(knots, stages)
        mean, prior = mean * usual_w, prior * usual_w**2
        energy_j = runs.energy_j.ravel()
        plan = np.repeat(np.arange(plans), stages)
        together = (plan[:, None] == plan) * np.where(runs.cold, _PLAN**2 + _COLD**2, _PLAN**2)[
            plan
        ]
        noise = (together + _RANK**2 * np.eye(len(plan))) * energy_j * energy_j[:, None]
        seen = rows @ prior
        gain = np.linalg.solve(seen @ rows.T + noise, seen).T
        power = (mean + gain @ (energy_j - rows @ mean)).reshape(stages, count)
        passes = power[:, :-1]
        rising = 0.5 * (
            np.maximum.accumulate(passes, axis=1)
            + np.minimum.accumulate(passes[:, ::-1], axis=1)[:, ::-1]
        )
        least_w = 0.05 * usual_w  # energies that contradict one another leave nothing negative
        return cls(
            knots_mhz=knots,
            power_w=np.maximum(np.concatenate([rising, power[:, -1:]], axis=1), least_w),
            covariance=prior - gain @ seen,
        )

    def passes_w(self, stage: int, mhz: Ints) -> tuple[Floats, Floats]:
        """Return what a stage's passes draw at clocks, and the error. Shapes (u,)."""
        count = len(self.knots_mhz)
        share = _shares(self.knots_mhz, mhz)
        at = stage * (count + 1) + np.arange(count)
        variance = np.einsum("ui,ij,uj->u", share, self.covariance[np.ix_(at, at)], share)
        return share @ self.power_w[stage, :-1], np.sqrt(np.maximum(variance, 0.0))

    def energy_j(
        self, clocks_mhz: Ints, times_s: Floats, iteration_s: Floats
    ) -> tuple[Floats, Floats]:
        """Return energies of a rank of each stage, and the error of their sum.

        Args:
            clocks_mhz: Shape (D, S, K, M).
            times_s: Of passes. Shape (D, S, K, M).
            iteration_s: Shape (D,).

        Returns:
            Shapes (D, S) and (D,).
        """
        spent = _spent_s(self.knots_mhz, clocks_mhz, times_s, iteration_s)
        flat = spent.reshape(len(spent), -1)
        variance = np.einsum("di,ij,dj->d", flat, self.covariance, flat)
        energy: Floats = (spent * self.power_w).sum(axis=-1)
        return energy, np.sqrt(np.maximum(variance, 0.0))


def _shares(knots: Floats, mhz: Ints) -> Floats:
    """Return the weights of knots in the line between them. Shape (u, c)."""
    place = np.interp(mhz, knots, np.arange(len(knots)))
    shares: Floats = np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(len(knots))))
    return shares


def _spent_s(knots: Floats, clocks_mhz: Ints, times_s: Floats, iteration_s: Floats) -> Floats:
    """Return the time that stages spend at each knot, and waiting. Shape (D, S, c + 1)."""
    spent = np.zeros((*times_s.shape[:2], len(knots) + 1))
    for d, s in np.ndindex(*times_s.shape[:2]):
        mhz, which = np.unique(clocks_mhz[d, s], return_inverse=True)
        there_s = np.bincount(which.ravel(), times_s[d, s].ravel())
        spent[d, s, :-1] = there_s @ _shares(knots, mhz)
    spent[..., -1] = iteration_s[:, None] - times_s.sum(axis=(2, 3))
    return spent


def _prior(knots: Floats, stages: int) -> tuple[Floats, Floats]:
    """Return mean and covariance of powers, as parts of what passes usually draw."""
    count = len(knots) + 1
    log_mhz = np.append(np.log(knots), 0.0)
    rise = log_mhz - log_mhz[:-1].mean()
    waits = np.arange(count) == count - 1
    steep = rise[:, None] * rise
    alike = _SIZES.level**2 + _SIZES.rise**2 * steep
    alike += _SIZES.shape**2 * near(log_mhz, log_mhz, _LENGTH)
    own = _SIZES.own_level**2 + _SIZES.own_rise**2 * steep
    own += _SIZES.own_shape**2 * near(log_mhz, log_mhz, _OWN_LENGTH)
    for block, size in ((alike, _SIZES.waiting), (own, _SIZES.own_waiting)):
        block[waits] = block[:, waits] = 0.0
        block[-1, -1] = (_WAITING * size) ** 2
    mean = np.where(waits, _WAITING, 1.0 + _RISE * rise)
    covariance: Floats = np.kron(np.ones((stages, stages)), alike) + np.kron(np.eye(stages), own)
    return np.tile(mean, stages), covariance
