"""NVML calls that read what a GPU does now: clocks, power, energy, heat, load, processes."""

import os
from collections.abc import Callable

import pynvml

from underclock.hw.nvml_calls import LOCKED_CLOCKS
from underclock.hw.simulated.boards import board_of
from underclock.hw.simulated.cinterface import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    CArgument,
    DeviceCall,
    Host,
    behind,
    has_room,
    put,
)
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.locks import snap

_QUICK_CALL_S = 1e-6
_MIB = 1 << 20
_DRIVER_MIB = 300  # what the driver keeps for itself; assumed
_CONTEXT_MIB = 500  # what a CUDA context takes; assumed
_NO_INSTANCE = 0xFFFFFFFF  # without MIG
_UTILISATION_US = 166_667  # the sampling period drivers give


def _clock(host: Host, gpu: VirtualGpu, kind: CArgument, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    if kind.value == pynvml.NVML_CLOCK_MEM:
        return put(out, gpu.mem_mhz)
    if kind.value not in {pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM}:
        return NOT_SUPPORTED
    return put(out, snap(gpu.core_mhz, gpu.model.core_mhz))


def _clock_by_id(
    host: Host, gpu: VirtualGpu, kind: CArgument, which: CArgument, out: CArgument
) -> int:
    if which.value != pynvml.NVML_CLOCK_ID_CURRENT:
        return NOT_SUPPORTED
    return _clock(host, gpu, kind, out)


def _energy(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    host.clock.sleep_s(next(gpu.energy_call_s))
    return put(out, gpu.counter_mj)


def _usage_mw(gpu: VirtualGpu) -> int:
    return int(gpu.gauges.usage_w(gpu.now_s, gpu.energy_j, gpu.power_w) * 1e3)


def _instant_mw(gpu: VirtualGpu) -> int:
    return int(gpu.gauges.instant_w(gpu.now_s, gpu.energy_j, gpu.power_w) * 1e3)


def _power(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    return put(out, _usage_mw(gpu))


def _temperature(host: Host, gpu: VirtualGpu, sensor: CArgument, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    if sensor.value != pynvml.NVML_TEMPERATURE_GPU:
        return INVALID_ARGUMENT
    return put(out, int(gpu.temperature_c))


def _throttle_reasons(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    return put(out, gpu.throttle_reasons)


def _performance_state(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    return put(out, gpu.performance_state)


def _locked(_host: Host, gpu: VirtualGpu, kind: CArgument, low: CArgument, high: CArgument) -> int:
    """Answer what NVML has no call for: between which clocks a lock holds a clock."""
    bounds = gpu.mem_lock if kind.value == pynvml.NVML_CLOCK_MEM else gpu.core_lock
    if bounds is None:
        return NOT_FOUND
    put(low, bounds[0])
    return put(high, bounds[1])


def _limit(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    return put(out, int(gpu.limit_w * 1e3))


_UNSIGNED, _LONG = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
_FIELDS: dict[int, tuple[int, Callable[[VirtualGpu], int]]] = {
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: (_LONG, lambda gpu: gpu.counter_mj),
    pynvml.NVML_FI_DEV_POWER_AVERAGE: (_UNSIGNED, _usage_mw),
    pynvml.NVML_FI_DEV_POWER_INSTANT: (_UNSIGNED, _instant_mw),
    pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: (_UNSIGNED, lambda gpu: int(gpu.limit_w * 1e3)),
}


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


def _utilisation(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    host.clock.sleep_s(_QUICK_CALL_S)
    behind(out).gpu, behind(out).memory = (round(100 * share) for share in gpu.load())
    return OK


def _codec_utilisation(_host: Host, _gpu: VirtualGpu, out: CArgument, period: CArgument) -> int:
    put(period, _UTILISATION_US)
    return put(out, 0)


def _processes(gpu: VirtualGpu) -> list[tuple[int, int, int]]:
    """Return process number, device memory in MiB and share in percent of all that compute."""
    processes = [(n.pid, n.memory_mib, round(100 * n.share)) for n in gpu.neighbours]
    if gpu.running is not None:
        rest, pids = 100 - sum(share for _, _, share in processes), gpu.running.pids
        processes += [(pid, _CONTEXT_MIB, rest // len(pids)) for pid in pids]
        if not pids:
            processes.append((os.getpid(), _CONTEXT_MIB, rest))
    return processes


def _compute_processes(_host: Host, gpu: VirtualGpu, count: CArgument, out: CArgument) -> int:
    processes = _processes(gpu)
    if not has_room(count, out, len(processes)):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for i, (pid, memory_mib, _) in enumerate(processes):
        out[i].pid = pid
        out[i].usedGpuMemory = memory_mib * _MIB
        out[i].gpuInstanceId = out[i].computeInstanceId = _NO_INSTANCE
    return OK


def _other_processes(_host: Host, _gpu: VirtualGpu, count: CArgument, _out: CArgument) -> int:
    return put(count, 0)


def _process_utilisation(
    _host: Host, gpu: VirtualGpu, out: CArgument, count: CArgument, since_us: CArgument
) -> int:
    now_us = int(gpu.now_s * 1e6)
    processes = _processes(gpu) if now_us > since_us.value else []
    if not processes:
        return NOT_FOUND
    if not has_room(count, out, len(processes)):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for i, (pid, _, share) in enumerate(processes):
        out[i].pid, out[i].timeStamp, out[i].smUtil = pid, now_us, share
    return OK


def _memory(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    board = board_of(gpu.model.name)
    if board is None:
        return NOT_SUPPORTED
    info = behind(out)
    held_mib = sum(memory_mib for _, memory_mib, _ in _processes(gpu))
    info.total = board.memory_mib * _MIB
    if hasattr(info, "reserved"):  # the second version keeps the driver's own apart
        info.reserved = _DRIVER_MIB * _MIB
        info.used = held_mib * _MIB
        info.free = info.total - info.reserved - info.used
    else:
        info.used = (_DRIVER_MIB + held_mib) * _MIB
        info.free = info.total - info.used
    return OK


def _fan(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    board = board_of(gpu.model.name)
    if board is None or not board.fan:
        return NOT_SUPPORTED
    return put(out, min(100, max(30, round(2.0 * gpu.temperature_c - 80.0))))  # assumed


TABLE: dict[str, DeviceCall] = {
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetClock": _clock_by_id,
    "nvmlDeviceGetTotalEnergyConsumption": _energy,
    "nvmlDeviceGetPowerUsage": _power,
    "nvmlDeviceGetTemperature": _temperature,
    "nvmlDeviceGetCurrentClocksEventReasons": _throttle_reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": _throttle_reasons,
    "nvmlDeviceGetPerformanceState": _performance_state,
    "nvmlDeviceGetPowerState": _performance_state,
    "nvmlDeviceGetEnforcedPowerLimit": _limit,
    "nvmlDeviceGetPowerManagementLimit": _limit,
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetUtilizationRates": _utilisation,
    "nvmlDeviceGetEncoderUtilization": _codec_utilisation,
    "nvmlDeviceGetDecoderUtilization": _codec_utilisation,
    "nvmlDeviceGetComputeRunningProcesses_v3": _compute_processes,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _other_processes,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _other_processes,
    "nvmlDeviceGetProcessUtilization": _process_utilisation,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetFanSpeed": _fan,
    LOCKED_CLOCKS: _locked,
}
