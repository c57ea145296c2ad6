"""How long a kernel takes at given clocks, what the board draws, and how temperature follows.

t = (t_core^n + t_dram^n + t_xbar^n)^(1/n) + fixed. With n near 3.4 the greatest error on a
measured layer-norm sweep was 0.6 %; n → ∞ would be the roofline. A kernel with too few warps in
flight overlaps nothing: its parts add, n = 1.

P = board + memory(f_mem) + traffic + leakage(V, T) + V² · (clock tree · f + switching).

The traffic and switching of a kernel are energies per launch, so their power falls when the kernel
takes longer. Below the knee of the voltage curve a lower core clock saves little; the best
efficiency sits at the knee.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import xlogy

from underclock.arrays import Floats
from underclock.physics.constants import GpuConstants, KernelArrays, KernelLike, Values

_SHORTEST_S = 1e-15  # keeps a kernel that is all fixed time from dividing by zero
REFERENCE_C = 25.0  # at which leakage is stated
AMBIENT_C = 28.0
"""Air that cools a GPU, where it was not read: machine rooms keep their inlets at 18 to 27 °C
(ASHRAE, class A1), and other parts of a machine warm it."""


def xbar_mhz(gpu: GpuConstants, core_mhz: Values) -> Values:
    """Return the crossbar clock in MHz: a floor, then a fixed lag behind the core.

    Source: an RTX 3070 Ti holds 1335 MHz until the core passes about 1450, then core - 80.
    """
    clock: Values = np.maximum(gpu.xbar_floor_mhz, core_mhz - gpu.xbar_lag_mhz)
    return clock


def dram_mhz(gpu: GpuConstants, mem_mhz: Values) -> Values:
    """Return the memory clock in MHz that would move as many bytes at full efficiency."""
    efficiency: Values = np.interp(mem_mhz, gpu.mem_points_mhz, gpu.mem_points_efficiency)
    return mem_mhz * efficiency


def duration_s(
    gpu: GpuConstants,
    kernel: KernelLike[float] | KernelLike[Values],
    core_mhz: Values,
    mem_mhz: Values,
) -> Values:
    """Return the duration of one launch in s."""
    core_s: Values = kernel.core_mcycles / core_mhz
    dram_s: Values = kernel.dram_mcycles / dram_mhz(gpu, mem_mhz)
    xbar_s: Values = kernel.xbar_mcycles / xbar_mhz(gpu, core_mhz)
    return joined(core_s, dram_s, xbar_s, kernel.exponent(gpu)) + kernel.fixed_s


def joined(core_s: Values, dram_s: Values, xbar_s: Values, exponent: float | Values) -> Values:
    """Return the p-norm in s of the parts of a kernel's time."""
    # Relative to the longest part, so that no power overflows.
    longest: Values = np.maximum(np.maximum(np.maximum(core_s, dram_s), xbar_s), _SHORTEST_S)
    total: Values = (
        (core_s / longest) ** exponent
        + (dram_s / longest) ** exponent
        + (xbar_s / longest) ** exponent
    )
    together: Values = longest * total ** (1.0 / exponent)
    return together


def voltage_v(gpu: GpuConstants, core_mhz: Values) -> Values:
    """Return the core voltage in V: a floor, then a rise that steepens.

    Source of the shape: RTX 3070 Ti, 0.815 V up to 1500 MHz, 0.894 V at 1695, 1.08 V at 2024.
    """
    above: Values = np.maximum(core_mhz - gpu.knee_mhz, 0.0)
    return gpu.floor_v + gpu.slope_v_per_mhz * above + gpu.bend_v_per_mhz2 * above**2


def idle_w(
    gpu: GpuConstants, core_mhz: Values, mem_mhz: Values, temperature_c: float | Values
) -> Values:
    """Return the board power in W while clocks run and nothing else does."""
    volts = voltage_v(gpu, core_mhz)
    warmth = 1.0 + gpu.leak_per_c * (temperature_c - REFERENCE_C)
    memory_w: Values = np.interp(mem_mhz, gpu.mem_points_mhz, gpu.mem_points_w)
    return (
        gpu.board_w
        + memory_w
        + gpu.leak_w_per_v3 * volts**3 * warmth
        + gpu.clock_w_per_ghz_v2 * volts**2 * core_mhz / 1000.0
    )


def busy_w(
    gpu: GpuConstants,
    kernel: KernelLike[float] | KernelLike[Values],
    core_mhz: Values,
    mem_mhz: Values,
    temperature_c: float | Values,
) -> Values:
    """Return the board power in W while a kernel runs over and over."""
    taken_s = duration_s(gpu, kernel, core_mhz, mem_mhz)
    own_w = launch_w(gpu, kernel, core_mhz, taken_s)
    return idle_w(gpu, core_mhz, mem_mhz, temperature_c) + own_w


class WarmPower:
    """Board power while a kernel runs over and over at clocks, each (R,), for any temperature.

    What does not depend on the temperature is worked out once.
    """

    def __init__(
        self,
        gpu: GpuConstants,
        kernel: KernelLike[float] | KernelLike[Floats],
        core_mhz: Floats,
        mem_mhz: Floats,
    ) -> None:
        volts = voltage_v(gpu, core_mhz)
        self._gpu = gpu
        self._calm_w = gpu.board_w + np.interp(mem_mhz, gpu.mem_points_mhz, gpu.mem_points_w)
        self._leak_w = gpu.leak_w_per_v3 * volts**3
        self._tree_w = gpu.clock_w_per_ghz_v2 * volts**2 * core_mhz / 1000.0
        self._own_w = launch_w(gpu, kernel, core_mhz, duration_s(gpu, kernel, core_mhz, mem_mhz))

    def first(self, count: int, temperature_c: float) -> Floats:
        """Return what `busy_w` does at the first clocks, to the last bit. Shape (count,)."""
        some = slice(count)
        warmth = 1.0 + self._gpu.leak_per_c * (temperature_c - REFERENCE_C)
        idle_w = self._calm_w[some] + self._leak_w[some] * warmth + self._tree_w[some]
        return idle_w + self._own_w[some]


def launch_w(
    gpu: GpuConstants,
    kernel: KernelLike[float] | KernelLike[Values],
    core_mhz: Values,
    taken_s: Values,
) -> Values:
    """Return what a kernel adds to the board power in W; ``taken_s`` is its `duration_s`."""
    per_launch_j: Values = kernel.work_j_per_v2 * voltage_v(gpu, core_mhz) ** 2 + kernel.dram_j
    return per_launch_j / taken_s


def temperature_after(gpu: GpuConstants, start_c: float, power_w: float, elapsed_s: float) -> float:
    """Return the temperature in °C after a stretch of constant power: one exponential."""
    steady_c = gpu.ambient_c + gpu.c_per_w * power_w
    return steady_c + (start_c - steady_c) * math.exp(-elapsed_s / gpu.thermal_tau_s)


def boost_mhz(gpu: GpuConstants, temperature_c: float) -> float:
    """Return the core clock in MHz of a GPU left to itself, before any power limit.

    Source: about one 15 MHz bin is lost per 4 °C.
    """
    steps = max(0.0, math.floor((temperature_c - gpu.boost_knee_c) / gpu.boost_step_c))
    return gpu.boost_mhz - gpu.boost_loss_mhz * steps


BY_KERNEL = ("core_mcycles", "dram_mcycles", "xbar_mcycles", "fixed_s", "work_j_per_v2", "dram_j")
"""Constants of a kernel, in the order of the derivatives by them."""
BY_GPU = (
    "exponent",
    "xbar_floor_mhz",
    "knee_mhz",
    "slope_v_per_mhz",
    "bend_v_per_mhz2",
    "leak_w_per_v3",
    "clock_w_per_ghz_v2",
    "leak_per_c",
)
"""Constants of a GPU, in the order of the derivatives by them; the memory points come after."""
_NO_TIME_S = 1e-300  # keeps a kernel that is all fixed time from dividing by zero


@dataclass(frozen=True, slots=True, kw_only=True)
class AtClocks:
    """One GPU at many clocks: what is the same there whatever runs."""

    gpu: GpuConstants
    core_mhz: Floats  # (R,)
    mem_mhz: Floats  # (R,)
    temperature_c: Floats  # (R,)
    volts: Floats  # core voltage in V, (R,)
    xbar_mhz: Floats  # clock of the crossbar, (R,)
    dram_mhz: Floats  # clock of the memory, were it fully efficient, (R,)
    idle_w: Floats  # board power without what kernels add, (R,)

    @classmethod
    def of(
        cls, gpu: GpuConstants, core_mhz: Floats, mem_mhz: Floats, temperature_c: Floats
    ) -> "AtClocks":
        """Look at a GPU at clocks, each of shape (R,)."""
        return cls(
            gpu=gpu,
            core_mhz=core_mhz,
            mem_mhz=mem_mhz,
            temperature_c=temperature_c,
            volts=voltage_v(gpu, core_mhz),
            xbar_mhz=xbar_mhz(gpu, core_mhz),
            dram_mhz=dram_mhz(gpu, mem_mhz),
            idle_w=idle_w(gpu, core_mhz, mem_mhz, temperature_c),
        )

    def costs(self, kernels: KernelArrays) -> "LogCosts":
        """Return what the kernel of each row costs there."""
        parts = (
            kernels.core_mcycles / self.core_mhz,
            kernels.dram_mcycles / self.dram_mhz,
            kernels.xbar_mcycles / self.xbar_mhz,
        )
        exponent = kernels.exponent(self.gpu)
        joined_s = joined(*parts, exponent)
        time_s = joined_s + kernels.fixed_s
        launch_j = kernels.work_j_per_v2 * self.volts**2 + kernels.dram_j
        return LogCosts(
            at=self,
            kernels=kernels,
            time_s=time_s,
            power_w=self.idle_w + launch_j / time_s,
            joined_s=joined_s,
            parts_s=np.array(parts),
            exponent=exponent,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCosts:
    """Time and power of kernels at clocks, with what their derivatives are made of."""

    at: AtClocks
    kernels: KernelArrays
    time_s: Floats
    power_w: Floats
    joined_s: Floats  # time but the fixed, (R,)
    parts_s: Floats  # what core, DRAM and crossbar would take alone, (3, R)
    exponent: Floats  # which joins them, (R,)

    @property
    def log(self) -> Floats:
        """Logarithms of time in s and power in W; NaN where constants give less than 0.

        Shape (2, R).
        """
        values = np.array([self.time_s, self.power_w])
        log: Floats = np.log(values, out=np.full_like(values, np.nan), where=values > 0.0)
        return log

    def by_kernel(self) -> Floats:
        """Return derivatives by the kernel's constants, as in `BY_KERNEL`. Shape (2, R, 6)."""
        kernels = self.kernels
        by = np.zeros((2, len(self.time_s), len(BY_KERNEL)))
        by[0, :, :3] = (self.joined_s * self._shares() / self.time_s).T
        by[0, :, 3] = kernels.fixed_s / self.time_s
        by[1] = -self._dynamic_share()[:, None] * by[0]
        launch_j = self.time_s * self.power_w
        by[1, :, 4] = kernels.work_j_per_v2 * self.at.volts**2 / launch_j
        by[1, :, 5] = kernels.dram_j / launch_j
        return by

    def by_gpu(self) -> Floats:
        """Return derivatives by the GPU's constants. Shape (2, R, 8 + 2 M).

        The columns are those of `BY_GPU`, then power and efficiency of each memory point.
        """
        gpu = self.at.gpu
        by = np.zeros((2, len(self.time_s), len(BY_GPU) + 2 * len(gpu.mem_points_mhz)))
        joined_share, shares = self.joined_s / self.time_s, self._shares()
        sharpness = xlogy(shares, shares).sum(axis=0) / self.exponent
        by[0, :, 0] = joined_share * np.where(self.kernels.serial, 0.0, sharpness)
        at_floor = xbar_mhz(gpu, self.at.core_mhz) <= gpu.xbar_floor_mhz
        by[0, :, 1] = -joined_share * shares[2] * at_floor
        # What each memory point has to say at each row's clock, as a part of the whole.
        points = np.eye(len(gpu.mem_points_mhz))
        near = np.stack(
            [np.interp(self.at.mem_mhz, gpu.mem_points_mhz, p) for p in points], axis=-1
        )
        efficiency = near * gpu.mem_points_efficiency
        efficiency /= efficiency.sum(axis=-1, keepdims=True)
        by[0, :, -len(points) :] = -(joined_share * shares[1])[:, None] * efficiency
        by[1] = -self._dynamic_share()[:, None] * by[0]
        above_mhz = np.maximum(self.at.core_mhz - gpu.knee_mhz, 0.0)
        rise = gpu.slope_v_per_mhz + 2.0 * gpu.bend_v_per_mhz2 * above_mhz
        warmth = 1.0 + gpu.leak_per_c * (self.at.temperature_c - REFERENCE_C)
        tree_w_per_v2 = gpu.clock_w_per_ghz_v2 * self.at.core_mhz / 1000.0
        leak_w_per_v = 3.0 * gpu.leak_w_per_v3 * self.at.volts**2 * warmth
        work_w_per_v = 2.0 * self.kernels.work_j_per_v2 * self.at.volts / self.time_s
        tree_w_per_v = 2.0 * tree_w_per_v2 * self.at.volts
        by_volt = (leak_w_per_v + tree_w_per_v + work_w_per_v) / self.power_w
        by[1, :, 2] = -gpu.knee_mhz * rise * (above_mhz > 0) * by_volt
        by[1, :, 3] = gpu.slope_v_per_mhz * above_mhz * by_volt
        by[1, :, 4] = gpu.bend_v_per_mhz2 * above_mhz**2 * by_volt
        leak_w = gpu.leak_w_per_v3 * self.at.volts**3
        by[1, :, 5] = leak_w * warmth / self.power_w
        by[1, :, 6] = tree_w_per_v2 * self.at.volts**2 / self.power_w
        by[1, :, 7] = leak_w * (warmth - 1.0) / self.power_w
        memory = slice(len(BY_GPU), len(BY_GPU) + len(points))
        by[1, :, memory] = near * gpu.mem_points_w / self.power_w[:, None]
        return by

    def _shares(self) -> Floats:
        """Return the shares of core, DRAM and crossbar; they add up to one. Shape (3, R)."""
        return (self.parts_s / np.maximum(self.joined_s, _NO_TIME_S)) ** self.exponent

    def _dynamic_share(self) -> Floats:
        """Return the part of power that falls when a kernel takes longer. Shape (R,)."""
        launch_j = self.kernels.work_j_per_v2 * self.at.volts**2 + self.kernels.dram_j
        return launch_j / self.time_s / self.power_w
