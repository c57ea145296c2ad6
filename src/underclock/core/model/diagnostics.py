"""A fit in quantities that people know: constants with errors, and how each kernel is described.

Shape letters: R rows, K kernels.
"""

import math
from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.model.fitting import fit_rows
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.parameters import CORE, DRAM, FIXED, Points, predict
from underclock.core.model.posterior import Posterior
from underclock.core.model.predictive import Warmth, clocks_of, posterior_of
from underclock.core.model.row_runs import odd_repeats
from underclock.core.model.rows import STEADY_C, Rows
from underclock.core.model.shared_constants import constants_of, prior_doubt
from underclock.core.step.table import waited_counts
from underclock.core.step.unmeasured import unmeasured
from underclock.records import Clocks, SampleSet
from underclock.records.fitted import GpuFit, KernelFit

_UNUSUAL = 3.0  # times the usual kernel's residual
_LARGE = 0.02  # and above this the model does not describe a kernel


def fit_of(sample_set: SampleSet, *, at: Clocks | None = None) -> GpuFit:
    """Fit samples, and state constants, errors and kernels.

    Args:
        sample_set: Samples of one GPU.
        at: Where to state shares of time and energies; by default at each kernel's fastest row.

    Raises:
        DataError: The samples cannot be fitted.
    """
    rows, model = fit_rows(sample_set, [sample.asked for sample in sample_set.samples])
    residuals = _residuals(rows, model)
    known = np.flatnonzero(np.diff(rows.bounds))
    settings, column = _where(rows, known, at)
    posterior = posterior_of(
        model, settings, temperature_c=Warmth.own(sample_set), limit_w=rows.limit_w
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
        kernels=_kernels(
            sample_set,
            _Stated(
                model=model,
                posterior=posterior,
                known=known,
                column=column,
                rms=_rms(rows, residuals, known),
                rows=np.diff(rows.bounds)[known].tolist(),
            ),
        ),
        warnings=(
            *sample_set.warnings,
            *odd_repeats(sample_set),
            *unmeasured(sample_set).warnings,
            *_without_rows(rows),
            *prior_doubt(model),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """What is known of kernels that have rows.

    Attributes:
        known: Which they are. Shape (N,).
        column: Where to state each. Shape (N,).
        rms: Residuals of time and power. Shape (2, N).
        rows: How many each has. Length N.
    """

    model: FittedModel
    posterior: Posterior
    known: Ints
    column: Ints
    rms: Floats
    rows: list[int]


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


def _residuals(rows: Rows, model: FittedModel) -> Floats:
    """Return residuals of all rows, fitted to or not. Shape (2, R)."""
    predicted = predict(model.parameters, Points.of(rows)).log
    residuals: Floats = np.stack([rows.log_s, rows.log_w]) - predicted
    return residuals


def _rms(rows: Rows, residuals: Floats, known: Ints) -> Floats:
    """Return residuals of each kernel, ``nan`` where no row tells. Shape (2, N)."""
    sums = np.add.reduceat(rows.windows * residuals**2, rows.bounds[known], axis=1)
    with np.errstate(invalid="ignore"):
        rms: Floats = np.sqrt(sums / np.add.reduceat(rows.windows, rows.bounds[known], axis=1))
    return rms


def _kernels(sample_set: SampleSet, stated: _Stated) -> tuple[KernelFit, ...]:
    samples = Counter(sample.kernel for sample in sample_set.samples)
    usual = np.nanmedian(stated.rms, axis=1)[:, None]
    far = (stated.rms > _UNUSUAL * usual) & (stated.rms > _LARGE)
    off = np.any(far, axis=0).tolist()
    fits = {
        kernel.name: KernelFit(
            name=kernel.name, samples=samples[kernel.name], rows=0, described=False
        )
        for kernel in sample_set.kernels
    }
    model, posterior = stated.model, stated.posterior
    core, mem = clocks_of(model.rows, posterior.settings)
    at = Points(
        kernel=stated.known,
        core_mhz=core[stated.column],
        mem_mhz=mem[stated.column],
        temperature_c=np.full(len(stated.known), STEADY_C),
    )
    by = predict(model.parameters, at).by_kernel()
    energy_j = np.exp(posterior.log_s + posterior.log_w)
    spread = np.sqrt(posterior.variance(1.0, 1.0))
    for i, (k, c) in enumerate(zip(stated.known.tolist(), stated.column.tolist(), strict=True)):
        name = sample_set.kernels[k].name
        fits[name] = msgspec.structs.replace(
            fits[name],
            rows=stated.rows[i],
            clocks=posterior.settings[c],
            core_share=float(by[0, i, CORE]),
            dram_share=float(by[0, i, DRAM]),
            fixed_share=float(by[0, i, FIXED]),
            energy_j=float(energy_j[k, c]),
            energy_error_j=float(energy_j[k, c] * spread[k, c]),
            time_rms=float(stated.rms[0, i]),
            power_rms=_finite(float(stated.rms[1, i])),
            described=not off[i],
        )
    return tuple(fits.values())


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
