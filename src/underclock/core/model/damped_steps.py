"""Damped least squares (Levenberg-Marquardt): of all parameters at once, or kernel by kernel.

A kernel's parameters touch its own rows only, so the normal equations are an arrow: one small block
a kernel, bordered by the shared parameters. Kernel by kernel the shared are held.

Shape letters: R rows, K kernels, L rows of the kernel with most, S shared parameters, P parameters
of a kernel, N measurements of idling; a leading 2 is time and power.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.hierarchical_prior import KernelPrior, typical
from underclock.core.model.parameters import (
    COLLECTIVE,
    PER_KERNEL,
    Parameters,
    PredictedRows,
    Rows,
    Shared,
    gpu_at,
    predicted_rows,
)
from underclock.physics.costs import idle_w

_ITERATIONS = 25
_TRIES = 6  # of ever stronger damping, until a step is no worse
_STUCK = 1e6  # damping from which a kernel does not move any more
_CONVERGED = 1e-4  # gain of the cost below which a fit has converged, as a fraction of it
_SETTLED = 0.05  # and the step, as a logarithm, that no parameter may exceed then
_LONGEST_STEP = 1.5
_DIFFERENCE = 1e-5  # of a logarithm
# What physics is off by, and what a usual window's noise adds, of time and power. How large errors
# are rows say afterwards (`conditioning`); a fit that may excuse more keeps worse parameters.
_PHYSICS = np.array([0.01, 0.01])
_WINDOW = np.array([0.005, 0.01])
_IDLE_ERROR = 0.1  # of idle power, as what a busy GPU draws besides its kernels: it gates less
_EYE = np.eye(PER_KERNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitProblem:
    """Rows, and the model to fit to them."""

    rows: Rows
    place: Ints  # where each row goes among all kernels' rows, padded to L each, (R,)
    precision: Floats  # of each row; 0 pads, or where it says nothing, (2, K, L)
    family: Shared
    shared_mean: Floats  # of the prior of the shared parameters, (S,)
    shared_precision: Floats  # of that prior, (S,)
    prior: KernelPrior  # of the kernels' parameters

    @classmethod
    def of(cls, rows: Rows, family: Shared) -> "FitProblem":
        """Prepare rows; the work grows with K · L², so see `fitted` for how many."""
        common = 0 if rows.by_common is None else rows.by_common.shape[2]
        family = dataclasses.replace(family, common=common)
        bounds, most = rows.bounds, int(np.diff(rows.bounds).max())
        place = rows.kernel * most + np.arange(len(rows.kernel)) - bounds[rows.kernel]
        with np.errstate(divide="ignore"):
            variance = _PHYSICS[:, None] ** 2 + _WINDOW[:, None] ** 2 / rows.windows
        return cls(
            rows=rows,
            place=place,
            precision=_padded(1.0 / variance, place, (len(rows.names), most)),
            family=family,
            shared_mean=family.start(),
            shared_precision=family.spread() ** -2.0,
            prior=typical(rows, family.base),
        )

    def begin(self) -> Parameters:
        """Return parameters before anything is known: each at the mean of its prior."""
        return Parameters(
            family=self.family,
            shared=self.shared_mean,
            kernels=self.prior.mean,
            serial=self.rows.kinds == COLLECTIVE,
        )

    def seen(self, parameters: Parameters) -> tuple[PredictedRows, Floats]:
        """Return the rows as predicted, and their residuals, by kernel. Shape (2, K, L)."""
        prediction = predicted_rows(parameters, self.rows)
        return prediction, self.by_kernels(self.rows.log - prediction.log)

    def by_kernels(self, values: Floats) -> Floats:
        """Return what belongs to rows, (2, R, ...), by kernel: (2, K, L, ...)."""
        return _padded(values, self.place, self.precision.shape[1:])

    def kernel_costs(self, kernels: Floats, residuals: Floats) -> Floats:
        """Return the negative log posterior of each kernel, but a constant. Shape (K,)."""
        own = (self.precision * residuals**2).sum(axis=(0, 2))
        costs: Floats = 0.5 * own + self.prior.penalty(kernels)
        return costs

    def cost(self, parameters: Parameters, residuals: Floats | None = None) -> float:
        """Return the negative log posterior of all parameters, but a constant."""
        residuals = self.seen(parameters)[1] if residuals is None else residuals
        away2 = self.shared_precision * (parameters.shared - self.shared_mean) ** 2
        idling = self.idling(parameters.shared) if self.rows.idle else np.zeros(0)
        own = self.kernel_costs(parameters.kernels, residuals).sum()
        return float(own + 0.5 * (away2.sum() + (idling**2).sum()))

    def idling(self, shared: Floats) -> Floats:
        """Return how far idling lies from what is predicted, over its error. Shape (N,)."""
        *at, log_w = np.array(self.rows.idle, dtype=np.float64).T
        left: Floats = (log_w - np.log(idle_w(self.family.gpu(shared), *at))) / _IDLE_ERROR
        return left

    def idling_by_shared(self, shared: Floats) -> Floats:
        """Return derivatives of what idling is predicted to draw, over its error. Shape (N, S)."""
        moved = shared + _DIFFERENCE * np.eye(len(shared))
        here = self.idling(shared)
        by: Floats = np.array([here - self.idling(each) for each in moved]).T / _DIFFERENCE
        return by

    def kernel_equations(
        self, kernels: Floats, by_kernel: Floats, residuals: Floats
    ) -> tuple[Floats, Floats]:
        """Return each kernel's normal equations: curvature, (K, P, P), and side, (K, P)."""
        pull = self.prior.precision(kernels)
        weighed = by_kernel.swapaxes(-1, -2) * self.precision[..., None, :]
        curvature = (weighed @ by_kernel).sum(axis=0) + pull[:, :, None] * _EYE
        side = (weighed @ residuals[..., None]).sum(axis=0)[..., 0]
        return curvature, side + pull * (self.prior.mean - kernels)


def _padded(values: Floats, place: Ints, shape: tuple[int, ...]) -> Floats:
    kernels, most = shape
    spaced = np.zeros((2, kernels * most, *values.shape[2:]))
    spaced[:, place] = values
    return spaced.reshape(2, kernels, most, *values.shape[2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalEquations:
    """Curvature of the cost about parameters, an arrow, and the right-hand sides."""

    kernel: Floats  # block of each kernel, (K, P, P)
    border: Floats  # between kernels and shared, (K, P, S)
    shared: Floats  # (S, S)
    kernel_side: Floats  # (K, P)
    shared_side: Floats  # (S,)

    @classmethod
    def of(
        cls, problem: FitProblem, parameters: Parameters, seen: tuple[PredictedRows, Floats]
    ) -> "NormalEquations":
        """Look at a problem around parameters; ``seen`` is what `FitProblem.seen` says there."""
        (prediction, residuals), precision = seen, problem.precision
        by_kernel = problem.by_kernels(prediction.by_kernel())
        by_shared = problem.by_kernels(prediction.by_shared())
        kernel, side = problem.kernel_equations(parameters.kernels, by_kernel, residuals)
        weighed = by_kernel.swapaxes(-1, -2) * precision[..., None, :]
        flat = by_shared.reshape(-1, by_shared.shape[-1])
        drawn = flat.T * precision.ravel()
        shared = drawn @ flat + np.diag(problem.shared_precision)
        away = problem.shared_mean - parameters.shared
        shared_side = drawn @ residuals.ravel() + problem.shared_precision * away
        if problem.rows.idle:
            idling = problem.idling_by_shared(parameters.shared)
            shared += idling.T @ idling
            shared_side += idling.T @ problem.idling(parameters.shared)
        return cls(
            kernel=kernel,
            border=(weighed @ by_shared).sum(axis=0),
            shared=shared,
            kernel_side=side,
            shared_side=shared_side,
        )

    def shared_covariance(self) -> Floats:
        """Return the covariance of the shared, those of kernels unknown. Shape (S, S)."""
        through = np.linalg.solve(self.kernel, self.border)
        rest = self.shared - np.einsum("kps,kpt->st", self.border, through)
        return np.asarray(np.linalg.inv(rest), dtype=np.float64)

    def step(self, damping: float) -> tuple[Floats, Floats]:
        """Return the damped step of the shared, (S,), and of the kernels, (K, P)."""
        diagonal = self.kernel.diagonal(axis1=1, axis2=2)
        damped = self.kernel + damping * diagonal[:, :, None] * _EYE
        corner = self.shared + damping * np.diag(np.diag(self.shared))
        sides = np.concatenate([self.border, self.kernel_side[..., None]], axis=-1)
        solved = np.linalg.solve(damped, sides)
        through, own = solved[..., :-1], solved[..., -1]
        rest = corner - np.einsum("kps,kpt->st", self.border, through)
        drawn = self.shared_side - np.einsum("kps,kp->s", self.border, own)
        shared = np.linalg.solve(rest, drawn)
        return shared, own - through @ shared


def converge(problem: FitProblem, parameters: Parameters) -> Parameters:
    """Step all parameters until nothing moves."""
    seen = problem.seen(parameters)
    damping, least = 1e-3, problem.cost(parameters, seen[1])
    for _ in range(_ITERATIONS):
        equations = NormalEquations.of(problem, parameters, seen)
        for _ in range(_TRIES):
            step_s, step_k = equations.step(damping)
            longest = max(float(np.abs(step_s).max()), float(np.abs(step_k).max()))
            shorter = min(1.0, _LONGEST_STEP / max(longest, 1e-12))
            tried = dataclasses.replace(
                parameters,
                shared=parameters.shared + shorter * step_s,
                kernels=parameters.kernels + shorter * step_k,
            )
            beyond = problem.seen(tried)
            now = problem.cost(tried, beyond[1])
            if now <= least:
                break
            damping = max(damping, 1e-6) * 10
        else:
            return parameters
        gained, least, parameters, seen = least - now, now, tried, beyond
        damping /= 5
        if gained < _CONVERGED * (1.0 + abs(least)) and longest < _SETTLED:
            break
    return parameters


def converge_kernels(problem: FitProblem, parameters: Parameters) -> tuple[Parameters, Floats]:
    """Step each kernel by itself until none moves; the shared parameters are held.

    Returns:
        The parameters, and each kernel's cost there. Shape (K,).
    """
    gpu = gpu_at(parameters, problem.rows)

    def look(kernels: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        at = dataclasses.replace(parameters, kernels=kernels)
        prediction = predicted_rows(at, problem.rows, gpu)
        residuals = problem.by_kernels(problem.rows.log - prediction.log)
        by_kernel = problem.by_kernels(prediction.by_kernel())
        costs = problem.kernel_costs(kernels, residuals)
        # Kernels first, so that some of them can be taken.
        return kernels, costs, residuals.swapaxes(0, 1), by_kernel.swapaxes(0, 1)

    here = look(parameters.kernels.copy())
    damping = np.full(len(parameters.kernels), 1e-2)
    for _ in range(_ITERATIONS):
        kernels, costs, residuals, by_kernel = here
        curvature, side = problem.kernel_equations(
            kernels, by_kernel.swapaxes(0, 1), residuals.swapaxes(0, 1)
        )
        diagonal = curvature.diagonal(axis1=1, axis2=2) * damping[:, None]
        step = np.linalg.solve(curvature + diagonal[:, :, None] * _EYE, side[..., None])[..., 0]
        tried = look(kernels + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
        better = tried[1] <= costs
        gained = np.where(better, costs - tried[1], 0.0)
        damping = np.where(better, damping / 5, damping * 10)
        for old, new in zip(here, tried, strict=True):
            old[better] = new[better]
        if ((better & (gained < _CONVERGED)) | (damping > _STUCK)).all():
            break
    return dataclasses.replace(parameters, kernels=here[0]), here[1]
