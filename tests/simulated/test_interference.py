"""Another program that sets the clocks of the GPU that is being measured."""

from dataclasses import dataclass, field

import pytest

from benches import bench
from fake_gpu import FakeClock, SteadyGpu
from underclock.errors import MeasurementError
from underclock.hw.base import Reading
from underclock.hw.simulated.rig import Rig
from underclock.hw.watching import InterferenceCheck
from underclock.records import AUTO, Clocks, Kernel, MeasurementSettings, ThrottleReason

_BRIEF = MeasurementSettings(warm_s=1.0, kernel_warm_s=1.0, window_s=1.0)


def _measured(rig: Rig, kernel: Kernel, asked: Clocks, theirs: Clocks | None) -> Reading:
    """Measure while another program locks clocks of its own in the middle of the window."""
    measurer = bench(rig, _BRIEF)
    with measurer.hold(Clocks(core_mhz=1050)):
        measurer.measure([kernel])  # it is known now that this GPU follows its locks
    with measurer.hold(asked):
        if theirs is not None:
            rig.device.agenda.add(rig.clock.now_s() + 1.2, lambda: rig.gpu.lock(theirs))
        return measurer.measure([kernel])


@pytest.mark.parametrize("asked_mhz", [1200, 1905, 2115])
def test_a_core_far_below_its_lock_without_a_reason_is_interference(
    rig: Rig, elementwise: Kernel, asked_mhz: int
) -> None:
    with pytest.raises(MeasurementError, match="held below its lock without a reason") as caught:
        _measured(rig, elementwise, Clocks(core_mhz=asked_mhz), Clocks(core_mhz=900))

    assert f"locked at {asked_mhz} MHz, it runs at 900 MHz" in str(caught.value)
    assert "end it and measure again" in caught.value.hint
    assert rig.device.core_lock is None


def test_a_core_above_its_lock_is_interference_where_it_followed_before(
    rig: Rig, elementwise: Kernel
) -> None:
    with pytest.raises(MeasurementError, match="left its lock while it was measured"):
        _measured(rig, elementwise, Clocks(core_mhz=900), Clocks(core_mhz=1500))


def test_a_gpu_alone_is_measured(rig: Rig, elementwise: Kernel, gemm: Kernel) -> None:
    for kernel in (elementwise, gemm):
        for mhz in (900, 1905, 2115):  # the last is beyond what it boosts to, and the cap
            assert _measured(rig, kernel, Clocks(core_mhz=mhz), None).observed


@dataclass
class FakeGpu(SteadyGpu):
    """Runs at whatever it is told to."""

    core_mhz: int | None = 1900
    reasons: ThrottleReason = ThrottleReason.NONE
    celsius: float = 60.0
    mends_after: int = 1000
    reads: int = field(default=0)
    cores_mhz: tuple[int, ...] = tuple(range(210, 2101, 15))

    def observed(self) -> Clocks:
        self.reads += 1
        return Clocks(core_mhz=self.core_mhz)

    def throttle_reasons(self) -> ThrottleReason:
        return ThrottleReason.SW_POWER_CAP if self.reads > self.mends_after else self.reasons


def _check(gpu: FakeGpu, *before: Clocks) -> InterferenceCheck:
    """Return a check that has seen a GPU boost to what it runs at now."""
    check = InterferenceCheck(gpu, FakeClock())
    for clocks in before:
        check.read(clocks)
    return check


def test_heat_since_then_explains_a_bin_every_few_degrees() -> None:
    gpu = FakeGpu()
    check = _check(gpu, AUTO)
    gpu.core_mhz, gpu.celsius = 1825, 72.0
    check.read(Clocks(core_mhz=1905))
    gpu.core_mhz = 1700

    with pytest.raises(MeasurementError):
        check.read(Clocks(core_mhz=1905))


def test_a_reason_that_shows_a_moment_later_explains_it() -> None:
    gpu = FakeGpu(mends_after=3)
    check = _check(gpu, AUTO)
    gpu.core_mhz = 900

    assert check.read(Clocks(core_mhz=1500)).observed.core_mhz == 900


@pytest.mark.parametrize("reason", [r for r in ThrottleReason if r is not ThrottleReason.GPU_IDLE])
def test_any_reason_but_rest_explains_a_low_clock(reason: ThrottleReason) -> None:
    gpu = FakeGpu(core_mhz=900, reasons=reason)

    assert _check(gpu).read(Clocks(core_mhz=1500)).reasons == reason
    gpu.reasons = ThrottleReason.GPU_IDLE
    with pytest.raises(MeasurementError):
        _check(gpu).read(Clocks(core_mhz=1500))
