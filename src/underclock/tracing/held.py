"""A traced step made ready to run on a real GPU again, and what there is to say of that GPU."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from underclock.core.tracing.recapture import Recaptured, difference, recaptured
from underclock.errors import MeasurementError, UsageError
from underclock.hw.lockstep import RankPace
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import is_read_only, may_set
from underclock.records import Step
from underclock.tracing.source import StepFile, StepFunction, TrainingCommand, untraced

if TYPE_CHECKING:
    from underclock.hw.cuda.eager import EagerLauncher
    from underclock.hw.cuda.launcher import CudaLauncher

_NAMED = 3
_NOT_LOCKED = "clocks may not be set here: they are left to the driver"
_NOT_TOLD = (
    "the driver does not tell which processes compute on the GPU: what others draw is counted"
)


@contextmanager
def held_launcher(
    gpu: NvmlGpu,
    step: Step | None,
    run: StepFunction | StepFile | None = None,
    *,
    anew: bool = False,
    pace: RankPace | None = None,
) -> Iterator[tuple["CudaLauncher | EagerLauncher", Recaptured]]:
    """Make a step ready to run on a GPU, and check that it is the one that was traced.

    Args:
        run: Its function, or where that may be found; by default under the working directory.
        anew: As for `step_now`.
        pace: When it may launch; by default whenever it likes.

    Yields:
        What runs its kernels, and the step as it runs now.

    Raises:
        UsageError: A step that was never traced on a GPU, or PyTorch runs on another GPU.
        NotSupportedError: MIG, or no CUDA.
        MeasurementError: The function is not the step that was traced.
    """
    gpu.check_whole()
    if step is None:
        raise untraced()
    if step.is_assumed:
        raise UsageError(
            f"the kernels of {step.name} are assumed: it was traced without a GPU",
            hint="trace it here, without --assume",
        )
    what: StepFunction | TrainingCommand | None = None
    if not is_handed_over():
        run = run or StepFile()
        what = run.load(step.source) if isinstance(run, StepFile) else run
    # PyTorch is imported only now: every mistake above is told without it.
    from underclock.tracing import captured  # noqa: PLC0415

    captured.check_device(gpu.uuid())
    ready: AbstractContextManager[CudaLauncher | EagerLauncher] = (
        _handed_over()
        if what is None or isinstance(what, TrainingCommand)
        else captured.measured_step(what, name=step.name)
    )
    with ready as launcher:
        now = step_now(step, launcher.traced.step, anew=anew)
        launcher.traced = replace(launcher.traced, step=now.step)
        if pace is not None:
            launcher.pace = pace
        yield launcher, now


_handed: list["CudaLauncher"] = []


@contextmanager
def handing_over(launcher: "CudaLauncher") -> Iterator[None]:
    """Have `held_launcher` take the step of the script that runs in this process."""
    _handed.append(launcher)
    try:
        yield
    finally:
        _handed.pop()


def is_handed_over() -> bool:
    """Whether this process holds a script's captured step."""
    return bool(_handed)


@contextmanager
def _handed_over() -> Iterator["CudaLauncher"]:
    if not _handed:
        raise UsageError(
            "this step is of a training command, whose kernels run in its own process only",
            hint="measure it with the command: underclock measure step.json ... -- python train.py",
        )
    yield _handed[-1]


def real_notes(gpu: NvmlGpu) -> tuple[str, ...]:
    """Say what a reader of numbers measured on a GPU now must know."""
    notes = neighbour_notes(gpu.neighbours())
    return notes if may_lock() else (*notes, _NOT_LOCKED)


def may_lock() -> bool:
    """Whether locking may be tried: the driver lets this process, and nobody forbade it."""
    return may_set() and not is_read_only()


def neighbour_notes(neighbours: dict[int, float | None] | None) -> tuple[str, ...]:
    """Say which of a GPU's processes are not this one, and what share of it each takes.

    ``None`` is of a driver that does not tell.
    """
    if neighbours is None:
        return (_NOT_TOLD,)
    return tuple(
        f"process {pid} also computes on this GPU"
        + (f" and took {share:.0%} of it lately" if share is not None else "")
        + ": its energy is counted with the step's"
        for pid, share in sorted(neighbours.items())
        if pid != os.getpid()
    )


def step_now(traced: Step, captured: Step, *, anew: bool) -> Recaptured:
    """Return a step as it is captured now, in the names that it had when it was traced.

    Libraries and autotuners may choose other algorithms in another process: that is said, and the
    step goes on as it is now.

    Args:
        anew: Whether all is measured anew, so that operators may launch other numbers of kernels;
            else each launch must be where it was, for a plan says its clocks.

    Raises:
        MeasurementError: It is another step.
    """
    words = difference(traced, captured)
    if words is not None:
        raise MeasurementError(
            f"{traced.name} is no longer the step that was traced: it runs {words}",
            hint="trace it again on this machine, with this version of PyTorch",
        )
    now = recaptured(traced, captured)
    if not anew and _launched(now.step) != _launched(traced):
        raise MeasurementError(
            f"{traced.name} launches other kernels than were planned for: {_some(now.changes)}",
            hint="libraries chose other algorithms in this process: measure and plan again, or "
            "keep them from choosing (torch.backends.cudnn.benchmark = False)",
        )
    return now


def _launched(step: Step) -> list[str]:
    return [step.kernels[k].name for k in step.order]


def algorithm_notes(changes: Sequence[str]) -> tuple[str, ...]:
    """Say what runs otherwise than when a step was traced; nothing where all is as it was."""
    if not changes:
        return ()
    words = (
        f"libraries chose other algorithms than when the step was traced: {_some(changes)}; what "
        "is measured is the step as it runs now"
    )
    return (words,)


def _some(changes: Sequence[str]) -> str:
    more = [f"and {len(changes) - _NAMED} more"] if len(changes) > _NAMED else []
    return "; ".join([*changes[:_NAMED], *more])
