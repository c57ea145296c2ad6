"""Calls to NVML: a session, the gate for writes, and its errors as ours.

It stands on nvidia-ml-py and the standard library alone, so that a process which only has to undo
something starts at once.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)

READ_ONLY = "UNDERCLOCK_READ_ONLY"

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
        "no NVIDIA driver here: use --gpu sim:rtx3080ti or replay:TABLE.csv",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (DeviceError, "the GPU fell off the bus: reboot the machine"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (UsageError, "see `underclock doctor` for valid clocks"),
}


def is_read_only() -> bool:
    """Whether every write to a GPU is forbidden.

    On real GPUs the environment says so; a simulated driver, on which nothing can be broken, says
    so itself.
    """
    simulated = simulated_read_only()
    return os.environ.get(READ_ONLY, "0") not in {"", "0"} if simulated is None else simulated


def simulated_read_only() -> bool | None:
    """Return whether the simulated driver forbids writes; ``None`` where the driver is real."""
    read_only: bool | None = getattr(pynvml.nvmlLib, "simulated_read_only", None)
    return read_only


@contextmanager
def nvml_session() -> Iterator[None]:
    """Keep NVML initialised for the length of a block.

    Raises:
        DeviceError: There is no driver, or it does not answer.
    """
    call("start NVML", pynvml.nvmlInit)
    try:
        yield
    finally:
        call("stop NVML", pynvml.nvmlShutdown)


def gpu_count() -> int:
    """Return how many GPUs the driver lists; inside an `nvml_session`."""
    return int(call("count GPUs", pynvml.nvmlDeviceGetCount))


def call(what: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Call NVML, turning its errors into ours at this one boundary."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as exc:
        kind, hint = _ERRORS.get(exc.value, (DeviceError, ""))
        raise kind(f"could not {what}: {exc}", hint=hint) from exc


def set_by(what: str, function: Callable[..., Any], *arguments: object) -> None:
    """Write to a device: the one gate that read-only mode closes."""
    if is_read_only():
        raise NotPermittedError(
            f"will not {what}: {READ_ONLY} is set", hint=f"unset {READ_ONLY} to allow it"
        )
    call(what, function, *arguments)
