"""What samples of one step say of another step of the same GPU, which was not measured.

Kernels are matched (`matching`); the parameters of one whose size is new follow from its FLOPs and
bytes (`unseen`), and what the rows of its source say beyond the physics stays as far as that is its
own. The GPU's shared constants, and their errors, are the same for all of them.

Shape letters: K kernels, N new ones, C settings but the baseline, P parameters of a kernel.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.adjusted import StepRatio, capped, held, with_guesses, with_ratio
from underclock.core.model.costs import STANDARD, WITHIN, Costs, DrawnCosts
from underclock.core.model.estimate import (
    Estimate,
    KnownFit,
    at_locked_clocks,
    drawn_beside_j,
    estimate,
)
from underclock.core.model.most_likely import clocks_of, fit_rows, temperature_of
from underclock.core.model.observed import Targets
from underclock.core.model.parameters import Parameters
from underclock.core.model.posterior import Posterior, opposite
from underclock.core.model.sample_rows import KIND_NUMBERS
from underclock.core.model.sample_sets import joined_sets, sample_weights
from underclock.core.step.cost_table import (
    CostTable,
    at_any_clocks,
    overlap_notes,
    overlapped_counts,
    unmeasured,
    waited_counts,
)
from underclock.core.step.power_capped_step import auto_expected, cap_of
from underclock.core.transfer.matching import Match, matched, rows_apart, work_of
from underclock.core.transfer.unseen import KnownKernels, Unseen, unseen
from underclock.errors import DataError
from underclock.gpus.models import link_of
from underclock.records import Kernel, SampleSet, Step
from underclock.records.planned import CarriedOver, KernelMatch, MatchWay
from underclock.units import format_duration

_NEARLY_NONE = 1e-12  # of cycles, whose logarithm is a number
_MANY = 0.25  # of the step's time, above which it is called another model's
_SEED, _DRAWS = 31, 64  # of draws that the cap settles, and how many
_OF_MISS = 0.5  # of what the model misses of one step at auto, and of what a lag makes of another
_OF_LINKS = 0.5  # error of what is assumed of a link, as a logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What is known of a step that was not measured."""

    sample_set: SampleSet  # the step as if it had been measured, without any window
    estimated: Costs  # what planning stands on
    matches: CarriedOver  # how each kernel is known


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The step that ran."""

    known: Estimate  # what its samples say
    kernels: tuple[Kernel, ...]  # those of its step, and those that were confirmed
    bent: Posterior  # what is known of them at locked clocks, whatever limits power
    # of the physics, as rows leave them; those that kernels share as fitted, for around a fit where
    # one no longer matters a linear model lets it return to its prior
    parameters: Parameters

    @classmethod
    def of(cls, sample_set: SampleSet, confirmed: SampleSet | None) -> "_Source":
        """Estimate the kernels of a step, with more samples of some where there are any."""
        known, kernels = estimate(sample_set), sample_set.kernels
        if known.costs.table.power_cap is None:
            raise DataError(
                f"the samples of {sample_set.workload} are of kernels alone, and what auto makes "
                "of a step that never ran follows from one that ran whole",
                hint="measure the step whole too: `underclock measure` does by itself",
            )
        if confirmed is not None:
            both, own = joined_sets([sample_set, confirmed]), len(kernels)
            rows, model = fit_rows(both, known.posterior.settings)
            both_fit = KnownFit(rows=rows, model=model, weights=sample_weights(sample_set))
            fit = dataclasses.replace(both_fit, rows=rows.of(np.arange(own)))
            known = dataclasses.replace(estimate(sample_set, known=fit), fit=both_fit)
            # A name that both steps have for other work gets another name in a fit of both.
            original = {kernel.name: kernel for kernel in confirmed.kernels}
            more = (original[each.name.removesuffix(" of file 2")] for each in both.kernels[own:])
            kernels = (*kernels, *more)
        model, rows, settings = known.fit.model, known.fit.rows, known.posterior.settings
        clocks, celsius = clocks_of(rows, settings), temperature_of(sample_set)
        bent = at_locked_clocks(model, clocks, settings, celsius)[0].of_first(len(kernels))
        bent = dataclasses.replace(bent, of_setting=known.posterior.of_setting)
        guessed = unmeasured(sample_set).without(np.unique(rows.kernel[rows.windows[1] > 0.0]))
        parameters, serial = model.parameters, model.parameters.serial
        return cls(
            known=known,
            kernels=kernels,
            bent=with_guesses(bent, guessed.places, guessed.spread),
            parameters=dataclasses.replace(
                parameters,
                kernels=parameters.kernels[: len(kernels)] + bent.parameters,
                serial=None if serial is None else serial[: len(kernels)],
            ),
        )


def carried(sample_set: SampleSet, step: Step, *, confirmed: SampleSet | None = None) -> Carried:
    """Say what a step costs at every setting, from samples of another one.

    Args:
        sample_set: Of a step that ran whole too, of one GPU.
        step: The step that was not measured.
        confirmed: Samples of some of its kernels, where those were measured after all.

    Raises:
        DataError: The samples are of kernels alone, or the steps share no kernel.
    """
    source = _Source.of(sample_set, confirmed)
    known, kernels, rows = source.known, source.kernels, source.known.fit.rows
    # In the step launches are timed that never ran by themselves: their power is guessed.
    measured = [
        np.bincount(rows.kernel, of, minlength=len(rows.names)) > 0.0 for of in rows.windows
    ]
    usable, complete = measured[0], np.all(measured, axis=0)
    matches = matched(kernels, usable, step.kernels)
    if not any(match.way.is_told and match.source is not None for match in matches):
        raise DataError(
            f"{step.name} shares no kernel with {sample_set.workload}: no operator of it was "
            "measured in the same place of the model",
            hint="measure the step itself: `underclock measure`",
        )
    apart = np.array(
        [
            0.0 if match.source is None else rows_apart(kernels[match.source], kernel)
            for match, kernel in zip(matches, step.kernels, strict=True)
        ]
    )
    moves, kinds = source.bent.parameter_moves, [KIND_NUMBERS[each.kind] for each in step.kernels]
    sources = np.array([-1 if match.source is None else match.source for match in matches])
    guessed = unseen(
        KnownKernels(
            kinds=rows.kinds[: len(moves)],
            work=work_of(kernels),
            parameters=source.parameters.kernels,
            cov=moves @ moves.swapaxes(1, 2),
        ),
        complete,
        np.where([match.way.is_told for match in matches], kinds, -1),
        work_of(step.kernels),
        sources,
        np.array([match.way is MatchWay.SAME for match in matches]),
        apart,
    )
    _assume_links(guessed, source, sample_set, step, matches)
    posterior, off = _posterior(source, sample_set, guessed, sources)
    header = msgspec.structs.replace(
        sample_set, step=step, windows=(), expected_samples=None, lacking={}
    )
    table = _table(known, step, posterior, usable, matches)
    order = np.array(step.order, dtype=np.int64)
    expected = auto_expected(table, order, known.costs.table)
    boards = DrawnCosts.of(expected, off)
    # Draws of time and power as columns of errors of time and energy; auto's setting is the last.
    moves = np.stack([off[:, 0], off.sum(axis=1)]) / math.sqrt(len(off))
    estimated = Costs(
        table=expected,
        moves=np.pad(np.moveaxis(moves, 1, -1), ((0, 0), (0, 0), (0, 1), (0, 0))),
        shared=0,
        step_error=_closing_error(known, expected),
        boards=boards,
    )
    # Between which times in s the step is expected to lie at auto, with 95 % confidence.
    error = estimated.step_error[0] * STANDARD[:, None]
    each = boards.auto[:, 0] / boards.expected[0] * np.exp(error)
    least, most = estimated.table.auto_time_s * np.quantile(each, WITHIN)
    between = f"{format_duration(float(least))} to {format_duration(float(most))}"
    basis = (
        f"{step.name} was not measured: its costs are carried over from samples of "
        f"{sample_set.workload}, which say that it takes {between} at auto (95 %); "
        "`underclock validate` tries the plan"
    )
    warnings = (basis, *table.warnings)
    each_s = table.time_s[:, cap_of(table).boost]
    share = float(each_s[apart > 0.0].sum() / each_s.sum())
    if share >= _MANY:
        words = (
            f"{share:.0%} of the step's time is of kernels whose tensors have rows of another "
            "length than those measured, as in another model: what such kernels cost is less sure, "
            "so the plan is careful; measure the step itself, or some of its kernels with --confirm"
        )
        warnings += (words,)
    table = dataclasses.replace(estimated.table, warnings=warnings)
    estimated = dataclasses.replace(estimated, table=table)
    return Carried(
        sample_set=header,
        estimated=estimated,
        matches=_match_record(sample_set, confirmed, kernels, estimated, matches),
    )


def _assume_links(
    made: Unseen, source: _Source, sample_set: SampleSet, step: Step, matches: Sequence[Match]
) -> None:
    """Put in what is assumed of collectives that no sample is like."""
    gpu, rows = sample_set.gpu, source.known.fit.rows
    boost = source.bent.settings[cap_of(source.known.costs.table).boost]
    core_mhz, mem_mhz = clocks_of(rows, [boost])
    for n, match in enumerate(matches):
        if match.way is MatchWay.LINK:
            assumed = link_of(gpu.name).constants(
                step.kernels[n],
                source.parameters.family.gpu(source.parameters.shared),
                None,
                highest_mhz=(int(core_mhz[0]), int(mem_mhz[0])),
                limit_w=gpu.power_limit_w or rows.limit_w,
            )
            made.parameters[n] = np.log(
                [_NEARLY_NONE, _NEARLY_NONE, assumed.fixed_s, assumed.work_j_per_v2]
            )
            made.cov[n] = np.diag([0.0, 0.0, _OF_LINKS**2, _OF_LINKS**2])
            made.is_told[n] = True


def _posterior(
    of: _Source, sample_set: SampleSet, guessed: Unseen, source: Ints
) -> tuple[Posterior, Floats]:
    """Return what the new kernels are expected to cost, and how far draws are off, (D, 2, N, C)."""
    # Their own errors are those of their sources, and what their size leaves unsure.
    known, bent, parameters = of.known, of.bent, of.parameters
    model, settings, celsius = known.fit.model, bent.settings, temperature_of(sample_set)
    clocks = clocks_of(known.fit.rows, settings)
    free = np.zeros(len(settings), dtype=bool)
    fitted = dataclasses.replace(model, parameters=parameters)
    old = Targets.of(fitted, clocks, free, celsius)
    serial = None if parameters.serial is None else parameters.serial[source]
    of_new = dataclasses.replace(parameters, kernels=guessed.parameters, serial=serial)
    new = Targets.of(dataclasses.replace(model, parameters=of_new), clocks, free, celsius)
    has, k = source >= 0, np.maximum(source, 0)
    kept = guessed.kept[None, :, None]
    # What rows of the source say beyond the physics; errors of parameters go through the new size.
    gpu = np.zeros((len(bent.gpu), bent.moves.shape[-1]))
    gpu[:, : bent.shared] = bent.gpu_moves
    beyond = bent.moves - old.by_kernel @ bent.parameter_moves - old.by_shared @ gpu
    through = np.where(has[:, None, None], bent.parameter_moves[k], 0.0)
    through = np.einsum("npq,nqe->npe", guessed.by_source, through)
    moves = new.by_kernel @ through + new.by_shared @ gpu + kept[..., None] * beyond[:, k]
    random, draws = np.random.default_rng(_SEED), bent.moves.shape[-1] - bent.shared
    values, vectors = np.linalg.eigh(guessed.cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    moves[..., bent.shared :] += new.by_kernel @ (root @ opposite(random, draws, *root.shape[:2]))
    anew = np.hypot(known.sizes.smooth, known.sizes.row)[:, None, None] * np.sqrt(1.0 - kept**2)
    moves[..., bent.shared :] += anew[..., None] * opposite(random, draws, *new.log.shape)
    by_kind = np.einsum("cnip,npq->cniq", new.by_kernel, guessed.by_kind)
    posterior = dataclasses.replace(
        bent,
        log=new.log + kept * (bent.log - old.log)[:, k],
        moves=np.concatenate([by_kind, moves], axis=-1),
        shared=bent.shared + by_kind.shape[-1],
        noise=np.where(has, bent.noise[:, k], np.median(bent.noise, axis=1, keepdims=True)),
        parameters=guessed.parameters,
        parameter_moves=np.zeros((*guessed.parameters.shape, by_kind.shape[-1] + moves.shape[-1])),
        gpu_moves=np.pad(bent.gpu_moves, ((0, 0), (by_kind.shape[-1], 0))),
    )
    ratio, peak_w = known.ratio or StepRatio(), known.fit.rows.peak_w
    free_of_limits = with_ratio(posterior, ratio.ratio, (0.0, ratio.spread))
    posterior = with_ratio(capped(posterior, *clocks, peak_w), ratio.ratio, (0.0, ratio.spread))
    # The limit that a kernel meets by itself is nothing that an error moves, so it comes after.
    off = free_of_limits.drawn(_DRAWS, _SEED)
    limit_w = peak_w * ratio.ratio
    drawn = held(free_of_limits.log + off, *clocks, limit_w)
    # What no sample is like is taken to last no longer than the longest that was measured.
    untold, longest = ~guessed.is_told, bent.log_s.max(axis=0)
    drawn[:, 0, untold] = np.minimum(drawn[:, 0, untold], longest)
    return posterior, drawn - held(free_of_limits.log, *clocks, limit_w)


def _table(
    known: Estimate, step: Step, posterior: Posterior, usable: Bools, matches: Sequence[Match]
) -> CostTable:
    """Return costs at locked clocks, auto as boost: what its cap makes of that comes later."""
    kernels, of = step.kernels, known.costs.table
    cap, count = cap_of(of), len(known.can)
    # Where each new kernel may be planned. Shape (N, C).
    everywhere = known.can[usable[:count]].all(axis=0)
    sources = (count if match.source is None else match.source for match in matches)
    can = np.stack([known.can[k] if k < count else everywhere for k in sources])
    costs = posterior.costs(waited_counts(kernels))
    time_s, energy_j = (np.where(can, each, math.inf) for each in costs)
    counts = overlapped_counts(kernels)
    beside_j = drawn_beside_j(known.fit.model, posterior, counts, cap.boost)
    left = np.array([not match.way.is_told for match in matches])
    time_s = np.column_stack([time_s, time_s[:, cap.boost]])
    energy_j = np.column_stack([energy_j, energy_j[:, cap.boost]]) + beside_j[:, None]
    launch_s = np.exp(posterior.log_s[:, cap.boost])
    missed = of.missed  # the cap of the known step is at the scale of its auto
    if beside_j.any():
        beside_j = beside_j / missed.energy
    return dataclasses.replace(
        of,
        kernels=kernels,
        time_s=at_any_clocks(kernels, time_s, cap.boost) / missed.time,
        energy_j=at_any_clocks(kernels, energy_j, cap.boost) / missed.energy,
        baseline=len(posterior.settings),
        beside_j=beside_j if beside_j.any() else None,
        left=left if left.any() else None,
        warnings=(*step.warnings, *overlap_notes(kernels, launch_s)),
        held=None,
    )


def _match_record(
    sample_set: SampleSet,
    confirmed: SampleSet | None,
    kernels: Sequence[Kernel],
    estimated: Costs,
    matches: Sequence[Match],
) -> CarriedOver:
    """Write down how each kernel is known."""
    boost = cap_of(estimated.table).boost
    spreads = np.sqrt([estimated.variance(*of)[:, boost] for of in ((1.0, 0.0), (0.0, 1.0))])
    names = (kernel.name for kernel in estimated.table.kernels)
    return CarriedOver(
        workload=sample_set.workload,
        fingerprint=sample_set.step.fingerprint,
        confirmed=() if confirmed is None else tuple(k.name for k in confirmed.kernels),
        matches={
            name: KernelMatch(
                way=match.way,
                source=kernels[match.source].name
                if match.way.is_told and match.source is not None
                else None,
                time_spread=float(time),
                energy_spread=float(energy),
            )
            for name, match, time, energy in zip(names, matches, *spreads, strict=True)
        },
    )


def _closing_error(known: Estimate, table: CostTable) -> tuple[float, float]:
    """Return how unsure what the model misses of the known step at auto is, of another step."""
    # Its own runs scatter; beyond that the miss may be the known step's own, or of any step; and
    # what a lag of the power loop makes of the new one is a model's.
    was, now = known.costs.table.missed, table.missed
    pairs = (was.time, now.time), (was.energy, now.energy)
    spreads = known.costs.auto_spread or (0.0, 0.0)
    time, energy = (
        math.hypot(spread, _OF_MISS * math.log(before), _OF_MISS * math.log(after / before))
        for spread, (before, after) in zip(spreads, pairs, strict=True)
    )
    return time, energy
