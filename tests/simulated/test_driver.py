"""The simulated driver answers as NVML does, to us and to what sets through it."""

from collections.abc import Callable

import pynvml
import pytest

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UsageError,
)
from underclock.gpus.models import gpu_model, model_names
from underclock.hw.lease import ClockLeases
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import (
    LOCKED_CLOCKS,
    READ_ONLY,
    gpu_count,
    installed,
    is_read_only,
    nvml_session,
)
from underclock.hw.settable import SettableNvmlGpu
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import SimulatedDriver
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.records import Clocks, Kernel
from underclock.records.latencies import Domain
from underclock.testing import simulated_driver

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


def test_locks_can_be_read_where_the_driver_is_simulated_only(rig: Rig) -> None:
    assert rig.gpu.locked_mhz(Domain.CORE) is None
    rig.gpu.lock(Clocks(core_mhz=900, mem_mhz=5001))
    assert rig.gpu.locked_mhz(Domain.CORE) == (900, 900)
    assert rig.gpu.locked_mhz(Domain.MEMORY) == (5001, 5001)
    del rig.driver._functions[LOCKED_CLOCKS]  # noqa: SLF001 - as no real one has it
    with pytest.raises(NotSupportedError, match="does not say which clocks are locked"):
        rig.gpu.locked_mhz(Domain.CORE)


@pytest.fixture
def gpu(rig: Rig) -> SettableNvmlGpu:
    return SettableNvmlGpu(rig.gpu.uuid())


def test_a_gpu_that_is_not_there_is_an_error(rig: Rig) -> None:
    del rig
    with pytest.raises(DeviceError, match="could not open GPU GPU-none"):
        SettableNvmlGpu("GPU-none")
