"""A measured sweep as arrays, and the residuals of physics against it.

Shape letters: R rows, K kernels, M memory clocks, S shared parameters, P = 4 parameters of a
kernel. Every parameter is a logarithm, so that none can turn negative and steps are relative.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from underclock.arrays import Bools, Floats, Ints
from underclock.errors import DataError
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.power import busy_w
from underclock.physics.timing import duration_s
from underclock.records import SampleSet

PER_KERNEL = 4
NEAR_CAP = 0.93  # sweeps show the cap within a few per cent: a row above this share may be at it
_ROBUST = 0.03  # residuals beyond a few per cent pull less
_PULL = 0.002  # weak priors: what a sweep cannot tell stays where it started
_NOISE = 0.02  # of the model against a row; weighs fixed_time against rows
_STEP = 1e-5
_MOST_EVALUATIONS = 120
_REACH = 12.0  # no constant of a kernel is further from its start than this, as a logarithm
_SHARED_REACH = 2.5  # nor a shared one than this
_FREE = (  # shared constants that a sweep can tell, beside those of the memory points
    "exponent",
    "leak_w_per_v3",
    "clock_w_per_ghz_v2",
    "knee_mhz",
    "slope_v_per_mhz",
    "bend_v_per_mhz2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep as arrays.

    Attributes:
        kernels: Names. Length K.
        kernel: Index of each row's kernel. Shape (R,).
        core_mhz: As asked; ``nan`` is auto. Shape (R,).
        mem_mhz: As asked, the fastest where auto. Shape (R,).
        time_s: Shape (R,).
        power_w: Shape (R,).
        limit_w: Power at which rows are capped.
    """

    kernels: tuple[str, ...]
    kernel: Ints
    core_mhz: Floats
    mem_mhz: Floats
    time_s: Floats
    power_w: Floats
    limit_w: float

    @property
    def free(self) -> Bools:
        """Rows at a locked core clock and away from the cap. Shape (R,)."""
        found: Bools = np.isfinite(self.core_mhz) & (self.power_w < NEAR_CAP * self.limit_w)
        return found

    def only(self, rows: Ints) -> "Sweep":
        """Return some rows, all kernels kept."""
        return dataclasses.replace(
            self,
            kernel=self.kernel[rows],
            core_mhz=self.core_mhz[rows],
            mem_mhz=self.mem_mhz[rows],
            time_s=self.time_s[rows],
            power_w=self.power_w[rows],
        )


def sweep_of(sample_set: SampleSet, *, auto_mem_mhz: float, limit_w: float | None = None) -> Sweep:
    """Turn samples into arrays.

    Args:
        sample_set: A measured sweep.
        auto_mem_mhz: Memory clock that auto stands for.
        limit_w: Power limit; by default the greatest power in the sweep.

    Raises:
        DataError: Too few rows to say anything of a GPU.
    """
    names = tuple(kernel.name for kernel in sample_set.kernels)
    index = {name: k for k, name in enumerate(names)}
    samples = sample_set.samples
    power_w = np.array([s.energy_j / s.time_s for s in samples])
    sweep = Sweep(
        kernels=names,
        kernel=np.array([index[s.kernel] for s in samples], dtype=np.int64),
        core_mhz=np.array([float(s.asked.core_mhz or math.nan) for s in samples]),
        mem_mhz=np.array([float(s.asked.mem_mhz or auto_mem_mhz) for s in samples]),
        time_s=np.array([s.time_s for s in samples]),
        power_w=power_w,
        limit_w=limit_w if limit_w is not None else float(power_w.max(initial=0.0)),
    )
    free = np.bincount(sweep.kernel[sweep.free], minlength=len(names))
    poor = [name for name, rows in zip(names, free.tolist(), strict=True) if rows < 2]  # noqa: PLR2004
    if poor:
        raise DataError(
            f"{poor[0]!r} has fewer than two rows at locked clocks away from the power cap",
            hint="measure each kernel at several core clocks, some of them low",
        )
    if len(np.unique(sweep.core_mhz[sweep.free])) < PER_KERNEL:
        raise DataError(
            "the sweep has fewer than four core clocks", hint="measure at more core clocks"
        )
    return sweep


@dataclass(frozen=True, slots=True)
class FixedTimePrior:
    """What kernels on a GPU are like, whatever their size: how much of their time is fixed.

    Attributes:
        gpu: Shared constants.
        mean: Logarithm of the share of fixed time at the fastest clocks.
        deviation: Of that logarithm.
    """

    gpu: GpuConstants
    mean: float
    deviation: float

    @classmethod
    def of(cls, gpu: GpuConstants, kernels: Sequence[KernelConstants]) -> "FixedTimePrior":
        """Learn from known kernels; medians, so that an odd one does not count much."""
        shares = np.array([_fixed_share(gpu, kernel) for kernel in kernels])
        mean = float(np.median(shares))
        return cls(gpu, mean, 1.5 * float(np.median(np.abs(shares - mean))) + 0.1)

    def surprise(self, kernel: KernelConstants) -> float:
        """Return how many deviations a kernel is from the usual."""
        return (_fixed_share(self.gpu, kernel) - self.mean) / self.deviation


def _fixed_share(gpu: GpuConstants, kernel: KernelConstants) -> float:
    time_s = duration_s(gpu, kernel, gpu.boost_mhz, gpu.mem_points_mhz[-1])
    return math.log(max(kernel.fixed_s / time_s, 1e-12))


class SweepFit:
    """Residuals of the model against free rows, as a function of parameter vectors."""

    def __init__(
        self,
        base: GpuConstants,
        sweep: Sweep,
        serial: Bools,
        *,
        per_mcycle_j: float = 0.0075,
    ) -> None:
        self.base = base
        self.sweep = sweep
        self.serial = serial
        self._per_mcycle_j = per_mcycle_j
        self._rows = [np.flatnonzero(sweep.kernel == k) for k in range(len(sweep.kernels))]
        self._warm_c = base.ambient_c + base.c_per_w * sweep.power_w

    def shared_start(self) -> Floats:
        """Return the shared parameters of the base constants. Shape (S,)."""
        base = self.base
        values = [getattr(base, name) for name in _FREE]
        values += [self._per_mcycle_j, *base.mem_points_w, *base.mem_points_efficiency[:-1]]
        return np.log(values)

    def gpu(self, shared: Floats) -> tuple[GpuConstants, float]:
        """Return constants and DRAM energy in J per Mcycle of a shared vector."""
        values = np.exp(shared).tolist()
        named = dict(zip(_FREE, values, strict=False))
        per_mcycle_j, *memory = values[len(_FREE) :]
        points = len(self.base.mem_points_mhz)
        gpu = dataclasses.replace(
            self.base,
            **named,
            mem_points_w=tuple(memory[:points]),
            mem_points_efficiency=(*memory[points:], 1.0),
        )
        return gpu, per_mcycle_j

    def kernel_start(self) -> Floats:
        """Guess kernel parameters from the rows themselves. Shape (K, P)."""
        sweep = self.sweep
        guesses = []
        for rows in self._rows:
            time_s = sweep.time_s[rows]
            guesses.append(
                (
                    0.9 * float((time_s * sweep.core_mhz[rows]).min()),
                    0.7 * float((time_s * sweep.mem_mhz[rows]).min()),
                    0.05 * float(time_s.min()),
                    50.0 * float(time_s.min()),
                )
            )
        return np.log(guesses)

    def vector(self, kernel: KernelConstants) -> Floats:
        """Return a kernel's parameters. Shape (P,)."""
        values = (kernel.core_mcycles, kernel.dram_mcycles, kernel.fixed_s, kernel.work_j_per_v2)
        return np.log(np.maximum(values, 1e-30))

    def kernel(self, vector: Floats, per_mcycle_j: float, *, serial: bool) -> KernelConstants:
        """Return the constants of a kernel's parameters."""
        core, dram, fixed_s, work_j = np.exp(vector).tolist()
        return KernelConstants(
            core_mcycles=core,
            dram_mcycles=dram,
            fixed_s=fixed_s,
            work_j_per_v2=work_j,
            dram_j=per_mcycle_j * dram,
            serial=serial,
        )

    def solve(self, shared: Floats, kernels: Floats) -> tuple[Floats, Floats]:
        """Return the shared and kernel parameters that explain the rows best."""
        size = len(shared)
        start = np.append(shared, kernels.ravel())

        def split(vector: Floats) -> tuple[Floats, Floats]:
            return vector[:size], vector[size:].reshape(-1, PER_KERNEL)

        reach = np.append(np.full(size, _SHARED_REACH), np.full(kernels.size, _REACH))

        def residuals(vector: Floats) -> Floats:
            return np.append(self._residuals(*split(vector)).ravel(), _PULL * (vector - start))

        def slopes(vector: Floats) -> Floats:
            return self._jacobian(*split(vector))

        found = least_squares(
            residuals,
            start,
            jac=slopes,
            bounds=(start - reach, start + reach),
            loss="soft_l1",
            f_scale=_ROBUST,
            x_scale="jac",
            max_nfev=_MOST_EVALUATIONS,
        )
        return split(found.x)

    def solve_kernels(self, fixed_time: "FixedTimePrior | None" = None) -> tuple[float, Floats]:
        """Fit kernel parameters alone, to the base's shared ones; return the cost too.

        Args:
            fixed_time: What kernels known before are like, to lean on where rows are few.
        """
        start = self.kernel_start()
        shared = self.shared_start()

        def residuals(vector: Floats) -> Floats:
            kernels = vector.reshape(-1, PER_KERNEL)
            parts = [self._residuals(shared, kernels).ravel(), _PULL * (vector - start.ravel())]
            if fixed_time is not None:
                known = [
                    self.kernel(kernels[k], 0.0, serial=bool(serial))
                    for k, serial in enumerate(self.serial)
                ]
                parts.append(_NOISE * np.array([fixed_time.surprise(kernel) for kernel in known]))
            return np.concatenate(parts)

        found = least_squares(
            residuals,
            start.ravel(),
            bounds=(start.ravel() - _REACH, start.ravel() + _REACH),
            x_scale="jac",
            max_nfev=_MOST_EVALUATIONS,
        )
        return float(found.cost), found.x.reshape(-1, PER_KERNEL)

    def slopes(self, vector: Floats) -> Floats:
        """Return derivatives of log time and log power of one kernel. Shape (2, R, P)."""
        shared = self.shared_start()
        at = self._residuals(shared, vector[None])
        moved = vector + _STEP * np.eye(PER_KERNEL)
        return np.stack([(self._residuals(shared, v[None]) - at) / _STEP for v in moved], axis=-1)

    def better_serial(self, shared: Floats, kernels: Floats) -> Bools:
        """Return which kernels are explained better when their parts add. Shape (K,)."""
        gpu, per_mcycle_j = self.gpu(shared)
        better = np.zeros(len(kernels), dtype=bool)
        for k, rows in enumerate(self._rows):
            one = dataclasses.replace(
                self.sweep.only(rows), kernels=("one",), kernel=np.zeros(len(rows), dtype=np.int64)
            )
            costs = [
                SweepFit(gpu, one, np.array([serial]), per_mcycle_j=per_mcycle_j).solve_kernels()[0]
                for serial in (False, True)
            ]
            better[k] = costs[1] < costs[0]
        return better

    def _residuals(self, shared: Floats, kernels: Floats) -> Floats:
        """Return log ratios of predicted to measured time and power. Shape (2, R)."""
        gpu, per_mcycle_j = self.gpu(shared)
        sweep = self.sweep
        found = np.empty((2, len(sweep.time_s)))
        for k, rows in enumerate(self._rows):
            kernel = self.kernel(kernels[k], per_mcycle_j, serial=bool(self.serial[k]))
            core, mem = sweep.core_mhz[rows], sweep.mem_mhz[rows]
            found[0, rows] = duration_s(gpu, kernel, core, mem) / sweep.time_s[rows]
            power_w = busy_w(gpu, kernel, core, mem, self._warm_c[rows])
            found[1, rows] = power_w / sweep.power_w[rows]
        return np.log(found)

    def _jacobian(self, shared: Floats, kernels: Floats) -> Floats:
        """Return derivatives of `_residuals` and of the priors; kernels touch only their rows."""
        at = self._residuals(shared, kernels)
        rows = at.shape[1]
        size = len(shared) + kernels.size
        found = np.zeros((2, rows, size))
        for p in range(len(shared)):
            moved = shared.copy()
            moved[p] += _STEP
            found[:, :, p] = (self._residuals(moved, kernels) - at) / _STEP
        for p in range(PER_KERNEL):
            # Every kernel moves at once: no row belongs to two.
            moved = kernels.copy()
            moved[:, p] += _STEP
            change = (self._residuals(shared, moved) - at) / _STEP
            columns = len(shared) + PER_KERNEL * self.sweep.kernel + p
            found[:, np.arange(rows), columns] = change
        return np.vstack([found.reshape(2 * rows, size), _PULL * np.eye(size)])
