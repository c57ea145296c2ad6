"""What a steering campaign measures next, from what is on file alone.

The whole step at auto; what company draws by itself; the step in company, which says what one
clock for the step costs and the time of every kernel; the step at auto again; each kernel alone,
the longest first; and then, for energy, whatever tells most per second.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from underclock.core.design.step_energy import StepEnergy
from underclock.core.design.wanted import (
    COMPANIONS,
    IDLING,
    METERED,
    WHOLE_STEPS,
    Wanted,
    are_alike,
)
from underclock.core.steering.company import USUAL_C
from underclock.core.steering.mixing import SURE, DrawAtClock, MixConditions, mix_at, spread_out
from underclock.core.steering.power_peak import OFF_PEAK, Apart, taken_apart
from underclock.core.steering.reach import at_cap
from underclock.core.steering.taking_off import COMPANION, Left
from underclock.core.step.cap import has_company
from underclock.core.step.table import waited_counts, waited_shares
from underclock.physics.constants import GpuConstants
from underclock.records import ALONE, Mix, SampleSet, Window

_METERED_STEPS = 2
# Of the way from the companion's clock to boost.
_LADDER = (1.0, 0.5, 0.25, 0.75, 0.1, 0.6, 0.35, 0.9)
_MOST = 0.95  # of the step's time
_FIRST_RUNGS = 2  # enough to say which company a step needs
_STEPS = (1.0, 0.5, 0.1, 0.3, 0.75)  # of the same way, for the step; low clocks take longest
_REPEATS = 2  # of a rung where the companion is taken off
_TRIES = 2  # more than there are rungs, each corrected by what the last one read
_NEAR = 0.34  # of the distance between rungs: near enough
_CLOSE_MHZ = 30.0
_LONGEST_GRAPH = 4000  # launches


def first_measurements(kernels: int, *, whole: bool) -> int:
    """Return about how many measurements come before energy alone decides what is next."""
    steps = WHOLE_STEPS + _METERED_STEPS - 1 + _REPEATS * len(_STEPS) if whole else 0
    return fewest_measurements(whole=whole) + kernels + steps + len(_LADDER)


def fewest_measurements(*, whole: bool) -> int:
    """Return how many measurements come before the first kernel."""
    of_step = 1 if whole else 0
    return of_step + len((IDLING, COMPANIONS))


@dataclass(frozen=True, slots=True)
class SteeringAgenda:
    """Where a campaign stands.

    Attributes:
        bench: Where mixes run; ``None`` while company is not measured.
        companion: Whether the hot companion can run; without it nothing runs below its own clock.
    """

    samples: SampleSet
    bench: MixConditions | None
    left: dict[str, list[Left]]
    companion: bool
    error: float

    @classmethod
    def of(
        cls, samples: SampleSet, shape: GpuConstants, *, companion: bool = True
    ) -> "SteeringAgenda":
        """Look at what is on file.

        Args:
            shape: How idle power is assumed to follow clock and temperature.
        """
        # What was measured at held clocks, in the same file, steers nothing.
        windows = tuple(window for window in samples.windows if window.asked.is_auto)
        samples = msgspec.structs.replace(samples, windows=windows)
        mixed = samples.mixed
        apart = taken_apart(
            mixed, samples.kernels, shape, shape.mem_points_mhz[-1], samples.gpu.power_limit_w
        )
        left: dict[str, list[Left]] = {kernel.name: [] for kernel in samples.kernels}
        for one in apart.left:
            if one.kernel != COMPANION:
                left[one.kernel].append(one)
        bench = None
        if apart.company.idle and (not companion or any(s.mix == COMPANIONS for s in mixed)):
            bench = _bench(samples, apart)
            if not companion:
                bench = dataclasses.replace(bench, hot=())
        agenda = cls(samples=samples, bench=bench, left=left, companion=companion, error=math.inf)
        if bench is None or not all(any(o.power_w for o in ones) for ones in left.values()):
            return agenda
        return dataclasses.replace(agenda, error=StepEnergy(samples, bench, left).error())

    def next(self, takes_s: Callable[[float], float], goal: float) -> Wanted | None:
        """Return what to measure next; ``None`` where nothing would tell any more.

        Args:
            takes_s: How long it takes to measure rounds of a given length.
            goal: Error of the step's energy, as a fraction, at which it is sure enough.
        """
        mixed = self.samples.mixed
        done = Counter((sample.kernel, sample.mix) for sample in mixed)
        first: list[Wanted] = []
        if self.samples.order:
            first += [Wanted("", ALONE)]
        first += [Wanted("", IDLING)] + [Wanted("", COMPANIONS)] * self.companion
        for n, wanted in enumerate(first):
            if done[wanted.kernel, wanted.mix] <= first[:n].count(wanted):
                return wanted
        assert self.bench is not None, "what it is made of was measured first"  # noqa: S101
        most, rest = self._alone()
        again: list[Wanted] = []
        if self.samples.order:
            metered = self._spread(METERED)
            again += [Wanted("", ALONE)] * (WHOLE_STEPS - done["", ALONE])
            again += [Wanted("", metered)] * (_METERED_STEPS - done["", metered])
        offers = (
            self._ladder(self.bench, _LADDER[:_FIRST_RUNGS]),
            self._steps(self.bench, 1),
            again,
            self._steps(self.bench, _REPEATS),
            most,
            rest,
            self._ladder(self.bench, _LADDER),
        )
        offered = next(itertools.chain(*offers), None)
        if offered is None and self.error > goal:
            offered = StepEnergy(self.samples, self.bench, self.left).most_telling(takes_s)
        return offered

    def _ladder(self, bench: MixConditions, shares: Sequence[float]) -> Iterator[Wanted]:
        """Offer the companion with idling, from its own clock to boost."""
        if not self.companion:
            return
        of_hot = [s for s in self.samples.mixed if not s.mix.launches and s.mix.hot]
        yield from self._climb(bench, shares, of_hot, lambda: (), 1, 1)
        # Once more where it is taken off: its error is one of all kernels.
        lowest = min(one.core_mhz for one in bench.hot)
        reach = bench.boost_mhz - lowest
        taken = [
            share
            for share in shares
            if bench.expected(bench.hot, lowest + share * reach).power_w < bench.held_w
        ]
        yield from self._climb(bench, taken, of_hot, lambda: (), 1, _REPEATS)

    def _steps(self, bench: MixConditions, times: int) -> Iterator[Wanted]:
        """Offer the whole step in company so often a rung: every kernel is timed at once."""
        order = self.samples.order
        if not order:
            return
        steps = [s for s in self.samples.mixed if not s.kernel and s.mix.launches]
        most = max(1, _LONGEST_GRAPH // len(order))
        seen = partial(self._seen_step, bench, steps)
        yield from self._climb(bench, _STEPS, steps, seen, most, times)

    def _spread(self, mix: Mix) -> Mix:
        """Return a mix of the whole step with its company where a step of this length needs it."""
        step = self._first_step()
        assert step is not None, "the step was run whole first"  # noqa: S101
        waited_s = waited_shares(self.samples.kernels) * step.kernel_s
        of_step = [float(waited_s[k]) for k in self.samples.order]
        hot_s = next((s.hot_s for s in self.samples.mixed if s.hot_s), 0.0)
        return spread_out(mix, of_step * mix.launches, hot_s)

    def _first_step(self) -> Window | None:
        """Return the first look at the step run whole and by itself; ``None`` before there is one.

        It is always the same, so that what follows from it can be told again from the file.
        """
        return next((s for s in self.samples.mixed if not s.kernel and s.mix == ALONE), None)

    def _climb(
        self,
        bench: MixConditions,
        shares: Sequence[float],
        taken: Sequence[Window],
        seen: Callable[[], Sequence[DrawAtClock]],
        most_launches: int,
        times: int,
    ) -> Iterator[Wanted]:
        """Offer mixes at rungs where nothing ran yet; a rung that was missed is tried again."""
        tried = sum(has_company(sample.mix) for sample in taken)
        if not shares or tried >= _TRIES + times * len(shares):
            return
        lowest = min([one.core_mhz for one in bench.hot] + [one.at_mhz for one in taken])
        rungs = [lowest + share * (bench.boost_mhz - lowest) for share in shares]
        apart_mhz = max((max(rungs) - min(rungs)) / len(rungs), _CLOSE_MHZ)
        for rung in rungs:
            near = [s for s in taken if abs(s.at_mhz - rung) <= _NEAR * apart_mhz]
            if len(near) >= times:
                continue
            mix = mix_at(rung, seen(), bench, most_launches=most_launches)
            if mix is not None and mix.launches:
                mix = self._spread(mix)
            if mix is not None and sum(are_alike(mix, sample.mix) for sample in taken) < times:
                yield Wanted("", mix)

    def _seen_step(self, bench: MixConditions, steps: Sequence[Window]) -> list[DrawAtClock]:
        """Return what the step drew and took, company taken off."""
        draws = []
        counts = waited_counts(self.samples.kernels)
        for sample in steps:
            step_s = float(counts @ sample.kernel_s)
            hot_s = sample.mix.hot * (sample.hot_s or 0.0)
            draw = bench.company.left(sample, hot_s, sample.mix.launches * step_s)
            draws.append((sample.at_mhz, draw, step_s))
        seen = [
            DrawAtClock(core_mhz, draw.mean_w, step_s, draw.total_w / draw.mean_w)
            for core_mhz, draw, step_s in draws
            if draw is not None and draw.mean_w > draw.total_w
        ]
        # At boost a peak of power may hold launches back: what it draws there misleads below.
        below = [one for one in seen if one.core_mhz < bench.boost_mhz - _CLOSE_MHZ]
        return below if any(one.spread <= SURE for one in below) else seen

    def _alone(self) -> tuple[list[Wanted], list[Wanted]]:
        """Offer kernels not measured alone yet: those most of the step's time goes to, the rest.

        Longest first, for a time limit may end the campaign anywhere. Where the step never ran
        whole nobody knows which those are: then all come at first, in order.
        """
        kernels = self.samples.kernels
        names, most = [kernel.name for kernel in kernels], len(kernels)
        step = self._first_step() if self.samples.order else None
        if step is not None:
            taken_s = {k.name: k.count * s for k, s in zip(kernels, step.kernel_s, strict=True)}
            enough_s = _MOST * sum(taken_s.values())
            names.sort(key=lambda name: -taken_s[name])
            sums_s = itertools.accumulate(taken_s[name] for name in names)
            most = 1 + sum(sum_s < enough_s for sum_s in sums_s)
        done = {s.kernel for s in self.samples.mixed if s.mix == ALONE}
        left = [
            [Wanted(name, ALONE) for name in part if name not in done]
            for part in (names[:most], names[most:])
        ]
        return left[0], left[1]


def _bench(samples: SampleSet, apart: Apart) -> MixConditions:
    """Describe where mixes run; company was measured."""
    company = apart.company
    alone = [s for s in samples.mixed if not s.mix.launches]
    seen = []
    for sample in alone:
        if sample.hot_s is None:
            continue
        draw = company.left(sample, sample.mix.hot * sample.hot_s, 0.0)
        if draw is not None and draw.mean_w > draw.total_w:
            seen.append(DrawAtClock(sample.at_mhz, draw.mean_w, sample.hot_s))
    capped = [s.energy_j / s.time_s for s in samples.mixed if at_cap(s, samples.gpu.power_limit_w)]
    warm = [s.temperature_c for s in alone if s.temperature_c is not None]
    below = [one for one in seen if one.power_w < OFF_PEAK * apart.peak_w]
    return MixConditions(
        company=company,
        hot=tuple(below or seen),
        # The driver names the cap for windows that it held for a part of them, too.
        limit_w=float(np.median(capped)) if capped else math.inf,
        boost_mhz=max(sample.at_mhz for sample in samples.mixed),
        temperature_c=sum(warm) / len(warm) if warm else USUAL_C,
        peak_w=apart.peak_w,
    )
