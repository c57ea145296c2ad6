"""An adaptive campaign: a few clock pairs for all kernels, then samples by their value."""

import dataclasses
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from underclock.arrays import Bools, Floats
from underclock.campaign.grid import Campaign, Points, SharedRecorder
from underclock.campaign.recording import Recorder, WindowPolicy
from underclock.core.design import (
    Wanted,
    best_one_clock,
    improvement,
    looked_near,
    price_within,
    spread_out,
    worth_of_rows,
    worth_of_visits,
)
from underclock.core.model.costs import TWO_SIDED
from underclock.core.model.estimate import Estimate, estimate
from underclock.core.model.sample_rows import CannotFitError
from underclock.core.model.sample_sets import ceiling_mhz, visited
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.strategies import choose_kernels
from underclock.core.steering import IDLING, next_thinned
from underclock.core.step.cost_table import cost_table
from underclock.core.step.power_cap import driver_says, held_at_auto
from underclock.core.step.power_capped_step import fixed_costs, is_free
from underclock.core.step.whole_step import WHOLE_STEPS
from underclock.errors import UsageError
from underclock.hw.base import Capability
from underclock.records import ALONE, Clocks, Kernel, SampleSet, Window


def worth_of_samples(
    fit: Estimate,
    goals: Sequence[Goal],
    unused: Bools,
    takes_s: Callable[[float], float],
    taken: Mapping[tuple[str, Clocks], int],
    known_there: Bools,
) -> tuple[Floats, float, float]:
    """Say what further samples of a GPU, or of rows with repeats, are worth to plans.

    Args:
        unused: Where there is an answer that was not yet given. Shape (K, S).
        takes_s: Returns the GPU time of one sample, from that of a launch in s.
        known_there: Where enough ran to plan a kernel there. Shape (K, S).

    Returns:
        Of each entry, (K, S), in J per step for each second that it takes; then the standard
        deviation of the promised change of energy, and half the width of the 95 % interval of what
        is promised, each the greatest of all goals.
    """
    costs, table = fit.costs, fit.costs.table
    # A free core clock says nothing to the fit, however often it is asked.
    locked = np.array([clocks.core_mhz is not None for clocks in table.settings])
    time2, power2 = fit.posterior.noise**2
    looked = looked_near(table, taken)
    measurable = fit.measurable & locked & fit.holds_alone & unused
    noise = np.sqrt([time2, time2 + power2])
    plans = [choose_kernels(table, goal, costs) for goal in goals]
    gains, unsure = np.zeros(table.time_s.shape), 0.0
    for goal, plan in zip(goals, plans, strict=True):
        planned = np.full(len(table.kernels), table.baseline) if plan is None else plan
        limit_s = table.auto_time_s * (1.0 + goal.max_slowdown)
        price_w = price_within(table.time_s, table.energy_j, limit_s)
        gains += improvement(costs, looked, noise, price_w, planned)
        for choice in (planned, best_one_clock(table, limit_s)):
            of_visits, off = worth_of_visits(table, choice, known_there)
            gains, unsure = gains + of_visits, max(unsure, off)
    known = dataclasses.replace(costs, step_error=(0.0, 0.0), locked_error=None)
    made = [known.predicted_change(plan) for plan in plans if plan is not None]
    # The standard deviation of what is promised. That a step at auto changes nothing is sure
    # without a sample. So where every plan is auto, it is the plans expected to gain something that
    # have to be sharp, in time and in energy: they are what is not yet sure to keep the budget.
    spreads = [change.energy_spread for change in made]
    if all(plan is None or (plan == table.baseline).all() for plan in plans):
        plans = [choose_kernels(table, goal, None) for goal in goals]
        gaining = [known.predicted_change(plan) for plan in plans if plan is not None]
        spreads = [max(change.energy_spread, change.time_spread) for change in gaining]
    launch_s = np.where(np.isfinite(table.time_s), table.launches.time_s, np.inf)
    return (
        np.where(measurable, gains, 0.0) / np.vectorize(takes_s)(launch_s),
        max([change.energy_spread for change in made], default=0.0),
        TWO_SIDED * math.hypot(max(spreads, default=np.inf), unsure),
    )


_SHARED_POINTS = 5  # clock pairs of every kernel before any is chosen by its value
_NEAR_POINTS = 2  # the same where a plan of another GPU of the model says which pairs matter
_LEAST_ROWS = 6  # of all kernels, and one a memory clock, without which nothing is fitted
_LEFT_TO_CHOOSE = 3.0  # samples of each kernel, of a small allowance, that wait for what those tell
_BASELINE_PART = 0.25  # of the promise's variance, from which the whole step is run once more
_ROUNDS_A_KERNEL = 4  # rounds in which every kernel could have had one more sample
_MORE = 20  # samples on file, for each of which a round has one sample more
_AT_LOCK = 3  # runs of the step at a locked clock, so that an odd one is seen
_BELOW_LIMIT = 0.95  # of what auto draws at its limit: the cap then surely lets the step be
_COOLER = 0.95  # of the clock of a lock at which the cap held the step after all
_HURRIED = 3.0  # times the least that the first looks take: steps may be long, kernels many


def first_looks(samples: SampleSet, campaign: Campaign, *, whole: bool) -> int:
    """Return how many samples come before any is chosen by its value."""
    locked = sum(clocks.core_mhz is not None for clocks in samples.settings)
    each = 1 + min(locked, _points_each(campaign, len(samples.kernels)))
    return each * len(samples.kernels) + WHOLE_STEPS * whole


def _points_each(campaign: Campaign, kernels: int, points: int = _SHARED_POINTS) -> int:
    """Return at how many clock pairs every kernel is looked at first, besides auto."""
    if campaign.near is not None:
        points = _NEAR_POINTS
    if campaign.max_samples is None:
        return points
    each = campaign.max_samples / kernels
    return int(np.clip(each - 1 - _LEFT_TO_CHOOSE, 1, points))


class Adaptive(WindowPolicy):
    """Wants a few windows of every kernel, then those worth most to the plans.

    Attributes:
        total: None: it takes as many as it needs.
        limit_s: GPU time at which it ends.
        short_of: How many times as unsure as asked the promise was at the last fit; ``None`` before
            there was one.
    """

    def __init__(
        self, recorder: Recorder | SharedRecorder, points: Points, campaign: Campaign, *, seed: int
    ) -> None:
        header = recorder.samples
        everywhere = [clocks for clocks, some in points if len(some) == len(header.kernels)]
        if not everywhere:
            raise UsageError(
                "no clock pair is there for every kernel, so there is nothing to compare with",
                hint="add rows with empty core_mhz and mem_mhz to the table",
            )
        self.limit_s = campaign.time_limit_s
        self._recorder = recorder
        self._bench = recorder.measurer
        self._runs = Capability.RUN in self._bench.capabilities
        self._campaign = campaign
        self._baseline = everywhere[0]  # auto first, then fastest first
        self._random = np.random.default_rng([seed, zlib.crc32(b"campaign")])
        self._kernels = header.kernels
        self._settings = header.settings
        self._whole = bool(self._runs and campaign.in_situ and header.order)
        self._estimate: Estimate | None = None
        self._unsure = 0.0  # of the promise, as it was after the last fit
        self._taken: Counter[tuple[str, Clocks]] = Counter()
        self._first: list[Wanted] | None = None

    def next(self, spent_s: float) -> list[Wanted]:
        """Return what to measure next: what every campaign needs, then by value."""
        samples = self._recorder.samples
        self._taken = Counter((sample.kernel, sample.asked) for sample in samples.samples)
        for phase in (self._owed, self._at_auto, self._shared):
            if wanted := self._in_random_order(phase(samples, spent_s)):
                return wanted
        try:
            self._estimate = estimate(
                samples, baseline=self._baseline, before=self._estimate, unvisited=True
            )
        except CannotFitError:
            # One new clock pair a kernel, where samples are too few to fit.
            more = []
            for kernel in self._kernels:
                fresh = [
                    c
                    for c in self._settings
                    if not self._taken[kernel.name, c] and self._bench.can_measure(kernel, c)
                ]
                if fresh:
                    more.append(_alone(kernel, fresh[int(self._random.integers(len(fresh)))]))
            return self._in_random_order(more)
        return self._telling(self._estimate, samples, spent_s)

    def _not_yet(self, wanted: Iterable[Wanted]) -> Iterator[Wanted]:
        return (one for one in wanted if not self._taken[one.kernel, one.asked])

    def _in_random_order(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Return what is wanted clocks by clocks; the whole step stays where it is."""
        steps, by_clocks = [], dict[Clocks, list[Wanted]]()
        for one in wanted:
            if one.is_step:
                steps.append(one)
            else:
                by_clocks.setdefault(one.asked, []).append(one)
        order = list(by_clocks)
        self._random.shuffle(order)
        for some in by_clocks.values():
            self._random.shuffle(some)
        return [*steps, *(one for clocks in order for one in by_clocks[clocks])]

    def _at_auto(self, samples: SampleSet, spent_s: float) -> list[Wanted]:
        """Return what is missing of the step and its kernels at auto, to which all is compared."""
        kernels = list(self._not_yet(_alone(each, self._baseline) for each in self._kernels))
        steps = WHOLE_STEPS if self._whole else 0
        looks = first_looks(self._recorder.samples, self._campaign, whole=self._whole)
        hurried = (
            self.limit_s is not None and self.limit_s < _HURRIED * looks * self._bench.takes_s(0.0)
        )
        if hurried:
            # Looks at a step of some seconds would take all of it, and tell of no kernel.
            if kernels:
                return kernels
            # Whether there is time for a look at the whole step, as long as its kernels are
            # alone.
            warm_s = samples.measuring.least_warm_s if samples.measuring else 0.0
            alone = {s.kernel: s.time_s for s in samples.samples}
            step_s = sum(kernel.count * alone.get(kernel.name, 0.0) for kernel in self._kernels)
            steps = min(
                steps, int(spent_s + warm_s + self._bench.takes_s(step_s) < (self.limit_s or 0.0))
            )
        missing = steps - len(samples.in_situ)
        # Kernels one by one leave the GPU cooler than the step does.
        runs = [Wanted(timed=False, warm=hurried and not n) for n in range(missing)]
        return runs or kernels

    def at_once(self, window: Window) -> list[Wanted]:
        """Return what a kernel that the cap held below its clocks is run with there: idling.

        More and more of it, until the kernel is at these clocks or more is of no use.
        """
        if not (_is_capped(window) and self._recorder.can_time):
            return []
        here = [w for w in self._recorder.samples.mixed if w.asked == window.asked]
        idle = next((w for w in here if not w.kernel and not w.mix.launches), None)
        if idle is None:
            return [Wanted("", IDLING, window.asked)]
        tried = [w for w in here if w.kernel == window.kernel and w.mix != ALONE]
        mix = next_thinned(window, idle, tried)
        return [] if mix is None else [Wanted(window.kernel, mix, window.asked)]

    def _owed(self, samples: SampleSet, _spent_s: float) -> Iterator[Wanted]:
        """Return the fastest clocks that kernels hold alone, where idling does not help either."""
        ran = {(w.kernel, w.asked): w for w in samples.mixed if w.mix != ALONE}
        capped = {(w.kernel, w.asked): w for w in samples.samples if _is_capped(w)}
        for place, window in capped.items():
            last = ran.get(place)
            if last is not None and not driver_says(last.throttle_reasons):
                continue
            yield from (wanted := self.at_once(window))
            # The fastest clocks that it holds alone, below those that the cap left.
            seen_mhz = window.observed.core_mhz if window.observed else None
            below_mhz = min(window.asked.core_mhz or 0, seen_mhz or 0)
            slower = [
                other
                for other in self._settings
                if other.mem_mhz == window.asked.mem_mhz and (other.core_mhz or 0) < below_mhz
            ]
            if slower and not wanted:
                fastest = max(slower, key=lambda other: other.core_mhz or 0)
                yield from self._not_yet([Wanted(window.kernel, asked=fastest, timed=False)])

    def _shared(self, samples: SampleSet, _spent_s: float) -> Iterator[Wanted]:
        """Return the clock pairs that every kernel starts with, or as many as are allowed."""
        if self._first is not None:
            return self._not_yet(self._first)
        # What the GPU boosts to is known by now.
        self._first, top_mhz = [], ceiling_mhz(samples.samples)
        locked = [
            clocks
            for clocks in self._settings
            if clocks != self._baseline and clocks.core_mhz and clocks.core_mhz <= top_mhz
        ]
        if not locked:
            return iter(())
        top = max([float(c.core_mhz) for c in locked if c.core_mhz] or [1.0])
        core = np.array([float(c.core_mhz or top) for c in locked])
        mem = np.array([float(c.mem_mhz or 1.0) for c in locked])
        memories = len(set(mem.tolist()))
        points = max(_SHARED_POINTS, math.ceil((_LEAST_ROWS + memories) / len(self._kernels)))
        chosen = spread_out(core, mem, points)
        settings = [locked[i] for i in chosen.tolist()]
        per_kernel = _points_each(self._campaign, len(self._kernels), points)
        for k, kernel in enumerate(self._kernels):
            # Where each gets few, kernels get different ones: what they share is learned from all.
            rotated = [settings[(k + i) % len(settings)] for i in range(len(settings))]
            mine = settings if per_kernel >= len(settings) else rotated
            answers = [c for c in mine if self._bench.can_measure(kernel, c)]
            self._first += [_alone(kernel, clocks) for clocks in answers[:per_kernel]]
        return self._not_yet(self._first)

    def _telling(self, fit: Estimate, samples: SampleSet, spent_s: float) -> list[Wanted]:
        """Return the windows worth most; none where the promise is sharp enough already."""
        # A board whose power wanders may not let it become so in a day.
        if samples.is_exact:
            known = cost_table(samples, baseline=self._baseline)
            budgets = [goal.max_slowdown for goal in self._campaign.goals]
            worth, half_width = worth_of_rows(fit, known, budgets), 0.0
        else:
            settings = fit.costs.table.settings
            unused = np.array([[self._has_more(k, c) for c in settings] for k in self._kernels])
            takes_s, known_there = self._bench.takes_s, visited(samples, settings)
            worth, self._unsure, half_width = worth_of_samples(
                fit, self._campaign.goals, unused, takes_s, self._taken, known_there
            )
        steps = self._step_at_lock(fit, samples)
        # A table answers at once: its samples are limited by number, not by what is enough.
        short_of = half_width / self._campaign.precision
        self.short_of = short_of if self._runs and math.isfinite(short_of) else None
        looks = first_looks(samples, self._campaign, whole=self._whole)
        until_s = self._campaign.refines_s + looks * self._bench.takes_s(0.0)
        if self._runs and (short_of <= 1.0 or spent_s > until_s):
            self.why = "the promise is as sharp as asked"
            if short_of > 1.0:
                self.why = f"the time is up; the promise is sure to {100.0 * half_width:.1f} %"
            return steps
        # The kernels and settings of highest value, at most one setting a kernel.
        most = max(1, len(self._kernels) // _ROUNDS_A_KERNEL, len(samples.samples) // _MORE)
        value, settings = worth.max(axis=1), fit.costs.table.settings
        best = [k for k in np.argsort(-value)[:most].tolist() if value[k] > 0]
        wanted = [_alone(self._kernels[k], settings[worth[k].argmax()]) for k in best]
        if self._runs:
            longest = int(np.argmax(fit.costs.table.energy_j[:, -1]))
            kernel = self._kernels[longest]
            seen = (c for name, c in self._taken if name == kernel.name and not c.is_auto)
            wanted += [_alone(kernel, c) for c in itertools.islice(seen, 1)]
        # The kernels to run at auto once more, where no whole step says what it costs.
        if not (self._whole or samples.is_exact) and self._rests_on_baseline(fit):
            variance = _auto_variance(fit)
            again = [
                k
                for k in np.argsort(-variance).tolist()
                if variance[k] >= variance.mean()
                and self._has_more(self._kernels[k], self._baseline)
            ]
            few = max(1, len(self._kernels) // _ROUNDS_A_KERNEL)
            wanted += [_alone(self._kernels[k], self._baseline) for k in again[:few]]
        some = self._in_random_order(wanted)
        if some and self._whole and self._rests_on_baseline(fit):
            # Kernels one by one leave the GPU cooler than the step does.
            some.append(Wanted(timed=False, warm=True))
        return [*some, *steps]

    def _step_at_lock(self, fit: Estimate, samples: SampleSet) -> list[Wanted]:
        """Return one more run of the whole step at a lock, where the cap holds it at auto."""
        # It says what kernels sum up to in the step: at the fastest lock that the cap should let
        # be.
        ran, table = samples.locked_steps, fit.costs.table
        free = [window for window in ran if is_free(window, table.auto_w)]
        done = len(free) >= _AT_LOCK or len(ran) >= 2 * _AT_LOCK or not self._whole
        if done or not (held_at_auto(samples) and table.power_cap):
            return []
        if free:
            return [Wanted(asked=free[-1].asked, timed=False, warm=True)]
        time_s, energy_j = fixed_costs(table)
        with np.errstate(invalid="ignore"):
            below = energy_j / time_s < _BELOW_LIMIT * table.auto_w
        memory = table.settings[table.power_cap.boost].mem_mhz
        most_mhz = _COOLER * min((w.asked.core_mhz or 0 for w in ran), default=math.inf)
        near = {c for c in self._settings if c.mem_mhz == memory and (c.core_mhz or 0) <= most_mhz}
        cool = [c for c, low in zip(table.settings, below, strict=True) if low and c in near]
        fastest = max(cool, key=lambda each: each.core_mhz or 0, default=None)
        return [] if fastest is None else [Wanted(asked=fastest, timed=False, warm=True)]

    def _has_more(self, kernel: Kernel, clocks: Clocks) -> bool:
        """Whether a GPU is asked, or a table that has runs of a row which were not yet given."""
        rows = self._bench.repeats(kernel, clocks)
        return rows is None or self._taken[kernel.name, clocks] < rows

    def _rests_on_baseline(self, fit: Estimate) -> bool:
        """Whether a good part of what the promise is unsure of is auto, not the plan."""
        spread2 = float(_auto_variance(fit).sum())
        if fit.costs.auto_spread is not None:
            spread2 = fit.costs.auto_spread[1] ** 2
        return spread2 > _BASELINE_PART * self._unsure**2


def _alone(kernel: Kernel, clocks: Clocks) -> Wanted:
    return Wanted(kernel.name, asked=clocks, timed=False)


def _auto_variance(fit: Estimate) -> Floats:
    """Return the variance of each kernel's share of auto's energy. Shape (K,)."""
    share = fit.costs.table.energy_j[:, -1] / fit.costs.table.auto_energy_j
    return fit.costs.variance(0.0, 1.0)[:, -1] * share**2


def _is_capped(window: Window) -> bool:
    """Whether the cap held a kernel by itself below the clocks that it was to run at."""
    alone = bool(window.kernel) and window.mix == ALONE and window.asked.core_mhz is not None
    return alone and driver_says(window.throttle_reasons) is True
