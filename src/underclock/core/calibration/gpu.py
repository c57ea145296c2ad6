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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.calibration.sweep import NEAR_CAP, PER_KERNEL, FixedTimePrior, Sweep, SweepFit
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.power import busy_w
from underclock.physics.thermal import boost_mhz
from underclock.physics.timing import duration_s

_FOLDS = 5
_APART = 0.15  # core clocks closer than this, as a ratio, tell much the same
_REPETITION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanErrors:
    """Mean absolute relative errors, as fractions.

    Attributes:
        time: Of time.
        power: Of power.
        rows: Over how many rows.
    """

    time: float
    power: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a sweep says of a GPU.

    Attributes:
        gpu: Shared constants.
        dram_j_per_mcycle: Energy of DRAM traffic per million DRAM cycles.
        kernels: Constants by kernel name.
        fixed_time: What these kernels are like.
        limit_w: Power at which rows settle when capped.
    """

    gpu: GpuConstants
    dram_j_per_mcycle: float
    kernels: dict[str, KernelConstants]
    fixed_time: FixedTimePrior
    limit_w: float


def calibrate(sweep: Sweep, start: GpuConstants) -> Calibrated:
    """Fit shared and per-kernel constants to a sweep.

    Args:
        sweep: The rows.
        start: Where to begin, and the constants no sweep can tell: voltage floor, board, heat,
            boost. Its memory points say which memory clocks there are.
    """
    serial = np.zeros(len(sweep.kernels), dtype=bool)
    rows = np.flatnonzero(sweep.free)
    fit = SweepFit(start, sweep.only(rows), serial)
    shared, kernels = fit.solve(fit.shared_start(), fit.kernel_start())
    # A kernel adds its parts where that explains it better; then fit once more.
    serial = fit.better_serial(shared, kernels)
    fit = SweepFit(start, sweep.only(rows), serial)
    shared, kernels = fit.solve(shared, kernels)
    gpu, per_mcycle_j = fit.gpu(shared)
    constants = {
        name: fit.kernel(kernels[k], per_mcycle_j, serial=bool(serial[k]))
        for k, name in enumerate(sweep.kernels)
    }
    capped = sweep.power_w >= NEAR_CAP * sweep.limit_w
    settled_w = float(np.median(sweep.power_w[capped])) if capped.any() else sweep.limit_w
    return Calibrated(
        gpu=gpu,
        dram_j_per_mcycle=per_mcycle_j,
        kernels=constants,
        fixed_time=FixedTimePrior.of(gpu, list(constants.values())),
        limit_w=settled_w,
    )


def fit_kernel(found: Calibrated, sweep: Sweep, rows: Ints) -> KernelConstants:
    """Fit one kernel's constants to a few of its rows, the shared constants being known.

    Args:
        found: Shared constants.
        sweep: The rows.
        rows: Indices of rows of one kernel.
    """
    few = sweep.only(rows)
    few = dataclasses.replace(few, kernels=("one",), kernel=np.zeros(len(rows), dtype=np.int64))
    ways = []
    for serial in (False, True):
        fit = SweepFit(found.gpu, few, np.array([serial]), per_mcycle_j=found.dram_j_per_mcycle)
        cost, kernels = fit.solve_kernels(found.fixed_time)
        ways.append((cost, fit.kernel(kernels[0], found.dram_j_per_mcycle, serial=serial)))
    return min(ways, key=lambda way: way[0])[1]


def held_out(sweep: Sweep, start: GpuConstants, points: int) -> MeanErrors:
    """Return errors on kernels that took no part in fitting the shared constants.

    Kernels are left out in five folds; of each left-out kernel, a few rows fit its own constants
    and the others are predicted.
    """
    kernels = np.arange(len(sweep.kernels))
    parts: list[MeanErrors] = []
    for fold in range(min(_FOLDS, len(kernels))):
        out = kernels % _FOLDS == fold
        keep = np.flatnonzero(~out[sweep.kernel])
        names = [name for k, name in enumerate(sweep.kernels) if not out[k]]
        rank = np.cumsum(~out) - 1
        rest = dataclasses.replace(
            sweep.only(keep), kernels=tuple(names), kernel=rank[sweep.kernel[keep]]
        )
        found = calibrate(rest, start)
        parts += [part for _, part in check(found, sweep, points, np.flatnonzero(out))]
    return pooled(parts)


def check(
    found: Calibrated, sweep: Sweep, points: int, kernels: Ints | None = None
) -> list[tuple[str, MeanErrors]]:
    """Predict each kernel from a few of its rows; return name and errors on its other rows."""
    chosen = np.arange(len(sweep.kernels)) if kernels is None else kernels
    results = []
    for k in chosen.tolist():
        rows = np.flatnonzero(sweep.kernel == k)
        usable = rows[sweep.free[rows]]
        picked = usable[design(found, sweep.only(usable), points)]
        rest = np.setdiff1d(rows, picked)
        if len(rest) == 0:
            continue
        name = sweep.kernels[k]
        own = dataclasses.replace(found, kernels={name: fit_kernel(found, sweep, picked)})
        results.append((name, errors_of(own, sweep, rest)))
    return results


def pooled(parts: Sequence[MeanErrors]) -> MeanErrors:
    """Weigh errors by their rows."""
    rows = sum(part.rows for part in parts)
    return MeanErrors(
        time=math.fsum(part.time * part.rows for part in parts) / rows,
        power=math.fsum(part.power * part.rows for part in parts) / rows,
        rows=rows,
    )


def design(found: Calibrated, sweep: Sweep, points: int) -> Ints:
    """Choose which rows tell most about a kernel not yet known. Shape (points,).

    Greedy D-optimal: each next row is the one that adds most information about the four constants,
    averaged over the kernels that are known.
    """
    rows = len(sweep.kernel)
    one = dataclasses.replace(sweep, kernels=("one",), kernel=np.zeros(rows, dtype=np.int64))
    slopes = []
    for constants in found.kernels.values():
        fit = SweepFit(
            found.gpu, one, np.array([constants.serial]), per_mcycle_j=found.dram_j_per_mcycle
        )
        slopes.append(fit.slopes(fit.vector(constants)))
    prior = 1e-3 * np.eye(PER_KERNEL)
    information = [prior.copy() for _ in slopes]
    picked: list[int] = []
    for _ in range(min(points, rows)):
        gains = np.zeros(rows)
        for slope, known in zip(slopes, information, strict=True):
            per_row = np.einsum("orp,orq->rpq", slope, slope)
            gains += np.linalg.slogdet(known + per_row)[1]
        # Where the model is off, it is off alike at like clocks: do not ask there twice.
        for other in picked:
            near = np.abs(np.log(sweep.core_mhz / sweep.core_mhz[other])) < _APART
            gains[near] -= _REPETITION
        gains[picked] = -np.inf
        best = int(np.argmax(gains))
        picked.append(best)
        for k, slope in enumerate(slopes):
            information[k] += np.einsum("op,oq->pq", slope[:, best], slope[:, best])
    return np.array(picked, dtype=np.int64)


def predict(found: Calibrated, sweep: Sweep, rows: Ints) -> tuple[Floats, Floats]:
    """Return time in s and power in W of rows, the cap included. Shapes (R,)."""
    time_s, power_w = np.empty(len(rows)), np.empty(len(rows))
    gpu = found.gpu
    for i, row in enumerate(rows.tolist()):
        kernel = found.kernels[sweep.kernels[int(sweep.kernel[row])]]
        asked, mem = float(sweep.core_mhz[row]), float(sweep.mem_mhz[row])
        warm_c = gpu.ambient_c + gpu.c_per_w * float(sweep.power_w[row])
        top = boost_mhz(gpu, warm_c)
        ladder = np.arange(min(200.0, top), top + 1.0, 5.0) if math.isnan(asked) else None
        if ladder is None:
            ladder = np.append(np.arange(min(200.0, asked), asked, 5.0), asked)
        drawn = busy_w(gpu, kernel, ladder, np.full_like(ladder, mem), warm_c)
        fits = np.flatnonzero(drawn <= found.limit_w)
        at = int(fits[-1]) if len(fits) else 0
        time_s[i] = duration_s(gpu, kernel, float(ladder[at]), mem)
        power_w[i] = drawn[at]
    return time_s, power_w


def errors_of(found: Calibrated, sweep: Sweep, rows: Ints) -> MeanErrors:
    """Return the errors of predicting rows."""
    time_s, power_w = predict(found, sweep, rows)
    return MeanErrors(
        time=float(np.mean(np.abs(time_s / sweep.time_s[rows] - 1.0))),
        power=float(np.mean(np.abs(power_w / sweep.power_w[rows] - 1.0))),
        rows=len(rows),
    )
