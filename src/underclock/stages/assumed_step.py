"""A step that is traced without a GPU: run on the CPU, its kernels assumed."""

from collections.abc import Callable
from functools import partial

from underclock.core.tracing.assumed import assumed_step
from underclock.hw.cuda.batches import same_batches
from underclock.hw.cuda.dispatched import operators_seen
from underclock.hw.cuda.driver import installed
from underclock.hw.cuda.profiling import quiet, recorded
from underclock.hw.cuda.script import Steps, held
from underclock.hw.cuda.state import preserved
from underclock.hw.cuda.torch_step import StepFunction, step_errors
from underclock.records import Step
from underclock.stages.script import Script
from underclock.stages.trace import TracePhase

_WARM_UPS = 2  # in the first the optimiser makes its state


def assume_step(what: StepFunction | Script, *, tell: Callable[[TracePhase], None]) -> Step:
    """Trace a step on the CPU; leave everything that a function changes as it was.

    Args:
        what: A function that runs one whole training step, or a script, which is run up to the
            last step to look at, and that one is seen.
        tell: Told of every phase as it begins.

    Raises:
        NotSupportedError: There is no PyTorch.
        UsageError: A script takes too few steps, or none with an optimiser of PyTorch's.
        MeasurementError: The step, or the script, fails.
        DataError: It runs no operator.
    """
    torch = installed()
    if isinstance(what, Script):
        with recorded(torch):  # in this thread first, or PyTorch's profiler complains
            pass
        look = partial(_look, what, tell)
        with quiet(), held(what.path, what.arguments, look) as step:
            seen: Step = step
        return seen
    with quiet(), preserved(what), same_batches(torch), step_errors():
        tell(TracePhase.WARMING)
        for _ in range(_WARM_UPS):
            what()
        tell(TracePhase.PROFILING)
        with operators_seen() as (trace, operators):
            what()
    return assumed_step(getattr(what, "__name__", "step"), trace, operators)


def _look(
    script: Script, tell: Callable[[TracePhase], None], hand_over: Callable[[Step], None]
) -> Steps:
    tell(TracePhase.WARMING)
    for _ in range(script.last):
        yield
    tell(TracePhase.PROFILING)
    with operators_seen() as (trace, operators):
        yield
    hand_over(assumed_step(script.path.stem, trace, operators))
