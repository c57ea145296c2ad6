"""From a sample_set to a posterior about every kernel at every setting, and the cost table of it.

Where the step was run whole, costs are those of the step: kernels at locked clocks, the power cap
apart, under one cap on the mean power of the sequence. Else they are those of kernels alone.

Shape letters: K kernels, C settings but the baseline, N samples.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Bools, Floats
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.diagnostics import prior_doubt
from underclock.core.model.entries import (
    held_means,
    measurable,
    measured_means,
    offered_settings,
    with_boost,
)
from underclock.core.model.fitting import fit_rows, temperature_of
from underclock.core.model.in_step import in_step, step_ratio
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.posterior import Posterior, as_at_boost, with_means
from underclock.core.model.predicted_change import ONE_SIDED, Baseline
from underclock.core.model.predictive import clocks_of, posterior_of
from underclock.core.model.row_runs import odd_repeats, sample_weights
from underclock.core.model.rows import Rows
from underclock.core.steering import steering_notes
from underclock.core.step.fit_row import STEADY_C
from underclock.core.step.table import (
    CostTable,
    Heat,
    at_any_clocks,
    cost_table,
    overlapped_counts,
    waited_counts,
)
from underclock.core.step.under_cap import known_step, memories_like_auto
from underclock.core.step.unmeasured import step_mhz, unmeasured
from underclock.physics.costs import AMBIENT_C, idle_w
from underclock.records import GREATEST_MHZ, Clocks, SampleSet, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFit:
    """A fit of more samples than are asked about: those of another step.

    Attributes:
        weights: How much each sample counts in time and energy. Shape (2, N).
    """

    rows: Rows
    model: FittedModel
    weights: Floats


def estimate(
    sample_set: SampleSet,
    *,
    baseline: Clocks | None = None,
    isolated: bool = False,
    known: KnownFit | None = None,
) -> CostEstimate:
    """Fit a sample_set and predict every setting it set out to visit.

    Args:
        sample_set: Samples of every kernel at the baseline, and of some at other settings.
        baseline: The setting to call auto; as for `cost_table`.
        isolated: Whether costs are those of kernels alone even where the step was run whole, as in
            arXiv 2601.08539.
        known: The fit, where it is not of this sample_set alone.
    """
    weights = sample_weights(sample_set) if known is None else known.weights
    measured = cost_table(sample_set, baseline=baseline, weights=weights)
    auto = measured.settings[measured.baseline]
    whole = bool(sample_set.in_situ and sample_set.order and auto.is_auto and not isolated)
    offered = offered_settings(sample_set, auto)
    settings = _locked(offered, sample_set) if whole else offered
    odd: tuple[str, ...] = ()
    if known is None:
        odd = odd_repeats(sample_set)
        rows, model = fit_rows(sample_set, settings, weights)
        known = KnownFit(rows=rows, model=model, weights=weights)
    rows, model = known.rows, known.model
    posterior, told_of = _posterior(sample_set, known, settings, whole=whole)
    beside_j = _beside_j(sample_set, model, posterior)
    counts = waited_counts(sample_set.kernels)
    if whole:
        ratio = step_ratio(rows, posterior, counts, math.fsum(beside_j))
        posterior, beside_j = in_step(posterior, ratio), beside_j * ratio.ratio
    answered = measurable(sample_set, rows, settings)
    can = answered & told_of
    warnings = (*odd, *steering_notes(sample_set), *prior_doubt(model))
    table = _expected(measured, posterior, can, beside_j)
    table = dataclasses.replace(table, warnings=(*table.warnings, *warnings))
    step = known_step(table, sample_set, rows.limit_w) if whole else None
    if step is not None:
        table = dataclasses.replace(step.table, heat=_heat(model, table, sample_set))
    whole_step = () if step is None else sample_set.in_situ
    estimated = CostEstimate(
        rows=rows,
        model=model,
        posterior=posterior,
        counts=counts,
        baseline=_baseline(sample_set, posterior, table, whole_step),
        table=table,
        measurable=answered & np.array([clocks in offered for clocks in settings], dtype=bool),
        can=can,
    )
    if step is None or table.closure is None:
        return estimated
    return estimated.with_step_error(table.closure, step.at_auto)


def _locked(offered: Sequence[Clocks], sample_set: SampleSet) -> tuple[Clocks, ...]:
    """Return the settings of a step under its cap: those that lock the core clock, and boost."""
    locked = tuple(clocks for clocks in offered if clocks.core_mhz is not None)
    return with_boost(locked, sample_set)


def _posterior(
    sample_set: SampleSet, known: KnownFit, settings: Sequence[Clocks], *, whole: bool
) -> tuple[Posterior, Bools]:
    """Return what the fit and measurements say of every entry, and of which they say anything."""
    rows = known.rows
    posterior = posterior_of(
        known.model,
        settings,
        temperature_c=temperature_of(sample_set),
        limit_w=rows.peak_w if whole else rows.limit_w,
    )
    if whole:
        core_mhz, mem_mhz = clocks_of(rows, settings)
        like_auto = mem_mhz == rows.auto_mem_mhz
        posterior = as_at_boost(posterior, rows.boost_log_s, core_mhz, like_auto, rows.peak_w)
    posterior = with_guesses(posterior, sample_set, rows)
    log_s, log_w, repeats = measured_means(sample_set, settings, known.weights)
    unknown = np.diff(rows.bounds) == 0
    as_measured = np.where(unknown[:, None], log_s, np.nan)
    posterior = with_means(posterior, as_measured, log_w, repeats)
    if not whole:
        # Alone, what the cap makes of a lock is what that lock costs.
        posterior = with_means(posterior, *held_means(sample_set, rows, settings))
    return posterior, np.isfinite(log_s) | ~unknown[:, None]


def _beside_j(sample_set: SampleSet, model: FittedModel, posterior: Posterior) -> Floats:
    """Return what launches beside others draw in a step, and the GPU not without them. Shape (K,).

    At the clocks that auto gives the step, for they run at the clocks of others.
    """
    counts = overlapped_counts(sample_set.kernels)
    memories = memories_like_auto(posterior.settings, sample_set)
    if not (counts.any() and memories):
        return np.zeros_like(counts)
    wanted_mhz = step_mhz(sample_set) or math.inf
    here = min(
        (c for c, clocks in enumerate(posterior.settings) if clocks.mem_mhz == memories[0]),
        key=lambda c: abs(min(wanted_mhz, GREATEST_MHZ) - (posterior.settings[c].core_mhz or 0)),
    )
    return drawn_beside_j(model, posterior, counts, here)


def drawn_beside_j(model: FittedModel, posterior: Posterior, counts: Floats, at: int) -> Floats:
    """Return what so many launches at a setting draw, (K,), and the GPU not without them."""
    core_mhz, mem_mhz = clocks_of(model.rows, posterior.settings[at : at + 1])
    gpu = model.parameters.family.gpu(model.parameters.shared)
    anyway_w = float(idle_w(gpu, core_mhz, mem_mhz, STEADY_C)[0])
    own_w = np.maximum(np.exp(posterior.log_w[:, at]) - anyway_w, 0.0)
    beside_j: Floats = counts * np.exp(posterior.log_s[:, at]) * own_w
    return beside_j


def with_guesses(posterior: Posterior, sample_set: SampleSet, rows: Rows) -> Posterior:
    """Return a posterior as unsure of kernels as their power was guessed, where no row tells it."""
    told = np.unique(rows.kernel[rows.windows[1] > 0.0])
    guessed = unmeasured(sample_set).without(told)
    discrepancy = posterior.discrepancy.copy()
    discrepancy[1, guessed.places] += guessed.spread[:, None] ** 2
    return dataclasses.replace(posterior, discrepancy=discrepancy)


def _expected(
    measured: CostTable,
    posterior: Posterior,
    can: Bools,
    beside_j: Floats,
) -> CostTable:
    """Return expected costs, auto as measured and last."""
    kernels, settings, at = measured.kernels, posterior.settings, measured.baseline
    auto_s, auto_j = measured.time_s[:, at], measured.energy_j[:, at]
    if measured.beside_j is not None:
        auto_j = auto_j - measured.beside_j + beside_j
    costs = posterior.costs(waited_counts(kernels))
    time_s, energy_j = (np.where(can, each, math.inf) for each in costs)
    time_s = np.column_stack([time_s, auto_s])
    energy_j = np.column_stack([energy_j + beside_j[:, None], auto_j])
    return dataclasses.replace(
        measured,
        settings=(*settings, measured.settings[at]),
        time_s=at_any_clocks(kernels, time_s, len(settings)),
        energy_j=at_any_clocks(kernels, energy_j, len(settings)),
        baseline=len(settings),
        beside_j=None if measured.beside_j is None else beside_j,
    )


def _baseline(
    sample_set: SampleSet,
    posterior: Posterior,
    table: CostTable,
    whole_step: Sequence[Window],
) -> Baseline:
    """Return what auto costs, and how sure that is."""
    auto = table.time_s[:, -1], table.energy_j[:, -1]
    return Baseline(
        time_s=auto[0],
        energy_j=auto[1],
        spread=auto_spread(sample_set, posterior, auto, whole_step),
        of_kernels=kernel_errors(posterior),
        beside_j=table.beside_j,
    )


def _heat(model: FittedModel, table: CostTable, sample_set: SampleSet) -> Heat | None:
    """Return how the step's heat follows its power; ``None`` where no temperature was read."""
    read = [s.temperature_c for s in sample_set.in_situ if s.temperature_c is not None]
    if not read:
        return None
    mean_w = sum(s.energy_j for s in sample_set.in_situ) / sum(s.time_s for s in sample_set.in_situ)
    core_mhz, mem_mhz = clocks_of(model.rows, table.settings)
    gpu = model.parameters.family.gpu(model.parameters.shared)
    drawn_w = [idle_w(gpu, core_mhz, mem_mhz, float(c)) for c in (STEADY_C, STEADY_C + 1.0)]
    return Heat(
        c_per_w=max(0.0, float(np.mean(read)) - AMBIENT_C) / mean_w, w_per_c=drawn_w[1] - drawn_w[0]
    )


_ONE_SIDE = 0.95
# What repeats in a row do not average out of a step's time. Windows of one kernel, off the cap of
# an H200, differ by 0.027 % (docs/evidence/h200).
_REPEATABLE = 2.7e-4
_FREE_CLOCK = 0.004  # half a clock bin of 15 MHz: what boosts by itself was not at one clock


def kernel_errors(posterior: Posterior) -> Floats:
    """Return the relative errors of each kernel's time and energy at auto. Shape (2, K)."""
    time2, power2 = posterior.noise**2
    errors: Floats = np.sqrt(np.stack([time2, time2 + power2]) + _FREE_CLOCK**2)
    return errors


def auto_spread(
    sample_set: SampleSet,
    posterior: Posterior,
    auto: tuple[Floats, Floats],
    whole: Sequence[Window],
) -> tuple[float, float]:
    """Return the relative errors of what auto costs: of the whole step, or of kernels' sum."""
    time2, power2 = posterior.noise**2
    spreads = []
    for variance, costs, values in (
        (time2, auto[0], [s.time_s for s in whole]),
        (time2 + power2, auto[1], [s.energy_j for s in whole]),
    ):
        if not whole:
            repeats = max(1.0, len(sample_set.samples) / max(1, len(costs)) / 8)
            spreads.append(math.sqrt(float((variance * costs**2).sum()) / repeats) / costs.sum())
            continue
        # One kernel's noise stands for one window's; repeats, where there are some, say more.
        prior2, weight = float(np.median(variance)), 1.0
        off2 = float(np.var(values)) * len(values) / float(np.mean(values)) ** 2
        freedom = weight + len(values) - 1
        each2 = (weight * prior2 + off2) / freedom
        # A scatter known from few runs: Student's t where the others have a normal distribution.
        wider = float(stdtrit(freedom, _ONE_SIDE)) / ONE_SIDED
        spreads.append(wider * math.sqrt(each2 / len(values)))
    return math.hypot(spreads[0], _REPEATABLE if whole else 0.0), spreads[1]
