"""Time and power of many rows at once, as a function of parameter vectors.

The formulas are those of `physics`; here their constants are arrays, one entry a row, and every
parameter is a logarithm, so that none can turn negative and steps are relative.

Shape letters: R rows, K kernels, M memory clocks, S shared parameters, P = 4 parameters of a
kernel: core cycles, DRAM cycles, fixed time, switching energy.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.rows import PER_KERNEL, Rows
from underclock.physics.constants import GpuConstants
from underclock.physics.power import idle_w, voltage_v
from underclock.physics.timing import dram_mhz, joined, xbar_mhz

CORE, DRAM, FIXED, WORK = range(PER_KERNEL)
_STEP = 1e-5
# Shared parameters: name, and how far from its start it may be expected, as a logarithm.
_NAMED = {
    "exponent": 0.6,
    "xbar_floor_mhz": 0.3,
    "knee_mhz": 0.25,
    "slope_v_per_mhz": 1.0,
    "bend_v_per_mhz2": 1.0,
    "leak_w_per_v3": 0.8,
    "clock_w_per_ghz_v2": 0.8,
    "leak_per_c": 0.5,
}
_DRAM_J, _XBAR = len(_NAMED), len(_NAMED) + 1
_DRAM_J_SPREAD, _XBAR_SPREAD, _MEM_W_SPREAD, _EFFICIENCY_SPREAD = 1.5, 1.0, 0.7, 0.15
_GIVEN_DRAM_J, _GIVEN_XBAR = 0.005, 0.05  # J per Mcycle; crossbar cycles per DRAM cycle


@dataclass(frozen=True, slots=True)
class Shared:
    """What the shared vector stands for.

    Attributes:
        base: Constants that no sweep tells, and where the others begin.
    """

    base: GpuConstants

    def start(self) -> Floats:
        """Return the vector to begin with; also the mean of the prior. Shape (S,)."""
        values = [getattr(self.base, name) for name in _NAMED]
        efficiency = self.base.mem_points_efficiency[:-1]
        given = [_GIVEN_DRAM_J, _GIVEN_XBAR]
        return np.log([*values, *given, *self.base.mem_points_w, *efficiency])

    def spread(self) -> Floats:
        """Return the prior's standard deviations. Shape (S,)."""
        points = len(self.base.mem_points_mhz)
        return np.array(
            [
                *_NAMED.values(),
                *(_DRAM_J_SPREAD, _XBAR_SPREAD),
                *[_MEM_W_SPREAD] * points,
                *[_EFFICIENCY_SPREAD] * (points - 1),
            ]
        )

    def gpu(self, shared: Floats) -> GpuConstants:
        """Return the constants of a vector."""
        values = np.exp(shared)
        points = len(self.base.mem_points_mhz)
        memory = values[_XBAR + 1 :].tolist()
        return dataclasses.replace(
            self.base,
            **dict(zip(_NAMED, values.tolist(), strict=False)),
            mem_points_w=tuple(memory[:points]),
            mem_points_efficiency=(*memory[points:], 1.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Where to predict.

    Attributes:
        kernel: Index of each row's kernel. Shape (R,).
        core_mhz: Shape (R,).
        mem_mhz: Shape (R,).
        temperature_c: Shape (R,).
    """

    kernel: Ints
    core_mhz: Floats
    mem_mhz: Floats
    temperature_c: Floats

    @classmethod
    def of(cls, rows: Rows) -> "Points":
        """Return where rows were measured."""
        return cls(
            kernel=rows.kernel,
            core_mhz=rows.core_mhz,
            mem_mhz=rows.mem_mhz,
            temperature_c=rows.temperature_c,
        )


def predict(
    family: Shared, shared: Floats, kernels: Floats, serial: Bools, at: Points
) -> tuple[Floats, Floats]:
    """Return log time and log power, and their derivatives by the kernel's own parameters.

    Args:
        family: What the shared vector stands for.
        shared: Shape (S,).
        kernels: Shape (K, P).
        serial: Which kernels overlap nothing. Shape (K,).
        at: Where.

    Returns:
        Shapes (2, R) and (2, R, P).
    """
    gpu = family.gpu(shared)
    core, dram, fixed, work = np.exp(kernels[at.kernel]).T
    dram_j, per_dram = np.exp(shared[[_DRAM_J, _XBAR]])
    exponent = np.where(serial[at.kernel], 1.0, gpu.exponent)
    core_s = core / at.core_mhz
    dram_s = dram / dram_mhz(gpu, at.mem_mhz)
    xbar_s = per_dram * dram / xbar_mhz(gpu, at.core_mhz)
    busy_s = joined(core_s, dram_s, xbar_s, exponent)
    time_s = busy_s + fixed
    switching_j = work * voltage_v(gpu, at.core_mhz) ** 2
    traffic_j = dram_j * dram
    static_w = idle_w(gpu, at.core_mhz, at.mem_mhz, at.temperature_c)
    power_w = static_w + (switching_j + traffic_j) / time_s
    # Of a p-norm: d log t / d log part is the part's share to the power p.
    by = np.empty((2, len(time_s), PER_KERNEL))
    by[0, :, CORE] = busy_s * (core_s / busy_s) ** exponent / time_s
    moved = (dram_s / busy_s) ** exponent + (xbar_s / busy_s) ** exponent
    by[0, :, DRAM] = busy_s * moved / time_s
    by[0, :, FIXED] = fixed / time_s
    by[0, :, WORK] = 0.0
    dynamic = (switching_j + traffic_j) / time_s / power_w
    by[1] = -dynamic[:, None] * by[0]
    by[1, :, DRAM] += traffic_j / time_s / power_w
    by[1, :, WORK] += switching_j / time_s / power_w
    return np.log(np.stack([time_s, power_w])), by


def slopes(family: Shared, shared: Floats, kernels: Floats, serial: Bools, at: Points) -> Floats:
    """Return derivatives of log time and log power by the shared parameters. Shape (2, R, S)."""
    here, _ = predict(family, shared, kernels, serial, at)
    found = np.empty((*here.shape, len(shared)))
    for s in range(len(shared)):
        moved = shared.copy()
        moved[s] += _STEP
        found[:, :, s] = (predict(family, moved, kernels, serial, at)[0] - here) / _STEP
    return found
