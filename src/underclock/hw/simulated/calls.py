"""NVML's calls on one virtual GPU: what it is, what it does, what is set on it.

nvidia-ml-py calls C functions with ctypes values and pointers, and reads a return code; so do
these. What is written here outlives the session and the process, as on a real GPU.
"""

import ctypes
import functools
import hashlib
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
import pynvml

from underclock.gpus.models import Meter
from underclock.hw.nvml_calls import LOCKED_CLOCKS
from underclock.hw.simulated.boards import Board
from underclock.hw.simulated.clocks import snap
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.work import FaultKind

CArgument = Any
"""Whatever ctypes made of an argument: a number with a ``value``, a buffer, a pointer."""

DeviceCall = Callable[..., int]
"""Answers one function for one GPU: driver, GPU, C arguments → return code."""


class DriverClock(Protocol):
    """Virtual time, as a driver's calls let it pass."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a call is answered, so that no two look at the GPUs at once."""

    def sleep_s(self, duration_s: float) -> None:
        """Let virtual time pass on every GPU."""


class Host(Protocol):
    """The driver that calls are answered for."""

    gpus: tuple[VirtualGpu, ...]  # in index order
    clock: DriverClock
    root: bool
    caller_lives: Callable[[], bool]


OK = int(pynvml.NVML_SUCCESS)
NOT_SUPPORTED = int(pynvml.NVML_ERROR_NOT_SUPPORTED)
NOT_FOUND = int(pynvml.NVML_ERROR_NOT_FOUND)
INVALID_ARGUMENT = int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
_NO_ROOM = int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)

_ARCHITECTURES = {  # by the first number of the compute capability
    7: pynvml.NVML_DEVICE_ARCH_VOLTA,
    8: pynvml.NVML_DEVICE_ARCH_AMPERE,
    9: pynvml.NVML_DEVICE_ARCH_HOPPER,
}
_CORE_CLOCKS = {pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM}
_NVIDIA_VENDOR = 0x10DE
_QUICK_CALL_S = 1e-6
_MIB = 1 << 20
_DRIVER_MIB = 300  # what the driver keeps for itself; assumed
_CONTEXT_MIB = 500  # what a CUDA context takes; assumed
_NO_INSTANCE = 0xFFFFFFFF  # without MIG
_UTILISATION_US = 166_667  # the sampling period drivers give


# How C functions take arguments and give answers.


def behind(pointer: CArgument) -> CArgument:
    """Return the object that a ``byref`` argument points to."""
    return pointer._obj  # noqa: SLF001 - ctypes has no public way


def put(pointer: CArgument, value: float) -> int:
    """Write one number through a ``byref`` argument."""
    behind(pointer).value = value
    return OK


def put_text(buffer: CArgument, text: str) -> int:
    """Write text into a character buffer."""
    buffer.value = text.encode()
    return OK


def put_handle(pointer: CArgument, index: int) -> int:
    """Write a GPU's handle: its address is the index, one-based, so that none is NULL."""
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = index + 1
    return OK


def _has_room(count: CArgument, out: CArgument, wanted: int) -> bool:
    """Answer the question for a list's length; whether the caller brought room for the list."""
    room = behind(count).value
    behind(count).value = wanted
    return wanted == 0 or (out is not None and room >= wanted)


def _put_list(values: Sequence[int], count: CArgument, out: CArgument) -> int:
    if not _has_room(count, out, len(values)):
        return _NO_ROOM
    for i, value in enumerate(values):
        out[i] = value
    return OK


def _numbers(
    read: Callable[[VirtualGpu], tuple[float, ...] | None], blocks_s: float = 0.0
) -> DeviceCall:
    def answer(host: Host, gpu: VirtualGpu, *outs: CArgument) -> int:
        if blocks_s:
            host.clock.sleep_s(blocks_s)
        values = read(gpu)
        if values is None:
            return NOT_SUPPORTED
        for out, value in zip(outs, values, strict=True):
            put(out, value)
        return OK

    return answer


def _number(read: Callable[[VirtualGpu], float], blocks_s: float = 0.0) -> DeviceCall:
    return _numbers(lambda gpu: (read(gpu),), blocks_s)


def _of_board(read: Callable[[Board], tuple[float, ...] | None]) -> DeviceCall:
    return _numbers(lambda gpu: None if gpu.board is None else read(gpu.board))


READS: dict[str, DeviceCall] = {}
"""By their names in NVML's library."""


def _reads(*names: str) -> Callable[[DeviceCall], DeviceCall]:
    def enter(answer: DeviceCall) -> DeviceCall:
        READS.update(dict.fromkeys(names, answer))
        return answer

    return enter


# What a GPU is: name, place, clock tables, limits, modes.


def uuid_of(gpu: VirtualGpu) -> str:
    """Return the UUID of a GPU: the same for the same unit of the same model, in any machine."""
    model = gpu.model
    costs = (model.name, gpu.number, model.constants, model.throughput, model.own)
    return f"GPU-{uuid.UUID(bytes=hashlib.sha256(msgspec.json.encode(costs)).digest()[:16])}"


def bus_of(index: int) -> str:
    """Return the PCI address of a GPU by index."""
    return f"00000000:{index + 1:02X}:00.0"


@_reads("nvmlDeviceGetPciInfo_v3")
def _pci(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    index, info = host.gpus.index(gpu), behind(out)
    info.busId = bus_of(index).encode()
    info.busIdLegacy = bus_of(index)[4:].encode()
    info.domain, info.bus, info.device = 0, index + 1, 0
    info.pciDeviceId = ((gpu.board.pci_id if gpu.board else 0) << 16) | _NVIDIA_VENDOR
    info.pciSubSystemId = 0
    return OK


@_reads("nvmlDeviceGetSupportedGraphicsClocks")
def _core_clocks(
    _host: Host, gpu: VirtualGpu, mem: CArgument, count: CArgument, out: CArgument
) -> int:
    model = gpu.model
    if mem.value not in model.mem_mhz:
        return NOT_FOUND
    clocks = model.core_mhz
    if model.low_mem_core_mhz is not None and mem.value == model.mem_mhz[0]:
        clocks = tuple(mhz for mhz in clocks if mhz <= model.low_mem_core_mhz)
    return _put_list(clocks[::-1], count, out)


@_reads("nvmlDeviceGetMaxClockInfo")
def _highest_clock(_host: Host, gpu: VirtualGpu, kind: CArgument, out: CArgument) -> int:
    if kind.value == pynvml.NVML_CLOCK_MEM:
        return put(out, gpu.model.mem_mhz[-1])
    return put(out, gpu.model.core_mhz[-1]) if kind.value in _CORE_CLOCKS else NOT_SUPPORTED


# What it does now: clocks, power, energy, heat, load, processes.


@_reads("nvmlDeviceGetClockInfo")
def _clock(host: Host, gpu: VirtualGpu, kind: CArgument, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    if kind.value == pynvml.NVML_CLOCK_MEM:
        return put(out, gpu.mem_mhz)
    if kind.value not in _CORE_CLOCKS:
        return NOT_SUPPORTED
    return put(out, snap(gpu.core_mhz, gpu.model.core_mhz))


@_reads("nvmlDeviceGetClock")
def _clock_by_id(
    host: Host, gpu: VirtualGpu, kind: CArgument, which: CArgument, out: CArgument
) -> int:
    if which.value != pynvml.NVML_CLOCK_ID_CURRENT:
        return NOT_SUPPORTED
    return _clock(host, gpu, kind, out)


@_reads("nvmlDeviceGetTotalEnergyConsumption")
def _energy(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    host.clock.sleep_s(next(gpu.energy_call_s))
    return put(out, gpu.counter_mj)


def _usage_mw(gpu: VirtualGpu) -> int:
    return _shown_mw(gpu, gpu.gauges.sensors.usage)


def _shown_mw(gpu: VirtualGpu, meter: Meter) -> int:
    return int(gpu.gauges.shown_w(meter, gpu.now_s, gpu.energy_j, gpu.power_w) * 1e3)


def _limit_mw(gpu: VirtualGpu) -> int:
    return int(gpu.limit_w * 1e3)


@_reads("nvmlDeviceGetTemperature")
def _temperature(host: Host, gpu: VirtualGpu, sensor: CArgument, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    if sensor.value != pynvml.NVML_TEMPERATURE_GPU:
        return INVALID_ARGUMENT
    return put(out, int(gpu.temperature_c))


@_reads(LOCKED_CLOCKS)
def _locked(_host: Host, gpu: VirtualGpu, kind: CArgument, low: CArgument, high: CArgument) -> int:
    bounds = gpu.mem_lock if kind.value == pynvml.NVML_CLOCK_MEM else gpu.core_lock
    if bounds is None:
        return NOT_FOUND
    put(low, bounds[0])
    return put(high, bounds[1])


_UNSIGNED, _LONG = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
_FIELDS: dict[int, tuple[int, Callable[[VirtualGpu], int]]] = {
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: (_LONG, lambda gpu: gpu.counter_mj),
    pynvml.NVML_FI_DEV_POWER_AVERAGE: (_UNSIGNED, _usage_mw),
    pynvml.NVML_FI_DEV_POWER_INSTANT: (
        _UNSIGNED,
        lambda gpu: _shown_mw(gpu, gpu.gauges.sensors.instant),
    ),
    pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: (_UNSIGNED, _limit_mw),
}


@_reads("nvmlDeviceGetFieldValues")
def _field_values(host: Host, gpu: VirtualGpu, count: CArgument, values: CArgument) -> int:
    """Answer each field by itself: one that is not there spoils no other."""
    asked = [behind(values)[i] for i in range(count.value)]
    energy = any(v.fieldId == pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION for v in asked)
    host.clock.sleep_s(next(gpu.energy_call_s) if energy else _QUICK_CALL_S)
    for value in asked:
        kind, read = _FIELDS.get(value.fieldId, (_UNSIGNED, None))
        value.timestamp = int(gpu.now_s * 1e6)
        value.valueType = kind
        value.nvmlReturn = NOT_SUPPORTED if read is None else OK
        if read is not None:
            setattr(value.value, "ullVal" if kind == _LONG else "uiVal", read(gpu))
    return OK


@_reads("nvmlDeviceGetUtilizationRates")
def _utilisation(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    behind(out).gpu, behind(out).memory = (round(100 * share) for share in gpu.load())
    return OK


def _processes(gpu: VirtualGpu) -> list[tuple[int, int, int]]:
    processes = [(n.pid, n.memory_mib, round(100 * n.share)) for n in gpu.neighbours]
    if gpu.running is not None:
        pids = gpu.running.pids or (os.getpid(),)
        rest = 100 - sum(share for _, _, share in processes)
        processes += [(pid, _CONTEXT_MIB, rest // len(pids)) for pid in pids]
    return processes


@_reads("nvmlDeviceGetComputeRunningProcesses_v3")
def _compute_processes(_host: Host, gpu: VirtualGpu, count: CArgument, out: CArgument) -> int:
    processes = _processes(gpu)
    if not _has_room(count, out, len(processes)):
        return _NO_ROOM
    for i, (pid, memory_mib, _) in enumerate(processes):
        out[i].pid = pid
        out[i].usedGpuMemory = memory_mib * _MIB
        out[i].gpuInstanceId = out[i].computeInstanceId = _NO_INSTANCE
    return OK


@_reads("nvmlDeviceGetProcessUtilization")
def _process_utilisation(
    _host: Host, gpu: VirtualGpu, out: CArgument, count: CArgument, since_us: CArgument
) -> int:
    now_us = int(gpu.now_s * 1e6)
    processes = _processes(gpu) if now_us > since_us.value else []
    if not processes:
        return NOT_FOUND
    if not _has_room(count, out, len(processes)):
        return _NO_ROOM
    for i, (pid, _, share) in enumerate(processes):
        out[i].pid, out[i].timeStamp, out[i].smUtil = pid, now_us, share
    return OK


@_reads("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
def _memory(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    if gpu.board is None:
        return NOT_SUPPORTED
    info = behind(out)
    held_mib = sum(memory_mib for _, memory_mib, _ in _processes(gpu))
    info.total = gpu.board.memory_mib * _MIB
    info.free = info.total - (_DRIVER_MIB + held_mib) * _MIB
    if hasattr(info, "reserved"):  # the second version keeps the driver's own apart
        info.reserved = _DRIVER_MIB * _MIB
        info.used = held_mib * _MIB
    else:
        info.used = (_DRIVER_MIB + held_mib) * _MIB
    return OK


def _fan_percent(gpu: VirtualGpu) -> tuple[int] | None:
    if gpu.board is None or not gpu.board.fan:
        return None
    return (min(100, max(30, round(2.0 * gpu.temperature_c - 80.0))),)  # assumed


# What is set: clock locks, power limit, persistence mode.


def _lock(host: Host, gpu: VirtualGpu, *mhz: CArgument, memory: bool) -> int:
    """Lock a clock between two bounds, or give it back where none are named."""
    bounds = (mhz[0].value, mhz[1].value) if mhz else None
    table = gpu.model.mem_mhz if memory else gpu.model.core_mhz
    if memory and not gpu.model.memory_lockable:
        return NOT_SUPPORTED
    if bounds is not None and not bounds[0] <= bounds[1] >= table[0] <= table[-1] >= bounds[0]:
        return INVALID_ARGUMENT
    if bounds is not None and memory and FaultKind.MEMORY_REFUSED in gpu.faults:
        return int(pynvml.NVML_ERROR_UNKNOWN)
    return _write(host, gpu, lambda: (gpu.lock_mem if memory else gpu.lock_core)(bounds))


_lock_core, _lock_mem = (functools.partial(_lock, memory=memory) for memory in (False, True))


def _set_limit(host: Host, gpu: VirtualGpu, limit: CArgument) -> int:
    _, low_w, high_w = gpu.model.limit_w
    limit_w = limit.value / 1e3
    if not low_w <= limit_w <= high_w:
        return INVALID_ARGUMENT
    return _write(host, gpu, lambda: gpu.limit_power(limit_w))


def _write(host: Host, gpu: VirtualGpu, action: Callable[[], None]) -> int:
    """Do it if the process may, after the time that the call takes."""
    # On a real machine a process has not ended while a call of its is under way. One whose caller
    # was killed here sets nothing any more, so that none is set after its end.
    if not host.root or FaultKind.PERMISSION_REVOKED in gpu.faults:
        return int(pynvml.NVML_ERROR_NO_PERMISSION)
    hangs_s = gpu.hangs_s if FaultKind.SETTER_HANGS in gpu.faults else 0.0
    if host.caller_lives():
        host.clock.sleep_s(next(gpu.setter_call_s) + hangs_s)
    if not host.caller_lives():
        return int(pynvml.NVML_ERROR_UNKNOWN)
    if gpu.lost:
        return int(pynvml.NVML_ERROR_GPU_IS_LOST)
    action()
    return OK


def _by_name(answers: dict[str, DeviceCall]) -> dict[str, DeviceCall]:
    return {f"nvmlDevice{each}": answers[names] for names in answers for each in names.split()}


READS |= _by_name(
    {
        "GetName": lambda _host, gpu, out, _size: put_text(out, gpu.model.name),
        "GetUUID": lambda _host, gpu, out, _size: put_text(out, uuid_of(gpu)),
        "GetIndex GetMinorNumber": lambda host, gpu, out: put(out, host.gpus.index(gpu)),
        "GetBrand": _of_board(
            lambda board: (
                pynvml.NVML_BRAND_GEFORCE if board.geforce else pynvml.NVML_BRAND_NVIDIA,
            )
        ),
        "GetNumGpuCores": _of_board(lambda board: (board.cores,)),
        "GetCudaComputeCapability": _of_board(lambda board: board.capability),
        "GetArchitecture": _of_board(lambda board: (_ARCHITECTURES[board.capability[0]],)),
        "GetSupportedMemoryClocks": (  # greatest first, as NVML does
            lambda _host, gpu, count, out: _put_list(gpu.model.mem_mhz[::-1], count, out)
        ),
        "GetPowerManagementLimitConstraints": _numbers(
            lambda gpu: tuple(int(limit_w * 1e3) for limit_w in gpu.model.limit_w[1:])
        ),
        "GetPowerManagementDefaultLimit": _number(lambda gpu: int(gpu.model.limit_w[0] * 1e3)),
        "GetEnforcedPowerLimit GetPowerManagementLimit": _number(_limit_mw),
        "GetPersistenceMode": _number(lambda gpu: int(gpu.persistent)),
        "GetMigMode": _of_board(lambda board: (0, 0) if board.hbm else None),
        "GetPowerUsage": _number(_usage_mw, _QUICK_CALL_S),
        "GetFanSpeed": _numbers(_fan_percent),
        "GetPerformanceState GetPowerState": _number(
            lambda gpu: gpu.performance_state, _QUICK_CALL_S
        ),
        "GetCurrentClocksEventReasons GetCurrentClocksThrottleReasons": _number(
            lambda gpu: gpu.throttle_reasons, _QUICK_CALL_S
        ),
        "GetEncoderUtilization GetDecoderUtilization": _numbers(lambda _gpu: (0, _UTILISATION_US)),
        "GetGraphicsRunningProcesses_v3 GetMPSComputeRunningProcesses_v3": (
            lambda _host, _gpu, count, _out: put(count, 0)
        ),
        # Default compute mode, no display, not split.
        "GetComputeMode GetDisplayMode GetDisplayActive": _number(lambda _gpu: 0),
        "GetMaxMigDeviceCount IsMigDeviceHandle": _number(lambda _gpu: 0),
        # There on a real driver, but not on these GPUs.
        "GetSerial GetBAR1MemoryInfo GetTotalEccErrors": lambda *_: NOT_SUPPORTED,
        "GetDriverModel GetDriverModel_v2 GetPcieThroughput": lambda *_: NOT_SUPPORTED,
    }
)
WRITES = _by_name(
    {
        "SetGpuLockedClocks ResetGpuLockedClocks": _lock_core,
        "SetMemoryLockedClocks ResetMemoryLockedClocks": _lock_mem,
        "SetPowerManagementLimit": _set_limit,
        "SetPersistenceMode": lambda host, gpu, mode: _write(
            host, gpu, lambda: setattr(gpu, "persistent", bool(mode.value))
        ),
    }
)
