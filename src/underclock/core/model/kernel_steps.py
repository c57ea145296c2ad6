"""Damped least squares (Levenberg-Marquardt) kernel by kernel; the shared parameters are held.

What the GPU makes of them at the clocks of the rows is looked at once.

Shape letters: R rows, K kernels, L rows of the kernel with most, P parameters of a kernel; a
leading 2 is time and power.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.damped_steps import CONVERGED, ITERATIONS, LONGEST_STEP
from underclock.core.model.parameters import PredictedRows, gpu_at, predict
from underclock.core.model.rows import PER_KERNEL
from underclock.core.model.state import FitProblem, State, costs_of, predicted, weights
from underclock.physics.derivatives import AtClocks

_STUCK = 1e6  # damping from which a kernel does not move any more


def converge_kernels(problem: FitProblem, state: State, held: int | None = None) -> State:
    """Step each kernel by itself until it does not move; the shared parameters are held.

    Args:
        problem: The problem.
        state: Where to begin.
        held: A parameter of every kernel that is held too.
    """
    damping = np.full(len(problem.rows.names), 1e-2)
    fit = _KernelFit(problem, gpu_at(state.parameters, problem.at), weights(problem, state), held)
    here = fit.at(state)
    for _ in range(ITERATIONS):
        kernels = here.state.parameters.kernels
        stepped = kernels + fit.steps(here, damping)
        tried = fit.at(state.moved(kernels=stepped))
        better = tried.costs <= here.costs
        gained = np.where(better, here.costs - tried.costs, 0.0)
        damping = np.where(better, damping / 5, damping * 10)
        here = tried if better.all() else here.moved(tried, better, problem.at.kernel)
        if bool(((better & (gained < CONVERGED)) | (damping > _STUCK)).all()):
            break
    return here.state


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels at one point of a fit that holds the shared parameters.

    Attributes:
        state: Where.
        prediction: Of the rows.
        residuals: Whitened. Shape (2, K, L).
        costs: As of `kernel_costs`. Shape (K,).
    """

    state: State
    prediction: PredictedRows
    residuals: Floats
    costs: Floats

    def moved(self, tried: "_Kernels", which: Bools, kernel: Ints) -> "_Kernels":
        """Return this point with some kernels, of those of the rows, at another."""
        kernels = np.where(
            which[:, None], tried.state.parameters.kernels, self.state.parameters.kernels
        )
        return _Kernels(
            self.state.moved(kernels=kernels),
            self.prediction.moved(tried.prediction, which[kernel]),
            np.where(which[:, None], tried.residuals, self.residuals),
            np.where(which, tried.costs, self.costs),
        )


@dataclass(frozen=True, slots=True)
class _KernelFit:
    """A fit of kernels one by one, and what stays the same in it.

    Attributes:
        problem: The problem.
        gpu: At the clocks of the rows.
        precision: Of the whitened residuals. Shape (2, K, L).
        held: A parameter of every kernel that is held; ``None`` for none.
    """

    problem: FitProblem
    gpu: AtClocks
    precision: Floats
    held: int | None

    def at(self, state: State) -> _Kernels:
        """Look at a state, whose shared parameters are those of the fit."""
        problem = self.problem
        prediction = predict(state.parameters, problem.at, self.gpu)
        residuals = problem.whitening.whitened(problem.measured - prediction.log)
        return _Kernels(state, prediction, residuals, costs_of(state, residuals, self.precision))

    def steps(self, here: _Kernels, damping: Floats) -> Floats:
        """Return the damped step of each kernel. Shape (K, P)."""
        by_kernel, held = here.prediction.by_kernel(), self.held
        if held is not None:
            by_kernel[..., held] = 0.0
        by = self.problem.whitening.whitened(by_kernel)
        kernels, prior = here.state.parameters.kernels, here.state.prior
        pull = prior.precision(kernels)
        weighed = by.swapaxes(-1, -2) * self.precision[..., None, :]
        curvature = (weighed @ by).sum(axis=0) + pull[:, :, None] * np.eye(PER_KERNEL)
        side = (weighed @ here.residuals[..., None]).sum(axis=0)[..., 0]
        side += pull * (prior.mean - kernels)
        if held is not None:
            side[:, held] = 0.0
        diagonal = np.einsum("kpp->kp", curvature) * damping[:, None]
        damped = curvature + diagonal[:, :, None] * np.eye(PER_KERNEL)
        step = np.linalg.solve(damped, side[..., None])[..., 0]
        return np.clip(step, -LONGEST_STEP, LONGEST_STEP)


def kernel_curvature(problem: FitProblem, state: State) -> Floats:
    """Return the precision of each kernel's parameters, the shared held. Shape (K, P, P)."""
    by = problem.whitening.whitened(predicted(problem, state).by_kernel())
    precision = weights(problem, state)
    curvature: Floats = (by.swapaxes(-1, -2) * precision[..., None, :] @ by).sum(axis=0)
    pull = state.prior.precision(state.parameters.kernels)
    return curvature + pull[:, :, None] * np.eye(PER_KERNEL)
