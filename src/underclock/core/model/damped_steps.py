"""Damped least squares (Levenberg-Marquardt) of all parameters at once.

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
    FitState,
    SeenRows,
    cost,
    idling,
    idling_by_shared,
    weights,
)

ITERATIONS = 25
_TRIES = 6  # of ever stronger damping, until a step is no worse
CONVERGED = 1e-4  # gain of the cost below which a fit has converged, as a fraction of it
_SETTLED = 0.05  # and the step, as a logarithm, that no parameter may exceed then
LONGEST_STEP = 1.5
_EYE = np.eye(PER_KERNEL)


@dataclass(frozen=True, slots=True)
class Linear:
    """Residuals around one point, whitened, and their derivatives.

    Attributes:
        residuals: Shape (2, K, L); zero where a kernel has fewer rows, as in the others.
        by_shared: Of the prediction. Shape (2, K, L, S).
        by_kernel: Of the prediction. Shape (2, K, L, P).
        idle: Residuals of idling and derivatives of its prediction, (N,) and (N, S); ``None``
            where it was not measured.
    """

    residuals: Floats
    by_shared: Floats
    by_kernel: Floats
    idle: tuple[Floats, Floats] | None


@dataclass(frozen=True, slots=True)
class Curvature:
    """Curvature of the cost, an arrow.

    Attributes:
        kernel: Block of each kernel. Shape (K, P, P).
        border: Between kernels and shared. Shape (K, P, S).
        shared: Shape (S, S).
    """

    kernel: Floats
    border: Floats
    shared: Floats

    def rest(self) -> Floats:
        """Return the curvature by the shared, those of kernels unknown. Shape (S, S)."""
        through = np.linalg.solve(self.kernel, self.border)
        rest: Floats = self.shared - np.einsum("kps,kpt->st", self.border, through)
        return rest


@dataclass(frozen=True, slots=True)
class NormalEquations(Curvature):
    """Curvature and downhill direction of the cost.

    Attributes:
        kernel_side: Right-hand side. Shape (K, P).
        shared_side: Right-hand side. Shape (S,).
    """

    kernel_side: Floats
    shared_side: Floats

    def step(self, damping: float) -> tuple[Floats, Floats]:
        """Return the damped step of the shared, (S,), and of the kernels, (K, P)."""
        diagonal = self.kernel.diagonal(axis1=1, axis2=2)
        damped = self.kernel + damping * diagonal[:, :, None] * _EYE
        corner = self.shared + damping * np.diag(np.diag(self.shared))
        sides = np.concatenate([self.border, self.kernel_side[..., None]], axis=-1)
        solved = np.linalg.solve(damped, sides)
        through, own = solved[..., :-1], solved[..., -1]
        rest = corner - np.einsum("kps,kpt->st", self.border, through)
        side = self.shared_side - np.einsum("kps,kp->s", self.border, own)
        shared = np.linalg.solve(rest, side)
        return shared, own - through @ shared


def idle_of(problem: FitProblem, state: FitState) -> tuple[Floats, Floats] | None:
    """Return residuals of idling, (N,), and derivatives of its prediction, (N, S), if there are."""
    if not problem.rows.idle:
        return None
    shared = state.parameters.shared
    return idling(problem, shared), idling_by_shared(problem, shared)


def linearised(problem: FitProblem, state: FitState, seen: SeenRows | None = None) -> Linear:
    """Return the problem around a state, from where somebody may have looked at the rows."""
    seen, whitened = seen or SeenRows.of(problem, state), problem.whitening.whitened
    return Linear(
        seen.residuals,
        whitened(seen.prediction.by_shared()),
        whitened(seen.prediction.by_kernel()),
        idle_of(problem, state),
    )


@dataclass(frozen=True, slots=True)
class Pull:
    """How strongly parameters are drawn to where they are, or idling is, expected.

    Attributes:
        kernels: Shape (K, P).
        shared: Shape (S,).
        of_kernels: Their part of the curvature. Shape (K, P, P).
        of_shared: Shape (S, S).
        of_idle: Shape (S, S); ``None`` where it was not measured.
    """

    kernels: Floats
    shared: Floats
    of_kernels: Floats
    of_shared: Floats
    of_idle: Floats | None

    @classmethod
    def of(cls, problem: FitProblem, state: FitState, linear: Linear) -> "Pull":
        """Look at a state, around which the problem is linear."""
        kernels = state.prior.precision(state.parameters.kernels)
        shared = problem.shared_precision / state.shared_scale**2
        by = None if linear.idle is None else linear.idle[1]
        return cls(
            kernels,
            shared,
            kernels[:, :, None] * _EYE,
            np.diag(shared),
            None if by is None else by.T @ by,
        )


def curvature(linear: Linear, pull: Pull, precision: Floats) -> Curvature:
    """Return the curvature of the cost, priors included.

    Args:
        linear: The problem around a state.
        pull: Of the priors there.
        precision: Of the whitened residuals. Shape (2, K, L).
    """
    weighed = linear.by_kernel.swapaxes(-1, -2) * precision[..., None, :]
    kernel = (weighed @ linear.by_kernel).sum(axis=0)
    border = (weighed @ linear.by_shared).sum(axis=0)
    flat = linear.by_shared.reshape(-1, linear.by_shared.shape[-1])
    shared = (flat.T * precision.ravel()) @ flat + pull.of_shared
    if pull.of_idle is not None:
        shared += pull.of_idle
    return Curvature(kernel + pull.of_kernels, border, shared)


def normal_equations(
    problem: FitProblem, state: FitState, linear: Linear, precision: Floats
) -> NormalEquations:
    """Return the normal equations, priors included.

    Args:
        problem: The problem.
        state: Where.
        linear: The problem around it.
        precision: Of the whitened residuals. Shape (2, K, L).
    """
    pull, parameters = Pull.of(problem, state, linear), state.parameters
    curved = curvature(linear, pull, precision)
    weighed = linear.by_kernel.swapaxes(-1, -2) * precision[..., None, :]
    kernel_side = (weighed @ linear.residuals[..., None]).sum(axis=0)[..., 0]
    kernel_side += pull.kernels * (state.prior.mean - parameters.kernels)
    flat = linear.by_shared.reshape(-1, linear.by_shared.shape[-1])
    shared_side = (flat.T * precision.ravel()) @ linear.residuals.ravel()
    shared_side += pull.shared * (problem.shared_mean - parameters.shared)
    if linear.idle is not None:
        left, by = linear.idle
        shared_side += by.T @ left
    return NormalEquations(curved.kernel, curved.border, curved.shared, kernel_side, shared_side)


def converge(problem: FitProblem, state: FitState) -> FitState:
    """Step all parameters until nothing moves."""
    seen = SeenRows.of(problem, state)
    damping, least = 1e-3, cost(problem, state, seen)
    for _ in range(ITERATIONS):
        linear = linearised(problem, state, seen)
        equations = normal_equations(problem, state, linear, weights(problem, state))
        for _ in range(_TRIES):
            step_s, step_k = equations.step(damping)
            longest = max(float(np.abs(step_s).max()), float(np.abs(step_k).max()))
            shorter = min(1.0, LONGEST_STEP / max(longest, 1e-12))
            tried = state.moved(
                shared=state.parameters.shared + shorter * step_s,
                kernels=state.parameters.kernels + shorter * step_k,
            )
            beyond = SeenRows.of(problem, tried)
            now = cost(problem, tried, beyond)
            if now <= least:
                break
            damping = max(damping, 1e-6) * 10
        else:
            return state
        gained, least, state, seen = least - now, now, tried, beyond
        damping /= 5
        if gained < CONVERGED * (1.0 + abs(least)) and longest < _SETTLED:
            break
    return state
