"""How large residuals are: noise and discrepancy of all kernels, and the scale of each.

Shape letters: K kernels, L rows of the kernel with most; a leading 2 is time and power.
"""

import dataclasses

import numpy as np
from scipy.optimize import minimize

from underclock.arrays import Floats
from underclock.core.model.damped_steps import Pull, curvature, linearised
from underclock.core.model.rows import PER_KERNEL
from underclock.core.model.state import FitProblem, FitState, predicted
from underclock.core.model.whitening import ErrorModel

_LEAST_LOG, _GREATEST_LOG = -9.5, 0.0  # of a standard deviation
# Physics leaves some per cent over. A discrepancy that may excuse more excuses parameters that have
# not converged yet, and keeps them where they are.
_GREATEST_DISCREPANCY = 0.06
_PRIOR_LOG = -5.0  # errors of half a per cent
_PRIOR_PRECISION = 0.3  # keeps few rows from claiming less than they have
_FREEDOM = 4.0  # a kernel's own scale leans on the others' as on this many of its rows
_MOST_EVALUATIONS = 120


def estimate_errors(problem: FitProblem, state: FitState) -> FitState:
    """Return the state with the errors under which the residuals are most likely.

    The parameters are integrated out by a Laplace approximation around where they are.
    """
    linear = linearised(problem, state)
    pull = Pull.of(problem, state, linear)
    real = problem.whitening.real.transpose(1, 2, 0)  # of a kernel's axis, time and power together

    def unlikely(logs: Floats) -> float:
        precision = problem.whitening.weights(_errors(logs), state.scale)
        curved = curvature(linear, pull, precision)
        rest = np.linalg.slogdet(curved.rest())[1]
        spent = np.linalg.slogdet(curved.kernel)[1].sum() + rest
        fit = (precision * linear.residuals**2).sum() - np.log(
            precision.transpose(1, 2, 0)[real]
        ).sum()
        prior = _PRIOR_PRECISION * ((logs - _PRIOR_LOG) ** 2).sum()
        return float(0.5 * (fit + spent) + prior)

    start = np.log(np.concatenate([state.errors.noise, state.errors.discrepancy]))
    options = {"maxfev": _MOST_EVALUATIONS, "ftol": 1e-3}
    likeliest = minimize(unlikely, start, method="Powell", options=options).x
    state = state.with_errors(_errors(likeliest))
    return dataclasses.replace(state, scale=_scale(problem, state, linear.residuals))


def estimate_scale(problem: FitProblem, state: FitState) -> FitState:
    """Return the state with each kernel's scale, the errors of all being known."""
    whitened = problem.whitening.whitened(problem.measured - predicted(problem, state).log)
    return dataclasses.replace(state, scale=_scale(problem, state, whitened))


def _errors(logs: Floats) -> ErrorModel:
    sizes = np.exp(np.clip(logs, _LEAST_LOG, _GREATEST_LOG))
    return ErrorModel(noise=sizes[:2], discrepancy=np.minimum(sizes[2:], _GREATEST_DISCREPANCY))


def _scale(problem: FitProblem, state: FitState, residuals: Floats) -> Floats:
    """Return by how much each kernel's residuals are larger than the usual. Shape (K,)."""
    precision = problem.whitening.weights(state.errors, np.ones_like(state.scale))
    surprise = (precision * residuals**2).sum(axis=(0, 2))
    freedom = np.maximum(problem.whitening.real.sum(axis=(0, 2)) - PER_KERNEL, 0.0)
    scale: Floats = np.sqrt((_FREEDOM + surprise) / (_FREEDOM + freedom))
    return scale
