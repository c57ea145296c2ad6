"""Energy counters that misbehave, on a fake clock."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest

from fake_gpu import FakeClock, SteadyGpu
from underclock.errors import MeasurementError
from underclock.hw.base import Durations, Progress
from underclock.hw.measurer import GpuMeasurer, ReplayMeasurer
from underclock.hw.watching import ClockWatch
from underclock.records import (
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

_KERNEL = Kernel(name="copy")


@dataclass
class FakeLoop:
    clock: FakeClock
    launch_s: float = 0.01
    timed_at_s: float | None = None
    timed_for_s: float | None = None

    def progress(self) -> Progress:
        launches = int(self.clock.t_s / self.launch_s)
        return Progress(launches=launches, elapsed_s=launches * self.launch_s)

    def durations(self, for_s: float) -> Durations:
        self.timed_at_s, self.timed_for_s = self.clock.t_s, for_s
        self.clock.sleep_s(for_s)
        return Durations(kernel_s=(0.01,))


@dataclass
class FakeLauncher:
    clock: FakeClock
    launch_s: float = 0.01
    running: FakeLoop | None = None
    look_s: float = 0.0

    def notes(self) -> tuple[str, ...]:
        return ()

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[FakeLoop]:
        del mix
        assert kernels
        self.running = FakeLoop(self.clock, self.launch_s)
        yield self.running


class FakeGpu(SteadyGpu):
    """A counter with a slope in J/s, in steps; stands still at slope 0, sinks below it."""

    def __init__(self, clock: FakeClock, slope_w: float) -> None:
        self.clock, self.slope_w = clock, slope_w
        self.core_mhz: Callable[[], int | None] = lambda: None
        self.shown_j: list[float] = []
        self.looked: list[tuple[float, bool]] = []  # when the clock was read; not in a search?

    def observed(self) -> Clocks:
        searched = len(self.shown_j) < 2 or self.shown_j[-1] > self.shown_j[-2]
        self.looked.append((self.clock.t_s, searched))
        return Clocks(core_mhz=self.core_mhz())

    def energy_j(self) -> float:
        self.clock.sleep_s(0.003)
        self.shown_j.append(1e6 + int(self.clock.t_s / 0.1) * 0.1 * self.slope_w)
        return self.shown_j[-1]


def _bench(
    slope_w: float, gpu: FakeGpu | None = None, launcher: FakeLauncher | None = None
) -> GpuMeasurer:
    clock = gpu.clock if gpu else FakeClock()
    return GpuMeasurer(
        gpu or FakeGpu(clock, slope_w),
        launcher or FakeLauncher(clock),
        clock,
        evidence=Evidence.MEASURED,
        measuring=MeasurementSettings(),
    )


def test_launches_are_timed_after_the_window_while_the_loop_still_runs() -> None:
    clock = FakeClock()
    launcher = FakeLauncher(clock)
    plain = _bench(250.0).measure([_KERNEL])
    timed = _bench(250.0, FakeGpu(clock, 250.0), launcher).measure([_KERNEL], timed=True)

    assert timed.durations == Durations(kernel_s=(0.01,))
    assert timed.window_s is not None
    assert launcher.running is not None
    assert launcher.running.timed_for_s == pytest.approx(timed.window_s / 2)
    assert clock.t_s == pytest.approx((launcher.running.timed_at_s or 0.0) + timed.window_s / 2)
    assert (timed.window_s, timed.energy_j) == pytest.approx((plain.window_s, plain.energy_j))
    assert plain.durations is None


def test_in_a_long_window_the_clock_is_read_ever_less_often_and_evenly() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, 250.0)
    gpu.core_mhz = lambda: round(1000 + clock.t_s)
    watch = ClockWatch(gpu, clock)
    watch.sleep_s(100.0)

    assert len(gpu.looked) < 4096  # of some 10 000
    assert watch.core_mhz == pytest.approx(1050.0, abs=0.5)
    assert watch.spread_mhz == pytest.approx(100.0 / 12**0.5, rel=0.01)


def test_with_coload_the_clock_is_read_all_through_the_window_but_in_no_search() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, 250.0)
    gpu.core_mhz = lambda: 1500 if len(gpu.looked) % 2 else 1530
    reading = _bench(250.0, gpu).measure([_KERNEL], mix=Mix(hot=1))

    assert reading.window_s is not None
    assert len(gpu.looked) >= reading.window_s / 0.05
    gaps_s = [b - a for (a, _), (b, _) in pairwise(gpu.looked)]
    assert max(gaps_s) < 0.08
    assert all(searched for _, searched in gpu.looked)
    assert reading.core_mhz == pytest.approx(1515.0, abs=1.0)
    assert reading.core_spread_mhz == pytest.approx(15.0, abs=0.5)


def test_a_counter_that_stands_still_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="did not move"):
        _bench(0.0).measure([_KERNEL])


def test_a_counter_that_goes_back_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="went back"):
        _bench(-100.0).measure([_KERNEL])


def _replay() -> ReplayMeasurer:
    rows = tuple(
        Window(kernel="copy", repeat=i, time_s=1.0 + i, energy_j=2.0 + i) for i in range(2)
    )
    return ReplayMeasurer(
        SampleSet(
            evidence=Evidence.REPLAYED,
            gpu=GpuInfo(name="table"),
            step=Step(name="t", kernels=(_KERNEL,)),
            windows=rows,
        )
    )


def test_a_replay_cannot_run_what_was_not_measured() -> None:
    measurer = _replay()
    with pytest.raises(MeasurementError, match="no row"), measurer.hold(Clocks(core_mhz=1)):
        measurer.measure([_KERNEL])
    with pytest.raises(MeasurementError, match="whole step"):
        measurer.measure([_KERNEL, _KERNEL])
    with pytest.raises(MeasurementError, match="isolated kernels only"):
        measurer.measure([_KERNEL], mix=Mix(hot=1))
    with pytest.raises(MeasurementError, match="isolated kernels only"):
        measurer.measure([_KERNEL], timed=True)
    with pytest.raises(MeasurementError, match="warmed"):
        measurer.warm([_KERNEL])
