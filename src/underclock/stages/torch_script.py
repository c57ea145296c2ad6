"""A step of a training script, traced as the script runs, and held ready to be measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from underclock.core.tracing.captured import PlainRun
from underclock.core.tracing.profile import captured_calls, saw_all, synchronising
from underclock.errors import NotSupportedError
from underclock.hw.clock import SystemClock
from underclock.hw.cuda.capture import CannotCaptureError, capture
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.inputs import candidates, check_inputs
from underclock.hw.cuda.launcher import CudaLauncher
from underclock.hw.cuda.profiling import quiet, recorded
from underclock.hw.cuda.script import Steps, held
from underclock.hw.cuda.splitting import waiting_operators
from underclock.hw.cuda.state import Snapshot
from underclock.hw.cuda.store_line import meet
from underclock.hw.cuda.torch_step import check_free
from underclock.records.launches import Traced
from underclock.stages.script import Script
from underclock.stages.torch_step import as_step, check_one_device, looks, profiled_only
from underclock.stages.trace import TracePhase


def trace_script(
    script: Script, *, tell: Callable[[TracePhase], None] = lambda _phase: None
) -> Traced:
    """Trace a step of a script; a step that cannot be captured by the profiler alone.

    Args:
        script: What to run.
        tell: Told of every phase as it begins.

    Raises:
        NotSupportedError: There is no PyTorch with a CUDA device.
        UsageError: As for `held_script`. So MeasurementError and DeviceError.
    """
    try:
        with held_script(script, name=script.path.stem, tell=tell) as launcher:
            return launcher.traced
    except _UncapturableError as exc:
        return exc.traced


@contextmanager
def held_script(
    script: Script, *, name: str, tell: Callable[[TracePhase], None] = lambda _phase: None
) -> Iterator[CudaLauncher]:
    """Run a script to a step, hold it there with that step captured, and end it after the block.

    The first of the script's steps is profiled (where not all was seen, one or two more), the last
    one captured; it does all that it does in a plain run. What the script prints goes to stderr.

    Args:
        script: What to run.
        name: What to call its step.
        tell: Told of every phase as it begins.

    Raises:
        NotSupportedError: There is no PyTorch with a CUDA device, or the step cannot be captured.
        UsageError: The script takes too few steps, or none with an optimiser of PyTorch's.
        MeasurementError: The script fails, or feeds its step with constants.
        DeviceError: It does not fit into the GPU's memory.
    """
    torch, clock = import_torch(), SystemClock()

    def look(hand_over: Callable[[tuple[CudaLauncher, int]], None]) -> Steps:
        # From the start, for gradients are gathered on the stream on which a weight was used first.
        torch.cuda.set_stream(torch.cuda.Stream())
        tell(TracePhase.WARMING)
        taken_s = []
        for _ in range(script.first):
            begun_s = clock.now_s()
            yield
            torch.cuda.synchronize()
            taken_s.append(clock.now_s() - begun_s)
        tell(TracePhase.PROFILING)
        left = looks()
        for _ in range(script.last - script.first):
            if not left:
                yield
                continue
            with recorded() as trace:
                meet(torch, clock)
                yield
                torch.cuda.synchronize()
            left = 0 if saw_all(trace) else left - 1
        plain = PlainRun.of(trace, min(taken_s[1:], default=None))  # the first begins anywhere
        check_one_device(plain.seen, torch.cuda.current_device())
        inputs, before = candidates(torch), Snapshot()
        tell(TracePhase.CAPTURING)
        try:
            waiting = waiting_operators(torch, synchronising(trace))
            with capture(waiting) as taken:
                with recorded() as recording, taken.under_way():
                    yield
                graph = taken.captured()
                traced = as_step(name, graph, captured_calls(recording), plain)
                check_inputs(inputs, graph.nodes)
                hand_over((CudaLauncher(graph, traced, before), torch.cuda.current_device()))
        except CannotCaptureError as exc:
            raise _UncapturableError(profiled_only(name, exc, trace, plain)) from exc

    check_free(torch)
    with recorded():  # in this thread first, or PyTorch's profiler complains
        pass
    with quiet(), held(script.path, script.arguments, look) as (launcher, device):
        torch.cuda.set_device(device)
        yield launcher


class _UncapturableError(NotSupportedError):
    """Carries the trace of a step that cannot be captured."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(
            traced.step.obstacle,
            hint="name a function that runs the step, which can be measured whole: train.py:step",
        )
        self.traced = traced
