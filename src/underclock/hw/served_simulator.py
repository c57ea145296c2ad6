"""Simulated GPUs that another process serves, where the environment names them."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pynvml

from underclock.hw.simulated.installed import installed

SIMULATOR = "UNDERCLOCK_SIMULATOR"
"""Names the socket on which simulated GPUs are served to every process that uses this package."""


class _InPlace:
    """What is in NVML's place while sessions are open, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._taken = ExitStack()

    def enter(self) -> None:
        with self._lock:
            path = os.environ.get(SIMULATOR, "")
            if self._sessions == 0 and path and not getattr(pynvml.nvmlLib, "simulated", False):
                # Loaded on use: nobody else pays for it.
                from underclock.hw.simulated.served.client import ServedLibrary  # noqa: PLC0415

                library = ServedLibrary(path)
                self._taken.callback(library.close)
                self._taken.enter_context(installed(library))
            self._sessions += 1

    def leave(self) -> None:
        with self._lock:
            self._sessions -= 1
            if self._sessions == 0:
                self._taken.close()


_IN_PLACE = _InPlace()  # NVML's place is one for the whole process, as nvidia-ml-py has it


@contextmanager
def served_in_place() -> Iterator[None]:
    """Put served GPUs in NVML's place for a block, if the environment names them.

    Raises:
        DeviceError: Nobody answers there.
    """
    _IN_PLACE.enter()
    try:
        yield
    finally:
        _IN_PLACE.leave()
