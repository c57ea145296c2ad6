"""Waiting for descriptors without missing a signal.

Python runs a signal's handler between two instructions of the main thread. One that comes right
before a blocking read, or that another thread takes, waits until that read returns: for a training
job, for hours. So one waits for a byte that is written as the signal comes, as well.
"""

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator, Sequence

_MANY = 4096


def can_be_read(fds: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Return which descriptors can be read, as soon as one can or the time is up.

    In the main thread, what a signal's handler raises is raised here.
    """
    with _woken_by_signals() as woken:
        ready, _, _ = select.select([*fds, *woken], [], [], timeout_s)
    return [fd for fd in ready if fd in fds]


@contextlib.contextmanager
def _woken_by_signals() -> Iterator[list[int]]:
    """Yield what can be read once a signal came; nothing where another thread takes them."""
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield [ours.fileno()]
        finally:
            signal.set_wakeup_fd(before)
            _pass_on(ours, before)


def _pass_on(came: socket.socket, to: int) -> None:
    """Tell of signals whoever waited for them before us, as an event loop does."""
    with contextlib.suppress(OSError):
        numbers = came.recv(_MANY)
        if to >= 0:
            os.write(to, numbers)
