"""What kernels cost on one virtual GPU, its co-load included.

Costs are remembered: a run visits few points, over and over. Some GPUs let no kernel exceed a peak
of power, however low the mean: what would runs slower than the clock that is read. On an H200 with
a limit of 700 W eleven products thinned out by idling drew 963 to 986 W reading 1980 MHz, and took
as long as at about 1800.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.errors import UsageError
from underclock.gpus.models import GpuModel, MemoryLockEffect, gpu_model, name_of_model
from underclock.hw.simulated.boards import Unit
from underclock.physics.cap import capped_core_mhz, settled_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import WarmPower, busy_w, dram_mhz, duration_s, idle_w
from underclock.records import Kind

_NO_EFFECT = MemoryLockEffect()
_REMEMBERED = 50_000  # points; about 10 MB
_WARM_REMEMBERED = 2000  # kernels at a memory clock; about 10 MB
_WARM_C = 100.0
_PEAK_C = 60.0  # at which powers are compared; leakage moves them by little
_SIDE = 8192  # of the matrices of the heater's product; bf16
_BYTES = 2
_FLOPS = 1e12
_LATE_S = 9e-7  # what a count of cycles takes besides, on an idle H200


@dataclass(frozen=True, slots=True, eq=False)  # one is itself: it serves as a key at every stride
class LaunchCost:
    """A kernel at given clocks; power is linear in temperature, through leakage."""

    kernel: KernelConstants | None  # kept alive, so that its identity can serve as a key
    duration_s: float  # of one launch, without noise; 0 for no kernel
    cold_w: float  # at 0 °C
    w_per_c: float
    dram_share: float = 0.0  # part of its time during which DRAM is busy, 0 to 1

    def power_w(self, temperature_c: float) -> float:
        """Return the board power in W."""
        return self.cold_w + self.w_per_c * temperature_c


def flops_for(gpu: str, lasts_s: Sequence[float]) -> tuple[float, ...]:
    """Return the work that a simulated GPU does in each of some times, at its highest clocks."""
    name = name_of_model(gpu)
    model = None if name is None else gpu_model(name)
    if model is None or model.throughput is None:
        raise UsageError(
            f"nothing says how long work takes on a simulated {gpu}",
            hint="serve a packaged one: underclock simulate h200 --socket PATH",
        )
    kernel = model.throughput.kernel(flops=_FLOPS, bytes_moved=0.0, tensor=False)
    highest = max(model.core_mhz), max(model.mem_mhz)
    took_s = float(duration_s(model.constants, kernel, *highest)) - kernel.fixed_s
    return tuple(_FLOPS * max(each_s - kernel.fixed_s, 0.0) / took_s for each_s in lasts_s)


class SimulatedCosts:
    """Durations and powers on one GPU."""

    def __init__(
        self,
        constants: GpuConstants,
        core_mhz: tuple[int, ...],
        peak_w: float | None = None,
        lock: MemoryLockEffect = _NO_EFFECT,
        unit: Unit | None = None,
    ) -> None:
        self.lock = lock
        self._constants = constants
        self._peak_w = math.inf if peak_w is None else peak_w
        self._bins_mhz = np.array(core_mhz, dtype=np.float64)
        even = np.ones_like(self._bins_mhz)
        self._power, self._time = (even, even) if unit is None else (unit.power, unit.time)
        self._known = defaultdict[tuple[float, int], dict[int, LaunchCost]](dict)
        self._warm: dict[tuple[KernelConstants, int], WarmPower] = {}
        self._count = 0  # of all that is remembered

    def at(self, kernel: KernelConstants | None, core_mhz: float, mem_mhz: int) -> LaunchCost:
        """Return what a kernel, or nothing, costs at given clocks."""
        cost = self._known[core_mhz, mem_mhz].get(id(kernel))
        if cost is None:
            if self._count >= _REMEMBERED:
                self._known.clear()
                self._count = 0
            cost = self._new(kernel, core_mhz, float(mem_mhz))
            self._known[core_mhz, mem_mhz][id(kernel)] = cost
            self._count += 1
        return cost

    def known(self, core_mhz: float, mem_mhz: int) -> Mapping[int, LaunchCost]:
        """Return what is remembered at given clocks, by the identity of the kernel."""
        return self._known[core_mhz, mem_mhz]

    def capped_mhz(
        self,
        kernel: KernelConstants,
        wanted_mhz: float,
        mem_mhz: int,
        temperature_c: float,
        limit_w: float,
    ) -> float:
        """Return the mean clock the power loop settles at when one kernel repeats.

        A lock's power and what the loop settles at differ alike, so the clock stays.
        """
        warm = self._warm.get((kernel, mem_mhz))
        if warm is None:
            all_mem_mhz = np.full_like(self._bins_mhz, mem_mhz)
            warm = WarmPower(self._constants, kernel, self._bins_mhz, all_mem_mhz)
            if len(self._warm) >= _WARM_REMEMBERED:
                self._warm.clear()
            self._warm[kernel, mem_mhz] = warm
        count = int(np.searchsorted(self._bins_mhz, wanted_mhz, side="right"))
        power_w = warm.first(count, temperature_c) * self._power[:count]
        return settled_mhz(self._bins_mhz[:count], power_w, limit_w)

    def _new(self, kernel: KernelConstants | None, core_mhz: float, mem_mhz: float) -> LaunchCost:
        gpu = self._constants
        dram_share = 0.0
        if kernel is None:
            taken_s = 0.0
            cold_w, warm_w = (float(idle_w(gpu, core_mhz, mem_mhz, c)) for c in (0.0, _WARM_C))
        else:
            if float(busy_w(gpu, kernel, core_mhz, mem_mhz, _PEAK_C)) > self._peak_w:
                bins_mhz = np.append(self._bins_mhz[self._bins_mhz < core_mhz], core_mhz)
                core_mhz = capped_core_mhz(gpu, kernel, bins_mhz, mem_mhz, _PEAK_C, self._peak_w)
            power, time = (
                np.interp(core_mhz, self._bins_mhz, of) for of in (self._power, self._time)
            )
            taken_s = float(duration_s(gpu, kernel, core_mhz, mem_mhz) * time)
            dram_s = kernel.dram_mcycles / float(dram_mhz(gpu, mem_mhz))
            dram_share = min(1.0, dram_s / taken_s)
            cold_w, warm_w = (
                float(busy_w(gpu, kernel, core_mhz, mem_mhz, c) * power) for c in (0.0, _WARM_C)
            )
        lock = self.lock
        return LaunchCost(
            kernel=kernel,
            duration_s=taken_s * lock.time,
            cold_w=cold_w * lock.power,
            w_per_c=(warm_w - cold_w) / _WARM_C * lock.power,
            dram_share=dram_share,
        )


def heater(model: GpuModel, side: int = _SIDE) -> KernelConstants:
    """Return the heater: a large matrix product, or the hottest that the model has."""
    if model.throughput is not None:
        return model.throughput.kernel(
            flops=2.0 * side**3, bytes_moved=3.0 * _BYTES * side**2, tensor=True
        )
    products = [own.constants for own in model.own if own.kernel.kind is Kind.GEMM]
    own = products or [own.constants for own in model.own]
    core_mhz, mem_mhz = np.float64(model.core_mhz[-1]), np.float64(model.mem_mhz[-1])
    return max(own, key=lambda one: float(busy_w(model.constants, one, core_mhz, mem_mhz, _PEAK_C)))


def idling(model: GpuModel, idle_s: float) -> KernelConstants:
    """Return what counts core cycles, so long at the highest clock; it draws what clocks draw."""
    return KernelConstants(core_mcycles=idle_s * model.core_mhz[-1], fixed_s=_LATE_S)
