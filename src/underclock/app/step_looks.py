"""A training script's steps, looked at in its own process while it runs by itself.

The script runs in its main thread. Where one of its steps ends, a generator made here is resumed
once: it looks at what the script does until the next end. The first looks are at an early step, so
that a script of few steps has an answer; the last are at a step that is like those before it.

Ranks that train together agree before each step that is looked at, and after it. Their steps are
profiled and not captured: a graph of a collective would wait for ranks that capture nothing.
"""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from underclock.core.tracing.captured import PlainRun, assumed_step, kernel_means_s, profiled_step
from underclock.core.tracing.profile import captured_calls, saw_all, synchronising
from underclock.core.tracing.recapture import ALIKE, unlike
from underclock.errors import NoMemoryError
from underclock.hw.base import Clock
from underclock.hw.cuda.capture import CannotCaptureError, capture, splitting, waiting_operators
from underclock.hw.cuda.driver import installed, wait_for_gpu
from underclock.hw.cuda.launcher import CudaLauncher
from underclock.hw.cuda.state import Snapshot, candidates, check_inputs
from underclock.hw.cuda.torch_step import operators_seen, recorded
from underclock.hw.lockstep import RankAgreement
from underclock.hw.watching import StepMeter
from underclock.records import Step, Window
from underclock.records.work import Traced
from underclock.tracing.captured import as_step, check_one_device, obstacle_of
from underclock.tracing.source import TracePhase

Looks = Generator[None, None, None]
"""What looks at a script's steps; each ``yield`` lets the script take one."""

EARLY = 1
"""Step that is looked at first, counted from 0: the optimizer made its state in the first."""
_SETTLED_S = 8.0
_LEAST_STEPS = 5
_LOOKS, _MOST_EVENTS = 3, 400_000  # a step of 13 740 launches has some 100 000 events
_LOOK, _WAIT = "look", "wait"
_ENDED = "the script ended before its step was captured"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLook:
    """How a script's steps are looked at, and where what was found goes."""

    name: str  # the step's
    latest: int  # step that is looked at at the latest, counted from 0
    ranks: RankAgreement  # those that train together
    clock: Clock  # times the steps
    phase: Callable[[TracePhase], None]  # called as each phase begins
    # called with each step found and PyTorch's trace of it, a better one each time; and with a
    # window of the step as it ran by itself, where its energy was read
    found: Callable[[Step, Mapping[str, Any] | None, Window | None], None]
    # called with what runs the captured step's kernels, while the script is held
    captured: Callable[[CudaLauncher], None]

    def on_gpu(self) -> Looks:
        """Profile an early step and a later one; capture one more where the process is alone."""
        library = installed()
        waiting = _Waiting(self)
        self.phase(TracePhase.WARMING)
        yield from waiting.until(EARLY)
        trace, plain = yield from self._profiled(library, None)
        waiting.passed()
        before = self._profile(plain, trace, _ENDED).step
        self.found(before, trace, None)
        self.phase(TracePhase.WARMING)
        meter, passed = StepMeter(library, self.clock), waiting.taken
        yield from waiting.until(self.latest)
        running = meter.window(waiting.taken - passed)
        self.phase(TracePhase.PROFILING)
        for look in range(_LOOKS):
            trace, plain = yield from self._profiled(library, waiting.typical_s)
            traced = self._profile(plain, trace, _ENDED)
            step, notes = traced.step, unlike(traced.step, before)
            self.found(_noted(step, notes), trace, _timed(running, traced, plain))
            if self._enough(step, before, look, whole=saw_all(trace)):
                break
            before = step
        if self.ranks.world == 1:
            yield from self._captured(library, plain, trace, notes, running)

    def on_cpu(self) -> Looks:
        """Note the operators of early steps, and assume the kernels that a GPU would run."""
        self.phase(TracePhase.WARMING)
        yield from _Waiting(self).until(EARLY)
        self.phase(TracePhase.PROFILING)
        plain: Mapping[str, Any] | None = None
        if self.ranks.world > 1:  # what each rank waits for is read off a plain run
            with recorded(installed()) as plain:
                yield
            self.ranks.agree(_LOOK)
        before: Step | None = None
        for look in range(_LOOKS):
            with operators_seen() as (trace, operators):
                yield
            self.ranks.agree(_LOOK)
            step = assumed_step(self.name, trace, operators)
            self.found(_noted(step, unlike(step, before) if before else ()), plain, None)
            if before is not None and self._enough(step, before, look):
                break
            before = step

    def _enough(self, step: Step, before: Step, look: int, *, whole: bool = True) -> bool:
        """Whether a step will do: the first rank decides for all."""
        alike = abs(len(step.order) - len(before.order)) <= ALIKE * len(step.order)
        done = (whole and alike) or look == _LOOKS - 1
        return self.ranks.agree(_WAIT if done else _LOOK)[0] == _WAIT

    def _profiled(
        self, library: Any, typical_s: float | None
    ) -> Generator[None, None, tuple[Mapping[str, Any], PlainRun]]:
        for most_events in (_MOST_EVENTS, _MOST_EVENTS, math.inf):
            with recorded(most_events=most_events) as trace:
                yield
                wait_for_gpu(library)
            # Of a step in which a script evaluates, or samples text, another one is looked at.
            if _WAIT not in self.ranks.agree(_LOOK if trace else _WAIT):
                break
        plain = PlainRun(trace, typical_s)
        check_one_device(plain.seen, library.cuda.current_device())
        return trace, plain

    def _profile(self, plain: PlainRun, trace: Mapping[str, Any], reason: str) -> Traced:
        world = self.ranks.world
        if world > 1:
            reason = f"{world} ranks train together, and one rank's graph would wait for the rest"
        waits = [] if world > 1 else [calls[0] for calls in synchronising(trace)]
        return profiled_step(self.name, plain, obstacle=obstacle_of(reason, waits))

    def _captured(
        self,
        library: Any,
        plain: PlainRun,
        trace: Mapping[str, Any],
        notes: tuple[str, ...],
        running: Window | None,
    ) -> Looks:
        """Capture one more step, which does all that it does in a plain run."""
        if library.cuda.current_stream() == library.cuda.default_stream():
            # A capture must be on another; the step before it uses every weight on that.
            stream = library.cuda.Stream()
            stream.wait_stream(library.cuda.current_stream())
            library.cuda.set_stream(stream)
        try:
            with capture(waiting_operators(library, synchronising(trace))) as taken:
                # Pinned memory that this step reads is kept. Given back within the capture, it has
                # an event there, and a loader's thread that asks for that event ends the capture.
                with splitting(library, taken.parts):
                    yield
                inputs, snapshot = candidates(library), Snapshot()
                self.phase(TracePhase.CAPTURING)
                with recorded() as recording, taken.under_way():
                    yield
                graph = taken.captured()
                traced = as_step(self.name, graph, captured_calls(recording), plain)
                check_inputs(inputs, graph.nodes)
                self.found(_noted(traced.step, notes), None, None)
                self.captured(CudaLauncher(captured=graph, traced=traced, snapshot=snapshot))
        except (CannotCaptureError, NoMemoryError) as exc:
            traced = self._profile(plain, trace, str(exc))
            self.found(_noted(traced.step, notes), trace, _timed(running, traced, plain))


def _noted(step: Step, notes: tuple[str, ...]) -> Step:
    return replace(step, warnings=(*step.warnings, *notes))


def _timed(running: Window | None, traced: Traced, plain: PlainRun) -> Window | None:
    """Return a window of the step running with what its kernels take in it."""
    if running is None:
        return None
    return replace(running, kernel_s=kernel_means_s(traced, plain, running.time_s))


class _Waiting:
    """Lets a script's steps pass until one is to be looked at, the same on all ranks."""

    def __init__(self, look: StepLook) -> None:
        self._look = look
        self.taken = 1  # the first step ended where this is made
        self._ended_s = self._begun_s = look.clock.now_s()
        self._took_s: list[float] = []

    @property
    def typical_s(self) -> float | None:
        """Shortest time from one end of a step to the next, in s, of those that passed by."""
        return min(self._took_s, default=None)

    def passed(self) -> None:
        """Count a step that was looked at."""
        self.taken += 1
        self._ended_s = self._look.clock.now_s()

    def until(self, step: int) -> Looks:
        """Return where the next step is to be looked at: a step's number, or steady before that."""
        while True:
            steady = self.taken >= _LEAST_STEPS and self._ended_s - self._begun_s >= _SETTLED_S
            due = self.taken >= step or steady
            if self._look.ranks.agree(_LOOK if due else _WAIT)[0] != _WAIT:
                return
            yield
            now_s = self._look.clock.now_s()
            self._took_s.append(now_s - self._ended_s)
            self.taken, self._ended_s = self.taken + 1, now_s
