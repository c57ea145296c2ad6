"""What a power loop that lags makes of a step whose power changes for long.

`cap.settle` takes the ceiling to follow the mean power at once. A real loop moves it by a bin of
the core clock at each tick of some 20 ms (measured on an H200). A step of which a long part draws
little, an optimizer of 0.1 s say, is left higher clocks by the first than by the second. So it is
run here as the loop would: launch by launch, tick by tick, until it repeats.

Shape letters: K kernels, C settings, n launches.
"""

import dataclasses
import math

import numpy as np

from underclock.arrays import Floats
from underclock.core.step.cap import LaunchCosts, PowerCap, settle
from underclock.physics.cap import WINDOW_S, Fading

_TICK_S, _BIN_MHZ = 0.02, 15.0
_SLACK = 0.01  # of the limit, that it leaves before it climbs (assumed)
_FAST, _MOST_BINS = 0.05, 4  # a bin more for each of this part above the limit (assumed)
_ROUNDS, _LEAST_S = 4, 2.0  # the first half is not counted
_FEWEST = 2  # clocks
_CALIBRATED = 3  # rounds, until the known step draws what was measured


def lag_of(
    known: tuple[PowerCap, LaunchCosts], mean_w: float, new: tuple[PowerCap, LaunchCosts]
) -> tuple[float, float]:
    """Return how much longer, and by how much more energy, a lag lets a step run than a known one.

    Both against what `settle` says of them.

    Args:
        mean_w: What the known one drew.
    """
    limit_w = known[0].limit_w
    if min(_round_s(*known), _round_s(*new)) < WINDOW_S:
        return 1.0, 1.0  # one ceiling holds for all of a short step
    if min(len(_ladder(*known)[0]), len(_ladder(*new)[0])) < _FEWEST:
        return 1.0, 1.0  # where clocks would climb to nobody knows
    for _ in range(_CALIBRATED):
        time_s, energy_j = _lagged(*known, limit_w)
        limit_w *= mean_w * time_s / energy_j
    before = np.divide(_lagged(*known, limit_w), _settled(*known))
    time, energy = np.divide(_lagged(*new, limit_w), _settled(*new)) / before
    return float(time), float(energy)


def _settled(cap: PowerCap, costs: LaunchCosts) -> tuple[float, float]:
    step = settle(cap, costs, np.full(len(cap.order), cap.boost))
    return float(step.time_s.sum()), float(step.energy_j.sum())


def _round_s(cap: PowerCap, costs: LaunchCosts) -> float:
    """Return how long a step takes that nothing holds."""
    return float(costs.time_s[cap.order, cap.boost].sum())


def _lagged(cap: PowerCap, costs: LaunchCosts, limit_w: float) -> tuple[float, float]:
    """Return the time in s and energy in J of a step at auto under a loop that lags."""
    core_mhz, time_s, power_w = _ladder(cap, costs)
    loop = _Loop(
        limit_w=limit_w,
        fading=cap.fading,
        first_w=limit_w,
        average_w=limit_w,
        place=float(len(core_mhz) - 1),
    )
    bins = _BIN_MHZ * (len(core_mhz) - 1) / float(core_mhz[-1] - core_mhz[0])
    rounds: list[tuple[float, float]] = []
    while len(rounds) < _ROUNDS or loop.now_s < _LEAST_S:
        begun_s, energy_j = loop.now_s, 0.0
        for k in cap.order.tolist():
            left = 1.0
            while left > 0.0:
                low = min(int(loop.place), len(core_mhz) - 2)
                share = loop.place - low
                takes_s = (1.0 - share) * time_s[k][low] + share * time_s[k][low + 1]
                drawn_w = (1.0 - share) * power_w[k][low] + share * power_w[k][low + 1]
                stride_s = min(left * takes_s, loop.to_tick_s)
                left = 0.0 if stride_s >= left * takes_s else left - stride_s / takes_s
                energy_j += stride_s * drawn_w
                loop.run(stride_s, drawn_w, bins, len(core_mhz) - 1)
        rounds.append((loop.now_s - begun_s, energy_j))
    time, energy = np.mean(rounds[len(rounds) // 2 :], axis=0).tolist()
    return time, energy


@dataclasses.dataclass(slots=True)
class _Loop:
    """Where the loop stands: its ceiling is a place on the ladder of clocks, from 0."""

    limit_w: float
    fading: Fading
    first_w: float
    average_w: float
    place: float
    now_s: float = 0.0
    to_tick_s: float = _TICK_S

    def run(self, stride_s: float, power_w: float, bins: float, top: int) -> None:
        """Let some power run until the next tick or less."""
        past = stride_s / self.fading.each_s
        fade, behind_w = math.exp(-past), self.first_w - power_w
        self.average_w = power_w + (self.average_w - power_w + behind_w * past) * fade
        self.first_w = power_w + behind_w * fade
        if self.fading.stages == 1:
            self.average_w = self.first_w
        self.now_s += stride_s
        self.to_tick_s -= stride_s
        if self.to_tick_s > 0.0:
            return
        self.to_tick_s = _TICK_S
        above = self.average_w / self.limit_w - 1.0
        if above > 0.0:
            self.place = max(0.0, self.place - bins * min(_MOST_BINS, 1 + int(above / _FAST)))
        elif above < -_SLACK:
            self.place = min(float(top), self.place + bins)


def _ladder(
    cap: PowerCap, costs: LaunchCosts
) -> tuple[Floats, list[list[float]], list[list[float]]]:
    """Return clocks of the memory clock that auto has, ascending, and time and power there."""
    memory = costs.settings[cap.boost].mem_mhz
    known = np.isfinite(costs.time_s).all(axis=0)
    core = np.array([c.core_mhz or math.nan for c in costs.settings])
    of = np.array([c.mem_mhz == memory for c in costs.settings]) & known & np.isfinite(core)
    places = np.flatnonzero(of)[np.argsort(core[of])]
    time_s, energy_j = costs.time_s[:, places], costs.energy_j[:, places]
    return core[places], time_s.tolist(), (energy_j / time_s).tolist()
