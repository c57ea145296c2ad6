"""Runs kernels on a virtual GPU, in virtual time: a sequence, or small ones of equal work."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Floats
from underclock.errors import DeviceError
from underclock.gpus.models import link_of
from underclock.hw.base import SMALL_S, Clock, Durations, Loop, Progress, Round, Turn
from underclock.hw.simulated.boards import heater, idling
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.hw.watching import WatchedLoop
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import duration_s
from underclock.records import Clocks, Kernel, Kind, Mix
from underclock.units import Domain

_LOOK_S = 0.02
_SHORT_S = 1e-3  # of a sequence with co-load; the launches of shorter ones run in turns of several
_ROUNDING = 1e-6  # of a launch
_SMALL, _HOT = 0, 1
_SIDE, _HOT_S = 4096, 2e-4  # of the hot product's matrices, and about what it takes
_NOISE = 0.002  # standard deviation of a small kernel's duration; assumed


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
        _check(self.gpu)
        running = self.gpu.running
        if running is None:
            return Progress(launches=0, elapsed_s=0.0)
        return Progress(
            launches=running.launches,
            elapsed_s=running.completed_s,
            work=sum(done for _, done in running.counted()),
        )

    def durations(self, for_s: float) -> Durations:
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
        return dict(enumerate(running.counted()))


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
        """Keep launching a sequence, and its co-load, from entry to exit."""
        _check(self.gpu)
        model = self.gpu.model
        round_ = Round.of(len(kernels), mix)
        for kernel in kernels:  # the same each time: the GPU remembers what they cost
            if kernel not in self._constants:
                self._constants[kernel] = model.kernel(kernel)
        constants = {kernel.name: self._constants[kernel] for kernel in kernels}
        at = dict(enumerate(constants[kernel.name] for kernel in kernels))
        if round_.mix.hot:
            at[round_.hot] = heater(model)
        if round_.mix.idle_s:
            pieces = round_.mix.pieces
            idle = idling(model, round_.mix.idle_s / pieces)
            at |= dict.fromkeys(range(round_.idle, round_.idle + pieces), idle)
        turns = round_.turns()
        launches = round_.mix.launches
        # Launches of short sequences run in rows; where clocks are, they are named turn by turn.
        if not self.clocks and round_.kernels > 1 and launches > 1 and not round_.mix.after:
            once_s = sum(self._lasts_s(at[place]) for place in range(round_.kernels))
            row = min(max(1, int(_SHORT_S / once_s)), launches)
            rows = [row] * (launches // row) + [launches % row] * bool(launches % row)
            sequence = [Turn(place, times) for times in rows for place in range(round_.kernels)]
            turns = (*sequence, *turns[round_.length :])
        work = LaunchLoop(
            tuple(at[turn.place] for turn in turns),
            *self.gpu.draw_noise(),
            turns=turns,
            hunts=mix is not None,  # a settled clock would always be read as the bin below it
            clocks=self.clocks,
        )
        self.gpu.run(work, talks=any(kernel.kind is Kind.COLLECTIVE for kernel in kernels))
        try:
            yield _VirtualLoop(self.gpu, self.clock or VirtualClock((self.gpu,)), round_)
        finally:
            self.gpu.end()

    def _lasts_s(self, kernel: KernelConstants) -> float:
        if kernel not in self._lasting_s:
            model = self.gpu.model
            core_mhz, mem_mhz = float(model.core_mhz[-1]), float(model.mem_mhz[-1])
            lasts_s = float(duration_s(model.constants, kernel, core_mhz, mem_mhz))
            self._lasting_s[kernel] = lasts_s
        return self._lasting_s[kernel]

    def notes(self) -> tuple[str, ...]:
        """Say that collectives are assumed; a model's other kernels are what they are."""
        ran = any(kernel.kind is Kind.COLLECTIVE for kernel in self._constants)
        return (str(link_of(self.gpu.model.name)),) if ran else ()


def _check(gpu: VirtualGpu) -> None:
    if gpu.lost:
        raise DeviceError("a launch failed: the GPU fell off the bus", hint="reboot the machine")


@dataclass(slots=True)
class _Recorded(LaunchLoop):
    """A loop that remembers when small kernels ran, for how long, what one took, and if alone."""

    ran: list[tuple[float, float, float, bool]] = field(default_factory=list)

    def progress(self, stride_s: float, launch_s: float) -> None:
        if self.turn.place == _SMALL:
            alone = self.single or self.turn.times > 1
            self.ran.append((self.elapsed_s, stride_s, launch_s, alone))
        LaunchLoop.progress(self, stride_s, launch_s)


class VirtualSmallKernels:
    """Small kernels on a virtual GPU, whose time is also the host's."""

    def __init__(self, gpu: VirtualGpu, *, seed: int = 0) -> None:
        self._gpu, self._random = gpu, np.random.default_rng([seed, 4])

    def run(self, during: Callable[[], None], domain: Domain, hot_s: float = 0.0) -> Floats:
        """Run them while something is done."""
        gpu, start_s = self._gpu, self._gpu.now_s
        small = KernelConstants(core_mcycles=SMALL_S * gpu.model.core_mhz[-1])
        if domain is Domain.MEMORY:
            small = KernelConstants(dram_mcycles=SMALL_S * gpu.model.mem_mhz[-1])
        kernels, turns = {_SMALL: small}, [Turn(_SMALL, 1)]
        if hot_s:
            kernels[_HOT] = hot = heater(gpu.model, _SIDE)
            mhz = float(gpu.model.core_mhz[-1]), float(gpu.model.mem_mhz[-1])
            lasts_s = float(duration_s(gpu.constants, hot, *mhz))
            times = max(1, round(_HOT_S / lasts_s))
            turns = [Turn(_HOT, times), Turn(_SMALL, 1)] * round(hot_s / (times * lasts_s))
            turns.append(Turn(_SMALL, round(hot_s / SMALL_S)))
        works = tuple(kernels[turn.place] for turn in turns)
        loop = _Recorded(works, *gpu.draw_noise(), turns=tuple(turns))
        gpu.run(loop)
        try:
            during()
        finally:
            gpu.end()
        starts_s, lengths_s, launch_s, alone = np.array(loop.ran).reshape(-1, 4).T
        done = np.concatenate(([0.0], np.cumsum(lengths_s / launch_s)))
        edges = np.cumsum(1.0 + _NOISE * self._random.standard_normal(int(done[-1])))
        edges = np.concatenate(([0.0], edges[edges <= done[-1]]))
        # Where products or a stall come between, equally much is done at two times.
        both_s = np.column_stack((starts_s, starts_s + lengths_s)).ravel()
        at_s = np.interp(edges, np.repeat(done, 2)[1:-1], both_s)
        busy_s = np.interp(edges, done, np.concatenate(([0.0], np.cumsum(lengths_s))))
        among = 1.0 - alone[np.searchsorted(done[1:-1], edges[:-1], side="right")]
        return np.column_stack((start_s + at_s[:-1], np.diff(busy_s if hot_s else at_s), among))
