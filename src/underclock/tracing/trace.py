"""trace: a workload or a training step in, its kernels in launch order out."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from underclock.records import Step
from underclock.tracing.source import (
    Onlooker,
    StepFunction,
    TracePhase,
    load_step,
    sized,
    source_of,
)
from underclock.workloads import workload


def trace(
    what: str | StepFunction,
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
            runs one whole training step on the GPU, itself or as ``path/to/train.py:step``. A
            command that trains is traced by `trace_command`.
        folder: Where the step will be written; its source is named relative to that. By default
            the working directory.
        assume: Whether to run a function on the CPU, and assume the kernels that a GPU would run.
        progress: Called with every phase of tracing a function, as it begins.
        keep: Called with PyTorch's trace of a plain run of a function.
        sizes: Of a named workload, those to change, e.g. ``batch=8``; see
            `underclock.workloads.Shape`. Of a function, arguments to call it with.

    Raises:
        UsageError: No such workload, file or function, or sizes that make no model.
        NotSupportedError: A function was given, and there is no PyTorch with a CUDA device.
        DeviceError: The step does not fit into the GPU's memory.
        MeasurementError: It launches different kernels each time, or is fed with constants.
        DataError: It launches none.
    """
    return next(iter(family(what, [sizes], folder, assume=assume, progress=progress, keep=keep)))


def family(
    what: str | StepFunction,
    members: Iterable[Mapping[str, int]],
    folder: Path | None = None,
    *,
    assume: bool = False,
    progress: Callable[[TracePhase], None] = lambda _phase: None,
    keep: Callable[[Mapping[str, Any]], None] | None = None,
) -> Iterator[Step]:
    """List the kernels of one step at several sizes, one after the other; a file is read once.

    Arguments and errors are those of `trace`.

    Args:
        members: The sizes of each.
    """
    if isinstance(what, str) and not is_source(what):
        yield from (workload(what, dict(sizes)) for sizes in members)
        return
    # What needs PyTorch is imported for functions only.
    from underclock.tracing import captured  # noqa: PLC0415

    run = load_step(what) if isinstance(what, str) else what
    onlooker = Onlooker(tell=progress, keep=keep)
    for sizes in members:
        one = sized(run, sizes) if sizes else run
        if assume:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler tells of itself
            step = captured.assume_step(one, onlooker=onlooker)
        else:
            step = captured.trace_step(one, onlooker=onlooker).step
        if isinstance(what, str):
            source = source_of(what, folder or Path(), sizes)
            step = msgspec.structs.replace(step, source=source)
        yield step


def shared_kernels(steps: Sequence[Step]) -> tuple[int, int]:
    """Return how many kernels run in more than one of some steps, and how many there are."""
    seen = Counter(
        kernel
        for step in steps
        for kernel in {
            (k.launch.identity,)
            if k.launch
            else (k.kind, k.section, k.shape, k.flops, k.bytes_moved)
            for k in step.kernels
        }
    )
    return sum(times > 1 for times in seen.values()), len(seen)


def is_source(text: str) -> bool:
    """Whether a text names a function in a file rather than a workload."""
    return ".py:" in text or text.endswith(".py")
