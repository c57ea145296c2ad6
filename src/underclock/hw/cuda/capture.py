"""A training step captured as CUDA graphs, and the nodes of these."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.driver import wait_for_gpu
from underclock.hw.cuda.operands import Memory
from underclock.hw.cuda.round_graphs import GraphNode, walk
from underclock.hw.cuda.splitting import Parts, splitting
from underclock.hw.cuda.state import finally_unless_stuck
from underclock.hw.cuda.torch_step import StepFunction, memory_errors, reason_of, side_stream

_MOST_ALLOCATIONS = 1_000_000


class CannotCaptureError(Exception):
    """The step cannot become a CUDA graph; the message says why. Caught by the tracing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured step."""

    parts: Parts  # PyTorch's graphs; the nodes live as long as they
    nodes: tuple[GraphNode, ...]  # of all parts, in launch order
    ends: tuple[int, ...]  # where each part ends in them
    memory: Memory  # where its pointers point


@contextmanager
def captured(step: StepFunction, waiting: Sequence[str] = ()) -> Iterator[Captured]:
    """Capture a step that was warmed up; its graphs live until the block ends."""
    torch = import_torch()
    with capture(waiting) as taken:
        with side_stream(torch), taken.under_way():
            step()
        yield taken.captured()


@contextmanager
def capture(waiting: Sequence[str] = ()) -> Iterator["Capture"]:
    """Yield what captures one step; its graphs live until the block ends."""
    torch = import_torch()
    taken = Capture(torch, waiting)
    with finally_unless_stuck(functools.partial(_release, torch, taken.parts)):
        yield taken


class Capture:
    """Captures whatever runs in a block."""

    def __init__(self, torch: Any, waiting: Sequence[str] = ()) -> None:
        self.parts = Parts(torch)
        self._torch = torch
        self._waiting = waiting
        self._device = torch.cuda.current_device()
        self._made: list[tuple[int, int]] = []

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Capture what the block asks of the GPU, on the current stream; it is done as well."""
        torch, parts = self._torch, self.parts
        with (
            memory_errors(torch, "capturing the step"),
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
        """Take what was captured apart."""
        memory = Memory.of(self._torch, self._device, self._made)
        graphs = [int(graph.raw_cuda_graph()) for graph in self.parts.graphs]
        each = [walk(graph, memory.holds) for graph in graphs]
        nodes = tuple(node for part in each for node in part)
        ends = tuple(accumulate(len(part) for part in each))
        return Captured(parts=self.parts, nodes=nodes, ends=ends, memory=memory)


def _release(torch: Any, parts: Parts) -> None:
    wait_for_gpu(torch)
    parts.release()
    torch.cuda.empty_cache()


def _recover(torch: Any) -> None:
    """Get PyTorch out of a capture that failed.

    It leaves its random generator believing that a capture is under way, and every later draw
    fails; a capture that succeeds sets that right.
    """
    wait_for_gpu(torch)
    parts = Parts(torch)  # with memory of its own: that of the earlier parts is given back
    with side_stream(torch):
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


@contextmanager
def streams_overridden(torch: Any) -> Iterator[None]:
    """Have gradients gathered on the stream that is captured, wherever else that was begun.

    PyTorch 2.13 can; older ones cannot, and there only what was made on our stream is captured.
    """
    override = getattr(torch.autograd.graph, "set_override_stale_capture_stream", None)
    if override is None:
        yield
        return
    before = torch._C._override_stale_capture_stream()  # noqa: SLF001 - nothing else says it
    override(True)
    try:
        yield
    finally:
        override(before)
