"""From samples to costs of every kernel at every setting, with joint errors: the one way in.

Physics is fitted to the rows (`most_likely`), a linear model around it is conditioned on them
(`posterior`), errors are widened until left-out rows hold as they should (`left_out`), and what
comes of it are `Costs`.

Where the step was run whole, costs are those of the step: kernels at locked clocks, the power cap
apart, under one cap on the mean power of the sequence, auto as measured. Else they are sums of
kernels alone, and auto is a setting like any; with co-load it stays as measured.

Shape letters: K kernels, C settings, S settings with the baseline last, N samples.
"""

import dataclasses
import math
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Bools, Floats
from underclock.core.model.adjusted import (
    StepRatio,
    above_rows,
    as_at_boost,
    between_rows,
    capped,
    given_step,
    step_ratio,
    with_guesses,
    with_means,
    with_ratio,
)
from underclock.core.model.conditioning import (
    OF_CO_LOAD,
    OF_LOCKS,
    Conditioned,
    Model,
    Sizes,
    likeliest_sizes,
)
from underclock.core.model.costs import ONE_SIDED, Costs
from underclock.core.model.left_out import LeftOut
from underclock.core.model.most_likely import (
    FittedModel,
    clocks_of,
    fit_rows,
    temperature_of,
)
from underclock.core.model.observed import Observed, Targets
from underclock.core.model.parameters import Rows, Runs
from underclock.core.model.posterior import Posterior, opposite, posterior_of
from underclock.core.model.sample_rows import (
    measurable,
    measured_means,
    offered_settings,
    with_boost,
)
from underclock.core.model.sample_sets import (
    looked_at_s,
    looks_alike,
    odd_repeats,
    power_wander,
    sample_weights,
    visited,
)
from underclock.core.steering import HEATER, steering_notes
from underclock.core.step.cost_table import (
    CostTable,
    Heat,
    at_any_clocks,
    cost_table,
    overlapped,
    overlapped_counts,
    step_mhz,
    unmeasured,
    waited_counts,
)
from underclock.core.step.power_cap import held_at_auto
from underclock.core.step.power_capped_step import at_lock, known_step, memories_like_auto
from underclock.core.step.whole_step import STEADY_C, temperature_c_of
from underclock.physics.costs import AMBIENT_C, idle_w
from underclock.records import GREATEST_MHZ, Clocks, SampleSet, Window

_ANEW = 1.3  # times the samples that were fitted, from which they are fitted anew
# By how much more times, and energies, of kernels are off together than their rows say, one by one:
# with 1.1 and 1.4, 90 and 88 % of campaigns' promises held (docs/evidence/few_rows.md).
_TOGETHER = 1.3, 1.7
_AT_LOCKS = 1.3, 1.4  # the same where what power wanders by is an error of its own
_ATTESTED = 1.5  # runs of a row, from which on it is no slip, whatever other rows say
_FAR_OFF = 2.0  # deviations by which a model that is right misses one step in twenty
_ALONE = 0.985  # of the limit: a kernel expected to draw more may be held by the cap
# Time over that at the fastest clocks, as physics bounds it: no kernel gets faster at lower clocks,
# but for what measuring leaves, and none is slowed by more than its clocks. Slow memory moves fewer
# bytes a cycle too: 0.56 times as many on an RTX 3080 Ti at 405 MHz (`gpus/data`).
_FASTER, _SLOWER, _SLOW_MEMORY = 0.95, 1.1, 2.0
_SLACK = 0.003  # and from one clock to the next
# Time over auto's that no row of seven published sweeps falls below: 6.3 % faster is the most.
_SLIP = 0.93
_FASTEST = 3  # settings, whose median that is: one of them may be disturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFit:
    """A fit of more samples than are asked about: those of another step."""

    rows: Rows
    model: FittedModel
    weights: Floats  # how much each sample counts in time and energy, (2, N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What samples say of every setting, measured or not."""

    costs: Costs  # of the step; the baseline is the last setting
    posterior: Posterior  # of a launch at each setting; without auto where the step was run whole
    fit: KnownFit  # what that rests on
    sizes: Sizes  # how large the parts of the model are
    measurable: Bools  # which settings a kernel has an answer at, of those to be visited, (K, S)
    # which can be planned. A kernel without rows, because all of its samples ran at the power cap,
    # say, only where it was measured, (K, C)
    can: Bools
    ratio: StepRatio | None = None  # how much more kernels draw in the step than alone

    @property
    def holds_alone(self) -> Bools:
        """Where a kernel that runs alone draws less than the cap leaves it. Shape (K, S)."""
        limit_w = _ALONE * self.fit.rows.limit_w
        below = self.posterior.log_w < math.log(limit_w)
        missing = len(self.costs.table.settings) - below.shape[1]
        return np.pad(below, ((0, 0), (0, missing)), constant_values=True)


def estimate(
    sample_set: SampleSet,
    *,
    baseline: Clocks | None = None,
    isolated: bool = False,
    known: KnownFit | None = None,
    before: Estimate | None = None,
    unvisited: bool = False,
) -> Estimate:
    """Fit samples and predict every setting they set out to visit.

    Args:
        sample_set: Samples of every kernel at the baseline, and of some at other settings.
        baseline: The setting to call auto; as for `cost_table`.
        isolated: Whether costs are those of kernels alone even where the step was run whole, as in
            arXiv 2601.08539.
        known: The fit, where it is not of this sample_set alone.
        before: What fewer of these samples said: the physics, and how large the model's parts are,
            are learned anew when there are some more.
        unvisited: Whether the whole step may be planned at settings where hardly any of it ran:
            to say where to measure, as none of what is between two settings may be like these.

    Raises:
        CannotFitError: No sample is of use: costs may still be taken as measured.
    """
    weights = sample_weights(sample_set) if known is None else known.weights
    measured = cost_table(sample_set, baseline=baseline, weights=weights)
    auto = measured.settings[measured.baseline]
    whole = bool(sample_set.in_situ and sample_set.order and auto.is_auto and not isolated)
    if not (whole or sample_set.mixed):
        return _of_kernels_alone(sample_set, measured, weights, before)
    offered = offered_settings(sample_set, auto)
    settings = with_boost(tuple(c for c in offered if c.core_mhz is not None), sample_set)
    odd: tuple[str, ...] = ()
    locked: tuple[int, Floats] | None = None
    auto_spread: tuple[float, float] | None = None
    if known is None:
        odd = odd_repeats(sample_set)
        rows, model = fit_rows(sample_set, settings, weights)
        known = KnownFit(rows=rows, model=model, weights=weights)
    rows, model = known.rows, known.model
    limit_w = rows.peak_w if whole else rows.limit_w
    posterior, sizes, can, wander = _at_locks(sample_set, known, settings, limit_w)
    beside_j = _beside_j(sample_set, model, posterior)
    counts = waited_counts(sample_set.kernels)
    ratio = step_ratio(rows, posterior, counts, math.fsum(beside_j)) if whole else StepRatio()
    if ratio.spread > 0.0:
        posterior = with_ratio(posterior, ratio.ratio, (0.0, ratio.spread))
        beside_j = beside_j * ratio.ratio
    answered = measurable(sample_set, rows, settings)
    can = answered & can
    warnings = (*odd, *steering_notes(sample_set))
    table = _expected(measured, posterior, can, beside_j)
    table = dataclasses.replace(table, warnings=(*table.warnings, *warnings))
    if whole:
        table = dataclasses.replace(table, heat=_heat(model, table, sample_set))
        locked = at_lock(table, sample_set)
        if locked is not None:
            # What is off is of all clocks, of that lock, or of power as it was when the step ran.
            posterior = with_ratio(posterior, 1.0, _IN_STEP)
            posterior = given_step(posterior, counts, *locked, np.array([_REPEATABLE, wander]))
            since = _expected(measured, posterior, can, beside_j)
            table = dataclasses.replace(table, time_s=since.time_s, energy_j=since.energy_j)
        table = known_step(table, sample_set, rows.limit_w, locked=locked is not None) or table
        moved = (_AT_LIMIT * wander,) * 2 if held_at_auto(sample_set) else (0.0, wander)
        time, energy = _auto_spread(posterior, sample_set, moved)
        # What power wandered by in the mean of all looks at locks is the same for each of them.
        alike, _ = looks_alike(looked_at_s(sample_set.samples))
        auto_spread = time, math.hypot(energy, wander * math.sqrt(alike))
        if not unvisited:
            known_there = visited(sample_set, settings)
            fast = counts @ np.exp(posterior.log_s) <= measured.auto_time_s
            # Of a step whose kernels draw the limit at auto's clocks none can be looked at there.
            if (known_there.all(axis=0) & fast).any():
                table = table.only_at(np.pad(known_there, ((0, 0), (0, 1)), constant_values=True))
    costs = Costs(
        table=table,
        moves=_with_auto(posterior),
        shared=posterior.shared,
        auto_spread=auto_spread,
        step_error=_step_error(table, auto_spread),
        # What kernels do not say of the step is in their errors, where it ran at a lock.
        locked_error=None if locked is None else (_REPEATABLE, _REPEATABLE),
        of_setting=np.pad(_of_settings(posterior), ((0, 0), (0, 1))),
    )
    to_visit = np.array([clocks in offered for clocks in settings], dtype=bool)
    return Estimate(
        costs=costs,
        posterior=posterior,
        fit=known,
        sizes=sizes,
        measurable=np.pad(answered & to_visit, ((0, 0), (0, 1))),
        can=can,
        ratio=ratio,
    )


def _of_kernels_alone(
    sample_set: SampleSet, measured: CostTable, weights: Floats, before: Estimate | None
) -> Estimate:
    """Estimate sums of kernels alone: auto is a setting like any, the last."""
    auto = measured.settings[measured.baseline]
    asked = dict.fromkeys((*measured.settings, *sample_set.settings))
    locked = [clocks for clocks in asked if clocks != auto and not clocks.is_auto]
    settings = (*sorted(locked, key=lambda clocks: clocks.rank), auto)
    log_s, _, repeats = measured_means(sample_set, settings, weights)
    slips = _slips(log_s, repeats) & (not sample_set.is_exact)
    words = f"{slips.sum()} rows of one run are faster than any clock can be: measure them again"
    said = (words,) * bool(slips.any())
    names = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    place = {clocks: c for c, clocks in enumerate(settings)}

    def is_kept(window: Window) -> bool:
        at = names.get(window.kernel), place.get(window.asked)
        return None not in at and not slips[at]

    kept = [i for i, sample in enumerate(sample_set.samples) if is_kept(sample)]
    samples, weights = [sample_set.samples[i] for i in kept], weights[:, kept]
    windows = (w for w in sample_set.windows if not w.kernel or is_kept(w))
    sample_set = msgspec.structs.replace(sample_set, windows=tuple(windows))
    enough = before is not None and len(sample_set.samples) < _ANEW * before.fit.weights.shape[1]
    if before is not None and enough:
        fit, known_sizes = before.fit, before.sizes
    else:
        rows, model = fit_rows(sample_set, locked, weights)
        fit, known_sizes = KnownFit(rows=rows, model=model, weights=weights), None
    model = fit.model
    core_mhz, mem_mhz = clocks_of(fit.rows, settings)
    free = np.array([clocks.core_mhz is None for clocks in settings])
    kernel = np.array([names[s.kernel] for s in samples])
    setting = np.array([place[s.asked] for s in samples])
    runs = Runs(
        kernel=kernel,
        core_mhz=core_mhz[setting],
        mem_mhz=mem_mhz[setting],
        free=free[setting],
        log=np.log([[s.time_s for s in samples], [s.energy_j / s.time_s for s in samples]]),
        windows=np.stack([weights[0], weights.min(axis=0)]),
        temperature_c=np.array([temperature_c_of(s) for s in samples]),
    )
    observed = Observed.of(model, runs, len(names), alike=sample_set.is_exact)
    targets = Targets.of(model, (core_mhz, mem_mhz), free, temperature_of(sample_set))
    sizes = known_sizes or likeliest_sizes(observed, targets, model.prior)
    linear = Model(observed=observed, targets=targets, prior=model.prior, sizes=sizes)
    linear, given, left_out = _without_disturbed(linear)
    seen = np.zeros(targets.log.shape[1:], dtype=bool)
    seen[kernel, setting] = True
    offered = measurable(sample_set, fit.rows, settings)
    shared = given.shared, given.shared_cov
    wider = _TOGETHER[0] * left_out.factor(0), _TOGETHER[1] * left_out.factor(1)
    posterior = posterior_of(linear, shared, settings, wider)
    if not sample_set.is_exact:
        slack = max(_SLACK, sizes.row[0])
        counted = linear.observed.counted(targets)
        posterior = between_rows(posterior, counted, core_mhz, mem_mhz, slack)
    moves = np.stack([posterior.moves[0], posterior.moves.sum(axis=0)])
    log_s = bounded(posterior.log_s, core_mhz, mem_mhz)
    # The mean of what is lognormal lies above its median.
    log = np.stack([log_s, log_s + posterior.log_w])
    log += 0.5 * np.einsum("qkse,qkse->qks", moves, moves)
    counts, fixed_j = waited_counts(measured.kernels)[:, None], measured.fixed_j[:, None]
    shown = (offered | seen | overlapped(measured.kernels)[:, None]) & ~slips
    at = len(settings) - 1
    time_s, energy_j = (at_any_clocks(measured.kernels, counts * np.exp(each), at) for each in log)
    table = dataclasses.replace(
        measured,
        settings=settings,
        baseline=at,
        time_s=np.where(shown, time_s, math.inf),
        energy_j=np.where(shown, energy_j + fixed_j, math.inf),
        warnings=(*measured.warnings, *odd_repeats(sample_set), *said),
    )
    alike = overlapped(measured.kernels)[None, :, None, None]
    moves = np.where(alike, moves[:, :, [at]], moves)
    return Estimate(
        costs=Costs(
            table=table,
            moves=moves,
            shared=posterior.shared,
            of_setting=_of_settings(posterior) * (np.arange(len(settings)) < at),
        ),
        posterior=posterior,
        fit=fit,
        sizes=sizes,
        measurable=offered & (np.arange(len(settings)) < at),
        can=shown,
    )


def _slips(log_s: Floats, repeats: Floats) -> Bools:
    """Return rows of one run that are faster than auto by more than any clock can be. Shape (K, C).

    Where most rows of a kernel are, it is auto that is odd.

    Args:
        log_s: Logarithms of measured times, ``nan`` where none, auto's last. Shape (K, C).
        repeats: Runs of each. Shape (K, C).
    """
    far = (log_s < log_s[:, [-1]] + math.log(_SLIP)) & (repeats < _ATTESTED)
    locked = np.isfinite(log_s).sum(axis=1) - 1
    slips: Bools = far & (far.sum(axis=1) <= np.maximum(locked // 2, 1))[:, None]
    return slips


def _without_disturbed(linear: Model) -> tuple[Model, Conditioned, LeftOut]:
    """Learn what kernels share, and leave rows of a table out: in turn, and disturbed for good.

    Returns:
        The model in which these hardly count; some rows of some kernels as conditioned, and what
        the rest say of each.
    """
    given, kernels, columns = linear.telling()
    left_out = LeftOut.of(given)
    disturbed = left_out.odd & (linear.observed.some(kernels, columns).windows[0] < _ATTESTED)
    if disturbed.any():
        odd = np.zeros(linear.observed.core_mhz.shape, dtype=bool)
        odd[np.ix_(kernels, columns)] = disturbed
        linear = dataclasses.replace(linear, observed=linear.observed.without(odd))
        given = linear.telling()[0]
        left_out = LeftOut.of(given).without(disturbed)
    return linear, given, left_out


def bounded(log_s: Floats, core_mhz: Floats, mem_mhz: Floats) -> Floats:
    """Return log times within what physics allows, against the fastest clocks. Shape (K, C)."""
    if not log_s.size:  # auto is all there is
        return log_s
    order = np.lexsort((core_mhz, mem_mhz))
    fastest = order[mem_mhz[order] == mem_mhz.max()][-_FASTEST:]
    at_best = log_s[:, fastest, None]
    # Where clocks are far apart, the fastest of them may be faster than the median by their ratio.
    ahead = np.minimum(np.log(core_mhz[fastest, None] / core_mhz), 0.0)
    by_memory = np.where(mem_mhz < mem_mhz.max(), _SLOW_MEMORY * mem_mhz.max() / mem_mhz, 0.0)
    slowest = np.maximum(_SLOWER * core_mhz.max() / core_mhz, by_memory)
    low = np.median(at_best + ahead, axis=1) + math.log(_FASTER)
    return np.clip(log_s, low, np.median(at_best, axis=1) + np.log(slowest))


def at_locked_clocks(
    model: FittedModel,
    clocks: tuple[Floats, Floats],
    settings: tuple[Clocks, ...],
    celsius: float,
    errors: Floats | None = None,
) -> tuple[Posterior, Sizes]:
    """Estimate every kernel of a fit at locked clocks, whatever limits power.

    Args:
        clocks: Core and memory clocks of the settings. Shapes (C,).
        errors: Columns of errors of log power that all rows at a setting have. Shape (C, V).
    """
    targets = Targets.of(model, clocks, np.zeros(len(settings), dtype=bool), celsius)
    observed = Observed.of(model, model.rows, len(model.rows.names), alike=True)
    observed = observed if errors is None else observed.with_visits(targets, errors)
    usual = OF_CO_LOAD if HEATER in model.rows.names else OF_LOCKS
    sizes = likeliest_sizes(observed, targets, model.prior, usual)
    linear = Model(observed=observed, targets=targets, prior=model.prior, sizes=sizes)
    # A window that is far off all the rest is no slip: a peak of power holds a kernel at one clock.
    given = linear.telling()[0]
    left_out = LeftOut.of(given)
    wider = _AT_LOCKS[0] * left_out.factor(0), _AT_LOCKS[1] * left_out.factor(1)
    posterior = posterior_of(linear, (given.shared, given.shared_cov), settings, wider)
    log = np.stack([bounded(posterior.log_s, *clocks), posterior.log_w])
    return dataclasses.replace(posterior, log=log), sizes


def _at_locks(
    sample_set: SampleSet, known: KnownFit, settings: tuple[Clocks, ...], limit_w: float
) -> tuple[Posterior, Sizes, Bools, float]:
    """Estimate kernels at locked clocks, under a limit each.

    Returns:
        Also which of them anything says, (K, C), and by how much power wanders.
    """
    rows = known.rows
    core_mhz, mem_mhz = clocks_of(rows, settings)
    wander, errors = power_wander(sample_set, settings)
    posterior, sizes = at_locked_clocks(
        known.model, (core_mhz, mem_mhz), settings, temperature_of(sample_set), errors
    )
    posterior = posterior.of_first(len(sample_set.kernels))
    posterior = capped(posterior, core_mhz, mem_mhz, limit_w)
    like_auto = mem_mhz == rows.auto_mem_mhz
    posterior = as_at_boost(posterior, rows.boost_log_s, core_mhz, like_auto, rows.peak_w)
    reached = np.unique(rows.kernel[rows.windows[1] > 0.0])
    posterior = above_rows(posterior, rows, core_mhz, mem_mhz)
    guessed = unmeasured(sample_set).without(reached)
    posterior = with_guesses(posterior, guessed.places, guessed.spread)
    log_s, log_w, repeats = measured_means(sample_set, settings, known.weights)
    unknown = np.diff(rows.bounds) == 0
    as_measured = np.where(unknown[:, None], log_s, np.nan)
    posterior = with_means(posterior, as_measured, log_w, repeats)
    return posterior, sizes, np.isfinite(log_s) | ~unknown[:, None], wander


def _beside_j(sample_set: SampleSet, model: FittedModel, posterior: Posterior) -> Floats:
    """Energy of overlapped launches in a step beyond idle power, at auto's clocks. Shape (K,)."""
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
    gpu = model.parameters.family.gpu(model.parameters.shared + posterior.gpu)
    anyway_w = float(idle_w(gpu, core_mhz, mem_mhz, STEADY_C)[0])
    own_w = np.maximum(np.exp(posterior.log_w[:, at]) - anyway_w, 0.0)
    beside_j: Floats = counts * np.exp(posterior.log_s[:, at]) * own_w
    return beside_j


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


# Kernels draw 0.4 to 2 % more in the step than alone, by nine files of H200s (h200/steering.md).
_IN_STEP = 0.003, 0.013  # of log time (assumed) and log power
_ONE_SIDE = 0.95
# What repeats in a row do not average out of a step's time. Windows of one kernel, off the cap of
# an H200, differ by 0.027 % (docs/evidence/h200).
_REPEATABLE = 2.7e-4
_AT_LIMIT = 0.4  # of what power wanders by: there the clock moves, and power 2.5 times as time
_FREE_CLOCK = 0.004  # half a clock bin of 15 MHz: what boosts by itself was not at one clock


def _with_auto(posterior: Posterior) -> Floats:
    """Return columns of errors of log time and log energy, auto's last. Shape (2, K, S, E).

    At auto each kernel has the error of one look.
    """
    time2, power2 = posterior.noise**2
    errors = np.sqrt(np.stack([time2, time2 + power2]) + _FREE_CLOCK**2)
    kernels, settings, columns = posterior.moves.shape[1:]
    moves = np.empty((2, kernels, settings + 1, columns))
    moves[0, :, :-1] = posterior.moves[0]
    np.add(posterior.moves[0], posterior.moves[1], out=moves[1, :, :-1])
    moves[:, :, -1, : posterior.shared] = 0.0
    drawn = opposite(np.random.default_rng(4), columns - posterior.shared, *errors.shape)
    moves[:, :, -1, posterior.shared :] = errors[..., None] * drawn
    return moves


def _of_settings(posterior: Posterior) -> Floats:
    """Return what kernels at a setting have in common, of log time and log energy. Shape (2, C)."""
    return np.stack([posterior.of_setting[0], np.hypot(*posterior.of_setting)])


def _auto_spread(
    posterior: Posterior, sample_set: SampleSet, wander: tuple[float, float]
) -> tuple[float, float]:
    """Return the relative errors of what the whole step costs at auto, as it ran.

    Args:
        wander: By how much its time and energy wander within minutes, as standard deviations.
    """
    time2, power2 = posterior.noise**2
    costs = np.array([(window.time_s, window.energy_j) for window in sample_set.in_situ])
    many = len(costs)
    at_auto = set(map(id, sample_set.in_situ))
    looked = [id(window) in at_auto for window in sample_set.windows]
    # Looks one after the other wander together, and their scatter does not show it.
    _, together = looks_alike(looked_at_s(sample_set.windows)[looked])
    spreads = []
    variances = zip((time2, time2 + power2), costs.T, wander, strict=True)
    for variance, values, wanders in variances:
        # One kernel's noise stands for one window's; repeats, where there are some, say more.
        prior2, weight = float(np.median(variance)), 1.0
        off2 = float(np.var(values)) * many / float(np.mean(values)) ** 2
        freedom = weight + many - 1
        each2 = (weight * prior2 + off2) / freedom
        # A scatter known from few runs: Student's t where the rest have a normal distribution.
        wider = float(stdtrit(freedom, _ONE_SIDE)) / ONE_SIDED
        spreads.append(math.sqrt(wider**2 * each2 / many + wanders**2 * together))
    return math.hypot(spreads[0], _REPEATABLE), spreads[1]


def _step_error(table: CostTable, auto_spread: tuple[float, float] | None) -> tuple[float, float]:
    """Return by how much more than it scatters the model misses the step at auto, as fractions.

    A change compares what the model makes of a choice with what it makes of auto, and how unsure
    that is the errors of the choice do not say.
    """
    if table.power_cap is None or auto_spread is None:
        return 0.0, 0.0
    missed = (table.missed.time, table.missed.energy)
    time, energy = (
        math.sqrt(max(0.0, math.log(ratio) ** 2 - (_FAR_OFF * spread) ** 2))
        for ratio, spread in zip(missed, auto_spread, strict=True)
    )
    return time, energy
