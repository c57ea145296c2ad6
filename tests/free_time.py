"""A clock for deadlines that hardly moves while processes wait for a processor."""

import contextlib
import time
from pathlib import Path


def free_s() -> float:
    """Return a time in s that passes at a tenth of its pace while a process waits for a processor.

    What is promised within some seconds is promised where there is a processor for it: tests run
    next to one another, on machines of others. Linux without pressure figures has the plain time.
    """
    waited_us = "0"
    with contextlib.suppress(OSError):
        some, _, _ = Path("/proc/pressure/cpu").read_text().partition("\n")
        waited_us = some.rpartition("total=")[2]
    return time.monotonic() - 0.9e-6 * int(waited_us)
