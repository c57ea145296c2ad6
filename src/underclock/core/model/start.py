"""Constants to begin a fit with, for a GPU of which only its clocks and its power are known."""

from collections.abc import Sequence

import numpy as np

from underclock.physics.constants import GpuConstants


def unknown_gpu(
    mem_points_mhz: Sequence[float], *, fastest_mhz: float, most_w: float
) -> GpuConstants:
    """Return constants typical of recent GPUs, scaled to one's clocks and power.

    Args:
        mem_points_mhz: Memory clocks, ascending.
        fastest_mhz: Greatest core clock.
        most_w: Greatest power seen.
    """
    shares = np.asarray(mem_points_mhz) / mem_points_mhz[-1]
    return GpuConstants(
        exponent=3.4,
        xbar_floor_mhz=0.65 * fastest_mhz,
        xbar_lag_mhz=80.0,
        floor_v=0.75,
        knee_mhz=0.7 * fastest_mhz,
        slope_v_per_mhz=0.12 / fastest_mhz,
        bend_v_per_mhz2=1.6 / fastest_mhz**2,
        board_w=0.03 * most_w,
        mem_points_mhz=tuple(float(mhz) for mhz in mem_points_mhz),
        mem_points_w=tuple((0.2 * most_w * shares).tolist()),
        mem_points_efficiency=(1.0,) * len(shares),
        leak_w_per_v3=0.1 * most_w,
        leak_per_c=0.0075,
        clock_w_per_ghz_v2=0.04 * most_w,
        ambient_c=27.0,
        c_per_w=50.0 / most_w,
        thermal_tau_s=30.0,
        boost_mhz=fastest_mhz,
        boost_knee_c=85.0,
        boost_loss_mhz=15.0,
        boost_step_c=12.0,
    )
