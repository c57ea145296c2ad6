"""What a fitted model says of every kernel at every setting, conditioned on its residuals.

Shape letters: R rows, K kernels, N of them, C settings, S shared parameters, P parameters of a
kernel; a leading 2 is time and power.
"""

import math
from collections.abc import Sequence

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.parameters import CORE, Points, predicted_rows
from underclock.core.model.posterior import Posterior, capped
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.core.model.whitening import alike
from underclock.records import Clocks

_BATCH = 64  # kernels; bounds the memory that many settings take


def posterior_of(
    model: FittedModel,
    settings: Sequence[Clocks],
    *,
    temperature_c: float,
    limit_w: float,
) -> Posterior:
    """Predict every kernel at every setting.

    Args:
        settings: Locked clocks; a part left to auto runs at the fastest seen.
        temperature_c: Of all kernels.
        limit_w: Power that holds a kernel which draws more: the cap, where it runs alone; in a
            step, what the GPU lets none exceed; ``inf`` for nothing.
    """
    core_mhz, mem_mhz = clocks_of(model.rows, settings)
    shape = (2, len(model.rows.names), len(settings))
    log, discrepancy = np.empty(shape), np.empty(shape)
    by_shared = np.empty((*shape, len(model.parameters.shared)))
    by_kernel = np.empty((*shape, PER_KERNEL))
    for first in range(0, shape[1], _BATCH):
        some = np.arange(first, min(first + _BATCH, shape[1]))
        at = Points(
            kernel=np.repeat(some, len(settings)),
            core_mhz=np.tile(core_mhz, len(some)),
            mem_mhz=np.tile(mem_mhz, len(some)),
            temperature_c=np.full(len(some) * len(settings), temperature_c),
        )
        prediction = predicted_rows(model.parameters, at)
        log[:, some] = prediction.log.reshape(*log[:, some].shape)
        by_shared[:, some] = prediction.by_shared().reshape(*by_shared[:, some].shape)
        by_kernel[:, some] = prediction.by_kernel().reshape(*by_kernel[:, some].shape)
    for k in range(shape[1]):
        entries = log[:, k], by_shared[:, k], by_kernel[:, k]
        discrepancy[:, k] = _condition(model, k, (core_mhz, mem_mhz), *entries)
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


def _condition(
    model: FittedModel,
    k: int,
    clocks: tuple[Floats, Floats],
    log: Floats,
    by_shared: Floats,
    by_kernel: Floats,
) -> Floats:
    """Condition a kernel on the residuals of its rows: a Gaussian process of the discrepancy."""
    rows, every = model.rows, slice(*model.rows.bounds[k : k + 2].tolist())
    at_rows = rows.core_mhz[every], rows.mem_mhz[every]
    # One correlation for both quantities: where points lie does not depend on the quantity.
    to_rows, of_rows = alike(*clocks, *at_rows), alike(*at_rows, *at_rows)
    discrepancy = np.empty_like(log)
    scale2 = float(model.scale[k]) ** 2
    for c in range(2):
        near: slice | Ints = every
        common, among = to_rows, of_rows
        told = np.flatnonzero(rows.windows[c, every])
        if len(told) < len(among):
            near, common, among = every.start + told, common[:, told], among[np.ix_(told, told)]
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
    return discrepancy
