"""NVML calls that read what a GPU is: name, place, clock tables, limits, modes."""

import hashlib
import uuid

import msgspec
import pynvml

from underclock.hw.simulated.boards import board_of
from underclock.hw.simulated.cinterface import (
    NOT_FOUND,
    NOT_SUPPORTED,
    OK,
    CArgument,
    DeviceCall,
    Host,
    behind,
    put,
    put_list,
    put_text,
)
from underclock.hw.simulated.device import VirtualGpu

_ARCHITECTURES = {  # by the first number of the compute capability
    7: pynvml.NVML_DEVICE_ARCH_VOLTA,
    8: pynvml.NVML_DEVICE_ARCH_AMPERE,
    9: pynvml.NVML_DEVICE_ARCH_HOPPER,
}
_NVIDIA_VENDOR = 0x10DE


def uuid_of(gpu: VirtualGpu) -> str:
    """Return the UUID of a GPU: the same for the same unit of the same model, in any machine."""
    model = gpu.model
    costs = (model.name, gpu.number, model.constants, model.throughput, model.own)
    return f"GPU-{uuid.UUID(bytes=hashlib.sha256(msgspec.json.encode(costs)).digest()[:16])}"


def bus_of(index: int) -> str:
    """Return the PCI address of a GPU by index."""
    return f"00000000:{index + 1:02X}:00.0"


def _index_in(host: Host, gpu: VirtualGpu) -> int:
    return next(i for i, other in enumerate(host.gpus) if other is gpu)


def _name(_host: Host, gpu: VirtualGpu, buffer: CArgument, _size: CArgument) -> int:
    return put_text(buffer, gpu.model.name)


def _uuid(_host: Host, gpu: VirtualGpu, buffer: CArgument, _size: CArgument) -> int:
    return put_text(buffer, uuid_of(gpu))


def _index(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    return put(out, _index_in(host, gpu))


def _pci(host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    index, board, info = _index_in(host, gpu), board_of(gpu.model.name), behind(out)
    info.busId = bus_of(index).encode()
    info.busIdLegacy = bus_of(index)[4:].encode()
    info.domain, info.bus, info.device = 0, index + 1, 0
    info.pciDeviceId = ((board.pci_device if board else 0) << 16) | _NVIDIA_VENDOR
    info.pciSubSystemId = 0
    return OK


def _brand(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    board = board_of(gpu.model.name)
    if board is None:
        return NOT_SUPPORTED
    return put(out, pynvml.NVML_BRAND_GEFORCE if board.geforce else pynvml.NVML_BRAND_NVIDIA)


def _cores(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    board = board_of(gpu.model.name)
    return NOT_SUPPORTED if board is None else put(out, board.cores)


def _capability(_host: Host, gpu: VirtualGpu, major: CArgument, minor: CArgument) -> int:
    board = board_of(gpu.model.name)
    if board is None:
        return NOT_SUPPORTED
    put(major, board.capability[0])
    return put(minor, board.capability[1])


def _architecture(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    board = board_of(gpu.model.name)
    return NOT_SUPPORTED if board is None else put(out, _ARCHITECTURES[board.capability[0]])


def _mem_clocks(_host: Host, gpu: VirtualGpu, count: CArgument, out: CArgument) -> int:
    return put_list(gpu.model.mem_mhz[::-1], count, out)  # greatest first, as NVML does


def _core_clocks(
    _host: Host, gpu: VirtualGpu, mem: CArgument, count: CArgument, out: CArgument
) -> int:
    model = gpu.model
    if mem.value not in model.mem_mhz:
        return NOT_FOUND
    clocks = model.core_mhz
    if model.low_mem_core_mhz is not None and mem.value == model.mem_mhz[0]:
        clocks = tuple(mhz for mhz in clocks if mhz <= model.low_mem_core_mhz)
    return put_list(clocks[::-1], count, out)


def _highest_clock(_host: Host, gpu: VirtualGpu, kind: CArgument, out: CArgument) -> int:
    if kind.value == pynvml.NVML_CLOCK_MEM:
        return put(out, gpu.model.mem_mhz[-1])
    if kind.value not in {pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM}:
        return NOT_SUPPORTED
    return put(out, gpu.model.core_mhz[-1])


def _limit_range(_host: Host, gpu: VirtualGpu, least: CArgument, most: CArgument) -> int:
    _, low_w, high_w = gpu.model.limit_w
    put(least, int(low_w * 1e3))
    return put(most, int(high_w * 1e3))


def _default_limit(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    return put(out, int(gpu.model.limit_w[0] * 1e3))


def _persistence(_host: Host, gpu: VirtualGpu, out: CArgument) -> int:
    return put(out, int(gpu.persistent))


def _zero(_host: Host, _gpu: VirtualGpu, out: CArgument) -> int:
    return put(out, 0)


def _mig_mode(_host: Host, gpu: VirtualGpu, current: CArgument, pending: CArgument) -> int:
    board = board_of(gpu.model.name)
    if board is None or not board.hbm:
        return NOT_SUPPORTED
    put(pending, 0)
    return put(current, 0)


def _not_here(_host: Host, _gpu: VirtualGpu, *_arguments: CArgument) -> int:
    return NOT_SUPPORTED


TABLE: dict[str, DeviceCall] = {
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetIndex": _index,
    "nvmlDeviceGetMinorNumber": _index,
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetBrand": _brand,
    "nvmlDeviceGetNumGpuCores": _cores,
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetArchitecture": _architecture,
    "nvmlDeviceGetSupportedMemoryClocks": _mem_clocks,
    "nvmlDeviceGetSupportedGraphicsClocks": _core_clocks,
    "nvmlDeviceGetMaxClockInfo": _highest_clock,
    "nvmlDeviceGetPowerManagementLimitConstraints": _limit_range,
    "nvmlDeviceGetPowerManagementDefaultLimit": _default_limit,
    "nvmlDeviceGetPersistenceMode": _persistence,
    "nvmlDeviceGetMigMode": _mig_mode,
    # Default compute mode, no display, not split.
    "nvmlDeviceGetMaxMigDeviceCount": _zero,
    "nvmlDeviceGetComputeMode": _zero,
    "nvmlDeviceGetDisplayMode": _zero,
    "nvmlDeviceGetDisplayActive": _zero,
    "nvmlDeviceIsMigDeviceHandle": _zero,
    # There on a real driver, but not on these GPUs.
    "nvmlDeviceGetSerial": _not_here,
    "nvmlDeviceGetBAR1MemoryInfo": _not_here,
    "nvmlDeviceGetTotalEccErrors": _not_here,
    "nvmlDeviceGetPcieThroughput": _not_here,
    "nvmlDeviceGetDriverModel": _not_here,
    "nvmlDeviceGetDriverModel_v2": _not_here,
}
