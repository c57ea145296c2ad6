"""The most likely parameters of the model, and how sure they are.

Around the most likely parameters everything is normal (a Laplace approximation); what the rows say
beyond the physics, and how large errors are, is worked out around them (`conditioning`).

Shape letters: R rows, K kernels, L rows of the kernel with most, S shared parameters, P parameters
of a kernel; a leading 2 is time and power.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
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
from underclock.core.model.rows import Rows

# What bounds a kernel hides the rest of it, and from a wrong start no small step leads out. So each
# kernel tries several: shares of its time of core, DRAM and fixed time of kernels bound by the
# core, by DRAM, by both, and by neither. Core and DRAM join to the rest of the time.
_STARTS = ((0.97, 0.3, 0.02), (0.4, 0.97, 0.02), (0.8, 0.8, 0.02), (0.5, 0.5, 0.4))
_ROWS_AT_ONCE = 300_000  # of starts side by side, which bounds the memory that many kernels take
# How sharply they join hides too: it is tried from where it usually is and from where they add up.
_ADD_UP = 0.0  # logarithm of the exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPrior:
    """What parameters are expected to be before rows, as differences from those fitted.

    Attributes:
        kernels: Shape (K, P).
        spread: Standard deviations. Shape (K, P).
        shared: Shape (S,).
        shared_root: Root of their covariance. Shape (S, S).
    """

    kernels: Floats
    spread: Floats
    shared: Floats
    shared_root: Floats

    def of(self, kernels: Ints) -> "ParameterPrior":
        """Return the prior of some kernels."""
        return dataclasses.replace(self, kernels=self.kernels[kernels], spread=self.spread[kernels])


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """The most likely parameters.

    Attributes:
        prior: What was expected of them: of kernels, what kernels of a kind say of one another; of
            what is shared, what idling says too.
        shared_scale: By how much the prior of the shared parameters is wider than usual, as the
            rows ask for.
    """

    rows: Rows
    parameters: Parameters
    prior: ParameterPrior
    shared_scale: float = 1.0


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
    return _model(*learn_priors(problem, state))


def fit_kernels(rows: Rows, known: FittedModel) -> FittedModel:
    """Fit each kernel by itself; what they share is known from a fit of some of them."""
    problem = FitProblem.of(rows, known.parameters.family)
    start = problem.begin().moved(shared=known.parameters.shared)
    problem, state, _ = learn_priors(problem, converge_kernels(problem, restart(problem, start)))
    return _model(problem, state, known.shared_scale)


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


def learn_priors(problem: FitProblem, state: FitState) -> tuple[FitProblem, FitState, float]:
    """Let kernels of a kind lean on one another, and priors be as wide as rows show they must be.

    Returns:
        The problem and the state with these priors, and by how much that of the shared parameters
        is wider than usual.
    """
    curvature = Linear.of(problem, state).curvature(problem.precision)
    kernels, shared = state.parameters.kernels, state.parameters.shared
    variance = np.diagonal(np.linalg.inv(curvature.kernel), axis1=1, axis2=2)
    state = dataclasses.replace(state, prior=learned(state.prior, problem.rows, kernels, variance))
    own = slice(len(shared) - problem.family.common)
    usual = problem.family.spread() ** -2.0
    away2 = usual * (problem.shared_mean - shared) ** 2
    left = usual * np.diag(curvature.shared_covariance())
    scale = widening(away2[own], left[own])
    return dataclasses.replace(problem, shared_precision=usual / scale**2), state, scale


def _model(problem: FitProblem, state: FitState, scale: float) -> FittedModel:
    """Return what was fitted, and what was expected of it."""
    parameters, precision = state.parameters, np.diag(problem.shared_precision)
    drawn = problem.shared_precision * (problem.shared_mean - parameters.shared)
    if problem.rows.idle:
        by_shared = problem.idling_by_shared(parameters.shared)
        precision = precision + by_shared.T @ by_shared
        drawn = drawn + by_shared.T @ problem.idling(parameters.shared)
    cov = np.linalg.inv(precision)
    return FittedModel(
        rows=problem.rows,
        parameters=parameters,
        prior=ParameterPrior(
            kernels=state.prior.mean - parameters.kernels,
            spread=state.prior.precision(parameters.kernels) ** -0.5,
            shared=cov @ drawn,
            shared_root=np.asarray(np.linalg.cholesky(0.5 * (cov + cov.T)), dtype=np.float64),
        ),
        shared_scale=scale,
    )
