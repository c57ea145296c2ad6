"""A measured sweep as arrays, and the constants of physics that explain it best.

Every parameter is a logarithm, so that none can turn negative and steps are relative. The fit of
campaigns has steps of its own (`core.model.damped_steps`), for its equations are an arrow: dense
ones of a thousand kernels would not fit in memory.

Shape letters: R rows, K kernels, S shared parameters, P = 4 parameters of a kernel.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from underclock.arrays import Bools, Floats, Ints
from underclock.core.step.cap import CapMargin, draws_limit
from underclock.errors import DataError
from underclock.physics.constants import GpuConstants, KernelArrays, KernelConstants
from underclock.physics.costs import duration_s
from underclock.physics.derivatives import BY_GPU, BY_KERNEL, LogCosts, log_costs
from underclock.records import SampleSet

_LEAST_CORE_CLOCKS = 4  # as many as a kernel has constants
_FASTEST_MHZ = 20_000.0
PER_KERNEL = 4
_PULL = 0.002  # weak priors: what a sweep cannot tell stays where it started
_NOISE = 0.02  # of the model against a row; weighs the prior of fixed time against rows
_MOST_EVALUATIONS = 120
_ROBUST = 0.03  # residuals beyond a few per cent pull less: a soft L1 loss
_LEAST_SHARE = 1e-12  # of fixed time
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
_OF_KERNEL = ("core_mcycles", "dram_mcycles", "fixed_s", "work_j_per_v2")
_FIXED = _OF_KERNEL.index("fixed_s")
_FREE_COLUMNS = [BY_GPU.index(name) for name in _FREE]
_KERNEL_COLUMNS = [BY_KERNEL.index(name) for name in _OF_KERNEL]
_DRAM, _DRAM_J = _OF_KERNEL.index("dram_mcycles"), BY_KERNEL.index("dram_j")


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
        return np.isfinite(self.core_mhz) & ~self.capped

    @property
    def capped(self) -> Bools:
        """Rows at the power cap, or next to it. Shape (R,)."""
        return draws_limit(self.power_w, self.limit_w, CapMargin.UNREAD)

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

    def one(self, rows: Ints) -> "Sweep":
        """Return some rows as if they were of one kernel."""
        kernel = np.zeros(len(rows), dtype=np.int64)
        return dataclasses.replace(self.only(rows), kernels=("one",), kernel=kernel)


def sweep_of(sample_set: SampleSet, *, auto_mem_mhz: float, limit_w: float | None = None) -> Sweep:
    """Turn samples into arrays.

    Args:
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
    for what, mhz in (("core", sweep.core_mhz), ("memory", sweep.mem_mhz)):
        if np.nanmax(mhz, initial=0.0) > _FASTEST_MHZ:
            raise DataError(
                f"the sweep has a {what} clock of {np.nanmax(mhz):.0f} MHz, which no GPU has",
                hint="are clocks in MHz?",
            )
    free = np.bincount(sweep.kernel[sweep.free], minlength=len(names))
    poor = [name for name, rows in zip(names, free.tolist(), strict=True) if rows < 2]  # noqa: PLR2004
    if poor:
        raise DataError(
            f"{poor[0]!r} has fewer than two rows at locked clocks away from the power cap",
            hint="measure each kernel at several core clocks, some of them low",
        )
    if len(np.unique(sweep.core_mhz[sweep.free])) < _LEAST_CORE_CLOCKS:
        raise DataError(
            "the sweep has fewer than four core clocks", hint="measure at more core clocks"
        )
    return sweep


@dataclass(frozen=True, slots=True)
class FixedTimePrior:
    """What share of a kernel's time is fixed, at the fastest clocks: normal in logarithms.

    Attributes:
        mean: Logarithm of the share.
        deviation: Of that logarithm.
    """

    gpu: GpuConstants
    mean: float
    deviation: float

    @classmethod
    def of(cls, gpu: GpuConstants, kernels: Sequence[KernelConstants]) -> "FixedTimePrior":
        """Learn from known kernels; medians, so that an odd one does not count much."""
        shares = np.array([_log_share(gpu, kernel) for kernel in kernels])
        mean = float(np.median(shares))
        return cls(gpu, mean, 1.5 * float(np.median(np.abs(shares - mean))) + 0.1)

    def surprise(self, kernel: KernelConstants) -> float:
        """Return how many deviations a kernel is from the usual."""
        return (_log_share(self.gpu, kernel) - self.mean) / self.deviation

    def by_kernel(self, vector: Floats, serial: Bools) -> Floats:
        """Return derivatives of the surprise by a kernel's parameters. Shape (P,)."""
        gpu = self.gpu
        fastest = np.array([gpu.boost_mhz]), np.array([gpu.mem_points_mhz[-1]])
        kernel = _arrays(vector[None], 0.0, serial)
        share: Floats = -_by_kernel(log_costs(gpu, kernel, *fastest, np.array([gpu.ambient_c])))[
            0, 0
        ]
        share[_FIXED] += 1.0
        share /= self.deviation
        return share


def _log_share(gpu: GpuConstants, kernel: KernelConstants) -> float:
    time_s = duration_s(gpu, kernel, gpu.boost_mhz, gpu.mem_points_mhz[-1])
    return math.log(max(kernel.fixed_s / time_s, _LEAST_SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFit:
    """A sweep, and the model to fit to it.

    Attributes:
        base: Constants that a sweep cannot tell, and where the others begin.
        serial: Which kernels overlap nothing. Shape (K,).
        per_mcycle_j: Energy of DRAM traffic per million DRAM cycles, to begin with.
    """

    base: GpuConstants
    sweep: Sweep
    serial: Bools
    per_mcycle_j: float = 0.0075

    def shared_start(self) -> Floats:
        """Return the shared parameters of the base constants. Shape (S,)."""
        base = self.base
        values = [getattr(base, name) for name in _FREE]
        values += [self.per_mcycle_j, *base.mem_points_w, *base.mem_points_efficiency[:-1]]
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
        for k in range(len(sweep.kernels)):
            rows = sweep.kernel == k
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

    def solve(self, shared: Floats, kernels: Floats) -> tuple[Floats, Floats]:
        """Return the shared and kernel parameters that explain the rows best."""
        size = len(shared)
        start = np.append(shared, kernels.ravel())
        reach = np.append(np.full(size, _SHARED_REACH), np.full(kernels.size, _REACH))

        def residuals(vector: Floats) -> Floats:
            costs = self._costs(vector[:size], vector[size:].reshape(-1, PER_KERNEL))
            return np.append(self._off(costs).ravel(), _PULL * (vector - start))

        def jacobian(vector: Floats) -> Floats:
            return self._jacobian(vector[:size], vector[size:].reshape(-1, PER_KERNEL))

        best, _ = _least(residuals, jacobian, start, reach, loss="soft_l1")
        return best[:size], best[size:].reshape(-1, PER_KERNEL)

    def solve_kernel(self, fixed_time: FixedTimePrior | None) -> tuple[Floats, float]:
        """Return the parameters of the only kernel, the base's shared ones held, and their cost."""
        start, shared = self.kernel_start()[0], self.shared_start()

        def residuals(vector: Floats) -> Floats:
            off = self._off(self._costs(shared, vector[None])).ravel()
            parts = [off, _PULL * (vector - start)]
            if fixed_time is not None:
                one = kernel_of(vector, 0.0, serial=bool(self.serial[0]))
                parts.append(np.array([_NOISE * fixed_time.surprise(one)]))
            return np.concatenate(parts)

        def jacobian(vector: Floats) -> Floats:
            by = _by_kernel(self._costs(shared, vector[None])).reshape(-1, PER_KERNEL)
            parts = [by, _PULL * np.eye(PER_KERNEL)]
            if fixed_time is not None:
                parts.append(_NOISE * fixed_time.by_kernel(vector, self.serial)[None])
            return np.concatenate(parts)

        return _least(residuals, jacobian, start, np.full(PER_KERNEL, _REACH), loss="linear")

    def derivatives(self, kernel: KernelConstants) -> Floats:
        """Return derivatives of log time and log power of one kernel. Shape (2, R, P)."""
        return _by_kernel(self._costs(self.shared_start(), vector_of(kernel)[None]))

    def better_serial(self, shared: Floats) -> Bools:
        """Return which kernels are explained better when their parts add. Shape (K,)."""
        gpu, per_mcycle_j = self.gpu(shared)
        every = range(len(self.sweep.kernels))
        ones = (self.sweep.one(np.flatnonzero(self.sweep.kernel == k)) for k in every)
        return np.array([fit_kernel(gpu, per_mcycle_j, one)[1] for one in ones], dtype=bool)

    def _costs(self, shared: Floats, kernels: Floats) -> LogCosts:
        """Predict the rows."""
        gpu, per_mcycle_j = self.gpu(shared)
        sweep = self.sweep
        warm_c = self.base.ambient_c + self.base.c_per_w * sweep.power_w
        constants = _arrays(kernels[sweep.kernel], per_mcycle_j, self.serial[sweep.kernel])
        return log_costs(gpu, constants, sweep.core_mhz, sweep.mem_mhz, warm_c)

    def _off(self, costs: LogCosts) -> Floats:
        """Return log ratios of predicted to measured time and power. Shape (2, R)."""
        sweep = self.sweep
        return np.log(np.stack([costs.time_s / sweep.time_s, costs.power_w / sweep.power_w]))

    def _jacobian(self, shared: Floats, kernels: Floats) -> Floats:
        """Return derivatives of residuals and of the priors; kernels touch only their rows."""
        costs = self._costs(shared, kernels)
        rows, size = len(self.sweep.time_s), len(shared) + kernels.size
        by_gpu = costs.by_gpu()
        by = np.zeros((2, rows, size))
        by[:, :, : len(shared)] = np.concatenate(
            [
                by_gpu[:, :, _FREE_COLUMNS],
                costs.by_kernel()[:, :, [_DRAM_J]],
                # Of the efficiencies, the last is one by definition.
                by_gpu[:, :, len(BY_GPU) : -1],
            ],
            axis=-1,
        )
        columns = len(shared) + PER_KERNEL * self.sweep.kernel[:, None] + np.arange(PER_KERNEL)
        by[:, np.arange(rows)[:, None], columns] = _by_kernel(costs)
        return np.vstack([by.reshape(2 * rows, size), _PULL * np.eye(size)])


def fit_kernel(
    gpu: GpuConstants, per_mcycle_j: float, one: Sweep, fixed_time: FixedTimePrior | None = None
) -> tuple[Floats, bool]:
    """Return the parameters of a kernel, shape (P,), and whether its parts add: what explains more.

    Args:
        fixed_time: What kernels known before are like, to lean on where rows are few.
    """
    (overlapping, cost), (adding, other) = (
        SweepFit(
            base=gpu, sweep=one, serial=np.array([serial]), per_mcycle_j=per_mcycle_j
        ).solve_kernel(fixed_time)
        for serial in (False, True)
    )
    return (adding, True) if other < cost else (overlapping, False)


def vector_of(kernel: KernelConstants) -> Floats:
    """Return a kernel's parameters. Shape (P,)."""
    values = [getattr(kernel, name) for name in _OF_KERNEL]
    return np.log(np.maximum(values, 1e-30))


def kernel_of(vector: Floats, per_mcycle_j: float, *, serial: bool) -> KernelConstants:
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


def _arrays(vectors: Floats, per_mcycle_j: float, serial: Bools) -> KernelArrays:
    """Return the constants of a kernel's parameters in each row; vectors of shape (R, P)."""
    core, dram, fixed_s, work_j = np.exp(vectors).T
    return KernelArrays(
        core_mcycles=core,
        dram_mcycles=dram,
        xbar_mcycles=np.zeros_like(core),
        fixed_s=fixed_s,
        work_j_per_v2=work_j,
        dram_j=per_mcycle_j * dram,
        serial=serial,
    )


def _least(
    residuals: Callable[[Floats], Floats],
    jacobian: Callable[[Floats], Floats],
    start: Floats,
    reach: Floats,
    *,
    loss: str,
) -> tuple[Floats, float]:
    """Return where the sum of squares is least within reach of a start, and half of it there."""
    fit = least_squares(
        residuals,
        start,
        jac=jacobian,
        bounds=(start - reach, start + reach),
        loss=loss,
        f_scale=_ROBUST,
        x_scale="jac",
        max_nfev=_MOST_EVALUATIONS,
    )
    return np.asarray(fit.x, dtype=np.float64), float(fit.cost)


def _by_kernel(costs: LogCosts) -> Floats:
    """Return derivatives by the parameters of each row's kernel. Shape (2, R, P)."""
    by_constant = costs.by_kernel()
    by: Floats = by_constant[:, :, _KERNEL_COLUMNS]
    by[:, :, _DRAM] += by_constant[:, :, _DRAM_J]  # energy of traffic goes with DRAM cycles
    return by
