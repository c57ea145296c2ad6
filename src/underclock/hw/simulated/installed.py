"""Puts something in the place of NVML's C library, for every program in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pynvml

LOCKED_CLOCKS = "underclockDeviceGetLockedClocks"
"""A function that only simulated drivers have: between which clocks a lock holds a clock."""

MAY_SET = "underclockMaySet"
"""Another: whether the process may set anything."""

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
