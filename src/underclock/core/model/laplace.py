"""How sure the most likely parameters are: a normal distribution around them.

Shape letters: R rows, K kernels, S shared parameters, P parameters of a kernel; a
leading 2 is time and power.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.damped_steps import (
    Curvature,
    Linear,
    idle_of,
    normal_equations,
)
from underclock.core.model.parameters import Parameters
from underclock.core.model.rows import Rows
from underclock.core.model.state import FitProblem, FitState, predicted, weights
from underclock.core.model.whitening import ErrorModel


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """The most likely parameters, and how sure they are.

    Attributes:
        rows: What was fitted to.
        parameters: The most likely.
        errors: How large residuals are.
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
        """Return the model of the first kernels only; what was learned of the others stays.

        Args:
            kernels: How many.
        """
        if len(self.rows.names) <= kernels:
            return self
        rows = self.rows.of_first(kernels)
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


def laplace(problem: FitProblem, state: FitState, shared_cov: Floats | None = None) -> FittedModel:
    """Approximate the posterior around a state by a normal distribution.

    Args:
        problem: The problem.
        state: The most likely.
        shared_cov: Covariance of the shared parameters where other rows tell it. Shape (S, S).
    """
    prediction, whitened = predicted(problem, state), problem.whitening.whitened
    residuals = problem.measured - prediction.log
    by_shared, by_kernel = prediction.by_shared(), prediction.by_kernel()
    linear = Linear(
        whitened(residuals), whitened(by_shared), whitened(by_kernel), idle_of(problem, state)
    )
    equations = normal_equations(problem, state, linear, weights(problem, state))
    kernel_cov = np.asarray(np.linalg.inv(equations.kernel), dtype=np.float64)
    gain = -kernel_cov @ equations.border
    if shared_cov is None:
        shared_cov = shared_covariance(equations)
    return FittedModel(
        rows=problem.rows,
        parameters=state.parameters,
        errors=state.errors,
        scale=state.scale,
        shared_cov=shared_cov,
        kernel_cov=kernel_cov,
        gain=gain,
        residuals=residuals,
        by_shared=by_shared,
        by_kernel=by_kernel,
        shared_scale=state.shared_scale,
    )


def shared_covariance(curved: Curvature) -> Floats:
    """Return the covariance of the shared parameters, those of kernels unknown. Shape (S, S)."""
    return np.asarray(np.linalg.inv(curved.rest()), dtype=np.float64)
