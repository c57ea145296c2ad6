"""Damped least squares (Levenberg-Marquardt): of all parameters at once, or kernel by kernel.

A kernel's parameters touch its own rows only, so the normal equations are an arrow: one small
block a kernel, bordered by the shared parameters.

Shape letters: K kernels, L rows of the kernel with most, S shared parameters, P parameters of a
kernel; a leading 2 is time and power.
"""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.rows import PER_KERNEL
from underclock.core.model.state import (
    FitProblem,
    State,
    cost,
    idling,
    kernel_costs,
    predicted,
    weights,
)

_ITERATIONS = 25
_TRIES = 6  # of ever stronger damping, until a step is no worse
_CONVERGED = 1e-4  # gain of the cost below which a fit has converged, as a fraction of it
_SETTLED = 0.05  # and the step, as a logarithm, that no parameter may exceed then
_LONGEST_STEP = 1.5
_STUCK = 1e6  # damping from which a kernel does not move any more


@dataclass(frozen=True, slots=True)
class Linear:
    """Residuals around one point, whitened, and their derivatives.

    Attributes:
        residuals: Shape (2, K, L); zero where a kernel has fewer rows, as in the others.
        by_shared: Of the prediction. Shape (2, K, L, S).
        by_kernel: Of the prediction. Shape (2, K, L, P).
    """

    residuals: Floats
    by_shared: Floats
    by_kernel: Floats


@dataclass(frozen=True, slots=True)
class NormalEquations:
    """Curvature and downhill direction of the cost, an arrow.

    Attributes:
        kernel: Block of each kernel. Shape (K, P, P).
        border: Between kernels and shared. Shape (K, P, S).
        shared: Shape (S, S).
        kernel_side: Right-hand side. Shape (K, P).
        shared_side: Right-hand side. Shape (S,).
    """

    kernel: Floats
    border: Floats
    shared: Floats
    kernel_side: Floats
    shared_side: Floats

    def step(self, damping: float) -> tuple[Floats, Floats]:
        """Return the damped step of the shared, (S,), and of the kernels, (K, P)."""
        diagonal = np.einsum("kpp->kp", self.kernel)
        damped = self.kernel + damping * diagonal[:, :, None] * np.eye(PER_KERNEL)
        corner = self.shared + damping * np.diag(np.diag(self.shared))
        sides = np.concatenate([self.border, self.kernel_side[..., None]], axis=-1)
        solved = np.linalg.solve(damped, sides)
        through, own = solved[..., :-1], solved[..., -1]
        rest = corner - np.einsum("kps,kpt->st", self.border, through)
        side = self.shared_side - np.einsum("kps,kp->s", self.border, own)
        shared = np.linalg.solve(rest, side)
        return shared, own - through @ shared


def linearised(problem: FitProblem, state: State) -> Linear:
    """Return the problem around a state."""
    prediction, whitened = predicted(problem, state), problem.whitening.whitened
    return Linear(
        whitened(problem.measured - prediction.log),
        whitened(prediction.by_shared()),
        whitened(prediction.by_kernel()),
    )


def normal_equations(
    problem: FitProblem, state: State, linear: Linear, precision: Floats
) -> NormalEquations:
    """Return the normal equations, priors included.

    Args:
        problem: The problem.
        state: Where.
        linear: The problem around it.
        precision: Of the whitened residuals. Shape (2, K, L).
    """
    prior, parameters = state.prior, state.parameters
    weighed = linear.by_kernel.swapaxes(-1, -2) * precision[..., None, :]
    kernel = (weighed @ linear.by_kernel).sum(axis=0)
    kernel_side = (weighed @ linear.residuals[..., None]).sum(axis=0)[..., 0]
    border = (weighed @ linear.by_shared).sum(axis=0)
    flat = linear.by_shared.reshape(-1, linear.by_shared.shape[-1])
    weighed_flat = flat.T * precision.ravel()
    pull = prior.precision(parameters.kernels)
    kernel += pull[:, :, None] * np.eye(PER_KERNEL)
    kernel_side += pull * (prior.mean - parameters.kernels)
    shared_side = weighed_flat @ linear.residuals.ravel()
    shared_pull = problem.shared_precision / state.shared_scale**2
    shared_side += shared_pull * (problem.shared_mean - parameters.shared)
    shared = weighed_flat @ flat + np.diag(shared_pull)
    if problem.rows.idle:
        left, by = idling(problem, parameters.shared)
        shared_side += by.T @ left
        shared += by.T @ by
    return NormalEquations(kernel, border, shared, kernel_side, shared_side)


def converge(problem: FitProblem, state: State) -> State:
    """Step all parameters until nothing moves."""
    damping, least = 1e-3, cost(problem, state)
    for _ in range(_ITERATIONS):
        linear = linearised(problem, state)
        equations = normal_equations(problem, state, linear, weights(problem, state))
        for _ in range(_TRIES):
            step_s, step_k = equations.step(damping)
            longest = max(float(np.abs(step_s).max()), float(np.abs(step_k).max()))
            shorter = min(1.0, _LONGEST_STEP / max(longest, 1e-12))
            tried = state.moved(
                shared=state.parameters.shared + shorter * step_s,
                kernels=state.parameters.kernels + shorter * step_k,
            )
            now = cost(problem, tried)
            if now <= least:
                break
            damping = max(damping, 1e-6) * 10
        else:
            return state
        gained, least, state = least - now, now, tried
        damping /= 5
        if gained < _CONVERGED * (1.0 + abs(least)) and longest < _SETTLED:
            break
    return state


def converge_kernels(problem: FitProblem, state: State, held: int | None = None) -> State:
    """Step each kernel by itself until it does not move; the shared parameters are held.

    Args:
        problem: The problem.
        state: Where to begin.
        held: A parameter of every kernel that is held too.
    """
    damping = np.full(len(problem.rows.names), 1e-2)
    costs = kernel_costs(problem, state)
    precision = weights(problem, state)
    for _ in range(_ITERATIONS):
        step = _kernel_steps(problem, state, precision, damping, held)
        kernels = state.parameters.kernels
        now = kernel_costs(problem, state.moved(kernels=kernels + step))
        better = now <= costs
        state = state.moved(kernels=np.where(better[:, None], kernels + step, kernels))
        damping = np.where(better, damping / 5, damping * 10)
        gained = np.where(better, costs - now, 0.0)
        costs = np.where(better, now, costs)
        if bool(((better & (gained < _CONVERGED)) | (damping > _STUCK)).all()):
            break
    return state


def kernel_curvature(problem: FitProblem, state: State) -> Floats:
    """Return the precision of each kernel's parameters, the shared held. Shape (K, P, P)."""
    by = problem.whitening.whitened(predicted(problem, state).by_kernel())
    precision = weights(problem, state)
    curvature: Floats = (by.swapaxes(-1, -2) * precision[..., None, :] @ by).sum(axis=0)
    pull = state.prior.precision(state.parameters.kernels)
    return curvature + pull[:, :, None] * np.eye(PER_KERNEL)


def _kernel_steps(
    problem: FitProblem, state: State, precision: Floats, damping: Floats, held: int | None
) -> Floats:
    """Return the damped step of each kernel. Shape (K, P)."""
    prediction, whitened = predicted(problem, state), problem.whitening.whitened
    by_kernel = prediction.by_kernel()
    if held is not None:
        by_kernel[..., held] = 0.0
    residuals, by = whitened(problem.measured - prediction.log), whitened(by_kernel)
    kernels, prior = state.parameters.kernels, state.prior
    pull = prior.precision(kernels)
    weighed = by.swapaxes(-1, -2) * precision[..., None, :]
    curvature = (weighed @ by).sum(axis=0) + pull[:, :, None] * np.eye(PER_KERNEL)
    side = (weighed @ residuals[..., None]).sum(axis=0)[..., 0] + pull * (prior.mean - kernels)
    if held is not None:
        side[:, held] = 0.0
    diagonal = np.einsum("kpp->kp", curvature) * damping[:, None]
    damped = curvature + diagonal[:, :, None] * np.eye(PER_KERNEL)
    step = np.linalg.solve(damped, side[..., None])[..., 0]
    return np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
