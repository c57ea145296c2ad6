"""A training step captured as CUDA graphs: in parts, between the moments at which the host waits.

What is captured does not run. So where a step asks for a number (``item``), for a shape that
depends on data (``nonzero``), for a copy in ordinary host memory, or waits for the GPU, the capture
ends, what was captured is launched, the host is given the true answer, and the next part begins.
The step thereby does all that it does in a plain run, and its graphs, replayed in turn, are all of
it but what ran in between.

PyTorch's kernels for operators in which it waits are wrapped below autograd and torch.compile, so
that neither notices: nothing is traced or compiled anew.
"""

import functools
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from underclock.hw.cuda import put
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.driver import wait_for_gpu
from underclock.hw.cuda.round_graphs import GraphNode, walk
from underclock.hw.cuda.state import Memory, finally_unless_stuck
from underclock.hw.cuda.torch_step import StepFunction, memory_errors, reason_of, side_stream

_SHAPING = ("nonzero", "nonzero.out", "_unique2", "unique_dim", "unique_consecutive")
SHAPING = frozenset(f"aten::{name}" for name in (*_SHAPING, "unique_dim_consecutive"))
"""Operators whose result's shape depends on data; further ones are made of these."""
_COPY, _NUMBER = "aten::copy_", "aten::_local_scalar_dense"
_SPLIT_ANYWAY = SHAPING | {_COPY, _NUMBER}
_MOST_COUNTS = 4096  # of a tensor that may tell the host sizes; longer ones are data
_MOST_ALLOCATIONS = 1_000_000
_CAPTURE_CHECKS = ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check")


class Parts:
    """The graphs of one step, in turn."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pool = torch.cuda.graph_pool_handle()
        self.capturing = False  # whether a part is being captured now
        self._kept: list[Any] = []  # the graphs read what was written between them
        self.graphs: list[Any] = []  # the last is being captured between `begin` and `end`
        self.between: Counter[str] = Counter()  # how often operators ran between two parts
        # Numbers that the host learned there, of which sizes may be made: lengths that depend on
        # data, and whole numbers that were read.
        self.sizes: set[int] = set()

    def begin(self) -> None:
        """Begin a part on the current stream, which must not be the default one."""
        graph = self._torch.cuda.CUDAGraph(keep_graph=True)
        self.graphs.append(graph)
        # Relaxed: threads of autograd end parts that another began, and loaders pin memory.
        graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
        self.capturing = True

    def end(self) -> None:
        """End the part, and launch it."""
        self.capturing = False
        graph = self.graphs[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a part may well be empty
            graph.capture_end()
        graph.instantiate()
        graph.replay()

    def abandon(self) -> None:
        """End a capture that failed; keep nothing of it."""
        if self.capturing:
            self.capturing = False
            with warnings.catch_warnings(), suppress(RuntimeError):  # the driver may have ended it
                warnings.simplefilter("ignore")
                self.graphs[-1].capture_end()
        self.release()

    def release(self) -> None:
        """Give the graphs and what they read back."""
        for graph in self.graphs:
            graph.reset()
        self.graphs.clear()
        self._kept.clear()

    def replay(self) -> None:
        """Launch all parts on the current stream."""
        for graph in self.graphs:
            graph.replay()

    @contextmanager
    def paused(self, what: str) -> Iterator[bool]:
        """Run the block between two parts; yield whether it is."""
        if not self.capturing:  # before, after, or inside of another pause
            yield False
            return
        self.between[what] += 1
        self.end()
        # PyTorch's kernels are called holding Python's lock, and would wait for the GPU with it.
        wait_for_gpu(self._torch)
        yield True
        self.begin()  # not after an error, which ends the capture

    def keep(self, thing: object) -> None:
        """Keep what a part will read alive as long as the graphs."""
        self._kept.append(thing)

    def learn(self, numbers: Iterable[object]) -> None:
        """Note numbers that the host has read; those that are no sizes are passed over."""
        self.sizes.update(each for each in numbers if type(each) is int and each > 0)

    @property
    def shapes_depend_on_data(self) -> bool:
        """Whether the step asked for a shape that only the GPU knew."""
        return not SHAPING.isdisjoint(self.between)


@contextmanager
def splitting(
    torch: Any, parts: Parts, *, waiting: Sequence[str] = (), backend: str = "CUDA"
) -> Iterator[None]:
    """End and begin parts wherever the host waits for the GPU, as long as the block runs.

    The capture check of PyTorch's optimisers is lifted: what they keep on the host then is the
    same in each replay, and their kernels are those of the real step. ``waiting`` are further
    operators that no graph holds.
    """
    with ExitStack() as stack:
        if hasattr(torch.library, "get_kernel"):  # torch 2.10 and newer
            for library in _wrapped(torch, parts, waiting, backend):
                stack.callback(library._destroy)  # noqa: SLF001 - its only way to end
        for name in _CAPTURE_CHECKS:
            if hasattr(torch.optim.Optimizer, name):
                stack.callback(put(torch.optim.Optimizer, name, lambda _self: None))
        recording = _timing(parts, torch.cuda.Event.record, torch.cuda.Event.elapsed_time)
        stack.callback(put(torch.cuda.Event, "record", recording))
        for holder, name in (
            (torch.cuda, "synchronize"),
            (torch.cuda, "empty_cache"),
            (torch.cuda.Stream, "synchronize"),
            (torch.cuda.Event, "synchronize"),
            (torch.cuda.Event, "elapsed_time"),
        ):
            stack.callback(put(holder, name, _pausing(parts, getattr(holder, name))))
        yield


def waiting_operators(
    torch: Any, seen: Iterable[Sequence[str]], *, backend: str = "CUDA"
) -> tuple[str, ...]:
    """Return which operators, run between parts, take with them what no graph holds.

    Of those inside which the host waited, ``seen``, each with its callers, it is the outermost that
    has a kernel of its own; names have their overloads, as the dispatcher lists them.
    """
    overloads: defaultdict[str, list[str]] = defaultdict(list)
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001 - nothing public lists them
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, backend):  # noqa: SLF001
            overloads[name.partition(".")[0]].append(name)
    found: dict[str, None] = {}
    for operators in seen:
        if _SPLIT_ANYWAY.isdisjoint(operators):
            with_kernels = [overloads[name] for name in operators if name in overloads]
            found.update(dict.fromkeys(with_kernels[0] if with_kernels else ()))
    return tuple(found)


def _wrapped(torch: Any, parts: Parts, waiting: Sequence[str], backend: str) -> Iterator[Any]:
    def kernel(name: str) -> Any:
        return torch.library.get_kernel(name, backend)

    copy = kernel(_COPY)
    wrappers = {
        _COPY: _copying(torch, parts, copy),
        _NUMBER: _reading(torch, parts, kernel(_NUMBER), copy),
        **{name: _asking(parts, name, kernel(name)) for name in sorted(SHAPING)},
        **{name: _between(parts, name.partition(".")[0], kernel(name)) for name in waiting},
    }
    for name, wrapper in wrappers.items():
        namespace, _, operator = name.partition("::")
        library = torch.library.Library(namespace, "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that a kernel is overridden, as is meant
            library.impl(operator, wrapper, backend, with_keyset=True)
        yield library


def _between(parts: Parts, name: str, kernel: Any) -> Callable[..., Any]:
    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        with parts.paused(name) as paused:
            result = kernel.call_boxed(keyset, *args, **kwargs)
        if paused:
            parts.keep(result)
        return result

    return run


def _asking(parts: Parts, name: str, kernel: Any) -> Callable[..., Any]:
    run = _between(parts, name, kernel)

    def ask(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        outer = parts.capturing
        result = run(keyset, *args, **kwargs)
        if outer:
            first = result[0] if isinstance(result, tuple) else result
            parts.learn(first.shape[:1])
        return result

    return ask


def _reading(torch: Any, parts: Parts, kernel: Any, copy: Any) -> Callable[..., Any]:
    """Wrap the reading of one number, whose copy to the host the next part has."""

    def read(keyset: Any, source: Any) -> Any:
        with parts.paused("aten::item") as paused:
            value = kernel.call_boxed(keyset, source)
            if paused:
                place = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        if paused:
            parts.learn([value])
            copy.call_boxed(keyset, place, source, True)
            parts.keep((place, source))
        return value

    return read


def _copying(torch: Any, parts: Parts, kernel: Any) -> Callable[..., Any]:
    """Wrap copies: what the host waits for runs between parts, then again by pinned memory."""

    def copy(keyset: Any, to: Any, source: Any, non_blocking: bool = False) -> Any:  # noqa: FBT001, FBT002 - as PyTorch calls it
        if not torch.is_tensor(source):  # a number comes as a number of Python's
            dtype = torch.float64 if isinstance(source, float) else None
            source = torch.tensor(source, dtype=dtype)
        host, crosses = source if to.is_cuda else to, to.is_cuda != source.is_cuda
        pinned = crosses and non_blocking and host.is_pinned()
        if pinned:
            parts.keep(host)
        if pinned or not (crosses and parts.capturing):
            return kernel.call_boxed(keyset, to, source, non_blocking)
        with parts.paused(_COPY):
            kernel.call_boxed(keyset, to, source, non_blocking)
            like = to if to.is_cuda else source
            pinned = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
            if to.is_cuda:
                pinned.copy_(source)
            elif not (to.is_floating_point() or to.is_complex()) and to.numel() <= _MOST_COUNTS:
                parts.learn(to.flatten().tolist())
        one, other = (to, pinned) if to.is_cuda else (pinned, source)
        kernel.call_boxed(keyset, one, other, True)
        parts.keep((one, other))
        return to

    return copy


def _pausing(parts: Parts, function: Callable[..., Any]) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        with parts.paused(function.__qualname__):
            return function(*args, **kwargs)

    return wait


def _timing(
    parts: Parts, record: Callable[..., Any], elapsed: Callable[[Any, Any], object]
) -> Callable[..., Any]:
    """Wrap the recording of events: a timed one has no time in a capture, so it comes between."""

    def takes_time(event: Any) -> bool:
        try:  # nothing else says whether it was made with enable_timing
            elapsed(event, event)
        except (RuntimeError, ValueError) as error:
            return "enable_timing" not in str(error)
        return True

    def take(event: Any, *args: Any, **kwargs: Any) -> Any:
        timed = parts.capturing and takes_time(event)
        with parts.paused("Event.record") if timed else nullcontext():
            return record(event, *args, **kwargs)

    return take


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
                with splitting(torch, parts, waiting=self._waiting), _streams_overridden(torch):
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
        each = [walk(int(one.raw_cuda_graph()), memory.holds) for one in self.parts.graphs]
        nodes = tuple(node for part in each for node in part)
        ends = tuple(accumulate(len(part) for part in each))
        return Captured(parts=self.parts, nodes=nodes, ends=ends, memory=memory)


def _release(torch: Any, parts: Parts) -> None:
    wait_for_gpu(torch)
    parts.release()
    torch.cuda.empty_cache()


def _recover(torch: Any) -> None:
    # A capture that failed leaves PyTorch's random generator believing that one is under way, and
    # every later draw fails; a capture that succeeds sets that right.
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
def _streams_overridden(torch: Any) -> Iterator[None]:
    """Have gradients gathered on the stream that is captured, wherever else that was begun."""
    # PyTorch 2.13 can; with older ones only what was made on our stream is captured.
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
