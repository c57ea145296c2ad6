"""How the logarithms of time and power change with the logarithms of the constants.

t = j + fixed, where j joins the parts of a kernel's time: j^n = x_core^n + x_dram^n + x_xbar^n.
With shares s_i = (x_i / j)^n, d log j = Σ s_i d log x_i + Σ s_i log(s_i) / n · d log n.
P = idle + E / t, where E = work · V² + traffic is the energy of one launch.

Shape letters: R rows, M memory points of the GPU.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import xlogy

from underclock.arrays import Floats
from underclock.physics.constants import GpuConstants, KernelArrays
from underclock.physics.costs import REFERENCE_C, dram_mhz, idle_w, joined, voltage_v, xbar_mhz

BY_KERNEL = (
    "core_mcycles",
    "dram_mcycles",
    "xbar_mcycles",
    "fixed_s",
    "work_j_per_v2",
    "dram_j",
)
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
    """One GPU at many clocks: what is the same there whatever runs.

    Attributes:
        core_mhz: Shape (R,).
        mem_mhz: Shape (R,).
        temperature_c: Shape (R,).
        volts: Core voltage in V. Shape (R,).
        xbar_mhz: Clock of the crossbar. Shape (R,).
        dram_mhz: Clock of the memory, were it fully efficient. Shape (R,).
        idle_w: Board power without what kernels add. Shape (R,).
    """

    gpu: GpuConstants
    core_mhz: Floats
    mem_mhz: Floats
    temperature_c: Floats
    volts: Floats
    xbar_mhz: Floats
    dram_mhz: Floats
    idle_w: Floats

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

    def repeated(self, times: int) -> "AtClocks":
        """Return the GPU at so many copies of the clocks."""
        arrays: dict[str, Any] = {
            each.name: np.tile(getattr(self, each.name), times)
            for each in dataclasses.fields(self)
            if each.name != "gpu"
        }
        return dataclasses.replace(self, **arrays)

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
    """Time and power of kernels at clocks, with what their derivatives are made of.

    Attributes:
        joined_s: Time but the fixed. Shape (R,).
        parts_s: What core, DRAM and crossbar would take alone. Shape (3, R).
        exponent: Which joins them. Shape (R,).
    """

    at: AtClocks
    kernels: KernelArrays
    time_s: Floats
    power_w: Floats
    joined_s: Floats
    parts_s: Floats
    exponent: Floats

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
        by_volt = self._w_per_v() / self.power_w
        by[1, :, 2] = -gpu.knee_mhz * rise * (above_mhz > 0) * by_volt
        by[1, :, 3] = gpu.slope_v_per_mhz * above_mhz * by_volt
        by[1, :, 4] = gpu.bend_v_per_mhz2 * above_mhz**2 * by_volt
        leak_w = gpu.leak_w_per_v3 * self.at.volts**3
        by[1, :, 5] = leak_w * self._warmth() / self.power_w
        by[1, :, 6] = self._clock_w_per_v2() * self.at.volts**2 / self.power_w
        by[1, :, 7] = leak_w * (self._warmth() - 1.0) / self.power_w
        memory = slice(len(BY_GPU), len(BY_GPU) + len(points))
        by[1, :, memory] = near * gpu.mem_points_w / self.power_w[:, None]
        return by

    def _shares(self) -> Floats:
        """Return the shares of core, DRAM and crossbar; they add up to one. Shape (3, R)."""
        shares: Floats = (self.parts_s / np.maximum(self.joined_s, _NO_TIME_S)) ** self.exponent
        return shares

    def _dynamic_share(self) -> Floats:
        """Return the part of power that falls when a kernel takes longer. Shape (R,)."""
        launch_j = self.kernels.work_j_per_v2 * self.at.volts**2 + self.kernels.dram_j
        share: Floats = launch_j / self.time_s / self.power_w
        return share

    def _w_per_v(self) -> Floats:
        """Return how power rises with voltage. Shape (R,)."""
        leak = 3.0 * self.at.gpu.leak_w_per_v3 * self.at.volts**2 * self._warmth()
        work = 2.0 * self.kernels.work_j_per_v2 * self.at.volts / self.time_s
        rise: Floats = leak + 2.0 * self._clock_w_per_v2() * self.at.volts + work
        return rise

    def _warmth(self) -> Floats:
        warmth: Floats = 1.0 + self.at.gpu.leak_per_c * (self.at.temperature_c - REFERENCE_C)
        return warmth

    def _clock_w_per_v2(self) -> Floats:
        clock: Floats = self.at.gpu.clock_w_per_ghz_v2 * self.at.core_mhz / 1000.0
        return clock
