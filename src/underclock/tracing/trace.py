"""trace: a workload or a training step in, its kernels in launch order out."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from underclock.errors import UsageError
from underclock.records import Step
from underclock.tracing.source import Script, StepFunction, TracePhase, load_step, source_of
from underclock.workloads import workload


def trace(
    what: str | StepFunction | Script,
    *,
    folder: Path | None = None,
    assume: bool = False,
    progress: Callable[[TracePhase], None] = lambda _phase: None,
    keep: Callable[[Mapping[str, Any]], None] | None = None,
    **sizes: int,
) -> Step:
    """List the kernels of one training step.

    Args:
        what: A named workload (``gpt3-125m`` … ``gpt3-175b``, ``gpt3-xl``); or a function that
            runs one whole training step on the GPU, itself or as ``path/to/train.py:step``; or a
            training script, some of whose steps are looked at as it runs.
        folder: Where the step will be written; its source is named relative to that. By default
            the working directory.
        assume: Whether to run a function or a script on the CPU, and assume the kernels that a GPU
            would run.
        progress: Told of every phase of tracing a function or a script, as it begins.
        keep: Given PyTorch's trace of a plain run of a function or a script.
        sizes: Sizes of a named workload to change, e.g. ``batch=8``; see
            `underclock.workloads.Shape`.

    Raises:
        UsageError: No such workload, file or function, sizes that make no model, or a script that
            takes too few steps.
        NotSupportedError: A function was given, and there is no PyTorch with a CUDA device.
        DeviceError: The step does not fit into the GPU's memory.
        MeasurementError: It launches different kernels each time, or is fed with constants; or the
            script failed.
        DataError: It launches none.
    """
    if isinstance(what, str) and not is_source(what):
        return workload(what, sizes)
    if sizes:
        raise UsageError(
            "a step's sizes are its own", hint="change them in its file, not with --size"
        )
    # What needs PyTorch is imported for functions and scripts only.
    from underclock.tracing import captured  # noqa: PLC0415

    run = load_step(what) if isinstance(what, str) else what
    kept: dict[str, Any] = {} if keep is None else {"keep": keep}
    if assume:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler tells when it looks on
        step = captured.assume_step(run, tell=progress, **kept)
    elif isinstance(run, Script):
        step = captured.trace_script(run, tell=progress, **kept).step
    else:
        step = captured.trace_step(run, tell=progress, **kept).step
    if not isinstance(what, str | Script):
        return step
    return msgspec.structs.replace(step, source=source_of(what, folder or Path()))


def is_source(text: str) -> bool:
    """Whether a text names a function in a file rather than a workload."""
    return ".py:" in text or text.endswith(".py")
