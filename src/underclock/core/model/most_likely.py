"""The most likely parameters of the model: each step is a function of a problem and a state.

Parameters, error sizes and the hierarchical prior depend on one another: they are estimated in
turn.
"""

import dataclasses

import numpy as np

from underclock.core.model.damped_steps import (
    converge,
    linearised,
    normal_equations,
)
from underclock.core.model.error_sizes import estimate_errors, estimate_scale
from underclock.core.model.hierarchical_prior import learned, widening
from underclock.core.model.kernel_steps import converge_kernels, kernel_curvature
from underclock.core.model.laplace import FittedModel, laplace, shared_covariance
from underclock.core.model.parameters import Shared
from underclock.core.model.restarts import restart
from underclock.core.model.rows import Rows
from underclock.core.model.state import FitProblem, FitState, begin, weights
from underclock.core.model.whitening import ErrorModel

_MOST_ROUNDS = 6
_SETTLED = 0.3


def fit_all(rows: Rows, family: Shared) -> FittedModel:
    """Fit what kernels share and each kernel, together.

    Args:
        rows: To fit.
        family: What kernels share.
    """
    problem = FitProblem.of(rows, family)
    state = converge(problem, restart(problem, begin(problem)))
    for _ in range(_MOST_ROUNDS):
        before, state = state.errors, estimate_errors(problem, state)
        if _settled(before, state.errors):
            break
        state = converge(problem, restart(problem, state))
        state = learn_prior(problem, state)
        state = converge(problem, check_shared(problem, state))
    return laplace(problem, state)


def _settled(before: ErrorModel, after: ErrorModel) -> bool:
    """Whether sizes of errors are no smaller than they were, nearly."""
    logs = [np.log(np.concatenate([each.noise, each.discrepancy])) for each in (before, after)]
    return bool((np.abs(logs[1] - logs[0]) < _SETTLED).all())


def fit_kernels(rows: Rows, known: FittedModel) -> FittedModel:
    """Fit each kernel by itself; what they share is known from a fit of some of them.

    Args:
        rows: Of all kernels.
        known: The fit of some.
    """
    problem = FitProblem.of(rows, known.parameters.family)
    start = begin(problem).moved(shared=known.parameters.shared).with_errors(known.errors)
    start = dataclasses.replace(start, shared_scale=known.shared_scale)
    state = restart(problem, start)
    state = learn_prior(problem, state)
    state = estimate_scale(problem, converge_kernels(problem, state))
    return laplace(problem, state, known.shared_cov)


def learn_prior(problem: FitProblem, state: FitState) -> FitState:
    """Let kernels of a kind lean on one another."""
    covariance = np.linalg.inv(kernel_curvature(problem, state))
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    return state.with_prior(learned(state.prior, problem.rows, state.parameters.kernels, variance))


def check_shared(problem: FitProblem, state: FitState) -> FitState:
    """Let the prior of what kernels share be as wide as the rows show that it must be."""
    equations = normal_equations(
        problem, state, linearised(problem, state), weights(problem, state)
    )
    own = slice(len(state.parameters.shared) - problem.family.company)
    precision = problem.shared_precision[own]
    away2 = precision * (state.parameters.shared - problem.shared_mean)[own] ** 2
    left = precision * np.diag(shared_covariance(equations))[own] / state.shared_scale**2
    return dataclasses.replace(state, shared_scale=widening(away2, left))
