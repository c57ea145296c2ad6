"""The GPU model that a prediction refers to for what was not measured."""

import numpy as np

from underclock.core.prediction.prior import (
    FITTED,
    PUBLISHED,
    Prior,
    ReferenceKernel,
    reference_kernels,
)
from underclock.errors import UsageError
from underclock.gpus.models import GpuModel, gpu_model, model_names
from underclock.records import Clocks

_CORE_CLOCKS = 24  # more would change no prediction
# By how much more another GPU differs than published figures of one from what is fitted to it: of
# six sweeps, each predicted without it, 51 of 54 then lie within intervals that say 95 %.
OF_ANOTHER = 2.0
_BRANDS = ("nvidia", "geforce")


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
    """Return what a model knows of a GPU.

    What a step's kernels are like depends on the step more than on the GPU, so the kernels of all
    fitted models join the model's own.

    Args:
        model: The model.
        gpu: Name of the GPU it stands for; by default its own.
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


def plain_name(gpu: str) -> str:
    """Return a GPU's name without its brands."""
    return " ".join(word for word in gpu.casefold().split() if word not in _BRANDS)
