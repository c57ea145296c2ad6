"""Runs a step over and over as it is written, where no graph holds it.

Only the whole step can run so: its kernels are launched by the user's own code. Co-load comes after
the step. Each round begins with a mark, by which a profiler's view of it is cut into rounds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from underclock.errors import NotSupportedError
from underclock.hw.cuda.durations import MARKS, EagerRound, eager_durations, places_of
from underclock.hw.cuda.feed import CudaLoop, Means
from underclock.hw.cuda.launcher import StepLauncher
from underclock.hw.cuda.round_graphs import chained
from underclock.hw.cuda.state import finally_unless_stuck
from underclock.hw.cuda.torch_step import StepFunction, detach
from underclock.hw.rounds import Round
from underclock.records import Kernel, Mix
from underclock.records.work import Node, TracedActivity

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
        self._check(kernels[: round_.kernels], round_.mix)
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
                    mark.launch(stream.cuda_stream)
                    for _ in range(steps):
                        self.run()
                    if tail is not None:
                        tail.launch(stream.cuda_stream)

            rounds = self._rounds_at_once(once)
            as_here = _settings(torch)

            def launch(stream: Any) -> None:
                with as_here():
                    for _ in range(rounds):
                        once(stream)

            stack.enter_context(finally_unless_stuck(self._unwatch))
            stack.callback(torch.cuda.empty_cache)  # what was cached for a stream serves no other
            places = places_of(self.traced.groups)
            launched = EagerRound(
                nodes=tuple(self.nodes) if steps else (),
                places=tuple(map(places.__getitem__, range(len(self.nodes)))) if steps else (),
                steps=steps,
                coload=tuple(place for place, _ in after),
            )
            events = steps * len(self.nodes) + len(after) + MARKS
            means = self._means(launched)
            yield stack.enter_context(self._feeding(launch, round_, rounds, events, means))

    def _unwatch(self) -> None:
        """Take the profiler off the driver, if it looked on: it would slow what comes next."""
        if self._watched:
            self._watched = False
            detach(self._torch)

    def _check(self, kernels: Sequence[Kernel], mix: Mix) -> None:
        step = self.traced.step
        names = [kernel.name for kernel in kernels]
        if kernels and names != [step.kernels[index].name for index in step.order]:
            raise NotSupportedError(
                f"only the whole step can run: {step.obstacle}",
                hint="trace it again and measure it into another file: it is then measured whole",
            )
        if mix.after:
            raise NotSupportedError(
                "co-load cannot run between the launches of a step that is no graph: "
                f"{step.obstacle}",
                hint="with root, clocks are held instead: leave --grid steer away",
            )

    def _means(self, launched: EagerRound) -> Means:
        def means(seen: Sequence[Sequence[TracedActivity]]) -> dict[int, float] | None:
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

        return means


def _settings(torch: Any) -> Callable[[], AbstractContextManager[object]]:
    """Return a context in which another thread has PyTorch's settings of this one.

    A step is launched from a thread of its own, and PyTorch keeps these for each thread.
    """
    device, grad = torch.get_default_device(), torch.is_grad_enabled()

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(grad))
            if device.type != "cpu":  # PyTorch's own default, which costs nothing while unset
                stack.enter_context(device)
            yield

    return entered
