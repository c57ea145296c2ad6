"""Samples of boards of one model that differ, made up from physics: a step of few kernels."""

import dataclasses
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
    ThrottleReason,
    Window,
)

GPU = gpu_model("rtx3080ti").constants
CORES = (900, 1050, 1200, 1350, 1500, 1590, 1680, 1740, 1785, 1830, 1890)
MEMS = (5001, 9251)
_BOOST_MHZ, _STEADY_C = 1890, 62.0
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


def board_gpu(*, leakage: float = 1.0, offset_v: float = 0.0) -> GpuConstants:
    """Return the constants of a board."""
    return dataclasses.replace(
        GPU, leak_w_per_v3=GPU.leak_w_per_v3 * leakage, floor_v=GPU.floor_v + offset_v
    )


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


LIMIT_W = true_step(GPU, 1740)[1] / true_step(GPU, 1740)[0]
"""Power at which the cap holds the step of the model itself at 1740 MHz."""


def held_mhz(gpu: GpuConstants) -> int:
    """Return the clock at which the cap holds the step."""
    steps = {mhz: true_step(gpu, mhz) for mhz in range(_BOOST_MHZ, 1200, -5)}
    return next(mhz for mhz, (time_s, energy_j) in steps.items() if energy_j <= LIMIT_W * time_s)


def made_board(
    number: int,
    *,
    leakage: float = 1.0,
    offset_v: float = 0.0,
    gain: float = 1.0,
    cores: Sequence[int] = CORES[::2],
) -> SampleSet:
    """Return samples of a board.

    Args:
        number: Of the board, and of its noise.
        leakage: Over the model's.
        offset_v: Of the core's voltage.
        gain: Of its sensors.
        cores: Clocks of kernels; with none, the step was measured, and the hottest at auto.
    """
    gpu, random = board_gpu(leakage=leakage, offset_v=offset_v), np.random.default_rng(number)
    settings = [Clocks(core_mhz=core, mem_mhz=mem) for mem in MEMS for core in CORES]
    asked = [clocks for clocks in settings if clocks.core_mhz in cores]
    samples = [
        _sample(gpu, name, clocks, gain, random)
        for clocks in [*asked, AUTO]
        for name in (KERNELS if cores else ["k5"])
    ]
    mhz = held_mhz(gpu)
    time_s, energy_j = true_step(gpu, mhz)
    whole = [
        Window(
            time_s=time_s,
            energy_j=gain * energy_j * random.normal(1.0, 0.001),
            repeat=i,
            observed=Clocks(core_mhz=mhz, mem_mhz=MEMS[-1]),
            throttle_reasons=(
                ThrottleReason.SW_POWER_CAP if mhz < _BOOST_MHZ else ThrottleReason.NONE
            ),
            temperature_c=_STEADY_C,
        )
        for i in range(4)
    ]
    return SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G", uuid=f"GPU-{number}", power_limit_w=LIMIT_W),
        workload="w",
        kernels=tuple(Kernel(name=name, count=2, kind=Kind.GEMM) for name in KERNELS),
        order=ORDER,
        settings=(AUTO, *settings),
        windows=(*samples, *whole),
    )


def _sample(
    gpu: GpuConstants, name: str, asked: Clocks, gain: float, random: np.random.Generator
) -> Window:
    wanted, mem_mhz = asked.core_mhz or _BOOST_MHZ, asked.mem_mhz or MEMS[-1]
    core = next(
        mhz for mhz in range(wanted, 0, -5) if true_costs(gpu, name, mhz, mem_mhz)[1] <= LIMIT_W
    )
    held = core < wanted
    time_s, power_w = true_costs(gpu, name, core, mem_mhz)
    time_s *= random.normal(1.0, 0.0005)
    power_w = LIMIT_W if held else power_w * random.normal(1.0, 0.003)
    return Window(
        kernel=name,
        asked=asked,
        time_s=time_s,
        energy_j=gain * time_s * power_w,
        observed=Clocks(core_mhz=core, mem_mhz=mem_mhz),
        throttle_reasons=ThrottleReason.SW_POWER_CAP if held else ThrottleReason.NONE,
        temperature_c=_STEADY_C,
    )
