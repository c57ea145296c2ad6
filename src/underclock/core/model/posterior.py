"""The posterior of every kernel's cost at every setting: means, variances and what they share.

Around the fit, everything is linear and normal in logarithms. A cost then moves with the shared
parameters (all kernels together), with its kernel's own, and with the discrepancy that rows nearby
leave unknown.

Shape letters: K kernels, C settings, S shared parameters, P parameters of a kernel; a leading 2 is
time and power.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.records import Clocks

_SETTLES = 0.003  # by so much kernels differ in the power at which a loop settles
_STEEPEST = 2.0  # exponent of time with power: half of the power at least follows the speed


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
        """Return expected time in s and energy in J of so many launches, (K,). Shapes (K, C)."""
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

    def drawn(self, normals: Floats) -> Floats:
        """Return how far draws of log time and log power are off those expected.

        Args:
            normals: As many as `unknowns` for each of D draws, independent of each other.

        Returns:
            Shape (D, 2, K, C).
        """
        kernels, own = self.kernel_cov.shape[:2]
        shared = normals[:, : len(self.shared_cov)] @ _root(self.shared_cov).T
        rest = normals[:, len(self.shared_cov) :]
        of_kernels = rest[:, : kernels * own].reshape(-1, kernels, own)
        of_kernels = np.einsum("kpq,dkq->dkp", _root(self.kernel_cov), of_kernels)
        entries = rest[:, kernels * own :].reshape(-1, *self.discrepancy.shape)
        off: Floats = (
            np.einsum("ikcs,ds->dikc", self.by_shared, shared, optimize=True)
            + np.einsum("ikcp,dkp->dikc", self.by_kernel, of_kernels, optimize=True)
            + np.sqrt(self.discrepancy) * entries
        )
        return off

    @property
    def unknowns(self) -> int:
        """How many independent numbers a draw is made of."""
        return len(self.shared_cov) + self.kernel_cov[..., 0].size + self.discrepancy.size

    def sum_variance(self, kernels: Ints, columns: Ints, weights: Floats) -> "SumVariance":
        """Return how a weighed sum of entries moves.

        Args:
            kernels: Which kernel each entry is of. Shape (N,).
            columns: Which setting; no entry is named twice. Shape (N,).
            weights: What each entry's logarithms of time and power are multiplied by.
                Shape (2, N).
        """
        by_shared = np.einsum("cn,cns->s", weights, self.by_shared[:, kernels, columns])
        by_kernel = np.zeros(self.kernel_cov.shape[:2])
        moves = np.einsum("cn,cnp->np", weights, self.by_kernel[:, kernels, columns])
        np.add.at(by_kernel, kernels, moves)
        own = float(
            np.einsum("kp,kpq,kq->", by_kernel, self.kernel_cov, by_kernel)
            + (weights**2 * self.discrepancy[:, kernels, columns]).sum()
        )
        return SumVariance(float(by_shared @ self.shared_cov @ by_shared) + own, by_shared)


def _root(cov: Floats) -> Floats:
    """Return what independent normal numbers are multiplied by to have covariances (..., P, P)."""
    values, vectors = np.linalg.eigh(cov)
    root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return root


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


def with_means(posterior: Posterior, log_s: Floats, log_w: Floats, repeats: Floats) -> Posterior:
    """Return a posterior in which some entries cost what was measured, as sure as their repeats.

    For entries that no row of the fit stands for: of them nothing else is known.

    Args:
        log_s: Mean measured, ``nan`` where not. Shape (K, C).
        log_w: Logarithm of the mean power in W, ``nan`` where not measured. Shape (K, C).
        repeats: How many measurements that is the mean of. Shape (K, C).
    """
    known = np.isfinite(log_s)
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


def held(logs: Floats, core_mhz: Floats, mem_mhz: Floats, limit_w: float) -> Floats:
    """Return log time and log power under a limit: what would draw more draws that.

    Between two settings time is taken to be linear in the logarithm of power.

    Args:
        logs: Shape (..., 2, K, C).
        core_mhz: Core clock of each setting. Shape (C,).
        mem_mhz: Memory clock of each setting. Shape (C,).
    """
    if math.isinf(limit_w):
        return logs
    limit, logs = math.log(limit_w), logs.copy()
    for memory in np.unique(mem_mhz):
        ladder = np.flatnonzero(mem_mhz == memory)
        ladder = ladder[np.argsort(core_mhz[ladder], kind="stable")]
        rungs = logs[..., ladder]
        first = (rungs[..., [1], :, :] > limit).argmax(axis=-1)[..., None]
        is_held = (first > 0) & (np.arange(len(ladder)) >= first)
        low, high = (
            np.take_along_axis(rungs, np.broadcast_to(at, (*rungs.shape[:-1], 1)), -1)
            for at in (np.maximum(first - 1, 0), first)
        )
        rise = np.where(first > 0, high - low, 1.0)[..., [1], :, :]
        share = (limit - low[..., [1], :, :]) / rise
        between = low + share * (high - low)
        between[..., 1, :, :] = limit
        logs[..., ladder] = np.where(is_held, between, rungs)
    return logs


def capped(posterior: Posterior, core_mhz: Floats, mem_mhz: Floats, limit_w: float) -> Posterior:
    """Return what kernels cost under a limit, each by itself: what would draw more draws that.

    There the limit tells the power, and what the fit misses of it is made good by time.

    Args:
        core_mhz: Core clock of each setting. Shape (C,).
        mem_mhz: Memory clock of each setting. Shape (C,).
    """
    limit = math.log(limit_w)
    log_s, log_w = held(np.stack([posterior.log_s, posterior.log_w]), core_mhz, mem_mhz, limit_w)
    by_shared, by_kernel = posterior.by_shared.copy(), posterior.by_kernel.copy()
    discrepancy = posterior.discrepancy.copy()
    for memory in np.unique(mem_mhz):
        ladder = np.flatnonzero(mem_mhz == memory)
        ladder = ladder[np.argsort(core_mhz[ladder], kind="stable")]
        above = posterior.log_w[:, ladder] > limit
        # What draws more at the slowest clock already is left as it is.
        for k in np.flatnonzero(above.any(axis=1) & ~above[:, 0]).tolist():
            first = int(above[k].argmax())
            low, high = ladder[first - 1 : first + 1].tolist()
            at_limit = ladder[first:]
            rise = posterior.log_w[k, high] - posterior.log_w[k, low]
            share = (limit - posterior.log_w[k, low]) / rise
            faster = posterior.log_s[k, high] - posterior.log_s[k, low]
            per_power = float(np.clip(faster / rise, -_STEEPEST, 0.0))

            def between(values: Floats, k: int = k, share: float = share) -> Floats:
                ends = values[:, k, [low, high]]  # noqa: B023 - called within this round only
                mixed: Floats = ends[:, 0] + share * (ends[:, 1] - ends[:, 0])
                return mixed

            for moves, of in ((by_shared, posterior.by_shared), (by_kernel, posterior.by_kernel)):
                time, power = between(of)
                moves[0, k, at_limit], moves[1, k, at_limit] = time - per_power * power, 0.0
            time2, power2 = between(posterior.discrepancy)
            discrepancy[0, k, at_limit] = time2 + per_power**2 * (power2 + _SETTLES**2)
            discrepancy[1, k, at_limit] = _SETTLES**2
    return dataclasses.replace(
        posterior,
        log_s=log_s,
        log_w=log_w,
        by_shared=by_shared,
        by_kernel=by_kernel,
        discrepancy=discrepancy,
    )


def as_at_boost(
    posterior: Posterior, log_s: Floats | None, core_mhz: Floats, at_auto: Bools, peak_w: float
) -> Posterior:
    """Return a posterior in which what a peak of power holds takes what it took at boost.

    A peak bends time before it stops it, and how much the fit expects hangs on the power that it
    expects there. From where the peak holds a kernel to boost, time follows the clock.

    Args:
        log_s: Log time in s of kernels at boost, as they ran; ``nan`` where unknown. Shape (K,);
            ``None`` where none is known.
        core_mhz: Core clock of each setting. Shape (C,).
        at_auto: Which settings have the memory clock that auto has. Shape (C,).
        peak_w: What `capped` held kernels at.
    """
    if log_s is None or math.isinf(peak_w):
        return posterior
    at, highest_mhz = posterior.log_s.copy(), core_mhz[at_auto].max(initial=0.0)
    by_shared, by_kernel = posterior.by_shared.copy(), posterior.by_kernel.copy()
    discrepancy = posterior.discrepancy.copy()
    for k in np.flatnonzero(np.isfinite(log_s)).tolist():
        at_peak = np.flatnonzero(at_auto & (posterior.log_w[k] == math.log(peak_w)))
        reach = core_mhz[at_peak] - core_mhz[at_peak].min(initial=highest_mhz)
        share = reach / reach.max(initial=0.0) if reach.any() else np.ones(len(at_peak))
        at[k, at_peak] += share * (log_s[k] - at[k, at_peak])
        by_shared[0, k, at_peak] *= (1.0 - share)[:, None]
        by_kernel[0, k, at_peak] *= (1.0 - share)[:, None]
        own2 = share**2 * posterior.noise[0, k] ** 2
        discrepancy[0, k, at_peak] = (1.0 - share) ** 2 * discrepancy[0, k, at_peak] + own2
    return dataclasses.replace(
        posterior, log_s=at, by_shared=by_shared, by_kernel=by_kernel, discrepancy=discrepancy
    )
