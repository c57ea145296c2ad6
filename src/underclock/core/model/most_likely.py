"""The most likely parameters of the model, and how sure they are.

Parameters, sizes of errors and the hierarchical prior depend on one another: they are estimated in
turn. Around the most likely parameters everything is normal (a Laplace approximation).

Shape letters: R rows, K kernels, L rows of the kernel with most, S shared parameters, P parameters
of a kernel; a leading 2 is time and power.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from underclock.arrays import Floats
from underclock.core.model.damped_steps import (
    FitProblem,
    FitState,
    Linear,
    converge,
    converge_kernels,
    converge_starts,
    cost,
    kernel_costs,
)
from underclock.core.model.hierarchical_prior import learned, widening
from underclock.core.model.parameters import CORE, DRAM, FIXED, Parameters, Shared
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.core.model.whitening import ErrorModel

_MOST_ROUNDS = 6
_SETTLED = 0.3
# What bounds a kernel hides the rest of it, and from a wrong start no small step leads out. So each
# kernel tries several: shares of its time of core, DRAM and fixed time of kernels bound by the
# core, by DRAM, by both, and by neither. Core and DRAM join to the rest of the time.
_STARTS = ((0.97, 0.3, 0.02), (0.4, 0.97, 0.02), (0.8, 0.8, 0.02), (0.5, 0.5, 0.4))
_ROWS_AT_ONCE = 300_000  # of starts side by side, which bounds the memory that many kernels take
# How sharply they join hides too: it is tried from where it usually is and from where they add up.
_ADD_UP = 0.0  # logarithm of the exponent
_LEAST_LOG, _GREATEST_LOG = -9.5, 0.0  # of a standard deviation
# Physics leaves some per cent over. A discrepancy that may excuse more excuses parameters that have
# not converged yet, and keeps them where they are.
_GREATEST_DISCREPANCY = 0.06
_PRIOR_LOG = -5.0  # errors of half a per cent
_PRIOR_PRECISION = 0.3  # keeps few rows from claiming less than they have
_FREEDOM = 4.0  # a kernel's own scale leans on the others' as on this many of its rows
_MOST_EVALUATIONS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """The most likely parameters, and how sure they are.

    Attributes:
        scale: By how much each kernel's are larger. Shape (K,).
        shared_cov: Covariance of the shared parameters. Shape (S, S).
        kernel_cov: Of each kernel's, the shared being known. Shape (K, P, P).
        gain: How each kernel's parameters move with the shared. Shape (K, P, S).
        residuals: Logarithms of measured over predicted. Shape (2, R).
        by_shared: Derivatives at the rows by the shared, kernels held. Shape (2, R, S).
        by_kernel: Derivatives at the rows by the kernel's own. Shape (2, R, P).
        shared_scale: By how much the prior of the shared parameters is wider than usual, as the
            rows ask for.
    """

    rows: Rows
    parameters: Parameters
    errors: ErrorModel
    scale: Floats
    shared_cov: Floats
    kernel_cov: Floats
    gain: Floats
    residuals: Floats
    by_shared: Floats
    by_kernel: Floats
    shared_scale: float = 1.0

    def of_first(self, kernels: int) -> "FittedModel":
        """Return the model of so many kernels; what was learned of the others stays."""
        if len(self.rows.names) <= kernels:
            return self
        rows = self.rows.of(np.arange(kernels))
        some, told = slice(kernels), slice(len(rows.kernel))
        return dataclasses.replace(
            self,
            rows=rows,
            parameters=dataclasses.replace(self.parameters, kernels=self.parameters.kernels[some]),
            scale=self.scale[some],
            kernel_cov=self.kernel_cov[some],
            gain=self.gain[some],
            residuals=self.residuals[:, told],
            by_shared=self.by_shared[:, told],
            by_kernel=self.by_kernel[:, told],
        )


def fit_all(rows: Rows, family: Shared) -> FittedModel:
    """Fit what kernels share and each kernel, together."""
    problem = FitProblem.of(rows, family)
    usual = problem.begin()
    adding = usual.parameters.shared.copy()
    adding[0] = _ADD_UP
    state = min(
        (
            converge(problem, restart(problem, begun))
            for begun in (usual, usual.moved(shared=adding))
        ),
        key=lambda state: cost(problem, state),
    )
    rounds, settled = 0, False
    while not settled and rounds < _MOST_ROUNDS:
        before, state = state.errors, estimate_errors(problem, state)
        settled = _settled(before, state.errors)
        if not settled:
            state = converge(problem, restart(problem, state))
            state = learn_prior(problem, state)
            state = converge(problem, check_shared(problem, state))
        rounds += 1
    return laplace(problem, state)


def _settled(before: ErrorModel, after: ErrorModel) -> bool:
    """Whether sizes of errors are as they were, nearly."""
    logs = [np.log(np.concatenate([each.noise, each.discrepancy])) for each in (before, after)]
    return bool((np.abs(logs[1] - logs[0]) < _SETTLED).all())


def fit_kernels(rows: Rows, known: FittedModel) -> FittedModel:
    """Fit each kernel by itself; what they share is known from a fit of some of them."""
    problem = FitProblem.of(rows, known.parameters.family)
    start = dataclasses.replace(
        problem.begin().moved(shared=known.parameters.shared),
        errors=known.errors,
        shared_scale=known.shared_scale,
    )
    state = learn_prior(problem, restart(problem, start))
    state = converge_kernels(problem, state)
    scale = _scale(problem, state, problem.seen(state)[1])
    return laplace(problem, dataclasses.replace(state, scale=scale), known.shared_cov)


def restart(problem: FitProblem, state: FitState) -> FitState:
    """Let each kernel try every start, and keep what explains its rows best."""
    starts = []
    sharp = float(np.exp(state.parameters.shared[0]))
    for core, dram, fixed in _STARTS:
        joined = (core**sharp + dram**sharp) ** (1.0 / sharp) / (1.0 - fixed)
        kernels = state.prior.mean.copy()
        parts = [CORE, DRAM, FIXED]
        shares = np.log([core / joined, dram / joined, fixed])
        kernels[:, parts] = state.prior.unit[:, parts] + shares
        starts.append(kernels)
    best, least = state.parameters.kernels, kernel_costs(problem, state)
    beside = max(1, _ROWS_AT_ONCE // len(problem.rows.kernel))
    for first in range(0, len(starts), beside):
        tried = converge_starts(problem, state, starts[first : first + beside])
        for kernels, costs in zip(*tried, strict=True):
            best = np.where((costs < least)[:, None], kernels, best)
            least = np.minimum(costs, least)
    return state.moved(kernels=best)


def learn_prior(problem: FitProblem, state: FitState) -> FitState:
    """Let kernels of a kind lean on one another."""
    curvature = Linear.of(problem, state).curvature(problem.weights(state))
    variance = np.diagonal(np.linalg.inv(curvature.kernel), axis1=1, axis2=2)
    prior = learned(state.prior, problem.rows, state.parameters.kernels, variance)
    return dataclasses.replace(state, prior=prior)


def check_shared(problem: FitProblem, state: FitState) -> FitState:
    """Let the prior of what kernels share be as wide as the rows show that it must be."""
    curvature = Linear.of(problem, state).curvature(problem.weights(state))
    own = slice(len(state.parameters.shared) - problem.family.common)
    precision = problem.shared_precision[own]
    away2 = precision * (state.parameters.shared - problem.shared_mean)[own] ** 2
    left = precision * np.diag(curvature.shared_covariance())[own] / state.shared_scale**2
    return dataclasses.replace(state, shared_scale=widening(away2, left))


def estimate_errors(problem: FitProblem, state: FitState) -> FitState:
    """Return the state with the errors under which the residuals are most likely.

    The parameters are integrated out by a Laplace approximation around where they are.
    """
    linear = Linear.of(problem, state)
    real = problem.whitening.real.transpose(1, 2, 0)  # of a kernel's axis, time and power together

    def unlikely(logs: Floats) -> float:
        precision = problem.whitening.weights(_errors(logs), state.scale)
        curvature = linear.curvature(precision)
        rest = np.linalg.slogdet(curvature.rest())[1]
        spent = np.linalg.slogdet(curvature.kernel)[1].sum() + rest
        fit = (precision * linear.residuals**2).sum() - np.log(
            precision.transpose(1, 2, 0)[real]
        ).sum()
        prior = _PRIOR_PRECISION * ((logs - _PRIOR_LOG) ** 2).sum()
        return float(0.5 * (fit + spent) + prior)

    start = np.log(np.concatenate([state.errors.noise, state.errors.discrepancy]))
    options = {"maxfev": _MOST_EVALUATIONS, "ftol": 1e-3}
    likeliest = minimize(unlikely, start, method="Powell", options=options).x
    state = dataclasses.replace(state, errors=_errors(likeliest))
    return dataclasses.replace(state, scale=_scale(problem, state, linear.residuals))


def _errors(logs: Floats) -> ErrorModel:
    sizes = np.exp(np.clip(logs, _LEAST_LOG, _GREATEST_LOG))
    return ErrorModel(noise=sizes[:2], discrepancy=np.minimum(sizes[2:], _GREATEST_DISCREPANCY))


def _scale(problem: FitProblem, state: FitState, residuals: Floats) -> Floats:
    """Return by how much each kernel's whitened residuals are larger than usual. Shape (K,)."""
    precision = problem.whitening.weights(state.errors, np.ones_like(state.scale))
    surprise = (precision * residuals**2).sum(axis=(0, 2))
    freedom = np.maximum(problem.whitening.real.sum(axis=(0, 2)) - PER_KERNEL, 0.0)
    scale: Floats = np.sqrt((_FREEDOM + surprise) / (_FREEDOM + freedom))
    return scale


def laplace(problem: FitProblem, state: FitState, shared_cov: Floats | None = None) -> FittedModel:
    """Approximate the posterior around a state by a normal distribution.

    Args:
        shared_cov: Covariance of the shared parameters where other rows tell it. Shape (S, S).
    """
    seen = problem.seen(state)
    curvature = Linear.of(problem, state, seen).curvature(problem.weights(state))
    kernel_cov = np.asarray(np.linalg.inv(curvature.kernel), dtype=np.float64)
    return FittedModel(
        rows=problem.rows,
        parameters=state.parameters,
        errors=state.errors,
        scale=state.scale,
        shared_cov=curvature.shared_covariance() if shared_cov is None else shared_cov,
        kernel_cov=kernel_cov,
        gain=-kernel_cov @ curvature.border,
        residuals=problem.measured - seen[0].log,
        by_shared=seen[0].by_shared(),
        by_kernel=seen[0].by_kernel(),
        shared_scale=state.shared_scale,
    )
