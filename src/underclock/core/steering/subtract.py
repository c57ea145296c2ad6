"""Windows with co-load without it: times and powers of kernels, and what the whole step drew.

A window with co-load gives the time of a launch and the mean power of a round. Less what idling
and the heater drew in it (`coload`), that is a time and a power at the clock that was read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from underclock.core.steering.coload import WINDOW_NOISE, CoLoad, Power, pace_in
from underclock.core.step.power_cap import HALF_BIN_MHZ, is_uneven
from underclock.core.step.whole_step import StepDraw
from underclock.physics.cap import WINDOW_S
from underclock.records import Kernel, Window

HEATER = ""
"""Stands for the name of the heater, which is no kernel of the step."""
HUNTS_MHZ = 40.0
"""Spread of the clock in a window from which its mean says less."""
_TIME_NOISE = 0.002  # of a duration in a window
_MOST_SPREAD = 0.25  # of a power; what is less sure than this says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPoint:
    """What one window says of one kernel."""

    window: Window
    kernel: str  # its name; `HEATER` for the heater by itself
    core_mhz: float  # mean core clock it ran at
    time_s: float
    power_w: float | None = None  # while it ran; ``None`` where that of other kernels is in it
    time_windows: float  # how many windows of the usual length that time is worth
    # how many that power is worth, were co-load known; 0 where there is none
    power_windows: float = 0.0
    # how log power moves with each error of co-load, by its standard deviation. Length H
    common: tuple[float, ...] = ()

    @property
    def variance(self) -> float:
        """Of log power, errors of co-load included; ``inf`` where there is none."""
        if not self.power_windows:
            return math.inf
        return WINDOW_NOISE**2 / self.power_windows + math.hypot(*self.common) ** 2


def timed_windows(mixed: Sequence[Window]) -> list[Window]:
    """Return the windows that say how long launches took at which clock.

    Kernels of a step longer than the cap's window run at clocks of their own. Where some windows
    tell these, windows of such a step that know but their mean are passed over.
    """
    by_kernel = any(window.kernel_mhz for window in mixed)
    return [
        window
        for window in mixed
        if window.kernel_s
        and not is_uneven(window)
        and (window.kernel or window.kernel_mhz or not by_kernel or window.time_s <= WINDOW_S)
    ]


def subtract_coload(
    mixed: Sequence[Window], kernels: Sequence[Kernel], coload: CoLoad
) -> tuple[KernelPoint, ...]:
    """Subtract what co-load drew, of every window that a kernel was in.

    A window of the whole step has each kernel's time at that clock, and no kernel's power; one
    of the heater by itself has its power, of which a model learns how power goes with the clock.
    Where the clock moved within the step, and was not read there, it says nothing.
    """
    points: list[KernelPoint] = []
    # The heater by itself is no launch of ours that was timed.
    heaters = [w for w in mixed if not w.mix.launches and w.hot_s is not None]
    for window in [*timed_windows(mixed), *heaters]:
        whole_step = window.is_step
        unread = whole_step and not window.kernel_mhz
        if unread and window.spread_mhz > HALF_BIN_MHZ and window.time_s > WINDOW_S:
            continue
        names = [window.kernel] if window.kernel else [kernel.name for kernel in kernels]
        if window.mix.launches:
            times_s = dict(zip(names, window.kernel_s, strict=True))
        else:
            times_s = {HEATER: window.hot_s or 0.0}
        shared_clock = unread and len(times_s) > 1
        steady = min(1.0, HUNTS_MHZ / max(window.spread_mhz, HUNTS_MHZ)) ** 2
        if window.spin_mhz is not None:
            # Idling shows the clock at its own place in the round, and kernels ran elsewhere.
            # The heater by itself has no launches of ours.
            clocks_mhz = window.timed_mhz or (window.spin_mhz,) * len(times_s)
            points += [
                KernelPoint(
                    window=window,
                    kernel=name,
                    core_mhz=core_mhz,
                    time_s=time_s,
                    time_windows=steady if shared_clock else 1.0,
                )
                for (name, time_s), core_mhz in zip(times_s.items(), clocks_mhz, strict=True)
            ]
        scale = pace_in(window, _once_s(window, kernels))
        power = None if whole_step else _power(window, kernels, coload)
        if window.spin_mhz is not None and power is None:
            continue
        # Kernels of a step follow the clock each in its own way, and the scale is their mean.
        moved = scale - 1.0 if whole_step else 0.0
        sure = steady / (1.0 + (moved / _TIME_NOISE) ** 2)
        # In windows of the usual length, co-load apart.
        worth = min(1.0, (WINDOW_NOISE * power.mean_w / power.spread_w) ** 2) if power else 0.0
        points += [
            KernelPoint(
                window=window,
                kernel=name,
                core_mhz=window.at_mhz,
                time_s=scale * time_s,
                power_w=power.mean_w if power else None,
                time_windows=sure if window.spin_mhz is None else 0.0,
                power_windows=steady * worth,
                common=tuple((power.shared_w / power.mean_w).tolist()) if power else (),
            )
            for name, time_s in times_s.items()
        ]
    return tuple(points)


def step_draws(
    mixed: Sequence[Window], kernels: Sequence[Kernel], coload: CoLoad
) -> tuple[StepDraw, ...]:
    """Return what the whole step drew, at every clock at which it ran."""
    draws = []
    for window in mixed:
        if not window.kernel and window.kernel_s and not is_uneven(window):
            power = _power(window, kernels, coload)
            if power is not None:
                draws.append(StepDraw(window.at_mhz, power.mean_w, power.total_w))
    return tuple(draws)


def _once_s(window: Window, kernels: Sequence[Kernel]) -> float:
    """Return how long the kernel of a mix, or one step, took when it was timed."""
    if not window.mix.launches:
        return 0.0
    if window.kernel:
        return window.kernel_s[0]
    counted = zip(kernels, window.kernel_s, strict=True)
    return math.fsum(kernel.waited_count * each_s for kernel, each_s in counted)


def _power(window: Window, kernels: Sequence[Kernel], coload: CoLoad) -> Power | None:
    """Return the power of what ran in a mix, or of the heater; ``None`` if hardly known."""
    power = coload.subtract(window, _once_s(window, kernels))
    return None if power is None or power.total_w >= _MOST_SPREAD * power.mean_w else power
