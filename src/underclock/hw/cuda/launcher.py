"""Runs one kernel of a captured step, or the whole step, over and over on a real GPU."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from underclock.errors import DeviceError, UsageError
from underclock.hw.base import Loop, Progress
from underclock.hw.clock import SystemClock
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.graphs import Chain, GraphNode
from underclock.hw.cuda.operands import is_constant, uniformity, windows
from underclock.hw.cuda.state import Snapshot, StuckError
from underclock.hw.cuda.torch_step import Captured
from underclock.records import Kernel
from underclock.records.launches import NodeKind, Traced

_LAUNCH_S = 0.020  # least length of a launch, so that the host's part in it does not matter
_MOST_NODES = 20_000
_TRIAL = 16
_STUCK_S = 60.0  # no launch of a trial takes a fraction of this
_IN_FLIGHT = 3
_DEGENERATE = 0.25  # a window that grew this much more uniform is no longer the step's data


class _Feed:
    """Keeps a stream fed from a thread of its own, and counts what is done.

    Args:
        torch: PyTorch.
        launch: Queues one round on the stream it is given.
        per_round: Launches in a round.
    """

    def __init__(self, torch: Any, launch: Callable[[Any], None], per_round: int) -> None:
        self._torch, self._launch, self._per_round = torch, launch, per_round
        self._device = torch.cuda.current_device()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done = Progress(launches=0, elapsed_s=0.0)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="underclock-launches", daemon=True)
        self._thread.start()

    def progress(self) -> Progress:
        """Return how far it is.

        Raises:
            DeviceError: A launch failed.
        """
        with self._lock:
            if self._error is not None:
                raise DeviceError(f"a launch failed: {self._error}") from self._error
            return self._done

    def close(self, longest_s: float = _STUCK_S) -> None:
        """Stop launching and wait for what is in flight.

        Raises:
            StuckError: It does not end.
        """
        self._stop.set()
        self._thread.join(longest_s)
        if self._thread.is_alive():
            raise StuckError(
                f"launches in flight did not end in {longest_s:g} s: the GPU hangs",
                hint="this process's GPU work is lost; look at the GPU with `nvidia-smi`",
            )

    def _run(self) -> None:
        torch = self._torch
        try:
            torch.cuda.set_device(self._device)
            stream = torch.cuda.Stream()
            begun = torch.cuda.Event(enable_timing=True)
            begun.record(stream)
            flying: list[Any] = []
            while not self._stop.is_set():
                self._launch(stream)
                ended = torch.cuda.Event(enable_timing=True)
                ended.record(stream)
                flying.append(ended)
                if len(flying) >= _IN_FLIGHT:
                    self._complete(begun, flying.pop(0))
            stream.synchronize()
        except Exception as exc:  # noqa: BLE001 - carried to whoever asks for progress
            with self._lock:
                self._error = exc

    def _complete(self, begun: Any, ended: Any) -> None:
        ended.synchronize()
        elapsed_s = begun.elapsed_time(ended) * 1e-3
        with self._lock:
            self._done = Progress(
                launches=self._done.launches + self._per_round, elapsed_s=elapsed_s
            )


@dataclass(slots=True)
class CudaLauncher:
    """Runs the kernels of one captured step.

    Attributes:
        captured: The step's graph.
        traced: Its kernels, and where they are in the graph.
        snapshot: What the step's tensors held before it ran.
    """

    captured: Captured
    traced: Traced
    snapshot: Snapshot
    _notes: dict[str, str] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _torch: Any = field(default_factory=import_torch)

    @contextmanager
    def loop(self, kernels: Sequence[Kernel]) -> Iterator[Loop]:
        """Keep launching the whole step, or some of its kernels on the data they first meet.

        Raises:
            UsageError: A kernel is not of this step.
            DeviceError: A launch failed.
        """
        with ExitStack() as stack:
            step = self.traced.step
            if len(kernels) > 1 and len(kernels) == len(step.order):
                yield stack.enter_context(self._whole())
            else:
                yield stack.enter_context(self._some([self._index(kernel) for kernel in kernels]))

    def notes(self) -> tuple[str, ...]:
        """Return what was seen of kernels that their numbers do not tell."""
        return tuple(self._notes.values())

    @contextmanager
    def _whole(self) -> Iterator[_Feed]:
        """Replay the step's own graph, state put back before."""
        torch, graph = self._torch, self.captured.graph
        self.snapshot.restore_contents()
        once_s = _timed(torch, lambda _stream: graph.replay(), 2) / 2
        rounds = max(1, math.ceil(_LAUNCH_S / once_s))

        def launch(stream: Any) -> None:
            with torch.cuda.stream(stream):
                for _ in range(rounds):
                    graph.replay()

        with _feeding(torch, launch, rounds) as feed:
            yield feed

    @contextmanager
    def _some(self, indices: Sequence[int]) -> Iterator[_Feed]:
        order = self.traced.step.order
        only = self.traced.step.kernels[indices[0]] if len(indices) == 1 else None
        with self.repeated([order.index(index) for index in indices], only) as (chain, count):
            before = self._uniformity(indices[0])
            with _feeding(
                self._torch, lambda stream: chain.launch(stream.cuda_stream), count
            ) as feed:
                yield feed
            if only is not None:
                self._note_decay(only, indices[0], before)

    @contextmanager
    def repeated(
        self, positions: Sequence[int], inspected: Kernel | None = None
    ) -> Iterator[tuple[Chain, int]]:
        """Build a graph of launches repeated, with the step's data as it is at the first of them.

        Args:
            positions: Which launches of the step, in turn.
            inspected: The one kernel that is launched, to look at what it reads the first time.

        Yields:
            The graph, and how often it holds them.
        """
        torch = self._torch
        mine = [node for position in positions for node in self._nodes(position)]
        # To the kernel itself: a memset that serves it may lie far before.
        self.rewind(self.traced.groups[positions[0]].nodes[-1])
        if inspected is not None and inspected.name not in self._seen:
            self._inspect(inspected, mine)
            self._seen.add(inspected.name)
        with Chain(mine * _TRIAL) as trial:
            _timed(torch, lambda stream: trial.launch(stream.cuda_stream), 1)
            once_s = _timed(torch, lambda stream: trial.launch(stream.cuda_stream), 1) / _TRIAL
        count = min(max(1, _MOST_NODES // len(mine)), max(1, math.ceil(_LAUNCH_S / once_s)))
        with Chain(mine * count) as chain:
            yield chain, count

    def _nodes(self, position: int) -> list[GraphNode]:
        return [self.captured.nodes[i] for i in self.traced.groups[position].nodes]

    def rewind(self, node: int) -> None:
        """Put memory into the state it is in when the step reaches a node."""
        self.snapshot.restore_contents()
        stream = self._torch.cuda.current_stream()
        if node:
            with Chain(self.captured.nodes[:node]) as before:
                before.launch(stream.cuda_stream)
                stream.synchronize()

    def _index(self, kernel: Kernel) -> int:
        for index, known in enumerate(self.traced.step.kernels):
            if known.name == kernel.name:
                return index
        raise UsageError(f"the traced step has no kernel {kernel.name!r}", hint="trace it again")

    def _views(self, nodes: Sequence[Any]) -> list[Any]:
        # Where a memset clears a counter for the kernel it serves, there is nothing to judge.
        cleared = {
            word for node in nodes if node.node.kind is NodeKind.MEMSET for word in node.words
        }
        words = [word for node in nodes for word in node.words if word not in cleared]
        return windows(self._torch, self.captured.memory, words)

    def _uniformity(self, index: int) -> list[float]:
        nodes = self._nodes(self.traced.step.order.index(index))
        return [uniformity(view) for view in self._views(nodes)]

    def _inspect(self, kernel: Kernel, nodes: Sequence[GraphNode]) -> None:
        """Note a kernel most of whose operands hold one value.

        What a launch leaves as it was it reads, or fills with what was there before.
        """
        launch = kernel.launch
        if launch is None or "Fill" in launch.function or launch.function in {"memset", "copy"}:
            return
        views = self._views(nodes)
        before = [view.clone() for view in views]
        with Chain(nodes) as once:
            _timed(self._torch, lambda stream: once.launch(stream.cuda_stream), 1)
        unchanged = [
            view for view, kept in zip(views, before, strict=True) if self._torch.equal(view, kept)
        ]
        constant = [view for view in unchanged if is_constant(view)]
        if constant and 2 * len(constant) >= len(unchanged):
            self._notes[kernel.name] = (
                f"{kernel.name!r} reads {len(constant)} operand(s) that hold one value only; if "
                "they do not in training, it draws more power there"
            )

    def _note_decay(self, kernel: Kernel, index: int, before: Sequence[float]) -> None:
        after = self._uniformity(index)
        grown = max((b - a for a, b in zip(before, after, strict=True)), default=0.0)
        if grown > _DEGENERATE:
            self._notes[kernel.name] = (
                f"{kernel.name!r} works in place: run over and over, {grown:.0%} of what it works "
                "on became one value, so its energy is too low"
            )


@contextmanager
def _feeding(torch: Any, launch: Callable[[Any], None], per_round: int) -> Iterator[_Feed]:
    feed = _Feed(torch, launch, per_round)
    try:
        yield feed
    finally:
        feed.close()


def _timed(torch: Any, launch: Callable[[Any], None], times: int) -> float:
    """Return the GPU time of some launches, in s."""
    stream = torch.cuda.current_stream()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record(stream)
    for _ in range(times):
        launch(stream)
    ended.record(stream)
    clock = SystemClock()
    deadline_s = clock.now_s() + _STUCK_S
    while not ended.query():
        if clock.now_s() > deadline_s:
            raise StuckError(
                f"a kernel launched by itself did not end in {_STUCK_S:g} s: it waits for what "
                "another kernel of its operator prepares",
                hint="this process's GPU work is lost; leave that operator out of the step, or "
                "trace it without isolating",
            )
    return max(1e-9, float(begun.elapsed_time(ended)) * 1e-3)
