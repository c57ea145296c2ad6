"""The posterior of every kernel's cost at every setting: means, variances and what they share.

Around the fit, everything is linear and normal in logarithms. A cost then moves with the shared
parameters (all kernels together), with its kernel's own, and with the discrepancy that rows nearby
leave unknown.

Shape letters: K kernels, C settings, S shared parameters, P parameters of a kernel; a leading 2 is
time and power.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.laplace import FittedModel
from underclock.core.model.parameters import Points, predict
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.core.model.whitening import alike
from underclock.records import Clocks

_BATCH = 64  # kernels; bounds the memory that many settings take


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Costs of one launch, as logarithms, with their errors.

    Attributes:
        settings: Locked clocks, not auto. Length C.
        log_s: Expected log time in s. Shape (K, C).
        log_w: Expected log power in W. Shape (K, C).
        by_shared: How both move with the shared parameters. Shape (2, K, C, S).
        by_kernel: How both move with the kernel's own, the shared held. Shape (2, K, C, P).
        discrepancy: Variance that is each entry's own. Shape (2, K, C).
        shared_cov: Shape (S, S).
        kernel_cov: Shape (K, P, P).
        noise: Standard deviation of a measurement of each kernel. Shape (2, K).
    """

    settings: tuple[Clocks, ...]
    log_s: Floats
    log_w: Floats
    by_shared: Floats
    by_kernel: Floats
    discrepancy: Floats
    shared_cov: Floats
    kernel_cov: Floats
    noise: Floats

    def costs(self, counts: Floats) -> tuple[Floats, Floats]:
        """Return expected time in s and energy in J of all launches. Shapes (K, C).

        Args:
            counts: Launches of each kernel. Shape (K,).
        """
        time_s: Floats = np.exp(self.log_s) * counts[:, None]
        energy_j: Floats = np.exp(self.log_s + self.log_w) * counts[:, None]
        return time_s, energy_j

    def derivatives(self, time: Floats | float, power: Floats | float) -> "Derivatives":
        """Return how time·log s + power·log W of every entry moves; factors (K, C), or scalars."""
        t, p = np.asarray(time)[..., None], np.asarray(power)[..., None]
        return Derivatives(
            np.square(time) * self.discrepancy[0] + np.square(power) * self.discrepancy[1],
            t * self.by_shared[0] + p * self.by_shared[1],
            t * self.by_kernel[0] + p * self.by_kernel[1],
        )

    def entry_variance(self, derivatives: "Derivatives") -> Floats:
        """Return the variance of what moves so. Shape (K, C)."""
        by_shared, by_kernel = derivatives.by_shared, derivatives.by_kernel
        variance: Floats = (
            np.einsum("kcs,st,kct->kc", by_shared, self.shared_cov, by_shared, optimize=True)
            + kernel_variance(by_kernel, self.kernel_cov)
            + derivatives.own
        )
        return variance

    def variance(self, time: Floats | float, power: Floats | float) -> Floats:
        """Return the variance of time·log s + power·log W of every entry. Shape (K, C)."""
        return self.entry_variance(self.derivatives(time, power))

    def sum_variance(self, kernels: Ints, columns: Ints, weights: Floats) -> "SumVariance":
        """Return how a weighed sum of entries moves.

        Args:
            kernels: Which kernel each entry is of, none twice. Shape (N,).
            columns: Which setting. Shape (N,).
            weights: What each entry's logarithms of time and power are multiplied by.
                Shape (2, N).
        """
        by_shared = np.einsum("cn,cns->s", weights, self.by_shared[:, kernels, columns])
        by_kernel = np.einsum("cn,cnp->np", weights, self.by_kernel[:, kernels, columns])
        own = float(
            np.einsum("np,npq,nq->", by_kernel, self.kernel_cov[kernels], by_kernel)
            + (weights**2 * self.discrepancy[:, kernels, columns]).sum()
        )
        return SumVariance(float(by_shared @ self.shared_cov @ by_shared) + own, by_shared)


def kernel_variance(by: Floats, cov: Floats) -> Floats:
    """Return the variance of what moves by (K, C, P) with each kernel's (K, P, P). Shape (K, C)."""
    variance: Floats = np.einsum("kcp,kpq,kcq->kc", by, cov, by, optimize=True)
    return variance


@dataclass(frozen=True, slots=True)
class Derivatives:
    """What makes an entry uncertain.

    Attributes:
        own: Variance that no other entry shares. Shape (K, C).
        by_shared: Derivatives by the shared parameters. Shape (K, C, S).
        by_kernel: Derivatives by the kernel's own. Shape (K, C, P).
    """

    own: Floats
    by_shared: Floats
    by_kernel: Floats


@dataclass(frozen=True, slots=True)
class SumVariance:
    """How uncertain a sum of entries is.

    Attributes:
        variance: In the square of the sum's unit.
        by_shared: How it moves with the shared parameters. Shape (S,).
    """

    variance: float
    by_shared: Floats


def posterior_of(
    model: FittedModel, settings: Sequence[Clocks], *, temperature_c: float
) -> Posterior:
    """Predict every kernel at every setting.

    Args:
        model: The fit.
        settings: Locked clocks; a part left to auto runs at the fastest seen.
        temperature_c: At which to predict.
    """
    core_mhz, mem_mhz = clocks_of(model.rows, settings)
    where = _Where(core_mhz, mem_mhz, temperature_c)
    bounds = model.rows.bounds
    shape = (2, len(model.rows.names), len(settings))
    log, discrepancy = np.empty(shape), np.empty(shape)
    by_shared = np.empty((*shape, len(model.parameters.shared)))
    by_kernel = np.empty((*shape, PER_KERNEL))
    for first in range(0, shape[1], _BATCH):
        some = np.arange(first, min(first + _BATCH, shape[1]))
        predicted = _predicted(model, some, where)
        for i, k in enumerate(some.tolist()):
            entries = _conditioned(model, predicted, i, slice(bounds[k], bounds[k + 1]))
            log[:, k], by_shared[:, k], by_kernel[:, k], discrepancy[:, k] = entries
    return Posterior(
        settings=tuple(settings),
        log_s=log[0],
        log_w=log[1],
        by_shared=by_shared,
        by_kernel=by_kernel,
        discrepancy=discrepancy,
        shared_cov=model.shared_cov,
        kernel_cov=model.kernel_cov,
        noise=model.errors.noise[:, None] * model.scale,
    )


def clocks_of(rows: Rows, settings: Sequence[Clocks]) -> tuple[Floats, Floats]:
    """Return the clocks that settings stand for: auto is the fastest seen. Shapes (C,)."""
    ceiling = rows.ceiling_mhz
    if not math.isfinite(ceiling):
        ceiling = float(rows.core_mhz.max())
        ceiling = max([ceiling, *[float(s.core_mhz) for s in settings if s.core_mhz]])
    core = np.array([min(float(s.core_mhz or math.inf), ceiling) for s in settings])
    mem = np.array([float(s.mem_mhz or rows.mem_points_mhz[-1]) for s in settings])
    return core, mem


@dataclass(frozen=True, slots=True)
class _Where:
    """Where to predict: clocks of every setting, (C,), and the temperature."""

    core_mhz: Floats
    mem_mhz: Floats
    temperature_c: float

    def points(self, kernels: Ints, core_mhz: Floats, mem_mhz: Floats) -> Points:
        """Return all clocks of each of some kernels, as (N, C) core clocks and (C,) memory's."""
        return Points(
            kernel=np.repeat(kernels, core_mhz.shape[1]),
            core_mhz=core_mhz.ravel(),
            mem_mhz=np.tile(mem_mhz, len(kernels)),
            temperature_c=np.full(core_mhz.size, self.temperature_c),
        )


@dataclass(frozen=True, slots=True)
class _Predicted:
    """What the parameters alone say of some kernels at all settings.

    Attributes:
        kernels: Which they are. Shape (N,).
        core_mhz: Clocks they run at. Shape (N, C).
        mem_mhz: Shape (C,).
        log: Shape (2, N, C).
        by_shared: Shape (2, N, C, S).
        by_kernel: Shape (2, N, C, P).
        apart: How far alternatives lie from the most likely. Shape (A, 2, N, C).
        apart_rows: How far at the rows, of all kernels. Shape (A, 2, R).
    """

    kernels: Ints
    core_mhz: Floats
    mem_mhz: Floats
    log: Floats
    by_shared: Floats
    by_kernel: Floats
    apart: Floats
    apart_rows: Floats


def _predicted(model: FittedModel, kernels: Ints, where: _Where) -> _Predicted:
    """Predict some kernels at all settings, the residuals of their rows not yet looked at."""
    shape = (2, len(kernels), len(where.core_mhz))
    core_mhz = _under_cap(model, kernels, where)
    at = where.points(kernels, core_mhz, where.mem_mhz)
    prediction = predict(model.parameters, at)
    log = prediction.log
    fitted = np.stack([model.rows.log_s, model.rows.log_w]) - model.residuals
    measured = Points.of(model.rows)
    apart = np.empty((len(model.alternatives.kernels), *shape))
    apart_rows = np.empty((len(apart), *fitted.shape))
    for a, other in enumerate(model.alternatives.kernels):
        parameters = dataclasses.replace(model.parameters, kernels=other)
        apart[a] = (predict(parameters, at).log - log).reshape(shape)
        apart_rows[a] = predict(parameters, measured).log - fitted
    return _Predicted(
        kernels=kernels,
        mem_mhz=where.mem_mhz,
        core_mhz=core_mhz,
        log=log.reshape(shape),
        by_shared=prediction.by_shared().reshape(*shape, -1),
        by_kernel=prediction.by_kernel().reshape(*shape, PER_KERNEL),
        apart=apart,
        apart_rows=apart_rows,
    )


def _conditioned(
    model: FittedModel, predicted: _Predicted, i: int, near: slice
) -> tuple[Floats, Floats, Floats, Floats]:
    """Condition a kernel on the residuals of its rows: a Gaussian process of the discrepancy.

    Args:
        model: The fit.
        predicted: What the parameters alone say.
        i: Place of the kernel in it.
        near: Rows of the kernel.

    Returns:
        Logarithms, (2, C), derivatives by shared, (2, C, S), and own parameters, (2, C, P), and the
        variance of each entry by itself, (2, C).
    """
    rows, k = model.rows, int(predicted.kernels[i])
    core_rows, mem_rows = rows.core_mhz[near], rows.mem_mhz[near]
    # One correlation for both quantities: where points lie does not depend on the quantity.
    common = alike(predicted.core_mhz[i], predicted.mem_mhz, core_rows, mem_rows)
    among = alike(core_rows, mem_rows, core_rows, mem_rows)
    log, by_shared = predicted.log[:, i].copy(), predicted.by_shared[:, i].copy()
    by_kernel = predicted.by_kernel[:, i].copy()
    discrepancy = np.empty_like(log)
    for c in range(2):
        shared2 = model.errors.discrepancy[c] ** 2
        noise2 = model.errors.noise[c] ** 2 / rows.windows[near]
        # (discrepancy² · alike + noise²)⁻¹; the kernel's scale is in both and cancels.
        weights = np.linalg.solve(shared2 * among + np.diag(noise2), shared2 * common.T).T
        log[c] += weights @ model.residuals[c, near]
        row_shared = model.by_shared[c, near] + np.einsum(
            "rp,ps->rs", model.by_kernel[c, near], model.gain[k]
        )
        by_shared[c] += by_kernel[c] @ model.gain[k] - weights @ row_shared
        by_kernel[c] -= weights @ model.by_kernel[c, near]
        explained = shared2 * np.einsum("cr,cr->c", weights, common)
        discrepancy[c] = model.scale[k] ** 2 * np.maximum(shared2 - explained, 0.0)
        # Where an alternative predicts something else, the most likely is not so sure.
        doubt = predicted.apart[:, c, i] - predicted.apart_rows[:, c, near] @ weights.T
        doubt2 = model.alternatives.probability[:, k, None] * doubt**2
        discrepancy[c] += doubt2.max(axis=0, initial=0.0)
    return log, by_shared, by_kernel, discrepancy


def _under_cap(model: FittedModel, kernels: Ints, where: _Where) -> Floats:
    """Return the core clocks kernels run at: as asked, or where the cap holds them. (N, C)."""
    asked = np.tile(where.core_mhz, (len(kernels), 1))
    limit_w = model.rows.limit_w
    if not math.isfinite(limit_w):
        return asked
    ladder = np.unique(where.core_mhz)
    effective = asked.copy()
    for clock in np.unique(where.mem_mhz):
        steps = np.tile(ladder, (len(kernels), 1))
        at = where.points(kernels, steps, np.full(len(ladder), clock))
        power_w = np.exp(predict(model.parameters, at).log[1]).reshape(steps.shape)
        columns = np.flatnonzero(where.mem_mhz == clock)
        for i, drawn_w in enumerate(power_w):
            if drawn_w.max() > limit_w:
                highest = float(np.interp(limit_w, np.maximum.accumulate(drawn_w), ladder))
                effective[i, columns] = np.minimum(asked[i, columns], highest)
    return effective


def with_means(
    posterior: Posterior, kernels: Bools, log_s: Floats, log_w: Floats, repeats: Floats
) -> Posterior:
    """Return a posterior in which some kernels cost what was measured, as sure as their repeats.

    For kernels of which no row could be fitted: nothing else is known of them.

    Args:
        posterior: What the fit says.
        kernels: Which. Shape (K,).
        log_s: Mean measured, ``nan`` where not. Shape (K, C).
        log_w: Logarithm of the mean power in W, ``nan`` where not measured. Shape (K, C).
        repeats: How many measurements that is the mean of. Shape (K, C).
    """
    known = kernels[:, None] & np.isfinite(log_s)
    open_ = ~known[..., None]
    own = posterior.noise[:, :, None] ** 2 / np.maximum(repeats, 1.0)
    return dataclasses.replace(
        posterior,
        log_s=np.where(known, log_s, posterior.log_s),
        log_w=np.where(known, log_w, posterior.log_w),
        by_shared=posterior.by_shared * open_,
        by_kernel=posterior.by_kernel * open_,
        discrepancy=np.where(known, own, posterior.discrepancy),
    )


def with_measured(posterior: Posterior, log_s: Floats, log_w: Floats) -> Posterior:
    """Return a posterior in which measured entries are exactly what was measured.

    For tables, which give one answer however often they are asked: a row's noise is there again.

    Args:
        posterior: What the fit says.
        log_s: Measured, ``nan`` where not. Shape (K, C).
        log_w: Logarithm of the mean power in W, ``nan`` where not measured. Shape (K, C).
    """
    known = np.isfinite(log_s)
    open_ = ~known
    noise2 = posterior.noise**2
    return dataclasses.replace(
        posterior,
        log_s=np.where(known, log_s, posterior.log_s),
        log_w=np.where(known, log_w, posterior.log_w),
        by_shared=posterior.by_shared * open_[..., None],
        by_kernel=posterior.by_kernel * open_[..., None],
        discrepancy=(posterior.discrepancy + noise2[:, :, None]) * open_,
    )
