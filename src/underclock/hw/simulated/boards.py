"""The boards of virtual GPUs, how units differ, and what their sensors show of the truth.

The truth is `VirtualGpu.energy_j` and `power_w`. What a driver shows of it is late, averaged,
sampled for part of the time, and off by the board's own gain. What units have that no equation has
was read of public sweeps: docs/evidence/calibration.md (`studies/locked.py`).
"""

import dataclasses
import math
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats
from underclock.gpus.models import AMPERE, GA100, HOPPER, GpuModel, Meter, Sensors
from underclock.physics.constants import GpuConstants

_ROUNDING = 1e-9  # of a tick
# The past is noted no more often than every millisecond or at each longer stretch, which makes
# at most two points a millisecond; the longest window is 2.2 s and ends up to 0.1 s ago.
NOTED_S = 1e-3
_POINTS = 4800
# What a reading of a second's mean follows, in s before: it shows half of a rise after 0.7 s and
# 90 % after 1.0, half of a fall after 0.5 and 90 % after 1.8, and loses no energy. So it was on an
# RTX 4000 Ada (four bursts; half of their rises after 0.9 s).
_SLOW_METER_S, _RISES, _FALLS = 1.0, (0.34, 1.02), (0.6, 2.2)
GAIN_WITHIN = 0.05  # power sensors of one model differ by up to ±5 % (Yang et al., SC'24)
LEAKAGE_SPREAD = 0.10  # standard deviation of the logarithm; assumed
VOLTAGE_SPREAD_V = 0.008  # standard deviation; assumed, about 1 % of the voltage
# Power over clock comes in levels: their spread, as a part, and how far they reach in MHz. Coarse
# ones: two sweeps each of A100s and of H200s against their mean ratio, or as wide as a model's mean
# error at locked clocks. Fine ones: an RTX 4000 Ada by an external meter, 40 kernels alike.
_COARSE, _COARSE_MHZ, _FINE, _FINE_MHZ = 0.031, 300.0, 0.005, 45.0
WANDER_SPREAD, _WANDER_S = 0.008, 300.0  # two sweeps of A100s against their mean ratio; assumed
_LOST = 0.063  # of the speed, at most, per part of a clock beyond what the limit allows: an A4000
_UNSETTLED = 19 / 46  # of locks, on L4s that talk to one another; of those, at first:
_SLOW, _SLOW_S = (1.15, 1.75), (1.0, 7.0)  # times as long, and for how many s


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One kind of board, from its data sheet: what no fit touches."""

    cores: int
    memory_mib: int  # that the driver reports
    capability: tuple[int, int]  # of CUDA
    pci_id: int
    geforce: bool = False
    fan: bool = False  # of its own
    # Stacked memory: such a board stays in P0 at its highest memory clock while it rests (read
    # from an H200), and can be split (MIG).
    hbm: bool = False
    sensors: Sensors = AMPERE


BOARDS = {  # by the name the driver gives them
    "NVIDIA GeForce RTX 3080 Ti": Board(
        cores=10240, memory_mib=12288, capability=(8, 6), pci_id=0x2208, geforce=True, fan=True
    ),
    "NVIDIA RTX A4000": Board(
        cores=6144, memory_mib=16376, capability=(8, 6), pci_id=0x24B0, fan=True
    ),
    "NVIDIA A40": Board(cores=10752, memory_mib=46068, capability=(8, 6), pci_id=0x2235),
    "NVIDIA A100-SXM4-40GB": Board(
        cores=6912, memory_mib=40960, capability=(8, 0), pci_id=0x20B0, hbm=True, sensors=GA100
    ),
    "NVIDIA H200": Board(
        cores=16896, memory_mib=143771, capability=(9, 0), pci_id=0x2335, hbm=True, sensors=HOPPER
    ),
}


class BoardSensors:
    """The sensors of one board, fed with the truth as it happens."""

    def __init__(self, sensors: Sensors, gain: float, *, kind: bool = True) -> None:
        self.sensors = sensors
        self._gain, self._kind = gain, kind
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
        until_s = math.floor(now_s / meter.every_s + _ROUNDING) * meter.every_s

        def mean_w(newest: float, oldest: float) -> float:
            """Mean over some of the past, in parts of what the meter sees."""
            end_s = max(0.0, until_s - newest * meter.seen_s)
            start_s = max(0.0, until_s - oldest * meter.seen_s)
            if end_s <= start_s:  # nothing has been seen yet
                return power_w
            end_j, start_j = (self._energy_j(at_s, now_s, energy_j) for at_s in (end_s, start_s))
            return (end_j - start_j) / (end_s - start_s)

        if self._kind or meter.seen_s < _SLOW_METER_S:
            return self._gain * mean_w(0.0, 1.0)
        if power_w >= mean_w(0.0, 1.0):
            return self._gain * mean_w(*_RISES)
        return self._gain * (mean_w(0.0, _FALLS[0]) + mean_w(0.0, _FALLS[1])) / 2.0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One board against its model."""

    gain: float = 1.0  # what its sensors show over what is true
    leakage: float = 1.0  # over the model's
    offset_v: float = 0.0  # of its core's voltage above the model's
    lost: float = 0.0  # speed per part of a clock asked for beyond what the power limit allows
    # What kernels draw and take over what equations say, at each core clock. Shape (clocks,).
    power: Floats
    time: Floats
    kind: bool = True  # as smooth as equations, and one run as another

    @classmethod
    def of(cls, model: GpuModel, number: int) -> Self:
        """Return the unit of a number; number 0 is made of what the model was fitted to."""
        seed = [zlib.crc32(model.name.encode()), number]
        smooth = cls(power=np.ones(len(model.core_mhz)), time=np.ones(len(model.core_mhz)))
        if number:
            random = np.random.default_rng(seed)
            smooth = dataclasses.replace(
                smooth,
                gain=1.0 + GAIN_WITHIN * float(random.uniform(-1.0, 1.0)),
                leakage=math.exp(LEAKAGE_SPREAD * float(random.standard_normal())),
                offset_v=VOLTAGE_SPREAD_V * float(random.standard_normal()),
            )
        if model.smooth or not number:
            return smooth
        random, core_mhz = np.random.default_rng([*seed, 1]), np.array(model.core_mhz, dtype=float)
        log_power, log_time = band_costs(model, core_mhz)
        locked = model.calibration.locked
        coarse = max(_COARSE, math.sqrt(math.pi / 2.0) * locked.power) if locked else _COARSE
        for spread, reach_mhz in ((coarse, _COARSE_MHZ), (_FINE, _FINE_MHZ)):
            ends_mhz = core_mhz[0] + np.cumsum(random.exponential(reach_mhz, len(core_mhz)))
            levels = spread * random.standard_normal(len(core_mhz) + 1)
            log_power += levels[np.searchsorted(ends_mhz, core_mhz)]
        return dataclasses.replace(
            smooth,
            lost=_LOST * float(random.random()),
            power=np.exp(log_power),
            time=np.exp(log_time),
            kind=False,
        )

    def constants(self, model: GpuConstants) -> GpuConstants:
        """Return the physics of this unit."""
        return dataclasses.replace(
            model,
            leak_w_per_v3=model.leak_w_per_v3 * self.leakage,
            floor_v=model.floor_v + self.offset_v,
        )


def band_costs(model: GpuModel, core_mhz: Floats) -> Floats:
    """Return logarithms of power and time that a model's bands add. Shape (2, clocks)."""
    added = np.zeros((2, len(core_mhz)))
    for centre_mhz, width_mhz, *costs in model.bands:
        added += np.outer(costs, np.exp(-0.5 * ((core_mhz - centre_mhz) / width_mhz) ** 2))
    return added


class Drift:
    """What a board does from run to run: its power wanders; runs that talk may begin slow."""

    def __init__(self, *, kind: bool, random: np.random.Generator) -> None:
        self.power = 1.0  # of the run that began last over the usual
        self.slow = 1.0  # times as long as usual that launches take now
        self.locked = False  # since the last run
        self._kind, self._random = kind, random
        self._wandered_s, self._off = -math.inf, 0.0

    def wander(self, now_s: float) -> float:
        """Return the power of a run that begins now, over the usual."""
        if not self._kind:
            left = math.exp((self._wandered_s - now_s) / _WANDER_S)
            away = math.sqrt(1.0 - left**2) * float(self._random.standard_normal())
            self._wandered_s, self._off = now_s, left * self._off + away
            self.power = math.exp(WANDER_SPREAD * self._off)
        return self.power

    def begin(self, *, talks: bool) -> float:
        """Begin a run that talks to other GPUs, or not; return for how many s it is slow."""
        unsettled = self.locked and talks and not self._kind
        self.locked = False
        if unsettled and float(self._random.random()) < _UNSETTLED:
            self.slow = float(self._random.uniform(*_SLOW))
            return float(self._random.uniform(*_SLOW_S))
        return 0.0
