"""The most likely parameters, and how sure they are: Gauss-Newton on kernels and shared at once.

A kernel's parameters touch its own rows only, so the normal equations are an arrow: one small
block a kernel, bordered by the shared parameters. How large residuals are (`whitening.ErrorModel`),
and what kernels of a kind have in common, is estimated too.

Shape letters: R rows, K kernels, L rows of the kernel with most, S shared parameters, P parameters
of a kernel; a leading 2 is time and power.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from underclock.arrays import Bools, Floats
from underclock.core.model.parameters import (
    CORE,
    DRAM,
    FIXED,
    WORK,
    Points,
    Shared,
    predict,
    slopes,
)
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.core.model.whitening import ErrorModel, Whitening

_ITERATIONS = 25
_CONVERGED = 1e-4  # of the cost
_SETTLED = 0.05  # and no parameter still wanted to move further
_LONGEST_STEP = 1.5
_FREEDOM = 4.0  # a kernel's own scale leans on the others' as on this many of its rows
_KNOWN = 5  # kernels of a kind from which its habits are learned
_FEWEST_FOR_SERIAL = 5
_CLEARLY = 3.0  # log-likelihood by which a kernel must be explained better
_LEAST_SPREAD = np.array([0.4, 0.4, 1.0, 0.4])  # of the four parameters
_TAIL = 3.0  # degrees of freedom of the habits' Student's t
_STUCK = 1e6
_PLAIN = PER_KERNEL + 1  # rows of a kernel that leave little doubt what bounds it
_LEAN = 0.3  # on errors of half a per cent; keeps few rows from claiming less than they have
# What may bound a kernel: shares of core, DRAM and fixed time; and with one of them hardly there.
_BOUNDS = ((0.97, 0.3, 0.02), (0.4, 0.97, 0.02), (0.8, 0.8, 0.02), (0.5, 0.5, 0.4))
_WITHOUT = ((DRAM, (0.9, 0.1, 0.1)), (CORE, (0.1, 0.9, 0.1)))
_TYPICAL = {  # shares of a kernel's time and power at the fastest clocks, as logarithms
    CORE: (math.log(0.6), 1.3),
    DRAM: (math.log(0.4), 1.5),
    FIXED: (math.log(0.005), 2.5),
    WORK: (math.log(0.4), 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A fit.

    Attributes:
        rows: What it was fitted to.
        family: What the shared vector stands for.
        shared: Shape (S,).
        kernels: Shape (K, P).
        serial: Which kernels add their parts. Shape (K,).
        errors: Standard deviations of noise and discrepancy.
        scale: How much more, or less, each kernel leaves over than usual. Shape (K,).
        shared_cov: Covariance of the shared parameters. Shape (S, S).
        kernel_cov: Of each kernel's, the shared being known. Shape (K, P, P).
        gain: How each kernel's parameters move with the shared. Shape (K, P, S).
        residuals: Residuals, logarithms of measured over predicted. Shape (2, R).
        by_shared: Derivatives at the rows by the shared, kernels held. Shape (2, R, S).
        by_kernel: Derivatives at the rows by the kernel's own. Shape (2, R, P).
        others: Other parameters that explain a kernel's rows about as well. Shape (M, K, P).
        likely: How likely those are, against the best. Shape (M, K).
    """

    rows: Rows
    family: Shared
    shared: Floats
    kernels: Floats
    serial: Bools
    errors: ErrorModel
    scale: Floats
    shared_cov: Floats
    kernel_cov: Floats
    gain: Floats
    residuals: Floats
    by_shared: Floats
    by_kernel: Floats
    others: Floats
    likely: Floats


@dataclass(frozen=True, slots=True)
class _Linear:
    """The problem around one point, rows whitened so that discrepancy is independent in each.

    Attributes:
        residuals: Shape (2, K, L); zero where a kernel has fewer rows, as in the others.
        by_shared: Shape (2, K, L, S).
        by_kernel: Shape (2, K, L, P).
    """

    residuals: Floats
    by_shared: Floats
    by_kernel: Floats


class Fit:
    """One fit of rows: of all parameters, or of the kernels' own.

    Its work grows with K · L²: see `thin` for how many rows are worth it.
    """

    def __init__(self, rows: Rows, family: Shared) -> None:
        self.rows = rows
        self.family = family
        self.at = Points.of(rows)
        self.bounds = rows.bounds
        self.measured = np.stack([rows.log_s, rows.log_w])
        self.whitening = Whitening(rows)
        self._shared_mean = family.start()
        self._shared_precision = family.spread() ** -2.0
        self._prior()
        self.shared = self._shared_mean.copy()
        self.kernels = self._mean.copy()
        self.serial = np.zeros(len(rows.names), dtype=bool)
        self.errors = ErrorModel(noise=np.array([0.005, 0.01]), discrepancy=np.array([0.01, 0.01]))
        self.scale = np.ones(len(rows.names))

    def run(self) -> FittedModel:
        """Fit parameters, errors and habits in turn until they agree."""
        self._restart()
        self._converge()
        for _ in range(2):
            self._estimate_errors()
            self._restart()
            self._converge()
            self._learn_habits()
            self._choose_serial()
            self._converge()
        return self.solution()

    def run_holding(self, found: FittedModel) -> FittedModel:
        """Fit each kernel by itself; what they share is known from a fit of some of them."""
        self.shared, self.errors = found.shared, found.errors
        self._restart()
        self._learn_habits()
        self._choose_serial()
        self._converge_kernels()
        self._estimate_scale(self.whitening.whitened(self.measured - self._predicted()[0]))
        return self.solution(found.shared_cov)

    def _predicted(self) -> tuple[Floats, Floats]:
        return predict(self.family, self.shared, self.kernels, self.serial, self.at)

    def _slopes(self) -> Floats:
        return slopes(self.family, self.shared, self.kernels, self.serial, self.at)

    def _prior(self) -> None:
        """Lean each kernel on the usual shares of its own time and power."""
        rows, gpu = self.rows, self.family.base
        count = len(rows.names)
        fastest = np.zeros(count, dtype=np.int64)
        known = np.diff(self.bounds) > 0
        speed = rows.core_mhz * rows.mem_mhz
        for k in np.flatnonzero(known).tolist():
            low, high = self.bounds[k], self.bounds[k + 1]
            fastest[k] = low + int(np.argmax(speed[low:high]))
        core, mem = rows.core_mhz[fastest], rows.mem_mhz[fastest]
        # Nobody measured a kernel without rows: any size will do, it stays as unsure as the prior.
        log_s = rows.log_s[fastest]
        log_w = rows.log_w[fastest]
        volts = gpu.floor_v
        unit = np.stack(
            [log_s + np.log(core), log_s + np.log(mem), log_s, log_s + log_w - 2 * math.log(volts)],
            axis=1,
        )
        mean, spread = np.array([_TYPICAL[p] for p in range(PER_KERNEL)]).T
        self._unit = unit
        self._mean = unit + mean
        self._spread = np.tile(spread, (count, 1))

    def _linear(self) -> _Linear:
        at, by_kernel = self._predicted()
        return _Linear(
            self.whitening.whitened(self.measured - at),
            self.whitening.whitened(self._slopes()),
            self.whitening.whitened(by_kernel),
        )

    def _normal(self, linear: _Linear, weights: Floats) -> tuple[Floats, ...]:
        """Return blocks of the normal equations: A (K,P,P), B (K,P,S), C (S,S), their sides."""
        weighed = linear.by_kernel.swapaxes(-1, -2) * weights[..., None, :]
        a = (weighed @ linear.by_kernel).sum(axis=0)
        b = (weighed @ linear.by_shared).sum(axis=0)
        side_k = (weighed @ linear.residuals[..., None]).sum(axis=0)[..., 0]
        flat = linear.by_shared.reshape(-1, linear.by_shared.shape[-1])
        weighed_flat = flat.T * weights.ravel()
        c = weighed_flat @ flat
        side_s = weighed_flat @ linear.residuals.ravel()
        precision = self._pull()
        a += precision[:, :, None] * np.eye(PER_KERNEL)
        c += np.diag(self._shared_precision)
        side_k += precision * (self._mean - self.kernels)
        side_s += self._shared_precision * (self._shared_mean - self.shared)
        return a, b, c, side_k, side_s

    def _cost(self) -> float:
        away = (self.shared - self._shared_mean) ** 2
        return float(self._kernel_costs().sum() + 0.5 * (self._shared_precision * away).sum())

    def _converge(self) -> None:
        """Step until nothing moves."""
        damping, cost = 1e-3, self._cost()
        for _ in range(_ITERATIONS):
            weights = self.whitening.weights(self.errors, self.scale)
            a, b, c, side_k, side_s = self._normal(self._linear(), weights)
            before = self.shared, self.kernels
            for _ in range(6):
                step_s, step_k = _arrow(a, b, c, side_k, side_s, damping)
                longest = max(float(np.abs(step_s).max()), float(np.abs(step_k).max()))
                shorter = min(1.0, _LONGEST_STEP / max(longest, 1e-12))
                self.shared = before[0] + shorter * step_s
                self.kernels = before[1] + shorter * step_k
                now = self._cost()
                if now <= cost:
                    break
                damping = max(damping, 1e-6) * 10
            else:
                self.shared, self.kernels = before
                return
            gained, cost = cost - now, now
            damping /= 5
            if gained < _CONVERGED * (1.0 + abs(cost)) and longest < _SETTLED:
                return

    def _estimate_errors(self) -> None:
        """Find the errors under which the residuals are most likely."""
        linear = self._linear()

        def unlikely(logs: Floats) -> float:
            sizes = np.exp(np.clip(logs, -9.5, 0.0))
            errors = ErrorModel(noise=sizes[:2], discrepancy=sizes[2:])
            weights = self.whitening.weights(errors, self.scale)
            a, b, c, *_ = self._normal(linear, weights)
            rest = c - np.einsum("kps,kpt->st", b, np.linalg.solve(a, b))
            spent = np.linalg.slogdet(a)[1].sum() + np.linalg.slogdet(rest)[1]
            fit = (weights * linear.residuals**2).sum() - np.log(
                weights[:, self.whitening.real]
            ).sum()
            return float(0.5 * (fit + spent) + _LEAN * ((logs + 5.0) ** 2).sum())

        start = np.log(np.concatenate([self.errors.noise, self.errors.discrepancy]))
        found = minimize(unlikely, start, method="Powell", options={"maxfev": 120, "ftol": 1e-3})
        sizes = np.exp(np.clip(found.x, -9.5, 0.0))
        self.errors = ErrorModel(noise=sizes[:2], discrepancy=sizes[2:])
        self._estimate_scale(linear.residuals)

    def _estimate_scale(self, residuals: Floats) -> None:
        """Find by how much each kernel is off more than the others."""
        weights = self.whitening.weights(self.errors, np.ones_like(self.scale))
        surprise = (weights * residuals**2).sum(axis=(0, 2))
        freedom = np.maximum(2.0 * np.diff(self.bounds) - PER_KERNEL, 0.0)
        self.scale = np.sqrt((_FREEDOM + surprise) / (_FREEDOM + freedom))

    def _learn_habits(self) -> None:
        """Let kernels of a kind lean on one another."""
        share = self.kernels - self._unit
        unsure2 = np.diagonal(np.linalg.inv(self._curvature()), axis1=1, axis2=2)
        known = np.diff(self.bounds) > 0
        for kind in np.unique(self.rows.kinds):
            mine = (self.rows.kinds == kind) & known
            if mine.sum() < _KNOWN:
                continue
            middle = np.median(share[mine], axis=0)
            apart = 1.5 * np.median(np.abs(share[mine] - middle), axis=0)
            # Kernels whose rows do not tell lie where they were expected: no sign they are alike.
            spread = np.sqrt(apart**2 + np.median(unsure2[mine], axis=0))
            of_kind = self.rows.kinds == kind
            self._mean[of_kind] = self._unit[of_kind] + middle
            self._spread[of_kind] = np.maximum(spread, _LEAST_SPREAD)

    def _restart(self) -> None:
        """Let each kernel try out what else may bound it, and keep what explains it best.

        What bounds a kernel hides the rest of it: from a wrong guess no small step leads out.
        """
        best, cost = self.kernels, self._kernel_costs()
        for shares in _BOUNDS:
            self._guess(shares)
            self._converge_kernels()
            now = self._kernel_costs()
            best = np.where((now < cost)[:, None], self.kernels, best)
            cost = np.minimum(now, cost)
        self.kernels = best

    def _guess(self, shares: tuple[float, float, float]) -> None:
        """Begin with shares of core, DRAM and fixed time."""
        self.kernels = self._mean.copy()
        parts = [CORE, DRAM, FIXED]
        self.kernels[:, parts] = self._unit[:, parts] + np.log(shares)

    def _others(self) -> tuple[Floats, Floats]:
        """Return what else may explain each kernel's rows, and how likely that is."""
        if np.diff(self.bounds).min() >= _PLAIN:
            return np.empty((0, *self.kernels.shape)), np.empty((0, len(self.kernels)))
        best, least = self.kernels, self._kernel_costs()
        found, likely = [], []
        for held, shares in (*((None, shares) for shares in _BOUNDS), *_WITHOUT):
            self._guess(shares)
            self._converge_kernels(held)
            odds = np.exp(np.clip(least - self._kernel_costs(), -50.0, 0.0))
            found.append(self.kernels)
            likely.append(odds / (1.0 + odds))
        self.kernels = best
        return np.array(found), np.array(likely)

    def _curvature(self) -> Floats:
        """Return the precision of each kernel's parameters, the shared held. Shape (K, P, P)."""
        _, by_kernel = self._predicted()
        by = self.whitening.whitened(by_kernel)
        weights = self.whitening.weights(self.errors, self.scale)
        found: Floats = (by.swapaxes(-1, -2) * weights[..., None, :] @ by).sum(axis=0)
        return found + self._pull()[:, :, None] * np.eye(PER_KERNEL)

    def _choose_serial(self) -> None:
        """Let a kernel add its parts where that explains its rows clearly better."""
        overlapping = self._kernel_costs()
        kept = self.shared, self.kernels.copy(), self.serial.copy()
        self.serial = ~self.serial
        self._converge_kernels()
        other = self._kernel_costs()
        enough = np.diff(self.bounds) >= _FEWEST_FOR_SERIAL
        switch = enough & (other < overlapping - _CLEARLY)
        self.kernels = np.where(switch[:, None], self.kernels, kept[1])
        self.serial = np.where(switch, self.serial, kept[2])

    def _kernel_costs(self) -> Floats:
        residuals = self.whitening.whitened(self.measured - self._predicted()[0])
        own = (self.whitening.weights(self.errors, self.scale) * residuals**2).sum(axis=(0, 2))
        found: Floats = 0.5 * own + self._unusual()
        return found

    def _unusual(self) -> Floats:
        """Return what it costs each kernel to be unlike others of its kind. Shape (K,).

        Student's t: a kernel may be quite different, and then is left alone.
        """
        away = ((self.kernels - self._mean) / self._spread) ** 2
        found: Floats = (0.5 * _TAIL * np.log1p(away / _TAIL)).sum(axis=1)
        return found

    def _pull(self) -> Floats:
        """Return how strongly each parameter is drawn to the usual. Shape (K, P)."""
        away = ((self.kernels - self._mean) / self._spread) ** 2
        found: Floats = self._spread**-2.0 / (1.0 + away / _TAIL)
        return found

    def _converge_kernels(self, held: int | None = None) -> None:
        """Step each kernel by itself, the shared parameters held, and maybe one of its own."""
        damping = np.full(len(self.rows.names), 1e-2)
        cost = self._kernel_costs()
        weights = self.whitening.weights(self.errors, self.scale)
        for _ in range(_ITERATIONS):
            at, by_kernel = self._predicted()
            if held is not None:
                by_kernel[..., held] = 0.0
            residuals, by = (
                self.whitening.whitened(self.measured - at),
                self.whitening.whitened(by_kernel),
            )
            precision = self._pull()
            weighed = by.swapaxes(-1, -2) * weights[..., None, :]
            a = (weighed @ by).sum(axis=0) + precision[:, :, None] * np.eye(PER_KERNEL)
            side = (weighed @ residuals[..., None]).sum(axis=0)[..., 0]
            side += precision * (self._mean - self.kernels)
            if held is not None:
                side[:, held] = 0.0
            diagonal = np.einsum("kpp->kp", a) * damping[:, None]
            step = np.linalg.solve(a + diagonal[:, :, None] * np.eye(PER_KERNEL), side[..., None])
            step = np.clip(step[..., 0], -_LONGEST_STEP, _LONGEST_STEP)
            before = self.kernels
            self.kernels = before + step
            now = self._kernel_costs()
            better = now <= cost
            self.kernels = np.where(better[:, None], self.kernels, before)
            damping = np.where(better, damping / 5, damping * 10)
            gained = np.where(better, cost - now, 0.0)
            cost = np.where(better, now, cost)
            if bool(((better & (gained < _CONVERGED)) | (damping > _STUCK)).all()):
                return

    def solution(self, shared_cov: Floats | None = None) -> FittedModel:
        """Return what was found; what is shared is known by these rows, unless told otherwise."""
        at, by_kernel = self._predicted()
        by_shared = self._slopes()
        residuals = self.measured - at
        linear = _Linear(
            self.whitening.whitened(residuals),
            self.whitening.whitened(by_shared),
            self.whitening.whitened(by_kernel),
        )
        a, b, c, *_ = self._normal(linear, self.whitening.weights(self.errors, self.scale))
        kernel_cov = np.asarray(np.linalg.inv(a), dtype=np.float64)
        gain = -kernel_cov @ b
        if shared_cov is None:
            shared_cov = np.linalg.inv(c + np.einsum("kps,kpt->st", b, gain))
        others, likely = self._others()
        return FittedModel(
            rows=self.rows,
            family=self.family,
            shared=self.shared,
            kernels=self.kernels,
            serial=self.serial,
            errors=self.errors,
            scale=self.scale,
            shared_cov=shared_cov,
            kernel_cov=kernel_cov,
            gain=gain,
            residuals=residuals,
            by_shared=by_shared,
            by_kernel=by_kernel,
            others=others,
            likely=likely,
        )


def _arrow(
    a: Floats, b: Floats, c: Floats, side_k: Floats, side_s: Floats, damping: float
) -> tuple[Floats, Floats]:
    """Solve the damped normal equations; return steps of the shared and of the kernels."""
    damped = a + damping * np.einsum("kpp->kp", a)[:, :, None] * np.eye(PER_KERNEL)
    corner = c + damping * np.diag(np.diag(c))
    solved = np.linalg.solve(damped, np.concatenate([b, side_k[..., None]], axis=-1))
    through, own = solved[..., :-1], solved[..., -1]
    rest = corner - np.einsum("kps,kpt->st", b, through)
    step_s = np.linalg.solve(rest, side_s - np.einsum("kps,kp->s", b, own))
    return step_s, own - through @ step_s
