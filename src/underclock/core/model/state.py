"""What a fit is of, which does not change, and where it stands, which each step makes anew.

Shape letters: R rows, K kernels, S shared parameters, P parameters of a kernel; a leading 2 is time
and power.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.hierarchical_prior import KernelPrior, typical
from underclock.core.model.parameters import (
    Parameters,
    Points,
    PredictedRows,
    Shared,
    predict,
)
from underclock.core.model.rows import Rows
from underclock.core.model.whitening import ErrorModel, Whitening
from underclock.physics.costs import idle_w


@dataclass(frozen=True, slots=True, kw_only=True)
class FitProblem:
    """Rows, and the model to fit to them.

    Attributes:
        rows: To fit.
        at: Where they were measured.
        measured: Logarithms of time and power. Shape (2, R).
        whitening: Of their residuals.
        family: What the shared vector stands for.
        shared_mean: Of the prior of the shared parameters. Shape (S,).
        shared_precision: Of that prior. Shape (S,).
    """

    rows: Rows
    at: Points
    measured: Floats
    whitening: Whitening
    family: Shared
    shared_mean: Floats
    shared_precision: Floats

    @classmethod
    def of(cls, rows: Rows, family: Shared) -> "FitProblem":
        """Prepare rows; the work of a fit grows with K · L², so see `subsample` for how many."""
        family = dataclasses.replace(family, company=rows.by_company.shape[1])
        return cls(
            rows=rows,
            at=Points.of(rows),
            measured=np.stack([rows.log_s, rows.log_w]),
            whitening=Whitening.of(rows),
            family=family,
            shared_mean=family.start(),
            shared_precision=family.spread() ** -2.0,
        )


_STEP = 1e-5  # of a logarithm
_IDLE_ERROR = 0.1  # of idle power, as what a busy GPU draws besides its kernels: it gates less


def idling(problem: FitProblem, shared: Floats) -> Floats:
    """Return how far idling as measured is from what parameters say, over its error. Shape (N,).

    Args:
        problem: The problem; of N measurements of idling, mostly none.
        shared: Shared parameters. Shape (S,).
    """
    left: Floats = (_idle(problem)[3] - _idle_log_w(problem, shared)) / _IDLE_ERROR
    return left


def idling_by_shared(problem: FitProblem, shared: Floats) -> Floats:
    """Return derivatives of what idling is predicted to draw, over its error. Shape (N, S)."""
    here = _idle_log_w(problem, shared)
    moved = shared + _STEP * np.eye(len(shared))
    by: Floats = np.array([_idle_log_w(problem, each) - here for each in moved]).T / _STEP
    return by / _IDLE_ERROR


def _idle(problem: FitProblem) -> Floats:
    """Return clocks, temperature and log power of idling as measured. Shape (4, N)."""
    return np.array(problem.rows.idle, dtype=np.float64).reshape(-1, 4).T


def _idle_log_w(problem: FitProblem, shared: Floats) -> Floats:
    """Return the logarithm of what idling is predicted to draw. Shape (N,)."""
    core, mem, warm, _ = _idle(problem)
    power: Floats = np.log(idle_w(problem.family.gpu(shared), core, mem, warm))
    return power


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """Where a fit stands.

    Attributes:
        parameters: As they are now.
        errors: How large residuals are.
        scale: By how much each kernel's are larger. Shape (K,).
        prior: What the kernels' parameters are expected to be.
        shared_scale: By how much the prior of the shared parameters is wider than usual.
    """

    parameters: Parameters
    errors: ErrorModel
    scale: Floats
    prior: KernelPrior
    shared_scale: float = 1.0

    def moved(
        self,
        *,
        shared: Floats | None = None,
        kernels: Floats | None = None,
    ) -> "FitState":
        """Return the state with other parameters; those not named stay."""
        old = self.parameters
        parameters = Parameters(
            family=old.family,
            shared=old.shared if shared is None else shared,
            kernels=old.kernels if kernels is None else kernels,
        )
        return dataclasses.replace(self, parameters=parameters)

    def with_errors(self, errors: ErrorModel) -> "FitState":
        """Return the state with residuals of other sizes."""
        return dataclasses.replace(self, errors=errors)

    def with_prior(self, prior: KernelPrior) -> "FitState":
        """Return the state with another prior of the kernels' parameters."""
        return dataclasses.replace(self, prior=prior)


def begin(problem: FitProblem) -> FitState:
    """Return the state before anything is known: every parameter at the mean of its prior."""
    kernels = len(problem.rows.names)
    prior = typical(problem.rows, problem.family.base)
    return FitState(
        parameters=Parameters(
            family=problem.family,
            shared=problem.shared_mean,
            kernels=prior.mean,
        ),
        errors=ErrorModel(noise=np.array([0.005, 0.01]), discrepancy=np.array([0.01, 0.01])),
        scale=np.ones(kernels),
        prior=prior,
    )


def predicted(problem: FitProblem, state: FitState) -> PredictedRows:
    """Predict the rows."""
    return predict(state.parameters, problem.at)


def weights(problem: FitProblem, state: FitState) -> Floats:
    """Return the precision of the whitened residuals. Shape (2, K, L)."""
    return problem.whitening.weights(state.errors, state.scale)


def kernel_costs(problem: FitProblem, state: FitState) -> Floats:
    """Return the negative log posterior of each kernel's parameters, but a constant. Shape (K,)."""
    residuals = SeenRows.of(problem, state).residuals
    return costs_of(state.prior, state.parameters.kernels, residuals, weights(problem, state))


def costs_of(prior: KernelPrior, kernels: Floats, residuals: Floats, precision: Floats) -> Floats:
    """Return what `kernel_costs` does.

    Args:
        prior: Of the kernels.
        kernels: Their parameters. Shape (K, P).
        residuals: There, whitened. Shape (2, K, L).
        precision: Of the residuals. Shape (2, K, L).
    """
    own = (precision * residuals**2).sum(axis=(0, 2))
    costs: Floats = 0.5 * own + prior.penalty(kernels)
    return costs


@dataclass(frozen=True, slots=True)
class SeenRows:
    """What is seen of the rows from where a fit stands.

    Attributes:
        prediction: Of the rows.
        residuals: Whitened. Shape (2, K, L).
    """

    prediction: PredictedRows
    residuals: Floats

    @classmethod
    def of(cls, problem: FitProblem, state: FitState) -> "SeenRows":
        """Look at the rows."""
        prediction = predicted(problem, state)
        return cls(prediction, problem.whitening.whitened(problem.measured - prediction.log))


def cost(problem: FitProblem, state: FitState, seen: SeenRows) -> float:
    """Return the negative log posterior of all parameters, but a constant."""
    kernels = state.parameters.kernels
    own = costs_of(state.prior, kernels, seen.residuals, weights(problem, state))
    away2 = (state.parameters.shared - problem.shared_mean) ** 2
    shared = 0.5 * (problem.shared_precision * away2).sum() / state.shared_scale**2
    if problem.rows.idle:
        shared += 0.5 * (idling(problem, state.parameters.shared) ** 2).sum()
    return float(own.sum() + shared)
