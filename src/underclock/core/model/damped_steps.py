"""Damped least squares (Levenberg-Marquardt): of all parameters at once, or kernel by kernel.

What a fit is of does not change; where it stands each step makes anew. A kernel's parameters touch
its own rows only, so the normal equations are an arrow: one small block a kernel, bordered by the
shared parameters. Kernel by kernel the shared are held, and several starts run side by side: with
the few rows of a campaign, NumPy takes about as long for all of them as for one.

Shape letters: R rows, K kernels, L rows of the kernel with most, S shared parameters, P parameters
of a kernel, N measurements of idling, A starts; a leading 2 is time and power.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.hierarchical_prior import KernelPrior, typical
from underclock.core.model.parameters import (
    COLLECTIVE,
    PER_KERNEL,
    Parameters,
    Points,
    PredictedRows,
    Rows,
    Shared,
    gpu_at,
    predicted_rows,
)
from underclock.physics.costs import AtClocks, idle_w

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
class FitState:
    """Where a fit stands.

    Attributes:
        prior: What the kernels' parameters are expected to be.
    """

    parameters: Parameters
    prior: KernelPrior

    def moved(self, *, shared: Floats | None = None, kernels: Floats | None = None) -> "FitState":
        """Return the state with other parameters; those not named stay."""
        old = self.parameters
        parameters = dataclasses.replace(
            old,
            shared=old.shared if shared is None else shared,
            kernels=old.kernels if kernels is None else kernels,
        )
        return dataclasses.replace(self, parameters=parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitProblem:
    """Rows, and the model to fit to them.

    Attributes:
        at: Where they were measured.
        measured: Logarithms of time and power. Shape (2, R).
        place: Where each row goes among all kernels' rows, padded to L each. Shape (R,).
        precision: Of each row; 0 pads, or where it says nothing. Shape (2, K, L).
        shared_mean: Of the prior of the shared parameters. Shape (S,).
        shared_precision: Of that prior. Shape (S,).
    """

    rows: Rows
    at: Points
    measured: Floats
    place: Ints
    precision: Floats
    family: Shared
    shared_mean: Floats
    shared_precision: Floats

    @classmethod
    def of(cls, rows: Rows, family: Shared) -> "FitProblem":
        """Prepare rows; the work grows with K · L², so see `fitting.fitted` for how many."""
        family = dataclasses.replace(family, common=rows.by_common.shape[2])
        bounds, most = rows.bounds, int(np.diff(rows.bounds).max())
        place = rows.kernel * most + np.arange(len(rows.kernel)) - bounds[rows.kernel]
        with np.errstate(divide="ignore"):
            variance = _PHYSICS[:, None] ** 2 + _WINDOW[:, None] ** 2 / rows.windows
        return cls(
            rows=rows,
            at=Points.of(rows),
            measured=np.stack([rows.log_s, rows.log_w]),
            place=place,
            precision=padded(1.0 / variance, place, (len(rows.names), most)),
            family=family,
            shared_mean=family.start(),
            shared_precision=family.spread() ** -2.0,
        )

    def begin(self) -> FitState:
        """Return the state before anything is known: every parameter at the mean of its prior."""
        prior = typical(self.rows, self.family.base)
        return FitState(
            parameters=Parameters(
                family=self.family,
                shared=self.shared_mean,
                kernels=prior.mean,
                serial=self.rows.kinds == COLLECTIVE,
            ),
            prior=prior,
        )

    def seen(self, state: FitState) -> tuple[PredictedRows, Floats]:
        """Return the rows as predicted, and their residuals, by kernel. Shape (2, K, L)."""
        prediction = predicted_rows(state.parameters, self.at)
        return prediction, self.by_kernels(self.measured - prediction.log)

    def by_kernels(self, values: Floats) -> Floats:
        """Return what belongs to rows, (2, R, ...), by kernel: (2, K, L, ...)."""
        return padded(values, self.place, self.precision.shape[1:])

    def idling(self, shared: Floats) -> Floats:
        """Return how far idling lies from what is predicted, over its error. Shape (N,)."""
        left: Floats = (self._idle()[3] - self._idle_log_w(shared)) / _IDLE_ERROR
        return left

    def idling_by_shared(self, shared: Floats) -> Floats:
        """Return derivatives of what idling is predicted to draw, over its error. Shape (N, S)."""
        here = self._idle_log_w(shared)
        moved = shared + _DIFFERENCE * np.eye(len(shared))
        by: Floats = np.array([self._idle_log_w(each) - here for each in moved]).T / _DIFFERENCE
        return by / _IDLE_ERROR

    def _idle(self) -> Floats:
        """Return clocks, temperature and log power of idling as measured. Shape (4, N)."""
        return np.array(self.rows.idle, dtype=np.float64).reshape(-1, 4).T

    def _idle_log_w(self, shared: Floats) -> Floats:
        core, mem, warm, _ = self._idle()
        power: Floats = np.log(idle_w(self.family.gpu(shared), core, mem, warm))
        return power


def padded(values: Floats, place: Ints, shape: tuple[int, ...]) -> Floats:
    """Return what belongs to rows, (2, R, ...), by kernel: (2, K, L, ...), zero where none is."""
    kernels, most = shape
    spaced = np.zeros((2, kernels * most, *values.shape[2:]))
    spaced[:, place] = values
    return spaced.reshape(2, kernels, most, *values.shape[2:])


def kernel_costs(problem: FitProblem, state: FitState) -> Floats:
    """Return the negative log posterior of each kernel's parameters, but a constant. Shape (K,)."""
    residuals = problem.seen(state)[1]
    return _costs(state.prior, state.parameters.kernels, residuals, problem.precision)


def _costs(prior: KernelPrior, kernels: Floats, residuals: Floats, precision: Floats) -> Floats:
    own = (precision * residuals**2).sum(axis=(0, 2))
    costs: Floats = 0.5 * own + prior.penalty(kernels)
    return costs


def cost(problem: FitProblem, state: FitState, residuals: Floats | None = None) -> float:
    """Return the negative log posterior of all parameters, but a constant."""
    if residuals is None:
        residuals = problem.seen(state)[1]
    parameters = state.parameters
    own = _costs(state.prior, parameters.kernels, residuals, problem.precision)
    away2 = (parameters.shared - problem.shared_mean) ** 2
    shared = 0.5 * (problem.shared_precision * away2).sum()
    if problem.rows.idle:
        shared += 0.5 * (problem.idling(parameters.shared) ** 2).sum()
    return float(own.sum() + shared)


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

    def shared_covariance(self) -> Floats:
        """Return the covariance of the shared, those of kernels unknown. Shape (S, S)."""
        return np.asarray(np.linalg.inv(self.rest()), dtype=np.float64)

    def step(
        self, shared_side: Floats, kernel_side: Floats, damping: float
    ) -> tuple[Floats, Floats]:
        """Return the damped step of the shared, (S,), and of the kernels, (K, P)."""
        diagonal = self.kernel.diagonal(axis1=1, axis2=2)
        damped = self.kernel + damping * diagonal[:, :, None] * _EYE
        corner = self.shared + damping * np.diag(np.diag(self.shared))
        sides = np.concatenate([self.border, kernel_side[..., None]], axis=-1)
        solved = np.linalg.solve(damped, sides)
        through, own = solved[..., :-1], solved[..., -1]
        rest = corner - np.einsum("kps,kpt->st", self.border, through)
        shared = np.linalg.solve(rest, shared_side - np.einsum("kps,kp->s", self.border, own))
        return shared, own - through @ shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A problem around a state: residuals and their derivatives; what priors pull.

    Attributes:
        residuals: Shape (2, K, L); zero where a kernel has fewer rows, as in the derivatives.
        by_shared: Of the prediction. Shape (2, K, L, S).
        by_kernel: Of the prediction. Shape (2, K, L, P).
        to_mean: How far each prior's mean is: of the shared, (S,), and of kernels, (K, P).
        pull: How strongly it draws: the shared, (S,), and kernels, (K, P).
        idle: Residuals of idling and derivatives of its prediction, (N,) and (N, S); ``None``
            where it was not measured.
    """

    residuals: Floats
    by_shared: Floats
    by_kernel: Floats
    to_mean: tuple[Floats, Floats]
    pull: tuple[Floats, Floats]
    idle: tuple[Floats, Floats] | None

    @classmethod
    def of(
        cls, problem: FitProblem, state: FitState, seen: tuple[PredictedRows, Floats] | None = None
    ) -> "Linear":
        """Look at a problem around a state; ``seen`` is what `FitProblem.seen` says there."""
        prediction, residuals = seen or problem.seen(state)
        shared, kernels = state.parameters.shared, state.parameters.kernels
        idle = None
        if problem.rows.idle:
            idle = problem.idling(shared), problem.idling_by_shared(shared)
        return cls(
            residuals=residuals,
            by_shared=problem.by_kernels(prediction.by_shared()),
            by_kernel=problem.by_kernels(prediction.by_kernel()),
            to_mean=(problem.shared_mean - shared, state.prior.mean - kernels),
            pull=(problem.shared_precision, state.prior.precision(kernels)),
            idle=idle,
        )

    def curvature(self, precision: Floats) -> Curvature:
        """Return the curvature of the cost; of residuals of some precision, shape (2, K, L)."""
        weighed = self.by_kernel.swapaxes(-1, -2) * precision[..., None, :]
        kernel = (weighed @ self.by_kernel).sum(axis=0)
        border = (weighed @ self.by_shared).sum(axis=0)
        flat = self.by_shared.reshape(-1, self.by_shared.shape[-1])
        shared = (flat.T * precision.ravel()) @ flat + np.diag(self.pull[0])
        if self.idle is not None:
            shared += self.idle[1].T @ self.idle[1]
        return Curvature(kernel + self.pull[1][:, :, None] * _EYE, border, shared)

    def sides(self, precision: Floats) -> tuple[Floats, Floats]:
        """Return the right-hand sides of the normal equations: shared, (S,), kernels, (K, P)."""
        weighed = self.by_kernel.swapaxes(-1, -2) * precision[..., None, :]
        kernels = (weighed @ self.residuals[..., None]).sum(axis=0)[..., 0]
        kernels += self.pull[1] * self.to_mean[1]
        flat = self.by_shared.reshape(-1, self.by_shared.shape[-1])
        shared = (flat.T * precision.ravel()) @ self.residuals.ravel()
        shared += self.pull[0] * self.to_mean[0]
        if self.idle is not None:
            shared += self.idle[1].T @ self.idle[0]
        return shared, kernels


def converge(problem: FitProblem, state: FitState) -> FitState:
    """Step all parameters until nothing moves."""
    seen = problem.seen(state)
    damping, least = 1e-3, cost(problem, state, seen[1])
    for _ in range(_ITERATIONS):
        linear, precision = Linear.of(problem, state, seen), problem.precision
        curvature, sides = linear.curvature(precision), linear.sides(precision)
        for _ in range(_TRIES):
            step_s, step_k = curvature.step(*sides, damping)
            longest = max(float(np.abs(step_s).max()), float(np.abs(step_k).max()))
            shorter = min(1.0, _LONGEST_STEP / max(longest, 1e-12))
            tried = state.moved(
                shared=state.parameters.shared + shorter * step_s,
                kernels=state.parameters.kernels + shorter * step_k,
            )
            beyond = problem.seen(tried)
            now = cost(problem, tried, beyond[1])
            if now <= least:
                break
            damping = max(damping, 1e-6) * 10
        else:
            return state
        gained, least, state, seen = least - now, now, tried, beyond
        damping /= 5
        if gained < _CONVERGED * (1.0 + abs(least)) and longest < _SETTLED:
            break
    return state


def converge_kernels(problem: FitProblem, state: FitState) -> FitState:
    """Step each kernel by itself until it does not move; the shared parameters are held."""
    return state.moved(kernels=converge_starts(problem, state, [state.parameters.kernels])[0][0])


def converge_starts(
    problem: FitProblem, state: FitState, starts: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """Step each kernel by itself from each start, until no kernel of that start moves.

    Args:
        starts: Parameters to begin with. Each of shape (K, P).

    Returns:
        Where kernels came to, (A, K, P), and their `kernel_costs` there, (A, K).
    """
    fit = _KernelFit.of(problem, state, len(starts))
    here = fit.at(np.concatenate(starts))
    of_starts = (len(starts), len(problem.rows.names))
    runs = np.full((len(starts), 1), fill_value=True)
    damping = np.full(len(here.kernels), 1e-2)
    for _ in range(_ITERATIONS):
        tried = fit.at(here.kernels + fit.steps(here, damping))
        better = tried.costs <= here.costs
        gained = np.where(better, here.costs - tried.costs, 0.0)
        damping = np.where(better, damping / 5, damping * 10)
        settled = (better & (gained < _CONVERGED)) | (damping > _STUCK)
        # From where nothing moved nothing goes on, though other starts do.
        here = here.moved(tried, (better.reshape(of_starts) & runs).ravel())
        runs = runs & ~settled.reshape(of_starts).all(axis=1, keepdims=True)
        if not runs.any():
            break
    return here.kernels.reshape(*of_starts, PER_KERNEL), here.costs.reshape(of_starts)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels of all starts, side by side: as `Linear`, but that the shared are held."""

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
    """What stays the same while kernels step: as in `FitProblem`, so many copies of all of them."""

    parameters: Parameters
    prior: KernelPrior
    at_rows: Points
    gpu: AtClocks
    measured: Floats
    place: Ints
    precision: Floats

    @classmethod
    def of(cls, problem: FitProblem, state: FitState, times: int) -> "_KernelFit":
        copies = problem.precision[0].size * np.arange(times)
        return cls(
            parameters=state.parameters,
            prior=state.prior.repeated(times),
            at_rows=problem.at.repeated(times, len(problem.rows.names)),
            gpu=gpu_at(state.parameters, problem.at).repeated(times),
            measured=np.tile(problem.measured, times),
            place=np.tile(problem.place, times) + np.repeat(copies, len(problem.place)),
            precision=np.tile(problem.precision, (times, 1)),
        )

    def at(self, kernels: Floats) -> _Kernels:
        """Look at kernels, of shape (A · K, P)."""
        parameters = dataclasses.replace(self.parameters, kernels=kernels)
        prediction = predicted_rows(parameters, self.at_rows, self.gpu)
        shape = self.precision.shape[1:]
        residuals = padded(self.measured - prediction.log, self.place, shape)
        by_kernel = padded(prediction.by_kernel(), self.place, shape)
        costs = _costs(self.prior, kernels, residuals, self.precision)
        return _Kernels(kernels, residuals, by_kernel, costs)

    def steps(self, here: _Kernels, damping: Floats) -> Floats:
        """Return the damped step of each kernel. Shape (A · K, P)."""
        pull = self.prior.precision(here.kernels)
        weighed = here.by_kernel.swapaxes(-1, -2) * self.precision[..., None, :]
        curvature = (weighed @ here.by_kernel).sum(axis=0) + pull[:, :, None] * _EYE
        side = (weighed @ here.residuals[..., None]).sum(axis=0)[..., 0]
        side += pull * (self.prior.mean - here.kernels)
        diagonal = curvature.diagonal(axis1=1, axis2=2) * damping[:, None]
        damped = curvature + diagonal[:, :, None] * _EYE
        step = np.linalg.solve(damped, side[..., None])[..., 0]
        return np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
