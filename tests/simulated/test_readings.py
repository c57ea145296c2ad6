"""Readings that a GPU lacks, or that cannot be: each costs what needs it, and nothing else."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pynvml
import pytest

from benches import bench
from small_training import plan
from underclock.app.doctor import examine
from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.measurer import BRISK, GpuMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated import calls
from underclock.hw.simulated.calls import CArgument, DeviceCall, behind, put
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import SimulatedDriver
from underclock.hw.simulated.rig import simulated_driver, simulated_rig
from underclock.records import Kernel
from underclock.runtime.holding.held_gpu import holding
from underclock.runtime.holding.run import run

_COUNTER = "nvmlDeviceGetTotalEnergyConsumption"
_LIMITS = (
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
)
_CLOCKS = ("nvmlDeviceGetSupportedMemoryClocks", "nvmlDeviceGetSupportedGraphicsClocks")
_OPTIONAL = (
    *_LIMITS,
    *_CLOCKS,
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
)


def _answers(monkeypatch: pytest.MonkeyPatch, name: str, call: DeviceCall) -> None:
    monkeypatch.setitem(calls.READS, name, call)


def _lacks(monkeypatch: pytest.MonkeyPatch, *names: str, code: int) -> None:
    for name in names:
        _answers(monkeypatch, name, lambda *_: code)


@contextmanager
def _measurer(
    monkeypatch: pytest.MonkeyPatch, spoilt: Callable[[int, int], int]
) -> Iterator[GpuMeasurer]:
    """Open a measurer whose counter shows what a function makes of its number and its mJ."""
    original, count = calls.READS[_COUNTER], 0

    def read(driver: SimulatedDriver, gpu: object, out: CArgument) -> int:
        nonlocal count
        count += 1
        code = original(driver, gpu, out)
        put(out, spoilt(count, behind(out).value) % 2**64)
        return code

    _answers(monkeypatch, _COUNTER, read)
    with simulated_rig("rtx3080ti") as rig:
        yield bench(rig, BRISK)


@pytest.mark.parametrize("seed", range(4))
def test_odd_readings_of_the_counter_are_dropped_and_counted(
    seed: int, monkeypatch: pytest.MonkeyPatch, gemm: Kernel
) -> None:
    with simulated_rig("rtx3080ti") as rig:
        clean = bench(rig, BRISK).measure([gemm])
    drawn = random.Random(seed)  # noqa: S311
    every, odd = drawn.randrange(5, 60), drawn.choice([0, 2**31, 2**63, 2**64 - 1])

    with _measurer(monkeypatch, lambda n, mj: mj if n % every else odd) as measurer:
        reading = measurer.measure([gemm])

        assert reading.energy_j == pytest.approx(clean.energy_j, rel=0.05)
        assert any("were dropped" in note for note in measurer.notes())


@pytest.mark.parametrize("scale", [30, 1000, 1_000_000])
def test_a_counter_in_another_unit_is_believed_in_no_window(
    scale: int, monkeypatch: pytest.MonkeyPatch, gemm: Kernel
) -> None:
    with (
        _measurer(monkeypatch, lambda _, mj: scale * mj) as measurer,
        pytest.raises(MeasurementError, match=r"no GPU draws that|cannot be"),
    ):
        measurer.measure([gemm])


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
@pytest.mark.parametrize("name", _OPTIONAL)
def test_one_reading_that_lacks_costs_nothing_else(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lacks(monkeypatch, name, code=code)
    with simulated_driver("a100"), nvml_session():
        gpu = NvmlGpu()
        has = (
            gpu.info().power_limit_w,
            gpu.power_limit_w(),
            gpu.info().power_range_w,
            gpu.supported_mem_mhz() or None,
            gpu.supported_core_mhz() or None,
            gpu.power_w(),
            gpu.observed().core_mhz,
            gpu.temperature_c(),
        )

        assert sum(each is None for each in has) <= 2
        assert gpu.energy_j() >= 0.0


@pytest.mark.parametrize("milliwatts", [0, 50, 900_000, 3_700_000_000])
def test_a_power_that_no_board_draws_is_not_known(
    milliwatts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answers(monkeypatch, "nvmlDeviceGetPowerUsage", lambda _h, _g, out: put(out, milliwatts))
    with simulated_driver("rtx3080ti"), nvml_session():
        assert NvmlGpu().power_w() is None


@pytest.mark.parametrize("mhz", [0, 5, 30_000, 2_115_000])
def test_clocks_that_the_board_does_not_have_are_not_known(
    mhz: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answers(monkeypatch, "nvmlDeviceGetClockInfo", lambda _h, _g, _kind, out: put(out, mhz))
    with simulated_driver("rtx3080ti"), nvml_session():
        assert NvmlGpu().observed().is_auto


@pytest.mark.parametrize(("count", "lost"), [(2, 1), (2, 0), (5, 3)])
def test_a_gpu_that_does_not_answer_hides_no_other(
    count: int, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = int(pynvml.NVML_ERROR_GPU_IS_LOST)
    for name, call in list(calls.READS.items()):

        def answer(
            driver: SimulatedDriver, gpu: VirtualGpu, *rest: CArgument, call: DeviceCall = call
        ) -> int:
            is_lost = len(driver.gpus) == count and driver.gpus.index(gpu) == lost
            return code if is_lost else call(driver, gpu, *rest)

        _answers(monkeypatch, name, answer)
    with simulated_driver("rtx3080ti", count=count):
        found = examine()

    real = [each.spec for each in found.gpus if each.spec.startswith("nvml:")]
    assert real == [f"nvml:{index}" for index in range(count) if index != lost]
    assert any(note.startswith(f"nvml:{lost} does not answer") for note in found.notes)


def test_a_gpu_that_is_split_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(_driver: object, _gpu: object, now: CArgument, pending: CArgument) -> int:
        return put(now, 1) | put(pending, 1)

    _answers(monkeypatch, "nvmlDeviceGetMigMode", split)
    with simulated_driver("a100"), nvml_session():
        assert examine("nvml:0").gpus[0].partitioned
        with pytest.raises(NotSupportedError, match="split into MIG instances"):
            run(plan(), ["true"])
        with (
            pytest.raises(NotSupportedError, match="split into MIG instances"),
            holding(plan()),
        ):
            pytest.fail("the block must not run")
