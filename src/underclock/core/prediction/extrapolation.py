"""Extrapolation of a run: what a kernel that reproduces it would cost at other clocks.

Shape letters: S settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.core.prediction.prior import BaselineRun
from underclock.core.prediction.time_shares import OperatingPoint
from underclock.physics.cap import capped_core_mhz
from underclock.physics.constants import GpuConstants, KernelConstants, Values
from underclock.physics.costs import boost_mhz, busy_w, duration_s, idle_w, launch_w
from underclock.records import Clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedClocks:
    """The clocks of every setting; ``nan`` is auto. Shapes (S,)."""

    core_mhz: Floats
    mem_mhz: Floats

    @classmethod
    def of(cls, settings: Sequence[Clocks]) -> "AskedClocks":
        """Return the clocks of settings as arrays."""
        core_mhz, mem_mhz = (
            np.array([math.nan if mhz is None else float(mhz) for mhz in column])
            for column in (
                [clocks.core_mhz for clocks in settings],
                [clocks.mem_mhz for clocks in settings],
            )
        )
        return cls(core_mhz=core_mhz, mem_mhz=mem_mhz)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnKernel:
    """A kernel that reproduces a run.

    Attributes:
        constants: The kernel's constants, which reproduce the run.
        run: What was measured.
        point: The run's conditions; what nobody read of them is drawn.
        limit_w: Power that the kernel cannot exceed.
    """

    constants: KernelConstants
    run: BaselineRun
    point: OperatingPoint
    limit_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRatios:
    """Costs at settings over those of the run. Shapes (S,)."""

    time: Floats
    energy: Floats


def ratios_to_run(gpu: GpuConstants, drawn: DrawnKernel, asked: AskedClocks) -> CostRatios:
    """Return what a drawn kernel costs at settings, over what it cost in its run."""
    kernel, run, point = drawn.constants, drawn.run, drawn.point
    warm_c, limit_w = point.temperature_c, drawn.limit_w
    boost = boost_mhz(gpu, warm_c)
    auto_mhz = max(point.core_mhz, boost) if run.capped else point.core_mhz
    core_mhz = np.where(np.isnan(asked.core_mhz), auto_mhz, asked.core_mhz)
    if not run.locked:
        core_mhz = np.minimum(core_mhz, auto_mhz)
    mem_mhz = np.where(np.isnan(asked.mem_mhz), run.mem_mhz, asked.mem_mhz)
    drawn_w = np.minimum(busy_w(gpu, kernel, core_mhz, mem_mhz, warm_c), limit_w)
    settled_c = warm_c + gpu.c_per_w * (drawn_w - run.power_w)
    if not run.locked:  # a cooler GPU boosts higher
        for s in np.flatnonzero(~(asked.core_mhz < auto_mhz)).tolist():
            cooler_mhz = auto_mhz * boost_mhz(gpu, float(settled_c[s])) / boost
            core_mhz[s] = np.fmin(asked.core_mhz[s], cooler_mhz)
    time_s, power_w = _costs(gpu, kernel, core_mhz, mem_mhz, settled_c)
    over: Bools = power_w > limit_w
    if over.any():
        for mem in np.unique(mem_mhz[over]).tolist():
            rows = mem_mhz == mem
            bins_mhz = np.unique(core_mhz[rows])
            most = capped_core_mhz(gpu, kernel, bins_mhz, mem, warm_c, limit_w)
            core_mhz[rows] = np.minimum(core_mhz[rows], most)
        time_s, power_w = _costs(gpu, kernel, core_mhz, mem_mhz, settled_c)
    run_s, run_w = _costs(gpu, kernel, point.core_mhz, run.mem_mhz, warm_c)
    time = time_s / float(run_s)
    return CostRatios(time=time, energy=time * power_w / float(run_w))


def _costs(
    gpu: GpuConstants,
    kernel: KernelConstants,
    core_mhz: Values,
    mem_mhz: Values,
    temperature_c: float | Values,
) -> tuple[Values, Values]:
    """Return time in s and power in W of a kernel; `busy_w` would work out the time again."""
    taken_s = duration_s(gpu, kernel, core_mhz, mem_mhz)
    own_w = launch_w(gpu, kernel, core_mhz, taken_s)
    return taken_s, idle_w(gpu, core_mhz, mem_mhz, temperature_c) + own_w
