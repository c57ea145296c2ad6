"""How well powers are known from what is on file, and what another mix would tell.

A cheap stand-in for the fit: of each kernel by itself, log power is a line in log clock, of which
the slope is known in advance within a half. Errors of company that several kernels share count as
each kernel's own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from underclock.core.steering.company import WINDOW_NOISE
from underclock.core.steering.mixing import Bench, DrawAtClock
from underclock.core.steering.taking_off import Left
from underclock.records import Mix

_SLOPE = 0.5  # of log power in log clock: between 1, below the knee of voltage, and 3
_NEVER = 1e-9  # precision of the level of a kernel that nobody saw


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one kernel's power, as the precision of a line in log clock over 1 GHz.

    Attributes:
        slope: Precision of the slope.
        alone: Precision of log power, were the slope known.
    """

    level: float = _NEVER
    cross: float = 0.0
    slope: float = _SLOPE**-2.0
    alone: float = _NEVER

    @classmethod
    def of(cls, left: Sequence[Left]) -> "Known":
        """Learn from measurements."""
        known = cls()
        for one in left:
            if one.power_windows > 0.0:
                known = known.after(one.core_mhz, one.variance)
        return known

    def after(self, core_mhz: float, variance: float) -> "Known":
        """Return what will be known after one more measurement."""
        x, precision = math.log(core_mhz / 1000.0), 1.0 / variance
        return Known(
            self.level + precision,
            self.cross + precision * x,
            self.slope + precision * x**2,
            self.alone + precision,
        )

    def variance(self, core_mhz: float) -> float:
        """Return the variance of log power at a clock."""
        x = math.log(core_mhz / 1000.0)
        spread2 = self.slope - 2.0 * x * self.cross + x**2 * self.level
        return spread2 / (self.level * self.slope - self.cross**2)

    @property
    def noise(self) -> float:
        """The part of it that is noise of measurements: no other kernel shares it."""
        return 1.0 / self.alone


def variance_in(mix: Mix, own: DrawAtClock, bench: Bench) -> float:
    """Return how surely a mix is expected to tell a kernel's power: a variance of its logarithm."""
    own_j = mix.launches * own.time_s * own.power_w
    round_j, spread2 = own_j, 0.0
    company = bench.company
    mem_mhz = company.fastest_mem_mhz
    parts = []
    if mix.hot:
        hot_s = mix.hot * bench.expected(bench.hot, own.core_mhz).time_s
        parts.append((hot_s, company.hot_w(own.core_mhz, mem_mhz)))
    if mix.idle_s:
        idle = company.idle_w(own.core_mhz, mem_mhz, bench.temperature_c)
        parts.append((mix.idle_s, idle))
    for for_s, draw in parts:
        if draw is None:
            return math.inf
        round_j += for_s * draw.mean_w
        spread2 += (for_s * draw.total_w) ** 2
    return (spread2 + (WINDOW_NOISE * round_j) ** 2) / own_j**2
