"""A fit in quantities that people know: constants with errors, and how each kernel is described.

Shape letters: R rows, K kernels.
"""

import math
from collections import Counter

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.fitting import fit_rows, temperature_of
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.parameters import CORE, DRAM, FIXED, Points, predicted_rows
from underclock.core.model.posterior import Posterior
from underclock.core.model.predictive import clocks_of, posterior_of
from underclock.core.model.row_runs import odd_repeats
from underclock.core.model.rows import STEADY_C, Rows
from underclock.core.model.sample_sets import UNKNOWN_MHZ
from underclock.core.step.table import waited_counts
from underclock.core.step.unmeasured import unmeasured
from underclock.records import Clocks, SampleSet
from underclock.records.fitted import Constant, GpuFit, KernelFit

_UNUSUAL = 3.0  # times the usual kernel's residual
_LARGE = 0.02  # and above this the model does not describe a kernel
_WORTH_SAYING = 1.5  # times further from usual than usual GPUs are
# Of the shared vector: in words, its unit, and how many of that unit one of the model's is.
_WORDS = (
    ("exponent that joins a kernel's parts", "", 1.0),
    ("crossbar's least clock", "MHz", 1.0),
    ("voltage rises from", "MHz", 1.0),
    ("rise of voltage there", "mV/MHz", 1e3),
    ("how the rise steepens", "mV/GHz²", 1e9),
    ("leakage at 1 V and 25 °C", "W", 1.0),
    ("clock tree at 1 V", "W/GHz", 1.0),
    ("rise of leakage", "%/°C", 100.0),
    ("DRAM traffic", "mJ/Mcycle", 1e3),
    ("crossbar cycles per DRAM cycle", "", 1.0),
)


def fit_of(sample_set: SampleSet, *, at: Clocks | None = None) -> GpuFit:
    """Fit samples, and state constants, errors and kernels.

    Args:
        at: Where to state shares of time and energies; by default at each kernel's fastest row.
    """
    rows, model = fit_rows(sample_set, [sample.asked for sample in sample_set.samples])
    predicted = predicted_rows(model.parameters, Points.of(rows)).log
    residuals = np.stack([rows.log_s, rows.log_w]) - predicted  # of all rows, fitted to or not
    known = np.flatnonzero(np.diff(rows.bounds))
    settings, column = _where(rows, known, at)
    posterior = posterior_of(
        model, settings, temperature_c=temperature_of(sample_set), limit_w=rows.limit_w
    )
    noise, discrepancy = model.errors.noise, model.errors.discrepancy
    pooled = np.sqrt(np.average(residuals**2, weights=rows.windows, axis=1))
    return GpuFit(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        workload=sample_set.workload,
        samples=len(sample_set.samples) + len(sample_set.mixed),
        rows=len(rows.kernel),
        constants=constants_of(model),
        cap_w=_finite(rows.limit_w),
        boost_mhz=_finite(rows.ceiling_mhz),
        time_noise=float(noise[0]),
        power_noise=float(noise[1]),
        time_discrepancy=float(discrepancy[0]),
        power_discrepancy=float(discrepancy[1]),
        time_rms=float(pooled[0]),
        power_rms=float(pooled[1]),
        common_share=_common_share(sample_set, posterior, known, column),
        kernels=_kernels(sample_set, rows, model, posterior, column, _rms(rows, residuals, known)),
        warnings=(
            *sample_set.warnings,
            *odd_repeats(sample_set),
            *unmeasured(sample_set).warnings,
            *_without_rows(rows),
            *prior_doubt(model),
        ),
    )


def _where(rows: Rows, known: Ints, at: Clocks | None) -> tuple[list[Clocks], Ints]:
    """Return the settings to state kernels at, and which is each kernel's."""
    if at is not None:
        return [at], np.zeros(len(known), dtype=np.int64)
    fastest = []
    for k in known.tolist():
        low, high = rows.bounds[k], rows.bounds[k + 1]
        row = low + int(np.argmax(rows.core_mhz[low:high] * rows.mem_mhz[low:high]))
        core, mem = round(float(rows.core_mhz[row])), round(float(rows.mem_mhz[row]))
        fastest.append(Clocks(core_mhz=core, mem_mhz=mem))
    settings = list(dict.fromkeys(fastest))
    return settings, np.array([settings.index(clocks) for clocks in fastest], dtype=np.int64)


def _rms(rows: Rows, residuals: Floats, known: Ints) -> Floats:
    """Return residuals of each kernel, ``nan`` where no row tells. Shape (2, N)."""
    sums = np.add.reduceat(rows.windows * residuals**2, rows.bounds[known], axis=1)
    with np.errstate(invalid="ignore"):
        rms: Floats = np.sqrt(sums / np.add.reduceat(rows.windows, rows.bounds[known], axis=1))
    return rms


def _kernels(
    sample_set: SampleSet,
    rows: Rows,
    model: FittedModel,
    posterior: Posterior,
    column: Ints,
    rms: Floats,
) -> tuple[KernelFit, ...]:
    """Describe every kernel; those with rows where each is stated, (N,), by residuals, (2, N)."""
    samples = Counter(sample.kernel for sample in sample_set.samples)
    count = np.diff(rows.bounds)
    known = np.flatnonzero(count)
    far = (rms > _UNUSUAL * np.nanmedian(rms, axis=1)[:, None]) & (rms > _LARGE)
    core, mem = clocks_of(model.rows, posterior.settings)
    warm_c = np.full(len(known), STEADY_C)
    at = Points(kernel=known, core_mhz=core[column], mem_mhz=mem[column], temperature_c=warm_c)
    shares = predicted_rows(model.parameters, at).by_kernel()[0]
    energy_j = np.exp(posterior.log_s + posterior.log_w)
    spread = np.sqrt(posterior.variance(1.0, 1.0))
    fits = [
        KernelFit(name=kernel.name, samples=samples[kernel.name], rows=0, described=False)
        for kernel in sample_set.kernels
    ]
    for i, (k, c) in enumerate(zip(known.tolist(), column.tolist(), strict=True)):
        fits[k] = msgspec.structs.replace(
            fits[k],
            rows=int(count[k]),
            clocks=posterior.settings[c],
            core_share=float(shares[i, CORE]),
            dram_share=float(shares[i, DRAM]),
            fixed_share=float(shares[i, FIXED]),
            energy_j=float(energy_j[k, c]),
            energy_error_j=float(energy_j[k, c] * spread[k, c]),
            time_rms=float(rms[0, i]),
            power_rms=_finite(float(rms[1, i])),
            described=not far[:, i].any(),
        )
    return tuple(fits)


def _common_share(sample_set: SampleSet, posterior: Posterior, known: Ints, column: Ints) -> float:
    """Return how much of the summed energy's variance an error in shared constants makes."""
    counts = waited_counts(sample_set.kernels)[known]
    energy_j = counts * np.exp(posterior.log_s + posterior.log_w)[known, column]
    energy = posterior.sum_variance(known, column, np.stack([energy_j, energy_j]))
    return float(energy.by_shared @ posterior.shared_cov @ energy.by_shared) / energy.variance


def _without_rows(rows: Rows) -> tuple[str, ...]:
    names = [rows.names[k] for k in np.flatnonzero(np.diff(rows.bounds) == 0).tolist()]
    if not names:
        return ()
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    held = "ran at clocks that held, away from the power cap: measure lower core clocks"
    return (f"no sample of {names[0]!r}{more} {held}",)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def constants_of(model: FittedModel) -> tuple[Constant, ...]:
    """Return the constants of the GPU, with their errors."""
    own = slice(_own(model))
    deviations = np.sqrt(np.diag(model.shared_cov))[own]
    expected = model.shared_scale * model.parameters.family.spread()[own]
    told = np.clip(1.0 - (deviations / expected) ** 2, 0.0, 1.0)
    values = np.exp(model.parameters.shared[own])
    return tuple(
        Constant(
            name=name,
            unit=unit,
            value=float(value * size),
            error=float(value * size * deviation),
            told=float(share),
        )
        for (name, unit, size), value, deviation, share in zip(
            _words(model), values, deviations, told, strict=True
        )
    )


def prior_doubt(model: FittedModel) -> tuple[str, ...]:
    """Say that a GPU is unlike those that the prior was made of, where the rows show it."""
    if model.shared_scale < _WORTH_SAYING:
        return ()
    family = model.parameters.family
    own = slice(_own(model))
    away = (model.parameters.shared[own] - family.start()[own]) / family.spread()[own]
    most = int(np.abs(away).argmax())
    name, unit, size = _words(model)[most]
    value, usual = (
        size * float(np.exp(vector[own][most]))
        for vector in (model.parameters.shared, family.start())
    )
    unit = f" {unit}" if unit else ""
    words = (
        f"this GPU's constants lie {model.shared_scale:.1f} times further from the usual than "
        f"those of other GPUs, most of all {name!r}: {value:.3g}{unit}, usually about "
        f"{usual:.3g}. What the samples do not tell of it is taken to be as much less sure"
    )
    return (words,)


def _own(model: FittedModel) -> int:
    """Return how many shared parameters are the GPU's: errors in common come last."""
    return len(model.parameters.shared) - model.parameters.family.common


def _words(model: FittedModel) -> tuple[tuple[str, str, float], ...]:
    """Return names, units, and how many of that unit one of the model's is."""
    gpu = model.parameters.family.base
    memory = [f"{mhz:g} MHz" for mhz in gpu.mem_points_mhz if mhz > UNKNOWN_MHZ] or ["any clock"]
    return (
        *_WORDS,
        *[(f"memory at {clock}", "W", 1.0) for clock in memory],
        *[(f"bytes per cycle at {clock}", f"of {memory[-1]}", 1.0) for clock in memory[:-1]],
    )
