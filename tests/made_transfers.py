"""Samples of a small GPT-3 at one size, made up from physics, and what another size truly costs."""

import math

import numpy as np

from underclock.gpus.models import gpu_model
from underclock.physics.costs import busy_w, duration_s
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)
from underclock.workloads import workload

MODEL = gpu_model("rtx3080ti")
CORES, MEM_MHZ, BOOST_MHZ, STEADY_C = (900, 1200, 1500, 1680, 1785, 1890), 9251, 1890, 62.0
LIMIT_W = 1000.0
"""So high that no kernel is held."""


def gpt(**sizes: int) -> Step:
    """Return one layer of the smallest GPT-3."""
    return workload("gpt3-125m", {"layers": 1, "batch": 16, "collectives": 0, **sizes})


def true_costs(kernel: Kernel, core_mhz: float) -> tuple[float, float]:
    """Return time in s and power in W of a launch."""
    constants = MODEL.kernel(kernel)
    return (
        float(duration_s(MODEL.constants, constants, core_mhz, MEM_MHZ)),
        float(busy_w(MODEL.constants, constants, core_mhz, MEM_MHZ, STEADY_C)),
    )


def true_step(step: Step, core_mhz: float) -> tuple[float, float]:
    """Return time in s and energy in J of a step at one core clock."""
    each = [(k.count, *true_costs(k, core_mhz)) for k in step.kernels]
    return math.fsum(n * s for n, s, _ in each), math.fsum(n * s * w for n, s, w in each)


def made_samples(step: Step, *, whole: bool = True, held_mhz: int = BOOST_MHZ) -> SampleSet:
    """Return samples of a step, as a campaign takes them.

    Args:
        held_mhz: Clock at which the cap holds the step; by default it holds nothing.
    """
    time_s, energy_j = true_step(step, held_mhz)
    held = held_mhz < BOOST_MHZ
    limit_w = energy_j / time_s if held else LIMIT_W
    random = np.random.default_rng(5)
    settings = tuple(Clocks(core_mhz=core) for core in CORES)
    windows = []
    for kernel in step.kernels:
        for asked in (*settings, AUTO):
            wanted = asked.core_mhz or BOOST_MHZ
            core = next(c for c in range(wanted, 0, -15) if true_costs(kernel, c)[1] <= limit_w)
            time_s, power_w = true_costs(kernel, core)
            time_s *= random.normal(1.0, 0.0005)
            windows.append(
                Window(
                    kernel=kernel.name,
                    asked=asked,
                    time_s=time_s,
                    energy_j=time_s * power_w * random.normal(1.0, 0.003),
                    observed=Clocks(core_mhz=core, mem_mhz=MEM_MHZ),
                    throttle_reasons=_why(held=core < wanted),
                    temperature_c=STEADY_C,
                )
            )
    time_s, energy_j = true_step(step, held_mhz)
    in_situ = [
        Window(
            time_s=time_s * random.normal(1.0, 0.0003),
            energy_j=energy_j * random.normal(1.0, 0.002),
            repeat=repeat,
            observed=Clocks(core_mhz=held_mhz, mem_mhz=MEM_MHZ),
            throttle_reasons=_why(held=held),
            temperature_c=STEADY_C,
        )
        for repeat in range(5)
    ]
    return SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G", power_limit_w=limit_w),
        step=Step(name=step.name, kernels=step.kernels, order=step.order),
        settings=settings,
        windows=(*windows, *(in_situ if whole else ())),
    )


def _why(*, held: bool) -> ThrottleReason:
    return ThrottleReason.SW_POWER_CAP if held else ThrottleReason.NONE
