"""What a fitted model says of every kernel at every setting, conditioned on its residuals.

Inside a step all kernels share one temperature. Alone, a kernel that is measured for longer than
the GPU takes to warm up meets its own: at a lock that saves power it is cooler, and leaks less. One
that is measured for a second meets that of its neighbours. What was read tells which.

Shape letters: R rows, K kernels, N of them, C settings, S shared parameters, P parameters of a
kernel; a leading 2 is time and power.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.parameters import CORE, Parameters, Points, predict
from underclock.core.model.posterior import Posterior, capped
from underclock.core.model.rows import PER_KERNEL, STEADY_C, Rows
from underclock.core.model.whitening import alike
from underclock.records import Clocks, SampleSet

_BATCH = 64  # kernels; bounds the memory that many settings take
_HEAT_ROUNDS = 3  # of power and temperature, each of which follows the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """Temperature of every kernel: a line in the power it draws.

    Attributes:
        at_rest_c: Where the line begins, of each kernel. Shape (K,).
        c_per_w: Its slope.
    """

    at_rest_c: Floats
    c_per_w: float = 0.0

    @classmethod
    def steady(cls, kernels: int, temperature_c: float) -> Self:
        """Return one temperature for all, whatever they draw."""
        return cls(at_rest_c=np.full(kernels, temperature_c))

    @classmethod
    def own(cls, sample_set: SampleSet) -> Self:
        """Return the heat that kernels have by themselves, as it was read.

        The slope is that within kernels, so that kernels measured for a second do not hide it.
        """
        index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
        known = [s for s in sample_set.samples if s.temperature_c is not None]
        if not known:
            return cls.steady(len(index), STEADY_C)
        place = np.array([index[s.kernel] for s in known])
        power_w = np.array([s.energy_j / s.time_s for s in known])
        warm_c = np.array([s.temperature_c for s in known], dtype=np.float64)
        mean_w, mean_c = (_means(place, each, len(index)) for each in (power_w, warm_c))
        off_w = power_w - mean_w[place]
        drawn2 = float(off_w @ off_w)
        slope = max(0.0, float(off_w @ (warm_c - mean_c[place])) / drawn2) if drawn2 else 0.0
        at_rest_c = mean_c - slope * mean_w
        # A kernel of which no temperature was read is as warm as the others.
        return cls(
            at_rest_c=np.where(np.isfinite(at_rest_c), at_rest_c, np.nanmean(at_rest_c)),
            c_per_w=slope,
        )

    def at(self, kernels: Ints, power_w: Floats | float) -> Floats:
        """Return the temperature of kernels, (N,), in °C in the shape of their power, (N, C)."""
        warm_c: Floats = self.at_rest_c[kernels][:, None] + self.c_per_w * np.asarray(power_w)
        return warm_c


def _means(place: Ints, values: Floats, count: int) -> Floats:
    """Return the mean of the values of each kernel, ``nan`` of none. Shape (K,)."""
    with np.errstate(invalid="ignore"):
        means: Floats = np.bincount(place, values, count) / np.bincount(place, minlength=count)
    return means


def posterior_of(
    model: FittedModel,
    settings: Sequence[Clocks],
    *,
    temperature_c: Warmth | float,
    limit_w: float,
) -> Posterior:
    """Predict every kernel at every setting.

    Args:
        settings: Locked clocks; a part left to auto runs at the fastest seen.
        temperature_c: One for all kernels, or the heat that each has by itself.
        limit_w: Power that holds a kernel which draws more: the cap, where it runs alone; in a
            step, what the GPU lets none exceed; ``inf`` for nothing.
    """
    core_mhz, mem_mhz = clocks_of(model.rows, settings)
    warmth = temperature_c
    if not isinstance(warmth, Warmth):
        warmth = Warmth.steady(len(model.rows.names), warmth)
    shape = (2, len(model.rows.names), len(settings))
    log, discrepancy = np.empty(shape), np.empty(shape)
    by_shared = np.empty((*shape, len(model.parameters.shared)))
    by_kernel = np.empty((*shape, PER_KERNEL))
    for first in range(0, shape[1], _BATCH):
        some = np.arange(first, min(first + _BATCH, shape[1]))
        at = _warmed(model.parameters, some, (core_mhz, mem_mhz), warmth)
        prediction = predict(model.parameters, at)
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


def _warmed(
    parameters: Parameters, kernels: Ints, clocks: tuple[Floats, Floats], warmth: Warmth
) -> Points:
    """Return all settings of some kernels, as warm as what they draw there makes the GPU."""
    shape = len(kernels), len(clocks[0])

    def points(power_w: Floats | float) -> Points:
        return Points(
            kernel=np.repeat(kernels, shape[1]),
            core_mhz=np.tile(clocks[0], len(kernels)),
            mem_mhz=np.tile(clocks[1], len(kernels)),
            temperature_c=np.broadcast_to(warmth.at(kernels, power_w), shape).ravel(),
        )

    at = points(0.0)
    # What is drawn follows the temperature by some per cent, so this settles at once.
    for _ in range(_HEAT_ROUNDS if warmth.c_per_w else 0):
        at = points(np.exp(predict(parameters, at).log[1]).reshape(shape))
    return at


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
