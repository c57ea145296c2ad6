"""Measurements with co-load, made up by hand: what each tells can be worked out on paper."""

from typing import Any

import msgspec

from underclock.core.model.parameters import unknown_gpu
from underclock.core.steering.coload import CoLoad
from underclock.core.steering.subtract import KernelPoint
from underclock.records import Kernel, Mix, Window

SHAPE = unknown_gpu([1.0], fastest_mhz=2000.0, most_w=700.0)
STEP_KERNELS = (Kernel(name="a", count=2), Kernel(name="b"))
IDLE = Window(
    kernel="",
    mix=Mix(launches=0, idle_s=0.02),
    core_mhz=2000.0,
    core_spread_mhz=0.0,
    time_s=0.02,
    energy_j=2.0,
    idle_s=0.02,
    window_s=1.0,
)


def made_coload(*more: Window) -> CoLoad:
    return CoLoad.of([IDLE, *more], SHAPE, 1.0)


def made_mix(**changed: Any) -> Window:
    """Return a kernel of 1 ms that idles as long, at 500 W and 100 W, at 2000 MHz."""
    fields = {
        "kernel": "a",
        "mix": Mix(idle_s=1e-3),
        "time_s": 2e-3,
        "energy_j": 0.6,
        "kernel_s": (1e-3,),
        "idle_s": 1e-3,
        "spin_mhz": 2000.0,
    } | changed
    return msgspec.structs.replace(IDLE, **fields)


def made_point(
    kernel: str, power_w: float | None, core_mhz: float = 2000.0, windows: float = 1.0
) -> KernelPoint:
    return KernelPoint(
        kernel=kernel,
        core_mhz=core_mhz,
        time_s=1e-3,
        power_w=power_w,
        time_windows=1.0,
        power_windows=windows if power_w else 0.0,
        window=IDLE,
    )


def made_rung(core_mhz: float, hot_s: float, power_w: float, **changed: Any) -> Window:
    """Return the heater, idling as long as it ran."""
    return made_mix(
        kernel="",
        mix=Mix(launches=0, hot=1, idle_s=hot_s),
        core_mhz=core_mhz,
        time_s=2 * hot_s,
        energy_j=hot_s * (power_w + 100.0),
        kernel_s=(),
        hot_s=hot_s,
        idle_s=hot_s,
        spin_mhz=None,
        **changed,
    )
