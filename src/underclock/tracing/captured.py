"""A user's training step, a function: captured and held ready, or assumed.

What cannot be captured is traced by the profiler alone: its kernels and passes are known, but
cannot be isolated, and the step's ``obstacle`` says why. Without a GPU a step runs on the CPU, and
the kernels that a GPU would run are assumed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from underclock.core.tracing.captured import (
    PlainRun,
    assumed_step,
    captured_step,
    first_difference,
    profiled_step,
)
from underclock.core.tracing.profile import captured_calls, saw_all, synchronising
from underclock.core.tracing.step import nodes_of
from underclock.errors import MeasurementError, NoMemoryError, NotSupportedError, UsageError
from underclock.hw.base import SystemClock
from underclock.hw.cuda.capture import CannotCaptureError, Captured, captured, waiting_operators
from underclock.hw.cuda.driver import installed, torch
from underclock.hw.cuda.launcher import CudaLauncher, EagerLauncher
from underclock.hw.cuda.round_graphs import cleared_before
from underclock.hw.cuda.state import (
    Snapshot,
    candidates,
    check_inputs,
    finally_unless_stuck,
    preserved,
    same_batches,
)
from underclock.hw.cuda.torch_step import (
    detach,
    operators_seen,
    profile,
    profiler_detaches,
    quiet,
    recorded,
    step_errors,
    warm_up,
)
from underclock.hw.lockstep import is_distributed, meet
from underclock.records import Step
from underclock.records.work import Traced, TracedActivity
from underclock.tracing.source import StepFunction, TracePhase

_Tell = Callable[[TracePhase], None]
_Keep = Callable[[Mapping[str, Any]], None]
_LOOKS = 3
_ASSUMED_WARM_UPS = 2  # in the first the optimiser makes its state


def trace_step(
    step: StepFunction, *, tell: _Tell = lambda _phase: None, keep: _Keep | None = None
) -> Traced:
    """Trace a step; leave everything it changes as it was.

    Args:
        tell: Called as each phase begins.
        keep: Given PyTorch's trace of a plain run; ``None`` where it is not kept.

    Raises:
        NotSupportedError: There is no PyTorch with a CUDA device.
        DeviceError: It does not fit into the GPU's memory.
        MeasurementError: It launches different kernels each time.
        DataError: It launches none.
    """
    with (
        profiler_detaches(detaches=True),
        running_step(
            step, name=getattr(step, "__name__", "step"), tell=tell, keep=keep
        ) as launcher,
    ):
        return launcher.traced


@contextmanager
def measured_step(step: StepFunction, *, name: str) -> Iterator[CudaLauncher | EagerLauncher]:
    """Keep what runs a step ready to be looked at often; as `running_step` otherwise."""
    # Looks leave PyTorch's profiler attached to the GPU's driver, for they follow one another. It
    # detaches after a last one, at nothing: else every launch of the user's would take longer, a
    # step of 5389 of them by 43 % (LSTM, bound by the host, on an H200, measured by us).
    with finally_unless_stuck(partial(detach, torch())), running_step(step, name=name) as launcher:
        yield launcher


@contextmanager
def running_step(
    step: StepFunction,
    *,
    name: str,
    tell: _Tell = lambda _phase: None,
    keep: _Keep | None = None,
) -> Iterator[CudaLauncher | EagerLauncher]:
    """Trace a step and keep what runs it; put everything back at the end.

    Where it can be captured that is its graph, else the step as it is written. Arguments and errors
    are those of `trace_step`.

    Raises:
        MeasurementError: Also where the step fails, or is fed with constants.
        UsageError: Something is in the way: a profiler, a capture.
    """
    library = torch()  # before anything is put aside, which takes PyTorch too
    with quiet(), preserved(step) as at_first, same_batches(library) as batches:

        def again() -> object:
            batches.rewind()
            return step()

        run, step = step, again
        tell(TracePhase.WARMING)
        step_s = warm_up(step)
        # Every attempt sets out from here: what a step computes may decide what it launches.
        warm = Snapshot(run, known=at_first)
        warm.restore()
        tell(TracePhase.PROFILING)
        # Ranks that train together take one look each: no one of them can look again alone.
        more = 0 if is_distributed(torch()) else _LOOKS - 1
        trace = profile(step)
        while more and not saw_all(trace):
            more -= 1
            warm.restore()
            trace = profile(step)
        if keep is not None:
            keep(trace)
        plain = PlainRun(trace, step_s)
        waits = synchronising(trace)
        waiting = waiting_operators(torch(), waits)
        check_one_device(plain.seen, torch().cuda.current_device())
        try:
            with ExitStack() as stack:
                try:
                    launcher = _captured(stack, step, name, plain, waiting, warm, tell)
                except NoMemoryError:
                    if not any([at_first.move_to_host(), warm.move_to_host()]):
                        raise
                    warm.restore()
                    launcher = _captured(stack, step, name, plain, waiting, warm, tell)
                yield launcher
                return
        except CannotCaptureError as exc:
            obstacle = obstacle_of(str(exc), [calls[0] for calls in waits])
            traced = profiled_step(name, plain, obstacle=obstacle)
        yield EagerLauncher(run=step, traced=traced, nodes=nodes_of(plain.seen), snapshot=warm)


def assume_step(step: StepFunction, *, tell: _Tell, keep: _Keep | None) -> Step:
    """Trace a step on the CPU; leave everything that it changes as it was.

    Where a plain run's trace is to be kept, one more run is profiled for that.

    Raises:
        NotSupportedError: There is no PyTorch.
        MeasurementError: The step fails.
        DataError: It runs no operator.
    """
    library = installed()
    with quiet(), preserved(step), same_batches(library), step_errors():
        tell(TracePhase.WARMING)
        for _ in range(_ASSUMED_WARM_UPS):
            step()
        tell(TracePhase.PROFILING)
        if keep is not None:
            with recorded(library) as plain:
                meet(library, SystemClock())
                step()
            keep(plain)
        with operators_seen() as (trace, operators):
            step()
    return assumed_step(getattr(step, "__name__", "step"), trace, operators)


def _captured(
    stack: ExitStack,
    step: StepFunction,
    name: str,
    plain: PlainRun,
    waiting: Sequence[str],
    warm: Snapshot,
    tell: _Tell,
) -> CudaLauncher:
    """Capture a step twice, the second time to keep until the stack is closed."""
    tell(TracePhase.CAPTURING)
    with recorded() as recording, captured(step, waiting) as after:
        first = [node.node for node in after.nodes]
        depends = after.parts.shapes_depend_on_data
    del after
    warm.restore()
    if depends:  # then another state launches something else, and the calls must be those kept
        with recorded() as recording, captured(step, waiting) as once:
            first = [node.node for node in once.nodes]
        del once
        warm.restore()
    inputs = candidates(torch())
    tell(TracePhase.CHECKING)
    graph = stack.enter_context(captured(step, waiting))
    difference = first_difference(first, [node.node for node in graph.nodes])
    if difference is not None:
        raise MeasurementError(
            f"the step launches different kernels each time: {difference}",
            hint="give it inputs of one shape, and leave out what happens on some steps only",
        )
    traced = as_step(name, graph, captured_calls(recording), plain)
    check_inputs(inputs, graph.nodes)
    return CudaLauncher(captured=graph, traced=traced, snapshot=warm)


def as_step(name: str, graph: Captured, calls: Sequence[TracedActivity], plain: PlainRun) -> Traced:
    """Make a step of what was captured.

    Calls are what asked for each node, as far as `profile.captured_calls` knows; a plain run is one
    of the step as it is written.
    """
    nodes, cleared = [node.node for node in graph.nodes], cleared_before(graph.nodes)
    sizes = graph.parts.sizes
    return captured_step(name, nodes, calls, plain, cleared=cleared, data_sizes=sizes)


def check_device(uuid: str) -> None:
    """Refuse to read a GPU, as the driver names it, that PyTorch does not run on by default.

    Raises:
        UsageError: PyTorch's current device is another.
    """
    library = torch()
    current = str(library.cuda.get_device_properties(library.cuda.current_device()).uuid)
    if current.removeprefix("GPU-") != uuid.removeprefix("GPU-"):
        raise UsageError(
            f"PyTorch runs on GPU-{current.removeprefix('GPU-')}, and {uuid} is to be read",
            hint="make them one with CUDA_VISIBLE_DEVICES, or name the other with --gpu nvml:N",
        )


def check_one_device(seen: Sequence[TracedActivity], current: int) -> None:
    """Refuse a step whose work is on several GPUs, or on another than PyTorch's current one.

    Raises:
        NotSupportedError: It is on several.
        UsageError: It is on another.
    """
    devices = sorted({activity.device for activity in seen})
    if len(devices) > 1:
        raise NotSupportedError(
            f"the step runs on GPUs {', '.join(map(str, devices))} from one process",
            hint="run one process for each GPU, as torchrun does, and trace each",
        )
    if devices and devices != [current]:
        raise UsageError(
            f"the step runs on GPU {devices[0]}, and GPU {current} is the current one",
            hint=f"call torch.cuda.set_device({devices[0]}) where the step's file is imported, not "
            "in the step",
        )


_DATA_DEPENDENT = {"aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique2"}


def obstacle_of(reason: str, synchronising_operators: Sequence[str]) -> str:
    """Say in one sentence why a step cannot be captured: the reason, and where the host waited."""
    cause = ""
    for operator in synchronising_operators:
        if operator in _DATA_DEPENDENT:
            cause = f": {operator} returns a shape that depends on data"
            break
        cause = f": {operator} makes the host wait for the GPU"
    return (
        f"the step cannot be captured as a CUDA graph{cause} ({reason}); its kernels cannot be "
        "isolated, so it is measured and planned whole"
    )
