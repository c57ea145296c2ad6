"""Fit the shared physics of a GPU model, and of each kernel on it, to a measured sweep.

Shared by all kernels: how sharply time's parts overlap, power and efficiency of every memory
clock, voltage above its floor, leakage, clock tree, energy of DRAM traffic. Four constants of a
kernel: core cycles, DRAM cycles, time no clock changes, switching energy; and whether its core and
memory parts overlap or add. Everything is fitted on logarithms, so a residual is a relative error.

Rows at the power cap are left out of the fit: their clocks are not the asked ones. They are
predicted with the cap, and count in the errors.

Shape letters: R rows, K kernels, P parameters.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.calibration.sweep import (
    PER_KERNEL,
    FixedTimePrior,
    Sweep,
    SweepFit,
    fit_kernel,
    kernel_of,
)
from underclock.core.sampling.initial_design import greedy_d_optimal
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import boost_mhz, busy_w, duration_s

_FOLDS = 5
_APART = 0.15  # core clocks closer than this, as a ratio, tell much the same
_REPETITION = 1e6  # more than any row tells
_KNOWN = 1e-3  # information on a constant before any row


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanErrors:
    """Mean absolute relative errors of time and power, as fractions, over so many rows."""

    time: float
    power: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a sweep says of a GPU.

    Attributes:
        dram_j_per_mcycle: Energy of DRAM traffic per million DRAM cycles.
        kernels: Constants by kernel name.
        limit_w: Power at which rows settle when capped.
    """

    gpu: GpuConstants
    dram_j_per_mcycle: float
    kernels: dict[str, KernelConstants]
    limit_w: float


def calibrate(sweep: Sweep, start: GpuConstants) -> Calibrated:
    """Fit shared and per-kernel constants to a sweep.

    Args:
        start: Where to begin, and the constants no sweep can tell: voltage floor, board, heat,
            boost. Its memory points say which memory clocks there are.
    """
    free = sweep.only(np.flatnonzero(sweep.free))
    fit = SweepFit(base=start, sweep=free, serial=np.zeros(len(sweep.kernels), dtype=bool))
    shared, kernels = fit.solve(fit.shared_start(), fit.kernel_start())
    # A kernel adds its parts where that explains it better; then fit once more.
    fit = dataclasses.replace(fit, serial=fit.better_serial(shared))
    shared, kernels = fit.solve(shared, kernels)
    gpu, per_mcycle_j = fit.gpu(shared)
    constants = {
        name: kernel_of(kernels[k], per_mcycle_j, serial=bool(fit.serial[k]))
        for k, name in enumerate(sweep.kernels)
    }
    capped_w = sweep.power_w[sweep.capped]
    return Calibrated(
        gpu=gpu,
        dram_j_per_mcycle=per_mcycle_j,
        kernels=constants,
        limit_w=float(np.median(capped_w)) if len(capped_w) else sweep.limit_w,
    )


def held_out(
    sweep: Sweep,
    start: GpuConstants,
    points: int,
    progress: Callable[[float], None] | None = None,
) -> MeanErrors:
    """Return errors on kernels that took no part in fitting the shared constants.

    Kernels are left out in five folds; of each left-out kernel, a few rows fit its own constants
    and the others are predicted.
    """
    kernels = np.arange(len(sweep.kernels))
    parts: list[MeanErrors] = []
    folds = min(_FOLDS, len(kernels))
    for fold in range(folds):
        out = kernels % _FOLDS == fold
        keep = np.flatnonzero(~out[sweep.kernel])
        names = [name for k, name in enumerate(sweep.kernels) if not out[k]]
        rank = np.cumsum(~out) - 1
        rest = dataclasses.replace(
            sweep.only(keep), kernels=tuple(names), kernel=rank[sweep.kernel[keep]]
        )
        known = calibrate(rest, start)
        parts += [part for _, part in check(known, sweep, points, np.flatnonzero(out))]
        if progress is not None:
            progress((fold + 1) / folds)
    return pooled(parts)


def check(
    known: Calibrated,
    sweep: Sweep,
    points: int,
    kernels: Ints | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[tuple[str, MeanErrors]]:
    """Predict each kernel from a few of its rows; return name and errors on its other rows.

    Args:
        kernels: Which kernels, by index; by default all.
    """
    chosen = np.arange(len(sweep.kernels)) if kernels is None else kernels
    fixed_time = FixedTimePrior.of(known.gpu, list(known.kernels.values()))
    results = []
    for i, k in enumerate(chosen.tolist()):
        if progress is not None:
            progress(i / len(chosen))
        rows = np.flatnonzero(sweep.kernel == k)
        usable = rows[sweep.free[rows]]
        picked = usable[design(known, sweep.only(usable), points)]
        rest = np.setdiff1d(rows, picked)
        if len(rest) == 0:
            continue
        name, per_mcycle_j = sweep.kernels[k], known.dram_j_per_mcycle
        vector, serial = fit_kernel(known.gpu, per_mcycle_j, sweep.one(picked), fixed_time)
        own = {name: kernel_of(vector, per_mcycle_j, serial=serial)}
        results.append((name, errors_of(dataclasses.replace(known, kernels=own), sweep, rest)))
    return results


def pooled(parts: Sequence[MeanErrors]) -> MeanErrors:
    """Return the errors of all parts together, weighed by their rows."""
    rows = sum(part.rows for part in parts)
    return MeanErrors(
        time=math.fsum(part.time * part.rows for part in parts) / rows,
        power=math.fsum(part.power * part.rows for part in parts) / rows,
        rows=rows,
    )


def design(known: Calibrated, sweep: Sweep, points: int) -> Ints:
    """Choose which rows tell most about a kernel not yet known. Shape (points,).

    Each next row is the one that adds most information about the four constants, averaged over the
    kernels that are known.
    """
    rows = sweep.one(np.arange(len(sweep.kernel)))
    derivatives = [
        SweepFit(
            base=known.gpu,
            sweep=rows,
            serial=np.array([constants.serial]),
            per_mcycle_j=known.dram_j_per_mcycle,
        ).derivatives(constants)
        for constants in known.kernels.values()
    ]

    def repetition(chosen: int) -> Floats:
        # Where the model is off, it is off alike at like clocks: do not ask there twice.
        near = np.abs(np.log(sweep.core_mhz / sweep.core_mhz[chosen])) < _APART
        return np.where(near, _REPETITION, 0.0)

    return greedy_d_optimal(
        np.stack(derivatives, axis=1), _KNOWN * np.eye(PER_KERNEL), points, penalty=repetition
    )


def predict(known: Calibrated, sweep: Sweep, rows: Ints) -> tuple[Floats, Floats]:
    """Return time in s and power in W of rows, the cap included. Shapes (R,)."""
    time_s, power_w = np.empty(len(rows)), np.empty(len(rows))
    gpu = known.gpu
    for i, row in enumerate(rows.tolist()):
        kernel = known.kernels[sweep.kernels[int(sweep.kernel[row])]]
        asked, mem = float(sweep.core_mhz[row]), float(sweep.mem_mhz[row])
        warm_c = gpu.ambient_c + gpu.c_per_w * float(sweep.power_w[row])
        top = boost_mhz(gpu, warm_c)
        ladder = np.arange(min(200.0, top), top + 1.0, 5.0) if math.isnan(asked) else None
        if ladder is None:
            ladder = np.append(np.arange(min(200.0, asked), asked, 5.0), asked)
        drawn = busy_w(gpu, kernel, ladder, np.full_like(ladder, mem), warm_c)
        fits = np.flatnonzero(drawn <= known.limit_w)
        at = int(fits[-1]) if len(fits) else 0
        time_s[i] = duration_s(gpu, kernel, float(ladder[at]), mem)
        power_w[i] = drawn[at]
    return time_s, power_w


def errors_of(known: Calibrated, sweep: Sweep, rows: Ints) -> MeanErrors:
    """Return the errors of predicting rows."""
    time_s, power_w = predict(known, sweep, rows)
    return MeanErrors(
        time=float(np.mean(np.abs(time_s / sweep.time_s[rows] - 1.0))),
        power=float(np.mean(np.abs(power_w / sweep.power_w[rows] - 1.0))),
        rows=len(rows),
    )
