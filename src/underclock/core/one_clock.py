"""A kernel's constants from one run at auto clocks, with what utilisation tells of its bounds.

One run cannot tell how a kernel's time splits between core and memory; DRAM utilisation can, about:
a kernel that keeps DRAM as busy as any does is bound by it, and what DRAM does not explain is left
to the core. Switching energy is what the run's power leaves over.
"""

from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.power import idle_w, voltage_v
from underclock.physics.timing import dram_mhz

BUSIEST_DRAM = 0.93  # utilisation of a plain copy; nothing measured goes beyond about this


def kernel_from_auto(
    gpu: GpuConstants,
    *,
    time_s: float,
    power_w: float,
    core_mhz: float,
    dram_share: float,
    temperature_c: float,
    dram_w: float,
) -> KernelConstants:
    """Derive constants that reproduce one run.

    Args:
        gpu: Shared constants.
        time_s: Duration of a launch.
        power_w: Mean board power.
        core_mhz: Mean core clock.
        dram_share: DRAM bandwidth utilisation, 0 to 1.
        temperature_c: During the run.
        dram_w: Power of DRAM traffic at full utilisation.
    """
    mem = gpu.mem_points_mhz[-1]
    busy = min(0.999, dram_share / BUSIEST_DRAM)
    n = gpu.exponent
    core_s = time_s * (1.0 - busy**n) ** (1.0 / n)
    traffic_w = dram_w * min(1.0, dram_share)
    static_w = float(idle_w(gpu, core_mhz, mem, temperature_c))
    switching_w = max(0.0, power_w - static_w - traffic_w)
    volts = float(voltage_v(gpu, core_mhz))
    return KernelConstants(
        core_mcycles=max(core_s, 1e-3 * time_s) * core_mhz,
        dram_mcycles=time_s * busy * float(dram_mhz(gpu, mem)),
        work_j_per_v2=switching_w * time_s / volts**2,
        dram_j=traffic_w * time_s,
    )
