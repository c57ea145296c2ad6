"""The object that takes the place of NVML's C library.

It answers the calls nvidia-ml-py makes, with their C arguments and return codes, so every program
on nvidia-ml-py sees the virtual GPUs as it would see real ones: the code that reads and locks a
real GPU is the code that runs here.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml

from underclock.hw.simulated.device import (
    REASON_IDLE,
    REASON_POWER_CAP,
    VirtualGpu,
)
from underclock.hw.simulated.launcher import VirtualClock

_ENERGY_CALL_S = 0.003  # the call blocks: 3 ms on an H200
_SETTER_CALL_S = 0.0045  # 4.5 ms median on an A800
_QUICK_CALL_S = 1e-6

_OK = pynvml.NVML_SUCCESS
_Code = int


def _put(pointer: Any, value: int) -> _Code:
    """Write through a ``byref`` argument."""
    pointer._obj.value = value  # noqa: SLF001 - what ctypes calls the object behind byref
    return int(_OK)


class SimulatedDriver:
    """NVML over virtual GPUs. Functions are found by name, as in a loaded library.

    Args:
        gpus: The GPUs, in index order.
        root: Whether the process may lock clocks.
    """

    def __init__(self, gpus: Sequence[VirtualGpu], *, root: bool = True) -> None:
        self.gpus = tuple(gpus)
        self.clock = VirtualClock(self.gpus)
        self.root = root
        self._sessions = 0
        self._functions: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a C function; nvidia-ml-py sets attributes on it, so it keeps its identity."""
        if not name.startswith("nvml"):
            raise AttributeError(name)
        known = self.__dict__["_functions"]
        if name not in known:
            method = getattr(type(self), f"_{name}", None)
            if method is None:
                raise AttributeError(name)
            known[name] = functools.partial(method, self)
        found: Callable[..., Any] = known[name]
        return found

    def _gpu(self, handle: Any) -> VirtualGpu:
        # A handle points nowhere: its address is the index, one-based, so that none is NULL.
        return self.gpus[(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1]

    # --- library -----------------------------------------------------------------------------

    def _nvmlInitWithFlags(self, _flags: Any) -> _Code:
        self._sessions += 1
        return int(_OK)

    def _nvmlShutdown(self) -> _Code:
        if self._sessions == 0:
            return int(pynvml.NVML_ERROR_UNINITIALIZED)
        self._sessions -= 1
        return int(_OK)

    def _nvmlErrorString(self, code: int) -> bytes:
        return f"simulated error {code}".encode()

    def _nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> _Code:
        buffer.value = self.gpus[0].model.driver.encode()
        return int(_OK)

    def _nvmlDeviceGetCount_v2(self, count: Any) -> _Code:
        return _put(count, len(self.gpus))

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> _Code:
        if index.value >= len(self.gpus):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        # Write the address itself, not what it points to: it points nowhere.
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return int(_OK)

    # --- reading -----------------------------------------------------------------------------

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, _size: Any) -> _Code:
        buffer.value = self._gpu(handle).model.name.encode()
        return int(_OK)

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _size: Any) -> _Code:
        index = self.gpus.index(self._gpu(handle))
        buffer.value = f"GPU-00000000-5157-0000-0000-{index:012d}".encode()
        return int(_OK)

    def _nvmlDeviceGetSupportedMemoryClocks(self, handle: Any, count: Any, out: Any) -> _Code:
        return _list(self._gpu(handle).model.mem_mhz, count, out)

    def _nvmlDeviceGetSupportedGraphicsClocks(
        self, handle: Any, mem: Any, count: Any, out: Any
    ) -> _Code:
        model = self._gpu(handle).model
        if mem.value not in model.mem_mhz:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        clocks = model.core_mhz
        if model.low_mem_core_mhz is not None and mem.value == model.mem_mhz[0]:
            clocks = tuple(mhz for mhz in clocks if mhz <= model.low_mem_core_mhz)
        return _list(clocks, count, out)

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> _Code:
        self.clock.sleep_s(_QUICK_CALL_S)
        gpu = self._gpu(handle)
        if kind.value == pynvml.NVML_CLOCK_MEM:
            return _put(out, gpu.mem_mhz)
        bin_mhz = gpu.constants.boost_loss_mhz
        return _put(out, int(gpu.core_mhz // bin_mhz * bin_mhz))

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, out: Any) -> _Code:
        self.clock.sleep_s(_ENERGY_CALL_S)
        return _put(out, self._gpu(handle).counter_mj)

    def _nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> _Code:
        self.clock.sleep_s(_QUICK_CALL_S)
        return _put(out, int(self._gpu(handle).power_w * 1e3))

    def _nvmlDeviceGetTemperature(self, handle: Any, _sensor: Any, out: Any) -> _Code:
        self.clock.sleep_s(_QUICK_CALL_S)
        return _put(out, int(self._gpu(handle).temperature_c))

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> _Code:
        gpu = self._gpu(handle)
        if gpu.activity is None:
            return _put(out, REASON_IDLE)
        return _put(out, REASON_POWER_CAP if gpu.capped else 0)

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> _Code:
        return _put(out, int(self._gpu(handle).limit_w * 1e3))

    def _nvmlDeviceGetPowerManagementLimitConstraints(
        self, handle: Any, least: Any, most: Any
    ) -> _Code:
        _, low_w, high_w = self._gpu(handle).model.limit_w
        _put(least, int(low_w * 1e3))
        return _put(most, int(high_w * 1e3))

    # --- locking -----------------------------------------------------------------------------

    def _nvmlDeviceSetGpuLockedClocks(self, handle: Any, low: Any, high: Any) -> _Code:
        gpu = self._gpu(handle)
        return self._lock(low.value, high.value, gpu.model.core_mhz, gpu.lock_core)

    def _nvmlDeviceSetMemoryLockedClocks(self, handle: Any, low: Any, high: Any) -> _Code:
        gpu = self._gpu(handle)
        if not gpu.model.memory_lockable:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._lock(low.value, high.value, gpu.model.mem_mhz, gpu.lock_mem)

    def _nvmlDeviceResetGpuLockedClocks(self, handle: Any) -> _Code:
        return self._write(lambda: self._gpu(handle).lock_core(None))

    def _nvmlDeviceResetMemoryLockedClocks(self, handle: Any) -> _Code:
        gpu = self._gpu(handle)
        if not gpu.model.memory_lockable:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._write(lambda: gpu.lock_mem(None))

    def _lock(
        self,
        low: int,
        high: int,
        table: tuple[int, ...],
        apply: Callable[[tuple[int, int]], None],
    ) -> _Code:
        if low > high or high < table[0] or low > table[-1]:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._write(lambda: apply((low, high)))

    def _write(self, apply: Callable[[], None]) -> _Code:
        if not self.root:
            return int(pynvml.NVML_ERROR_NO_PERMISSION)
        self.clock.sleep_s(_SETTER_CALL_S)
        apply()
        return int(_OK)


def _list(values: tuple[int, ...], count: Any, out: Any) -> _Code:
    """Answer a list call: the size first, then the values, greatest first as NVML does."""
    if out is None or len(out) < len(values):
        _put(count, len(values))
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for i, value in enumerate(reversed(values)):
        out[i] = value
    return _put(count, len(values))


@contextmanager
def installed(driver: SimulatedDriver) -> Iterator[SimulatedDriver]:
    """Put a driver in the place of NVML's library for every program in this process."""
    cache = pynvml._nvmlGetFunctionPointer_cache  # noqa: SLF001 - nvidia-ml-py's one seam
    library, functions = pynvml.nvmlLib, dict(cache)
    pynvml.nvmlLib = driver
    cache.clear()
    try:
        yield driver
    finally:
        pynvml.nvmlLib = library
        cache.clear()
        cache.update(functions)
