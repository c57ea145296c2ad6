"""What can be set on one GPU and put back: two clock locks, the power limit, persistence mode.

It stands on nvidia-ml-py and the standard library alone: the process that gives clocks back after
another one's death imports nothing more.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

import pynvml

from underclock.errors import NotSupportedError, UnderclockError
from underclock.hw.nvml_calls import call, locked_mhz, set_by


class Setting(StrEnum):
    """What can be set; the two clocks are named as `records.latencies.Domain` names them."""

    CORE = "core"
    MEMORY = "memory"
    LIMIT = "limit"
    PERSISTENCE = "persistence"


CLOCKS = (Setting.CORE, Setting.MEMORY)

Value = float | tuple[int, int] | None
"""MHz of a locked clock or between which it is locked, W of the limit, 0 or 1 of persistence."""


class SettableGpu(Protocol):
    """One GPU that can be set. Opening it and reading change nothing."""

    @property
    def uuid(self) -> str:
        """The name under which every program knows this GPU."""
        ...

    def read(self, setting: Setting) -> Value:
        """Return what is set; ``None`` where that cannot be read, as NVML's clock locks."""
        ...

    def write(self, setting: Setting, value: Value) -> None:
        """Set it; ``None`` gives a clock back to the driver.

        Raises:
            NotSupportedError: This GPU has no such setting.
            NotPermittedError: This process may not set it.
        """
        ...


_LOCKS: dict[Setting, tuple[Callable[..., Any], Callable[..., Any]]] = {
    Setting.CORE: (pynvml.nvmlDeviceSetGpuLockedClocks, pynvml.nvmlDeviceResetGpuLockedClocks),
    Setting.MEMORY: (
        pynvml.nvmlDeviceSetMemoryLockedClocks,
        pynvml.nvmlDeviceResetMemoryLockedClocks,
    ),
}
_NUMBERS = {Setting.CORE: pynvml.NVML_CLOCK_SM, Setting.MEMORY: pynvml.NVML_CLOCK_MEM}


class SettableNvmlGpu:
    """One NVIDIA GPU by its UUID; inside an `nvml_session`."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._handle = call(f"open GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)

    @property
    def uuid(self) -> str:
        """The name under which every program knows this GPU."""
        return self._uuid

    def read(self, setting: Setting) -> Value:
        """Return what is set; ``None`` for a clock, whose lock only a simulated driver tells."""
        try:
            if setting in _NUMBERS:
                return locked_mhz(self._handle, _NUMBERS[setting])
            if setting is Setting.LIMIT:
                limit_mw = call(
                    "read the power limit", pynvml.nvmlDeviceGetPowerManagementLimit, self._handle
                )
                return float(limit_mw) / 1e3
            if setting is Setting.PERSISTENCE:
                mode = pynvml.nvmlDeviceGetPersistenceMode
                return float(call("read the persistence mode", mode, self._handle))
        except NotSupportedError:
            pass
        return None

    def write(self, setting: Setting, value: Value) -> None:
        """Set it; ``None`` gives a clock back to the driver."""
        if setting in _LOCKS:
            self._lock(setting, value)
        elif value is None or isinstance(value, tuple):
            raise ValueError(f"{value} is no {setting}")
        elif setting is Setting.LIMIT:
            self._set(
                f"set the power limit to {value:g} W",
                pynvml.nvmlDeviceSetPowerManagementLimit,
                round(value * 1e3),
            )
        else:
            self._set("set persistence mode", pynvml.nvmlDeviceSetPersistenceMode, int(value))

    def _lock(self, setting: Setting, mhz: Value) -> None:
        lock, give_back = _LOCKS[setting]
        if mhz is None:
            self._set(f"unlock the {setting}", give_back)
            return
        low, high = mhz if isinstance(mhz, tuple) else (int(mhz), int(mhz))
        at = f"{low} MHz" if low == high else f"{low} to {high} MHz"
        self._set(f"lock the {setting} at {at}", lock, low, high)

    def _set(self, what: str, function: Callable[..., Any], *arguments: object) -> None:
        try:
            set_by(what, function, self._handle, *arguments)
        except UnderclockError as exc:
            exc.add_note(f"on GPU {self._uuid}")
            raise
