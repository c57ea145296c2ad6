"""Calls to NVML: whose library answers, a session, the gate for writes, and what can be set.

It stands on nvidia-ml-py and the standard library alone, so that a process which only has to undo
something starts at once. In the place of NVML's library there may be a simulated driver of this
process, or one that another process serves.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pynvml

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.units import Domain

READ_ONLY = "UNDERCLOCK_READ_ONLY"
SIMULATOR = "UNDERCLOCK_SIMULATOR"
"""Names the socket on which simulated GPUs are served to every process that uses this package."""
LOCKED_CLOCKS = "underclockDeviceGetLockedClocks"
"""A function that only simulated drivers have: between which clocks a lock holds a clock."""
MAY_SET = "underclockMaySet"
"""Another: whether the process may set anything."""

_SYS_ADMIN = 21  # the number of CAP_SYS_ADMIN
_EVERYBODY = ["0", "0", "4294967295"]  # user numbers as the kernel itself counts them
_NOT_TOLD = "this GPU or its driver does not have that reading"
_ERRORS: dict[int, tuple[type[UnderclockError], str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        NotPermittedError,
        "locking clocks needs root or an operator's daemon; reading and auto clocks do not",
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (
        NotSupportedError,
        "this GPU cannot; leave that clock at auto, for memory with --mem-mhz auto",
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (NotSupportedError, "the driver is too old for this"),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        NotSupportedError,
        "no NVIDIA driver here: `tune` and `run` take --gpu sim:rtx3080ti, a simulated GPU",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        DeviceError,
        "the driver went away: load it, or start the served simulator, again",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (DeviceError, "the GPU fell off the bus: reboot the machine"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (UsageError, "see `underclock doctor` for valid clocks"),
}

_Driver = TypeVar("_Driver")


@contextmanager
def installed(driver: _Driver) -> Iterator[_Driver]:
    """Put a driver in the place of NVML's library for every program in this process.

    A program that keeps a session or handles of its own must close them inside the block.
    """
    cache = pynvml._nvmlGetFunctionPointer_cache  # noqa: SLF001 - nvidia-ml-py's one seam
    library, functions = pynvml.nvmlLib, dict(cache)
    sessions = pynvml._nvmlLib_refcount  # noqa: SLF001 - it belongs to the library
    pynvml.nvmlLib = driver
    pynvml._nvmlLib_refcount = 0  # noqa: SLF001
    cache.clear()
    try:
        yield driver
    finally:
        pynvml.nvmlLib = library
        pynvml._nvmlLib_refcount = sessions  # noqa: SLF001
        cache.clear()
        cache.update(functions)


class _ServedInPlace:
    """Keeps served GPUs in NVML's place while sessions are open, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._taken = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            path = os.environ.get(SIMULATOR, "")
            if self._sessions == 0 and path and not is_simulated():
                # Loaded on use: other processes do not pay for it.
                from underclock.hw.simulated.served.client import ServedLibrary  # noqa: PLC0415

                library = ServedLibrary(path)
                self._taken.callback(library.close)
                self._taken.enter_context(installed(library))
            self._sessions += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._sessions -= 1
            if self._sessions == 0:
                self._taken.close()


_SERVED = _ServedInPlace()  # NVML's place is one for the whole process, as nvidia-ml-py has it


def is_simulated() -> bool:
    """Whether what answers in NVML's place is simulated; inside an `nvml_session`."""
    return bool(getattr(pynvml.nvmlLib, "simulated", False))


def simulated_read_only() -> bool | None:
    """Return whether this process's simulated driver forbids writes; ``None`` if it has none."""
    read_only: bool | None = getattr(pynvml.nvmlLib, "simulated_read_only", None)
    return read_only


def is_read_only() -> bool:
    """Whether every write to a GPU is forbidden, by the environment or this process's simulator."""
    simulated = simulated_read_only()
    return os.environ.get(READ_ONLY, "0") not in {"", "0"} if simulated is None else simulated


def may_set() -> bool:
    """Return whether the driver would let this process set clocks, found out by reading only.

    NVIDIA's driver asks the kernel for CAP_SYS_ADMIN, outside any user namespace. Root in a
    container mostly lacks it. What else may stand against it, as a fault, cannot be known without
    trying. Inside an `nvml_session`.
    """
    simulated = getattr(pynvml.nvmlLib, MAY_SET, None)
    if simulated is not None:
        return bool(simulated() == pynvml.NVML_SUCCESS)
    own = Path("/proc/self")
    return is_admin((own / "status").read_text(), (own / "uid_map").read_text())


def is_admin(status: str, uid_map: str) -> bool:
    """Return whether a process has CAP_SYS_ADMIN, by what its ``/proc/PID`` says."""
    effective = next(
        (line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0"
    )
    return bool(int(effective, 16) >> _SYS_ADMIN & 1) and uid_map.split() == _EVERYBODY


@contextmanager
def nvml_session() -> Iterator[None]:
    """Keep NVML initialised for the length of a block.

    Where the environment names served simulated GPUs, they are what NVML lists, unless a simulated
    driver of this process is in its place already.

    Raises:
        DeviceError: There is no driver, or it does not answer.
    """
    with _SERVED:
        call("start NVML", pynvml.nvmlInit)
        try:
            yield
        finally:
            call("stop NVML", pynvml.nvmlShutdown)


def gpu_count() -> int:
    """Return how many GPUs the driver lists; inside an `nvml_session`."""
    return int(call("count GPUs", pynvml.nvmlDeviceGetCount))


def call(what: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Call NVML, turning its errors into ours at this one boundary.

    Raises:
        NotSupportedError: The GPU cannot, or its driver has no such function.
        UnderclockError: Anything else.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as exc:
        cause, code = exc, exc.value
    # Of functions that had other arguments in older drivers, nvidia-ml-py says so in its own way.
    except (pynvml.NVMLLibraryMismatchError, AttributeError) as exc:
        cause, code = exc, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    kind, hint = _ERRORS.get(code, (DeviceError, ""))
    if code == pynvml.NVML_ERROR_NOT_SUPPORTED and what.startswith("read"):
        hint = _NOT_TOLD
    raise kind(f"could not {what}: {cause}", hint=hint) from cause


def check_writable(what: str) -> None:
    """Refuse to write where read-only mode closes the gate."""
    if is_read_only():
        raise NotPermittedError(
            f"will not {what}: {READ_ONLY} is set", hint=f"unset {READ_ONLY} to allow it"
        )


def set_by(what: str, function: Callable[..., Any], *arguments: object) -> None:
    """Write to a device: the one gate that read-only mode closes."""
    check_writable(what)
    call(what, function, *arguments)


def locked_mhz(handle: object, clock: int) -> tuple[int, int] | None:
    """Return between which clocks a lock holds one, ``None`` for none; only a simulator knows."""
    function = getattr(pynvml.nvmlLib, LOCKED_CLOCKS, None)
    if function is None:
        raise NotSupportedError(
            "NVIDIA's driver does not say which clocks are locked",
            hint="compare running clocks under load with what was asked for",
        )
    low, high = ctypes.c_uint(), ctypes.c_uint()
    code = function(handle, ctypes.c_uint(clock), ctypes.byref(low), ctypes.byref(high))
    if code == pynvml.NVML_ERROR_NOT_FOUND:
        return None
    call("read a lock", pynvml._nvmlCheckReturn, code)  # noqa: SLF001 - as its own functions do
    return low.value, high.value


_BITS = 32  # in a word of a mask of profiles


Lock = tuple[int, int] | None
"""Between which MHz a clock is locked; ``None`` where it is free, or that cannot be read."""
Value = float | Lock
"""MHz to lock a clock at, or between which; ``None`` gives it back to the driver."""


class SettableGpu(Protocol):
    """One GPU that can be set. Opening it and reading change nothing."""

    @property
    def uuid(self) -> str:
        """The name under which every program knows this GPU."""

    def read(self, setting: Domain) -> Lock:
        """Return what is locked; ``None`` where that cannot be read, as on every real GPU."""

    def write(self, setting: Domain, value: Value) -> None:
        """Set it; ``None`` gives a clock back to the driver.

        Raises:
            NotSupportedError: This GPU has no such setting.
            NotPermittedError: This process may not set it.
        """


_LOCKS: dict[Domain, tuple[Callable[..., Any], Callable[..., Any]]] = {
    Domain.CORE: (pynvml.nvmlDeviceSetGpuLockedClocks, pynvml.nvmlDeviceResetGpuLockedClocks),
    Domain.MEMORY: (
        pynvml.nvmlDeviceSetMemoryLockedClocks,
        pynvml.nvmlDeviceResetMemoryLockedClocks,
    ),
}
CLOCK_NUMBERS = {Domain.CORE: pynvml.NVML_CLOCK_SM, Domain.MEMORY: pynvml.NVML_CLOCK_MEM}
"""NVML's own numbers of the clocks."""


def write_setting(handle: Any, setting: Domain, value: Value) -> None:
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
        self.uuid = uuid
        self._handle = call(f"open GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)

    def read(self, setting: Domain) -> Lock:
        """Return what is locked; only a simulated driver has a lock to read."""
        try:
            return locked_mhz(self._handle, CLOCK_NUMBERS[setting])
        except NotSupportedError:
            return None

    def write(self, setting: Domain, value: Value) -> None:
        """Set it; ``None`` gives a clock back to the driver."""
        try:
            write_setting(self._handle, setting, value)
        except UnderclockError as exc:
            exc.add_note(f"on GPU {self.uuid}")
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
    why = "the driver lets this process set clocks"
    if not (direct := may_set()):
        why = "it needs root or CAP_SYS_ADMIN, outside any user namespace, which this process lacks"
    return Way(WayName.DIRECT, works=direct, why=why), _zeusd()


def settable_gpu(uuid: str) -> SettableGpu:
    """Return a GPU to be set in the first way that works; inside an `nvml_session`."""
    if is_read_only() or may_set():  # the gate says that it is closed when something is set
        return SettableNvmlGpu(uuid)
    found = ways()
    if found[-1].works:
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
