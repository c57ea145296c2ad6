"""What can be set on one GPU and put back, and what else is in force.

Two clock locks. It stands on nvidia-ml-py and the standard
library alone: the process that gives clocks back after another one's death imports nothing more.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import pynvml

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.nvml_calls import (
    READ_ONLY,
    call,
    is_read_only,
    is_simulated,
    locked_mhz,
    may_set,
    set_by,
)

_BITS = 32  # in a word of a mask of profiles


class Setting(StrEnum):
    """What can be set; the two clocks are named as `records.latencies.Domain` names them."""

    CORE = "core"
    MEMORY = "memory"


Lock = tuple[int, int] | None
"""Between which MHz a clock is locked; ``None`` where it is free, or that cannot be read."""
Value = float | Lock
"""MHz to lock a clock at, or between which; ``None`` gives it back to the driver."""


class SettableGpu(Protocol):
    """One GPU that can be set. Opening it and reading change nothing."""

    @property
    def uuid(self) -> str:
        """The name under which every program knows this GPU."""

    def read(self, setting: Setting) -> Lock:
        """Return what is locked; ``None`` where that cannot be read, as on every real GPU."""

    def write(self, setting: Setting, value: Value) -> None:
        """Set it; ``None`` gives a clock back to the driver.

        Raises:
            NotSupportedError: This GPU has no such setting.
            NotPermittedError: This process may not set it.
        """


_LOCKS: dict[Setting, tuple[Callable[..., Any], Callable[..., Any]]] = {
    Setting.CORE: (pynvml.nvmlDeviceSetGpuLockedClocks, pynvml.nvmlDeviceResetGpuLockedClocks),
    Setting.MEMORY: (
        pynvml.nvmlDeviceSetMemoryLockedClocks,
        pynvml.nvmlDeviceResetMemoryLockedClocks,
    ),
}
CLOCK_NUMBERS = {Setting.CORE: pynvml.NVML_CLOCK_SM, Setting.MEMORY: pynvml.NVML_CLOCK_MEM}
"""NVML's own numbers of the clocks."""


def write_setting(handle: Any, setting: Setting, value: Value) -> None:
    """Set something on the GPU of a handle; ``None`` gives a clock back to the driver.

    Raises:
        NotSupportedError: This GPU has no such setting.
        NotPermittedError: This process may not set it, or read-only mode is on.
    """
    lock, give_back = _LOCKS[setting]
    if value is None:
        set_by(f"unlock the {setting}", give_back, handle)
        return
    low, high = value if isinstance(value, tuple) else (int(value), int(value))
    at = f"{low} MHz" if low == high else f"{low} to {high} MHz"
    set_by(f"lock the {setting} at {at}", lock, handle, low, high)


class SettableNvmlGpu:
    """One NVIDIA GPU by its UUID; inside an `nvml_session`."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._handle = call(f"open GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)

    @property
    def uuid(self) -> str:
        """The name under which every program knows this GPU."""
        return self._uuid

    def read(self, setting: Setting) -> Lock:
        """Return what is locked; only a simulated driver has a lock to read."""
        try:
            return locked_mhz(self._handle, CLOCK_NUMBERS[setting])
        except NotSupportedError:
            return None

    def write(self, setting: Setting, value: Value) -> None:
        """Set it; ``None`` gives a clock back to the driver."""
        try:
            write_setting(self._handle, setting, value)
        except UnderclockError as exc:
            exc.add_note(f"on GPU {self._uuid}")
            raise


def enforced_profiles(uuid: str) -> tuple[int, ...]:
    """Return the numbers of the workload power profiles in force, inside an `nvml_session`.

    These are sets of clocks and limits; none where the GPU or driver has no such thing.
    """
    read = getattr(pynvml, "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", None)
    if read is None:  # an older nvidia-ml-py
        return ()
    current = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    try:
        handle = call(f"open GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)
        call("read the workload power profiles", read, handle, current)
    except (DeviceError, UsageError):  # an old driver, or a GPU without
        return ()
    return tuple(
        at * _BITS + bit
        for at, word in enumerate(current.enforcedProfilesMask.mask)
        for bit in range(_BITS)
        if word >> bit & 1
    )


class WayName(StrEnum):
    """What a way is called, those first that are taken first."""

    DIRECT = "direct"
    ZEUSD = "zeusd"


class Way(NamedTuple):
    """One way to set a GPU; no record, for the watchdog loads this and is to start at once."""

    name: WayName  # which
    works: bool  # whether it is open, as far as reading can tell
    why: str  # why it is, or is not, and what would open it


def ways() -> tuple[Way, ...]:
    """Return every way, in their order; inside an `nvml_session`."""
    if is_read_only():
        return tuple(Way(name, works=False, why=f"{READ_ONLY} is set") for name in WayName)
    direct = Way(WayName.DIRECT, works=True, why="the driver lets this process set clocks")
    if not may_set():
        why = "it needs root or CAP_SYS_ADMIN, outside any user namespace, which this process lacks"
        direct = Way(WayName.DIRECT, works=False, why=why)
    return direct, _zeusd()


def settable_gpu(uuid: str) -> SettableGpu:
    """Return a GPU to be set in the first way that works; inside an `nvml_session`."""
    if is_read_only() or may_set():  # the gate says that it is closed when something is set
        return SettableNvmlGpu(uuid)
    found = ways()
    open_ = next((way.name for way in found if way.works), None)
    if open_ is WayName.ZEUSD:
        from underclock.hw.zeusd import Zeusd, ZeusdGpu, socket_path  # noqa: PLC0415 - only where used

        return ZeusdGpu(uuid, Zeusd(socket_path()))
    raise NotPermittedError(
        f"nothing here may set GPU {uuid}: " + "; ".join(f"{way.name}: {way.why}" for way in found),
        hint="run as root, or have an operator run zeusd (docs/operators.md)",
    )


def _zeusd() -> Way:
    from underclock.hw.zeusd import Zeusd, socket_path  # noqa: PLC0415

    if is_simulated():  # it would set whatever real GPU is at the same place of the bus
        return Way(WayName.ZEUSD, works=False, why="it sets real GPUs, and these are simulated")
    zeusd = Zeusd(socket_path())
    try:
        zeusd.discover()
    except UnderclockError as exc:
        why = f"{exc}; {exc.hint}" if exc.hint else str(exc)
        return Way(WayName.ZEUSD, works=False, why=why)
    finally:
        zeusd.close()
    why = f"it answers at {zeusd.path}; our own watchdog undoes what is set"
    return Way(WayName.ZEUSD, works=True, why=why)
