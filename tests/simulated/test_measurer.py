"""Measuring on the simulated GPU: against its hidden truth, and where something goes wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benches import bench
from fake_gpu import FakeClock, SteadyGpu
from underclock.errors import DeviceError, MeasurementError, NotPermittedError, UsageError
from underclock.gpus.models import link_of
from underclock.hw.base import Capability, Reading
from underclock.hw.lease import ClockLeases
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.simulated.driver import Rig, simulated_rig
from underclock.hw.simulated.work import REASON_HARD_SLOWDOWN, REASON_SOFT_SLOWDOWN
from underclock.hw.watching import LONGEST_STILL_S, InterferenceCheck
from underclock.physics.costs import busy_w, duration_s
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    Kernel,
    Kind,
    MeasurementSettings,
    Mix,
    ThrottleReason,
)
from underclock.testing import Fault, FaultKind
from underclock.workloads import workload


@pytest.mark.parametrize("clocks", [Clocks(core_mhz=1050), Clocks(core_mhz=1260, mem_mhz=5001)])
def test_a_locked_kernel_measures_what_physics_says(elementwise: Kernel, clocks: Clocks) -> None:
    with simulated_rig("rtx3080ti#smooth") as rig:
        measurer = bench(rig)
        with measurer.hold(clocks):
            reading = measurer.measure([elementwise])
            with rig.launcher.loop([elementwise]):
                auto_mem_mhz = rig.device.mem_mhz

    model = rig.device.model
    constants = model.kernel(elementwise)
    core, mem = float(clocks.core_mhz or 0), float(clocks.mem_mhz or auto_mem_mhz)
    true_s = duration_s(model.constants, constants, core, mem)
    true_w = busy_w(model.constants, constants, core, mem, rig.device.temperature_c)
    assert reading.time_s == pytest.approx(true_s, rel=2e-3)
    assert reading.energy_j / reading.time_s == pytest.approx(true_w, rel=0.015)
    assert reading.observed == Clocks(core_mhz=clocks.core_mhz, mem_mhz=int(mem))


@pytest.mark.untraced
@pytest.mark.parametrize("mix", [Mix(), Mix(launches=3, hot=2), Mix(launches=2, idle_s=0.02)])
def test_a_round_with_coload_measures_what_it_truly_takes(rig: Rig, gemm: Kernel, mix: Mix) -> None:
    rig.device.limit_power(280.0)
    measurer = bench(rig, MeasurementSettings(kernel_warm_s=2.0, window_s=1.0))
    clocks_mhz = []
    with rig.launcher.loop([gemm], mix):
        rig.clock.sleep_s(2.0)
        before_j, before_s = rig.device.energy_j, rig.clock.now_s()
        for _ in range(1000):
            rig.clock.sleep_s(1e-3)
            clocks_mhz.append(rig.device.core_mhz)
        true_w = (rig.device.energy_j - before_j) / (rig.clock.now_s() - before_s)
    reading = measurer.measure([gemm], mix=mix, timed=True)

    assert reading.energy_j / reading.time_s == pytest.approx(true_w, rel=0.015)
    assert reading.core_mhz == pytest.approx(sum(clocks_mhz) / len(clocks_mhz), abs=10.0)
    assert reading.core_spread_mhz is not None
    assert 0 <= reading.core_spread_mhz < 40
    durations = reading.durations
    assert durations is not None
    inside_s = mix.launches * durations.kernel_s[0]
    inside_s += mix.hot * (durations.hot_s or 0.0) + (durations.idle_s or 0.0)
    assert inside_s == pytest.approx(reading.time_s, rel=5e-3)


def test_only_pairs_that_hold_together_are_offered(rig: Rig) -> None:
    settings = set(bench(rig).settings())

    assert AUTO in settings
    assert Clocks(core_mhz=420, mem_mhz=405) in settings
    assert Clocks(core_mhz=435, mem_mhz=405) not in settings
    assert Clocks(mem_mhz=405) not in settings


@pytest.mark.parametrize(
    "clocks",
    [Clocks(core_mhz=2**32 + 1740), Clocks(core_mhz=1801), Clocks(core_mhz=435, mem_mhz=405)],
)
def test_clocks_that_are_not_listed_never_reach_the_driver(rig: Rig, clocks: Clocks) -> None:
    with pytest.raises(UsageError, match="this GPU does not list"), bench(rig).hold(clocks):
        pytest.fail("the block must not run")
    assert rig.clock.now_s() == 0.0


def test_where_clocks_may_not_be_set_that_is_said_before_the_driver_is_asked(rig: Rig) -> None:
    measurer = bench(rig, evidence=Evidence.MEASURED, may_lock=False)
    assert Capability.LOCK not in measurer.capabilities
    with (
        pytest.raises(NotPermittedError, match="clocks may not be set here"),
        measurer.hold(Clocks(core_mhz=1050)),
    ):
        pytest.fail("the block must not run")
    with measurer.hold(AUTO):
        assert rig.device.core_lock is None


def test_what_is_assumed_of_collectives_is_said_once_one_ran(rig: Rig, gemm: Kernel) -> None:
    measurer = bench(rig)
    gather = next(
        kernel
        for kernel in workload("gpt3-125m", {"layers": 1, "tp": 2}).kernels
        if kernel.kind is Kind.COLLECTIVE
    )
    with measurer.hold(Clocks(core_mhz=1050)):
        measurer.measure([gemm])
        before = measurer.notes()
        reading = measurer.measure([gather])

    (after,) = measurer.notes()
    assert not before
    assert "assumed" in after
    assert "PCIe 4.0" in after
    link_s = link_of(rig.device.model.name).taken_s(gather)
    assert reading.time_s == pytest.approx(link_s, rel=2e-3)


_PAIR = Clocks(core_mhz=1050, mem_mhz=5001)
_COPY = Kernel(name="copy", flops=1e9, bytes_moved=1e9)


def _script(
    kind: FaultKind, at_s: float, for_s: float = float("inf"), gpu: int | None = None
) -> tuple[Fault, ...]:
    return (Fault(at_s=at_s, kind=kind, for_s=for_s, gpu=gpu),)


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


@pytest.mark.parametrize("at_s", [0.5, 20.0, 28.0])
def test_a_gpu_lost_while_measuring_is_a_device_error(at_s: float, elementwise: Kernel) -> None:
    with simulated_rig("rtx3080ti", faults=_script(FaultKind.GPU_LOST, at_s=at_s)) as rig:
        measurer = bench(rig)
        with pytest.raises(DeviceError) as caught, measurer.hold(_PAIR):
            measurer.measure([elementwise])

        assert "GPU is lost" in str(caught.value) or "fell off the bus" in str(caught.value)
        assert "reboot" in caught.value.hint
        assert rig.device.running is None


def _reading(faults: tuple[Fault, ...]) -> tuple[Reading, float]:
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


_COPY_watching = Kernel(name="copy", kind=Kind.MEMORY, flops=0.0, bytes_moved=9e9)


def _bench(rig: Rig) -> GpuMeasurer:
    measuring = MeasurementSettings(warm_s=100.0, kernel_warm_s=2.0, window_s=1.0)
    return GpuMeasurer(
        rig.gpu, rig.launcher, rig.clock, evidence=Evidence.SIMULATED, measuring=measuring
    )


def _measure(rig: Rig) -> None:
    with _bench(rig).hold(Clocks(core_mhz=1050)):
        _bench(rig).measure([_COPY_watching])


def _warm(rig: Rig) -> None:
    _bench(rig).warm([_COPY_watching])


@pytest.mark.parametrize(
    ("use", "doing"), [(_measure, "measuring"), (_warm, "warming the GPU")], ids=["measure", "warm"]
)
def test_a_gpu_lost_for_a_moment_does_not_hang_the_wait(
    use: Callable[[Rig], None], doing: str
) -> None:
    faults = (Fault(at_s=1.5, kind=FaultKind.GPU_LOST, for_s=0.01),)
    with simulated_rig("rtx3080ti", faults=faults) as rig:
        with pytest.raises(MeasurementError, match=rf"no launch ended in \d+ s while {doing}"):
            use(rig)
        assert rig.clock.now_s() < 4 * LONGEST_STILL_S
        assert rig.device.core_lock is None
