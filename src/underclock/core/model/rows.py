"""Samples as arrays, and what makes them impossible to fit.

Shape letters: R rows, K kernels, M memory clocks.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.costs.cap import CapMargin, driver_says, is_power_capped
from underclock.core.costs.unreached import unreached
from underclock.core.model.checks import check_values, clocks_asked
from underclock.core.model.row_runs import RunErrors, run_errors
from underclock.core.model.start import unknown_gpu
from underclock.core.steering.power_peak import taken_apart
from underclock.core.steering.taking_off import COMPANION, Left, Paces, StepDraw, step_draws
from underclock.errors import DataError
from underclock.physics.constants import GpuConstants
from underclock.records import Kind, Sample, SampleSet

PER_KERNEL = 4


class CannotFitError(DataError):
    """No sample is of use: costs may still be taken as measured."""


UNKNOWN_MHZ = 1.0  # stands for the one memory clock of samples that do not name it
OF_ROWS = ("kernel", "core_mhz", "mem_mhz", "log_s", "log_w", "temperature_c", "windows")
"""Attributes of `Rows` whose last axis is R."""
_PILE = 3  # kernels at the same greatest power, from which a cap is concluded
_KINDS = {Kind.GEMM: 0, Kind.MEMORY: 1, None: 2}
_FREE_WINDOWS = 0.04  # what a row whose clock is free counts for: five times the error
_USUAL_C = 55.0  # where no temperature was read; only differences between rows matter


class Idling(NamedTuple):
    """What the GPU drew while clocks ran and nothing else did: of no kernel, so of all."""

    core_mhz: float
    mem_mhz: float
    temperature_c: float
    log_w: float


class FitRow(NamedTuple):
    """One sample, as the columns of `Rows`."""

    kernel: int
    core_mhz: float
    mem_mhz: float
    log_s: float
    log_w: float
    temperature_c: float
    time_windows: float
    power_windows: float
    apart: float = 0.0
    time_run2: float = math.nan
    power_run2: float = math.nan
    by_company: tuple[float, ...] = ()

    def known(self, counts: tuple[float, float], run2: tuple[float, float]) -> "FitRow":
        """Return it with what repeats say.

        Args:
            counts: Of its windows, in time and in power.
            run2: Variances of the logarithms of time and power of one run.
        """
        return self._replace(
            time_windows=counts[0] * self.time_windows,
            power_windows=counts[1] * self.power_windows,
            time_run2=run2[0],
            power_run2=run2[1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples at known clocks, sorted by kernel.

    Attributes:
        names: Of the kernels; of what ran in company the hot companion is one more, the last,
            which tells how power goes with the clock. Length K.
        kinds: What each mostly does, as a small number. Shape (K,).
        kernel: Index of each row's kernel, ascending. Shape (R,).
        core_mhz: As asked, and as read back where it was. Shape (R,).
        mem_mhz: As read back where it was, else as asked. Shape (R,).
        log_s: Logarithm of the time of a launch in s. Shape (R,).
        log_w: Logarithm of the mean power in W; where its weight is 0 that of the kernel's row at
            the nearest clock. Shape (R,).
        temperature_c: Shape (R,).
        windows: How many windows of the usual length a row counts for, in time and in power; 0
            where it tells nothing of that. Shape (2, R).
        mem_points_mhz: Memory clocks of the GPU, ascending. Shape (M,).
        limit_w: Power that capped rows settle at; ``inf`` where none was capped.
        ceiling_mhz: Least core clock that the GPU was seen to boost to by itself; ``inf`` where
            it was not seen. Locks above it do not hold.
        auto_mem_mhz: Memory clock that runs where none is locked, as read; else the fastest.
        peak_w: Power that no kernel exceeds, whatever its clock; ``inf`` where none was seen there.
        idle: Idling, where it was measured.
        step: What the whole step drew, where it ran in company.
        apart: Standard deviation of log clock that rows of a kernel in the whole step have in
            common. Shape (R,); ``None`` where none has any.
        company: How log power of each row moves with each error that company has in common, by its
            standard deviation. Shape (R, H); ``None`` where nothing ran in company.
        run_variance: Of the logarithms of time and power of one run, as repeats tell; what rows are
            off by beyond that is their own. Shape (2, R); ``None`` where they do not tell.
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
    auto_mem_mhz: float
    peak_w: float = math.inf
    idle: tuple[Idling, ...] = ()
    step: tuple[StepDraw, ...] = ()
    apart: Floats | None = None
    company: Floats | None = None
    run_variance: Floats | None = None

    def of_first(self, kernels: int) -> "Rows":
        """Return the rows of the first kernels only.

        Args:
            kernels: How many.
        """
        if len(self.names) <= kernels:
            return self
        some = slice(int(self.bounds[kernels]))
        of_rows = {name: getattr(self, name)[..., some] for name in OF_ROWS}
        return dataclasses.replace(
            self,
            names=self.names[:kernels],
            kinds=self.kinds[:kernels],
            apart=None if self.apart is None else self.apart[some],
            company=self.by_company[some],
            run_variance=None if self.run_variance is None else self.run_variance[:, some],
            **of_rows,
        )

    @property
    def by_company(self) -> Floats:
        """How log power moves with errors of company. Shape (R, H), H = 0 without any."""
        return np.zeros((len(self.kernel), 0)) if self.company is None else self.company

    @property
    def counted(self) -> Floats:
        """How many rows of usual length each kernel's times are worth. Shape (K,)."""
        worth = np.minimum(self.windows[0], 1.0)
        counted = np.bincount(self.kernel, worth, len(self.names))
        return counted.astype(np.float64)

    @property
    def bounds(self) -> Ints:
        """Where each kernel's rows begin, and the end. Shape (K + 1,)."""
        return np.searchsorted(self.kernel, np.arange(len(self.names) + 1)).astype(np.int64)


def rows_of(
    sample_set: SampleSet,
    shape: GpuConstants | None = None,
    paces: Paces | None = None,
    errors: RunErrors | None = None,
    held: Sequence[FitRow] = (),
) -> Rows:
    """Turn samples into the rows a model can be fitted to.

    A measurement in company is a row at the clock that was read in its window, company taken off.
    Samples at the power cap are left out, as their clocks are not what was asked for, but for what
    somebody made of them. So are rows locked higher than the GPU boosts. Odd repeats count little.
    So do rows at auto of which the clock was read only at the window's end, for kernels with few
    others; for the rest they do not count at all, as a clock that is free moves with temperature.

    Args:
        sample_set: The samples.
        shape: How idle power follows clock and temperature, for taking company off; by default as
            on recent GPUs.
        paces: Of kernels inside the step, where its clock moves within it.
        errors: What repeats say of each sample, where that is known already.
        held: Rows of what the cap held, at the clocks where it did.

    Raises:
        DataError: Samples contradict each other, or all are capped.
    """
    if not sample_set.samples and not sample_set.mixed:
        raise DataError("there are no samples to fit", hint="measure first")
    check_values(sample_set)
    memory = _memory_mhz(sample_set)
    limit_w, capped = _cap(sample_set)
    ceiling = ceiling_mhz(sample_set.samples)
    asked_mhz = [float(clocks.core_mhz) for clocks in clocks_asked(sample_set) if clocks.core_mhz]
    boosted_mhz = min(ceiling, max(asked_mhz, default=math.inf))
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    own_mhz = _own_memory_mhz(sample_set, memory)
    errors = errors or run_errors(sample_set)
    locked: list[FitRow] = []
    free: list[FitRow] = []
    for sample, at_cap, known in zip(sample_set.samples, capped, _known(errors), strict=True):
        is_free = sample.asked.core_mhz is None
        if not at_cap and (is_free or _holds(sample)):
            row = _row(sample, index[sample.kernel], boosted_mhz, own_mhz)
            (free if is_free else locked).append(row.known(*known))
    if errors.variances is not None:
        locked = _merged(locked)
    told = _in_company(sample_set, memory, shape, paces)
    expected = unreached(sample_set)
    guessed_w = dict(zip(expected.places.tolist(), expected.power_w.tolist(), strict=True))
    mixed = _company_rows(told, locked, index, own_mhz, guessed_w)
    rows = [*locked, *mixed, *held]
    if not any(row.power_windows > 0.0 and row.kernel < len(index) for row in rows):
        ran = len(sample_set.samples) + len(sample_set.mixed)
        raise CannotFitError(
            f"all {ran} samples ran at the power cap or at unknown clocks: they do not tell what "
            "a clock costs",
            hint="measure at lower core clocks or in company, or raise the power limit",
        )
    each = Counter(row.kernel for row in rows if row.power_windows)
    steered = {row.kernel for row in mixed if row.power_windows}
    rows += [r for r in free if 0 < each[r.kernel] < PER_KERNEL and r.kernel not in steered]
    rows.sort(key=lambda row: row.kernel)
    names, kinds = list(index), [_KINDS[kernel.kind] for kernel in sample_set.kernels]
    if rows[-1].kernel == len(index):
        names.append(COMPANION)
        kinds.append(_KINDS[Kind.GEMM])
    return Rows(
        names=tuple(names),
        kinds=np.array(kinds, dtype=np.int64),
        **_columns(rows, told.errors, varied=errors.variances is not None),
        mem_points_mhz=np.array(memory),
        limit_w=limit_w,
        ceiling_mhz=ceiling,
        auto_mem_mhz=own_mhz,
        peak_w=told.peak_w,
        step=told.step,
        idle=_idle(sample_set, own_mhz),
    )


def _known(errors: RunErrors) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Yield for how many windows each sample counts, and the variance of one run, in both."""
    unknown = np.full_like(errors.windows, math.nan)
    each_run = unknown if errors.variances is None else errors.variances
    yield from zip(errors.windows.T.tolist(), each_run.T.tolist(), strict=True)


def _columns(rows: Sequence[FitRow], company_errors: int, *, varied: bool) -> dict[str, Any]:
    """Return what is known of each row as arrays, by the names that `Rows` has for them.

    Args:
        rows: Sorted by kernel.
        company_errors: How many errors company has in common.
        varied: Whether repeats tell how runs vary.
    """
    columns = dict(zip(FitRow._fields[:-1], np.array([row[:-1] for row in rows]).T, strict=True))
    company = np.array([row.by_company or (0.0,) * company_errors for row in rows])
    run2 = np.stack([columns.pop("time_run2"), columns.pop("power_run2")])
    return {
        "kernel": columns.pop("kernel").astype(np.int64),
        "windows": np.stack([columns.pop("time_windows"), columns.pop("power_windows")]),
        "run_variance": run2 if varied else None,
        "company": company.reshape(len(rows), -1),
        **columns,
    }


def _merged(rows: Sequence[FitRow]) -> list[FitRow]:
    """Return one row for all runs of a kernel at the same clocks, which counts for as many.

    Runs of one row have in common what is the row's own, so they are not as good as other rows.
    """
    runs: dict[tuple[int, float, float], list[FitRow]] = {}
    for row in rows:
        runs.setdefault((row.kernel, row.core_mhz, row.mem_mhz), []).append(row)
    merged = []
    for same in runs.values():
        time = np.array([row.time_windows for row in same])
        power = np.array([row.power_windows for row in same])
        merged.append(
            same[0]._replace(
                log_s=float(np.average([row.log_s for row in same], weights=time)),
                log_w=float(np.average([row.log_w for row in same], weights=power)),
                temperature_c=float(np.mean([row.temperature_c for row in same])),
                time_windows=float(time.sum()),
                power_windows=float(power.sum()),
            )
        )
    return merged


def _row(sample: Sample, kernel: int, boosted_mhz: float, auto_mem_mhz: float) -> FitRow:
    """Return a sample as a row.

    Args:
        sample: Away from the cap, at clocks that held.
        kernel: Index of its kernel.
        boosted_mhz: Core clock of a GPU left to itself, where nobody read it.
        auto_mem_mhz: Memory clock of one left to itself.
    """
    core = sample.asked.core_mhz
    windows = _FREE_WINDOWS if core is None else 1.0
    seen = sample.observed.core_mhz if sample.observed else None
    return FitRow(
        kernel=kernel,
        core_mhz=float(core or seen or boosted_mhz),
        mem_mhz=ran_mem_mhz(sample, auto_mem_mhz),
        log_s=math.log(sample.time_s),
        log_w=math.log(sample.energy_j / sample.time_s),
        temperature_c=_USUAL_C if sample.temperature_c is None else sample.temperature_c,
        time_windows=windows,
        power_windows=windows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _InCompany:
    """What measurements in company tell: of kernels, of the GPU's peak of power, of the step."""

    left: tuple[Left, ...] = ()
    peak_w: float = math.inf
    step: tuple[StepDraw, ...] = ()
    errors: int = 0


def _in_company(
    sample_set: SampleSet, memory: list[float], shape: GpuConstants | None, paces: Paces | None
) -> _InCompany:
    """Return what measurements in company tell, and those of launches inside the step."""
    mixed, kernels = sample_set.mixed, sample_set.kernels
    if not mixed:
        return _InCompany()
    shape = shape or unknown_gpu(
        memory,
        fastest_mhz=max(sample.core_mhz for sample in mixed),
        most_w=max(sample.round_j / sample.round_s for sample in mixed),
    )
    apart = taken_apart(
        mixed,
        kernels,
        shape,
        _own_memory_mhz(sample_set, memory),
        sample_set.gpu.power_limit_w,
        paces,
    )
    # By itself the step runs at one clock: what it draws there is what auto is measured by.
    steered = any(sample.is_step and sample.in_company for sample in mixed)
    return _InCompany(
        left=apart.left,
        peak_w=apart.peak_w,
        step=step_draws(mixed, kernels, apart.company) if steered else (),
        errors=apart.company.errors,
    )


def _company_rows(
    told: _InCompany,
    locked: Sequence[FitRow],
    index: dict[str, int],
    own_mem_mhz: float,
    guessed_w: dict[int, float],
) -> list[FitRow]:
    """Return rows of kernels in company and inside the step.

    Args:
        told: What was left for kernels.
        locked: Rows of kernels alone at held clocks.
        index: Of kernels, by their names.
        own_mem_mhz: Memory clock of a GPU left to itself.
        guessed_w: Power of kernels that never ran by themselves, by index: their size for the fit,
            which no row tells.
    """

    def place(one: Left) -> int:
        """Return the index of a kernel; the companion comes after those of the step."""
        return index.get(one.kernel, len(index))

    drawn: dict[int, list[tuple[float, float]]] = {}
    for row in locked:
        drawn.setdefault(row.kernel, []).append((row.core_mhz, math.exp(row.log_w)))
    for one in told.left:
        if one.power_w is not None:
            drawn.setdefault(place(one), []).append((one.core_mhz, one.power_w))
    for k, power_w in guessed_w.items():
        drawn.setdefault(k, [(math.inf, power_w)])
    return [
        FitRow(
            kernel=place(one),
            core_mhz=one.core_mhz,
            mem_mhz=float(one.mem_mhz or own_mem_mhz),
            log_s=math.log(one.time_s),
            log_w=math.log(one.power_w or _nearest(drawn[place(one)], one.core_mhz)),
            temperature_c=_USUAL_C if one.temperature_c is None else one.temperature_c,
            time_windows=one.time_windows,
            power_windows=one.power_windows,
            apart=one.apart,
            by_company=one.by_company,
        )
        for one in told.left
        if place(one) in drawn  # costs of a kernel of unknown power cannot be told
    ]


def _idle(sample_set: SampleSet, auto_mem_mhz: float) -> tuple[Idling, ...]:
    """Return the measurements in which nothing ran."""
    return tuple(
        Idling(
            core_mhz=sample.core_mhz,
            mem_mhz=float(sample.asked.mem_mhz or auto_mem_mhz),
            temperature_c=_USUAL_C if sample.temperature_c is None else sample.temperature_c,
            log_w=math.log(sample.round_j / sample.round_s),
        )
        for sample in sample_set.mixed
        if not sample.mix.launches and not sample.mix.hot
    )


def _nearest(drawn: list[tuple[float, float]], core_mhz: float) -> float:
    """Return the power that was read nearest to a clock."""
    return min(drawn, key=lambda pair: abs(pair[0] - core_mhz))[1]


def _memory_mhz(sample_set: SampleSet) -> list[float]:
    """Return the GPU's memory clocks, ascending: as asked, else as read back, else one unknown."""
    asked = {float(clocks.mem_mhz) for clocks in clocks_asked(sample_set) if clocks.mem_mhz}
    observed = [sample.observed for sample in sample_set.samples if sample.observed]
    read = {float(clocks.mem_mhz) for clocks in observed if clocks.mem_mhz}
    return sorted(asked or read or {UNKNOWN_MHZ})


def _own_memory_mhz(sample_set: SampleSet, memory: list[float]) -> float:
    """Return the memory clock of a GPU left to itself: as read there, else the fastest."""
    return float(sample_set.auto_mem_mhz or memory[-1])


def ceiling_mhz(samples: Sequence[Sample]) -> float:
    """Return the least core clock a GPU boosted to away from its cap; ``inf`` if never seen."""
    seen = [
        float(s.observed.core_mhz)
        for s in samples
        if s.observed
        and s.observed.core_mhz
        and not driver_says(s.throttle_reasons)
        and (s.asked.core_mhz is None or not _holds(s))
    ]
    return min(seen, default=math.inf)


def _cap(sample_set: SampleSet) -> tuple[float, list[bool]]:
    """Return the power that capped rows settle at, and which rows are capped."""
    samples = sample_set.samples
    powers = [sample.energy_j / sample.time_s for sample in samples]
    limit_w = sample_set.gpu.power_limit_w or max(powers)
    capped = is_power_capped(samples, limit_w, CapMargin.FIT).tolist()
    if all(driver_says(sample.throttle_reasons) is None for sample in samples):
        capped = [
            yes and s.asked.core_mhz is not None for yes, s in zip(capped, samples, strict=True)
        ]
        # Where the driver was not asked, a cap shows as many kernels that draw the same at most.
        held = {sample.kernel for sample, yes in zip(samples, capped, strict=True) if yes}
        capped = capped if len(held) >= _PILE else [False] * len(powers)
    at_cap = [power_w for power_w, yes in zip(powers, capped, strict=True) if yes]
    return (float(np.median(at_cap)) if at_cap else math.inf), capped


def held_back(sample_set: SampleSet) -> tuple[Sample, ...]:
    """Return the samples at locks that did not hold: what ran was slower than was asked for."""
    _, capped = _cap(sample_set)
    return tuple(
        sample
        for sample, at_cap in zip(sample_set.samples, capped, strict=True)
        if sample.asked.core_mhz is not None and (at_cap or not _holds(sample))
    )


def held_at_auto(sample_set: SampleSet) -> tuple[Sample, ...]:
    """Return the samples at auto clocks that the power cap held, where the driver said so."""
    return tuple(
        sample
        for sample in sample_set.samples
        if sample.asked.core_mhz is None and driver_says(sample.throttle_reasons)
    )


def ran_mem_mhz(sample: Sample, auto_mem_mhz: float) -> float:
    """Return the memory clock of a sample: as read, else as asked, else as auto's."""
    mem_mhz = sample.observed.mem_mhz if sample.observed else sample.asked.mem_mhz
    return float(mem_mhz or auto_mem_mhz)


def _holds(sample: Sample) -> bool:
    """Whether the core ran at what was asked, as far as anybody looked."""
    seen = sample.observed.core_mhz if sample.observed else None
    return seen is None or seen == sample.asked.core_mhz
