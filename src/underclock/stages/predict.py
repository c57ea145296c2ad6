"""predict: what other clocks would save, from samples at auto clocks; no permission needed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from underclock.core.prediction.prior import (
    FITTED,
    PUBLISHED,
    Prior,
    ReferenceKernel,
    reference_kernels,
)
from underclock.core.prediction.savings import (
    at_baseline,
    baseline_runs,
    draw_tables,
    savings_after_measuring,
    savings_without_measuring,
)
from underclock.errors import UsageError
from underclock.gpus.catalogue import gpu_model, model_names
from underclock.gpus.models import GpuModel
from underclock.records import AUTO, Clocks, SampleSet
from underclock.records.observed import Prediction
from underclock.stages.sources import as_samples

DRAWS = 100
_CONFIDENCE = 0.95
_DRAWING = 0.8  # of the time goes into drawing tables, the rest into planning on them
_CORE_CLOCKS = 24  # more would change no prediction
_BRANDS = ("nvidia", "geforce")


def predict(
    samples: SampleSet | str | Path,
    *,
    max_slowdown: float = 0.0,
    like: str | None = None,
    baseline: Clocks | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Prediction:
    """Predict what a plan would save, from samples at auto clocks only.

    Args:
        samples: A sample_set, a samples file or a CSV table; samples at other clocks are not used.
        max_slowdown: Time budget as a fraction above auto, not negative.
        like: ``sim:NAME`` or a file that ``underclock calibrate`` wrote: whose constants and
            kernels stand for what was not measured. By default the model of the same name.
        baseline: The clocks to call auto, where a table has no auto rows.
        draws: How many possible tables to plan on.
        seed: Of the draws.
        progress: Told which share is done.

    Raises:
        UsageError: No model of that GPU, or a budget below auto.
        DataError: The samples cannot be read, or a kernel has none at auto.
    """
    _check(max_slowdown, draws)
    sample_set = as_samples(samples)
    baseline = baseline or AUTO
    used = at_baseline(sample_set, baseline)
    name, model = _model(sample_set.gpu.name, like)
    runs = baseline_runs(
        used,
        baseline,
        mem_mhz=float(model.p2_mem_mhz or model.mem_mhz[-1]),
        limit_w=sample_set.gpu.power_limit_w or model.limit_w[0],
    )
    show = progress or (lambda _share: None)
    tables = draw_tables(
        used,
        baseline,
        prior_of(model),
        runs,
        settings_of(model),
        draws=draws,
        seed=seed,
        progress=lambda share: show(_DRAWING * share),
    )
    counted = sum(run.utilisation is not None for run in runs)
    unused = len(sample_set.samples) - len(used.samples)
    return Prediction(
        evidence=sample_set.evidence,
        gpu=sample_set.gpu,
        workload=sample_set.workload,
        like=name,
        calibration=str(model.calibration),
        max_slowdown=max_slowdown,
        confidence=_CONFIDENCE,
        draws=draws,
        kernels=len(runs),
        counted=counted,
        arms=savings_after_measuring(
            tables,
            max_slowdown,
            _CONFIDENCE,
            lambda share: show(_DRAWING + (1.0 - _DRAWING) * share),
        ),
        without_measuring=savings_without_measuring(tables, max_slowdown, _CONFIDENCE),
        warnings=(
            *sample_set.warnings,
            *_warnings(sample_set.gpu.name, model, unused, counted, len(runs)),
        ),
    )


def _check(max_slowdown: float, draws: int) -> None:
    if not 0 <= max_slowdown < 1:
        raise UsageError(
            f"cannot predict a change of time of {max_slowdown:+.2%} or less",
            hint="a fraction, 0 or more: auto itself keeps such a budget",
        )
    if draws < 1:
        raise UsageError(f"cannot predict from {draws} draws", hint="use 100")


def prior_of(model: GpuModel) -> Prior:
    """Return what a model knows of its GPU.

    A model that was not fitted to a sweep does not know the time shares of kernels, so the kernels
    of the fitted models join its own.
    """
    references = own_kernels(model)
    if not is_fitted(model):
        others = [gpu_model(name) for name in model_names()]
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
        deviations=FITTED if is_fitted(model) else PUBLISHED,
        references=references,
        dram_j_per_mcycle=float(np.median(traffic)) if traffic else 0.0,
        limit_w=_settled_w(model),
    )


def is_fitted(model: GpuModel) -> bool:
    """Whether the model's constants were fitted to a sweep."""
    return model.calibration.fit is not None and bool(model.own)


def own_kernels(model: GpuModel) -> tuple[ReferenceKernel, ...]:
    """Return a model's own kernels, as references for others."""
    bins_mhz = np.array(model.core_mhz, dtype=np.float64)
    constants = [own.constants for own in model.own]
    return reference_kernels(model.constants, constants, bins_mhz, _settled_w(model))


def settings_of(model: GpuModel) -> tuple[Clocks, ...]:
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


def _model(gpu: str, like: str | None) -> tuple[str, GpuModel]:
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
        if _plain(model.name) == _plain(gpu):
            return f"sim:{name}", model
    known = ", ".join(f"sim:{name}" for name in model_names())
    raise UsageError(
        f"nothing is known of a GPU called {gpu!r}",
        hint=f"name one that is like it: --like with {known}, or a file of `underclock calibrate`",
    )


def _plain(gpu: str) -> str:
    """Return a GPU's name without its brands."""
    return " ".join(word for word in gpu.casefold().split() if word not in _BRANDS)


def _warnings(gpu: str, model: GpuModel, unused: int, counted: int, kernels: int) -> Iterator[str]:
    """Say what makes a prediction worse, or is left out of it."""
    if _plain(model.name) != _plain(gpu):
        yield f"the samples are of {gpu}; {model.name} stands for it, which may be far off"
    if not is_fitted(model):
        yield (
            f"no sweep of {model.name} is at hand: its voltage, leakage and memory power are "
            "guesses, for which the intervals allow"
        )
    if unused:
        yield f"{unused} samples at other clocks are not used: `underclock plan` plans on them"
    if counted < kernels:
        yield (
            f"{kernels - counted} of {kernels} kernels have no readings of utilisation: what "
            "bounds them is guessed from other kernels, and the interval is wider"
        )
