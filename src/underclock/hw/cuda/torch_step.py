"""A user's training step, warmed up, profiled and captured as a CUDA graph."""

import functools
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from underclock.errors import MeasurementError, NoMemoryError, UsageError
from underclock.hw.clock import SystemClock
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.graphs import GraphNode, walk
from underclock.hw.cuda.operands import Memory
from underclock.hw.cuda.parts import Parts
from underclock.hw.cuda.profiling import is_distributed, recorded
from underclock.hw.cuda.splitting import splitting
from underclock.hw.cuda.state import finally_unless_stuck
from underclock.hw.cuda.store_line import meet

StepFunction = Callable[[], object]

_WARM_UPS = 3  # as PyTorch advises before a capture
_WARM_UPS_AMONG_RANKS = 11  # DDP times its first ten runs with events, which no capture survives
_MOST_ALLOCATIONS = 1_000_000


class CannotCaptureError(Exception):
    """The step cannot become a CUDA graph; the message says why. Caught by whoever traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured step.

    Attributes:
        parts: PyTorch's graphs; the nodes live as long as they.
        nodes: Of all parts, in launch order.
        ends: Where each part ends in them.
        memory: Where its pointers point.
    """

    parts: Parts
    nodes: tuple[GraphNode, ...]
    ends: tuple[int, ...]
    memory: Memory


def warm_up(step: StepFunction) -> None:
    """Run a step on a stream of its own, as a capture will; more often where ranks train together.

    Raises:
        UsageError: Something is in the way.
        MeasurementError: The step fails.
        DeviceError: It does not fit into the GPU's memory.
    """
    torch = import_torch()
    check_free(torch)
    with _side_stream(torch), _memory_errors(torch, "running the step"):
        done = 0
        while done < warm_ups(torch):  # a step may make its job's ranks meet as it first runs
            done += 1
            try:
                step()
            except torch.OutOfMemoryError:
                raise
            except Exception as exc:
                raise MeasurementError(
                    f"the step failed before it was looked at: {type(exc).__name__}: "
                    f"{reason_of(exc)}",
                    hint="a step is a function that takes nothing and trains once; run it by "
                    "itself first",
                ) from exc


def warm_ups(torch: Any) -> int:
    """Return how often a step runs before it is looked at."""
    return _WARM_UPS_AMONG_RANKS if is_distributed(torch) else _WARM_UPS


def check_free(torch: Any) -> None:
    """Refuse to look at a step where something else does, or would be in the way.

    Raises:
        UsageError: It is so; says what to do.
    """
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"}:
        raise UsageError(
            "CUDA_LAUNCH_BLOCKING is set, under which the host waits for every kernel",
            hint="unset it: a step is captured as it runs without",
        )
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "a CUDA graph is being captured on this stream already",
            hint="trace the step outside of torch.cuda.graph",
        )
    if torch.autograd._profiler_enabled():  # noqa: SLF001 - there is no other way to ask
        raise UsageError(
            "a profiler of PyTorch's is active, and there can be one only",
            hint="trace the step outside of it",
        )


def profile(step: StepFunction) -> Mapping[str, Any]:
    """Run a step once under PyTorch's profiler; return its trace in the Chrome format.

    Raises:
        DeviceError: It does not fit into the GPU's memory.
    """
    torch = import_torch()
    with (
        _side_stream(torch),
        _memory_errors(torch, "profiling the step"),
        recorded() as trace,
    ):
        meet(torch, SystemClock())
        step()
        torch.cuda.synchronize()
    return trace


@contextmanager
def captured(step: StepFunction, waiting: Sequence[str] = ()) -> Iterator[Captured]:
    """Capture a step that was warmed up; its graphs live until the block ends.

    Args:
        step: The step.
        waiting: Operators that no graph holds, as `splitting.waiting_operators` names them.

    Raises:
        CannotCaptureError: It cannot be captured.
        DeviceError: It does not fit into the GPU's memory a second time.
        NotSupportedError: Its graph cannot be taken apart.
    """
    torch = import_torch()
    with capture(waiting) as taken:
        with _side_stream(torch), taken.under_way():
            step()
        yield taken.captured()


@contextmanager
def capture(waiting: Sequence[str] = ()) -> Iterator["Capture"]:
    """Yield what captures one step; its graphs live until the block ends.

    Args:
        waiting: As for `captured`.
    """
    torch = import_torch()
    taken = Capture(torch, waiting)
    with finally_unless_stuck(functools.partial(_release, torch, taken.parts)):
        yield taken


class Capture:
    """Captures whatever runs in a block.

    Attributes:
        parts: PyTorch's graphs of it.
    """

    def __init__(self, torch: Any, waiting: Sequence[str] = ()) -> None:
        self.parts = Parts(torch)
        self._torch = torch
        self._waiting = waiting
        self._device = torch.cuda.current_device()
        self._made: list[tuple[int, int]] = []

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Capture what the block asks of the GPU, on the current stream; it is done as well.

        Raises:
            CannotCaptureError: It cannot be captured.
            DeviceError: It does not fit into the GPU's memory a second time.
        """
        torch, parts = self._torch, self.parts
        with (
            _memory_errors(torch, "capturing the step"),
            _allocations(torch, self._device) as self._made,
        ):
            try:
                with splitting(torch, parts, waiting=self._waiting), streams_overridden(torch):
                    parts.begin()
                    try:
                        yield
                        parts.end()
                    except BaseException:
                        parts.abandon()  # on the stream it began on
                        raise
            except torch.OutOfMemoryError:
                _recover(torch)
                raise
            except Exception as exc:
                _recover(torch)
                raise CannotCaptureError(reason_of(exc)) from exc

    def captured(self) -> Captured:
        """Take what was captured apart.

        Raises:
            NotSupportedError: It has nodes of another kind.
        """
        memory = Memory.of(self._torch, self._device, self._made)
        graphs = [int(graph.raw_cuda_graph()) for graph in self.parts.graphs]
        each = [walk(graph, memory.holds) for graph in graphs]
        nodes = tuple(node for part in each for node in part)
        ends = tuple(accumulate(len(part) for part in each))
        return Captured(parts=self.parts, nodes=nodes, ends=ends, memory=memory)


def _release(torch: Any, parts: Parts) -> None:
    torch.cuda.synchronize()
    parts.release()
    torch.cuda.empty_cache()


def _recover(torch: Any) -> None:
    """Get PyTorch out of a capture that failed.

    It leaves its random generator believing that a capture is under way, and every later draw
    fails; a capture that succeeds sets that right.
    """
    torch.cuda.synchronize()
    parts = Parts(torch)  # with memory of its own: that of the others is given back
    with _side_stream(torch):
        parts.begin()
        parts.end()
    _release(torch, parts)


@contextmanager
def _allocations(torch: Any, device: int) -> Iterator[list[tuple[int, int]]]:
    """Yield a list that holds, after the block, address and size of all it allocated."""
    made: list[tuple[int, int]] = []
    history = torch.cuda.memory  # its recorder is documented, underscores and all
    history._record_memory_history(context=None, max_entries=_MOST_ALLOCATIONS)  # noqa: SLF001
    try:
        yield made
        made += [
            (int(entry["addr"]), int(entry["size"]))
            for entry in history._snapshot()["device_traces"][device]  # noqa: SLF001
            if entry["action"] == "alloc"
        ]
    finally:
        history._record_memory_history(enabled=None)  # noqa: SLF001


@functools.cache
def _stream_of(torch: Any, device: int) -> Any:
    """Return our stream on a device, always the same.

    Where something keeps the nodes that gather gradients, as DDP does, they stay on the stream on
    which they were made; a capture on another stream fails of that.
    """
    return torch.cuda.Stream(device)


@contextmanager
def _side_stream(torch: Any) -> Iterator[None]:
    stream = _stream_of(torch, torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # memory that is cached for this stream serves no other


@contextmanager
def streams_overridden(torch: Any) -> Iterator[None]:
    """Have gradients gathered on the stream that is captured, wherever else that was begun.

    PyTorch 2.13 can; older ones cannot, and there only what was made on our stream is captured.
    """
    override = getattr(torch.autograd.graph, "set_override_stale_capture_stream", None)
    if override is None:
        yield
        return
    before = torch._C._override_stale_capture_stream()  # noqa: SLF001 - nothing else tells
    override(True)
    try:
        yield
    finally:
        override(before)


@contextmanager
def _memory_errors(torch: Any, doing: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as exc:
        free, total = torch.cuda.mem_get_info()
        raise NoMemoryError(
            f"the GPU ran out of memory while {doing}: {free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB were free",
            hint="a captured step and a copy of its state must fit: lower the batch, or end other "
            "processes",
        ) from exc


def reason_of(exc: BaseException) -> str:
    """Say what failed, and on which line of the user's."""
    chain: list[BaseException] = []
    cause: BaseException | None = exc
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    first = chain[-1]  # what failed first; the rest is the capture coming down around it
    lines = str(first).strip().splitlines()
    frames = [
        frame
        for frame in traceback.extract_tb(first.__traceback__)
        if "/torch/" not in frame.filename and "underclock" not in frame.filename
    ]
    at = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{(lines[0] if lines else type(first).__name__).rstrip('.')}{at}"


def check_same(difference: str | None) -> None:
    """Refuse a step that is not the same each time.

    Raises:
        MeasurementError: It is not.
    """
    if difference is not None:
        raise MeasurementError(
            f"the step launches different kernels each time: {difference}",
            hint="give it inputs of one shape, and leave out what happens on some steps only",
        )
