"""What a steering campaign measures next, from what is on file alone.

The whole step at auto; what co-load draws by itself; the step with co-load, which says what one
clock for the step costs and the time of every kernel; the step at auto again; each kernel alone,
the longest first; and then, for energy, what lowers the error of the step's energy most per second.

That is the sum of its kernels' energies at the clock of the step, and each kernel's power is to be
known there and at both ends of what its mixes may reach. How well it is known comes from a cheap
stand-in for the fit: of each kernel by itself, log power is a line in log clock, of which the slope
is known in advance within a half. Errors that kernels have in common count as each kernel's own.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from underclock.core.steering.coload import WINDOW_NOISE
from underclock.core.steering.mixing import (
    HEATERS,
    IDLING,
    METERED,
    SURE,
    DrawAtClock,
    MixConditions,
    are_alike,
    mix_at,
    spread_out,
)
from underclock.core.steering.power_peak import OFF_PEAK, separated
from underclock.core.steering.subtract import HEATER
from underclock.core.step.cost_table import waited_counts, waited_shares
from underclock.core.step.power_cap import coload_moves_clock, is_power_capped
from underclock.core.step.whole_step import STEADY_C, WHOLE_STEPS
from underclock.physics.constants import GpuConstants
from underclock.records import ALONE, Mix, SampleSet, Window

_METERED_STEPS = 2
# Of the way from the heater's clock to boost.
_LADDER = (1.0, 0.5, 0.25, 0.75, 0.1, 0.6, 0.35, 0.9)
_FIRST_RUNGS = 3  # enough to say which co-load a step needs, and what it draws
_STEPS = (1.0, 0.5, 0.1, 0.3, 0.75)  # of the same way, for the step; low clocks take longest
_REPEATS = 2  # of a rung where the heater is subtracted, and of a kernel's mix
_TRIES = 2  # more than there are rungs, each corrected by what the last one read
_NEAR = 0.34  # of the distance between rungs: near enough
_CLOSE_MHZ = 30.0
_LONGEST_GRAPH = 4000  # launches
_MIXES = 8  # of a kernel, besides alone
_PLACES = 9  # at which a kernel's power may be measured
_LEAST_GAIN = 0.01  # of a kernel's variance, which is worth a measurement
_SLOPE = 0.5  # of log power in log clock: between 1, below the knee of voltage, and 3
_NEVER = 1e-9  # precision of the level of a kernel that was never seen


class Look(NamedTuple):
    """A kernel and its mix, at auto; no kernel for the whole step, or for co-load by itself."""

    kernel: str
    mix: Mix


def first_measurements(kernels: int, *, whole: bool) -> int:
    """Return about how many measurements come before energy alone decides what is next."""
    steps = WHOLE_STEPS + _METERED_STEPS - 1 + _REPEATS * len(_STEPS) if whole else 0
    return fewest_measurements(whole=whole) + kernels + steps + len(_LADDER)


def fewest_measurements(*, whole: bool) -> int:
    """Return how many measurements come before the first kernel."""
    return int(whole) + len((IDLING, HEATERS))


@dataclass(frozen=True, slots=True)
class PowerLine:
    """What is known of one kernel's power, as the precision of a line in log clock over 1 GHz."""

    level: float = _NEVER
    cross: float = 0.0
    slope: float = _SLOPE**-2.0  # precision of the slope
    alone: float = _NEVER  # precision of log power, were the slope known

    def after(self, core_mhz: float, variance: float) -> "PowerLine":
        """Return what will be known after one more measurement."""
        x, precision = math.log(core_mhz / 1000.0), 1.0 / variance
        return PowerLine(
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


def variance_in(mix: Mix, own: DrawAtClock, conditions: MixConditions) -> float:
    """Return how surely a mix is expected to tell a kernel's power: a variance of its logarithm."""
    own_j = mix.launches * own.time_s * own.power_w
    round_j, spread2 = own_j, 0.0
    coload = conditions.coload
    parts = []
    if mix.hot:
        hot_s = conditions.expected(conditions.heater, own.core_mhz).time_s
        parts.append((mix.hot * hot_s, coload.heater_w(hot_s, coload.own_mem_mhz)))
    if mix.idle_s:
        idle = coload.idle_w(own.core_mhz, coload.own_mem_mhz, conditions.temperature_c)
        parts.append((mix.idle_s, idle))
    for for_s, power in parts:
        if power is None:
            return math.inf
        round_j += for_s * power.mean_w
        spread2 += (for_s * power.total_w) ** 2
    return (spread2 + (WINDOW_NOISE * round_j) ** 2) / own_j**2


@dataclass(frozen=True, slots=True)
class SteeringAgenda:
    """Where a campaign stands."""

    samples: SampleSet
    conditions: MixConditions  # where mixes run
    seen: dict[str, list[DrawAtClock]]  # what each kernel drew and took, alone or in mixes
    known: dict[str, PowerLine]  # what that says of its power
    heater: bool  # whether the heater can run; without it nothing runs below its own clock

    @classmethod
    def of(
        cls, samples: SampleSet, shape: GpuConstants, *, heater: bool = True
    ) -> "SteeringAgenda":
        """Look at what is on file.

        Args:
            shape: How idle power is assumed to follow clock and temperature.
        """
        # What was measured at held clocks, in the same file, steers nothing.
        windows = tuple(window for window in samples.windows if window.asked.is_auto)
        samples = msgspec.structs.replace(samples, windows=windows)
        mixed = samples.mixed
        coload, points, peak_w, _ = separated(
            mixed, samples.kernels, shape, shape.mem_points_mhz[-1], samples.gpu.power_limit_w
        )
        seen: dict[str, list[DrawAtClock]] = {kernel.name: [] for kernel in samples.kernels}
        known = dict.fromkeys(seen, PowerLine())
        for point in points:
            name, variance = point.kernel, point.variance
            if name != HEATER and point.power_windows > 0.0:
                known[name] = known[name].after(point.core_mhz, variance)
            if name != HEATER and point.power_w:
                spread = math.sqrt(variance)
                seen[name].append(DrawAtClock(point.core_mhz, point.power_w, point.time_s, spread))
        heaters = []
        for window in mixed:
            power = coload.of_heater(window)
            if heater and power is not None and power.mean_w > power.total_w:
                heaters.append(DrawAtClock(window.at_mhz, power.mean_w, window.hot_s or 0.0))
        below = [one for one in heaters if one.power_w < OFF_PEAK * peak_w]
        limit_w = samples.gpu.power_limit_w or math.inf
        # The driver names the cap for windows that it held for a part of them, too.
        capped = [w.power_w for w in mixed if is_power_capped([w], limit_w)[0]]
        warm = [
            w.temperature_c for w in mixed if not w.mix.launches and w.temperature_c is not None
        ]
        conditions = MixConditions(
            coload=coload,
            heater=tuple(below or heaters),
            limit_w=float(np.median(capped)) if capped else math.inf,
            boost_mhz=max((window.at_mhz for window in mixed), default=0.0),
            temperature_c=sum(warm) / len(warm) if warm else STEADY_C,
            peak_w=peak_w,
        )
        return cls(samples, conditions, seen, known, heater)

    def next(self, takes_s: Callable[[float], float], goal: float) -> Look | None:
        """Return what to measure next; ``None`` where nothing would tell any more.

        Args:
            takes_s: How long it takes to measure rounds of a given length.
            goal: Error of the step's energy, as a fraction, at which it is sure enough.
        """
        whole = bool(self.samples.order)
        done = Counter((window.kernel, window.mix) for window in self.samples.mixed)
        for mix in [ALONE] * whole + [IDLING] + [HEATERS] * self.heater:
            if not done["", mix]:
                return Look("", mix)
        again: list[Look] = []
        if whole:
            metered = self._spread(METERED)
            again += [Look("", ALONE)] * (WHOLE_STEPS - done["", ALONE])
            again += [Look("", metered)] * (_METERED_STEPS - done["", metered])
        offers = (
            self._ladder(_LADDER[:_FIRST_RUNGS]),
            self._steps(1),
            again,
            self._steps(_REPEATS),
            [Look(name, ALONE) for name in self._longest_first() if not done[name, ALONE]],
            self._ladder(_LADDER),
        )
        offered = next(itertools.chain(*offers), None)
        return self._most_telling(takes_s) if offered is None and self.error > goal else offered

    def _ladder(self, shares: Sequence[float]) -> Iterator[Look]:
        """Offer the heater with idling, from its own clock to boost."""
        if not self.heater:
            return
        of_heater = [w for w in self.samples.mixed if not w.mix.launches and w.mix.hot]
        yield from self._climb(shares, of_heater, 1, 1)
        # Once more where it is subtracted: its error is one of all kernels.
        conditions = self.conditions
        lowest = min(one.core_mhz for one in conditions.heater)
        way = conditions.boost_mhz - lowest
        subtracted = [
            share
            for share in shares
            if conditions.expected(conditions.heater, lowest + share * way).power_w
            < conditions.held_w
        ]
        yield from self._climb(subtracted, of_heater, 1, _REPEATS)

    def _steps(self, times: int) -> Iterator[Look]:
        """Offer the whole step with co-load so often a rung: every kernel is timed at once."""
        if self.samples.order:
            steps = [window for window in self.samples.mixed if window.is_step]
            most = max(1, _LONGEST_GRAPH // len(self.samples.order))
            yield from self._climb(_STEPS, steps, most, times)

    def _climb(
        self, shares: Sequence[float], taken: Sequence[Window], most_launches: int, times: int
    ) -> Iterator[Look]:
        """Offer mixes at rungs where nothing ran yet; a rung that was missed is tried again."""
        tried = sum(coload_moves_clock(window.mix) for window in taken)
        if not shares or tried >= _TRIES + times * len(shares):
            return
        conditions = self.conditions
        lowest = min(
            [one.core_mhz for one in conditions.heater] + [window.at_mhz for window in taken]
        )
        rungs = [lowest + share * (conditions.boost_mhz - lowest) for share in shares]
        apart_mhz = max((max(rungs) - min(rungs)) / len(rungs), _CLOSE_MHZ)
        for rung in rungs:
            near = [window for window in taken if abs(window.at_mhz - rung) <= _NEAR * apart_mhz]
            if len(near) >= times:
                continue
            seen = self._seen_step([window for window in taken if window.mix.launches])
            mix = mix_at(rung, seen, conditions, most_launches=most_launches)
            if mix is not None and mix.launches:
                mix = self._spread(mix)
            if mix is not None and sum(are_alike(mix, window.mix) for window in taken) < times:
                yield Look("", mix)

    def _spread(self, mix: Mix) -> Mix:
        """Return a mix of the whole step with its co-load where a step of this length needs it."""
        # By its first window, always: so what follows from it follows again from the file.
        waited_s = waited_shares(self.samples.kernels) * self._at_auto[0].kernel_s
        of_step = [float(waited_s[k]) for k in self.samples.order]
        heater_s = next((w.hot_s for w in self.samples.mixed if w.hot_s), 0.0)
        return spread_out(mix, of_step * mix.launches, heater_s)

    @property
    def _at_auto(self) -> list[Window]:
        """The step run whole and by itself."""
        return [w for w in self.samples.mixed if not w.kernel and w.mix == ALONE]

    def _seen_step(self, steps: Sequence[Window]) -> list[DrawAtClock]:
        """Return what the step drew and took, without its co-load."""
        seen = []
        counts = waited_counts(self.samples.kernels)
        for window in steps:
            step_s = float(counts @ window.kernel_s)
            power = self.conditions.coload.subtract(window, step_s)
            if power is not None and power.mean_w > power.total_w:
                spread = power.total_w / power.mean_w
                seen.append(DrawAtClock(window.at_mhz, power.mean_w, step_s, spread))
        # At boost a peak of power may hold launches back: what it draws there misleads below.
        below = [one for one in seen if one.core_mhz < self.conditions.boost_mhz - _CLOSE_MHZ]
        return below if any(one.spread <= SURE for one in below) else seen

    def _longest_first(self) -> list[str]:
        """Return kernels, by their part of the step: a time limit may end the campaign anywhere.

        Where the step never ran whole that is not known, and they come in order.
        """
        kernels = self.samples.kernels
        names = [kernel.name for kernel in kernels]
        if self.samples.order:
            each_s = zip(kernels, self._at_auto[0].kernel_s, strict=True)
            taken_s = {kernel.name: kernel.count * once_s for kernel, once_s in each_s}
            names.sort(key=lambda name: -taken_s[name])
        return names

    @property
    def error(self) -> float:
        """Error of the step's energy as a sum of kernels, as a fraction; ``inf`` if one is unseen.

        Noise of measurements averages out over kernels; how power goes with clock does not.
        """
        if not all(self.seen.values()):
            return math.inf
        total_j, shared_j, noise2 = 0.0, 0.0, 0.0
        for kernel in self.samples.kernels:
            known, targets = self.known[kernel.name], self._targets(kernel.name)
            own = self.conditions.expected(self.seen[kernel.name], self._step_mhz())
            energy_j = kernel.waited_count * own.power_w * own.time_s
            mean2 = sum(known.variance(mhz) for mhz in targets) / len(targets)
            total_j += energy_j
            noise2 += energy_j**2 * known.noise
            shared_j += energy_j * math.sqrt(max(mean2 - known.noise, 0.0))
        return math.hypot(math.sqrt(noise2), shared_j) / total_j

    def _most_telling(self, takes_s: Callable[[float], float]) -> Look | None:
        """Return the mix that lowers the variance of the step's energy most per second, if any."""
        best: tuple[float, Look] | None = None
        for kernel in self.samples.kernels:
            seen, known = self.seen[kernel.name], self.known[kernel.name]
            mixes = [w.mix for w in self.samples.mixed if w.kernel == kernel.name]
            if not seen or len(mixes) > _MIXES:
                continue
            targets = self._targets(kernel.name)
            # Where power is to be known no mix may lead; what it is nearby shows it too.
            for core_mhz in self._places(kernel.name):
                mix = mix_at(core_mhz, seen, self.conditions)
                if mix is None or sum(are_alike(mix, other) for other in mixes) >= _REPEATS:
                    continue
                own = self.conditions.expected(seen, core_mhz)
                then = known.after(core_mhz, variance_in(mix, own, self.conditions))
                before, after = (sum(of.variance(mhz) for mhz in targets) for of in (known, then))
                energy_j = kernel.waited_count * own.power_w * own.time_s
                round_s = mix.launches * own.time_s + mix.idle_s
                rate = energy_j**2 * (before - after) / takes_s(round_s)
                if after < (1.0 - _LEAST_GAIN) * before and (best is None or rate > best[0]):
                    best = rate, Look(kernel.name, mix)
        return None if best is None else best[1]

    def _step_mhz(self) -> float:
        """Return the mean core clock of the step at auto, or of its kernels where it never ran."""
        some = self._at_auto or [w for w in self.samples.mixed if w.kernel_s]
        return sum(window.at_mhz for window in some) / len(some)

    def _targets(self, name: str) -> list[float]:
        """Return the clocks at which a kernel's power is to be known: the step's, and both ends."""
        low, *_, high = self._places(name)
        wanted = sorted([low, min(self._step_mhz(), high), high])
        return [b for a, b in itertools.pairwise([0.0, *wanted]) if b - a > _CLOSE_MHZ]

    def _places(self, name: str) -> list[float]:
        """Return clocks from the lowest to the highest at which a kernel may be measured."""
        seen, conditions = self.seen[name], self.conditions
        low = min(one.core_mhz for one in (*conditions.heater, *seen))
        even = np.linspace(low, conditions.boost_mhz, _PLACES).tolist()
        # More is held by what no clock shows.
        return [
            mhz
            for mhz in even
            if mhz == low or conditions.expected(seen, mhz).power_w < conditions.held_w
        ]
