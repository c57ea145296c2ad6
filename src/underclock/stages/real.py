"""A step on a real GPU, and what there is to say of that GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.base import Launcher
from underclock.hw.nvml import NvmlGpu, is_read_only
from underclock.records import Step
from underclock.stages.script import Script
from underclock.stages.step_source import StepFile, StepFunction, untraced

_NOT_LOCKED = "clocks may not be set here: they are left to the driver"


@contextmanager
def held_launcher(
    gpu: NvmlGpu, step: Step | None, run: StepFunction | StepFile | None = None
) -> Iterator[Launcher]:
    """Make a step ready to run on a GPU, and check that it is the one that was traced.

    Args:
        gpu: Where.
        step: The traced step.
        run: Its function, or where that may be found; by default under the working directory.

    Raises:
        UsageError: A step that was never traced, or PyTorch runs on another GPU.
        NotSupportedError: MIG, or no CUDA.
        MeasurementError: The function is not the step that was traced.
    """
    if gpu.is_partitioned():
        raise NotSupportedError(
            "this GPU is split into MIG instances, whose clocks are one",
            hint="measure on a GPU without MIG, or ask its operator",
        )
    if step is None:
        raise untraced()
    if run is None:
        run = StepFile()
    what = run.load(step.source) if isinstance(run, StepFile) else run
    # PyTorch is imported only now: every mistake above is told without it.
    from underclock.stages.torch_script import held_script  # noqa: PLC0415
    from underclock.stages.torch_step import check_device, running_step  # noqa: PLC0415

    check_device(gpu.uuid())
    with (
        held_script(what, name=step.name)
        if isinstance(what, Script)
        else running_step(what, name=step.name)
    ) as launcher:
        check_step(step, launcher.traced.step)
        yield launcher


def real_notes(gpu: NvmlGpu) -> tuple[str, ...]:
    """Say what a reader of numbers measured on a GPU now must know."""
    notes = neighbour_notes(gpu.neighbours())
    return notes if may_lock() else (*notes, _NOT_LOCKED)


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


def check_step(wanted: Step, captured: Step) -> None:
    """Refuse to measure a step other than the one that was traced.

    Raises:
        MeasurementError: A kernel differs.
    """
    if wanted.fingerprint == captured.fingerprint:
        return
    ours = {kernel.name: kernel for kernel in wanted.kernels}
    theirs = {kernel.name: kernel for kernel in captured.kernels}
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
