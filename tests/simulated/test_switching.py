"""Locks and how clocks follow them: late, target by target, or not at all."""

import dataclasses
import statistics

import pynvml
import pytest

from benches import bench
from underclock.errors import NotAppliedError
from underclock.gpus.models import SwitchingModel, gpu_model, reported_latency
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.rig import simulated_rig
from underclock.physics.constants import KernelConstants
from underclock.records import Clocks, Kernel
from underclock.records.latencies import Domain

_MODEL = dataclasses.replace(gpu_model("rtx3080ti"), p2_mem_mhz=None)
_STEADY = KernelConstants(fixed_s=1e-3)
_EXACT = SwitchingModel(jitter=0.0)


def _gpu(switching: SwitchingModel | None = None, *, seed: int = 0, unit: int = 0) -> VirtualGpu:
    gpu = VirtualGpu(dataclasses.replace(_MODEL, switching=switching), seed=seed, unit=unit)
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
    usual_s = [_EXACT.usual_s(_MODEL.name, Domain.CORE, (mhz, mhz)) for mhz in targets]

    assert delays_s == pytest.approx(usual_s, abs=2e-4)
    assert max(delays_s) > 1.1 * min(delays_s)


def test_a_target_is_as_slow_on_every_unit_and_jitters_from_switch_to_switch() -> None:
    exact = {_core_delay_s(_gpu(_EXACT, seed=seed, unit=seed), 900) for seed in range(3)}
    gpu, again = _gpu(), _gpu()
    shaken = [_core_delay_s(gpu, mhz) for mhz in (900, 1200) * 10]

    assert max(exact) - min(exact) < 2e-4
    assert statistics.stdev(shaken[::2]) > 2e-4
    assert shaken == [_core_delay_s(again, mhz) for mhz in (900, 1200) * 10]


def test_a_later_lock_replaces_one_that_has_not_landed() -> None:
    gpu = _gpu(_EXACT)
    gpu.lock_core((600, 600))
    gpu.advance(1e-3)
    gpu.lock_core((1500, 1500))
    seen = set()
    for _ in range(1000):
        gpu.advance(1e-3)
        seen.add(gpu.core_mhz)

    assert 600 not in seen
    assert gpu.core_mhz == 1500


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
    assert launches(0.25, _MODEL.mem_mhz[-1]) == launches(0.0, _MODEL.mem_mhz[-1])


def test_a_bench_does_not_measure_at_clocks_it_did_not_get(elementwise: Kernel) -> None:
    model = dataclasses.replace(_MODEL, ignored_locks=(Domain.CORE,))
    with simulated_rig(model) as rig:
        measurer = bench(rig)
        with (
            pytest.raises(NotAppliedError, match="core asked 1050"),
            measurer.hold(Clocks(core_mhz=1050)),
        ):
            measurer.measure([elementwise])
        assert rig.device.core_lock is None


def test_computing_demotes_the_memory_clock_where_the_model_says_so(elementwise: Kernel) -> None:
    model = dataclasses.replace(_MODEL, p2_mem_mhz=9251)
    with simulated_rig(model) as rig:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetPerformanceState(handle) == pynvml.NVML_PSTATE_8
        assert rig.gpu.observed().mem_mhz == 405
        with rig.launcher.loop([elementwise]):
            assert pynvml.nvmlDeviceGetPerformanceState(handle) == pynvml.NVML_PSTATE_2
            assert rig.gpu.observed().mem_mhz == 9251
            with ClockLeases(rig.gpu).hold(Clocks(mem_mhz=9501)):
                rig.clock.sleep_s(1.0)
                assert rig.gpu.observed().mem_mhz == 9501


@pytest.mark.parametrize(
    ("model", "range_s"),
    [
        ("RTX 3080 Ti", (6e-3, 0.15)),
        ("NVIDIA GeForce RTX 4090 D", (6e-3, 0.15)),
        ("NVIDIA A100-SXM4-80GB", (3e-3, 13e-3)),
        ("NVIDIA RTX A4000", (6e-3, 0.15)),
        ("NVIDIA L40S", (6e-3, 0.15)),
        ("NVIDIA H200", (6e-3, 0.1)),
        ("NVIDIA GH200 480GB", (6e-3, 0.1)),
        ("NVIDIA B200", (1e-5, 1e-4)),
        ("NVIDIA GeForce RTX 5090", (1e-5, 1e-4)),
        ("NVIDIA RTX PRO 6000 Blackwell", (1e-5, 1e-4)),
        ("Tesla V100-SXM2-16GB", (24.5e-3, 24.5e-3)),
        ("Quadro RTX 6000", (0.15, 0.15)),
        ("TITAN X (Pascal)", None),
        ("AMD Instinct MI300X", None),
        ("G", None),
    ],
)
def test_what_is_reported_of_a_model_is_found_by_its_name(
    model: str, range_s: tuple[float, float] | None
) -> None:
    found = reported_latency(model)
    assert (None if found is None else (found.least_s, found.most_s)) == range_s
