"""Calls to NVML: whose library answers, a session, the gate for writes, and its errors as ours.

It stands on nvidia-ml-py and the standard library alone, so that a process which only has to undo
something starts at once. In the place of NVML's library there may be a simulated driver of this
process, or one that another process serves.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)

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
_GONE = {  # no reading of any kind comes any more
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
}
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
        "no NVIDIA driver here: `underclock simulate` serves a GPU, and measuring takes sim:NAME",
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


def call_optional(what: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Call NVML for a reading that a GPU may lack; ``None`` where a GPU that is there has none."""
    try:
        return call(what, function, *arguments)
    except UnderclockError as exc:
        if getattr(exc.__cause__, "value", None) in _GONE:
            raise
        return None


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

    def check() -> None:
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)

    call("read a lock", check)
    return low.value, high.value
