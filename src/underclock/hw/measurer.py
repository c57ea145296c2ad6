"""Measuring on a GPU that answers NVML, real or simulated; or answering from a measured table.

Energy is read from a counter that climbs in steps of about 100 ms, so a window begins and ends at
a step: a window of 1 s that is not aligned can be wrong by a tenth. Power over the window times
the duration of a launch is the energy of a launch; launches need not fit the window. Rounds
of a sequence must: kernels draw unlike power, and parts of a round at the ends would blur it.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from underclock.errors import MeasurementError, NotPermittedError, UsageError
from underclock.hw.base import Capability, Clock, Gpu, Launcher, Progress, Reading
from underclock.hw.lease import ClockLeases
from underclock.hw.nvml import listed_clocks
from underclock.hw.watching import ClockWatch, EnergyCounter, InterferenceCheck, WatchedLoop
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    MeasurementSettings,
    Mix,
    SampleSet,
    Step,
    Window,
)
from underclock.records.common import can_climb, can_draw

_LONGEST_TICK_S = 2.0  # no known energy counter is slower than 100 ms
_WAKE_BEFORE_S = 0.012  # a few of the counter's blocking calls
_LOOK, _SHORT_LOOK = 0.5, 0.25  # of a window, for which launches are timed
_SHORT_S = 0.01  # a round of less is seen often enough in a short look
_WHOLE_ROUNDS = 5  # of a step with co-load, that say enough: a window holds them whole
_ROUNDS = 3  # of a long sequence, in which its launches are timed
_SEEN_S = 0.005  # ticks are seen to about this; rounds that are shorter blur less


QUICK = MeasurementSettings(
    warm_s=10.0, steady_s=5.0, steady_c=2.0, longest_warm_s=90.0, kernel_warm_s=0.3, window_s=1.0
)
"""For a real GPU, whose time is dear: 80 kernels at one clock pair take under 3 minutes."""

BRISK = MeasurementSettings(warm_s=60.0, settle_s=0.2, kernel_warm_s=0.5, window_s=1.0)
"""For samples that a model joins: it knows what heat does, so kernels need not reach theirs."""


@dataclass(frozen=True, slots=True)
class _Tick:
    """A step of the energy counter, or a moment between two."""

    at_s: float
    energy_j: float
    every_s: float  # how far steps lie apart


class GpuMeasurer:
    """A measurer on a GPU, a launcher and a clock; what holds clocks is inside of its `leases`."""

    def __init__(
        self,
        gpu: Gpu,
        launcher: Launcher,
        clock: Clock,
        *,
        evidence: Evidence,
        measuring: MeasurementSettings,
        may_lock: bool = True,
        notes: tuple[str, ...] = (),
        step: Step | None = None,
    ) -> None:
        self.evidence = evidence
        self.step = step
        self.capabilities = frozenset({Capability.READ, Capability.RUN, Capability.MIX}) | (
            frozenset({Capability.LOCK}) if may_lock else frozenset()
        )
        self.leases = ClockLeases(gpu)
        self.own: tuple[str, tuple[Kernel, ...]] = "", ()  # what a simulated GPU was calibrated on
        self._gpu = gpu
        self._launcher = launcher
        self._clock = clock
        self._measuring = measuring
        self._notes = notes
        self._offered = dict.fromkeys(listed_clocks(gpu) if may_lock else [AUTO])
        self._held = AUTO
        self._interference = InterferenceCheck(gpu, clock)
        self._limit_w = gpu.info().power_limit_w
        self._counter = EnergyCounter(gpu, clock, self._limit_w)
        self._again = 0  # windows that were measured again
        self._last: _Tick | None = None  # learned from the counter at the first window

    def info(self) -> GpuInfo:
        """Return which GPU answers."""
        return self._gpu.info()

    def settings(self) -> tuple[Clocks, ...]:
        """Return every clock pair that can be held, auto included."""
        return tuple(self._offered)

    def notes(self) -> tuple[str, ...]:
        """Return what was known at the start, and what was seen while kernels ran."""
        counted = (
            (self._counter.dropped, "readings of the energy counter that cannot be were dropped"),
            (self._again, "windows in which the energy counter fell or leapt were measured again"),
        )
        odd = tuple(f"{count} {what}" for count, what in counted if count)
        return (*self._notes, *odd, *self._launcher.notes())

    def brings(self) -> tuple[str, tuple[Kernel, ...]]:
        """Return the kernels a simulated GPU was calibrated on; a real one has none."""
        return self.own

    def can_measure(self, kernel: Kernel, clocks: Clocks) -> bool:
        """Whether the GPU lists these clocks; any kernel can be launched."""
        del kernel
        return clocks in self._offered

    def core_clocks(self) -> tuple[int, ...]:
        """Return every core clock the GPU lists, ascending."""
        return tuple(self._gpu.supported_core_mhz())

    def repeats(self, kernel: Kernel, clocks: Clocks) -> int | None:
        """Return ``None``: a GPU answers anew each time."""
        del kernel, clocks
        return None

    def now_s(self) -> float:
        """Return the clock's time."""
        return self._clock.now_s()

    def warm(self, kernels: Sequence[Kernel]) -> float | None:
        """Run kernels until the temperature is steady; return it in °C, ``None`` if unknown."""
        measuring = self._measuring
        with self._launcher.loop(kernels) as loop:
            watched = WatchedLoop(loop, self._clock, "warming the GPU")
            started_s = self._clock.now_s()
            before_c, launches = self._gpu.temperature_c(), 0
            while True:
                self._clock.sleep_s(measuring.steady_s)
                launched, launches = launches, watched.progress().launches
                now_c = self._gpu.temperature_c()
                spent_s = self._clock.now_s() - started_s
                # Where no launch ended, nothing may run: that temperature is of no use.
                steady = launches > launched and (
                    now_c is not None
                    and before_c is not None
                    and abs(now_c - before_c) < measuring.steady_c
                )
                if (steady and spent_s >= measuring.warm_s) or spent_s >= measuring.longest_warm_s:
                    return now_c
                before_c = now_c

    def takes_s(self, launch_s: float, *, timed: bool = False) -> float:
        """Return about how long it takes to measure a kernel whose launch takes that long."""
        measuring = self._measuring
        window_s = max(measuring.window_s, measuring.launches * launch_s)
        look_s = self._look_s(window_s, launch_s) + self._launcher.look_s if timed else 0.0
        return measuring.takes_s(launch_s) + look_s

    @contextmanager
    def hold(self, clocks: Clocks) -> Iterator[None]:
        """Hold clocks from entry to exit; auto clocks touch nothing."""
        if clocks not in self._offered:
            if Capability.LOCK not in self.capabilities:
                raise NotPermittedError(
                    f"cannot hold {clocks}: clocks may not be set here",
                    hint="setting clocks needs root, and UNDERCLOCK_READ_ONLY unset",
                )
            raise UsageError(
                f"this GPU does not list {clocks}", hint="see `underclock doctor` for its clocks"
            )
        with self.leases.hold(clocks):
            self._held = clocks
            self._clock.sleep_s(self._measuring.settle_s)
            try:
                yield
            finally:
                self._held = AUTO

    def measure(
        self,
        kernels: Sequence[Kernel],
        repeat: int = 0,
        *,
        mix: Mix | None = None,
        timed: bool = False,
    ) -> Reading:
        """Measure a sequence at the clocks now held, over a window aligned to counter ticks.

        With co-load, and where launches are timed, the core clock is read all through the window.
        Launches are timed after it, the loop still running: a profiler takes no part in the energy.
        A window in which the energy counter fell or leapt is measured again, once.
        """
        del repeat  # a GPU answers anew each time
        try:
            return self._window(kernels, mix, timed=timed)
        except _CounterError:
            self._last, self._again = None, self._again + 1
            return self._window(kernels, mix, timed=timed)

    def _window(self, kernels: Sequence[Kernel], mix: Mix | None, *, timed: bool) -> Reading:
        watch = ClockWatch(self._gpu, self._clock) if timed or mix is not None else None
        with self._launcher.loop(kernels, mix) as loop:
            self._clock.sleep_s(self._measuring.kernel_warm_s)
            watched = WatchedLoop(loop, self._clock, "measuring")
            while not watched.progress().launches:  # a graph's first launch takes longer
                self._clock.sleep_s(_SEEN_S)
            start = self._next_tick(self._clock)
            before = watched.progress()
            least = self._measuring.launches
            if len(kernels) > 1 and mix is not None and (mix.hot or mix.idle_s):
                least = min(least, _WHOLE_ROUNDS)
            after = self._wait(watched, before, start, watch or self._clock, least)
            time_s = (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)
            clock = watch or self._clock
            whole = len(kernels) > 1 and time_s > _SEEN_S
            end = self._end(start, time_s, clock) if whole else self._next_tick(clock)
            window_s = end.at_s - start.at_s
            self._check_climbed(start.energy_j, end.energy_j, window_s)
            mean_w = (end.energy_j - start.energy_j) / window_s
            if not can_draw(mean_w, self._limit_w):
                raise _CounterError(
                    f"by its energy counter the GPU draws {mean_w:.3g} W, which cannot be",
                    hint="this driver's counter cannot be believed: measure with another driver",
                )
            running = self._interference.read(self._held)
            durations = loop.durations(self._look_s(window_s, time_s)) if timed else None
        return Reading(
            time_s=time_s,
            energy_j=mean_w * time_s,
            observed=running.observed,
            window_s=window_s,
            ticks=round(window_s / start.every_s),
            temperature_c=running.temperature_c,
            throttle_reasons=running.reasons,
            core_mhz=watch.core_mhz if watch else None,
            core_spread_mhz=watch.spread_mhz if watch else None,
            durations=durations,
        )

    def _look_s(self, window_s: float, round_s: float) -> float:
        """Return for how long to time launches: a part of a window, of long rounds but a few."""
        look = _SHORT_LOOK if round_s < _SHORT_S else _LOOK
        return min(look * window_s, max(look * self._measuring.window_s, _ROUNDS * round_s))

    def _wait(
        self, watched: WatchedLoop, before: Progress, start: _Tick, clock: Clock, least: int
    ) -> Progress:
        """Let the window pass until it is long enough and holds at least so many launches."""
        measuring = self._measuring
        while True:
            spent_s = clock.now_s() - start.at_s
            now = watched.progress()
            launches = now.launches - before.launches
            if spent_s >= measuring.window_s - start.every_s and launches >= least:
                return now
            # Sleep to where both should hold, judging by the launches since the loop began.
            per_launch_s = now.elapsed_s / now.launches
            left_s = max(
                measuring.window_s - start.every_s - spent_s, (least - launches) * per_launch_s
            )
            clock.sleep_s(max(left_s, 1e-3))

    def _end(self, start: _Tick, round_s: float, clock: Clock) -> _Tick:
        """Return the energy where a whole number of rounds ends, between the ticks around it."""
        now_s = self._clock.now_s()
        early_s = 1.5 * start.every_s
        rounds = math.ceil((now_s - start.at_s + early_s) / round_s)
        at_s = start.at_s + rounds * round_s
        clock.sleep_s(max(0.0, at_s - early_s - now_s))
        before = after = self._next_tick(clock)
        while after.at_s < at_s:
            before, after = after, self._next_tick(clock)
        if after is before:  # the counter's steps are longer than they were
            return after
        share = (at_s - before.at_s) / (after.at_s - before.at_s)
        energy_j = before.energy_j + share * (after.energy_j - before.energy_j)
        return _Tick(at_s, energy_j, start.every_s)

    def _next_tick(self, clock: Clock) -> _Tick:
        """Return when the counter next steps, and to what."""
        # Once its steps are known, sleep to shortly before the next: each question blocks the host.
        if self._last is None:
            at_s, energy_j = zip(*(self._ask() for _ in range(4)), strict=True)
            apart_s = sorted(b - a for a, b in itertools.pairwise(at_s))
            self._last = _Tick(at_s[-1], energy_j[-1], apart_s[1])
        every_s = self._last.every_s
        ahead_s = every_s - (clock.now_s() - self._last.at_s) % every_s
        clock.sleep_s(max(0.0, ahead_s - _WAKE_BEFORE_S))
        self._last = _Tick(*self._ask(), every_s)
        return self._last

    def _ask(self) -> tuple[float, float]:
        before_j = self._counter.energy_j()
        began_s = self._clock.now_s()
        deadline_s = began_s + _LONGEST_TICK_S
        while self._clock.now_s() < deadline_s:
            called_s = self._clock.now_s()
            energy_j = self._counter.energy_j()
            self._check_climbed(before_j, energy_j, self._clock.now_s() - began_s)
            if energy_j > before_j:
                # The call blocks, so the step lies between its start and its end.
                return (called_s + self._clock.now_s()) / 2, energy_j
        raise MeasurementError(
            f"the energy counter did not move in {_LONGEST_TICK_S:g} s",
            hint="this GPU may have no energy counter (Volta and newer do)",
        )

    def _check_climbed(self, before_j: float, after_j: float, over_s: float) -> None:
        if after_j < before_j:
            raise _CounterError(
                f"the energy counter went back from {before_j:.3f} J to {after_j:.3f} J",
                hint="the driver was reloaded or the GPU reset: measure again",
            )
        if not can_climb(after_j - before_j, over_s, self._limit_w):
            limit = f", and its limit is {self._limit_w:g} W" if self._limit_w else ""
            raise _CounterError(
                f"the energy counter climbed by {after_j - before_j:.3g} J in {over_s:.3g} s: no "
                f"GPU draws that{limit}",
                hint="this driver's counter cannot be believed: measure with another driver",
            )


class _CounterError(MeasurementError):
    """The energy counter shows what cannot be."""


class ReplayMeasurer:
    """Answers with the rows of a sample_set; repeats cycle through the rows there are."""

    step: Step | None = None
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, table: SampleSet) -> None:
        self.table = table
        self.evidence: Evidence = table.evidence
        self._rows: dict[tuple[str, Clocks], list[Window]] = defaultdict(list)
        for sample in table.samples:
            self._rows[sample.kernel, sample.asked].append(sample)
        self._held = AUTO

    def info(self) -> GpuInfo:
        """Return the table's GPU."""
        return self.table.gpu

    def settings(self) -> tuple[Clocks, ...]:
        """Return every clock pair that stands in the table, for any kernel."""
        return tuple(dict.fromkeys(clocks for _, clocks in self._rows))

    def notes(self) -> tuple[str, ...]:
        """Return the table's warnings."""
        return self.table.warnings

    def brings(self) -> tuple[str, tuple[Kernel, ...]]:
        """Return the table's kernels."""
        return self.table.workload, self.table.kernels

    def can_measure(self, kernel: Kernel, clocks: Clocks) -> bool:
        """Whether the table has a row."""
        return (kernel.name, clocks) in self._rows

    def core_clocks(self) -> tuple[int, ...]:
        """Return every core clock in the table, ascending."""
        return tuple(sorted({c.core_mhz for c in self.settings() if c.core_mhz is not None}))

    def repeats(self, kernel: Kernel, clocks: Clocks) -> int:
        """Return how many rows the table has for a kernel at these clocks."""
        return len(self._rows.get((kernel.name, clocks), ()))

    def now_s(self) -> float:
        """Return 0: replaying takes no time."""
        return 0.0

    def warm(self, kernels: Sequence[Kernel]) -> float:
        """Refuse: a table does not warm up."""
        raise MeasurementError(f"a table cannot be warmed by running {len(kernels)} kernels")

    def takes_s(self, launch_s: float, *, timed: bool = False) -> float:
        """Return 1: every row is as near as any other."""
        del launch_s, timed
        return 1.0

    @contextmanager
    def hold(self, clocks: Clocks) -> Iterator[None]:
        """Answer with the rows at these clocks from entry to exit."""
        self._held = clocks
        try:
            yield
        finally:
            self._held = AUTO

    def measure(
        self,
        kernels: Sequence[Kernel],
        repeat: int = 0,
        *,
        mix: Mix | None = None,
        timed: bool = False,
    ) -> Reading:
        """Answer with a row.

        Raises:
            MeasurementError: The table has none, or more was asked for than an isolated kernel.
        """
        if mix is not None or timed:
            raise MeasurementError(
                "a table knows isolated kernels only: nothing runs, with co-load or to be timed",
                hint="steer clocks on a GPU that runs kernels: nvml:N, or a simulated one",
            )
        if len(kernels) != 1:
            raise MeasurementError("a table knows isolated kernels only, not a whole step")
        rows = self._rows.get((kernels[0].name, self._held))
        if not rows:
            raise MeasurementError(
                f"the table has no row for {kernels[0].name!r} at {self._held}",
                hint="only what was measured can be replayed",
            )
        row = rows[repeat % len(rows)]
        return Reading(time_s=row.time_s, energy_j=row.energy_j)
