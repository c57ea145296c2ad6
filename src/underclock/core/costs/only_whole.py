"""A step that ran whole only, because its kernels cannot be launched alone.

Of such a step one knows, at every clock, the time of each launch inside it, and the energy of all of
it. What a launch draws at a voltage V is (w·V² + q)/t, so whole steps at one clock each tell the
sums of w and of q over the step and no part of them: which pass draws what cannot be told. So the
step is costed as if it were one kernel, and has one clock.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from underclock.arrays import Floats
from underclock.core.costs.power_window import HALF_BIN_MHZ
from underclock.records import AUTO, Choice, Clocks, Kernel, Mix, MixSample, Sample, SampleSet
from underclock.units import format_percent

WHOLE = Kernel(name="the whole step")
_ALONE = Mix()


def is_only_whole(sample_set: SampleSet) -> bool:
    """Whether a step ran whole and none of its kernels alone."""
    return bool(sample_set.order and sample_set.in_situ and not sample_set.samples)


def as_one(sample_set: SampleSet) -> SampleSet:
    """Return the samples of whole steps as those of a step of one kernel."""
    steps = [sample for sample in sample_set.mixed if sample.is_step]
    at_locks = [_sample(s) for s in steps if s.mix == _ALONE and not s.asked.is_auto]
    at_auto = [msgspec.structs.replace(s, kernel=WHOLE.name) for s in sample_set.in_situ]
    rest = [s for s in sample_set.mixed if not s.is_step]
    return msgspec.structs.replace(
        sample_set,
        kernels=(WHOLE,),
        order=(0,),
        samples=(*at_auto, *at_locks),
        mixed=(*rest, *(_mixed(s, sample_set) for s in steps if s.asked.is_auto or s.mix != _ALONE)),
        lacking={},
    )


def _sample(sample: MixSample) -> Sample:
    """Return the step by itself at a lock as a sample of its one kernel."""
    asked_mhz = sample.asked.core_mhz
    held = asked_mhz is not None and abs(sample.core_mhz - asked_mhz) <= HALF_BIN_MHZ
    core_mhz = asked_mhz if held else round(sample.core_mhz)
    return Sample(
        kernel=WHOLE.name,
        asked=sample.asked,
        repeat=sample.repeat,
        time_s=sample.round_s,
        energy_j=sample.round_j,
        observed=Clocks(core_mhz=core_mhz, mem_mhz=sample.asked.mem_mhz),
        window_s=sample.window_s,
        temperature_c=sample.temperature_c,
        throttle_reasons=sample.throttle_reasons,
    )


def _mixed(sample: MixSample, sample_set: SampleSet) -> MixSample:
    """Return the step in company, or by itself at auto, as its one kernel."""
    named = "" if sample.mix == _ALONE else WHOLE.name
    step_s = (math.fsum(_launches_s(sample, sample_set).tolist()),) if sample.kernel_s else ()
    return msgspec.structs.replace(sample, kernel=named, kernel_s=step_s, kernel_mhz=())


def _launches_s(sample: MixSample, sample_set: SampleSet) -> Floats:
    """Return what all launches of each kernel took in a step. Shape (K,)."""
    counts = np.array([kernel.count for kernel in sample_set.kernels], dtype=np.float64)
    return counts * np.array(sample.kernel_s)


def shares(sample_set: SampleSet, clocks: Clocks) -> Floats | None:
    """Return which part of the step's time each kernel takes at some clocks.

    Between clocks at which the step was timed, parts go linearly with the clock.

    Args:
        sample_set: Of a step that ran whole only.
        clocks: At which the whole step runs.

    Returns:
        Shape (K,); ``None`` where launches were not timed.
    """
    timed = [s for s in sample_set.mixed if s.is_step and s.mix == _ALONE and s.kernel_s]
    here = [s for s in timed if s.asked == clocks]
    if not here:
        here = [s for s in timed if s.asked.mem_mhz == clocks.mem_mhz] or timed
    if not here:
        return None
    here = sorted(here, key=lambda sample: sample.core_mhz)
    parts = np.array([_launches_s(sample, sample_set) for sample in here])
    parts /= parts.sum(axis=1, keepdims=True)
    if all(sample.asked == clocks for sample in here):
        each: Floats = parts.mean(axis=0)
        return each
    if clocks.core_mhz is None:
        return parts[-1]
    read_mhz = np.array([sample.core_mhz for sample in here])
    between: Floats = np.array([np.interp(clocks.core_mhz, read_mhz, of) for of in parts.T])
    return between / between.sum()


def shared_out(sample_set: SampleSet, whole: Choice) -> dict[str, Choice]:
    """Say what one clock for the whole step does to each kernel: its time, as timed in the step.

    Energies are the step's, shared by time: nothing tells them apart.

    Args:
        sample_set: Of a step that ran whole only.
        whole: What was chosen for the step.
    """
    equal = np.full(len(sample_set.kernels), 1.0 / len(sample_set.kernels))
    at_auto, chosen = shares(sample_set, AUTO), shares(sample_set, whole.clocks)
    if at_auto is None or chosen is None:
        at_auto = chosen = equal
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


def told_of_passes(sample_set: SampleSet, by_kernel: Mapping[str, Choice]) -> tuple[str, ...]:
    """Say what a plan for a step that ran whole only is, and what its clock does to each pass.

    Args:
        sample_set: Of that step.
        by_kernel: As `shared_out` returns it.
    """
    sentences = [
        "the step ran whole only, so one clock is chosen for all of it; which pass draws what "
        "cannot be told from whole steps, and energies of kernels are shares by time"
    ]
    if not any(sample.kernel_s for sample in sample_set.mixed):
        return (*sentences, "its launches were not timed, so times of kernels are not known either")
    changes = []
    for pass_ in dict.fromkeys(kernel.pass_ for kernel in sample_set.kernels):
        parts = [by_kernel[kernel.name] for kernel in sample_set.kernels if kernel.pass_ is pass_]
        auto_s = math.fsum(part.auto_time_s for part in parts)
        change = math.fsum(part.auto_time_s * part.time_change for part in parts) / auto_s
        changes.append(f"{pass_} {format_percent(change)}")
    if not all(choice.clocks.is_auto for choice in by_kernel.values()):
        sentences.append(f"time of each pass at the chosen clock: {', '.join(changes)}")
    return tuple(sentences)
