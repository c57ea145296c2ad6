"""How C functions take arguments and give answers, seen from Python.

nvidia-ml-py calls functions with ctypes values and pointers, and reads a return code.
"""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import pynvml

from underclock.hw.simulated.device import VirtualGpu

if TYPE_CHECKING:
    from underclock.hw.simulated.calls_gpm import Samples

CArgument = Any
"""Whatever ctypes made of an argument: a number with a ``value``, a buffer, a pointer."""

DeviceCall = Callable[..., int]
"""Answers one function for one GPU: driver, GPU, C arguments → return code."""

OK = int(pynvml.NVML_SUCCESS)
NOT_SUPPORTED = int(pynvml.NVML_ERROR_NOT_SUPPORTED)
NOT_FOUND = int(pynvml.NVML_ERROR_NOT_FOUND)
INVALID_ARGUMENT = int(pynvml.NVML_ERROR_INVALID_ARGUMENT)


class DriverClock(Protocol):
    """Virtual time, as a driver's calls let it pass."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a call is answered, so that no two look at the GPUs at once."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Let virtual time pass on every GPU."""
        ...


class Host(Protocol):
    """What a call may know of the driver that answers it."""

    @property
    def gpus(self) -> tuple[VirtualGpu, ...]:
        """The GPUs, in index order."""
        ...

    @property
    def clock(self) -> DriverClock:
        """Their time."""
        ...

    @property
    def samples(self) -> "Samples":
        """What was read of counters, and by whom it is held."""
        ...

    @property
    def caller_lives(self) -> Callable[[], bool]:
        """Whether the process that calls has not ended yet."""
        ...

    @property
    def root(self) -> bool:
        """Whether the process may write."""
        ...


def behind(pointer: CArgument) -> CArgument:
    """Return the object that a ``byref`` argument points to."""
    return pointer._obj  # noqa: SLF001 - ctypes has no public way


def put(pointer: CArgument, value: float) -> int:
    """Write one number through a ``byref`` argument."""
    behind(pointer).value = value
    return OK


def put_text(buffer: CArgument, text: str) -> int:
    """Write text into a character buffer."""
    buffer.value = text.encode()
    return OK


def put_handle(pointer: CArgument, index: int) -> int:
    """Write a GPU's handle.

    A handle points nowhere: its address is the index, one-based, so that none is NULL.
    """
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = index + 1
    return OK


def index_of(handle: CArgument) -> int | None:
    """Return the index in a handle; ``None`` in NULL."""
    address = ctypes.cast(handle, ctypes.c_void_p).value
    return None if address is None else address - 1


def has_room(count: CArgument, out: CArgument, wanted: int) -> bool:
    """Answer the question for a list's length; whether the caller brought room for the list."""
    room = behind(count).value
    behind(count).value = wanted
    return wanted == 0 or (out is not None and room >= wanted)


def put_list(values: Sequence[int], count: CArgument, out: CArgument) -> int:
    """Answer a list call: the size first, then, to one with room, the values."""
    if not has_room(count, out, len(values)):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for i, value in enumerate(values):
        out[i] = value
    return OK
