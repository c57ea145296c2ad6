"""Energy counters that misbehave, on a fake clock."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from underclock.errors import MeasurementError
from underclock.hw.base import Loop, Progress
from underclock.hw.clock import SystemClock
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.replay import ReplayMeasurer
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    MeasurementSettings,
    Sample,
    SampleSet,
    ThrottleReason,
    Utilisation,
)

_KERNEL = Kernel(name="copy")


@dataclass
class FakeClock:
    t_s: float = 0.0

    def now_s(self) -> float:
        return self.t_s

    def sleep_s(self, duration_s: float) -> None:
        self.t_s += duration_s


@dataclass
class FakeLoop:
    clock: FakeClock

    def progress(self) -> Progress:
        launches = int(self.clock.t_s / 0.01)
        return Progress(launches=launches, elapsed_s=launches * 0.01)


@dataclass
class FakeLauncher:
    clock: FakeClock

    def notes(self) -> tuple[str, ...]:
        return ()

    @contextmanager
    def loop(self, kernels: Sequence[Kernel]) -> Iterator[Loop]:
        assert kernels
        yield FakeLoop(self.clock)


class FakeGpu:
    """A counter with a slope in J/s, in steps; stands still at slope 0, sinks below it."""

    def __init__(self, clock: FakeClock, slope_w: float) -> None:
        self.clock, self.slope_w = clock, slope_w

    def info(self) -> GpuInfo:
        return GpuInfo(name="fake")

    def supported_mem_mhz(self) -> tuple[int, ...]:
        return ()

    def supported_core_mhz(self, mem_mhz: int | None = None) -> tuple[int, ...]:
        del mem_mhz
        return ()

    def observed(self) -> Clocks:
        return AUTO

    def energy_j(self) -> float:
        self.clock.sleep_s(0.003)
        return 1e6 + int(self.clock.t_s / 0.1) * 0.1 * self.slope_w

    def power_w(self) -> float:
        return 1.0

    def temperature_c(self) -> float:
        return 40.0

    def throttle_reasons(self) -> ThrottleReason:
        return ThrottleReason.NONE

    def utilisation(self) -> Callable[[], Utilisation | None]:
        return lambda: None

    def lock(self, clocks: Clocks) -> None:
        del clocks

    def unlock(self) -> None:
        pass


def _bench(slope_w: float) -> GpuMeasurer:
    clock = FakeClock()
    return GpuMeasurer(
        FakeGpu(clock, slope_w),
        FakeLauncher(clock),
        clock,
        evidence=Evidence.MEASURED,
        measuring=MeasurementSettings(),
    )


def test_an_even_staircase_gives_its_slope() -> None:
    reading = _bench(250.0).measure([_KERNEL])

    assert reading.time_s == pytest.approx(0.01)
    assert reading.energy_j == pytest.approx(2.5, rel=2e-3)


def test_a_counter_that_stands_still_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="did not move"):
        _bench(0.0).measure([_KERNEL])


def test_a_counter_that_goes_back_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="went back"):
        _bench(-100.0).measure([_KERNEL])


def test_real_time_passes_and_never_goes_back() -> None:
    clock = SystemClock()
    before_s = clock.now_s()
    clock.sleep_s(0.0)
    clock.sleep_s(1e-3)

    assert clock.now_s() - before_s >= 1e-3


def _replay() -> ReplayMeasurer:
    rows = tuple(
        Sample(kernel="copy", repeat=i, time_s=1.0 + i, energy_j=2.0 + i) for i in range(2)
    )
    return ReplayMeasurer(
        SampleSet(
            evidence=Evidence.REPLAYED,
            gpu=GpuInfo(name="table"),
            workload="t",
            kernels=(_KERNEL,),
            samples=rows,
        )
    )


def test_repeats_of_a_replay_cycle_through_its_rows() -> None:
    measurer = _replay()
    with measurer.hold(AUTO):
        times_s = [measurer.measure([_KERNEL], repeat).time_s for repeat in range(3)]

    assert times_s == [1.0, 2.0, 1.0]
    assert measurer.repeats(_KERNEL, AUTO) == 2
    assert measurer.now_s() == 0.0


def test_a_replay_cannot_run_what_was_not_measured() -> None:
    measurer = _replay()
    with pytest.raises(MeasurementError, match="no row"), measurer.hold(Clocks(core_mhz=1)):
        measurer.measure([_KERNEL])
    with pytest.raises(MeasurementError, match="whole step"):
        measurer.measure([_KERNEL, _KERNEL])
    with pytest.raises(MeasurementError, match="warmed"):
        measurer.warm([_KERNEL])
