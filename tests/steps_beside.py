"""A step with a collective beside its products, held by its limit at auto: its samples.

Truth is physics: all launches draw what they draw, and the step takes as long as what it waits for.
"""

import msgspec
import numpy as np

from made_boards import GPU, KERNELS
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s, idle_w
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Pass,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)
from windows import gathered

MEM_MHZ, _BOOST_MHZ, STEADY_C, AUTO_MHZ = 9251, 1890, 62.0, 1740
_CORES = (900, 1200, 1500, 1680, 1785, _BOOST_MHZ)
_PRODUCTS = tuple(KERNELS.values())[:5]
_COLLECTIVE = KernelConstants(  # the network bounds it
    core_mcycles=0.05, dram_mcycles=2.0, fixed_s=1.2e-3, work_j_per_v2=0.05, dram_j=0.02
)
_ALL = (*_PRODUCTS, _COLLECTIVE)
ORDER = (0, 1, 5, 2, 3, 4) * 2


def taken(k: int, core_mhz: float) -> tuple[float, float]:
    """Return time in s and power in W of a launch by itself."""
    return (
        duration_s(GPU, _ALL[k], core_mhz, MEM_MHZ),
        busy_w(GPU, _ALL[k], core_mhz, MEM_MHZ, STEADY_C),
    )


def step_beside(core_mhz: float, share: float) -> tuple[float, float]:
    """Return time in s and energy in J of a step that waits for a share of its collectives."""
    anyway_w = float(idle_w(GPU, core_mhz, MEM_MHZ, STEADY_C))
    time_s = energy_j = 0.0
    for k in ORDER:
        each_s, each_w = taken(k, core_mhz)
        waited_s = each_s * (share if k == 5 else 1.0)
        time_s += waited_s
        energy_j += anyway_w * waited_s + (each_w - anyway_w) * each_s
    return time_s, energy_j


def _sample(k: int, asked: Clocks, seed: int, limit_w: float) -> Window:
    random = np.random.default_rng([seed, k])
    wanted = asked.core_mhz or _BOOST_MHZ
    core = next(mhz for mhz in range(wanted, 0, -1) if taken(k, mhz)[1] <= limit_w)
    time_s, power_w = taken(k, core)
    time_s *= random.normal(1.0, 0.001)
    return Window(
        kernel=f"k{k}",
        asked=asked,
        time_s=time_s,
        energy_j=time_s * power_w * random.normal(1.0, 0.004),
        observed=Clocks(core_mhz=core, mem_mhz=MEM_MHZ),
        throttle_reasons=ThrottleReason.SW_POWER_CAP if core < wanted else ThrottleReason.NONE,
        temperature_c=STEADY_C,
    )


def campaign_beside(true: float, told: float) -> SampleSet:
    """Return samples of a step that waits for a share of its collectives, and is told one."""
    time_s, energy_j = step_beside(AUTO_MHZ, true)
    limit_w = energy_j / time_s
    settings = [Clocks(core_mhz=core) for core in _CORES]
    whole = Window(
        kernel="w",
        time_s=time_s,
        energy_j=energy_j,
        observed=Clocks(core_mhz=AUTO_MHZ, mem_mhz=MEM_MHZ),
        throttle_reasons=ThrottleReason.SW_POWER_CAP,
        temperature_c=STEADY_C,
    )
    kernels = [Kernel(name=f"k{k}", count=2, pass_=Pass.FORWARD) for k in range(6)]
    kernels[5] = msgspec.structs.replace(kernels[5], pass_=Pass.COMMUNICATION, waited_for=told)
    return SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G", power_limit_w=limit_w),
        step=Step(name="w", kernels=tuple(kernels), order=ORDER),
        settings=tuple(settings),
        windows=gathered(
            tuple(
                _sample(k, asked, i, limit_w)
                for i, asked in enumerate([*settings, AUTO])
                for k in range(6)
            ),
            in_situ=tuple(msgspec.structs.replace(whole, repeat=i) for i in range(5)),
        ),
    )
