"""The simulated driver answers as NVML does, to us and to what sets through it."""

import dataclasses
import math
from collections.abc import Callable, Iterator

import pynvml
import pytest

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UsageError,
)
from underclock.gpus.models import gpu_model, model_names
from underclock.hw.lease import ClockLeases, check_applied
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import (
    LOCKED_CLOCKS,
    READ_ONLY,
    gpu_count,
    installed,
    is_read_only,
    nvml_session,
)
from underclock.hw.settable import SettableNvmlGpu, Setting, Value
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import SimulatedDriver
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.records import Clocks, Kernel, ThrottleReason
from underclock.records.latencies import Domain
from underclock.testing import simulated_driver
from underclock.tracing.held import real_notes

_MODEL = gpu_model("rtx3080ti")


def test_it_answers_as_the_gpu_it_simulates(rig: Rig) -> None:
    info = rig.gpu.info()

    assert info.name == "RTX 3080 Ti"
    assert info.power_limit_w == 350.0
    assert rig.gpu.supported_mem_mhz() == (405, 810, 5001, 9251, 9501)
    assert rig.gpu.supported_core_mhz()[0] == 210


def test_the_least_memory_clock_bounds_the_core(rig: Rig, gemm: Kernel) -> None:
    assert rig.gpu.supported_core_mhz(405)[-1] == 420
    with (
        rig.launcher.loop([gemm]),
        ClockLeases(rig.gpu).hold(Clocks(core_mhz=1050, mem_mhz=405)),
    ):
        rig.clock.sleep_s(1.0)
        assert rig.gpu.observed().mem_mhz == 810


def test_a_clock_between_two_bins_snaps_down(rig: Rig, elementwise: Kernel) -> None:
    with rig.launcher.loop([elementwise]), ClockLeases(rig.gpu).hold(Clocks(core_mhz=1057)):
        rig.clock.sleep_s(1.0)
        assert rig.gpu.observed().core_mhz == 1050


@pytest.mark.parametrize("name", model_names())
def test_a_locked_clock_reads_back_on_every_model(name: str, elementwise: Kernel) -> None:
    with simulated_rig(name) as rig, rig.launcher.loop([elementwise]):
        table = rig.gpu.supported_core_mhz()
        for mhz in table[: len(table) // 2 : 10]:  # above, heat or power may have a say
            with ClockLeases(rig.gpu).hold(Clocks(core_mhz=mhz)):
                rig.clock.sleep_s(1.0)
                assert rig.gpu.observed().core_mhz == mhz


def test_the_power_cap_outranks_a_lock_and_says_so(rig: Rig, gemm: Kernel) -> None:
    high = Clocks(core_mhz=2100)
    rig.device.limit_power(250.0)
    with rig.launcher.loop([gemm]), ClockLeases(rig.gpu).hold(high):
        rig.clock.sleep_s(5.0)
        assert (check_applied(rig.gpu, high).core_mhz or 0) < 2100
        assert (rig.gpu.throttle_reasons() or 0) & ThrottleReason.SW_POWER_CAP
        assert (rig.gpu.power_w() or math.inf) <= 250.0


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


def test_memory_that_cannot_be_locked_says_so_and_can_be_unlocked() -> None:
    model = dataclasses.replace(_MODEL, memory_lockable=False)
    with installed(SimulatedDriver([VirtualGpu(model, seed=0)])), nvml_session():
        gpu = NvmlGpu()
        with pytest.raises(NotSupportedError, match="lock the memory"):
            gpu.lock(Clocks(mem_mhz=5001))
        gpu.unlock()


@pytest.mark.parametrize("clocks", [Clocks(core_mhz=100), Clocks(mem_mhz=99_000)])
def test_clocks_outside_the_table_are_refused(rig: Rig, clocks: Clocks) -> None:
    with pytest.raises(UsageError, match="Invalid Argument"):
        rig.gpu.lock(clocks)


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


def test_a_gpu_is_found_by_every_name_it_has(rig: Rig) -> None:
    del rig
    with simulated_driver("rtx3080ti", count=3), nvml_session():
        handle = pynvml.nvmlDeviceGetHandleByIndex(2)
        uuid = pynvml.nvmlDeviceGetUUID(handle).encode()
        bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
        for found in (
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode() if isinstance(bus, str) else bus),
        ):
            assert pynvml.nvmlDeviceGetIndex(found) == 2
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID(b"GPU-nobody")


def test_it_knows_its_board(rig: Rig) -> None:
    del rig
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == (8, 6)
    assert pynvml.nvmlDeviceGetArchitecture(handle) == pynvml.NVML_DEVICE_ARCH_AMPERE
    assert pynvml.nvmlDeviceGetBrand(handle) == pynvml.NVML_BRAND_GEFORCE
    assert pynvml.nvmlDeviceGetNumGpuCores(handle) == 10240
    for version in (None, pynvml.nvmlMemory_v2):
        assert pynvml.nvmlDeviceGetMemoryInfo(handle, version).total == 12 << 30
    assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) == 9501
    assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) == 2115
    assert pynvml.nvmlDeviceGetClock(handle, pynvml.NVML_CLOCK_SM, 0) == 210
    assert 30 <= pynvml.nvmlDeviceGetFanSpeed(handle) <= 100
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_VIDEO)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetClock(handle, pynvml.NVML_CLOCK_SM, 3)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetTemperature(handle, 7)
    assert pynvml.nvmlSystemGetNVMLVersion().endswith(_MODEL.driver)


def test_an_h200_rests_as_a_real_one_does() -> None:
    with simulated_driver("h200"), nvml_session():
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)

        # Read from one: P0 at 345 MHz and 3201 MHz, idle, no fan, MIG off.
        assert pynvml.nvmlDeviceGetPerformanceState(handle) == pynvml.NVML_PSTATE_0
        assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) == 345
        assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) == 3201
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 1
        assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 0]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
        assert pynvml.nvmlDeviceGetBrand(handle) == pynvml.NVML_BRAND_NVIDIA
        assert pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId == 0x233510DE
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetFanSpeed(handle)


def test_what_the_gpu_lacks_is_unsupported_and_of_an_unknown_board_nothing_is_made_up() -> None:
    lacks = ("MigMode", "Serial", "BAR1MemoryInfo", "DriverModel")
    board = ("MemoryInfo", "NumGpuCores", "CudaComputeCapability", "Architecture", "Brand")
    unknown = dataclasses.replace(_MODEL, name="NVIDIA Nothing")
    for model, names in ((_MODEL, lacks), (unknown, (*board, "FanSpeed"))):
        with simulated_driver(model), nvml_session():
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            for name in names:
                with pytest.raises(pynvml.NVMLError_NotSupported):
                    getattr(pynvml, f"nvmlDeviceGet{name}")(handle)


def test_outside_a_session_nothing_answers() -> None:
    with simulated_driver("rtx3080ti"):
        with nvml_session():
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for call in (
            pynvml.nvmlDeviceGetCount,
            pynvml.nvmlShutdown,
            lambda: pynvml.nvmlDeviceGetName(handle),
        ):
            with pytest.raises(pynvml.NVMLError_Uninitialized):
                call()


def test_a_machine_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one GPU"), simulated_driver("a40", count=0):
        pass


def test_a_call_the_driver_lacks_is_not_found_and_a_handle_of_no_gpu_is_refused(rig: Rig) -> None:
    del rig
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(pynvml.c_nvmlDevice_t())
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetNvLinkState(pynvml.nvmlDeviceGetHandleByIndex(0), 0)


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


def test_a_measurement_says_that_the_driver_names_no_processes() -> None:
    with installed(Older("nvmlDeviceGetComputeRunningProcesses_v3")), nvml_session():
        assert "does not list the processes that compute" in real_notes(NvmlGpu())[0]


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


def test_the_real_library_is_back_afterwards() -> None:
    before = pynvml.nvmlLib
    with simulated_rig("rtx3080ti"):
        assert pynvml.nvmlLib is not before

    assert pynvml.nvmlLib is before


def test_without_a_driver_the_message_says_what_to_use_instead() -> None:
    if pynvml.nvmlLib is not None:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(DeviceError) as caught, nvml_session():
        pass

    assert "sim:" in caught.value.hint


def test_locks_can_be_read_where_the_driver_is_simulated_only(rig: Rig) -> None:
    assert rig.gpu.locked_mhz(Domain.CORE) is None
    rig.gpu.lock(Clocks(core_mhz=900, mem_mhz=5001))
    assert rig.gpu.locked_mhz(Domain.CORE) == (900, 900)
    assert rig.gpu.locked_mhz(Domain.MEMORY) == (5001, 5001)
    del rig.driver._functions[LOCKED_CLOCKS]  # noqa: SLF001 - as no real one has it
    with pytest.raises(NotSupportedError, match="does not tell which clocks are locked"):
        rig.gpu.locked_mhz(Domain.CORE)


@pytest.fixture
def gpu(rig: Rig) -> SettableNvmlGpu:
    return SettableNvmlGpu(rig.gpu.uuid())


@pytest.mark.parametrize(
    ("setting", "value", "found"),
    [
        (Setting.CORE, 1200, (1200, 1200)),
        (Setting.CORE, (900, 1500), (900, 1500)),
        (Setting.MEMORY, 5001.0, (5001, 5001)),
    ],
)
def test_what_is_set_is_read_and_put_back(
    setting: Setting, value: Value, found: Value, gpu: SettableNvmlGpu
) -> None:
    before = gpu.read(setting)

    gpu.write(setting, value)
    assert gpu.read(setting) == found
    gpu.write(setting, before)

    assert gpu.read(setting) == before


@pytest.fixture
def closed() -> Iterator[SettableNvmlGpu]:
    with simulated_rig("rtx3080ti", read_only=True) as rig:
        yield SettableNvmlGpu(rig.gpu.uuid())


def test_the_gate_closes_it_too(closed: SettableNvmlGpu) -> None:
    with pytest.raises(NotPermittedError, match=f"{READ_ONLY} is set") as refused:
        closed.write(Setting.CORE, 1200)

    assert any("on GPU GPU-" in note for note in refused.value.__notes__)


def test_a_gpu_that_is_not_there_is_an_error(rig: Rig) -> None:
    del rig
    with pytest.raises(DeviceError, match="could not open GPU GPU-none"):
        SettableNvmlGpu("GPU-none")
