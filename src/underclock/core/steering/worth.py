"""How well energies are known from what is on file, and what another mix would tell.

A cheap stand-in for the fit: a power known at one clock tells of another the less the further away
it is. Errors of company that several kernels share count as each kernel's own.
"""

import math
from collections.abc import Sequence

from underclock.core.steering.company import WINDOW_NOISE
from underclock.core.steering.mixing import Bench, Seen
from underclock.core.steering.taking_off import Left
from underclock.records import Mix

_PER_LOG = 0.15  # by which a power is off, as a fraction, where clocks differ by a factor of e


class Known:
    """What is known of one kernel's power.

    Attributes:
        points: Clock and precision, of every measurement.
    """

    def __init__(self, left: Sequence[Left]) -> None:
        self.points = tuple(
            (one.core_mhz, WINDOW_NOISE**2 / one.power_windows)
            for one in left
            if one.power_windows > 0.0
        )

    def variance(self, core_mhz: float) -> float:
        """Return the variance of its power at a clock, as a fraction; ``inf`` where unseen."""
        precision = sum(_precision(point, core_mhz) for point in self.points)
        return 1.0 / precision if precision else math.inf

    def gain(self, core_mhz: float, at: tuple[float, float]) -> float:
        """Return by how much a measurement would lower the variance at a clock.

        Args:
            core_mhz: Where.
            at: Clock and variance of the measurement.
        """
        before = self.variance(core_mhz)
        after = 1.0 / (1.0 / before + _precision(at, core_mhz))
        return before - after


def _precision(point: tuple[float, float], core_mhz: float) -> float:
    apart = _PER_LOG * math.log(core_mhz / point[0])
    return 1.0 / (point[1] + apart**2)


def variance_in(mix: Mix, own: Seen, bench: Bench) -> float:
    """Return how surely a mix is expected to tell a kernel's power: a variance, as a fraction.

    Args:
        mix: What would run.
        own: What the kernel is expected to do in it.
        bench: Where.
    """
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
        spread2 += (for_s * draw.spread_w) ** 2
    return (spread2 + (WINDOW_NOISE * round_j) ** 2) / own_j**2
