"""Samples of boards of one model that differ, made up from physics: a step of few kernels."""

import math
from collections.abc import Sequence

import numpy as np

from underclock.gpus.models import gpu_model
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Kind,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)

GPU = gpu_model("rtx3080ti").constants
CORES = (900, 1050, 1200, 1350, 1500, 1590, 1680, 1740, 1785, 1830, 1890)
MEMS = (5001, 9251)
_BOOST_MHZ, _HELD_MHZ, _STEADY_C = 1890, 1740, 62.0
KERNELS = {
    f"k{i}": KernelConstants(
        core_mcycles=0.4 + 0.3 * i,
        dram_mcycles=(1.8 - 0.25 * i) * 4.0,
        fixed_s=1e-5,
        work_j_per_v2=0.04 + 0.06 * i,
        dram_j=0.05,
    )
    for i in range(6)
}
ORDER = (0, 1, 2, 3, 4, 5) * 2


def true_costs(
    gpu: GpuConstants, name: str, core_mhz: float, mem_mhz: float
) -> tuple[float, float]:
    """Return time in s and power in W of a launch."""
    kernel = KERNELS[name]
    return (
        float(duration_s(gpu, kernel, core_mhz, mem_mhz)),
        float(busy_w(gpu, kernel, core_mhz, mem_mhz, _STEADY_C)),
    )


def true_step(gpu: GpuConstants, core_mhz: float) -> tuple[float, float]:
    """Return time in s and energy in J of the step at one core clock."""
    each = [true_costs(gpu, f"k{k}", core_mhz, MEMS[-1]) for k in ORDER]
    return math.fsum(s for s, _ in each), math.fsum(s * w for s, w in each)


LIMIT_W = true_step(GPU, _HELD_MHZ)[1] / true_step(GPU, _HELD_MHZ)[0]
"""Power at which the cap holds the step of the model itself at 1740 MHz."""


def made_board(
    number: int,
    *,
    cores: Sequence[int] = CORES[::2],
    mems: Sequence[int | None] = MEMS,
    listed: Sequence[int] = CORES,
) -> SampleSet:
    """Return samples of a board: of kernels alone, and of a step that the cap holds at 1740 MHz."""
    random = np.random.default_rng(number)
    settings = [Clocks(core_mhz=core, mem_mhz=mem) for mem in mems for core in listed]
    asked = [clocks for clocks in settings if clocks.core_mhz in cores]
    samples = [_sample(name, clocks, random) for clocks in [*asked, AUTO] for name in KERNELS]
    time_s, energy_j = true_step(GPU, _HELD_MHZ)
    whole = [
        Window(
            time_s=time_s,
            energy_j=energy_j * random.normal(1.0, 0.001),
            repeat=i,
            observed=Clocks(core_mhz=_HELD_MHZ, mem_mhz=MEMS[-1]),
            throttle_reasons=ThrottleReason.SW_POWER_CAP,
            temperature_c=_STEADY_C,
        )
        for i in range(4)
    ]
    return SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G", uuid=f"GPU-{number}", power_limit_w=LIMIT_W),
        step=Step(
            name="w",
            kernels=tuple(Kernel(name=name, count=2, kind=Kind.GEMM) for name in KERNELS),
            order=ORDER,
        ),
        settings=(AUTO, *settings),
        windows=(*samples, *whole),
    )


def _sample(name: str, asked: Clocks, random: np.random.Generator) -> Window:
    wanted, mem_mhz = asked.core_mhz or _BOOST_MHZ, asked.mem_mhz or MEMS[-1]
    core = next(
        mhz for mhz in range(wanted, 0, -5) if true_costs(GPU, name, mhz, mem_mhz)[1] <= LIMIT_W
    )
    held = core < wanted
    time_s, power_w = true_costs(GPU, name, core, mem_mhz)
    time_s *= random.normal(1.0, 0.0005)
    power_w = LIMIT_W if held else power_w * random.normal(1.0, 0.003)
    return Window(
        kernel=name,
        asked=asked,
        time_s=time_s,
        energy_j=time_s * power_w,
        observed=Clocks(core_mhz=core, mem_mhz=mem_mhz),
        throttle_reasons=ThrottleReason.SW_POWER_CAP if held else ThrottleReason.NONE,
        temperature_c=_STEADY_C,
    )
