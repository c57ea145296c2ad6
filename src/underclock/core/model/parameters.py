"""Rows that a fit rests on, and constants of physics from parameter vectors, with derivatives.

Every parameter is a logarithm, so that none can turn negative and steps are relative.

Shape letters: R rows, K kernels, M memory clocks, H errors in common, S shared parameters, P = 4
parameters of a kernel: core cycles, DRAM cycles, fixed time, switching energy.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.step.whole_step import Idling, StepDraw
from underclock.physics.constants import GpuConstants, KernelArrays
from underclock.physics.costs import BY_GPU, BY_KERNEL, AtClocks, LogCosts

PER_KERNEL = 4
"""Parameters of a kernel, which as many rows determine."""
COLLECTIVE = 3
"""Kernels of this kind wait for a link, and what they take of the GPU adds to that."""
_OF_ROWS = ("kernel", "core_mhz", "mem_mhz", "temperature_c", "log", "windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Where to predict."""

    kernel: Ints  # index of each row's kernel, (R,)
    core_mhz: Floats  # as read back where it was, else as asked, (R,)
    mem_mhz: Floats  # the same, (R,)
    temperature_c: Floats  # (R,)
    # how log time and power as measured move with each error that several rows have in common, of
    # co-load, by its standard deviation, (2, R, H); ``None`` as with H = 0
    by_common: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs(Points):
    """Single measurements of kernels at these points."""

    log: Floats  # logarithms of the time of a launch in s and of mean power in W, (2, R)
    # how many windows of the usual length each counts for; 0 where it says nothing, and its
    # logarithm is that of the kernel at the nearest clock, (2, R)
    windows: Floats
    # where the driver chose the core clock, (R,); ``None`` where it never did
    free: Bools | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Runs):
    """Samples at known clocks, sorted by kernel."""

    # of the kernels; where clocks were steered the heater is one more, the last, which shows how
    # power goes with the clock. Length K
    names: tuple[str, ...]
    kinds: Ints  # what each mostly does, as a small number, (K,)
    mem_points_mhz: Floats  # memory clocks of the GPU, ascending, (M,)
    limit_w: float  # power that capped rows settle at; ``inf`` where none was capped
    # least core clock that the GPU was seen to boost to by itself; ``inf`` where it was not seen.
    # Locks above it do not hold
    ceiling_mhz: float
    auto_mem_mhz: float  # memory clock that runs where none is locked, as read; else the fastest
    # power that no kernel exceeds, whatever its clock; ``inf`` where none was seen there
    peak_w: float = math.inf
    # log time in s of a launch of kernels at boost, whatever held it there; ``nan`` where it was
    # not timed, (K,); ``None`` where none was
    boost_log_s: Floats | None = None
    idle: tuple[Idling, ...] = ()  # idling, where it was measured
    step: tuple[StepDraw, ...] = ()  # what the whole step drew, where it ran with co-load
    # shares of each kernel's time and power, as `hierarchical_prior.usual_shares` expects them of
    # its kind, (2, K, P); ``None`` where kinds are not known
    shares: Floats | None = None

    def some(self, chosen: Ints) -> "Rows":
        """Return some rows of the same kernels."""
        return dataclasses.replace(
            self,
            **{name: getattr(self, name)[..., chosen] for name in _OF_ROWS},
            by_common=None if self.by_common is None else self.by_common[:, chosen],
        )

    def of(self, kernels: Ints) -> "Rows":
        """Return the rows of some kernels, ascending, which become all there are."""
        mine = self.some(np.flatnonzero(np.isin(self.kernel, kernels)))
        return dataclasses.replace(
            mine,
            names=tuple(self.names[k] for k in kernels.tolist()),
            kinds=self.kinds[kernels],
            kernel=np.searchsorted(kernels, mine.kernel).astype(np.int64),
            boost_log_s=None if self.boost_log_s is None else self.boost_log_s[kernels],
            shares=None if self.shares is None else self.shares[:, kernels],
        )

    @property
    def bounds(self) -> Ints:
        """Where each kernel's rows begin, and the end. Shape (K + 1,)."""
        return np.searchsorted(self.kernel, np.arange(len(self.names) + 1)).astype(np.int64)


CORE, DRAM, FIXED, WORK = range(PER_KERNEL)
# Shared parameters: name, and how far from its start it may be expected, as a logarithm: assumed,
# and widened where rows show more (`hierarchical_prior.widening`).
_NAMED = {  # in the order of `BY_GPU`
    "exponent": 0.6,
    "xbar_floor_mhz": 0.3,
    "knee_mhz": 0.25,
    "slope_v_per_mhz": 1.0,
    "bend_v_per_mhz2": 1.0,
    "leak_w_per_v3": 0.8,
    "clock_w_per_ghz_v2": 0.8,
    "leak_per_c": 0.5,
}
_OF_KERNEL = ("core_mcycles", "dram_mcycles", "fixed_s", "work_j_per_v2")
_COLUMNS = {name: column for column, name in enumerate(BY_KERNEL)}
PER_DRAM_CYCLE = [len(_NAMED), len(_NAMED) + 1]
"""Where energy of traffic and crossbar cycles of a DRAM cycle stand in the shared vector."""
_XBAR = PER_DRAM_CYCLE[-1]
_DRAM_J_SPREAD, _XBAR_SPREAD, _MEM_W_SPREAD, _EFFICIENCY_SPREAD = 1.5, 1.0, 0.7, 0.15
_TRAFFIC = 0.75  # power of DRAM traffic at its peak, over that of memory at rest
_GIVEN_XBAR = 0.05  # crossbar cycles per DRAM cycle


@dataclass(frozen=True, slots=True)
class Shared:
    """What the shared vector stands for."""

    base: GpuConstants  # constants that no sweep shows, and where the rest begin
    # how many errors rows have in common: the last of the vector, each over its standard deviation
    common: int = 0

    def start(self) -> Floats:
        """Return the vector to begin with; also the mean of the prior. Shape (S,)."""
        values = [getattr(self.base, name) for name in _NAMED]
        efficiency = self.base.mem_points_efficiency[:-1]
        # An HBM cycle moves ten times the bytes of one of GDDR, and takes ten times the energy.
        dram_j = _TRAFFIC * self.base.mem_points_w[-1] / self.base.mem_points_mhz[-1]
        given = [dram_j, _GIVEN_XBAR]
        logs = np.log([*values, *given, *self.base.mem_points_w, *efficiency])
        return np.concatenate([logs, np.zeros(self.common)])

    def spread(self) -> Floats:
        """Return the prior's standard deviations. Shape (S,)."""
        points = len(self.base.mem_points_mhz)
        return np.array(
            [
                *_NAMED.values(),
                *(_DRAM_J_SPREAD, _XBAR_SPREAD),
                *[_MEM_W_SPREAD] * points,
                *[_EFFICIENCY_SPREAD] * (points - 1),
                *[1.0] * self.common,
            ]
        )

    def gpu(self, shared: Floats) -> GpuConstants:
        """Return the constants of a vector."""
        values = np.exp(shared[: len(shared) - self.common])
        points = len(self.base.mem_points_mhz)
        memory = values[_XBAR + 1 :].tolist()
        return dataclasses.replace(
            self.base,
            **dict(zip(_NAMED, values.tolist(), strict=False)),
            mem_points_w=tuple(memory[:points]),
            mem_points_efficiency=(*memory[points:], 1.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All parameters of the model."""

    family: Shared
    shared: Floats  # (S,)
    kernels: Floats  # (K, P)
    # whose parts add instead of overlapping, (K,); ``None`` where none's do
    serial: Bools | None = None


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """Predicted logarithms of time and power, ready to be differentiated by the parameters."""

    parameters: Parameters
    at: Points
    costs: LogCosts

    @property
    def log(self) -> Floats:
        """Logarithms of time in s and power in W, as they would be measured. Shape (2, R)."""
        common, by = self.parameters.family.common, self.at.by_common
        if not common or by is None:
            return self.costs.log
        log: Floats = self.costs.log + by @ self.parameters.shared[-common:]
        return log

    def by_kernel(self) -> Floats:
        """Return derivatives by the kernel's own parameters. Shape (2, R, P)."""
        by_constant = self.costs.by_kernel()
        by = by_constant[:, :, [_COLUMNS[name] for name in _OF_KERNEL]]
        # Crossbar cycles and energy of traffic are proportional to DRAM cycles.
        by[:, :, DRAM] += by_constant[:, :, _COLUMNS["xbar_mcycles"]]
        by[:, :, DRAM] += by_constant[:, :, _COLUMNS["dram_j"]]
        return by

    def by_shared(self) -> Floats:
        """Return derivatives by the shared parameters. Shape (2, R, S)."""
        by_gpu, by_constant = self.costs.by_gpu(), self.costs.by_kernel()
        per_dram = by_constant[:, :, [_COLUMNS["dram_j"], _COLUMNS["xbar_mcycles"]]]
        # The greatest memory clock is what efficiency is relative to.
        memory = by_gpu[:, :, len(BY_GPU) : -1]
        common = self.at.by_common
        if common is None:
            common = np.zeros((*memory.shape[:2], self.parameters.family.common))
        return np.concatenate([by_gpu[:, :, : len(BY_GPU)], per_dram, memory, common], axis=2)


def gpu_at(parameters: Parameters, at: Points) -> AtClocks:
    """Return what is the same of every prediction as long as the shared parameters are."""
    gpu = parameters.family.gpu(parameters.shared)
    return AtClocks.of(gpu, at.core_mhz, at.mem_mhz, at.temperature_c)


def predicted_rows(
    parameters: Parameters, at: Points, gpu: AtClocks | None = None
) -> PredictedRows:
    """Predict time and power; ``gpu`` is what `gpu_at` says, where that is known."""
    core, dram, fixed, work = np.exp(parameters.kernels).T[:, at.kernel]
    dram_j, per_dram = np.exp(parameters.shared[PER_DRAM_CYCLE])
    serial = np.zeros(1, dtype=bool) if parameters.serial is None else parameters.serial
    kernels = KernelArrays(
        core_mcycles=core,
        dram_mcycles=dram,
        xbar_mcycles=per_dram * dram,
        fixed_s=fixed,
        work_j_per_v2=work,
        dram_j=dram_j * dram,
        serial=serial[at.kernel % len(serial)],
    )
    known = gpu_at(parameters, at) if gpu is None else gpu
    return PredictedRows(parameters, at, known.costs(kernels))


def unknown_gpu(
    mem_points_mhz: Sequence[float], *, fastest_mhz: float, most_w: float
) -> GpuConstants:
    """Return constants typical of recent GPUs, scaled to one's clocks and power.

    Args:
        mem_points_mhz: Memory clocks, ascending.
    """
    shares = np.asarray(mem_points_mhz) / mem_points_mhz[-1]
    return GpuConstants(
        exponent=3.4,
        xbar_floor_mhz=0.65 * fastest_mhz,
        xbar_lag_mhz=80.0,
        floor_v=0.75,
        knee_mhz=0.7 * fastest_mhz,
        slope_v_per_mhz=0.12 / fastest_mhz,
        bend_v_per_mhz2=1.6 / fastest_mhz**2,
        board_w=0.03 * most_w,
        mem_points_mhz=tuple(float(mhz) for mhz in mem_points_mhz),
        mem_points_w=tuple((0.2 * most_w * shares).tolist()),
        mem_points_efficiency=(1.0,) * len(shares),
        leak_w_per_v3=0.1 * most_w,
        leak_per_c=0.0075,
        clock_w_per_ghz_v2=0.04 * most_w,
        ambient_c=27.0,
        c_per_w=50.0 / most_w,
        thermal_tau_s=30.0,
        boost_mhz=fastest_mhz,
        boost_knee_c=85.0,
        boost_loss_mhz=15.0,
        boost_step_c=12.0,
    )
