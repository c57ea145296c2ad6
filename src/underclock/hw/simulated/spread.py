"""How one GPU differs from the next of the same model."""

import dataclasses
import math
import zlib
from dataclasses import dataclass
from typing import Self

import numpy as np

from underclock.physics.constants import GpuConstants

GAIN_WITHIN = 0.05  # power sensors of one model differ by up to ±5 % (Yang et al., SC'24)
LEAKAGE_SPREAD = 0.10  # standard deviation of the logarithm; assumed
VOLTAGE_SPREAD_V = 0.008  # standard deviation; assumed, about 1 % of the voltage


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitVariation:
    """One GPU against its model.

    Attributes:
        gain: What its sensors show over what is true.
        leakage: Its leakage over the model's.
        offset_v: Its core voltage above the model's.
    """

    gain: float = 1.0
    leakage: float = 1.0
    offset_v: float = 0.0

    @classmethod
    def of(cls, model: str, number: int) -> Self:
        """Return the unit of a number; number 0 is the one the model was fitted to."""
        if number == 0:
            return cls()
        random = np.random.default_rng([zlib.crc32(model.encode()), number])
        return cls(
            gain=1.0 + GAIN_WITHIN * float(random.uniform(-1.0, 1.0)),
            leakage=math.exp(LEAKAGE_SPREAD * float(random.standard_normal())),
            offset_v=VOLTAGE_SPREAD_V * float(random.standard_normal()),
        )

    def constants(self, model: GpuConstants) -> GpuConstants:
        """Return the physics of this unit."""
        return dataclasses.replace(
            model,
            leak_w_per_v3=model.leak_w_per_v3 * self.leakage,
            floor_v=model.floor_v + self.offset_v,
        )
