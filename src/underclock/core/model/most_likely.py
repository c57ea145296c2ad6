"""From a sample set to rows, and to the most likely parameters of the model with their errors.

Around the most likely parameters everything is normal (a Laplace approximation); what the rows say
beyond the physics, and how large errors are, is worked out around them (`conditioning`).

Rows of one kernel at like clocks share most of their discrepancy, so a kernel with hundreds of them
is known by some spread over all; and what kernels share is known by some of every kind and size.

Shape letters: R rows, K kernels, L rows of the kernel with most, S shared parameters, P parameters
of a kernel; a leading 2 is time and power.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.damped_steps import (
    FitProblem,
    NormalEquations,
    converge,
    converge_kernels,
)
from underclock.core.model.hierarchical_prior import learned, widening
from underclock.core.model.parameters import (
    CORE,
    DRAM,
    FIXED,
    Parameters,
    Rows,
    Shared,
    unknown_gpu,
)
from underclock.core.model.sample_rows import rows_of
from underclock.core.step.whole_step import STEADY_C
from underclock.physics.constants import GpuConstants
from underclock.records import Clocks, SampleSet

# What bounds a kernel hides the rest of it, and from a wrong start no small step leads out. So each
# kernel tries several: shares of its time of core, DRAM and fixed time of kernels bound by the
# core, by DRAM, by both, and by neither. Core and DRAM join to the rest of the time.
_STARTS = ((0.97, 0.3, 0.02), (0.4, 0.97, 0.02), (0.8, 0.8, 0.02), (0.5, 0.5, 0.4))
# How sharply they join hides too: it is tried from where it usually is and from where they add up.
_ADD_UP = 0.0  # logarithm of the exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPrior:
    """What parameters are expected to be before rows, as differences from those fitted."""

    kernels: Floats  # (K, P)
    spread: Floats  # standard deviations, (K, P)
    shared: Floats  # (S,)
    shared_root: Floats  # root of their covariance, (S, S)

    def of(self, kernels: Ints) -> "ParameterPrior":
        """Return the prior of some kernels."""
        return dataclasses.replace(self, kernels=self.kernels[kernels], spread=self.spread[kernels])


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """The most likely parameters."""

    rows: Rows
    parameters: Parameters
    # what was expected of them: of kernels, what kernels of a kind say of one another; of what is
    # shared, what idling says too
    prior: ParameterPrior


def fit_all(rows: Rows, family: Shared) -> FittedModel:
    """Fit what kernels share and each kernel, together."""
    problem = FitProblem.of(rows, family)
    usual = problem.begin()
    adding = usual.shared.copy()
    adding[0] = _ADD_UP
    begun = usual, dataclasses.replace(usual, shared=adding)
    found = (converge(problem, restart(problem, each)) for each in begun)
    return _model(problem, min(found, key=problem.cost))


def restart(problem: FitProblem, parameters: Parameters) -> Parameters:
    """Let each kernel try every start, and keep what explains its rows best."""
    best, least = converge_kernels(problem, parameters)
    sharp = float(np.exp(parameters.shared[0]))
    for core, dram, fixed in _STARTS:
        joined = (core**sharp + dram**sharp) ** (1.0 / sharp) / (1.0 - fixed)
        kernels, parts = problem.prior.mean.copy(), [CORE, DRAM, FIXED]
        shares = np.log([core / joined, dram / joined, fixed])
        kernels[:, parts] = problem.prior.unit[:, parts] + shares
        tried, costs = converge_kernels(problem, dataclasses.replace(parameters, kernels=kernels))
        better = (costs < least)[:, None]
        best = dataclasses.replace(best, kernels=np.where(better, tried.kernels, best.kernels))
        least = np.minimum(costs, least)
    return best


def learn_priors(problem: FitProblem, parameters: Parameters) -> FitProblem:
    """Let kernels of a kind lean on one another; widen priors as far as rows show they must be."""
    equations = NormalEquations.of(problem, parameters, problem.seen(parameters))
    variance = np.diagonal(np.linalg.inv(equations.kernel), axis1=1, axis2=2)
    prior = learned(problem.prior, problem.rows, parameters.kernels, variance)
    own = slice(len(parameters.shared) - problem.family.common)
    usual = problem.family.spread() ** -2.0
    away2 = usual * (problem.shared_mean - parameters.shared) ** 2
    left = usual * np.diag(equations.shared_covariance())
    precision = usual / widening(away2[own], left[own]) ** 2
    return dataclasses.replace(problem, shared_precision=precision, prior=prior)


def _model(problem: FitProblem, parameters: Parameters) -> FittedModel:
    """Return what was fitted, and what was expected of it once priors are learned."""
    problem = learn_priors(problem, parameters)
    precision = np.diag(problem.shared_precision)
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
            kernels=problem.prior.mean - parameters.kernels,
            spread=problem.prior.precision(parameters.kernels) ** -0.5,
            shared=cov @ drawn,
            shared_root=np.asarray(np.linalg.cholesky(0.5 * (cov + cov.T)), dtype=np.float64),
        ),
    )


MOST_ROWS = 64  # of a kernel
MOST_KERNELS = 150  # that what is shared is fitted to
_GOLDEN = 0.6180339887498949  # its multiples, less their whole part, are spread evenly


def fit_rows(
    sample_set: SampleSet, settings: Sequence[Clocks], weights: Floats | None = None
) -> tuple[Rows, FittedModel]:
    """Fit samples.

    Co-load is subtracted twice: how idle power follows the clock is first assumed, then fitted.

    Args:
        weights: How much each sample counts in time and energy, where that is known already.
            Shape (2, N).

    Returns:
        The rows of the step's kernels, all of them, and the fit, of the heater kernel too.
    """
    rows = rows_of(sample_set, weights=weights)
    model = fitted(rows, Shared(start_of(rows, settings)))
    steered = any(sample.asked.is_auto and sample.in_company for sample in sample_set.mixed)
    if steered:
        parameters = model.parameters
        rows = rows_of(sample_set, parameters.family.gpu(parameters.shared), weights)
        model = fitted(rows, Shared(start_of(rows, settings)))
    return rows.of(np.arange(len(sample_set.kernels))), model


def start_of(rows: Rows, settings: Sequence[Clocks]) -> GpuConstants:
    """Return constants to begin the fit of some rows with."""
    asked = [float(s.core_mhz) for s in settings if s.core_mhz is not None]
    return unknown_gpu(
        rows.mem_points_mhz.tolist(),
        fastest_mhz=max([float(rows.core_mhz.max()), *asked]),
        most_w=float(np.exp(rows.log[1].max())),
    )


def temperature_of(sample_set: SampleSet) -> float:
    """Return the temperature the step runs at: in situ, else that of the samples."""
    for samples in (sample_set.in_situ, sample_set.samples):
        seen = [s.temperature_c for s in samples if s.temperature_c is not None]
        if seen:
            return float(np.median(seen))
    return STEADY_C


def clocks_of(rows: Rows, settings: Sequence[Clocks]) -> tuple[Floats, Floats]:
    """Return the clocks that settings stand for: auto is the fastest seen. Shapes (C,)."""
    ceiling = rows.ceiling_mhz
    if not math.isfinite(ceiling):
        ceiling = float(rows.core_mhz.max())
        ceiling = max([ceiling, *[float(s.core_mhz) for s in settings if s.core_mhz]])
    core = np.array([min(float(s.core_mhz or math.inf), ceiling) for s in settings])
    mem = np.array([float(s.mem_mhz or rows.auto_mem_mhz) for s in settings])
    return core, mem


def fitted(
    rows: Rows, family: Shared, *, most_rows: int = MOST_ROWS, most_kernels: int = MOST_KERNELS
) -> FittedModel:
    """Fit rows: all of them where they are few; `FittedModel.rows` says which."""
    light = rows.some(spread_rows(rows, most_rows))
    some = spread_kernels(light, most_kernels)
    if len(some) == len(rows.names):
        return fit_all(light, family)
    # Each kernel by itself; what they share is known from a fit of some of them.
    known = fit_all(light.of(some), family).parameters
    problem = FitProblem.of(light, known.family)
    start = dataclasses.replace(problem.begin(), shared=known.shared)
    return _model(problem, restart(problem, start))


def spread_rows(rows: Rows, most: int) -> Ints:
    """Choose so many rows of each kernel evenly from slow to fast, different ones for each kernel.

    The fastest row is always chosen. Returns indices, ascending.
    """
    chosen = []
    for k, (low, high) in enumerate(zip(rows.bounds[:-1], rows.bounds[1:], strict=True)):
        count = int(high - low)
        if count <= most:
            chosen.append(np.arange(low, high))
            continue
        order = low + np.lexsort((rows.core_mhz[low:high], rows.mem_mhz[low:high]))
        places = ((np.arange(most) + k * _GOLDEN % 1.0) * count / most).astype(np.int64)
        places[-1] = count - 1
        chosen.append(np.sort(order[places]))
    rows_chosen: Ints = np.concatenate(chosen)
    return rows_chosen


def spread_kernels(rows: Rows, most: int) -> Ints:
    """Choose so many kernels evenly from short to long within each kind; all where they are few.

    Those without rows are chosen only where all are. Returns indices, ascending.
    """
    counts = np.diff(rows.bounds)
    if len(counts) <= most:
        return np.arange(len(counts))
    known = np.flatnonzero(counts)
    fastest_s = np.minimum.reduceat(rows.log[0], rows.bounds[known])
    order = known[np.lexsort((fastest_s, rows.kinds[known]))]
    places = np.linspace(0, len(order) - 1, min(most, len(order))).astype(np.int64)
    kernels: Ints = np.sort(order[places])
    return kernels
