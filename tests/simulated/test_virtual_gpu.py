"""A virtual GPU's clocks, power and heat, its sensors, and what it runs for whom."""

import dataclasses
import os
import statistics
from collections.abc import Iterator

import numpy as np
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underclock.app.backends import open_measurer
from underclock.app.launching import others_on_gpus
from underclock.errors import MeasurementError, NotSupportedError, UsageError
from underclock.gpus.models import (
    AMPERE,
    GpuModel,
    Meter,
    Sensors,
    SwitchingModel,
    gpu_model,
    reported_latency,
)
from underclock.hw import nvml
from underclock.hw.base import Durations, Progress, Turn
from underclock.hw.nvml import NvmlGpu, shown_by_cuda
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.boards import GAIN_WITHIN, SimulatedCosts, heater
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import Rig, simulated_rig
from underclock.hw.simulated.work import FaultKind, LaunchLoop
from underclock.physics.constants import KernelConstants
from underclock.records import Clocks, Kernel, Kind, MeasurementSettings, Mix, Step
from underclock.testing import simulated_driver
from underclock.units import Domain

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


@settings(max_examples=20)
@given(st.integers(1, 10_000))
def test_the_gain_bends_what_sensors_show_and_never_the_truth(unit: int) -> None:
    exact, bent = (VirtualGpu(_MODEL, seed=0, unit=unit) for _ in range(2))
    gain = bent.unit.gain
    exact.gauges = type(exact.gauges)(AMPERE, 1.0, kind=bent.unit.kind)
    for gpu in (exact, bent):
        gpu.begin([_HEAVY])
        gpu.advance(3.0)

    assert abs(gain - 1.0) <= GAIN_WITHIN
    assert bent.energy_j == exact.energy_j
    assert bent.counter_mj == pytest.approx(gain * exact.counter_mj, abs=2)
    assert _usage_w(bent) == pytest.approx(gain * _usage_w(exact))
    assert _instant_w(bent) == pytest.approx(gain * _instant_w(exact))


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


def _busy(kernels: list[Kernel], *, seed: int = 0) -> VirtualGpu:
    gpu = VirtualGpu(_MODEL, seed=seed)
    gpu.begin([_MODEL.kernel(kernel) for kernel in kernels])
    return gpu


def test_the_same_seed_gives_the_same_run(gemm: Kernel) -> None:
    first, again, other = (_busy([gemm], seed=seed) for seed in (1, 1, 2))
    for gpu in (first, again, other):
        gpu.advance(60.0)

    def outcome(gpu: VirtualGpu) -> tuple[float, float]:
        assert gpu.running is not None
        return gpu.energy_j, gpu.running.completed_s

    assert outcome(first) == outcome(again)
    assert outcome(first) != outcome(other)


@pytest.mark.untraced
def test_a_repeated_kernel_settles_at_the_power_limit_as_a_mixed_step_does(
    step: Step, gemm: Kernel
) -> None:
    for kernels in ([gemm], [gemm, gemm], [step.kernels[i] for i in step.order]):
        gpu = _busy(kernels)
        gpu.limit_power(280.0)
        gpu.advance(60.0)
        before_j = gpu.energy_j
        gpu.advance(30.0)
        settled_w = 280.0 - _MODEL.cap_margin_w
        assert (gpu.energy_j - before_j) / 30.0 == pytest.approx(settled_w, abs=4.0)


_LIMIT_W, _MARGIN_W, _BIN_MHZ, _LEAST_MHZ, _BOOST_MHZ = 350.0, 2.0, 15.0, 210.0, 1905.0


def _rate_s(before: Progress, after: Progress) -> float:
    return (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)


def _timed(
    rig: Rig, kernels: list[Kernel], mix: Mix | None, for_s: float = 1.0
) -> tuple[float, Durations, float]:
    """Return the time of a round, what launches took, and the clock."""
    with rig.launcher.loop(kernels, mix) as loop:
        rig.clock.sleep_s(3.0)
        before = loop.progress()
        durations = loop.durations(for_s)
        rig.clock.sleep_s(0.5)
        return _rate_s(before, loop.progress()), durations, rig.device.core_mhz


class _OneByOne(LaunchLoop):  # launches of another kind of loop are not counted together
    pass


@pytest.mark.parametrize("limit_w", [350.0, 150.0])
def test_short_launches_counted_together_take_and_draw_what_they_do_one_by_one(
    limit_w: float,
) -> None:
    random = np.random.default_rng(3)
    kernels = [
        KernelConstants(core_mcycles=core, dram_mcycles=memory, work_j_per_v2=60.0 * core / 1e3)
        for core, memory in random.uniform(0.002, 0.1, (300, 2))
    ]
    turns, seen = [Turn(number // 2, 1 + number % 3) for number in range(len(kernels))], []
    for kind in (LaunchLoop, _OneByOne):
        gpu = VirtualGpu(_MODEL, seed=0, unit=1)
        gpu.limit_w = limit_w
        loop = kind(tuple(kernels), *gpu.draw_noise(), tuple(turns))
        gpu.run(loop)
        gpu.advance(4.0)
        took_s, done = np.array(loop.counted()).T
        assert took_s.sum() == pytest.approx(loop.elapsed_s, rel=1e-9)
        seen.append(
            (loop.completed_s / loop.launches, gpu.energy_j, gpu.temperature_c, took_s, done)
        )
        assert gpu.capped == (limit_w < 200.0)

    for rel, together, one_by_one in zip((1e-6, 1e-4, 1e-3, 1e-3, 1e-3), *seen, strict=True):
        assert together == pytest.approx(one_by_one, rel=rel)


def test_a_gpu_that_was_lost_for_a_moment_is_not_waited_for_for_ever(
    rig: Rig, gemm: Kernel
) -> None:
    with rig.launcher.loop([gemm], Mix(idle_s=0.01)) as loop:
        rig.device.agenda.add(0.5, lambda: rig.device.fail(FaultKind.GPU_LOST))
        rig.device.agenda.add(0.6, lambda: rig.device.mend(FaultKind.GPU_LOST))
        with pytest.raises(MeasurementError, match="no launch ended"):
            loop.durations(1.0)


@pytest.fixture
def hot_rig() -> Iterator[Rig]:
    with simulated_rig("h200") as made:
        yield made


def test_no_kernel_exceeds_the_peak_of_power_though_the_clock_reads_boost(hot_rig: Rig) -> None:
    model = hot_rig.device.model
    assert model.peak_w is not None
    held, free = (
        SimulatedCosts(model.constants, model.core_mhz, peak_w).at(heater(model), 1980.0, 3201)
        for peak_w in (model.peak_w, None)
    )
    product = Kernel(name="product", kind=Kind.GEMM, flops=2.0 * 8192**3, bytes_moved=6.0 * 8192**2)
    _, durations, core_mhz = _timed(hot_rig, [product], Mix(launches=4, idle_s=0.01))

    assert free.power_w(60.0) > 1.02 * model.peak_w
    assert held.power_w(60.0) == pytest.approx(model.peak_w, rel=1e-3)
    assert core_mhz == 1980.0
    assert durations.kernel_s[0] == pytest.approx(held.duration_s, rel=2e-3)
    assert durations.kernel_s[0] > 1.01 * free.duration_s
    assert durations.idle_s == pytest.approx(0.01, rel=2e-3)


def test_the_driver_lists_the_processes_and_what_they_use(gemm: Kernel) -> None:
    with simulated_driver("rtx3080ti") as machine:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
        free_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).free
        with machine.run(gemm), machine.shared(gemm, pid=1234, share=0.25):
            machine.clock.sleep_s(1.0)
            found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            assert {process.pid for process in found} == {1234, os.getpid()}
            assert all(process.usedGpuMemory > 0 for process in found)
            use = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
            assert {sample.pid: sample.smUtil for sample in use} == {1234: 25, os.getpid(): 75}
            assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 100
            assert pynvml.nvmlDeviceGetMemoryInfo(handle).free < free_bytes
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetProcessUtilization(handle, 0)


def test_another_job_on_the_gpu_is_named_with_a_traced_step(gemm: Kernel) -> None:
    with simulated_driver("rtx3080ti", count=2) as machine, nvml_session():
        assert others_on_gpus() == ()
        with machine.shared(gemm, pid=os.getppid(), share=0.25):
            (note,) = others_on_gpus()
    assert note.startswith(f"process {os.getppid()} also computes on nvml:0: the step was timed")


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        (None, (0, 1, 2)),
        ("1", (1,)),
        ("2, 0", (2, 0)),
        ("{2},GPU-none,0", (2,)),
        ("{1:.12}", (1,)),
        ("1,1", (1,)),
    ],
    ids=["not set", "index", "reordered", "UUID", "beginning of a UUID", "twice"],
)
def test_what_cuda_shows_is_found_by_index_and_uuid(
    monkeypatch: pytest.MonkeyPatch, devices: str | None, shown: tuple[int, ...]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with simulated_driver("rtx3080ti", count=3), nvml_session():
        if devices is not None:
            uuids = [NvmlGpu(index).uuid() for index in range(3)]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices.format(*uuids))
        assert shown_by_cuda() == tuple(f"nvml:{index}" for index in shown)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("", "CUDA_VISIBLE_DEVICES is ''"),
        ("-1", "CUDA_VISIBLE_DEVICES is '-1'"),
        ("3", "CUDA_VISIBLE_DEVICES is '3'"),
        ("GPU", "CUDA_VISIBLE_DEVICES is 'GPU'"),
        ("MIG-1-2-3,0", "names MIG-1-2-3, a part of a GPU split into MIG instances"),
    ],
)
def test_where_cuda_shows_no_whole_gpu_nothing_is_taken_for_one(
    monkeypatch: pytest.MonkeyPatch, devices: str, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    with (
        simulated_driver("rtx3080ti", count=3),
        pytest.raises((UsageError, NotSupportedError), match=words),
    ):
        shown_by_cuda()


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "gpu_count", lambda: 0)
    with (
        simulated_driver("rtx3080ti"),
        pytest.raises(UsageError, match="the driver lists none") as caught,
    ):
        shown_by_cuda()
    assert "nvidia-smi -L" in caught.value.hint


_MODEL_switching = dataclasses.replace(gpu_model("rtx3080ti"), p2_mem_mhz=None)
_STEADY = KernelConstants(fixed_s=1e-3)
_EXACT = SwitchingModel(jitter=0.0)


def _gpu(switching: SwitchingModel | None = None, *, seed: int = 0, unit: int = 0) -> VirtualGpu:
    gpu = VirtualGpu(
        dataclasses.replace(_MODEL_switching, switching=switching), seed=seed, unit=unit
    )
    gpu.begin([_STEADY])
    gpu.advance(1.0)
    return gpu


def _core_delay_s(gpu: VirtualGpu, mhz: int) -> float:
    started_s = gpu.now_s
    gpu.lock_core((mhz, mhz))
    while gpu.core_mhz != mhz:
        gpu.advance(1e-4)
        assert gpu.now_s < started_s + 5.0
    return gpu.now_s - started_s


def test_a_clock_follows_its_lock_after_the_targets_own_delay() -> None:
    gpu = _gpu(_EXACT)
    targets = [600, 900, 1200, 1500]
    delays_s = [_core_delay_s(gpu, mhz) for mhz in targets]
    usual_s = [_EXACT.usual_s(_MODEL_switching.name, Domain.CORE, (mhz, mhz)) for mhz in targets]

    assert delays_s == pytest.approx(usual_s, abs=2e-4)
    assert max(delays_s) > 1.1 * min(delays_s)


def test_a_target_is_as_slow_on_every_unit_and_jitters_from_switch_to_switch() -> None:
    exact = {_core_delay_s(_gpu(_EXACT, seed=seed, unit=seed), 900) for seed in range(3)}
    gpu, again = _gpu(), _gpu()
    shaken = [_core_delay_s(gpu, mhz) for mhz in (900, 1200) * 10]

    assert max(exact) - min(exact) < 2e-4
    assert statistics.stdev(shaken[::2]) > 2e-4
    assert shaken == [_core_delay_s(again, mhz) for mhz in (900, 1200) * 10]


def test_nothing_executes_while_the_memory_clock_changes() -> None:
    def launches(stall_s: float, mhz: int) -> int:
        gpu = _gpu(SwitchingModel(mem_stall_s=stall_s))
        assert gpu.running is not None
        before = gpu.running.launches
        gpu.lock_mem((mhz, mhz))
        gpu.advance(2.0)
        return gpu.running.launches - before

    assert launches(0.0, 5001) - launches(0.25, 5001) == pytest.approx(250, abs=2)
    # Where the memory already runs there, nothing changes and nothing stalls.
    assert launches(0.25, _MODEL_switching.mem_mhz[-1]) == launches(
        0.0, _MODEL_switching.mem_mhz[-1]
    )


@pytest.mark.parametrize(
    ("model", "range_s"),
    [
        ("RTX 3080 Ti", (6e-3, 0.15)),
        ("NVIDIA A100-SXM4-80GB", (3e-3, 13e-3)),
        ("NVIDIA H200", (6e-3, 0.1)),
        ("NVIDIA GeForce RTX 5090", (1e-5, 1e-4)),
        ("Tesla V100-SXM2-16GB", (24.5e-3, 24.5e-3)),
        ("Quadro RTX 6000", (0.15, 0.15)),
        ("AMD Instinct MI300X", None),
        ("G", None),
    ],
)
def test_what_is_reported_of_a_model_is_found_by_its_name(
    model: str, range_s: tuple[float, float] | None
) -> None:
    found = reported_latency(model)
    assert (found and found[:2]) == range_s
