"""What kernels cost on one virtual GPU, remembered: a run visits few points, over and over.

Some GPUs let no kernel exceed a peak of power, however low the mean: what would runs slower than
the clock that is read. On an H200 with a limit of 700 W eleven products thinned out by idling drew
963 to 986 W reading 1980 MHz, and took as long as at about 1800.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from underclock.physics.cap import capped_core_mhz, settled_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import WarmPower, busy_w, dram_mhz, duration_s, idle_w

_REMEMBERED = 50_000  # points; about 10 MB
_WARM_REMEMBERED = 2000  # kernels at a memory clock; about 10 MB
_WARM_C = 100.0
_PEAK_C = 60.0  # at which a peak of power is compared with; leakage moves it by little


@dataclass(frozen=True, slots=True, eq=False)  # one is itself: it serves as a key at every stride
class LaunchCost:
    """A kernel at given clocks; power is linear in temperature, through leakage.

    Attributes:
        kernel: Kept alive, so that its identity can serve as a key; ``None`` for none.
        duration_s: Of one launch, without noise; 0 for no kernel.
        cold_w: Power at 0 °C.
        w_per_c: Rise of power with temperature.
        core_share: Part of its time during which the core is busy, 0 to 1.
        dram_share: Part during which DRAM is.
    """

    kernel: KernelConstants | None
    duration_s: float
    cold_w: float
    w_per_c: float
    core_share: float = 0.0
    dram_share: float = 0.0

    def power_w(self, temperature_c: float) -> float:
        """Return the board power in W."""
        return self.cold_w + self.w_per_c * temperature_c


class Costs:
    """Durations and powers on one GPU.

    Args:
        constants: Of the GPU.
        core_mhz: Its clock table, ascending.
        peak_w: No kernel draws more; ``None`` where nothing but the cap of the mean holds it.
    """

    def __init__(
        self, constants: GpuConstants, core_mhz: tuple[int, ...], peak_w: float | None = None
    ) -> None:
        self._constants = constants
        self._peak_w = math.inf if peak_w is None else peak_w
        self._bins_mhz = np.array(core_mhz, dtype=np.float64)
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
        """Return the mean clock the power loop settles at when one kernel repeats."""
        warm = self._warm.get((kernel, mem_mhz))
        if warm is None:
            all_mem_mhz = np.full_like(self._bins_mhz, mem_mhz)
            warm = WarmPower.of(self._constants, kernel, self._bins_mhz, all_mem_mhz)
            if len(self._warm) >= _WARM_REMEMBERED:
                self._warm.clear()
            self._warm[kernel, mem_mhz] = warm
        count = int(np.searchsorted(self._bins_mhz, wanted_mhz, side="right"))
        return settled_mhz(self._bins_mhz[:count], warm.first(count, temperature_c), limit_w)

    def memory_share(self, kernel: KernelConstants, core_mhz: float, mem_mhz: int) -> float:
        """Return the part of a kernel's time during which the memory is busy."""
        return self.at(kernel, core_mhz, mem_mhz).dram_share

    def _new(self, kernel: KernelConstants | None, core_mhz: float, mem_mhz: float) -> LaunchCost:
        gpu = self._constants
        core_share = dram_share = 0.0
        if kernel is None:
            taken_s = 0.0
            cold_w, warm_w = (float(idle_w(gpu, core_mhz, mem_mhz, c)) for c in (0.0, _WARM_C))
        else:
            core_mhz = self._under_peak(kernel, core_mhz, mem_mhz)
            taken_s = float(duration_s(gpu, kernel, core_mhz, mem_mhz))
            core_share = min(1.0, kernel.core_mcycles / core_mhz / taken_s)
            dram_s = kernel.dram_mcycles / float(dram_mhz(gpu, mem_mhz))
            dram_share = min(1.0, dram_s / taken_s)
            cold_w, warm_w = (
                float(busy_w(gpu, kernel, core_mhz, mem_mhz, c)) for c in (0.0, _WARM_C)
            )
        return LaunchCost(
            kernel=kernel,
            duration_s=taken_s,
            cold_w=cold_w,
            w_per_c=(warm_w - cold_w) / _WARM_C,
            core_share=core_share,
            dram_share=dram_share,
        )

    def _under_peak(self, kernel: KernelConstants, core_mhz: float, mem_mhz: float) -> float:
        """Return the core clock as which a kernel runs, which the peak of power may lower."""
        if float(busy_w(self._constants, kernel, core_mhz, mem_mhz, _PEAK_C)) <= self._peak_w:
            return core_mhz
        bins_mhz = np.append(self._bins_mhz[self._bins_mhz < core_mhz], core_mhz)
        return capped_core_mhz(self._constants, kernel, bins_mhz, mem_mhz, _PEAK_C, self._peak_w)
