"""The simulated driver answers as NVML does, to us and to other people's clients."""

import contextlib
import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest

from benches import bench
from small_training import plan
from underclock.app.doctor import examine
from underclock.errors import (
    DeviceError,
    MeasurementError,
    NotPermittedError,
    NotSupportedError,
    UsageError,
)
from underclock.gpus.models import gpu_model, model_names
from underclock.hw.lease import ClockLeases
from underclock.hw.measurer import BRISK, GpuMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import (
    READ_ONLY,
    SettableNvmlGpu,
    gpu_count,
    installed,
    is_read_only,
    nvml_session,
)
from underclock.hw.simulated import calls
from underclock.hw.simulated.calls import CArgument, DeviceCall, behind, put
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import (
    Rig,
    SimulatedDriver,
    SimulatedMachine,
    simulated_driver,
    simulated_rig,
)
from underclock.records import Clocks, Kernel
from underclock.runtime.holding.held_gpu import holding
from underclock.runtime.holding.run import run

_MODEL = gpu_model("rtx3080ti")


@pytest.mark.parametrize("name", model_names())
def test_a_locked_clock_reads_back_on_every_model(name: str, elementwise: Kernel) -> None:
    with simulated_rig(name) as rig, rig.launcher.loop([elementwise]):
        table = rig.gpu.supported_core_mhz()
        for mhz in table[: len(table) // 2 : 10]:  # above, heat or power may have a say
            with ClockLeases(rig.gpu).hold(Clocks(core_mhz=mhz)):
                rig.clock.sleep_s(1.0)
                assert rig.gpu.observed().core_mhz == mhz


def test_without_root_a_lock_is_refused_and_reading_is_not(gemm: Kernel) -> None:
    with simulated_rig("rtx3080ti", root=False) as rig, rig.launcher.loop([gemm]):
        with pytest.raises(NotPermittedError, match="lock the core at 1050 MHz"):
            rig.gpu.lock(Clocks(core_mhz=1050))
        assert (rig.gpu.power_w() or 0.0) > 0


def test_read_only_mode_refuses_every_setter() -> None:
    with simulated_rig("rtx3080ti", read_only=True) as rig:
        for clocks in (Clocks(core_mhz=1050), Clocks(mem_mhz=5001)):
            with pytest.raises(NotPermittedError, match=READ_ONLY):
                rig.gpu.lock(clocks)
        with pytest.raises(NotPermittedError, match=READ_ONLY):
            rig.gpu.unlock()
        assert rig.device.core_lock is None
        assert rig.device.mem_lock is None


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_is_for_real_gpus_and_never_closes_a_simulated_one(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_ONLY, value)
    with simulated_rig("rtx3080ti") as rig:
        rig.gpu.lock(Clocks(core_mhz=1050))
        assert rig.device.core_lock == (1050, 1050)
    assert is_read_only() == (value == "1")


def test_what_is_set_can_be_read_and_outlives_the_session(rig: Rig) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 0
    pynvml.nvmlDeviceSetPersistenceMode(handle, 1)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 250_000)
    with nvml_session():
        assert pynvml.nvmlDeviceGetPersistenceMode(handle) == 1
        assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 250_000
        assert rig.gpu.info().power_limit_w == 250.0
        assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == 350_000
    low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    for limit in (low - 1, high + 1):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit)


class Older(SimulatedDriver):
    """A driver that lacks some functions, as every one but the newest does."""

    def __init__(self, *lacks: str) -> None:
        self._lacks = lacks
        super().__init__([VirtualGpu(_MODEL, seed=0)])

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name in self.__dict__.get("_lacks", ()):
            raise AttributeError(name)
        return super().__getattr__(name)


@pytest.mark.parametrize(
    ("lacks", "read", "found"),
    [
        ("nvmlDeviceGetComputeRunningProcesses_v3", NvmlGpu.neighbours, None),
        ("nvmlDeviceGetProcessUtilization", NvmlGpu.neighbours, {}),
        ("nvmlDeviceGetCurrentClocksEventReasons", NvmlGpu.throttle_reasons, 1),
        ("nvmlDeviceGetMigMode", NvmlGpu.is_partitioned, False),
        (
            "nvmlDeviceGetPowerManagementLimitConstraints",
            lambda gpu: gpu.info().power_range_w,
            None,
        ),
    ],
)
def test_what_a_driver_cannot_tell_is_unknown_and_no_error(
    lacks: str, read: Callable[[NvmlGpu], object], found: object
) -> None:
    with installed(Older(lacks)), nvml_session():
        assert read(NvmlGpu()) == found


@pytest.mark.parametrize(
    ("lacks", "read"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", NvmlGpu.energy_j),
        ("nvmlDeviceGetUUID", NvmlGpu.uuid),
        ("nvmlDeviceSetMemoryLockedClocks", lambda gpu: gpu.lock(Clocks(mem_mhz=5001))),
    ],
)
def test_what_cannot_be_done_without_is_refused_with_the_reason(
    lacks: str, read: Callable[[NvmlGpu], object]
) -> None:
    with (
        installed(Older(lacks)),
        nvml_session(),
        pytest.raises(NotSupportedError, match="could not") as refused,
    ):
        read(NvmlGpu())

    assert refused.value.hint == "the driver is too old for this"


def test_several_gpus_are_told_apart() -> None:
    gpus = [VirtualGpu(_MODEL, seed=i, unit=i) for i in range(3)]
    with installed(SimulatedDriver(gpus)), nvml_session():
        assert gpu_count() == 3
        NvmlGpu(1).lock(Clocks(core_mhz=900))
        uuids = {pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(3)}
        with pytest.raises(UsageError, match="no GPU 3"):
            NvmlGpu(3)

    assert [gpu.core_lock for gpu in gpus] == [None, (900, 900), None]
    assert len(uuids) == 3


def test_without_a_driver_the_message_says_what_to_use_instead() -> None:
    if pynvml.nvmlLib is not None:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(DeviceError) as caught, nvml_session():
        pass

    assert "sim:" in caught.value.hint


@pytest.fixture
def gpu(rig: Rig) -> SettableNvmlGpu:
    return SettableNvmlGpu(rig.gpu.uuid())


def test_a_gpu_that_is_not_there_is_an_error(rig: Rig) -> None:
    del rig
    with pytest.raises(DeviceError, match="could not open GPU GPU-none"):
        SettableNvmlGpu("GPU-none")


@pytest.fixture
def client() -> Iterator[Callable[[str], Any]]:
    """Import a client anew; take it, and what it changes in nvidia-ml-py, out again."""
    untouched = dict(vars(pynvml))
    yield pytest.importorskip
    for module in [name for name in sys.modules if name.split(".")[0] == "nvitop"]:
        del sys.modules[module]
    for name, value in untouched.items():
        setattr(pynvml, name, value)


@contextlib.contextmanager
def _nvitop(client: Callable[[str], Any], machine: SimulatedMachine) -> Iterator[Any]:
    """Load nvitop for one machine; it keeps a session, so close it before the machine goes."""
    assert pynvml.nvmlLib is machine.driver
    nvitop = client("nvitop")
    try:
        yield nvitop
    finally:
        importlib.import_module("nvitop.api.libnvml").nvmlShutdown()


def test_nvitop_reads_every_gpu(client: Callable[[str], Any], gemm: Kernel) -> None:
    with (
        simulated_driver("rtx3080ti", count=2) as machine,
        machine.run(gemm, gpu=1),
        _nvitop(client, machine) as nvitop,
    ):
        machine.clock.sleep_s(60.0)
        idle, busy = nvitop.Device.all()
        truth = machine.gpus[1]

        assert [device.name() for device in (idle, busy)] == ["NVIDIA GeForce RTX 3080 Ti"] * 2
        assert [device.index for device in (idle, busy)] == [0, 1]
        assert idle.uuid() != busy.uuid()
        assert busy.bus_id() == "00000000:02:00.0"
        assert abs(busy.sm_clock() - truth.core_mhz) <= 15
        assert (busy.memory_clock(), idle.memory_clock()) == (truth.mem_mhz, 405)
        assert (busy.max_sm_clock(), busy.max_memory_clock()) == (2115, 9501)
        assert busy.power_usage() / 1e3 == pytest.approx(truth.power_w, rel=0.02)
        assert (busy.power_limit(), idle.power_limit()) == (350_000, 350_000)
        assert busy.temperature() == pytest.approx(truth.temperature_c, abs=1)
        assert (busy.gpu_utilization(), idle.gpu_utilization()) == (100, 0)
        assert 0 < busy.memory_utilization() <= 100
        assert busy.memory_total() == 12 << 30
        assert 30 <= busy.fan_speed() <= 100
        assert busy.performance_state() == f"P{truth.performance_state}" != "P8"
        assert idle.performance_state() == "P8"
        assert (busy.persistence_mode(), busy.compute_mode()) == ("Disabled", "Default")
        assert busy.cuda_compute_capability() == (8, 6)
        assert busy.mig_mode() == nvitop.NA
        assert busy.total_volatile_uncorrected_ecc_errors() == nvitop.NA
        assert list(busy.processes()) == [os.getpid()]
        assert list(idle.processes()) == []


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
