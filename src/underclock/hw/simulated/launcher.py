"""Runs kernels on a virtual GPU, in virtual time."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from underclock.errors import DeviceError
from underclock.gpus.models import link_of
from underclock.hw.base import Clock, Durations, Loop, Progress
from underclock.hw.rounds import Round, Turn
from underclock.hw.simulated.costs import heater, idling
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.hw.watching import WatchedLoop
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import duration_s
from underclock.records import Clocks, Kernel, Kind, Mix

_LOOK_S = 0.02
_SHORT_S = 1e-3  # of a round; the launches of shorter ones run in turns of several
_SHORT_TURN_S, _LONGEST_S = 5e-5, 5e-3  # and those of many shorter launches, up to that round
_ROUNDING = 1e-6  # of a launch


@dataclass(frozen=True, slots=True)
class VirtualClock:
    """The virtual GPUs' time, one for all; sleeping is what makes them run."""

    gpus: tuple[VirtualGpu, ...]
    # Held while time passes and while a driver's call is answered: a driver answers one call at a
    # time, so calls to several GPUs take their time one after another.
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
        """Return how far it is."""
        _check(self.gpu)
        running = self.gpu.running
        if running is None:
            return Progress(launches=0, elapsed_s=0.0)
        return Progress(
            launches=running.launches, elapsed_s=running.completed_s, work=sum(running.done)
        )

    def durations(self, for_s: float) -> Durations:
        """Watch launches for a while, and for the length of a round at least."""
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
    """Launches kernels by what they cost on the GPU's model."""

    look_s = 0.0  # what ran is known without a profiler

    gpu: VirtualGpu
    clock: Clock | None = None  # by default its own, which no other GPU keeps
    # Of each launch of the one sequence that it will run, as if changes were free; by default
    # locks decide.
    clocks: tuple[Clocks, ...] = ()
    _constants: dict[Kernel, KernelConstants] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _lasting_s: dict[KernelConstants, float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Loop]:
        """Keep launching a sequence, and its co-load, from entry to exit.

        Where a round is far shorter than any power loop looks, a kernel's launches of several
        rounds run in a row: power, time and heat are the same, and simulating them is not slow.
        """
        _check(self.gpu)
        model = self.gpu.model
        round_ = Round.of(len(kernels), mix)
        constants = {kernel.name: self._constants_of(kernel) for kernel in kernels}
        at = dict(enumerate(constants[kernel.name] for kernel in kernels))
        if round_.mix.hot:
            at[round_.hot] = heater(model)
        if round_.mix.idle_s:
            pieces = round_.mix.pieces
            idle = idling(model, round_.mix.idle_s / pieces)
            at |= dict.fromkeys(range(round_.idle, round_.idle + pieces), idle)
        turns, rounds = round_.turns(), 1
        if not self.clocks:  # which are named turn by turn
            turns, rounds = _in_rows(round_, {p: self._lasts_s(one) for p, one in at.items()})
        work = LaunchLoop(
            tuple(at[turn.place] for turn in turns),
            *self.gpu.draw_noise(),
            turns=turns,
            rounds=rounds,
            hunts=mix is not None,  # a settled clock would always be read as the bin below it
            clocks=self.clocks,
        )
        self.gpu.run(work)
        try:
            yield _VirtualLoop(self.gpu, self.clock or VirtualClock((self.gpu,)), round_)
        finally:
            self.gpu.end()

    def _lasts_s(self, kernel: KernelConstants) -> float:
        lasts_s = self._lasting_s.get(kernel)
        if lasts_s is None:
            model = self.gpu.model
            core_mhz, mem_mhz = float(model.core_mhz[-1]), float(model.mem_mhz[-1])
            lasts_s = float(duration_s(model.constants, kernel, core_mhz, mem_mhz))
            self._lasting_s[kernel] = lasts_s
        return lasts_s

    def _constants_of(self, kernel: Kernel) -> KernelConstants:
        """Return the same constants for a kernel each time: the GPU remembers what they cost."""
        constants = self._constants.get(kernel)
        if constants is None:
            constants = self._constants[kernel] = self.gpu.model.kernel(kernel)
        return constants

    def notes(self) -> tuple[str, ...]:
        """Say that collectives are assumed; a model's other kernels are what they are."""
        ran = any(kernel.kind is Kind.COLLECTIVE for kernel in self._constants)
        return (str(link_of(self.gpu.model.name)),) if ran else ()


def _in_rows(round_: Round, lasts_s: Mapping[int, float]) -> tuple[tuple[Turn, ...], int]:
    """Return what runs in turn, launches of short sequences in rows, and how many rounds it is."""
    turns = round_.turns()
    launches = round_.mix.launches
    once_s = sum(lasts_s[place] for place in range(round_.kernels))
    if round_.kernels > 1 and launches > 1 and not round_.mix.after:
        row = min(max(1, int(_SHORT_S / once_s)), launches)
        rows = [row] * (launches // row) + [launches % row] * bool(launches % row)
        sequence = [Turn(place, times) for times in rows for place in range(round_.kernels)]
        turns = (*sequence, *turns[round_.length :])
    whole_s = sum(turn.times * lasts_s[turn.place] for turn in turns)
    wanted_s = max(_SHORT_S, min(_SHORT_TURN_S * len(turns), _LONGEST_S))
    rounds = max(1, int(wanted_s / whole_s)) if len(turns) > 1 else 1
    return tuple(Turn(turn.place, turn.times * rounds) for turn in turns), rounds


def _check(gpu: VirtualGpu) -> None:
    if gpu.lost:
        raise DeviceError("a launch failed: the GPU fell off the bus", hint="reboot the machine")
