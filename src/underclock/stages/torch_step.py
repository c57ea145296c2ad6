"""A user's training step, found by its file and name, traced, and held ready to be measured."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from underclock.core.tracing.alignment import (
    align,
    first_difference,
    otherwise_captured,
    paired,
)
from underclock.core.tracing.profile import activities, captured_calls, synchronising
from underclock.core.tracing.step import nodes_of, traced_step
from underclock.errors import NotSupportedError, UsageError
from underclock.hw.cuda.batches import Batches, same_batches
from underclock.hw.cuda.driver import torch
from underclock.hw.cuda.graphs import cleared_before
from underclock.hw.cuda.inputs import candidates, check_inputs
from underclock.hw.cuda.launcher import CudaLauncher
from underclock.hw.cuda.state import Snapshot, preserved
from underclock.hw.cuda.torch_step import (
    CannotCaptureError,
    StepFunction,
    captured,
    check_same,
    profile,
    quiet,
    recorded,
    warm_up,
)
from underclock.records.launches import Traced
from underclock.stages.trace import TracePhase
from underclock.units import nearest


def _nothing(_phase: TracePhase) -> None:
    """Tell nobody."""


def load_step(source: str) -> StepFunction:
    """Import ``FILE.py:FUNCTION``.

    Raises:
        UsageError: There is no such file, no such function in it, or none is named.
    """
    file, colon, name = source.rpartition(":")
    if not colon:
        raise UsageError(f"{source!r} names no function", hint="write path/to/train.py:step")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"cannot read {file!r}: no such file", hint="write path/to/train.py:step")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file", hint="write path/to/train.py:step")
    module = importlib.util.module_from_spec(spec)
    # As `python train.py` would: its folder comes first, and its classes can be found by name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as exc:
        raise NotSupportedError(
            f"{file} needs {exc.name or 'a module'!r}, which cannot be imported here: {exc}",
            hint="install it beside underclock; a step needs PyTorch 2.8 or newer",
        ) from exc
    step = getattr(module, name, None)
    if not callable(step):
        functions = [n for n, thing in vars(module).items() if callable(thing) and n[0] != "_"]
        raise UsageError(f"{file} has no function {name!r}", hint=nearest(name, functions))
    function: Callable[[], object] = step
    return function


def trace_step(
    step: StepFunction, *, name: str = "", tell: Callable[[TracePhase], None] = _nothing
) -> Traced:
    """Trace a step; leave everything it changes as it was.

    A step that cannot be captured is traced by the profiler alone: its kernels and passes are
    known, but cannot be isolated, and the step's ``obstacle`` says why.

    Args:
        step: Runs one whole training step; takes nothing.
        name: What to call it.
        tell: Told of every phase as it begins.

    Raises:
        NotSupportedError: There is no PyTorch with a CUDA device.
        DeviceError: It does not fit into the GPU's memory.
        MeasurementError: It launches different kernels each time.
        DataError: It launches none.
    """
    name = name or getattr(step, "__name__", "step")
    try:
        with held_step(step, name=name, tell=tell) as launcher:
            return launcher.traced
    except _Uncapturable as exc:
        return exc.traced


@contextmanager
def held_step(
    step: StepFunction, *, name: str, tell: Callable[[TracePhase], None] = _nothing
) -> Iterator[CudaLauncher]:
    """Trace a step and keep its graph, to run its kernels; put everything back at the end.

    Args:
        step: As for `trace_step`. So ``name`` and the errors.
        name: What to call it.
        tell: Told of every phase as it begins.

    Raises:
        NotSupportedError: Also where the step cannot be captured; says why.
        MeasurementError: Also where the step is fed with constants.
    """
    with quiet(), preserved(step), same_batches(torch()) as batches:
        run, step = step, _from_first_batch(step, batches)
        tell(TracePhase.WARMING)
        warm_up(step)
        # Every attempt sets out from here: what a step computes may decide what it launches.
        warm = Snapshot(run)
        tell(TracePhase.PROFILING)
        trace = profile(step)
        seen = activities(trace)
        try:
            warm.restore()
            tell(TracePhase.CAPTURING)
            with recorded() as capture, captured(step) as once:
                first = [node.node for node in once.nodes]
            del once
            calls = captured_calls(capture)
            inputs = candidates(torch())
            warm.restore()
            tell(TracePhase.CHECKING)
            with captured(step) as graph:
                nodes = [node.node for node in graph.nodes]
                check_same(first_difference(first, nodes))
                aligned = align(nodes, seen)
                other = otherwise_captured(nodes, aligned, seen)
                traced = traced_step(
                    name,
                    nodes,
                    paired(nodes, calls) or aligned,
                    cleared=cleared_before(graph.nodes),
                    warnings=[other] if other else [],
                    data_sizes=graph.parts.sizes,
                )
                check_inputs(inputs, graph.nodes)
                yield CudaLauncher(graph, traced, warm)
        except CannotCaptureError as exc:
            obstacle = obstacle_of(str(exc), synchronising(trace))
            blind = nodes_of(seen)
            traced = traced_step(name, blind, seen, obstacle=obstacle)
            raise _Uncapturable(traced) from exc


def _from_first_batch(step: StepFunction, batches: Batches) -> StepFunction:
    def again() -> object:
        batches.rewind()
        return step()

    return again


class _Uncapturable(NotSupportedError):  # noqa: N818 - not seen outside but as its base
    """Carries the trace of a step that cannot be captured."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(traced.step.obstacle, hint="take that out of the step, or trace it only")
        self.traced = traced


def check_device(uuid: str) -> None:
    """Refuse a GPU that PyTorch does not run on by default.

    Args:
        uuid: The GPU that will be read, as the driver names it.

    Raises:
        UsageError: PyTorch's current device is another.
    """
    library = torch()
    current = str(library.cuda.get_device_properties(library.cuda.current_device()).uuid)
    if current.removeprefix("GPU-") != uuid.removeprefix("GPU-"):
        raise UsageError(
            "the step would run on another GPU than the one to be read",
            hint="make them one with CUDA_VISIBLE_DEVICES, or name the other with --gpu nvml:N",
        )


_DATA_DEPENDENT = {"aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique2"}


def obstacle_of(reason: str, synchronising_operators: tuple[str, ...]) -> str:
    """Say in one sentence why a step cannot be captured.

    Args:
        reason: What the capture failed with.
        synchronising_operators: Operators in which the host waited for the GPU.
    """
    cause = ""
    for operator in synchronising_operators:
        if operator in _DATA_DEPENDENT:
            cause = f": {operator} returns a shape that depends on data"
            break
        cause = f": {operator} makes the host wait for the GPU"
    return (
        f"the step cannot be captured as a CUDA graph{cause} ({reason}); its kernels cannot be "
        "isolated, so it can be planned by pass only"
    )
