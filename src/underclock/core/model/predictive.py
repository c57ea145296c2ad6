"""The posterior of a fitted model: predict every setting, and condition it on the residuals.

Shape letters: R rows, N kernels of a batch, C settings, S shared parameters, P parameters of a
kernel; a leading 2 is time and power.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.capped import capped
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.own_heat import Warmth
from underclock.core.model.parameters import CORE, Parameters, Points, predict
from underclock.core.model.posterior import Posterior
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.core.model.whitening import alike
from underclock.records import Clocks

_BATCH = 64  # kernels; bounds the memory that many settings take
_HEAT_ROUNDS = 3  # of power and temperature, each of which follows the other


def posterior_of(
    model: FittedModel,
    settings: Sequence[Clocks],
    *,
    temperature_c: Warmth | float,
    limit_w: float,
) -> Posterior:
    """Predict every kernel at every setting.

    Args:
        model: The fit.
        settings: Locked clocks; a part left to auto runs at the fastest seen.
        temperature_c: One for all kernels, or the heat that each has by itself.
        limit_w: Power that holds a kernel which draws more: the cap, where it runs alone; in a
            step, what the GPU lets none exceed; ``inf`` for nothing.
    """
    core_mhz, mem_mhz = clocks_of(model.rows, settings)
    warmth = temperature_c
    if not isinstance(warmth, Warmth):
        warmth = Warmth.steady(len(model.rows.names), warmth)
    where = _Where(core_mhz, mem_mhz, warmth)
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
    posterior = Posterior(
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
    if not math.isfinite(limit_w):
        return posterior
    return capped(posterior, core_mhz, mem_mhz, limit_w)


def clocks_of(rows: Rows, settings: Sequence[Clocks]) -> tuple[Floats, Floats]:
    """Return the clocks that settings stand for: auto is the fastest seen. Shapes (C,)."""
    ceiling = rows.ceiling_mhz
    if not math.isfinite(ceiling):
        ceiling = float(rows.core_mhz.max())
        ceiling = max([ceiling, *[float(s.core_mhz) for s in settings if s.core_mhz]])
    core = np.array([min(float(s.core_mhz or math.inf), ceiling) for s in settings])
    mem = np.array([float(s.mem_mhz or rows.auto_mem_mhz) for s in settings])
    return core, mem


@dataclass(frozen=True, slots=True)
class _Where:
    """Where to predict: clocks of every setting, (C,), and how warm it is."""

    core_mhz: Floats
    mem_mhz: Floats
    warmth: Warmth

    def points(self, kernels: Ints, power_w: Floats | float) -> Points:
        """Return all settings of some kernels, as warm as they are at some power.

        Args:
            kernels: Shape (N,).
            power_w: Shape (N, C), or one for all.
        """
        shape = len(kernels), len(self.core_mhz)
        warm_c = self.warmth.at(kernels, power_w)
        return Points(
            kernel=np.repeat(kernels, shape[1]),
            core_mhz=np.tile(self.core_mhz, len(kernels)),
            mem_mhz=np.tile(self.mem_mhz, len(kernels)),
            temperature_c=np.broadcast_to(warm_c, shape).ravel(),
        )

    def own_heat(self, parameters: Parameters, kernels: Ints) -> Points:
        """Return all settings of some kernels, as warm as what they draw there makes the GPU."""
        at = self.points(kernels, 0.0)
        # What is drawn follows the temperature by some per cent, so this settles at once.
        for _ in range(_HEAT_ROUNDS if self.warmth.c_per_w else 0):
            power_w = np.exp(predict(parameters, at).log[1])
            at = self.points(kernels, power_w.reshape(len(kernels), -1))
        return at


@dataclass(frozen=True, slots=True)
class _Predicted:
    """What the parameters alone say of some kernels at all settings.

    Attributes:
        kernels: Which they are. Shape (N,).
        core_mhz: Clocks they run at. Shape (C,).
        mem_mhz: Shape (C,).
        log: Shape (2, N, C).
        by_shared: Shape (2, N, C, S).
        by_kernel: Shape (2, N, C, P).
    """

    kernels: Ints
    core_mhz: Floats
    mem_mhz: Floats
    log: Floats
    by_shared: Floats
    by_kernel: Floats


def _predicted(model: FittedModel, kernels: Ints, where: _Where) -> _Predicted:
    """Predict some kernels at all settings, the residuals of their rows not yet looked at."""
    shape = (2, len(kernels), len(where.core_mhz))
    at = where.own_heat(model.parameters, kernels)
    prediction = predict(model.parameters, at)
    return _Predicted(
        kernels=kernels,
        mem_mhz=where.mem_mhz,
        core_mhz=where.core_mhz,
        log=prediction.log.reshape(shape),
        by_shared=prediction.by_shared().reshape(*shape, len(model.parameters.shared)),
        by_kernel=prediction.by_kernel().reshape(*shape, PER_KERNEL),
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
    common = alike(predicted.core_mhz, predicted.mem_mhz, core_rows, mem_rows)
    among = alike(core_rows, mem_rows, core_rows, mem_rows)
    log, by_shared = predicted.log[:, i].copy(), predicted.by_shared[:, i].copy()
    by_kernel = predicted.by_kernel[:, i].copy()
    discrepancy = np.empty_like(log)
    everywhere = near, common, among
    scale2 = float(model.scale[k]) ** 2
    for c in range(2):
        near, common, among = everywhere
        told = np.flatnonzero(rows.windows[c, near])
        if len(told) < len(core_rows):
            near, common, among = told + near.start, common[:, told], among[np.ix_(told, told)]
        shared2 = scale2 * float(model.errors.discrepancy[c]) ** 2
        noise2 = scale2 * float(model.errors.noise[c]) ** 2 / rows.windows[c, near]
        covariance = shared2 * among + np.diag(noise2)
        known = shared2 * common
        weights = np.linalg.solve(covariance, known.T).T
        log[c] += weights @ model.residuals[c, near]
        row_shared = model.by_shared[c, near] + np.einsum(
            "rp,ps->rs", model.by_kernel[c, near], model.gain[k]
        )
        by_shared[c] += by_kernel[c] @ model.gain[k] - weights @ row_shared
        by_kernel[c] -= weights @ model.by_kernel[c, near]
        explained = np.einsum("cr,cr->c", weights, known)
        discrepancy[c] = np.maximum(shared2 - explained, 0.0)
        if c == 0 and rows.apart is not None:
            # What rows in the step have in common no more of them take away: what the estimate
            # makes of it, through the residuals and through the kernel's parameters.
            off = rows.apart[near] * model.by_kernel[c, near, CORE]
            among_off = np.linalg.solve(covariance, off)
            moved = model.kernel_cov[k] @ (model.by_kernel[c, near].T @ among_off)
            through = weights @ off + by_kernel[c] @ moved
            discrepancy[c] += through**2
    return log, by_shared, by_kernel, discrepancy
