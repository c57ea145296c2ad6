"""The boards of virtual GPUs, and what their sensors show of the truth.

The truth is `VirtualGpu.energy_j` and `power_w`. What a driver shows of it is late, averaged,
sampled for part of the time, and off by the board's own gain.
"""

import math
from collections import deque
from dataclasses import dataclass

from underclock.gpus.models import AMPERE, GA100, HOPPER, Meter, Sensors

_ROUNDING = 1e-9  # of a tick
# The past is noted no more often than every millisecond or at each longer stretch, which makes
# at most two points a millisecond; the longest window is 1 s and ends up to 0.1 s ago.
NOTED_S = 1e-3
_POINTS = 2400


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One kind of board, from its data sheet: what no fit touches."""

    cores: int
    memory_mib: int  # that the driver reports
    capability: tuple[int, int]  # of CUDA
    pci_device: int
    geforce: bool = False
    fan: bool = False  # of its own
    # Stacked memory: such a board stays in P0 at its highest memory clock while it rests (read
    # from an H200), and can be split (MIG).
    hbm: bool = False
    sensors: Sensors = AMPERE


BOARDS = {  # by the name the driver gives them
    "NVIDIA GeForce RTX 3080 Ti": Board(
        cores=10240, memory_mib=12288, capability=(8, 6), pci_device=0x2208, geforce=True, fan=True
    ),
    "NVIDIA RTX A4000": Board(
        cores=6144, memory_mib=16376, capability=(8, 6), pci_device=0x24B0, fan=True
    ),
    "NVIDIA A40": Board(cores=10752, memory_mib=46068, capability=(8, 6), pci_device=0x2235),
    "NVIDIA A100-SXM4-40GB": Board(
        cores=6912, memory_mib=40960, capability=(8, 0), pci_device=0x20B0, hbm=True, sensors=GA100
    ),
    "NVIDIA H200": Board(
        cores=16896,
        memory_mib=143771,
        capability=(9, 0),
        pci_device=0x2335,
        hbm=True,
        sensors=HOPPER,
    ),
}


class BoardSensors:
    """The sensors of one board, fed with the truth as it happens."""

    def __init__(self, sensors: Sensors, gain: float) -> None:
        self.sensors = sensors
        self._gain = gain
        self._past: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=_POINTS)
        self.last_s = 0.0  # of these
        self._tick = 0
        self._counter_mj = 0
        self._restarted_mj = 0

    def note(self, at_s: float, energy_j: float, stretch_s: float) -> None:
        """Remember the true energy at the start of a stretch of constant power."""
        last_s = self.last_s
        if at_s - last_s >= NOTED_S or (stretch_s >= NOTED_S and at_s > last_s):
            self._past.append((at_s, energy_j))
            self.last_s = at_s

    def counter_mj(self, now_s: float, energy_j: float) -> int:
        """Return what the energy counter shows now."""
        tick = math.floor(now_s / self.sensors.counter_tick_s + _ROUNDING)
        if tick != self._tick:
            at_s = tick * self.sensors.counter_tick_s
            self._tick = tick
            self._counter_mj = int(self._gain * self._energy_j(at_s, now_s, energy_j) * 1e3)
        return self._counter_mj - self._restarted_mj

    def go_on_from(self, counter_mj: int, now_s: float, energy_j: float) -> None:
        """Let the energy counter go on from another value."""
        self._restarted_mj += self.counter_mj(now_s, energy_j) - counter_mj

    def shown_w(self, meter: Meter, now_s: float, energy_j: float, power_w: float) -> float:
        """Return what one of the driver's power readings shows now."""
        end_s = math.floor(now_s / meter.every_s + _ROUNDING) * meter.every_s
        start_s = max(0.0, end_s - meter.seen_s)
        if end_s <= start_s:  # nothing has been seen yet
            return self._gain * power_w
        end_j, start_j = (self._energy_j(at_s, now_s, energy_j) for at_s in (end_s, start_s))
        return self._gain * (end_j - start_j) / (end_s - start_s)

    def _energy_j(self, at_s: float, now_s: float, energy_j: float) -> float:
        later_s, later_j = now_s, energy_j
        for before_s, before_j in reversed(self._past):
            if before_s <= at_s:
                if later_s <= before_s:
                    return before_j
                share = (at_s - before_s) / (later_s - before_s)
                return before_j + share * (later_j - before_j)
            later_s, later_j = before_s, before_j
        return later_j
