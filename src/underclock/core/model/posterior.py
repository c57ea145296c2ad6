"""What a fit says of every kernel at every setting: means, errors, and what moves together.

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
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.parameters import Points, predict, slopes
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

    def derivatives(
        self, time: Floats | float, power: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return how time·log s + power·log W of every entry moves; factors (K, C), or scalars.

        Returns:
            The variance that is its own, (K, C), and its derivatives by the shared parameters,
            (K, C, S), and by the kernel's, (K, C, P).
        """
        t, p = np.asarray(time)[..., None], np.asarray(power)[..., None]
        return (
            np.square(time) * self.discrepancy[0] + np.square(power) * self.discrepancy[1],
            t * self.by_shared[0] + p * self.by_shared[1],
            t * self.by_kernel[0] + p * self.by_kernel[1],
        )

    def entry_variance(self, own: Floats, by_shared: Floats, by_kernel: Floats) -> Floats:
        """Return the variance of what moves so, as from `moves`. Shape (K, C)."""
        found: Floats = (
            np.einsum("kcs,st,kct->kc", by_shared, self.shared_cov, by_shared, optimize=True)
            + kernel_variance(by_kernel, self.kernel_cov)
            + own
        )
        return found

    def variance(self, time: Floats | float, power: Floats | float) -> Floats:
        """Return the variance of time·log s + power·log W of every entry. Shape (K, C)."""
        return self.entry_variance(*self.derivatives(time, power))

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
    found: Floats = np.einsum("kcp,kpq,kcq->kc", by, cov, by, optimize=True)
    return found


@dataclass(frozen=True, slots=True)
class SumVariance:
    """A sum's variance.

    Attributes:
        variance: In the square of the sum's unit.
        by_shared: How it moves with the shared parameters. Shape (S,).
    """

    variance: float
    by_shared: Floats


def posterior_of(
    solution: FittedModel, settings: Sequence[Clocks], *, temperature_c: float
) -> Posterior:
    """Predict every kernel at every setting.

    Args:
        solution: The fit.
        settings: Locked clocks; a part left to auto runs at the fastest seen.
        temperature_c: At which to predict.
    """
    rows = solution.rows
    core, mem = clocks_of(rows, settings)
    shape = (2, len(rows.names), len(settings))
    log, discrepancy = np.empty(shape), np.empty(shape)
    by_shared = np.empty((*shape, len(solution.shared)))
    by_kernel = np.empty((*shape, PER_KERNEL))
    for first in range(0, shape[1], _BATCH):
        some = np.arange(first, min(first + _BATCH, shape[1]))
        found = _predicted(solution, some, core, mem, temperature_c)
        log[:, some], by_shared[:, some], by_kernel[:, some], discrepancy[:, some] = found
    return Posterior(
        settings=tuple(settings),
        log_s=log[0],
        log_w=log[1],
        by_shared=by_shared,
        by_kernel=by_kernel,
        discrepancy=discrepancy,
        shared_cov=solution.shared_cov,
        kernel_cov=solution.kernel_cov,
        noise=solution.errors.noise[:, None] * solution.scale,
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


def _predicted(
    solution: FittedModel, kernels: Ints, core: Floats, mem: Floats, temperature_c: float
) -> tuple[Floats, ...]:
    """Return logs, derivatives and own variances of some kernels at all settings."""
    rows = solution.rows
    shape = (len(kernels), len(core))
    effective = _under_cap(solution, kernels, core, mem, temperature_c)
    at = Points(
        kernel=np.repeat(kernels, len(core)),
        core_mhz=effective.ravel(),
        mem_mhz=np.tile(mem, len(kernels)),
        temperature_c=np.full(shape[0] * shape[1], temperature_c),
    )
    how = solution.family, solution.shared, solution.kernels, solution.serial
    log, by_kernel = predict(*how, at)
    by_shared = slopes(*how, at)
    log = log.reshape(2, *shape)
    by_kernel = by_kernel.reshape(2, *shape, PER_KERNEL)
    by_shared = by_shared.reshape(2, *shape, -1)
    discrepancy = np.empty_like(log)
    apart, apart_rows = _apart(solution, at, log)
    bounds = rows.bounds
    for i, k in enumerate(kernels.tolist()):
        near = slice(bounds[k], bounds[k + 1])
        scale2 = solution.scale[k] ** 2
        # One discrepancy for both quantities: where they lie does not depend on the quantity.
        common = alike(effective[i], mem, rows.core_mhz[near], rows.mem_mhz[near])
        among = alike(
            rows.core_mhz[near], rows.mem_mhz[near], rows.core_mhz[near], rows.mem_mhz[near]
        )
        for c in range(2):
            shared2 = solution.errors.discrepancy[c] ** 2
            noise2 = solution.errors.noise[c] ** 2 / rows.windows[near]
            # (misfit² · alike + noise²)⁻¹; the kernel's scale is in both and cancels.
            weights = np.linalg.solve(shared2 * among + np.diag(noise2), shared2 * common.T).T
            log[c, i] += weights @ solution.residuals[c, near]
            row_shared = solution.by_shared[c, near] + np.einsum(
                "rp,ps->rs", solution.by_kernel[c, near], solution.gain[k]
            )
            by_shared[c, i] += by_kernel[c, i] @ solution.gain[k] - weights @ row_shared
            by_kernel[c, i] -= weights @ solution.by_kernel[c, near]
            explained = shared2 * np.einsum("cr,cr->c", weights, common)
            discrepancy[c, i] = scale2 * np.maximum(shared2 - explained, 0.0)
            # Where another explanation predicts something else, this one is not so sure.
            doubt = apart[:, c, i] - apart_rows[:, c, near] @ weights.T
            doubt2 = solution.likely[:, k, None] * doubt**2
            discrepancy[c, i] += doubt2.max(axis=0, initial=0.0)
    return log, by_shared, by_kernel, discrepancy


def _apart(solution: FittedModel, at: Points, log: Floats) -> tuple[Floats, Floats]:
    """Return how far other explanations lie from the best.

    Args:
        solution: The fit.
        at: Where, N kernels at C settings.
        log: What the best predicts there. Shape (2, N, C).

    Returns:
        There, shape (M, 2, N, C), and at the rows, (M, 2, R).
    """
    rows, how = solution.rows, (solution.family, solution.shared)
    measured = Points.of(rows)
    fitted = np.stack([rows.log_s, rows.log_w]) - solution.residuals
    there = np.empty((len(solution.others), *log.shape))
    here = np.empty((len(solution.others), *fitted.shape))
    for m, kernels in enumerate(solution.others):
        there[m] = predict(*how, kernels, solution.serial, at)[0].reshape(log.shape) - log
        here[m] = predict(*how, kernels, solution.serial, measured)[0] - fitted
    return there, here


def _under_cap(
    solution: FittedModel, kernels: Ints, core: Floats, mem: Floats, temperature_c: float
) -> Floats:
    """Return the core clock each kernel runs at: as asked, or where the power limit holds it."""
    asked = np.tile(core, (len(kernels), 1))
    limit_w = solution.rows.limit_w
    if not math.isfinite(limit_w):
        return asked
    ladder = np.unique(core)
    effective = asked.copy()
    for clock in np.unique(mem):
        at = Points(
            kernel=np.repeat(kernels, len(ladder)),
            core_mhz=np.tile(ladder, len(kernels)),
            mem_mhz=np.full(len(kernels) * len(ladder), clock),
            temperature_c=np.full(len(kernels) * len(ladder), temperature_c),
        )
        log, _ = predict(solution.family, solution.shared, solution.kernels, solution.serial, at)
        power_w = np.exp(log[1]).reshape(len(kernels), -1)
        columns = np.flatnonzero(mem == clock)
        for i, drawn in enumerate(power_w):
            if drawn.max() > limit_w:
                highest = float(np.interp(limit_w, np.maximum.accumulate(drawn), ladder))
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
