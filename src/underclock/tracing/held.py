"""trace: a workload or a training step to kernels; and a traced step made ready to run again."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from underclock.core.tracing.recapture import difference, recaptured
from underclock.errors import MeasurementError, UsageError
from underclock.hw.lockstep import RankPace
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import is_read_only, may_set
from underclock.records import Kernel, Step
from underclock.tracing.source import (
    StepFile,
    StepFunction,
    TracePhase,
    TrainingCommand,
    load_step,
    sized,
    source_of,
    untraced,
)
from underclock.workloads import workload

if TYPE_CHECKING:
    from underclock.hw.cuda.launcher import CudaLauncher, EagerLauncher

_NAMED = 3
_NOT_LOCKED = "clocks may not be set here: they are left to the driver"
_NOT_TOLD = "the driver does not list the processes that compute on the GPU: their power is counted"


@contextmanager
def held_launcher(
    gpu: NvmlGpu,
    step: Step | None,
    run: StepFunction | StepFile | None = None,
    *,
    anew: bool = False,
    pace: RankPace | None = None,
) -> Iterator[tuple["CudaLauncher | EagerLauncher", tuple[str, ...]]]:
    """Make a step ready to run on a GPU, and check that it is the one that was traced.

    Args:
        run: Its function, or where that may be found; by default under the working directory.
        anew: As for `step_now`.
        pace: When it may launch; by default whenever it likes.

    Yields:
        What runs its kernels, with the step as it runs now, and in words what runs otherwise.

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
    # PyTorch is imported only now: every mistake above is reported without it.
    from underclock.tracing import captured  # noqa: PLC0415

    captured.check_device(gpu.uuid())
    if isinstance(what, TrainingCommand):
        raise UsageError(
            "this step is of a training command, whose kernels run in its own process only",
            hint="measure it with the command: underclock measure step.json ... -- python train.py",
        )
    ready: AbstractContextManager[CudaLauncher | EagerLauncher] = (
        nullcontext(_handed[-1]) if what is None else captured.measured_step(what, name=step.name)
    )
    with ready as launcher:
        now, changes = step_now(step, launcher.traced.step, anew=anew)
        launcher.traced = replace(launcher.traced, step=now)
        if pace is not None:
            launcher.pace = pace
        yield launcher, changes


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


def real_notes(gpu: NvmlGpu) -> tuple[str, ...]:
    """Say what a reader of numbers measured on a GPU now must know."""
    notes = neighbour_notes(gpu.neighbours())
    return notes if may_lock() else (*notes, _NOT_LOCKED)


def may_lock() -> bool:
    """Whether locking may be tried: the driver allows it, and UNDERCLOCK_READ_ONLY is unset."""
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


def step_now(traced: Step, captured: Step, *, anew: bool) -> tuple[Step, tuple[str, ...]]:
    """Return a step as it is captured now, in the names that it had when traced, and changes.

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
    now, changes = recaptured(traced, captured)
    if not anew and _launched(now) != _launched(traced):
        raise MeasurementError(
            f"{traced.name} launches other kernels than were planned for: {_some(changes)}",
            hint="libraries chose other algorithms in this process: measure and plan again, or "
            "keep them from choosing (torch.backends.cudnn.benchmark = False)",
        )
    return now, changes


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
    return next(family(what, [sizes], folder, assume=assume, progress=progress, keep=keep))


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
    if isinstance(what, str) and ".py:" not in what and not what.endswith(".py"):
        yield from (workload(what, dict(sizes)) for sizes in members)
        return
    # What needs PyTorch is imported for functions only.
    from underclock.tracing import captured  # noqa: PLC0415

    run = load_step(what) if isinstance(what, str) else what
    for sizes in members:
        one = sized(run, sizes) if sizes else run
        if assume:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler logs
            step = captured.assume_step(one, tell=progress, keep=keep)
        else:
            step = captured.trace_step(one, tell=progress, keep=keep).step
        if isinstance(what, str):
            source = source_of(what, folder or Path(), sizes)
            step = msgspec.structs.replace(step, source=source)
        yield step


def shared_kernels(steps: Sequence[Step]) -> tuple[int, int]:
    """Return how many kernels run in more than one of some steps, and how many there are."""

    def what(k: Kernel) -> tuple[object, ...]:
        costs = k.kind, k.section, k.shape, k.flops, k.bytes_moved
        return (k.launch.identity,) if k.launch else costs

    seen = Counter(each for step in steps for each in set(map(what, step.kernels)))
    return sum(times > 1 for times in seen.values()), len(seen)
