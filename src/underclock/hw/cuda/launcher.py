"""Runs kernels of a step, or the whole step, over and over on a real GPU.

`CudaLauncher` launches graphs of a captured step. Where no graph holds the step, `EagerLauncher`
runs it as it is written, whole, with co-load after it. Each of its rounds begins with a mark, by
which a profiler's view of it is cut into rounds.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from underclock.errors import NotSupportedError, StuckError, UsageError
from underclock.hw.base import Clock, Round, SystemClock
from underclock.hw.cuda.capture import Captured
from underclock.hw.cuda.driver import torch as import_torch
from underclock.hw.cuda.driver import wait_for_gpu
from underclock.hw.cuda.durations import (
    MARKS,
    EagerRound,
    Runs,
    eager_durations,
    mean_durations,
    places_of,
)
from underclock.hw.cuda.feed import LOOK_S, CudaLoop, Feed, Means, timed
from underclock.hw.cuda.round_graphs import (
    CudaCoLoad,
    GraphNode,
    Places,
    chained,
    flat,
    graph_of,
    in_pieces,
    parts_of,
    step_graphs,
)
from underclock.hw.cuda.state import CONSTANT, Snapshot, finally_unless_stuck, uniformity, windows
from underclock.hw.cuda.torch_step import StepFunction, detach
from underclock.hw.lockstep import RankPace
from underclock.records import Kernel, Mix
from underclock.records.work import Node, NodeKind, Traced, TracedActivity

_LAUNCH_S = 0.020  # least length of a launch, so that the host's part in it does not matter
_MOST_NODES = 4_000  # of a graph, which a profiler sees six times: each takes it some 50 µs
_TRIAL = 16
_DEGENERATE = 0.25  # a window that grew this much more uniform is no longer the step's data


@dataclass(slots=True, kw_only=True)
class StepLauncher:
    """What every launcher of one step has."""

    look_s = LOOK_S

    traced: Traced  # its kernels, and where they are among what it launches
    snapshot: Snapshot  # what the step changes, as it was before it ran
    # When it may launch; other ranks may have to do so as well
    pace: RankPace = field(default_factory=RankPace)
    _notes: dict[str, str] = field(default_factory=dict)
    _torch: Any = field(default_factory=import_torch)
    _clock: Clock = field(default_factory=SystemClock)
    _coload: CudaCoLoad = field(init=False)

    def __post_init__(self) -> None:
        """Have co-load at hand; nothing of it is made before it is asked for."""
        self._coload = CudaCoLoad(self._torch, self._notes)

    def notes(self) -> tuple[str, ...]:
        """Return what was seen of what ran that its numbers do not tell."""
        return tuple(self._notes.values())

    def _rounds_at_once(self, once: Callable[[Any], None]) -> int:
        """Return how many rounds to launch at once, so that the host's part does not matter."""
        once_s = self.pace.agreed(timed(self._torch, once, 2) / 2)
        return max(1, math.ceil(_LAUNCH_S / once_s))

    @contextmanager
    def _feeding(
        self, launch: Callable[[Any], None], round_: Round, rounds: int, events: int, means: Means
    ) -> Iterator[CudaLoop]:
        """Keep launching so many rounds at once, each of so many kernels, memsets and copies."""
        with Feed(self._torch, launch, rounds, self.pace) as feed:
            yield CudaLoop(
                torch=self._torch,
                clock=self._clock,
                feed=feed,
                round=round_,
                means=means,
                rounds=rounds,
                events=events * rounds,
            )


@dataclass(slots=True, kw_only=True)
class CudaLauncher(StepLauncher):
    """Runs the kernels of one captured step."""

    captured: Captured  # the step's graphs
    _seen: set[str] = field(default_factory=set)

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[CudaLoop]:
        """Keep launching the whole step, or some of its kernels on the data they first meet."""
        round_ = Round.of(len(kernels), mix)
        self.pace.begin(tuple(kernel.name for kernel in kernels), mix)
        known = {kernel.name: index for index, kernel in enumerate(self.traced.step.kernels)}
        wanted = kernels[: round_.kernels]
        for kernel in wanted:
            if kernel.name not in known:
                raise UsageError(
                    f"the traced step has no kernel {kernel.name!r}", hint="trace it again"
                )
        indices = [known[kernel.name] for kernel in wanted]
        coload = self._coload.coload_nodes(round_)
        whole = len(indices) > 1 and len(indices) == len(self.traced.step.order)
        running = self._whole(round_, coload) if whole else self._some(indices, round_, coload)
        launched = "the step" if whole else " and ".join(kernel.name for kernel in kernels)
        try:
            with running as loop:
                yield loop
        except StuckError as stuck:
            stuck.add_note(f"launched were: {launched}")
            raise

    @contextmanager
    def _whole(self, round_: Round, coload: Places) -> Iterator[CudaLoop]:
        """Launch the step, state put back before, with its co-load."""
        torch, parts = self._torch, self.captured.parts
        self.snapshot.restore_contents()
        step = step_graphs(self.captured.nodes, self.captured.ends, self.traced.groups)
        if round_.mix.after:  # co-load between launches: a graph of our own has all of them
            nodes, pieced = in_pieces(self.captured.nodes, self.traced.groups, round_, coload)
            runs: Runs = ((pieced,),)
            replays = 0
        else:
            after = parts_of(round_.coload(0), coload)
            nodes, replays = flat(after), round_.mix.launches
            runs = (step, (graph_of(after),)) if after else (step,)
        with ExitStack() as stack:
            chain = stack.enter_context(chained(nodes)) if nodes else None

            def once(stream: Any) -> None:
                with torch.cuda.stream(stream):
                    for _ in range(replays):
                        parts.replay()
                    if chain is not None:
                        chain(stream.cuda_stream)

            rounds = self._rounds_at_once(once)

            def launch(stream: Any) -> None:
                for _ in range(rounds):
                    once(stream)

            events = replays * len(self.captured.nodes) + len(nodes)
            means = functools.partial(mean_durations, runs=runs)
            yield stack.enter_context(self._feeding(launch, round_, rounds, events, means))

    @contextmanager
    def _some(self, indices: Sequence[int], round_: Round, coload: Places) -> Iterator[CudaLoop]:
        step = self.traced.step
        only = step.kernels[indices[0]] if len(indices) == 1 else None
        positions = [self.traced.launch_of(index) for index in indices]
        kernels = {place: self._nodes(position) for place, position in enumerate(positions)}
        parts = parts_of(round_.turns(), kernels | coload)
        if positions:
            # To the kernel itself: a memset that serves it may lie far before.
            end = self.traced.groups[positions[0]].nodes[-1]
            self.snapshot.restore_contents()
            if end:
                with chained(self.captured.nodes[:end]) as before_it:
                    before_it(self._torch.cuda.current_stream().cuda_stream)
                    wait_for_gpu(self._torch)
        if only is not None and only.name not in self._seen:
            self._inspect(only, kernels[0])
            self._seen.add(only.name)
        nodes = flat(parts)
        with _long_enough(self._torch, nodes, self.pace) as (chain, count):
            views = self._views(kernels[0]) if only is not None else []
            before = [uniformity(view) for view in views]

            def launch(stream: Any) -> None:
                chain(stream.cuda_stream)

            means = functools.partial(mean_durations, runs=((graph_of(parts * count),),))
            with self._feeding(launch, round_, count, len(nodes), means) as loop:
                yield loop
            after = [uniformity(view) for view in views]
            grown = max((b - a for a, b in zip(before, after, strict=True)), default=0.0)
            if only is not None and grown > _DEGENERATE:
                self._notes[only.name] = (
                    f"{only.name!r} works in place: run over and over, {grown:.0%} of what it "
                    "works on became one value, so its energy is too low"
                )

    def _nodes(self, position: int) -> list[GraphNode]:
        return [self.captured.nodes[i] for i in self.traced.groups[position].nodes]

    def _views(self, nodes: Sequence[Any]) -> list[Any]:
        # Where a memset clears a counter for the kernel it serves, there is nothing to judge.
        cleared = {
            word for node in nodes if node.node.kind is NodeKind.MEMSET for word in node.words
        }
        words = [word for node in nodes for word in node.words if word not in cleared]
        return windows(self._torch, self.captured.memory, words)

    def _inspect(self, kernel: Kernel, nodes: Sequence[GraphNode]) -> None:
        """Note a kernel most of whose operands hold one value."""
        launch = kernel.launch
        if launch is None or "Fill" in launch.function or launch.function in {"memset", "copy"}:
            return
        views = self._views(nodes)
        before = [view.clone() for view in views]
        with chained(nodes) as once:
            timed(self._torch, lambda stream: once(stream.cuda_stream), 1)
        # What a launch leaves as it was it reads, or fills with what was there before.
        unchanged = [
            view for view, kept in zip(views, before, strict=True) if self._torch.equal(view, kept)
        ]
        constant = [view for view in unchanged if uniformity(view) >= CONSTANT]
        if constant and 2 * len(constant) >= len(unchanged):
            self._notes[kernel.name] = (
                f"{kernel.name!r} reads {len(constant)} operand(s) that hold one value only; if "
                "they do not in training, it draws more power there"
            )


@contextmanager
def _long_enough(
    torch: Any, nodes: Sequence[GraphNode], pace: RankPace
) -> Iterator[tuple[Callable[[int], None], int]]:
    """Build a graph of nodes repeated until it takes long enough; yield it, and how often."""
    with chained(nodes) as once:
        once_s = pace.agreed(_launched_s(torch, once))
    if once_s * _TRIAL < _LAUNCH_S:  # too short against what launching takes
        with chained([*nodes] * _TRIAL) as several:
            once_s = pace.agreed(_launched_s(torch, several) / _TRIAL)
    count = min(max(1, _MOST_NODES // len(nodes)), max(1, math.ceil(_LAUNCH_S / once_s)))
    with chained([*nodes] * count) as chain:
        yield chain, count


def _launched_s(torch: Any, chain: Callable[[int], None]) -> float:
    timed(torch, lambda stream: chain(stream.cuda_stream), 1)
    return timed(torch, lambda stream: chain(stream.cuda_stream), 1)


_MARK_S = 1e-6  # of each spin of a mark
_WAITS = 0.02  # of a step, from which waiting for the host is noted


@dataclass(slots=True, kw_only=True)
class EagerLauncher(StepLauncher):
    """Runs one step that cannot be captured; its obstacle says why it is no graph."""

    run: StepFunction  # runs the step once, on the batches it first met
    nodes: Sequence[Node]  # what a profiler saw it launch, in order
    _watched: bool = False

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[CudaLoop]:
        """Keep running the whole step, or co-load by itself, from entry to exit."""
        round_ = Round.of(len(kernels), mix)
        step, names = self.traced.step, [kernel.name for kernel in kernels[: round_.kernels]]
        if names and names != [step.kernels[index].name for index in step.order]:
            raise NotSupportedError(
                f"only the whole step can run: {step.obstacle}",
                hint="trace it again and measure it into another file: it is then measured whole",
            )
        if round_.mix.after:
            raise NotSupportedError(
                "co-load cannot run between the launches of a step that is no graph: "
                f"{step.obstacle}",
                hint="with root, clocks are held instead: leave --grid steer away",
            )
        self.pace.begin(tuple(kernel.name for kernel in kernels), mix)
        torch, steps = self._torch, round_.mix.launches if round_.kernels else 0
        coload = self._coload.coload_nodes(round_)
        turns = [turn.place for turn in round_.coload(0) for _ in range(turn.times)]
        after = [(place, node) for place in turns for node in coload[place]]
        self.snapshot.restore()
        with ExitStack() as stack:
            mark = stack.enter_context(chained(self._coload.idling(_MARK_S) * MARKS))
            tail = stack.enter_context(chained([node for _, node in after])) if after else None

            def once(stream: Any) -> None:
                with torch.cuda.stream(stream):
                    mark(stream.cuda_stream)
                    for _ in range(steps):
                        self.run()
                    if tail is not None:
                        tail(stream.cuda_stream)

            rounds = self._rounds_at_once(once)
            as_here = _settings(torch)

            def launch(stream: Any) -> None:
                with as_here():
                    for _ in range(rounds):
                        once(stream)

            stack.enter_context(finally_unless_stuck(self._unwatch))
            stack.callback(torch.cuda.empty_cache)  # what was cached for a stream serves no other
            nodes, places = tuple(self.nodes) if steps else (), places_of(self.traced.groups)
            served, hot = tuple(places[at] for at in range(len(nodes))), tuple(p for p, _ in after)
            launched = EagerRound(nodes=nodes, places=served, steps=steps, coload=hot)
            events = steps * len(self.nodes) + len(after) + MARKS
            means = functools.partial(self._means, launched)
            yield stack.enter_context(self._feeding(launch, round_, rounds, events, means))

    def _unwatch(self) -> None:
        # A profiler that looked on is taken off the driver: it would slow what comes next.
        if self._watched:
            self._watched = False
            detach(self._torch)

    def _means(
        self, launched: EagerRound, seen: Sequence[Sequence[TracedActivity]]
    ) -> dict[int, float] | None:
        self._watched = True
        found = eager_durations(seen, launched)
        if found is None:
            return None
        mean_s, waited = found
        if waited >= _WAITS:
            self._notes.setdefault(
                "waits",
                f"the GPU waits for the host in {waited:.0%} of the step: a clock that "
                "is a little lower may then cost no time, and what waits draws power too",
            )
        return mean_s


def _settings(torch: Any) -> Callable[[], AbstractContextManager[object]]:
    # A step is launched from a thread of its own, and PyTorch keeps these for each thread.
    device, grad = torch.get_default_device(), torch.is_grad_enabled()

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(grad))
            if device.type != "cpu":  # PyTorch's own default, which costs nothing while unset
                stack.enter_context(device)
            yield

    return entered
