"""What samples of one step say of another step of the same GPU, which nobody measured.

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
from scipy.linalg import block_diag

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import KnownFit, drawn_beside_j, estimate, with_guesses
from underclock.core.model.fitting import fit_rows, temperature_of
from underclock.core.model.in_step import StepRatio, in_step
from underclock.core.model.parameters import Parameters, Points, predicted_rows
from underclock.core.model.posterior import Posterior, capped, held
from underclock.core.model.predictive import clocks_of, posterior_of
from underclock.core.model.row_runs import sample_weights
from underclock.core.model.rows import PER_KERNEL
from underclock.core.model.sample_rows import KIND_NUMBERS
from underclock.core.model.sample_sets import joined_sets
from underclock.core.step.drawn_costs import normals
from underclock.core.step.table import (
    CostTable,
    at_any_clocks,
    overlap_notes,
    overlapped_counts,
    waited_counts,
)
from underclock.core.step.under_cap import auto_expected, cap_of
from underclock.core.transfer.carried_estimate import CarriedEstimate
from underclock.core.transfer.matching import Match, matched, rows_apart, work_of
from underclock.core.transfer.unseen import KnownKernels, Unseen, unseen
from underclock.errors import DataError
from underclock.gpus.links import link_of
from underclock.records import Kernel, SampleSet, Step
from underclock.records.carried import CarriedOver, KernelMatch, MatchWay
from underclock.units import format_duration

_NEARLY_NONE = 1e-12  # of cycles, whose logarithm is a number
_MANY = 0.25  # of the step's time, above which it is called another model's
_SEED = 31  # of the draws
_OF_LINKS = 0.5  # error of what is assumed of a link, as a logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What is known of a step that was not measured.

    Attributes:
        sample_set: The step as if it had been measured, without any window.
        estimated: What planning stands on.
        told: How each kernel is known.
    """

    sample_set: SampleSet
    estimated: CarriedEstimate
    told: CarriedOver


def carried(sample_set: SampleSet, step: Step, *, confirmed: SampleSet | None = None) -> Carried:
    """Say what a step costs at every setting, from samples of another one.

    Args:
        sample_set: Of a step that ran whole too, of one GPU.
        step: The step that nobody measured.
        confirmed: Samples of some of its kernels, where those were measured after all.

    Raises:
        DataError: The samples are of kernels alone, or the steps share no kernel.
    """
    known, kernels = _known(sample_set, confirmed)
    # In the step launches are timed that never ran by themselves: their power is guessed.
    usable, told = (_told_by(known, of) for of in (known.rows.windows[:1], known.rows.windows))
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
    guessed = _unseen(known, kernels, step, matches, told, apart)
    _assume_links(guessed, known, sample_set, step, matches)
    posterior, off = _posterior(known, sample_set, guessed, _sources(matches))
    header = msgspec.structs.replace(
        sample_set,
        workload=step.name,
        kernels=step.kernels,
        windows=(),
        fingerprint=step.fingerprint,
        expected_samples=None,
        order=step.order,
        modules=step.modules,
        source=step.source,
        lacking={},
    )
    can = _can(known, matches, usable)
    table = _table(known, step, posterior, can, matches)
    expected = auto_expected(table, np.array(step.order, dtype=np.int64), known.table)
    estimated = CarriedEstimate.of(known, off, expected.table)
    warnings = (
        _sentence(sample_set, step, estimated),
        *table.warnings,
        *_of_another_model(table, apart),
    )
    table = dataclasses.replace(estimated.table, warnings=warnings)
    estimated = dataclasses.replace(estimated, table=table)
    return Carried(
        sample_set=header,
        estimated=estimated,
        told=_told(sample_set, confirmed, kernels, estimated, matches),
    )


def _known(
    sample_set: SampleSet, confirmed: SampleSet | None
) -> tuple[CostEstimate, tuple[Kernel, ...]]:
    """Return what is known of the step that ran, and all kernels that its model is of."""
    known = estimate(sample_set)
    if known.table.power_cap is None:
        raise DataError(
            f"the samples of {sample_set.workload} are of kernels alone, and what auto makes of a "
            "step that nobody ran follows from one that ran whole",
            hint="measure the step whole too: `underclock measure` does by itself",
        )
    if confirmed is None:
        return known, sample_set.kernels
    both, own = joined_sets([sample_set, confirmed]), len(sample_set.kernels)
    rows, model = fit_rows(both, known.posterior.settings)
    fit = KnownFit(
        rows=rows.of(np.arange(own)), model=model.of_first(own), weights=sample_weights(sample_set)
    )
    known = dataclasses.replace(estimate(sample_set, known=fit), rows=rows, model=model)
    # A name that both steps have for other work is told apart in a fit of both.
    original = {kernel.name: kernel for kernel in confirmed.kernels}
    more = (original[kernel.name.removesuffix(" of file 2")] for kernel in both.kernels[own:])
    return known, (*sample_set.kernels, *more)


def _told_by(known: CostEstimate, windows: Floats) -> Bools:
    """Return of which kernels rows that weigh so, (Q, R), tell every quantity. Shape (K,)."""
    rows = known.rows
    told = [np.bincount(rows.kernel, of, minlength=len(rows.names)) > 0.0 for of in windows]
    every: Bools = np.all(told, axis=0)
    return every


def _unseen(
    known: CostEstimate,
    of: Sequence[Kernel],
    step: Step,
    matches: Sequence[Match],
    told: Bools,
    apart: Floats,
) -> Unseen:
    model = known.model
    of_shared = np.einsum(
        "kps,st,kqt->kpq", model.gain, model.shared_cov, model.gain, optimize=True
    )
    kernels = KnownKernels(
        kinds=model.rows.kinds,
        work=work_of(of),
        parameters=model.parameters.kernels,
        cov=model.kernel_cov + of_shared,
    )
    known_ways = [match.way.is_told for match in matches]
    kinds = [KIND_NUMBERS[kernel.kind] for kernel in step.kernels]
    return unseen(
        kernels,
        told,
        np.where(known_ways, kinds, -1),
        work_of(step.kernels),
        _sources(matches),
        np.array([match.way is MatchWay.SAME for match in matches]),
        apart,
    )


def _assume_links(
    made: Unseen,
    known: CostEstimate,
    sample_set: SampleSet,
    step: Step,
    matches: Sequence[Match],
) -> None:
    """Put in what is assumed of collectives that no sample is like."""
    model, gpu = known.model, sample_set.gpu
    boost = known.posterior.settings[cap_of(known.table).boost]
    core_mhz, mem_mhz = clocks_of(model.rows, [boost])
    for n, match in enumerate(matches):
        if match.way is MatchWay.LINK:
            assumed = link_of(gpu.name).constants(
                step.kernels[n],
                model.parameters.family.gpu(model.parameters.shared),
                None,
                highest_mhz=(int(core_mhz[0]), int(mem_mhz[0])),
                limit_w=gpu.power_limit_w or known.rows.limit_w,
            )
            made.parameters[n] = np.log(
                [_NEARLY_NONE, _NEARLY_NONE, assumed.fixed_s, assumed.work_j_per_v2]
            )
            made.cov[n] = np.diag([0.0, 0.0, _OF_LINKS**2, _OF_LINKS**2])
            made.is_told[n] = True


def _sources(matches: Sequence[Match]) -> Ints:
    return np.array([-1 if match.source is None else match.source for match in matches])


def _posterior(
    known: CostEstimate, sample_set: SampleSet, guessed: Unseen, source: Ints
) -> tuple[Posterior, Floats]:
    """Return what is known of the new kernels at every setting.

    Their own errors are those of their sources, and what their size leaves unsure: 2 P of them.

    Returns:
        What is expected, and how far draws of it are off, (D, 2, K, C).
    """
    model, settings = known.model, known.posterior.settings
    celsius = temperature_of(sample_set)
    bent = posterior_of(model, settings, temperature_c=celsius, limit_w=math.inf)
    bent = with_guesses(bent, sample_set, known.rows)
    clocks = clocks_of(model.rows, settings)
    old = _physics(model.parameters, clocks, celsius)
    serial = None if model.parameters.serial is None else model.parameters.serial[source]
    new = _physics(
        dataclasses.replace(model.parameters, kernels=guessed.parameters, serial=serial),
        clocks,
        celsius,
    )
    has, k = source >= 0, np.maximum(source, 0)
    by = guessed.kept[None, :, None, None]
    scale = np.where(has, model.scale[k], float(np.median(model.scale)))
    anew = (scale[None, :] * model.errors.discrepancy[:, None]) ** 2
    kept2 = guessed.kept[None, :, None] ** 2
    through = np.einsum("cnip,npq->cniq", new.by_kernel, guessed.by_source)
    cov = np.zeros((len(source), 2 * PER_KERNEL, 2 * PER_KERNEL))
    cov[:, :PER_KERNEL, :PER_KERNEL] = np.where(has[:, None, None], model.kernel_cov[k], 0.0)
    cov[:, PER_KERNEL:, PER_KERNEL:] = guessed.cov
    log_s, log_w = new.log + by[..., 0] * (np.stack([bent.log_s, bent.log_w]) - old.log)[:, k]
    old_shared = old.by_shared + np.einsum("ckip,kps->ckis", old.by_kernel, model.gain)
    by_kind = np.einsum("cnip,npq->cniq", new.by_kernel, guessed.by_kind)
    shared = (
        new.by_shared
        + np.einsum("cnip,nps->cnis", through, model.gain[k])
        + by * (bent.by_shared - old_shared)[:, k]
    )
    posterior = Posterior(
        settings=settings,
        log_s=log_s,
        log_w=log_w,
        by_shared=np.concatenate([shared, by_kind], axis=-1),
        by_kernel=np.concatenate(
            [through + by * (bent.by_kernel - old.by_kernel)[:, k], new.by_kernel], axis=-1
        ),
        discrepancy=kept2 * bent.discrepancy[:, k] + (1.0 - kept2) * anew[:, :, None],
        shared_cov=block_diag(model.shared_cov, np.eye(by_kind.shape[-1])),
        kernel_cov=cov,
        noise=model.errors.noise[:, None] * scale,
    )
    peak_w = known.rows.peak_w
    ratio = ratio_of(known, capped(bent, *clocks, peak_w))
    free = in_step(posterior, ratio)
    posterior = in_step(capped(posterior, *clocks, peak_w), ratio)
    # The limit that a kernel meets by itself is nothing that an error moves, so it comes after.
    draws = free.drawn(normals(free.log_s.size, free.unknowns, seed=_SEED))
    means, limit_w = np.stack([free.log_s, free.log_w]), peak_w * ratio.ratio
    drawn = held(means + draws, *clocks, limit_w)
    # Of what nothing tells, it is taken that it lasts no longer than the longest that was measured.
    untold, longest = ~guessed.is_told, bent.log_s.max(axis=0)
    drawn[:, 0, untold] = np.minimum(drawn[:, 0, untold], longest)
    return posterior, drawn - held(means, *clocks, limit_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Physics:
    """What physics alone says: shapes (2, K, C), (2, K, C, S) and (2, K, C, P)."""

    log: Floats
    by_shared: Floats
    by_kernel: Floats


def _physics(parameters: Parameters, clocks: tuple[Floats, Floats], celsius: float) -> _Physics:
    core_mhz, mem_mhz = clocks
    count, many = len(parameters.kernels), len(core_mhz)
    at = Points(
        kernel=np.repeat(np.arange(count), many),
        core_mhz=np.tile(core_mhz, count),
        mem_mhz=np.tile(mem_mhz, count),
        temperature_c=np.full(count * many, celsius),
    )
    rows = predicted_rows(parameters, at)
    shape = 2, count, many
    return _Physics(
        log=rows.log.reshape(shape),
        by_shared=rows.by_shared().reshape(*shape, -1),
        by_kernel=rows.by_kernel().reshape(*shape, -1),
    )


def ratio_of(known: CostEstimate, bent: Posterior) -> StepRatio:
    """Return how much more kernels draw in the step, as the estimate of the known step has it."""
    more = known.posterior.shared_cov.shape[0] - bent.shared_cov.shape[0]
    if not more:
        return StepRatio()
    own = known.posterior.log_w
    ratio = float(np.exp(np.median(own - bent.log_w[: len(own)])))
    return StepRatio(ratio=ratio, spread=math.sqrt(float(known.posterior.shared_cov[-1, -1])))


def _can(known: CostEstimate, matches: Sequence[Match], usable: Bools) -> Bools:
    """Return where each new kernel may be planned. Shape (N, C)."""
    everywhere = known.can[usable[: len(known.can)]].all(axis=0)
    return np.stack(
        [
            everywhere
            if match.source is None or match.source >= len(known.can)
            else known.can[match.source]
            for match in matches
        ]
    )


def _table(
    known: CostEstimate,
    step: Step,
    posterior: Posterior,
    can: Bools,
    matches: Sequence[Match],
) -> CostTable:
    """Return costs at locked clocks, auto as boost: what its cap makes of that comes later."""
    kernels, cap = step.kernels, cap_of(known.table)
    costs = posterior.costs(waited_counts(kernels))
    time_s, energy_j = (np.where(can, each, math.inf) for each in costs)
    counts = overlapped_counts(kernels)
    beside_j = drawn_beside_j(known.model, posterior, counts, cap.boost)
    baseline = len(posterior.settings)
    left = np.array([not match.way.is_told for match in matches])
    time_s = np.column_stack([time_s, time_s[:, cap.boost]])
    energy_j = np.column_stack([energy_j, energy_j[:, cap.boost]]) + beside_j[:, None]
    launch_s = np.exp(posterior.log_s[:, cap.boost])
    missed = known.table.missed  # the cap of the known step is at the scale of its auto
    if beside_j.any():
        beside_j = beside_j / missed.energy
    return CostTable(
        kernels=kernels,
        settings=known.table.settings,
        time_s=at_any_clocks(kernels, time_s, cap.boost) / missed.time,
        energy_j=at_any_clocks(kernels, energy_j, cap.boost) / missed.energy,
        baseline=baseline,
        closure=known.table.closure,
        power_cap=cap,
        heat=known.table.heat,
        beside_j=beside_j if beside_j.any() else None,
        left=left if left.any() else None,
        warnings=(*step.warnings, *overlap_notes(kernels, launch_s)),
    )


def _told(
    sample_set: SampleSet,
    confirmed: SampleSet | None,
    kernels: Sequence[Kernel],
    estimated: CarriedEstimate,
    matches: Sequence[Match],
) -> CarriedOver:
    """Write down how each kernel is known."""
    boost = cap_of(estimated.table).boost
    spreads = [each[:, boost] for each in estimated.entry_spreads]
    names = (kernel.name for kernel in estimated.table.kernels)
    return CarriedOver(
        workload=sample_set.workload,
        fingerprint=sample_set.fingerprint,
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


def _sentence(sample_set: SampleSet, step: Step, estimated: CarriedEstimate) -> str:
    """Say what the numbers rest on, and how well auto itself is known."""
    least_s, most_s = (format_duration(end_s) for end_s in estimated.auto_s)
    return (
        f"{step.name} was not measured: its costs are carried over from samples of "
        f"{sample_set.workload}, which say that it takes {least_s} to {most_s} at auto (95 %); "
        "`underclock validate` tries the plan"
    )


def _of_another_model(table: CostTable, apart: Floats) -> tuple[str, ...]:
    """Warn where much of the step runs on tensors whose rows are of another length."""
    each_s = table.time_s[:, cap_of(table).boost]
    share = float(each_s[apart > 0.0].sum() / each_s.sum())
    words = (
        f"{share:.0%} of the step's time is of kernels whose tensors have rows of another length "
        "than those measured, as in another model: what such kernels cost is less sure, so the "
        "plan is careful; measure the step itself, or some of its kernels with --confirm"
    )
    return (words,) if share >= _MANY else ()
