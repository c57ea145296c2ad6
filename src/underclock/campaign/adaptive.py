"""An adaptive campaign: a few clock pairs for all kernels, then whatever the plan hangs on.

What to do next follows from the samples on file alone, so a campaign that was cut off goes on
where it stopped.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from underclock.arrays import Bools
from underclock.campaign.recording import Recorder, StepRuns, as_mix_sample
from underclock.campaign.worth import NextSample, worth_of_samples
from underclock.core.inference.joint import TableFit
from underclock.core.inference.table import searched
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import estimate
from underclock.core.model.ran_clocks import ceiling_mhz
from underclock.core.model.sample_rows import CannotFitError
from underclock.core.model.start import unknown_gpu
from underclock.core.planning.goal import Goal
from underclock.core.sampling.initial_design import initial_design
from underclock.core.steering.mixing import DrawAtClock, thinned
from underclock.core.steering.wanted import IDLING
from underclock.core.step.cap import driver_says
from underclock.hw.base import Capability, Reading
from underclock.records import Clocks, Evidence, Kernel, Mix, SampleSet

_SHARED_POINTS = 5  # clock pairs of every kernel before any is chosen for what it tells
_LEAST_ROWS = 6  # of all kernels, and one a memory clock, without which nothing is fitted
_LEFT_TO_CHOOSE = 3.0  # samples of each kernel, of a small allowance, that wait for what those tell
_BASELINE_PART = 0.25  # of the promise's variance, from which the whole step is run once more
_WHOLE_STEPS = 4  # runs of the whole step to begin with: everything is compared with them
_ROUNDS_A_KERNEL = 4  # rounds in which every kernel could have had one more sample

_USUALLY_HELD = 0.85  # of a clock that the cap does not allow, where nobody read what ran
_HURRIED = 3.0  # times the least that the first looks take: steps may be long, kernels many
_MOST_IDLE = 3.0  # of the time a kernel runs, idling beside it


class Limits(Protocol):
    """When to stop."""

    @property
    def precision(self) -> float:
        """When the promise is this sure."""
        ...

    @property
    def time_limit_s(self) -> float | None:
        """Or when this much of the GPU's time is spent."""
        ...

    @property
    def max_samples(self) -> int | None:
        """Or this many samples are on file."""
        ...

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What the plans to measure for minimise."""
        ...


def first_looks(samples: SampleSet, limits: Limits, *, whole: bool) -> int:
    """Return how many samples come before any is chosen for what it tells.

    Args:
        samples: What is on file, and between which clocks.
        limits: When to stop.
        whole: Whether the step is run whole too.
    """
    locked = sum(clocks.core_mhz is not None for clocks in samples.settings)
    each = 1 + min(locked, _points_each(limits, len(samples.kernels)))
    return each * len(samples.kernels) + _WHOLE_STEPS * whole


def _points_each(limits: Limits, kernels: int, points: int = _SHARED_POINTS) -> int:
    """Return at how many clock pairs every kernel is looked at first, besides auto."""
    if limits.max_samples is None:
        return points
    each = limits.max_samples / kernels
    return int(np.clip(each - 1 - _LEFT_TO_CHOOSE, 1, points))


class AdaptiveRun:
    """One run of a campaign into a file.

    Attributes:
        short_of: How many times as unsure as asked the promise was at the last fit; ``None`` before
            there was one.
    """

    def __init__(
        self,
        recorder: Recorder,
        limits: Limits,
        baseline: Clocks,
        tell: Callable[[str], None],
        *,
        seed: int,
        in_situ: bool,
    ) -> None:
        file = recorder.file
        self._bench = recorder.measurer
        self._recorder = recorder
        self._file = file
        self._limits = limits
        self._baseline = baseline
        self._tell = tell
        self._step_runs = StepRuns(recorder, tell)
        self._random = np.random.default_rng([seed, zlib.crc32(b"campaign")])
        header = file.header
        self._kernels = header.kernels
        self._launches = header.launches if in_situ else ()
        self._started_s = self._bench.now_s() - file.gpu_s  # what earlier runs spent counts too
        before = file.sample_set()
        self._taken = Counter((sample.kernel, sample.asked) for sample in before.samples)
        self._steps = len(before.in_situ)
        self._table: TableFit | None = None
        self._unsure = 0.0  # of the promise, as it was after the last fit
        self.short_of: float | None = None

    def run(self) -> None:
        """Measure until the promise is as sharp as asked, or time or samples are spent."""
        if Capability.RUN in self._bench.capabilities and not self._spent():
            self._warm()
        self._look_at_auto()
        self._take(self._shared())
        while not self._spent():
            sample_set = self._file.sample_set()
            try:
                fit = self._fit(sample_set)
            except CannotFitError:
                if not self._take(self._more(), refit=True):
                    break
                continue
            wanted, sharp = self._next(fit)
            if sharp:
                self._tell("the promise is as sharp as asked")
                return
            if not self._take(wanted, refit=True):
                break
            if self._launches and self._rests_on_baseline(fit):
                self._warm()  # kernels one by one leave the GPU cooler than the step does
                self._step()

    def _fit(self, sample_set: SampleSet) -> CostEstimate | TableFit:
        """Return what is known by now, from the physics of a GPU or the rows of a table."""
        if sample_set.evidence is not Evidence.REPLAYED:
            return estimate(sample_set, baseline=self._baseline)
        self._table = searched(sample_set, baseline=self._baseline, before=self._table)
        return self._table

    def _look_at_auto(self) -> None:
        """Measure the step and its kernels at auto, with which all is compared."""
        at_auto = [NextSample(kernel, self._baseline) for kernel in self._kernels]
        steps = _WHOLE_STEPS
        if self._is_short_of_time():
            # Looks at a step of some seconds would take all of it, and tell of no kernel.
            self._take(at_auto)
            steps = int(self._lasts_for_a_step())
            if self._launches and self._steps < steps:
                self._warm()  # kernels one by one leave the GPU cooler than the step does
        while self._launches and self._steps < steps and not self._spent():
            self._step()
        self._take(at_auto)

    @property
    def taken(self) -> int:
        """Samples on file: of kernels by themselves, and of the step."""
        return sum(self._taken.values()) + self._steps

    def _spent(self) -> bool:
        most = self._limits.max_samples
        return (most is not None and self.taken >= most) or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the time limit has passed."""
        limit_s = self._limits.time_limit_s
        return limit_s is not None and self._bench.now_s() - self._started_s >= limit_s

    def _is_short_of_time(self) -> bool:
        """Whether a time limit may end before each kernel was looked at as often as it is first."""
        limit_s = self._limits.time_limit_s
        looks = first_looks(self._file.header, self._limits, whole=bool(self._launches))
        return limit_s is not None and limit_s < _HURRIED * looks * self._bench.takes_s(0.0)

    def _lasts_for_a_step(self) -> bool:
        """Whether there is time for a look at the whole step, as long as its kernels are alone."""
        measuring = self._file.header.provenance and self._file.header.provenance.measuring
        warm_s = measuring.least_warm_s if measuring else 0.0
        alone = {s.kernel: s.time_s for s in self._file.sample_set().samples}
        step_s = sum(kernel.count * alone.get(kernel.name, 0.0) for kernel in self._kernels)
        spent_s = self._bench.now_s() - self._started_s
        return spent_s + warm_s + self._bench.takes_s(step_s) < (self._limits.time_limit_s or 0.0)

    def _warm(self) -> None:
        self._tell("warming the GPU to a steady temperature")
        self._bench.warm(self._launches or list(self._kernels))

    def _step(self) -> None:
        self._step_runs.run()
        self._steps += 1

    def _take(self, wanted: Iterable[NextSample], *, refit: bool = False) -> int:
        """Measure what is wanted, clocks by clocks, in random order.

        Args:
            wanted: Samples; where not ``refit``, those on file already are passed over.
            refit: Whether repeats are wanted.

        Returns:
            How many were taken.
        """
        todo = [one for one in wanted if refit or not self._taken[one.kernel.name, one.clocks]]
        taken = 0
        while todo and not self._spent():
            by_clocks: dict[Clocks, list[Kernel]] = defaultdict(list)
            for one in todo:
                by_clocks[one.clocks].append(one.kernel)
            order = list(by_clocks)
            self._random.shuffle(order)
            todo = []
            for clocks in order:
                kernels = by_clocks[clocks]
                self._random.shuffle(kernels)
                with self._bench.hold(clocks):
                    for kernel in kernels:
                        if self._spent():
                            return taken
                        todo += self._take_one(kernel, clocks)
                        taken += 1
        return taken

    def _take_one(self, kernel: Kernel, clocks: Clocks) -> list[NextSample]:
        """Measure a kernel at the clocks that are held; return what to measure in its place."""
        self._tell(f"{kernel.name} at {clocks}")
        repeat = self._taken[kernel.name, clocks]
        reading = self._bench.measure([kernel], repeat)
        self._recorder.append(kernel.name, clocks, repeat, reading)
        self._taken[kernel.name, clocks] += 1
        if clocks.core_mhz is None or not driver_says(reading.throttle_reasons):
            return []
        if self._thin_out(kernel, clocks, reading):
            return []
        return self._slower(kernel, clocks, reading)

    def _slower(self, kernel: Kernel, clocks: Clocks, capped: Reading) -> list[NextSample]:
        """Return the fastest clocks that a kernel holds alone, where it was never seen at them.

        Args:
            kernel: The kernel.
            clocks: At which the cap held it.
            capped: What it did there.
        """
        seen = capped.observed.core_mhz if capped.observed else None
        below_mhz = min(clocks.core_mhz or 0, seen or 0)
        slower = [
            other
            for other in self._file.header.settings
            if other.mem_mhz == clocks.mem_mhz and (other.core_mhz or 0) < below_mhz
        ]
        if not slower:
            return []
        fastest = max(slower, key=lambda other: other.core_mhz or 0)
        return [] if self._taken[kernel.name, fastest] else [NextSample(kernel, fastest)]

    def _thin_out(self, kernel: Kernel, clocks: Clocks, capped: Reading) -> bool:
        """Measure a kernel with idling, at clocks that it cannot hold alone under the cap.

        Args:
            kernel: The kernel.
            clocks: As held.
            capped: What it did by itself.

        Returns:
            Whether it ran at these clocks so.
        """
        if not self._step_runs.can_time:
            return False
        mixed = [s for s in self._file.sample_set().mixed if s.asked == clocks]
        idle = next((s for s in mixed if not s.mix.launches), None)
        if idle is None:
            self._tell(f"idling at {clocks}")
            reading = self._bench.measure([], mix=IDLING, timed=True)
            idle = as_mix_sample("", IDLING, clocks, 0, reading)
            self._recorder.append_mixed(idle)
        core_mhz = float(clocks.core_mhz or 0)
        limit_w = capped.energy_j / capped.time_s
        seen = capped.observed.core_mhz if capped.observed else None
        own = DrawAtClock(float(seen or _USUALLY_HELD * core_mhz), limit_w, capped.time_s)
        mix = thinned(core_mhz, own, idle.round_j / idle.round_s, limit_w)
        while mix is not None:
            self._tell(f"{kernel.name} at {clocks} with {mix.idle_s * 1e3:.3g} ms of idling")
            repeat = sum((s.kernel, s.mix) == (kernel.name, mix) for s in mixed)
            reading = self._bench.measure([kernel], repeat, mix=mix, timed=True)
            self._recorder.append_mixed(as_mix_sample(kernel.name, mix, clocks, repeat, reading))
            if not driver_says(reading.throttle_reasons):
                return True
            idles = mix.idle_s > _MOST_IDLE * mix.launches * capped.time_s
            mix = None if idles else Mix(launches=mix.launches, idle_s=2.0 * mix.idle_s)
        return False

    def _shared(self) -> list[NextSample]:
        """Return the clock pairs that every kernel starts with, or as many as are allowed."""
        top_mhz = ceiling_mhz(self._file.sample_set().samples)
        locked = [
            clocks
            for clocks in self._file.header.settings
            if clocks != self._baseline and clocks.core_mhz and clocks.core_mhz <= top_mhz
        ]
        if not locked:
            return []
        settings, per_kernel = self._initial_design(locked)
        wanted = []
        for k, kernel in enumerate(self._kernels):
            # Where each gets few, kernels get different ones: what they share is learned from all.
            rotated = [settings[(k + i) % len(settings)] for i in range(len(settings))]
            mine = settings if per_kernel >= len(settings) else rotated
            answers = [c for c in mine if self._bench.can_measure(kernel, c)]
            wanted += [NextSample(kernel, clocks) for clocks in answers[:per_kernel]]
        return wanted

    def _initial_design(self, locked: Sequence[Clocks]) -> tuple[list[Clocks], int]:
        mems = sorted({float(c.mem_mhz) for c in locked if c.mem_mhz}) or [1.0]
        top = max([float(c.core_mhz) for c in locked if c.core_mhz] or [1.0])
        base = unknown_gpu(mems, fastest_mhz=top, most_w=300.0)
        core = np.array([float(c.core_mhz or top) for c in locked])
        mem = np.array([float(c.mem_mhz or mems[-1]) for c in locked])
        points = max(_SHARED_POINTS, math.ceil((_LEAST_ROWS + len(mems)) / len(self._kernels)))
        chosen = initial_design(base, core, mem, points)
        per_kernel = _points_each(self._limits, len(self._kernels), points)
        return [locked[i] for i in chosen.tolist()], per_kernel

    def _more(self) -> list[NextSample]:
        """Return one new clock pair a kernel, where samples are too few to fit."""
        wanted = []
        for kernel in self._kernels:
            fresh = [
                c
                for c in self._file.header.settings
                if not self._taken[kernel.name, c] and self._bench.can_measure(kernel, c)
            ]
            if fresh:
                wanted.append(NextSample(kernel, fresh[int(self._random.integers(len(fresh)))]))
        return wanted

    def _next(self, fit: CostEstimate | TableFit) -> tuple[list[NextSample], bool]:
        """Return the samples worth most, and whether the promise is sharp enough already."""
        worth = worth_of_samples(fit, self._limits.goals, self._unused, self._bench.takes_s)
        self._unsure = worth.unsure
        # A table answers at once: its samples are limited by number, not by what is enough.
        runs = Capability.RUN in self._bench.capabilities
        short_of = worth.half_width / self._limits.precision
        self.short_of = short_of if runs and math.isfinite(short_of) else None
        sharp = runs and short_of <= 1.0
        wanted = [
            NextSample(self._kernels[k], fit.posterior.settings[c])
            for k, c in worth.best(max(1, len(self._kernels) // _ROUNDS_A_KERNEL))
        ]
        return [*wanted, *self._reference(fit), *self._baseline_again(fit)], sharp

    def _unused(self, settings: Sequence[Clocks]) -> Bools:
        """Return where there is an answer that was not yet given: a table has so many rows."""
        unused = np.ones((len(self._kernels), len(settings)), dtype=bool)
        for k, kernel in enumerate(self._kernels):
            for c, clocks in enumerate(settings):
                unused[k, c] = self._has_more(kernel, clocks)
        return unused

    def _reference(self, fit: CostEstimate | TableFit) -> list[NextSample]:
        """Return the kernel that is measured again in every round, to see what heat does."""
        if Capability.RUN not in self._bench.capabilities:
            return []
        longest = int(np.argmax(fit.baseline.energy_j))
        kernel = self._kernels[longest]
        seen = [c for (name, c), _ in self._taken.items() if name == kernel.name and not c.is_auto]
        return [NextSample(kernel, seen[0])] if seen else []

    def _baseline_again(self, fit: CostEstimate | TableFit) -> list[NextSample]:
        """Return the kernels to run at auto once more, where no whole step tells what it costs."""
        if self._launches or fit.exact or not self._rests_on_baseline(fit):
            return []
        variance = (fit.baseline.of_kernels[1] * fit.baseline.energy_j) ** 2
        again = [
            k
            for k in np.argsort(-variance).tolist()
            if variance[k] >= variance.mean() and self._has_more(self._kernels[k], self._baseline)
        ]
        most = max(1, len(self._kernels) // _ROUNDS_A_KERNEL)
        return [NextSample(self._kernels[k], self._baseline) for k in again[:most]]

    def _has_more(self, kernel: Kernel, clocks: Clocks) -> bool:
        """Whether a GPU is asked, or a table that has runs of a row which were not yet given."""
        rows = self._bench.repeats(kernel, clocks)
        return rows is None or self._taken[kernel.name, clocks] < rows

    def _rests_on_baseline(self, fit: CostEstimate | TableFit) -> bool:
        """Whether a good part of what the promise is unsure of is auto, not the plan."""
        return fit.baseline.spread[1] ** 2 > _BASELINE_PART * self._unsure**2
