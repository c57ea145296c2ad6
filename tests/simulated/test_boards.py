"""What sensors and counters show of a virtual GPU."""

import dataclasses
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.app.backends import open_measurer
from underclock.gpus.models import (
    AMPERE,
    GA100,
    HOPPER,
    GpuModel,
    Meter,
    Sensors,
    gpu_model,
)
from underclock.hw.simulated.costs import GAIN_WITHIN
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.rig import Rig
from underclock.physics.constants import KernelConstants
from underclock.records import Clocks, Kernel, Kind, MeasurementSettings

_MODEL = gpu_model("rtx3080ti")
# Durations that no clock changes, so that what a sensor sees can be told in advance.
_HEAVY = KernelConstants(fixed_s=0.075, work_j_per_v2=15.0)
_LIGHT = KernelConstants(fixed_s=0.025)
# Its counter's tick: Yang et al., SC'24; its power reading is assumed.
_FAST = Meter(every_s=0.02, seen_s=0.01)
_VOLTA = dataclasses.replace(AMPERE, counter_tick_s=0.01, usage=_FAST, instant=_FAST)


def _with(sensors: Sensors) -> GpuModel:
    return dataclasses.replace(_MODEL, sensors=sensors)


def _usage_w(gpu: VirtualGpu) -> float:
    return gpu.gauges.shown_w(gpu.gauges.sensors.usage, gpu.now_s, gpu.energy_j, gpu.power_w)


def _instant_w(gpu: VirtualGpu) -> float:
    return gpu.gauges.shown_w(gpu.gauges.sensors.instant, gpu.now_s, gpu.energy_j, gpu.power_w)


@settings(max_examples=25)
@given(
    st.sampled_from([AMPERE, _VOLTA]),
    st.lists(st.tuples(st.booleans(), st.floats(1e-4, 0.7)), min_size=1, max_size=30),
)
def test_the_counter_lags_the_truth_by_less_than_a_tick(
    sensors: Sensors, steps: list[tuple[bool, float]]
) -> None:
    gpu = VirtualGpu(_with(sensors), seed=0)
    for busy, step_s in steps:
        before_mj = gpu.counter_mj
        if busy:
            gpu.begin([_HEAVY, _LIGHT])
        else:
            gpu.end()
        gpu.advance(step_s)

        assert gpu.counter_mj >= before_mj
        lag_j = gpu.energy_j - gpu.counter_mj / 1e3
        assert -0.02 <= lag_j <= sensors.counter_tick_s * 500.0


@settings(max_examples=25)
@given(st.lists(st.floats(1e-4, 0.3), min_size=1, max_size=30))
def test_looking_changes_nothing_that_is_seen_later(steps_s: list[float]) -> None:
    watched, alone = (VirtualGpu(_MODEL, seed=0) for _ in range(2))
    for gpu in (watched, alone):
        gpu.begin([_HEAVY, _LIGHT])
    for step_s in steps_s:
        watched.advance(step_s)
        _ = watched.counter_mj, _usage_w(watched), _instant_w(watched)
        alone.advance(step_s)

    assert watched.energy_j == alone.energy_j
    assert (_usage_w(watched), _instant_w(watched)) == (_usage_w(alone), _instant_w(alone))
    assert watched.counter_mj == pytest.approx(alone.counter_mj, abs=20)


@pytest.mark.parametrize("sensors", [GA100, HOPPER])
def test_a_quarter_of_the_time_is_sampled_so_a_load_can_hide(sensors: Sensors) -> None:
    # Draws much for 75 ms and little for the 25 ms that end with the sensor's tick.
    gpu = VirtualGpu(_with(sensors), seed=0)
    gpu.begin([_HEAVY, _LIGHT])
    before_j = gpu.energy_j
    gpu.advance(1.0)
    mean_w = gpu.energy_j - before_j

    assert _instant_w(gpu) < 0.6 * mean_w


@settings(max_examples=20)
@given(st.integers(1, 10_000))
def test_the_gain_bends_what_sensors_show_and_never_the_truth(unit: int) -> None:
    exact, bent = (VirtualGpu(_MODEL, seed=0, unit=unit) for _ in range(2))
    gain = bent.unit.gain
    exact.gauges = type(exact.gauges)(AMPERE, 1.0)
    for gpu in (exact, bent):
        gpu.begin([_HEAVY])
        gpu.advance(3.0)

    assert abs(gain - 1.0) <= GAIN_WITHIN
    assert bent.energy_j == exact.energy_j
    assert bent.counter_mj == pytest.approx(gain * exact.counter_mj, abs=2)
    assert _usage_w(bent) == pytest.approx(gain * _usage_w(exact))
    assert _instant_w(bent) == pytest.approx(gain * _instant_w(exact))


def _blocked_s(rig: Rig, calls: int) -> list[float]:
    taken_s = []
    for _ in range(calls):
        before_s = rig.clock.now_s()
        rig.gpu.energy_j()
        taken_s.append(rig.clock.now_s() - before_s)
    return taken_s


def test_reading_energy_blocks_as_long_as_on_an_h200(rig: Rig) -> None:
    taken_s = _blocked_s(rig, 4000)

    assert statistics.median(taken_s) == pytest.approx(3e-3, rel=0.05)
    assert _percentile(taken_s, 0.99) == pytest.approx(15e-3, rel=0.15)


@pytest.mark.untraced
def test_setting_a_clock_blocks_as_long_as_on_an_a800(rig: Rig) -> None:
    taken_s = []
    for i in range(4000):
        before_s = rig.clock.now_s()
        rig.gpu.lock(Clocks(core_mhz=900 + 15 * (i % 2)))
        taken_s.append(rig.clock.now_s() - before_s)

    assert statistics.median(taken_s) == pytest.approx(4.5e-3, rel=0.05)
    assert statistics.mean(taken_s) == pytest.approx(6e-3, rel=0.05)
    assert _percentile(taken_s, 0.99) == pytest.approx(13e-3, rel=0.1)


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


def test_the_papers_board_draws_less_while_its_memory_alone_is_held() -> None:
    def seen(clocks: Clocks, name: str) -> tuple[float, float]:
        kernel = Kernel(name="copy", kind=Kind.MEMORY, flops=1e9, bytes_moved=1e9)
        quick = MeasurementSettings(kernel_warm_s=1.0)
        with open_measurer(name, measuring=quick) as measurer, measurer.hold(clocks):
            reading = measurer.measure([kernel])
        return reading.time_s, reading.energy_j / reading.time_s

    free, held, both = Clocks(), Clocks(mem_mhz=9251), Clocks(core_mhz=1680, mem_mhz=9251)
    named = {clocks: seen(clocks, "sim:rtx3080ti#paper") for clocks in (free, held, both)}
    usual = {clocks: seen(clocks, "sim:rtx3080ti") for clocks in (free, held)}
    slowed = seen(Clocks(core_mhz=1680), "sim:rtx3080ti#paper")

    # 9251 MHz is what runs at auto: only the lock differs.
    assert named[held][0] / named[free][0] == pytest.approx(0.986, abs=2e-3)
    assert named[held][1] / named[free][1] == pytest.approx(0.958, abs=1e-2)
    assert usual[held][0] / usual[free][0] == pytest.approx(1.0, abs=2e-3)
    assert named[both][0] == pytest.approx(slowed[0], rel=2e-3)
    assert named[both][1] == pytest.approx(slowed[1], rel=1e-2)
