"""Damped least squares (Levenberg-Marquardt) kernel by kernel; the shared parameters are held.

What the GPU makes of them at the clocks of the rows is looked at once. Where kernels are tried from
several starts, these run side by side: with the few rows of a campaign, NumPy takes about as long
for all of them as for one.

Shape letters: R rows, K kernels, L rows of the kernel with most, P parameters of one, A starts;
N = A·K and Q = A·R are kernels and rows of all starts. A leading 2 is time and power.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.model.damped_steps import CONVERGED, ITERATIONS, LONGEST_STEP
from underclock.core.model.hierarchical_prior import KernelPrior
from underclock.core.model.parameters import (
    Parameters,
    Points,
    gpu_at,
    predict,
)
from underclock.core.model.rows import PER_KERNEL
from underclock.core.model.state import FitProblem, FitState, costs_of, predicted, weights
from underclock.core.model.whitening import Whitening
from underclock.physics.derivatives import AtClocks

_STUCK = 1e6  # damping from which a kernel does not move any more
_EYE = np.eye(PER_KERNEL)


@dataclass(frozen=True, slots=True)
class Ends:
    """Where kernels came to, from each start.

    Attributes:
        kernels: Shape (A, K, P).
        costs: As of `kernel_costs`. Shape (A, K).
    """

    kernels: Floats
    costs: Floats


def converge_kernels(problem: FitProblem, state: FitState) -> FitState:
    """Step each kernel by itself until it does not move; the shared parameters are held."""
    ends = converge_starts(problem, state, [state.parameters.kernels])
    return state.moved(kernels=ends.kernels[0])


def converge_starts(problem: FitProblem, state: FitState, starts: Sequence[Floats]) -> Ends:
    """Step each kernel by itself from each start, until no kernel of that start moves.

    Args:
        problem: The problem.
        state: What is held: all but what the starts say.
        starts: Parameters to begin with. Each of shape (K, P).
    """
    fit = _KernelFit.of(problem, state, len(starts))
    here = fit.at(np.concatenate(starts))
    of_starts = (len(starts), len(problem.rows.names))
    runs = np.full((len(starts), 1), fill_value=True)
    damping = np.full(len(here.kernels), 1e-2)
    for _ in range(ITERATIONS):
        tried = fit.at(here.kernels + fit.steps(here, damping))
        better = tried.costs <= here.costs
        gained = np.where(better, here.costs - tried.costs, 0.0)
        damping = np.where(better, damping / 5, damping * 10)
        settled = (better & (gained < CONVERGED)) | (damping > _STUCK)
        # From where nothing moved nothing goes on, though other starts do.
        here = here.moved(tried, (better.reshape(of_starts) & runs).ravel())
        runs = runs & ~settled.reshape(of_starts).all(axis=1, keepdims=True)
        if not runs.any():
            break
    return Ends(here.kernels.reshape(*of_starts, PER_KERNEL), here.costs.reshape(of_starts))


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels at one point of a fit that holds the shared parameters.

    Attributes:
        kernels: Their parameters. Shape (N, P).
        residuals: Whitened. Shape (2, N, L).
        by_kernel: Derivatives of the prediction, whitened. Shape (2, N, L, P).
        costs: As of `kernel_costs`. Shape (N,).
    """

    kernels: Floats
    residuals: Floats
    by_kernel: Floats
    costs: Floats

    def moved(self, tried: "_Kernels", which: Bools) -> "_Kernels":
        """Return this point with some kernels at another."""
        if which.all():
            return tried
        return _Kernels(
            np.where(which[:, None], tried.kernels, self.kernels),
            np.where(which[:, None], tried.residuals, self.residuals),
            np.where(which[:, None, None], tried.by_kernel, self.by_kernel),
            np.where(which, tried.costs, self.costs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelFit:
    """A fit of kernels one by one, and what stays the same in it.

    Attributes:
        parameters: Of what is held; those of kernels change.
        prior: Of all kernels.
        at_rows: Where to predict.
        gpu: At the clocks of the rows.
        measured: Logarithms of time and power. Shape (2, Q).
        whitening: Of their residuals.
        precision: Of the whitened residuals. Shape (2, N, L).
    """

    parameters: Parameters
    prior: KernelPrior
    at_rows: Points
    gpu: AtClocks
    measured: Floats
    whitening: Whitening
    precision: Floats

    @classmethod
    def of(cls, problem: FitProblem, state: FitState, times: int) -> "_KernelFit":
        """Put as many copies of all kernels side by side as there are starts."""
        return cls(
            parameters=state.parameters,
            prior=state.prior.repeated(times),
            at_rows=problem.at.repeated(times, len(problem.rows.names)),
            gpu=gpu_at(state.parameters, problem.at).repeated(times),
            measured=np.tile(problem.measured, times),
            whitening=problem.whitening.repeated(times),
            precision=np.tile(weights(problem, state), (times, 1)),
        )

    def at(self, kernels: Floats) -> _Kernels:
        """Look at kernels. Shape (N, P)."""
        parameters = dataclasses.replace(self.parameters, kernels=kernels)
        prediction = predict(parameters, self.at_rows, self.gpu)
        residuals = self.whitening.whitened(self.measured - prediction.log)
        costs = costs_of(self.prior, kernels, residuals, self.precision)
        return _Kernels(kernels, residuals, self.whitening.whitened(prediction.by_kernel()), costs)

    def steps(self, here: _Kernels, damping: Floats) -> Floats:
        """Return the damped step of each kernel. Shape (N, P)."""
        pull = self.prior.precision(here.kernels)
        weighed = here.by_kernel.swapaxes(-1, -2) * self.precision[..., None, :]
        curvature = (weighed @ here.by_kernel).sum(axis=0) + pull[:, :, None] * _EYE
        side = (weighed @ here.residuals[..., None]).sum(axis=0)[..., 0]
        side += pull * (self.prior.mean - here.kernels)
        diagonal = curvature.diagonal(axis1=1, axis2=2) * damping[:, None]
        damped = curvature + diagonal[:, :, None] * _EYE
        step = np.linalg.solve(damped, side[..., None])[..., 0]
        return np.clip(step, -LONGEST_STEP, LONGEST_STEP)


def kernel_curvature(problem: FitProblem, state: FitState) -> Floats:
    """Return the precision of each kernel's parameters, the shared held. Shape (K, P, P)."""
    by = problem.whitening.whitened(predicted(problem, state).by_kernel())
    precision = weights(problem, state)
    curvature: Floats = (by.swapaxes(-1, -2) * precision[..., None, :] @ by).sum(axis=0)
    pull = state.prior.precision(state.parameters.kernels)
    return curvature + pull[:, :, None] * _EYE
