"""Samples as arrays, and what makes them impossible to fit.

Shape letters: R rows, K kernels, M memory clocks.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.errors import DataError
from underclock.records import Clocks, Kind, Sample, SampleSet, ThrottleReason

PER_KERNEL = 4


class CannotFitError(DataError):
    """There are too few samples, or none of use: costs may still be taken as measured."""


NEAR_CAP = 0.985  # a row without throttle reasons that draws more than this share of the limit
UNKNOWN_MHZ = 1.0  # stands for the one memory clock of samples that do not name it
_PILE = 3  # kernels at the same greatest power, from which a cap is concluded
_CONTRADICTION = 0.25  # repeats of one row lie within a few per cent of each other
_KINDS = {Kind.GEMM: 0, Kind.MEMORY: 1, None: 2}
_FREE_WINDOWS = 0.04  # what a row whose clock is free counts for: five times the error
_USUAL_C = 55.0  # where no temperature was read; only differences between rows matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples at known clocks, sorted by kernel.

    Attributes:
        names: Of the kernels. Length K.
        kinds: What each mostly does, as a small number. Shape (K,).
        kernel: Index of each row's kernel, ascending. Shape (R,).
        core_mhz: As asked, and as read back where it was. Shape (R,).
        mem_mhz: As read back where it was, else as asked. Shape (R,).
        log_s: Logarithm of the time of a launch in s. Shape (R,).
        log_w: Logarithm of the mean power in W. Shape (R,).
        temperature_c: Shape (R,).
        windows: How many windows of the usual length a row counts for. Shape (R,).
        mem_points_mhz: Memory clocks of the GPU, ascending. Shape (M,).
        limit_w: Power that capped rows settle at; ``inf`` where none was capped.
        ceiling_mhz: Least core clock that the GPU was seen to boost to by itself; ``inf`` where
            it was not seen. Locks above it do not hold.
    """

    names: tuple[str, ...]
    kinds: Ints
    kernel: Ints
    core_mhz: Floats
    mem_mhz: Floats
    log_s: Floats
    log_w: Floats
    temperature_c: Floats
    windows: Floats
    mem_points_mhz: Floats
    limit_w: float
    ceiling_mhz: float

    @property
    def bounds(self) -> Ints:
        """Where each kernel's rows begin, and the end. Shape (K + 1,)."""
        return np.searchsorted(self.kernel, np.arange(len(self.names) + 1)).astype(np.int64)


def rows_of(sample_set: SampleSet) -> Rows:
    """Turn samples into the rows a model can be fitted to.

    Rows at the power cap are left out: their clocks are not what was asked for. So are rows locked
    higher than the GPU boosts. Rows at auto count little, and only for kernels with few others: a
    clock that is free moves with temperature, and what is read at a window's end is not its mean.

    Raises:
        DataError: Samples contradict each other, all are capped, or they are fewer than the
            model's constants.
    """
    if not sample_set.samples:
        raise DataError("there are no samples to fit", hint="measure first")
    check_repeats(sample_set.samples)
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    memory = sorted(
        {float(mhz) for s in (*sample_set.settings, *_asked(sample_set)) if (mhz := s.mem_mhz)}
        or {
            float(s.observed.mem_mhz)
            for s in sample_set.samples
            if s.observed and s.observed.mem_mhz
        }
        or {UNKNOWN_MHZ}
    )
    limit_w, capped = _cap(sample_set)
    ceiling = ceiling_mhz(sample_set.samples)
    asked_mhz = [
        float(c.core_mhz) for c in (*sample_set.settings, *_asked(sample_set)) if c.core_mhz
    ]
    boosted_mhz = min(ceiling, max(asked_mhz, default=math.inf))
    found: list[tuple[int, float, float, float, float, float, float]] = []
    free: list[tuple[int, float, float, float, float, float, float]] = []
    for sample, at_cap in zip(sample_set.samples, capped, strict=True):
        core = sample.asked.core_mhz
        if at_cap or (core is not None and not _holds(sample)):
            continue
        seen = sample.observed.core_mhz if sample.observed else None
        mem = sample.observed.mem_mhz if sample.observed else sample.asked.mem_mhz
        (free if core is None else found).append(
            (
                index[sample.kernel],
                float(core or seen or boosted_mhz),
                float(mem or memory[-1]),
                math.log(sample.time_s),
                math.log(sample.energy_j / sample.time_s),
                _USUAL_C if sample.temperature_c is None else sample.temperature_c,
                _FREE_WINDOWS if core is None else 1.0,
            )
        )
    if not found:
        raise CannotFitError(
            f"all {len(sample_set.samples)} samples ran at the power cap or at unknown clocks: "
            "they do not tell what a clock costs",
            hint="measure at lower core clocks, or raise the power limit",
        )
    shared = 8 + 2 * len(memory)
    if len(found) * 2 < shared + PER_KERNEL:
        raise CannotFitError(
            f"{len(found)} samples away from the power cap are fewer than the model's constants "
            f"({shared} shared, {PER_KERNEL} of each kernel)",
            hint="measure more clock pairs, or more kernels",
        )
    locked = Counter(row[0] for row in found)
    found += [row for row in free if 0 < locked[row[0]] < PER_KERNEL]
    found.sort(key=lambda row: row[0])
    columns = np.array(found)
    return Rows(
        names=tuple(index),
        kinds=np.array([_KINDS[kernel.kind] for kernel in sample_set.kernels], dtype=np.int64),
        kernel=columns[:, 0].astype(np.int64),
        core_mhz=columns[:, 1],
        mem_mhz=columns[:, 2],
        log_s=columns[:, 3],
        log_w=columns[:, 4],
        temperature_c=columns[:, 5],
        windows=columns[:, 6],
        mem_points_mhz=np.array(memory),
        limit_w=limit_w,
        ceiling_mhz=ceiling,
    )


def ceiling_mhz(samples: Sequence[Sample]) -> float:
    """Return the least core clock a GPU boosted to away from its cap; ``inf`` if never seen."""
    seen = [
        float(s.observed.core_mhz)
        for s in samples
        if s.observed
        and s.observed.core_mhz
        and not (s.throttle_reasons or 0) & ThrottleReason.SW_POWER_CAP
        and (s.asked.core_mhz is None or not _holds(s))
    ]
    return min(seen, default=math.inf)


def check_repeats(samples: Sequence[Sample]) -> None:
    """Refuse repeats of one row that cannot be of the same thing.

    Raises:
        DataError: Two differ by a quarter or more.
    """
    groups: dict[object, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.kernel, sample.asked].append(sample)
    for alike in groups.values():
        for what, values in (
            ("time", [s.time_s for s in alike]),
            ("energy", [s.energy_j for s in alike]),
        ):
            if max(values) > (1.0 + _CONTRADICTION) * min(values):
                raise DataError(
                    f"repeats of {alike[0].kernel!r} at {alike[0].asked} contradict each other: "
                    f"their {what} differs by {max(values) / min(values) - 1:.0%}",
                    hint="was another process on the GPU? measure this kernel again on an idle one",
                )


def _asked(sample_set: SampleSet) -> list[Clocks]:
    return [sample.asked for sample in sample_set.samples]


def _cap(sample_set: SampleSet) -> tuple[float, list[bool]]:
    """Return the power that capped rows settle at, and which rows are capped."""
    powers = [s.energy_j / s.time_s for s in sample_set.samples]
    told = any(s.throttle_reasons is not None for s in sample_set.samples)
    if told:
        capped = [
            bool((s.throttle_reasons or 0) & ThrottleReason.SW_POWER_CAP)
            for s in sample_set.samples
        ]
    else:
        limit_w = sample_set.gpu.power_limit_w or max(powers)
        capped = [
            power_w >= NEAR_CAP * limit_w and s.asked.core_mhz is not None
            for power_w, s in zip(powers, sample_set.samples, strict=True)
        ]
        # Without throttle reasons a cap shows as many kernels that draw the same at the most.
        held = {s.kernel for s, yes in zip(sample_set.samples, capped, strict=True) if yes}
        capped = capped if len(held) >= _PILE else [False] * len(powers)
    at_cap = [power_w for power_w, yes in zip(powers, capped, strict=True) if yes]
    return (float(np.median(at_cap)) if at_cap else math.inf), capped


def _holds(sample: Sample) -> bool:
    """Whether the core ran at what was asked, as far as anybody looked."""
    seen = sample.observed.core_mhz if sample.observed else None
    return seen is None or seen == sample.asked.core_mhz
