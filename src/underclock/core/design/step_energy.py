"""How surely the energy of a step is known, and which mix of a kernel would tell most of it.

The step's energy is taken as a sum over its kernels at the clock of the step. Each kernel's power
is to be known there and at both ends of what its mixes may reach.

How well powers are known is told by a cheap stand-in for the fit: of each kernel by itself, log
power is a line in log clock, of which the slope is known in advance within a half. Errors of
company that several kernels share count as each kernel's own.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.core.design.wanted import Wanted, are_alike
from underclock.core.steering.company import WINDOW_NOISE
from underclock.core.steering.mixing import DrawAtClock, MixConditions, mix_at
from underclock.core.steering.taking_off import Left
from underclock.records import ALONE, Mix, SampleSet

_MIXES = 8  # of a kernel, beside alone
_PLACES = 9  # at which a kernel's power may be measured
_CLOSE_MHZ = 30.0
_REPEATS = 2  # of a kernel's mix
_LEAST_GAIN = 0.01  # of a kernel's variance, for which nobody measures


@dataclass(frozen=True, slots=True)
class StepEnergy:
    """What is known of a step's energy as a sum of kernels."""

    samples: SampleSet
    bench: MixConditions
    left: dict[str, list[Left]]

    def error(self) -> float:
        """Return the error of the step's energy as a sum of kernels, as a fraction.

        Noise of measurements averages out over kernels; how power goes with clock does not.
        """
        total_j, shared_j, noise2 = 0.0, 0.0, 0.0
        for kernel in self.samples.kernels:
            known = Known.of(self.left[kernel.name])
            targets = self._targets(kernel.name)
            own = self.bench.expected(self._seen(kernel.name), self._step_mhz())
            energy_j = kernel.waited_count * own.power_w * own.time_s
            mean2 = sum(known.variance(mhz) for mhz in targets) / len(targets)
            total_j += energy_j
            noise2 += energy_j**2 * known.noise
            shared_j += energy_j * math.sqrt(max(mean2 - known.noise, 0.0))
        return math.hypot(math.sqrt(noise2), shared_j) / total_j

    def most_telling(self, takes_s: Callable[[float], float]) -> Wanted | None:
        """Return the mix that lowers the variance of the step's energy most per second.

        Args:
            takes_s: How long it takes to measure rounds of a given length.

        Returns:
            ``None`` where no mix of a kernel would tell enough.
        """
        best: tuple[float, Wanted] | None = None
        for kernel in self.samples.kernels:
            seen = self._seen(kernel.name)
            mixes = [s.mix for s in self.samples.mixed if s.kernel == kernel.name]
            if not seen or len(mixes) > _MIXES:
                continue
            known = Known.of(self.left[kernel.name])
            targets = self._targets(kernel.name)
            # Where power is to be known no mix may lead; what it is nearby tells of it too.
            for core_mhz in self._places(kernel.name):
                mix = mix_at(core_mhz, seen, self.bench)
                if mix is None or sum(are_alike(mix, other) for other in mixes) >= _REPEATS:
                    continue
                own = self.bench.expected(seen, core_mhz)
                then = known.after(core_mhz, variance_in(mix, own, self.bench))
                before, after = (sum(of.variance(mhz) for mhz in targets) for of in (known, then))
                energy_j = kernel.waited_count * own.power_w * own.time_s
                round_s = mix.launches * own.time_s + mix.idle_s
                rate = energy_j**2 * (before - after) / takes_s(round_s)
                if after < (1.0 - _LEAST_GAIN) * before and (best is None or rate > best[0]):
                    best = rate, Wanted(kernel.name, mix)
        return None if best is None else best[1]

    def _step_mhz(self) -> float:
        """Return the mean core clock of the step at auto, or of its kernels where it never ran."""
        whole = [s for s in self.samples.mixed if not s.kernel and s.mix == ALONE]
        some = whole or [s for s in self.samples.mixed if s.kernel_s]
        return sum(s.at_mhz for s in some) / len(some)

    def _targets(self, name: str) -> list[float]:
        """Return the clocks at which a kernel's power is to be known: the step's, and both ends."""
        low, *_, high = self._places(name)
        wanted = sorted([low, min(self._step_mhz(), high), high])
        return [b for a, b in itertools.pairwise([0.0, *wanted]) if b - a > _CLOSE_MHZ]

    def _places(self, name: str) -> list[float]:
        """Return clocks from the lowest to the highest at which a kernel may be measured."""
        seen = self._seen(name)
        low = min(one.core_mhz for one in (*self.bench.hot, *seen))
        even = np.linspace(low, self.bench.boost_mhz, _PLACES).tolist()
        # More is held by what no clock shows.
        return [
            mhz
            for mhz in even
            if mhz == low or self.bench.expected(seen, mhz).power_w < self.bench.held_w
        ]

    def _seen(self, name: str) -> list[DrawAtClock]:
        return [
            DrawAtClock(o.core_mhz, o.power_w, o.time_s, math.sqrt(o.variance))
            for o in self.left[name]
            if o.power_w
        ]


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


def variance_in(mix: Mix, own: DrawAtClock, bench: MixConditions) -> float:
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
