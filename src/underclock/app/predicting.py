"""predict: what other clocks would save, from samples at auto clocks and what others there are."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.core.prediction.prior import (
    FITTED,
    PUBLISHED,
    BaselineRun,
    PredictiveCheck,
    Prior,
    ReferenceKernel,
    checks_of,
    prior_widening,
    reference_kernels,
)
from underclock.core.prediction.savings import (
    at_baseline,
    baseline_runs,
    draw_tables,
    pooled,
    savings_after_measuring,
    savings_without_measuring,
)
from underclock.core.step.whole import check_kernels_alone
from underclock.errors import DataError, UsageError
from underclock.gpus.models import GpuModel, gpu_model, model_names
from underclock.records import AUTO, Clocks, SampleSet
from underclock.records.observed import Prediction
from underclock.store import SampleSource, read_samples

DRAWS = 100
_CONFIDENCE = 0.95
_WORTH_SAYING = 1.2
_FARTHEST = 4.0  # times further than expected, a prior is none of this GPU
_DRAWING = 0.8  # of the time goes into drawing tables, the rest into planning on them

_CORE_CLOCKS = 24  # more would change no prediction
# By how much more another GPU differs than published figures of one from what is fitted to it: of
# six sweeps, each predicted without it, 51 of 54 then lie within intervals that say 95 %.
OF_ANOTHER = 2.0
_BRANDS = ("nvidia", "geforce")


def predict(
    samples: SampleSource,
    *,
    max_slowdown: float = 0.0,
    like: str | None = None,
    baseline: Clocks | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Prediction:
    """Predict what a plan would save, from samples at auto clocks and what others there are.

    Args:
        samples: As of `plan`. Where some are at other clocks, plans choose among the clocks of the
            table, and what was not measured there is told by what was; else among those of the GPU.
        max_slowdown: Time budget as a fraction above auto, not negative.
        like: ``sim:NAME`` or a file that ``underclock calibrate`` wrote: whose constants and
            kernels stand for what was not measured. By default the model of the same name.
        baseline: The clocks to call auto, where a table has no auto rows.
        draws: How many possible tables to plan on.
        seed: Of the draws.
        progress: Told which share is done.

    Raises:
        UsageError: No model of that GPU, or a budget below auto.
        DataError: The samples cannot be read, a kernel has none at auto, or what was measured is
            far from all that the model lets expect.
    """
    _check(max_slowdown, draws)
    show = progress or (lambda _share: None)
    sample_set = read_samples(samples)
    check_kernels_alone(sample_set)
    basis = _basis(sample_set, baseline or AUTO, like)
    prior = prior_of(basis.model, basis.sample_set.gpu.name)
    checks = checks_of(prior, basis.runs, seed)
    off = _off(basis, checks)
    tables = draw_tables(
        basis.pooled,
        basis.baseline,
        dataclasses.replace(prior, off=off * prior.off),
        basis.runs,
        _table_clocks(basis) or planned_settings(basis.model),
        draws=draws,
        seed=seed,
        progress=lambda share: show(_DRAWING * share),
    )
    arms = savings_after_measuring(
        tables, max_slowdown, _CONFIDENCE, lambda share: show(_DRAWING + (1.0 - _DRAWING) * share)
    )
    return Prediction(
        evidence=basis.sample_set.evidence,
        gpu=basis.sample_set.gpu,
        workload=basis.sample_set.workload,
        like=basis.like,
        calibration=str(basis.model.calibration),
        max_slowdown=max_slowdown,
        confidence=_CONFIDENCE,
        draws=draws,
        kernels=len(basis.sample_set.kernels),
        counted=basis.counted,
        arms=arms,
        without_measuring=savings_without_measuring(tables, max_slowdown, _CONFIDENCE),
        elsewhere=sum(s.asked != basis.baseline for s in basis.sample_set.samples),
        off=off,
        warnings=(*basis.sample_set.warnings, *_warnings(basis), *_doubts(off, checks)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What a prediction rests on.

    Attributes:
        pooled: The same, of not too many kernels.
        counted: Of how many kernels there are readings of utilisation.
        baseline: The clocks called auto.
        like: How the reader names the model below.
        model: Whose constants and kernels stand for what was not measured.
        runs: What every kernel of ``pooled`` did at the baseline.
    """

    sample_set: SampleSet
    pooled: SampleSet
    counted: int
    baseline: Clocks
    like: str
    model: GpuModel
    runs: Sequence[BaselineRun]


def _basis(sample_set: SampleSet, baseline: Clocks, like: str | None) -> _Basis:
    """Gather what is known of the kernels and of the GPU."""
    used = at_baseline(sample_set, baseline)
    name, model = reference_model(sample_set.gpu.name, like)

    def runs_of(some: SampleSet) -> list[BaselineRun]:
        return baseline_runs(
            some,
            baseline,
            mem_mhz=float(model.p2_mem_mhz or model.mem_mhz[-1]),
            limit_w=sample_set.gpu.power_limit_w or model.limit_w[0],
        )

    runs, fewer = runs_of(used), pooled(sample_set, baseline)
    return _Basis(
        sample_set=sample_set,
        pooled=fewer,
        counted=sum(run.utilisation is not None for run in runs),
        baseline=baseline,
        like=name,
        model=model,
        runs=runs if fewer is sample_set else runs_of(at_baseline(fewer, baseline)),
    )


def _table_clocks(basis: _Basis) -> tuple[Clocks, ...]:
    """Return the clocks that samples are at, or are to be, beside the baseline."""
    asked = {sample.asked for sample in basis.sample_set.samples}
    there = asked | {*basis.sample_set.settings} if asked != {basis.baseline} else asked
    return tuple(c for c in there if c != basis.baseline and not c.is_auto)


def _off(basis: _Basis, checks: Sequence[PredictiveCheck]) -> float:
    """Return by how much the prior is off; refuse one that says nothing of this GPU."""
    off = prior_widening(checks)
    if off <= _FARTHEST:
        return off
    raise DataError(
        f"what was measured of {basis.sample_set.gpu.name} lies {off:.1f} times further from what "
        f"{basis.like} lets expect than it may: {_worst(checks).words}",
        hint="name a GPU that is more like it with --like, or measure at other clocks: "
        "`underclock measure` and `plan`, or `underclock calibrate` on a sweep and --like its file",
    )


def _worst(checks: Sequence[PredictiveCheck]) -> PredictiveCheck:
    return max(checks, key=lambda check: check.deviations)


def _doubts(off: float, checks: Sequence[PredictiveCheck]) -> Iterator[str]:
    """Say where the prior is off, and what of it nothing could check."""
    if off > _WORTH_SAYING:
        yield (
            f"the prior is off by a factor of {off:.1f}, and intervals are wider for it: "
            f"{_worst(checks).words}"
        )


def _check(max_slowdown: float, draws: int) -> None:
    if not 0 <= max_slowdown < 1:
        raise UsageError(
            f"cannot predict a change of time of {max_slowdown:+.2%} or less",
            hint="a fraction, 0 or more: auto itself keeps such a budget",
        )
    if draws < 1:
        raise UsageError(f"cannot predict from {draws} draws", hint="use 100")


def _warnings(basis: _Basis) -> Iterator[str]:
    """Say what makes a prediction worse, or is left out of it."""
    gpu, model = basis.sample_set.gpu.name, basis.model
    if is_of_another(model, gpu):
        yield f"the samples are of {gpu}; {model.name} stands for it, which may be far off"
    if not is_fitted(model):
        yield (
            f"no sweep of {model.name} is at hand: its voltage, leakage and memory power are "
            "guesses, for which the intervals allow"
        )
    if all(sample.asked == basis.baseline for sample in basis.sample_set.samples):
        yield (
            "samples at one clock pair do not show how kernels follow clocks: power at rest and "
            "the clocks were checked, the rest is taken from other kernels; a few samples at other "
            "clocks would narrow it"
        )
    kernels = len(basis.sample_set.kernels)
    if basis.counted < kernels:
        yield (
            f"{kernels - basis.counted} of {kernels} kernels have no readings of utilisation: what "
            "bounds them is guessed from other kernels, and the interval is wider"
        )


def reference_model(gpu: str, like: str | None) -> tuple[str, GpuModel]:
    """Return the model to compare with, and what to call it.

    Raises:
        UsageError: There is none of that name, or none of this GPU.
        DataError: The file cannot be read as a model.
    """
    if like is not None:
        name = like.removeprefix("sim:")
        return like, gpu_model(name)
    for name in model_names():
        model = gpu_model(name)
        if plain_name(model.name) == plain_name(gpu):
            return f"sim:{name}", model
    known = ", ".join(f"sim:{name}" for name in model_names())
    raise UsageError(
        f"nothing is known of a GPU called {gpu!r}",
        hint=f"name one that is like it: --like with {known}, or a file of `underclock calibrate`",
    )


def prior_of(model: GpuModel, gpu: str | None = None) -> Prior:
    """Return what a model knows of the GPU that it stands for, by default its own.

    What a step's kernels are like depends on the step more than on the GPU, so the kernels of all
    fitted models join the model's own.
    """
    others = [other for other in map(gpu_model, model_names()) if other.name != model.name]
    references = own_kernels(model)
    references += tuple(k for other in others if is_fitted(other) for k in own_kernels(other))
    traffic = [
        own.constants.dram_j / own.constants.dram_mcycles
        for own in model.own
        if own.constants.dram_mcycles > 0
    ]
    if not traffic and model.throughput is not None:
        traffic = [1e6 * model.throughput.dram_byte_j * model.throughput.dram_byte]
    return Prior(
        gpu=model.constants,
        deviations=PUBLISHED if is_of_another(model, gpu) or not is_fitted(model) else FITTED,
        references=references,
        dram_j_per_mcycle=float(np.median(traffic)) if traffic else 0.0,
        limit_w=_settled_w(model),
        off=OF_ANOTHER if is_of_another(model, gpu) else 1.0,
    )


def is_of_another(model: GpuModel, gpu: str | None) -> bool:
    """Whether a model is of another GPU than the one it stands for."""
    return gpu is not None and plain_name(model.name) != plain_name(gpu)


def is_fitted(model: GpuModel) -> bool:
    """Whether the model's constants were fitted to a sweep."""
    return model.calibration.fit is not None and bool(model.own)


def own_kernels(model: GpuModel) -> tuple[ReferenceKernel, ...]:
    """Return a model's own kernels, as references for others."""
    bins_mhz = np.array(model.core_mhz, dtype=np.float64)
    constants = [own.constants for own in model.own]
    return reference_kernels(model.constants, constants, bins_mhz, _settled_w(model), model.name)


def planned_settings(model: GpuModel) -> tuple[Clocks, ...]:
    """Return clock pairs to plan with: enough of those that a GPU can hold."""
    step = -(-len(model.core_mhz) // _CORE_CLOCKS)
    cores = model.core_mhz[::-1][::step][::-1]
    settings = [Clocks(core_mhz=core) for core in cores]
    for mem in model.mem_mhz if model.memory_lockable else ():
        bound = model.low_mem_core_mhz if mem == model.mem_mhz[0] else None
        settings += [
            Clocks(core_mhz=core, mem_mhz=mem) for core in cores if bound is None or core <= bound
        ]
        if bound is None:
            settings.append(Clocks(mem_mhz=mem))
    return tuple(settings)


def _settled_w(model: GpuModel) -> float:
    return model.limit_w[0] - model.cap_margin_w


def plain_name(gpu: str) -> str:
    """Return a GPU's name without its brands."""
    return " ".join(word for word in gpu.casefold().split() if word not in _BRANDS)
