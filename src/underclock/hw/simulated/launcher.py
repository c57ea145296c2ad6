"""Runs kernels on a virtual GPU, in virtual time."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from underclock.errors import DeviceError
from underclock.hw.base import Clock, Durations, Loop, Progress
from underclock.hw.rounds import Round
from underclock.hw.simulated.company import companion, idling
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.waiting import WatchedLoop
from underclock.records import Clocks, Kernel, Kind, Mix

_LOOK_S = 0.02
_ROUNDING = 1e-6  # of a launch


@dataclass(frozen=True, slots=True)
class VirtualClock:
    """The virtual GPUs' time; sleeping is what makes them run.

    Attributes:
        gpus: They all keep one time.
        lock: Held while time passes and while a driver's call is answered: a driver answers one
            call at a time, so calls to several GPUs take their time one after another.
    """

    gpus: tuple[VirtualGpu, ...]
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def now_s(self) -> float:
        """Return virtual time in s."""
        return self.gpus[0].now_s

    def sleep_s(self, duration_s: float) -> None:
        """Let virtual time pass on every GPU."""
        with self.lock:
            for gpu in self.gpus:
                gpu.advance(duration_s)


@dataclass(frozen=True, slots=True)
class _VirtualLoop:
    gpu: VirtualGpu
    clock: Clock
    round: Round

    def progress(self) -> Progress:
        """Return how far it is.

        Raises:
            DeviceError: The GPU fell off the bus.
        """
        _check(self.gpu)
        running = self.gpu.running
        if running is None:
            return Progress(launches=0, elapsed_s=0.0)
        return Progress(launches=running.launches, elapsed_s=running.completed_s)

    def durations(self, for_s: float) -> Durations:
        """Watch launches for a while, and for the length of a round at least.

        Raises:
            DeviceError: The GPU fell off the bus.
            MeasurementError: No round ends.
        """
        watched = WatchedLoop(self, self.clock, "timing launches")
        watched.progress()
        begun = self._counted()
        least = self.round.launches()
        pause_s = for_s
        while True:
            self.clock.sleep_s(pause_s)
            watched.progress()
            now = self._counted()
            done = {place: now[place][1] - begun[place][1] for place in now.keys() & begun.keys()}
            if all(done.get(place, 0.0) >= times - _ROUNDING for place, times in least.items()):
                break
            pause_s = _LOOK_S
        return self.round.durations(
            {place: (now[place][0] - begun[place][0]) / done[place] for place in least}
        )

    def _counted(self) -> dict[int, tuple[float, float]]:
        """Return time spent in each place and launches completed, the last of them in part."""
        running = self.gpu.running
        if running is None:
            return {}
        return dict(enumerate(zip(running.took_s, running.done, strict=True)))


@dataclass(frozen=True, slots=True)
class VirtualLauncher:
    """Launches kernels by what they cost on the GPU's model.

    Attributes:
        gpu: The GPU.
        clock: Its time; by default its own, which no other GPU keeps.
        clocks: Of each launch of the one sequence that it will run, as if changes were free; by
            default locks decide.
    """

    gpu: VirtualGpu
    clock: Clock | None = None
    clocks: tuple[Clocks, ...] = ()

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Loop]:
        """Keep launching a sequence, and its company, from entry to exit.

        Raises:
            ValueError: Nothing would run.
            UsageError: A kernel does not say what it does, or no companion can be simulated.
            DeviceError: The GPU fell off the bus.
        """
        _check(self.gpu)
        model = self.gpu.model
        round_ = Round.of(len(kernels), mix)
        constants = {kernel.name: model.kernel(kernel) for kernel in kernels}
        tensor = [constants[kernel.name] for kernel in kernels if kernel.kind is Kind.GEMM]
        at = dict(enumerate(constants[kernel.name] for kernel in kernels))
        if round_.mix.hot:
            at[round_.hot] = companion(model)
            tensor.append(at[round_.hot])
        if round_.mix.idle_s:
            at[round_.idle] = idling(model, round_.mix.idle_s)
        turns = round_.turns()
        self.gpu.begin(
            [at[turn.place] for turn in turns],
            turns=turns,
            tensor=tensor,
            hunts=mix is not None,  # a settled clock would always be read as the bin below it
            clocks=self.clocks,
        )
        try:
            yield _VirtualLoop(self.gpu, self.clock or VirtualClock((self.gpu,)), round_)
        finally:
            self.gpu.end()

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a model's kernels are what they are."""
        return ()


def _check(gpu: VirtualGpu) -> None:
    if gpu.lost:
        raise DeviceError("a launch failed: the GPU fell off the bus", hint="reboot the machine")
