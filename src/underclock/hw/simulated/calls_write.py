"""NVML calls that write: clock locks, power limit, persistence mode.

Everything written here outlives the session and the process, as on a real GPU.
"""

from collections.abc import Callable

import pynvml

from underclock.hw.simulated.cinterface import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    OK,
    CArgument,
    DeviceCall,
    Host,
)
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.faults import FaultKind


def _lock_core(host: Host, gpu: VirtualGpu, low: CArgument, high: CArgument) -> int:
    bounds = (low.value, high.value)
    if not _overlaps(bounds, gpu.model.core_mhz):
        return INVALID_ARGUMENT
    return _write(host, gpu, lambda: gpu.lock_core(bounds))


def _lock_mem(host: Host, gpu: VirtualGpu, low: CArgument, high: CArgument) -> int:
    bounds = (low.value, high.value)
    if not gpu.model.memory_lockable:
        return NOT_SUPPORTED
    if not _overlaps(bounds, gpu.model.mem_mhz):
        return INVALID_ARGUMENT
    if FaultKind.MEMORY_REFUSED in gpu.faults:
        return int(pynvml.NVML_ERROR_UNKNOWN)
    return _write(host, gpu, lambda: gpu.lock_mem(bounds))


def _unlock_core(host: Host, gpu: VirtualGpu) -> int:
    return _write(host, gpu, lambda: gpu.lock_core(None))


def _unlock_mem(host: Host, gpu: VirtualGpu) -> int:
    if not gpu.model.memory_lockable:
        return NOT_SUPPORTED
    return _write(host, gpu, lambda: gpu.lock_mem(None))


def _limit(host: Host, gpu: VirtualGpu, limit: CArgument) -> int:
    _, low_w, high_w = gpu.model.limit_w
    limit_w = limit.value / 1e3
    if not low_w <= limit_w <= high_w:
        return INVALID_ARGUMENT
    return _write(host, gpu, lambda: gpu.limit_power(limit_w))


def _persistence(host: Host, gpu: VirtualGpu, mode: CArgument) -> int:
    return _write(host, gpu, lambda: setattr(gpu, "persistent", bool(mode.value)))


def _overlaps(bounds: tuple[int, int], table: tuple[int, ...]) -> bool:
    low, high = bounds
    return low <= high and high >= table[0] and low <= table[-1]


def _write(host: Host, gpu: VirtualGpu, action: Callable[[], None]) -> int:
    """Do it if the process may, after the time that the call takes.

    On a real machine a process has not ended while a call of its is under way. One whose caller was
    killed here sets nothing any more, so that none is set after its end.
    """
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


TABLE: dict[str, DeviceCall] = {
    "nvmlDeviceSetGpuLockedClocks": _lock_core,
    "nvmlDeviceSetMemoryLockedClocks": _lock_mem,
    "nvmlDeviceResetGpuLockedClocks": _unlock_core,
    "nvmlDeviceResetMemoryLockedClocks": _unlock_mem,
    "nvmlDeviceSetPowerManagementLimit": _limit,
    "nvmlDeviceSetPersistenceMode": _persistence,
}
