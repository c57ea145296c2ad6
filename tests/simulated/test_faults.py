"""What goes wrong on demand, and what a user of lease and measurer sees of it."""

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benches import bench
from underclock.errors import DeviceError, MeasurementError, NotPermittedError
from underclock.hw.base import Reading
from underclock.hw.lease import ClockLeases
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.faults import REASON_HARD_SLOWDOWN, REASON_SOFT_SLOWDOWN
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.records import AUTO, Clocks, Kernel
from underclock.testing import Fault, FaultKind, FaultScript, simulated_driver

_PAIR = Clocks(core_mhz=1050, mem_mhz=5001)
_COPY = Kernel(name="copy", flops=1e9, bytes_moved=1e9)


def _script(
    kind: FaultKind, at_s: float, for_s: float = float("inf"), gpu: int | None = None
) -> FaultScript:
    return FaultScript([Fault(at_s=at_s, kind=kind, for_s=for_s, gpu=gpu)])


def _locks(rig: Rig) -> list[tuple[int, int]]:
    """Return what is locked, core first."""
    return [lock for lock in (rig.device.core_lock, rig.device.mem_lock) if lock is not None]


def test_permission_revoked_inside_a_lease_is_told_and_leaves_the_lock_to_undo_later() -> None:
    faults = _script(FaultKind.PERMISSION_REVOKED, at_s=5.0, for_s=10.0)
    with simulated_rig("rtx3080ti", faults=faults) as rig:
        with (
            pytest.raises(NotPermittedError, match="could not unlock"),
            ClockLeases(rig.gpu).hold(_PAIR),
        ):
            rig.clock.sleep_s(6.0)
        assert _locks(rig) == [(1050, 1050), (5001, 5001)]

        rig.clock.sleep_s(10.0)
        rig.gpu.unlock()
        assert _locks(rig) == []


def test_a_lock_that_fails_half_way_is_undone(elementwise: Kernel) -> None:
    faults = _script(FaultKind.MEMORY_REFUSED, at_s=1.0)
    with simulated_rig("rtx3080ti", faults=faults) as rig, rig.launcher.loop([elementwise]):
        rig.clock.sleep_s(2.0)
        with pytest.raises(DeviceError, match="could not lock the memory at 5001 MHz"):
            rig.gpu.lock(_PAIR)
        assert _locks(rig) == [(1050, 1050)]  # without a lease the core stays locked
        with (
            pytest.raises(DeviceError, match="could not lock the memory at 5001 MHz"),
            ClockLeases(rig.gpu).hold(_PAIR),
        ):
            pytest.fail("the block must not run")
        assert _locks(rig) == []
        rig.clock.sleep_s(1.0)
        assert (rig.gpu.observed().core_mhz or 0) > 1050


@pytest.mark.parametrize("at_s", [0.5, 20.0, 28.0])
def test_a_gpu_lost_while_measuring_is_a_device_error(at_s: float, elementwise: Kernel) -> None:
    with simulated_rig("rtx3080ti", faults=_script(FaultKind.GPU_LOST, at_s=at_s)) as rig:
        measurer = bench(rig)
        with pytest.raises(DeviceError) as caught, measurer.hold(_PAIR):
            measurer.measure([elementwise])

        assert "GPU is lost" in str(caught.value) or "fell off the bus" in str(caught.value)
        assert "reboot" in caught.value.hint
        assert rig.device.running is None


def test_of_a_lost_gpu_every_call_says_so_and_its_neighbour_still_answers(
    elementwise: Kernel,
) -> None:
    faults = _script(FaultKind.GPU_LOST, at_s=2.0, gpu=1)
    with simulated_driver("rtx3080ti", count=2, faults=faults) as machine, nvml_session():
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        with machine.run(elementwise, gpu=1) as loop:
            machine.clock.sleep_s(3.0)
            assert machine.gpus[1].running is None
            with pytest.raises(DeviceError, match="fell off the bus"):
                loop.progress()
        for call in (
            pynvml.nvmlDeviceGetName,
            pynvml.nvmlDeviceGetTotalEnergyConsumption,
            pynvml.nvmlDeviceGetPowerUsage,
            pynvml.nvmlDeviceGetPerformanceState,
            pynvml.nvmlDeviceResetGpuLockedClocks,
            pynvml.nvmlDeviceGetComputeRunningProcesses,
        ):
            call(handles[0])
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                call(handles[1])
        with pytest.raises(DeviceError, match="fell off the bus"), machine.run(elementwise, gpu=1):
            pytest.fail("nothing can be launched")


def _reading(faults: FaultScript | None) -> tuple[Reading, float]:
    """Return one reading and the true power at its end."""
    with simulated_rig("rtx3080ti", faults=faults) as rig:
        measurer = bench(rig)
        with measurer.hold(Clocks(core_mhz=1050)):
            rig.clock.sleep_s(10.0)
            with rig.launcher.loop([_COPY]):
                rig.clock.sleep_s(10.0)
            reading = measurer.measure([_COPY])
            with rig.launcher.loop([_COPY]):
                return reading, rig.device.power_w


@pytest.mark.slow
@settings(max_examples=40)
@given(st.floats(0.0, 60.0))
def test_whenever_the_counter_goes_back_the_reading_is_right_or_refused(at_s: float) -> None:
    try:
        reading, power_w = _reading(_script(FaultKind.COUNTER_RESTARTS, at_s=at_s))
    except MeasurementError:
        return

    assert reading.energy_j / reading.time_s == pytest.approx(power_w, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "reason", "left"),
    [
        (FaultKind.SOFT_SLOWDOWN, REASON_SOFT_SLOWDOWN, 0.75),
        (FaultKind.HARD_SLOWDOWN, REASON_HARD_SLOWDOWN, 0.5),
    ],
)
def test_a_thermal_slowdown_shows_in_clock_reason_and_reading_and_ends(
    kind: FaultKind, reason: int, left: float, elementwise: Kernel
) -> None:
    with simulated_rig("rtx3080ti", faults=_script(kind, at_s=100.0, for_s=60.0)) as rig:
        measurer = bench(rig)
        highest_mhz = rig.gpu.supported_core_mhz()[-1]
        readings = []
        for at_s in (50.0, 110.0, 200.0):
            rig.clock.sleep_s(at_s - rig.clock.now_s())
            with measurer.hold(AUTO):
                readings.append(measurer.measure([elementwise]))

    reasons = [reading.throttle_reasons or 0 for reading in readings]
    cores_mhz = [(reading.observed or AUTO).core_mhz or 0 for reading in readings]
    assert [found & reason for found in reasons] == [0, reason, 0]
    assert cores_mhz[1] <= left * highest_mhz < cores_mhz[0]
    assert cores_mhz[2] > left * highest_mhz
