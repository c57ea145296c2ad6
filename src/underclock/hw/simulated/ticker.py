"""Tiny pieces of equal work on a virtual GPU: as long as its clock of the moment makes them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Floats
from underclock.errors import DeviceError
from underclock.hw.base import Clock
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.physics.constants import KernelConstants
from underclock.records.latencies import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class TickNoise:
    """How unlike equal work and its clock readings are; assumed."""

    relative: float = 0.005  # standard deviation of a tick
    trace: float = 3e-4  # and of what all ticks of a trace share
    interrupted: float = 2e-4  # part of the ticks that something gets in the way of
    interruption_ticks: float = 10.0  # how much longer those take, in the mean
    timer_s: float = 32e-9  # the GPU's timer counts in these steps


_NOISE = TickNoise()


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Time in which ticks took equally long."""

    start_s: float  # since the ticking began
    length_s: float
    tick_s: float


@dataclass(slots=True)
class _Ticking(LaunchLoop):
    """A loop that remembers what its kernel took, and when; with gaps where it did not run."""

    stretches: list[_Stretch] = field(default_factory=list)

    def progress(self, stride_s: float, kernel_s: float) -> None:
        """Count what a stride completed, and remember it."""
        self.stretches.append(_Stretch(self.elapsed_s, stride_s, kernel_s))
        LaunchLoop.progress(self, stride_s, kernel_s)


class VirtualTicker:
    """Ticks on a virtual GPU, whose time is also the host's."""

    def __init__(
        self, gpu: VirtualGpu, clock: Clock, *, seed: int = 0, noise: TickNoise = _NOISE
    ) -> None:
        self._gpu = gpu
        self._clock = clock
        self._noise = noise
        self._random = np.random.default_rng([seed, 4])
        self._works: dict[tuple[Domain, float], KernelConstants] = {}  # the device remembers them

    def trace(
        self,
        during: Callable[[], None],
        *,
        domain: Domain,
        tick_s: float,
        lead_s: float,
        tail_s: float,
    ) -> Floats:
        """Tick, and do something meanwhile."""
        gpu = self._gpu
        self._check()
        work = self._works.setdefault((domain, tick_s), _work(gpu, domain, tick_s))
        slowness = 1.0 + self._noise.trace * float(self._random.standard_normal())
        started_s = gpu.now_s
        gpu.draw_noise()  # as every loop does, so that those after this one draw theirs
        ticking = _Ticking(kernels=(work,), time_noise=slowness, power_noise=1.0)
        gpu.run(ticking)
        try:
            self._clock.sleep_s(lead_s)
            during()
            self._clock.sleep_s(tail_s)
        finally:
            gpu.end()
        self._check()
        return self._edges_s(started_s, ticking.stretches)

    def _edges_s(self, started_s: float, stretches: list[_Stretch]) -> Floats:
        """Return when ticks began and ended, from how fast they went by."""
        if not stretches:  # it stood still from beginning to end
            return np.array([started_s])
        starts_s = np.array([stretch.start_s for stretch in stretches])
        lengths_s = np.array([stretch.length_s for stretch in stretches])
        done = np.cumsum(lengths_s / np.array([stretch.tick_s for stretch in stretches]))
        # A gap shows as two times at which equally much is done.
        at_s = np.column_stack((starts_s, starts_s + lengths_s)).ravel()
        at_done = np.column_stack((np.concatenate(([0.0], done[:-1])), done)).ravel()
        noise, random = self._noise, self._random
        work = 1.0 + noise.relative * random.standard_normal(int(done[-1]) + 1)
        hit = random.random(len(work)) < noise.interrupted
        work[hit] += random.exponential(noise.interruption_ticks, int(np.count_nonzero(hit)))
        upto = np.concatenate(([0.0], np.cumsum(np.maximum(work, 0.5))))
        edges_s = started_s + np.interp(upto[upto <= done[-1]], at_done, at_s)
        ticks: Floats = np.round(edges_s / noise.timer_s) * noise.timer_s
        return ticks

    def _check(self) -> None:
        if self._gpu.lost:
            raise DeviceError(
                "the ticking kernel failed: the GPU fell off the bus", hint="reboot the machine"
            )


def _work(gpu: VirtualGpu, domain: Domain, tick_s: float) -> KernelConstants:
    """Return work that takes a tick at the domain's fastest clock, and almost no power."""
    if domain is Domain.CORE:
        return KernelConstants(core_mcycles=tick_s * gpu.model.core_mhz[-1])
    return KernelConstants(dram_mcycles=tick_s * gpu.model.mem_mhz[-1])
