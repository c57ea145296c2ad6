"""Small kernels of equal work on a virtual GPU, as long as its clock of the moment makes them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from underclock.arrays import Floats
from underclock.hw.base import SMALL_S
from underclock.hw.rounds import Turn
from underclock.hw.simulated.costs import heater
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import LaunchLoop
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import duration_s
from underclock.records.latencies import Domain

_SMALL, _HOT = 0, 1
_SIDE, _HOT_S = 4096, 2e-4  # of the hot product's matrices, and about what it takes
_NOISE = 0.002  # standard deviation of a small kernel's duration; assumed


@dataclass(slots=True)
class _Recorded(LaunchLoop):
    """A loop that remembers when small kernels ran, for how long, what one took, and if alone."""

    ran: list[tuple[float, float, float, bool]] = field(default_factory=list)

    def progress(self, stride_s: float, launch_s: float) -> None:
        """Count what a stride completed, and remember it."""
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
