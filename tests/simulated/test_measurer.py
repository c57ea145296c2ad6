"""Measuring on the simulated GPU, scored against its hidden truth."""

import pytest

from benches import bench
from underclock.errors import NotPermittedError, UsageError
from underclock.gpus.models import link_of
from underclock.hw.base import Capability
from underclock.hw.simulated.rig import Rig
from underclock.physics.costs import busy_w, duration_s
from underclock.records import AUTO, Clocks, Evidence, Kernel, Kind, MeasurementSettings, Mix
from underclock.workloads import workload


@pytest.mark.parametrize("clocks", [Clocks(core_mhz=1050), Clocks(core_mhz=1260, mem_mhz=5001)])
def test_a_locked_kernel_measures_what_physics_says(
    rig: Rig, elementwise: Kernel, clocks: Clocks
) -> None:
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


@pytest.mark.untraced
@pytest.mark.parametrize("clocks", [AUTO, Clocks(core_mhz=1800)])
def test_coload_that_brings_the_cap_is_no_interference(
    rig: Rig, elementwise: Kernel, clocks: Clocks
) -> None:
    rig.device.limit_power(220.0)
    measurer = bench(rig, MeasurementSettings(kernel_warm_s=1.0))
    with measurer.hold(clocks):
        for mix in (Mix(), Mix(hot=5), Mix(idle_s=0.01), Mix(hot=5)):
            reading = measurer.measure([elementwise], mix=mix)
            assert reading.core_mhz is not None
            assert reading.core_mhz <= 1920


def test_warming_ends_at_a_steady_temperature(rig: Rig, gemm: Kernel) -> None:
    temperature_c = bench(rig).warm([gemm])

    assert rig.clock.now_s() >= 100.0
    assert temperature_c == pytest.approx(rig.device.temperature_c, abs=1.0)


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
