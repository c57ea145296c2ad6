"""How one board differs from its model: in what it is made of, and in what no equation has.

Constants were read of public sweeps: docs/evidence/calibration.md (`studies/locked.py`).
"""

import dataclasses
import math
import zlib
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.arrays import Floats
from underclock.gpus.models import GpuModel
from underclock.physics.constants import GpuConstants

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
