"""Residuals of physics against a sweep, and the constants that make them least.

Shape letters: R rows, K kernels, M memory clocks, S shared parameters, P = 4 parameters of a
kernel. Every parameter is a logarithm, so that none can turn negative and steps are relative.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.calibration.fixed_time import FixedTimePrior
from underclock.core.calibration.least_squares import Minimum, Residuals, minimise
from underclock.core.calibration.sweep import Sweep
from underclock.physics.constants import GpuConstants, KernelArrays, KernelConstants
from underclock.physics.derivatives import BY_GPU, BY_KERNEL, LogCosts, log_costs

PER_KERNEL = 4
_PULL = 0.002  # weak priors: what a sweep cannot tell stays where it started
_NOISE = 0.02  # of the model against a row; weighs the prior of fixed time against rows
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
_OF_KERNEL = ("core_mcycles", "dram_mcycles", "fixed_s", "work_j_per_v2")
_FIXED = _OF_KERNEL.index("fixed_s")
_FREE_COLUMNS = [BY_GPU.index(name) for name in _FREE]
_KERNEL_COLUMNS = [BY_KERNEL.index(name) for name in _OF_KERNEL]
_DRAM, _DRAM_J = _OF_KERNEL.index("dram_mcycles"), BY_KERNEL.index("dram_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFit:
    """A sweep, and the model to fit to it.

    Attributes:
        base: Constants that a sweep cannot tell, and where the others begin.
        sweep: The rows.
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

        best = minimise(
            Residuals(at=residuals, jacobian=jacobian),
            start,
            (start - reach, start + reach),
            robust=True,
            most_evaluations=_MOST_EVALUATIONS,
        ).vector
        return best[:size], best[size:].reshape(-1, PER_KERNEL)

    def solve_kernel(self, fixed_time: FixedTimePrior | None = None) -> Minimum:
        """Fit the parameters of the only kernel, to the base's shared ones.

        Args:
            fixed_time: What kernels known before are like, to lean on where rows are few.
        """
        start, shared = self.kernel_start()[0], self.shared_start()

        def residuals(vector: Floats) -> Floats:
            off = self._off(self._costs(shared, vector[None])).ravel()
            parts = [off, _PULL * (vector - start)]
            if fixed_time is not None:
                one = kernel_of(vector, 0.0, serial=bool(self.serial[0]))
                parts.append(np.array([_NOISE * fixed_time.surprise(one)]))
            return np.concatenate(parts)

        def jacobian(vector: Floats) -> Floats:
            by = self._by_kernel(self._costs(shared, vector[None])).reshape(-1, PER_KERNEL)
            parts = [by, _PULL * np.eye(PER_KERNEL)]
            if fixed_time is not None:
                parts.append(_NOISE * self._by_surprise(vector, fixed_time)[None])
            return np.concatenate(parts)

        return minimise(
            Residuals(at=residuals, jacobian=jacobian),
            start,
            (start - _REACH, start + _REACH),
            robust=False,
            most_evaluations=_MOST_EVALUATIONS,
        )

    def derivatives(self, kernel: KernelConstants) -> Floats:
        """Return derivatives of log time and log power of one kernel. Shape (2, R, P)."""
        return self._by_kernel(self._costs(self.shared_start(), vector_of(kernel)[None]))

    def better_serial(self, shared: Floats) -> Bools:
        """Return which kernels are explained better when their parts add. Shape (K,)."""
        gpu, per_mcycle_j = self.gpu(shared)
        better = np.zeros(len(self.sweep.kernels), dtype=bool)
        for k in range(len(better)):
            one = self.sweep.one(np.flatnonzero(self.sweep.kernel == k))
            overlapping, adding = (
                SweepFit(
                    base=gpu, sweep=one, serial=np.array([serial]), per_mcycle_j=per_mcycle_j
                ).solve_kernel()
                for serial in (False, True)
            )
            better[k] = adding.cost < overlapping.cost
        return better

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

    def _by_kernel(self, costs: LogCosts) -> Floats:
        """Return derivatives by the parameters of each row's kernel. Shape (2, R, P)."""
        by_constant = costs.by_kernel()
        by = by_constant[:, :, _KERNEL_COLUMNS]
        by[:, :, _DRAM] += by_constant[:, :, _DRAM_J]  # energy of traffic goes with DRAM cycles
        return by

    def _by_surprise(self, vector: Floats, fixed_time: FixedTimePrior) -> Floats:
        """Return derivatives of how odd a kernel is, by its parameters. Shape (P,)."""
        gpu = fixed_time.gpu
        costs = log_costs(
            gpu,
            _arrays(vector[None], 0.0, self.serial),
            np.array([gpu.boost_mhz]),
            np.array([gpu.mem_points_mhz[-1]]),
            np.array([gpu.ambient_c]),
        )
        return fixed_time.by_kernel(self._by_kernel(costs)[0, 0], _FIXED)

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
        by[:, np.arange(rows)[:, None], columns] = self._by_kernel(costs)
        return np.vstack([by.reshape(2 * rows, size), _PULL * np.eye(size)])


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
