"""One NVIDIA GPU through NVML: the only GPU code, for real and simulated GPUs alike.

Driver quirks live here, once, with their reason. Units become SI on the line that reads them.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from underclock.errors import NotSupportedError, UnderclockError, UsageError
from underclock.hw.base import Gpu
from underclock.hw.nvml_calls import (
    call,
    gpu_count,
    is_simulated,
    locked_mhz,
    simulated_read_only,
)
from underclock.hw.settable import CLOCK_NUMBERS, Setting, write_setting
from underclock.records import AUTO, Clocks, GpuInfo, ThrottleReason
from underclock.records.latencies import Domain
from underclock.records.measured import gpu_name


class NvmlGpu:
    """One GPU by index; inside an `nvml_session`. Opening and reading change nothing."""

    def __init__(self, index: int = 0) -> None:
        count = gpu_count()
        if not 0 <= index < count:
            raise UsageError(f"there is no GPU {index}", hint=f"the driver lists {count}")
        self._index = index
        self._handle = call(f"open GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index)

    def info(self) -> GpuInfo:
        """Return its name, UUID, driver and power limit."""
        return GpuInfo(
            name=gpu_name(self._get("name", pynvml.nvmlDeviceGetName)),
            uuid=self.uuid(),
            driver=call("read the driver version", pynvml.nvmlSystemGetDriverVersion),
            power_limit_w=self._get("power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit) / 1e3,
            power_range_w=self._power_range_w(),
        )

    def _power_range_w(self) -> tuple[float, float] | None:
        """Return the least and the greatest power limit; ``None`` where none may be set."""
        try:
            least, most = self._get(
                "power limits", pynvml.nvmlDeviceGetPowerManagementLimitConstraints
            )
        except NotSupportedError:
            return None
        return least / 1e3, most / 1e3

    def supported_mem_mhz(self) -> tuple[int, ...]:
        """Return every memory clock the driver lists, ascending."""
        return tuple(sorted(self._get("memory clocks", pynvml.nvmlDeviceGetSupportedMemoryClocks)))

    def supported_core_mhz(self, mem_mhz: int | None = None) -> tuple[int, ...]:
        """Return every core clock the driver lists at a memory clock (any, if ``None``)."""
        memory = self.supported_mem_mhz() if mem_mhz is None else (mem_mhz,)
        clocks: set[int] = set()
        for mhz in memory:
            clocks.update(
                self._get("core clocks", pynvml.nvmlDeviceGetSupportedGraphicsClocks, mhz)
            )
        return tuple(sorted(clocks))

    def observed(self) -> Clocks:
        """Return the clocks the GPU runs at now."""
        return Clocks(
            core_mhz=self._get("clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            mem_mhz=self._get("clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
        )

    def energy_j(self) -> float:
        """Return the energy counter; blocks about 3 ms on an H200."""
        return float(self._get("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption)) / 1e3

    def power_w(self) -> float:
        """Return power; a 1 s average on Ampere and newer."""
        return float(self._get("power", pynvml.nvmlDeviceGetPowerUsage)) / 1e3

    def temperature_c(self) -> float:
        """Return the GPU's temperature."""
        sensor = pynvml.NVML_TEMPERATURE_GPU
        return float(self._get("temperature", pynvml.nvmlDeviceGetTemperature, sensor))

    def throttle_reasons(self) -> ThrottleReason:
        """Return why the clocks are what they are."""
        what, since_535 = "throttle reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons
        try:
            bits = self._get(what, since_535)
        except NotSupportedError:  # the same under its older name
            bits = self._get(what, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return ThrottleReason(int(bits))

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
        """Refuse a GPU that is split into instances.

        Raises:
            NotSupportedError: It is.
        """
        if self.is_partitioned():
            raise NotSupportedError(
                "this GPU is split into MIG instances, whose clocks are one",
                hint="measure on a GPU without MIG, or ask its operator",
            )

    def neighbours(self) -> dict[int, float | None] | None:
        """Return the processes that compute on the GPU, and what share of it each took lately.

        A share, or all of it, is ``None`` where the driver does not tell it.
        """
        try:
            running = self._get("processes", pynvml.nvmlDeviceGetComputeRunningProcesses)
        except NotSupportedError:  # drivers before 510
            return None
        try:
            used = self._get("shares", pynvml.nvmlDeviceGetProcessUtilization, 0)
        except UnderclockError:  # none sampled yet, or not told
            used = []
        shares = {int(sample.pid): float(sample.smUtil) / 100 for sample in used}
        return {int(process.pid): shares.get(int(process.pid)) for process in running}

    def lock(self, clocks: Clocks) -> None:
        """Hold these clocks; a domain that is ``None`` is left alone."""
        if clocks.core_mhz is not None:
            write_setting(self._handle, Setting.CORE, clocks.core_mhz)
        if clocks.mem_mhz is not None:
            write_setting(self._handle, Setting.MEMORY, clocks.mem_mhz)

    def unlock(self) -> None:
        """Give every clock back to the driver; harmless when nothing is locked."""
        with self._unlock_hint():
            try:
                self.give_back(Domain.CORE)
            finally:
                # A GPU whose memory clock cannot be locked has none to give back.
                with contextlib.suppress(NotSupportedError):
                    self.give_back(Domain.MEMORY)

    def give_back(self, domain: Domain) -> None:
        """Give one domain's clock back to the driver; harmless when it is not locked."""
        write_setting(self._handle, Setting(domain.value), None)

    def locked_mhz(self, domain: Domain) -> tuple[int, int] | None:
        """Return between which clocks one is locked; ``None`` where it is not."""
        return locked_mhz(self._handle, CLOCK_NUMBERS[Setting(domain.value)])

    def power_limit_w(self) -> float:
        """Return the power limit that was set, or the default."""
        return float(self._get("power limit", pynvml.nvmlDeviceGetPowerManagementLimit)) / 1e3

    @contextmanager
    def _unlock_hint(self) -> Iterator[None]:
        """Say what gives the clocks back where this process could not."""
        try:
            yield
        except UnderclockError as exc:
            if simulated_read_only() is None:  # a simulated GPU is gone with its process
                line = (
                    "`underclock restore` gives the clocks back"
                    if is_simulated()
                    else f"`sudo nvidia-smi -i {self._index} -rgc -rmc` gives the clocks back"
                )
                exc.hint = f"{exc.hint}; {line}" if exc.hint else line
            raise

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
