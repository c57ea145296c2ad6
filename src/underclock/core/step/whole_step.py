"""A step costed by runs of all of it: one clock for the whole step.

Such runs give, at every clock, the time of each launch inside the step and the energy of the step
alone. A launch takes w·V² + q above idle at a voltage V (docs/model.md), so whole steps at one
clock each determine the sums of w and of q over the step and not those of a kernel or a pass. The
step is therefore costed as one kernel with one clock.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from underclock.arrays import Floats
from underclock.core.step.power_cap import HALF_BIN_MHZ, driver_says, is_uneven
from underclock.records import ALONE, AUTO, Choice, Clocks, Kernel, SampleSet, Step, Window
from underclock.units import format_percent

STEADY_C = 55.0
"""Where no temperature was read."""


def temperature_c_of(window: Window) -> float:
    """Return a window's temperature, as usual where it was not read."""
    return STEADY_C if window.temperature_c is None else window.temperature_c


class FitRow(NamedTuple):
    """One window of one kernel, as the columns of `Rows`."""

    kernel: int
    core_mhz: float
    mem_mhz: float
    log_s: float
    log_w: float
    temperature_c: float
    time_windows: float
    power_windows: float
    common: tuple[float, ...] = ()

    def counted(self, time: float, energy: float) -> "FitRow":
        """Return it as it counts among repeats; power is energy over time, and odd with either."""
        return self._replace(
            time_windows=time * self.time_windows,
            power_windows=min(time, energy) * self.power_windows,
        )


class Idling(NamedTuple):
    """What the GPU drew while clocks ran and nothing else did: of no kernel, so of all."""

    core_mhz: float
    mem_mhz: float
    temperature_c: float
    log_w: float


class StepDraw(NamedTuple):
    """What the whole step drew at one clock, without its co-load."""

    core_mhz: float
    power_w: float
    spread_w: float


WHOLE = Kernel(name="the whole step")
WHOLE_STEPS = 4
"""Windows of the whole step to begin with: everything is compared with them."""
_CLOCKS, _APART_MHZ = 3, 50.0  # from which whole steps say what one clock costs
_WARMED_C = 8.0  # below the warmest step: 0.5 % of an H100's power
_NEAR = 0.2  # of log clock, within which a line holds
_LEVEL = 1e-12


def is_only_whole(sample_set: SampleSet) -> bool:
    """Whether a step ran whole and none of its kernels alone."""
    return bool(sample_set.order and sample_set.in_situ and not sample_set.samples)


def whole_steps(sample_set: SampleSet) -> SampleSet | None:
    """Return the samples of whole steps alone; ``None`` where those ran at fewer than three clocks.

    What one clock for all of a step costs they say directly, and sums of kernels alone with all the
    errors of those: on 6 H200s and an H100 half-widths of 0.6 to 2.2 points against 1.5 to 6.
    """
    windows = tuple(window for window in sample_set.windows if not window.kernel)
    of_steps = warmed(msgspec.structs.replace(sample_set, windows=windows))
    timed = [w for w in of_steps.windows if w.is_step and (w.kernel_s or not w.asked.is_auto)]
    read_mhz = [w.core_mhz for w in timed if w.core_mhz is not None]
    if not of_steps.in_situ or len({round(mhz / _APART_MHZ) for mhz in read_mhz}) < _CLOCKS:
        return None
    return of_steps


def warmed(sample_set: SampleSet) -> SampleSet:
    """Leave out steps that ran while the GPU warmed up, unless all steps at auto did.

    Warm silicon leaks more and boosts less, which would pass for what the clock does.
    """
    steps = [window for window in sample_set.windows if window.is_step]
    read_c = [w.temperature_c for w in steps if w.temperature_c is not None]
    least_c = max(read_c, default=0.0) - _WARMED_C
    cold = {id(w) for w in steps if (w.temperature_c or least_c) < least_c}
    windows = tuple(window for window in sample_set.windows if id(window) not in cold)
    warm = msgspec.structs.replace(sample_set, windows=windows)
    return warm if warm.in_situ else sample_set


def time_alone(sample_set: SampleSet) -> float:
    """Return which part of the step's time its kernels take that were run alone, 0 to 1."""
    alone = {sample.kernel for sample in sample_set.samples}
    of_time = shares(sample_set, AUTO)
    if of_time is None:
        return float(len(alone) == len(sample_set.kernels))
    return float(of_time[[kernel.name in alone for kernel in sample_set.kernels]].sum())


def as_one(sample_set: SampleSet) -> SampleSet:
    """Return the samples of whole steps as those of a step of one kernel.

    Between launches the GPU does nothing for some tenths of a microsecond, a twentieth of a step of
    small kernels. That is taken to change with clocks as launches do. A step that the cap holds
    does not tell it: its launches are timed at clocks other than the step's.
    """
    sample_set, windows = warmed(sample_set), list[Window]()
    in_situ = (w for w in sample_set.in_situ if not driver_says(w.throttle_reasons))
    launched = [w for w in in_situ if w.kernel_s]
    launches_s = math.fsum(math.fsum(_launches_s(w, sample_set).tolist()) for w in launched)
    # What a step takes over the sum of its launches.
    longer = math.fsum(w.time_s for w in launched) / launches_s if launched else 1.0
    for window in sample_set.windows:
        if not window.is_step:
            windows.append(window)
        elif window.mix == ALONE and window.asked.is_auto:
            windows += [window.untimed(), _as_kernel(window, sample_set, longer)]
        elif window.mix == ALONE:
            # The step by itself at a lock as a window of its one kernel, at the clock it had.
            asked_mhz = window.asked.core_mhz
            held = asked_mhz is not None and abs(window.at_mhz - asked_mhz) <= HALF_BIN_MHZ
            core_mhz = asked_mhz if held else round(window.at_mhz)
            windows.append(
                msgspec.structs.replace(
                    window.untimed(),
                    kernel=WHOLE.name,
                    observed=Clocks(core_mhz=core_mhz, mem_mhz=window.asked.mem_mhz),
                )
            )
        # Where co-load comes too rarely, the step does not run at the clock that was read.
        elif not (window.asked.is_auto and is_uneven(window)):
            windows.append(_as_kernel(window, sample_set, longer))
    return msgspec.structs.replace(
        sample_set,
        step=Step(name=sample_set.workload, kernels=(WHOLE,), order=(0,)),
        windows=tuple(windows),
        lacking={},
    )


def _as_kernel(window: Window, sample_set: SampleSet, longer: float) -> Window:
    """Return the step, by itself at auto or with co-load, as a window of its one kernel."""
    step_s: tuple[float, ...] = ()
    if window.kernel_s:
        step_s = (longer * math.fsum(_launches_s(window, sample_set).tolist()),)
    return msgspec.structs.replace(window, kernel=WHOLE.name, kernel_s=step_s, kernel_mhz=())


def _launches_s(sample: Window, sample_set: SampleSet) -> Floats:
    """Return what all launches of each kernel took in a step. Shape (K,)."""
    counts = np.array([kernel.count for kernel in sample_set.kernels], dtype=np.float64)
    taken_s: Floats = counts * np.array(sample.kernel_s)
    return taken_s


def shares(sample_set: SampleSet, clocks: Clocks) -> Floats | None:
    """Return which part of the step's time each kernel takes at some clocks.

    Where the step was not timed at these clocks, their logarithms are taken to go linearly with
    that of the core clock.

    Returns:
        Shape (K,); ``None`` where launches were not timed at this memory clock.
    """
    timed = [s for s in sample_set.mixed if s.is_step and s.mix == ALONE and s.kernel_s]
    here = [s for s in timed if s.asked == clocks]
    if here:
        parts: Floats = _parts(here, sample_set).mean(axis=0)
        return parts
    alike = [s for s in timed if s.asked.mem_mhz == clocks.mem_mhz]
    if not alike or clocks.core_mhz is None:
        return None
    away = np.log([sample.at_mhz / clocks.core_mhz for sample in alike])
    near = np.abs(away) <= max(_NEAR, np.abs(away).min())
    away, logs = away[near], np.log(_parts(alike, sample_set)[near])
    # A line through looks nearby, taken where none was; through one clock it is level.
    centred = away - away.mean()
    slopes = centred @ logs / max(float(centred @ centred), _LEVEL)
    there: Floats = np.exp(logs.mean(axis=0) - away.mean() * slopes)
    there /= there.sum()
    return there


def _parts(steps: Sequence[Window], sample_set: SampleSet) -> Floats:
    """Return the parts of the time of some steps that kernels take. Shape (N, K)."""
    taken_s = np.array([_launches_s(sample, sample_set) for sample in steps])
    parts: Floats = taken_s / taken_s.sum(axis=1, keepdims=True)
    return parts


def shared_by_time(sample_set: SampleSet, whole: Choice) -> dict[str, Choice]:
    """Say what one clock for the whole step does to each kernel: its time, as timed in the step.

    Energies are the step's, shared by time, for only their sum is known.
    """
    at_auto, chosen = shares(sample_set, AUTO), shares(sample_set, whole.clocks)
    if at_auto is None:
        at_auto = np.full(len(sample_set.kernels), 1.0 / len(sample_set.kernels))
    if chosen is None:
        chosen = at_auto
    by_kernel = {}
    for kernel, before, after in zip(sample_set.kernels, at_auto, chosen, strict=True):
        grown = float(after / before)
        by_kernel[kernel.name] = msgspec.structs.replace(
            whole,
            time_change=(1.0 + whole.time_change) * grown - 1.0,
            energy_change=(1.0 + whole.energy_change) * grown - 1.0,
            auto_time_s=whole.auto_time_s * float(before),
            auto_energy_j=whole.auto_energy_j * float(before),
        )
    return by_kernel


def whole_step_notes(sample_set: SampleSet, by_kernel: Mapping[str, Choice]) -> tuple[str, ...]:
    """Say what a plan for a step that ran whole only is, and what its clock does to each pass."""
    whole = (
        "one clock is chosen for all of the step, by runs of it whole; those do not say which pass "
        "draws what, so energies of kernels are shares by time"
    )
    if shares(sample_set, AUTO) is None:
        return (whole, "its launches were not timed, so times of kernels are not known either")
    changes = []
    for pass_ in dict.fromkeys(kernel.pass_ for kernel in sample_set.kernels):
        parts = [by_kernel[kernel.name] for kernel in sample_set.kernels if kernel.pass_ is pass_]
        auto_s = math.fsum(part.auto_time_s for part in parts)
        change = math.fsum(part.auto_time_s * part.time_change for part in parts) / auto_s
        changes.append(f"{pass_} {format_percent(change)}")
    if all(choice.clocks.is_auto for choice in by_kernel.values()):
        return (whole,)
    return (whole, f"time of each pass at the chosen clock: {', '.join(changes)}")
