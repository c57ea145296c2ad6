"""Company taken off: what is left of mixes for their kernels, and for the step where it ran whole.

A measurement in company gives the time of a launch and the mean power of a round. Less what idling
and the hot companion drew in it (`company`), that is a time and a power at the clock that was read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from underclock.core.steering.company import WINDOW_NOISE, Company, Draw
from underclock.core.step.cap import clock_moves, is_uneven, with_durations
from underclock.records import Kernel, Window

COMPANION = ""
"""Stands for the name of the hot companion, which is no kernel of the step."""
HUNTS_MHZ = 40.0
"""Spread of the clock in a window from which its mean says less."""
_STAYS = 0.2  # of the spread of a step's clock, in the mean clock of one of its kernels: simulated
_TIME_NOISE = 0.002  # of a duration in a window
_MOST_SPREAD = 0.25  # of a power; what is less sure than this tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What one measurement in company tells of one kernel.

    Attributes:
        kernel: Its name; `COMPANION` for the hot companion by itself.
        core_mhz: Mean core clock it ran at.
        mem_mhz: Memory clock asked for; ``None`` is what the driver chose.
        power_w: While it ran; ``None`` where that cannot be told from the others'.
        time_windows: How many windows of the usual length that time is worth.
        power_windows: How many that power is worth, were company known; 0 where there is none.
        temperature_c: ``None`` where it was not read.
        by_company: How log power moves with each error of company, by its standard deviation.
            Length H.
        apart: How far its clock in the whole step is from the mean that was read, as a standard
            deviation of its logarithm: it meets the power loop at the same place each time, so
            measurements have it in common. 0 where nothing else ran.
    """

    kernel: str
    core_mhz: float
    mem_mhz: int | None
    time_s: float
    power_w: float | None = None
    time_windows: float
    power_windows: float = 0.0
    temperature_c: float | None
    by_company: tuple[float, ...] = ()
    apart: float = 0.0

    @property
    def variance(self) -> float:
        """Of log power, errors of company included; ``inf`` where there is none."""
        if not self.power_windows:
            return math.inf
        return WINDOW_NOISE**2 / self.power_windows + math.hypot(*self.by_company) ** 2


def taken_off(
    mixed: Sequence[Window],
    kernels: Sequence[Kernel],
    company: Company,
) -> tuple[Left, ...]:
    """Take off what company drew, of every measurement that a kernel was in.

    A measurement of the whole step tells each kernel's time at that clock, and no kernel's power;
    one of the companion by itself tells what that is, of which a model learns how power goes with
    the clock.
    Where the clock moved within the step it tells nothing.
    """
    left: list[Left] = []
    # The companion by itself is no launch of ours that was timed.
    companions = [s for s in mixed if not s.mix.launches and s.hot_s is not None]
    for sample in [*with_durations(mixed), *companions]:
        if clock_moves(sample):
            continue
        times_s = _times_s(sample, kernels)
        whole_step = sample.is_step
        moves = sample.spread_mhz / sample.at_mhz
        known = not whole_step or sample.kernel_mhz or len(times_s) == 1
        apart = 0.0 if known else _STAYS * moves
        steady = min(1.0, HUNTS_MHZ / max(sample.spread_mhz, HUNTS_MHZ)) ** 2
        if sample.spin_mhz is not None:
            # Idling tells the clock at its own place in the round, and kernels ran elsewhere.
            # The companion by itself has no launches of ours.
            clocks_mhz = sample.timed_mhz or (sample.spin_mhz,) * len(times_s)
            left += [
                Left(
                    kernel=name,
                    core_mhz=core_mhz,
                    mem_mhz=sample.asked.mem_mhz,
                    time_s=time_s,
                    time_windows=steady if apart else 1.0,
                    temperature_c=sample.temperature_c,
                    apart=apart,
                )
                for (name, time_s), core_mhz in zip(times_s.items(), clocks_mhz, strict=True)
            ]
        scale = _as_in_window(sample, kernels)
        draw = None if whole_step else _power(sample, kernels, company, scale)
        if sample.spin_mhz is not None and draw is None:
            continue
        # Kernels of a step follow the clock each in its own way, and the scale is their mean.
        moved = scale - 1.0 if whole_step else 0.0
        sure = steady / (1.0 + (moved / _TIME_NOISE) ** 2)
        # In windows of the usual length, company apart.
        worth = min(1.0, (WINDOW_NOISE * draw.mean_w / draw.spread_w) ** 2) if draw else 0.0
        left += [
            Left(
                kernel=name,
                core_mhz=sample.at_mhz,
                mem_mhz=sample.asked.mem_mhz,
                time_s=scale * time_s,
                power_w=draw.mean_w if draw else None,
                time_windows=sure if sample.spin_mhz is None else 0.0,
                power_windows=steady * worth,
                temperature_c=sample.temperature_c,
                by_company=tuple((draw.shared_w / draw.mean_w).tolist()) if draw else (),
                apart=apart,
            )
            for name, time_s in times_s.items()
        ]
    return tuple(left)


def _times_s(sample: Window, kernels: Sequence[Kernel]) -> dict[str, float]:
    """Return what a launch of each kernel took, or of the companion by itself."""
    if not sample.mix.launches and sample.hot_s is not None:
        return {COMPANION: sample.hot_s}
    names = [sample.kernel] if sample.kernel else [kernel.name for kernel in kernels]
    return dict(zip(names, sample.kernel_s, strict=True))


def _as_in_window(sample: Window, kernels: Sequence[Kernel]) -> float:
    """Return by how much launches took longer in the window of the clock than when timed.

    They are timed a second later, and a clock that hunts is another then: a round tells both.
    What a round takes more than the clock moved by is time between launches.
    """
    step_s = sample.mix.launches * _once_s(sample, kernels)
    parts_s = [step_s, sample.mix.hot * (sample.hot_s or 0.0), sample.idle_s or 0.0]
    scale = sample.time_s / math.fsum(parts_s)
    moved = sample.spread_mhz / sample.at_mhz
    return scale if abs(scale - 1.0) <= moved else 1.0


def _once_s(sample: Window, kernels: Sequence[Kernel]) -> float:
    """Return how long the kernel of a mix, or one step, took when it was timed."""
    if not sample.mix.launches:
        return 0.0
    if sample.kernel:
        return sample.kernel_s[0]
    counted = zip(kernels, sample.kernel_s, strict=True)
    return math.fsum(kernel.waited_count * each_s for kernel, each_s in counted)


def _power(
    sample: Window, kernels: Sequence[Kernel], company: Company, scale: float
) -> Draw | None:
    """Return the power of what ran in a mix, or of the companion; ``None`` if hardly known."""
    hot_s = scale * sample.mix.hot * (sample.hot_s or 0.0)
    own_s = scale * sample.mix.launches * _once_s(sample, kernels)
    draw = company.left(sample, hot_s, own_s)
    return None if draw is None or draw.total_w >= _MOST_SPREAD * draw.mean_w else draw


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDraw:
    """What the whole step drew at one clock, its company taken off."""

    core_mhz: float
    power_w: float
    spread_w: float


def step_draws(
    mixed: Sequence[Window], kernels: Sequence[Kernel], company: Company
) -> tuple[StepDraw, ...]:
    """Return what the whole step drew, at every clock at which it ran."""
    draws = []
    for sample in mixed:
        if sample.kernel or not sample.kernel_s or is_uneven(sample):
            continue
        draw = _power(sample, kernels, company, _as_in_window(sample, kernels))
        if draw is not None:
            draws.append(
                StepDraw(core_mhz=sample.at_mhz, power_w=draw.mean_w, spread_w=draw.total_w)
            )
    return tuple(draws)
