"""A real GPU and a captured step, as a measurer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from underclock.errors import MeasurementError, NotSupportedError, UsageError
from underclock.hw.base import Launcher
from underclock.hw.clock import SystemClock
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.nvml import NvmlGpu, is_read_only, nvml_session
from underclock.records import Evidence, MeasurementSettings, Step

StepFunction = Callable[[], object]

_NOT_LOCKED = "clocks may not be set here, so only auto clocks are measured"


@contextmanager
def real_measurer(
    index: str,
    *,
    measuring: MeasurementSettings,
    step: Step | None,
    run: StepFunction | None = None,
) -> Iterator[GpuMeasurer]:
    """Capture a step on a real GPU and hold it ready to be measured.

    Args:
        index: Of the GPU, as the driver counts; empty for the first.
        measuring: How long to wait and measure.
        step: The traced step.
        run: Its function, where it has no file to be found in.

    Raises:
        UsageError: No such GPU, or a step that was never traced.
        NotSupportedError: MIG, no CUDA, or a step that cannot be captured.
        MeasurementError: The function is not the step that was traced.
    """
    number = gpu_index(index)
    with nvml_session():
        gpu = NvmlGpu(number)
        notes = neighbour_notes(gpu.neighbours())
        if not may_lock():
            notes = (*notes, _NOT_LOCKED)
        with held_launcher(gpu, step, run) as launcher:
            yield GpuMeasurer(
                gpu,
                launcher,
                SystemClock(),
                evidence=Evidence.MEASURED,
                measuring=measuring,
                may_lock=may_lock(),
                notes=notes,
            )


def gpu_index(text: str) -> int:
    """Read what follows ``nvml:``; nothing is the first GPU.

    Raises:
        UsageError: It is no number.
    """
    if text and not text.isdecimal():
        raise UsageError(f"cannot read {text!r} as a GPU's number", hint="write nvml:0")
    return int(text or 0)


@contextmanager
def held_launcher(
    gpu: NvmlGpu, step: Step | None, run: StepFunction | None = None
) -> Iterator[Launcher]:
    """Capture a step on a GPU, and check that it is the one that was traced.

    Args:
        gpu: Where.
        step: The traced step.
        run: Its function, where it has no file to be found in.

    Raises:
        UsageError: A step that was never traced, or PyTorch runs on another GPU.
        NotSupportedError: MIG, no CUDA, or a step that cannot be captured.
        MeasurementError: The function is not the step that was traced.
    """
    if gpu.is_partitioned():
        raise NotSupportedError(
            "this GPU is split into MIG instances, whose clocks are one",
            hint="measure on a GPU without MIG, or ask its operator",
        )
    if step is None or not (run or step.source):
        raise UsageError(
            "a real GPU needs a step that was traced on one",
            hint="make it with `underclock trace path/to/train.py:step -o step.json`",
        )
    # PyTorch is imported only now: every mistake above is told without it.
    from underclock.stages.torch_step import (  # noqa: PLC0415
        check_device,
        held_step,
        load_step,
    )

    function = run or load_step(step.source)
    check_device(gpu.uuid())
    with held_step(function, name=step.name, source=step.source) as launcher:
        check_step(step, launcher.traced.step)
        yield launcher


def may_lock() -> bool:
    """Whether locking may be tried: root is asked for, and nobody forbade it."""
    return os.geteuid() == 0 and not is_read_only()


def neighbour_notes(neighbours: dict[int, float | None]) -> tuple[str, ...]:
    """Say which other processes compute on the GPU, and with what share of it.

    Args:
        neighbours: Process numbers and their shares, this process among them.
    """
    return tuple(
        f"process {pid} also computes on this GPU"
        + (f" and took {share:.0%} of it lately" if share is not None else "")
        + ": its energy is counted with the step's"
        for pid, share in sorted(neighbours.items())
        if pid != os.getpid()
    )


def check_step(wanted: Step, found: Step) -> None:
    """Refuse to measure a step other than the one that was traced.

    Raises:
        MeasurementError: A kernel differs.
    """
    if wanted.fingerprint == found.fingerprint:
        return
    ours = {kernel.name: kernel for kernel in wanted.kernels}
    theirs = {kernel.name: kernel for kernel in found.kernels}
    gone, new = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
    other = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
    words = [
        f"{what} {names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for what, names in (("without", gone), ("with a new", new), ("with another", other))
        if names
    ]
    raise MeasurementError(
        f"{wanted.name} is no longer the step that was traced: it runs "
        f"{', '.join(words) or 'its kernels in another order'}",
        hint="trace it again on this machine, with this version of PyTorch",
    )
