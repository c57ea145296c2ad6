"""What can be set on one GPU and put back, and what else is in force.

Two clock locks. It stands on nvidia-ml-py and the standard
library alone: the process that gives clocks back after another one's death imports nothing more.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

import pynvml

from underclock.errors import DeviceError, NotSupportedError, UnderclockError, UsageError
from underclock.hw.nvml_calls import call, locked_mhz, set_by

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
