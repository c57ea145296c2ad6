"""The boards of virtual GPUs, how units differ, what sensors show, and what kernels cost on them.

The truth is `VirtualGpu.energy_j` and `power_w`. What a driver shows of it is late, averaged,
sampled for part of the time, and off by the board's own gain. What units have that no equation has
was read of public sweeps: docs/evidence/calibration.md (`studies/locked.py`).

Costs are remembered: a run visits few points, over and over. Some GPUs let no kernel exceed a peak
of power, however low the mean: what would runs slower than the clock that is read. On an H200 with
a limit of 700 W eleven products thinned out by idling drew 963 to 986 W reading 1980 MHz, and took
as long as at about 1800.
"""

import dataclasses
import math
import zlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats
from underclock.errors import UsageError
from underclock.gpus.models import (
    AMPERE,
    GA100,
    HOPPER,
    GpuModel,
    MemoryLockEffect,
    Meter,
    Sensors,
    gpu_model,
    name_of_model,
)
from underclock.physics.cap import capped_core_mhz, settled_mhz
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.costs import WarmPower, busy_w, dram_mhz, duration_s, idle_w
from underclock.records import Kind

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
# ones: two sweeps each of A100s and of H200s against their mean ratio. Fine ones: an RTX 4000 Ada
# by an external meter, 40 kernels alike. An edge takes as long as a fine level (assumed).
_COARSE, _COARSE_MHZ, _FINE, _FINE_MHZ = 0.031, 300.0, 0.005, 45.0
# How units differ in a band's depth, and in its place in widths: so 37 of 38 rows lie within units.
_DEEP, _PLACED = 0.15, 0.2
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
        even, gain, leakage, offset_v = np.ones(len(model.core_mhz)), 1.0, 1.0, 0.0
        if number:
            random = np.random.default_rng(seed)
            gain += GAIN_WITHIN * float(random.uniform(-1.0, 1.0))
            leakage = math.exp(LEAKAGE_SPREAD * float(random.standard_normal()))
            offset_v = VOLTAGE_SPREAD_V * float(random.standard_normal())
        smooth = cls(gain=gain, leakage=leakage, offset_v=offset_v, power=even, time=even)
        if model.smooth:
            return smooth
        random, core_mhz = np.random.default_rng([*seed, 1]), np.array(model.core_mhz, dtype=float)
        log_power, log_time = band_costs(model.bands, core_mhz, random)
        for spread, reach_mhz in ((_COARSE, _COARSE_MHZ), (_FINE, _FINE_MHZ)):
            ends_mhz = core_mhz[0] + np.cumsum(random.exponential(reach_mhz, len(core_mhz)))
            edges_mhz = np.stack([ends_mhz, ends_mhz + _FINE_MHZ], axis=1)
            edges_mhz[:-1, 1] = np.minimum(edges_mhz[:-1, 1], ends_mhz[1:])
            levels = spread * random.standard_normal(len(core_mhz) + 1)
            between = np.stack([levels[:-1], levels[1:]], axis=1)
            log_power += np.interp(core_mhz, edges_mhz.ravel(), between.ravel())
        lost, power, time = _LOST * float(random.random()), np.exp(log_power), np.exp(log_time)
        return dataclasses.replace(smooth, lost=lost, power=power, time=time, kind=False)

    def constants(self, model: GpuConstants) -> GpuConstants:
        """Return the physics of this unit."""
        leak, floor_v = model.leak_w_per_v3 * self.leakage, model.floor_v + self.offset_v
        return dataclasses.replace(model, leak_w_per_v3=leak, floor_v=floor_v)


def band_costs(
    bands: Sequence[tuple[float, ...]], core_mhz: Floats, unit: np.random.Generator | None = None
) -> Floats:
    """Return logarithms of power and time that bands add, on one unit or by model. (2, clocks)."""
    added = np.zeros((2, len(core_mhz)))
    for centre_mhz, width_mhz, *costs in bands:
        deep, placed = (0.0, 0.0) if unit is None else unit.standard_normal(2)
        away = (core_mhz - centre_mhz) / width_mhz - _PLACED * placed
        added += np.outer(costs, (1.0 + _DEEP * deep) * np.exp(-0.5 * away**2))
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


_NO_EFFECT = MemoryLockEffect()
_REMEMBERED = 50_000  # points; about 10 MB
_WARM_REMEMBERED = 2000  # kernels at a memory clock; about 10 MB
_WARM_C = 100.0
_PEAK_C = 60.0  # at which powers are compared; leakage moves them by little
_SIDE = 8192  # of the matrices of the heater's product; bf16
_BYTES = 2
_FLOPS = 1e12
_LATE_S = 9e-7  # what a count of cycles takes besides, on an idle H200


@dataclass(frozen=True, slots=True, eq=False)  # one is itself: it serves as a key at every stride
class LaunchCost:
    """A kernel at given clocks; power is linear in temperature, through leakage."""

    kernel: KernelConstants | None  # kept alive, so that its identity can serve as a key
    duration_s: float  # of one launch, without noise; 0 for no kernel
    cold_w: float  # at 0 °C
    w_per_c: float
    dram_share: float = 0.0  # part of its time during which DRAM is busy, 0 to 1

    def power_w(self, temperature_c: float) -> float:
        """Return the board power in W."""
        return self.cold_w + self.w_per_c * temperature_c


def flops_for(gpu: str, lasts_s: Sequence[float]) -> tuple[float, ...]:
    """Return the work that a simulated GPU does in each of some times, at its highest clocks."""
    name = name_of_model(gpu)
    model = None if name is None else gpu_model(name)
    if model is None or model.throughput is None:
        raise UsageError(
            f"nothing says how long work takes on a simulated {gpu}",
            hint="serve a packaged one: underclock simulate h200 --socket PATH",
        )
    kernel = model.throughput.kernel(flops=_FLOPS, bytes_moved=0.0, tensor=False)
    highest = max(model.core_mhz), max(model.mem_mhz)
    took_s = float(duration_s(model.constants, kernel, *highest)) - kernel.fixed_s
    return tuple(_FLOPS * max(each_s - kernel.fixed_s, 0.0) / took_s for each_s in lasts_s)


class SimulatedCosts:
    """Durations and powers on one GPU."""

    def __init__(
        self,
        constants: GpuConstants,
        core_mhz: tuple[int, ...],
        peak_w: float | None = None,
        lock: MemoryLockEffect = _NO_EFFECT,
        unit: Unit | None = None,
    ) -> None:
        self.lock = lock
        self._constants = constants
        self._peak_w = math.inf if peak_w is None else peak_w
        self._bins_mhz = np.array(core_mhz, dtype=np.float64)
        even = np.ones_like(self._bins_mhz)
        self._power, self._time = (even, even) if unit is None else (unit.power, unit.time)
        self._known = defaultdict[tuple[float, int], dict[int, LaunchCost]](dict)
        self._warm: dict[tuple[KernelConstants, int], WarmPower] = {}
        self._count = 0  # of all that is remembered

    def at(self, kernel: KernelConstants | None, core_mhz: float, mem_mhz: int) -> LaunchCost:
        """Return what a kernel, or nothing, costs at given clocks."""
        cost = self._known[core_mhz, mem_mhz].get(id(kernel))
        if cost is None:
            if self._count >= _REMEMBERED:
                self._known.clear()
                self._count = 0
            cost = self._new(kernel, core_mhz, float(mem_mhz))
            self._known[core_mhz, mem_mhz][id(kernel)] = cost
            self._count += 1
        return cost

    def known(self, core_mhz: float, mem_mhz: int) -> Mapping[int, LaunchCost]:
        """Return what is remembered at given clocks, by the identity of the kernel."""
        return self._known[core_mhz, mem_mhz]

    def capped_mhz(
        self,
        kernel: KernelConstants,
        wanted_mhz: float,
        mem_mhz: int,
        temperature_c: float,
        limit_w: float,
    ) -> float:
        """Return the mean clock the power loop settles at when one kernel repeats.

        A lock's power and what the loop settles at differ alike, so the clock stays.
        """
        warm = self._warm.get((kernel, mem_mhz))
        if warm is None:
            all_mem_mhz = np.full_like(self._bins_mhz, mem_mhz)
            warm = WarmPower(self._constants, kernel, self._bins_mhz, all_mem_mhz)
            if len(self._warm) >= _WARM_REMEMBERED:
                self._warm.clear()
            self._warm[kernel, mem_mhz] = warm
        count = int(np.searchsorted(self._bins_mhz, wanted_mhz, side="right"))
        power_w = warm.first(count, temperature_c) * self._power[:count]
        return settled_mhz(self._bins_mhz[:count], power_w, limit_w)

    def _new(self, kernel: KernelConstants | None, core_mhz: float, mem_mhz: float) -> LaunchCost:
        gpu = self._constants
        dram_share = 0.0
        if kernel is None:
            taken_s = 0.0
            cold_w, warm_w = (float(idle_w(gpu, core_mhz, mem_mhz, c)) for c in (0.0, _WARM_C))
        else:
            if float(busy_w(gpu, kernel, core_mhz, mem_mhz, _PEAK_C)) > self._peak_w:
                bins_mhz = np.append(self._bins_mhz[self._bins_mhz < core_mhz], core_mhz)
                core_mhz = capped_core_mhz(gpu, kernel, bins_mhz, mem_mhz, _PEAK_C, self._peak_w)
            power, time = (
                np.interp(core_mhz, self._bins_mhz, of) for of in (self._power, self._time)
            )
            taken_s = float(duration_s(gpu, kernel, core_mhz, mem_mhz) * time)
            dram_s = kernel.dram_mcycles / float(dram_mhz(gpu, mem_mhz))
            dram_share = min(1.0, dram_s / taken_s)
            cold_w, warm_w = (
                float(busy_w(gpu, kernel, core_mhz, mem_mhz, c) * power) for c in (0.0, _WARM_C)
            )
        lock, w_per_c = self.lock, (warm_w - cold_w) / _WARM_C * self.lock.power
        return LaunchCost(kernel, taken_s * lock.time, cold_w * lock.power, w_per_c, dram_share)


def heater(model: GpuModel, side: int = _SIDE) -> KernelConstants:
    """Return the heater: a large matrix product, or the hottest that the model has."""
    if model.throughput is not None:
        return model.throughput.kernel(
            flops=2.0 * side**3, bytes_moved=3.0 * _BYTES * side**2, tensor=True
        )
    products = [own.constants for own in model.own if own.kernel.kind is Kind.GEMM]
    own = products or [own.constants for own in model.own]
    core_mhz, mem_mhz = np.float64(model.core_mhz[-1]), np.float64(model.mem_mhz[-1])
    return max(own, key=lambda one: float(busy_w(model.constants, one, core_mhz, mem_mhz, _PEAK_C)))


def idling(model: GpuModel, idle_s: float) -> KernelConstants:
    """Return what counts core cycles, so long at the highest clock; it draws what clocks draw."""
    return KernelConstants(core_mcycles=idle_s * model.core_mhz[-1], fixed_s=_LATE_S)
