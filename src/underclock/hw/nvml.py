"""One NVIDIA GPU through NVML: the only GPU code, for real and simulated GPUs alike.

Driver quirks live here, once, with their reason. Units become SI on the line that reads them.
"""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

from underclock.errors import NotSupportedError, UnderclockError, UsageError
from underclock.hw.base import Gpu
from underclock.hw.nvml_calls import (
    CLOCK_NUMBERS,
    Value,
    call,
    gpu_count,
    is_simulated,
    locked_mhz,
    nvml_session,
    simulated_read_only,
    write_setting,
)
from underclock.records import AUTO, GREATEST_MHZ, LEAST_MHZ, Clocks, GpuInfo, ThrottleReason
from underclock.records.common import can_be_celsius, can_draw
from underclock.records.samples import gpu_name
from underclock.units import Domain

_VISIBLE = "CUDA_VISIBLE_DEVICES"
PARTITIONED = "split into MIG instances, whose clocks are one"
_OVERCLOCKED = 1.25  # of the highest clock listed: offsets that users set lift clocks above it
_GONE = {  # no reading of any kind comes any more
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
}


def shown_by_cuda() -> tuple[str, ...]:
    """Return ``nvml:INDEX`` of each GPU that CUDA shows to a process started here, in its order.

    The driver and CUDA count alike where all GPUs are of one model.
    """
    devices = os.environ.get(_VISIBLE)
    with nvml_session():
        uuids = [NvmlGpu(index).uuid() for index in range(gpu_count())]
    shown: list[int] = []
    for word in map(str, range(len(uuids))) if devices is None else devices.split(","):
        name = word.strip()
        if name.startswith("MIG"):
            raise NotSupportedError(
                f"{_VISIBLE} names {name}, a part of a GPU {PARTITIONED}",
                hint="take a GPU without MIG, or ask its operator",
            )
        named = name.startswith("GPU-")
        same = [n for n, u in enumerate(uuids) if (u.startswith(name) if named else name == str(n))]
        if len(same) != 1 or same[0] in shown:  # there CUDA stops reading
            break
        shown += same
    if not shown:
        why = "the driver lists none" if devices is None else f"{_VISIBLE} is {devices!r}"
        raise UsageError(
            f"no GPU is shown to what is started here: {why}",
            hint=f"unset it, or name some of {', '.join(uuids) or 'what nvidia-smi -L lists'}",
        )
    return tuple(f"nvml:{index}" for index in shown)


class NvmlGpu:
    """One GPU by index; inside an `nvml_session`. Opening and reading change nothing."""

    def __init__(self, index: int = 0) -> None:
        count = gpu_count()
        if not 0 <= index < count:
            raise UsageError(f"there is no GPU {index}", hint=f"the driver lists {count}")
        self._index = index
        self._handle = call(f"open GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index)
        # Sets a clock: directly, and through a guard where clocks outlive us.
        self.write: Callable[[Domain, Value], None] = partial(write_setting, self._handle)
        self._most_mhz: int | None = None  # that any of its clocks can have; read when needed

    def info(self) -> GpuInfo:
        """Return its name, UUID, driver and power limit."""
        limits = self._maybe("power limits", pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
        known = limits and 0 < limits[0] <= limits[1]
        return GpuInfo(
            name=gpu_name(self._get("name", pynvml.nvmlDeviceGetName)),
            uuid=self.uuid(),
            driver=call("read the driver version", pynvml.nvmlSystemGetDriverVersion),
            power_limit_w=self._maybe_milli("power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit),
            power_range_w=(limits[0] / 1e3, limits[1] / 1e3) if known else None,
        )

    def supported_mem_mhz(self) -> tuple[int, ...]:
        """Return every memory clock the driver lists, ascending; none where it lists none."""
        listed = self._maybe("memory clocks", pynvml.nvmlDeviceGetSupportedMemoryClocks)
        return tuple(sorted(listed or ()))

    def supported_core_mhz(self, mem_mhz: int | None = None) -> tuple[int, ...]:
        """Return every core clock the driver lists at a memory clock (any, if ``None``)."""
        memory = self.supported_mem_mhz() if mem_mhz is None else (mem_mhz,)
        clocks: set[int] = set()
        for mhz in memory:
            listed = self._maybe("core clocks", pynvml.nvmlDeviceGetSupportedGraphicsClocks, mhz)
            clocks.update(listed or ())
        return tuple(sorted(clocks))

    def observed(self) -> Clocks:
        """Return the clocks the GPU runs at now; ``None`` for one that is unknown or cannot be."""
        if self._most_mhz is None:
            listed = (*self.supported_mem_mhz(), *self.supported_core_mhz(), 0)
            self._most_mhz = round(_OVERCLOCKED * max(listed)) or GREATEST_MHZ
        numbers = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
        core, mem = (self._maybe("clock", pynvml.nvmlDeviceGetClockInfo, each) for each in numbers)
        return Clocks(
            core_mhz=core if core and LEAST_MHZ <= core <= self._most_mhz else None,
            mem_mhz=mem if mem and LEAST_MHZ <= mem <= self._most_mhz else None,
        )

    def energy_j(self) -> float:
        """Return the energy counter; blocks about 3 ms on an H200."""
        return float(self._get("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption)) / 1e3

    def power_w(self) -> float | None:
        """Return power, a 1 s average on Ampere and newer; ``None`` if unknown or impossible."""
        watts = self._maybe_milli("power", pynvml.nvmlDeviceGetPowerUsage)
        if watts is None:
            return None
        limit_w = self._maybe_milli("power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit)
        return watts if can_draw(watts, limit_w) else None

    def temperature_c(self) -> float | None:
        """Return the GPU's temperature; ``None`` where it is unknown or cannot be."""
        sensor = pynvml.NVML_TEMPERATURE_GPU
        celsius = self._maybe("temperature", pynvml.nvmlDeviceGetTemperature, sensor)
        return float(celsius) if celsius is not None and can_be_celsius(celsius) else None

    def throttle_reasons(self) -> ThrottleReason | None:
        """Return why the clocks are what they are; ``None`` where that is unknown."""
        what, since_535 = "throttle reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons
        bits = self._maybe(what, since_535)
        if bits is None:  # the same under its older name
            bits = self._maybe(what, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return None if bits is None else ThrottleReason(int(bits))

    def uuid(self) -> str:
        """Return the name under which other libraries know this GPU."""
        return str(self._get("UUID", pynvml.nvmlDeviceGetUUID))

    def is_partitioned(self) -> bool:
        """Whether the GPU is split into MIG instances; their clocks are one."""
        try:
            now, _pending = self._get("MIG mode", pynvml.nvmlDeviceGetMigMode)
        except NotSupportedError:
            return False
        return bool(now)

    def check_whole(self) -> None:
        """Refuse a GPU that is split into instances."""
        if self.is_partitioned():
            raise NotSupportedError(
                f"this GPU is {PARTITIONED}", hint="take a GPU without MIG, or ask its operator"
            )

    def neighbours(self) -> dict[int, float | None] | None:
        """Return the processes that compute on the GPU, and what share of it each took lately.

        A share, or all of it, is ``None`` where the driver has no such call.
        """
        try:
            running = self._get("processes", pynvml.nvmlDeviceGetComputeRunningProcesses)
        except NotSupportedError:  # drivers before 510
            return None
        try:
            used = self._get("shares", pynvml.nvmlDeviceGetProcessUtilization, 0)
        except UnderclockError:  # none sampled yet, or not supported
            used = []
        shares = {int(sample.pid): float(sample.smUtil) / 100 for sample in used}
        return {int(process.pid): shares.get(int(process.pid)) for process in running}

    def lock(self, clocks: Clocks) -> None:
        """Hold these clocks; a domain that is ``None`` is left alone."""
        if clocks.core_mhz is not None:
            self.write(Domain.CORE, clocks.core_mhz)
        if clocks.mem_mhz is not None:
            self.write(Domain.MEMORY, clocks.mem_mhz)

    def unlock(self) -> None:
        """Give every clock back to the driver; harmless when nothing is locked."""
        try:
            try:
                self.give_back(Domain.CORE)
            finally:
                # A GPU whose memory clock cannot be locked has none to give back.
                with contextlib.suppress(NotSupportedError):
                    self.give_back(Domain.MEMORY)
        except UnderclockError as exc:
            if simulated_read_only() is None:  # a simulated GPU is gone with its process
                line = (
                    "`underclock restore` gives the clocks back"
                    if is_simulated()
                    else f"`sudo nvidia-smi -i {self._index} -rgc -rmc` gives the clocks back"
                )
                exc.hint = f"{exc.hint}; {line}" if exc.hint else line
            raise

    def give_back(self, domain: Domain) -> None:
        """Give one domain's clock back to the driver; harmless when it is not locked."""
        self.write(domain, None)

    def locked_mhz(self, domain: Domain) -> tuple[int, int] | None:
        """Return between which clocks one is locked; ``None`` where it is not."""
        return locked_mhz(self._handle, CLOCK_NUMBERS[domain])

    def power_limit_w(self) -> float | None:
        """Return the power limit that was set, or the default; ``None`` where it is unknown."""
        return self._maybe_milli("power limit", pynvml.nvmlDeviceGetPowerManagementLimit)

    def _maybe(self, what: str, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return self._get(what, function, *arguments)
        except UnderclockError as exc:
            if getattr(exc.__cause__, "value", None) in _GONE:
                raise
            return None  # a GPU that is there may lack a reading

    def _maybe_milli(self, what: str, function: Callable[..., Any]) -> float | None:
        milli = self._maybe(what, function)
        return None if milli is None or not can_draw(milli / 1e3) else milli / 1e3

    def _get(self, what: str, function: Callable[..., Any], *arguments: object) -> Any:
        return call(f"read the {what}", function, self._handle, *arguments)


def listed_clocks(gpu: Gpu) -> list[Clocks]:
    """Return every clock pair that holds on a GPU, slowest memory first, auto last."""
    every_core = gpu.supported_core_mhz()
    pairs = []
    mems = gpu.supported_mem_mhz()
    # Where there is one memory clock, holding it is what auto does, and often refused.
    for mem in mems if len(mems) > 1 else ():
        cores = gpu.supported_core_mhz(mem)
        pairs += [Clocks(core_mhz=core, mem_mhz=mem) for core in cores]
        # A memory clock that bounds the core does not hold when the core is left to boost.
        if cores and cores[-1] == every_core[-1]:
            pairs.append(Clocks(mem_mhz=mem))
    return [*pairs, *(Clocks(core_mhz=core) for core in every_core), AUTO]
