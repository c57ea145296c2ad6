"""What the sensors of each architecture show of the truth, and how long asking them blocks."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a call blocks: points of a cumulative distribution, straight lines between.

    Attributes:
        shares: Of calls, ascending from 0 to 1.
        points_s: That share of the calls takes no longer. Same length.
    """

    shares: tuple[float, ...]
    points_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Reject what is no distribution."""
        if len(self.shares) != len(self.points_s) or self.shares[0] != 0 or self.shares[-1] != 1:
            raise ValueError("a latency needs one point for each share from 0 to 1")
        if list(self.shares) != sorted(self.shares) or list(self.points_s) != sorted(self.points_s):
            raise ValueError("the shares and points of a latency must not fall")

    def draws(self, random: np.random.Generator) -> Iterator[float]:
        """Yield one duration in s after another."""
        while True:
            yield from np.interp(random.random(256), self.shares, self.points_s).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A power reading.

    Attributes:
        every_s: It is updated this often.
        seen_s: And is then the mean over this long before.
    """

    every_s: float
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensors:
    """The sensors of one architecture.

    Attributes:
        counter_tick_s: The energy counter climbs this often.
        usage: What ``nvmlDeviceGetPowerUsage`` shows.
        instant: What field 186, ``NVML_FI_DEV_POWER_INSTANT``, shows.
        energy_call: How long reading the energy counter blocks.
    """

    counter_tick_s: float
    usage: Meter
    instant: Meter
    energy_call: Latency


# Measured on an H200: median 3 ms, 99 % within 15 ms. The ends are assumed.
_ENERGY_CALL = Latency(shares=(0.0, 0.5, 0.9, 0.99, 1.0), points_s=(2e-3, 3e-3, 5e-3, 15e-3, 20e-3))
_WHOLE = Meter(every_s=0.1, seen_s=0.1)
_QUARTER = Meter(every_s=0.1, seen_s=0.025)
_SECOND = Meter(every_s=0.1, seen_s=1.0)

# Source: Yang et al., SC'24; Volta's power reading is assumed.
VOLTA = Sensors(
    counter_tick_s=0.01,
    usage=Meter(every_s=0.02, seen_s=0.01),
    instant=Meter(every_s=0.02, seen_s=0.01),
    energy_call=_ENERGY_CALL,
)
AMPERE = Sensors(counter_tick_s=0.1, usage=_SECOND, instant=_WHOLE, energy_call=_ENERGY_CALL)
GA100 = Sensors(counter_tick_s=0.1, usage=_QUARTER, instant=_QUARTER, energy_call=_ENERGY_CALL)
HOPPER = Sensors(counter_tick_s=0.1, usage=_SECOND, instant=_QUARTER, energy_call=_ENERGY_CALL)
