"""A step at auto as it was measured by steering, and as it is predicted from its kernels."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.estimate import estimate
from underclock.core.steering.wanted import ALONE
from underclock.core.step.cap import has_company
from underclock.core.step.table import CostTable
from underclock.core.step.under_cap import settled_step
from underclock.records import MixSample, SampleSet

BIG_S = 100e-6
"""What kernels take at least whose durations are judged."""


def looks_at_auto(sample_set: SampleSet) -> tuple[MixSample, ...]:
    """Return the looks at the step at auto, without company that moves its clock."""
    return tuple(s for s in sample_set.mixed if s.is_step and not has_company(s.mix))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A step as predicted against the step as it ran.

    Attributes:
        predicted_mhz: Clock at which it settles.
        read_mhz: Clock that was read.
        time: Sum of launches against the step's time, as a fraction.
        energy: The same of energy.
        kernels: Error of each kernel's duration, of those above 100 µs.
    """

    predicted_mhz: float
    read_mhz: float
    time: float
    energy: float
    kernels: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class AtAuto:
    """A step at auto as it ran, and what its kernels are expected to cost.

    Attributes:
        table: Expected costs.
        own: Looks at it.
        counts: Launches of each kernel.
        kernel_s: What a launch of each kernel took.
        step_s: Of the step.
        step_j: Of the step.
    """

    table: CostTable
    own: tuple[MixSample, ...]
    counts: Ints
    kernel_s: Floats
    step_s: float
    step_j: float

    def off(self, order: Ints, time_s: Floats) -> Floats:
        """Return the error of each kernel's duration, of those above 100 µs.

        Args:
            order: Kernel of each launch.
            time_s: Of each launch, as predicted.
        """
        errors = np.bincount(order, time_s) / self.counts / self.kernel_s - 1.0
        return errors[self.kernel_s >= BIG_S]


def at_auto(sample_set: SampleSet, *, with_auto: bool) -> AtAuto:
    """Fit kernels, and return what the step at auto took.

    Args:
        sample_set: As measured.
        with_auto: Whether the step at auto takes part.
    """
    own = looks_at_auto(sample_set)
    known = sample_set
    if not with_auto:
        rest = tuple(s for s in sample_set.mixed if s not in own)
        known = msgspec.structs.replace(sample_set, mixed=rest)
    counts = np.array([kernel.count for kernel in sample_set.kernels])
    step_s = float(np.mean([s.time_s for s in sample_set.in_situ]))
    real_s = np.mean([s.kernel_s for s in own if s.mix == ALONE], axis=0)
    return AtAuto(
        table=estimate(known).table,
        own=own,
        counts=counts,
        kernel_s=real_s * step_s / (real_s * counts).sum(),
        step_s=step_s,
        step_j=float(np.mean([s.energy_j for s in sample_set.in_situ])),
    )


def compare(sample_set: SampleSet, *, with_auto: bool) -> Compared:
    """Predict the step at auto.

    Args:
        sample_set: As measured.
        with_auto: Whether the step at auto takes part.
    """
    real = at_auto(sample_set, with_auto=with_auto)
    order = np.array(sample_set.order)
    settled = settled_step(real.table, np.full(len(order), real.table.baseline))
    return Compared(
        predicted_mhz=settled.mean_mhz,
        read_mhz=float(np.mean([s.core_mhz for s in real.own if s.mix == ALONE])),
        time=float(settled.time_s.sum()) / real.step_s - 1.0,
        energy=float(settled.energy_j.sum()) / real.step_j - 1.0,
        kernels=real.off(order, settled.time_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A step less its kernels that nobody ran by themselves.

    Attributes:
        sample_set: Of the other kernels.
        left_out: How many kernels are missing.
        share: Part of the step's time that they took.
    """

    sample_set: SampleSet
    left_out: int = 0
    share: float = 0.0


def reached(sample_set: SampleSet) -> Reached:
    """Take the kernels that nobody ran by themselves out of a step.

    Their time is known from their launches inside the step, their power is not: they are taken to
    draw what the step does, so the step's power stays and its energy says nothing.
    """
    ran = {sample.kernel for sample in sample_set.mixed if sample.kernel}
    kept = [k for k, kernel in enumerate(sample_set.kernels) if kernel.name in ran]
    if len(kept) == len(sample_set.kernels):
        return Reached(sample_set=sample_set)
    place = {k: i for i, k in enumerate(kept)}
    counts = np.array([kernel.count for kernel in sample_set.kernels])

    def share(kernel_s: Iterable[float]) -> float:
        """Return the part that missing kernels take of all launches."""
        each_s = counts * np.array(tuple(kernel_s))
        return 1.0 - float(each_s[kept].sum() / each_s.sum())

    def without(sample: MixSample) -> MixSample:
        """Return a look at the step without the missing kernels."""
        if not sample.is_step:
            return sample
        step_s = sample.mix.launches * float(counts @ np.array(sample.kernel_s))
        left = 1.0 - share(sample.kernel_s) * step_s / sample.round_s
        return msgspec.structs.replace(
            sample,
            round_s=left * sample.round_s,
            round_j=left * sample.round_j,
            kernel_s=tuple(sample.kernel_s[k] for k in kept),
            kernel_mhz=tuple(sample.kernel_mhz[k] for k in kept) if sample.kernel_mhz else (),
        )

    plain = [s.kernel_s for s in sample_set.mixed if s.is_step and s.mix == ALONE]
    missing = share(np.mean(plain, axis=0))
    in_situ = tuple(
        msgspec.structs.replace(
            s, time_s=(1.0 - missing) * s.time_s, energy_j=(1.0 - missing) * s.energy_j
        )
        for s in sample_set.in_situ
    )
    rest = msgspec.structs.replace(
        sample_set,
        kernels=tuple(sample_set.kernels[k] for k in kept),
        order=tuple(place[k] for k in sample_set.order if k in place),
        mixed=tuple(without(sample) for sample in sample_set.mixed),
        in_situ=in_situ,
    )
    left_out = len(sample_set.kernels) - len(kept)
    return Reached(sample_set=rest, left_out=left_out, share=missing)
