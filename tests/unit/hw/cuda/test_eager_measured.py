"""A step that is no graph, measured as any other: its energy, its time, and its launches inside."""

from typing import Any

import pytest

from underclock.errors import NotSupportedError
from underclock.hw.base import Capability, Gpu
from underclock.hw.measurer import GpuMeasurer
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, MeasurementSettings, Mix
from underclock.records.measured import ThrottleReason

_STEP = {"norm": 1e-3, "mm": 6e-3, "gelu": 1e-3}
_HOST_S = 2e-3
_TICK_S, _POWER_W = 0.1, 400.0
_KERNELS = [Kernel(name=name) for name in _STEP]
_BRIEF = MeasurementSettings(
    warm_s=0.1, steady_s=0.1, settle_s=0.0, kernel_warm_s=0.1, window_s=0.3, launches=3
)


class Board:
    """As much of a GPU as a measurer reads: a counter that climbs in steps, at one power."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine

    def info(self) -> GpuInfo:
        return GpuInfo(name="G", power_limit_w=700.0)

    def supported_mem_mhz(self) -> tuple[int, ...]:
        return (2619,)

    def supported_core_mhz(self, _mem_mhz: int | None = None) -> tuple[int, ...]:
        return (1500, 1980)

    def observed(self) -> Clocks:
        return Clocks(core_mhz=1980, mem_mhz=2619)

    def energy_j(self) -> float:
        ticks = int(self._machine.now_s / _TICK_S)
        return float(_POWER_W * _TICK_S * ticks)

    def power_w(self) -> float:
        return _POWER_W

    def temperature_c(self) -> float:
        return 50.0

    def throttle_reasons(self) -> ThrottleReason:
        return ThrottleReason.NONE

    def utilisation(self) -> Any:
        return lambda: None

    def lock(self, _clocks: Clocks) -> None: ...

    def unlock(self) -> None: ...


@pytest.fixture
def measurer(machine: Any) -> GpuMeasurer:
    def step() -> None:
        for name, takes_s in _STEP.items():
            machine.launch_kernel(name, takes_s)
        machine.wait(_HOST_S)

    launcher = machine.eager(step, *_STEP)
    board: Gpu = Board(machine)
    return GpuMeasurer(board, launcher, machine.clock, evidence=Evidence.MEASURED, measuring=_BRIEF)


def test_a_whole_step_is_measured_with_what_its_launches_take_inside(measurer: GpuMeasurer) -> None:
    reading = measurer.measure(_KERNELS, mix=Mix(), timed=True)

    step_s = sum(_STEP.values()) + _HOST_S
    assert reading.time_s == pytest.approx(step_s, rel=1e-3)  # a mark takes 3 µs
    assert reading.energy_j / reading.time_s == pytest.approx(_POWER_W, rel=0.1)
    assert reading.core_mhz == 1980.0
    assert reading.durations is not None
    assert reading.durations.kernel_s == pytest.approx((1e-3, 6e-3, 1e-3 + _HOST_S))
    assert any("waits for the host in 20% of the step" in note for note in measurer.notes())


def test_it_warms_the_gpu_as_well(measurer: GpuMeasurer) -> None:
    assert measurer.warm(_KERNELS) == 50.0


def test_a_kernel_alone_is_no_measurement(measurer: GpuMeasurer) -> None:
    assert Capability.MIX in measurer.capabilities
    with pytest.raises(NotSupportedError, match="only the whole step can run"):
        measurer.measure(_KERNELS[:1])
