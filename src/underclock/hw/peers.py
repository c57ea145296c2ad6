"""Who is at the other end of a Unix socket, whether it still lives, and who computes on a GPU."""

import contextlib
import os
import select
import socket
import struct
from pathlib import Path

import pynvml

from underclock.errors import NotSupportedError
from underclock.hw.nvml_calls import call

UNSEEN = -1
"""Stands for the user of a process that the driver lists and the system does not show."""
_CREDENTIALS = struct.Struct("3i")  # pid, user, group


def peer_of(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, user and group of the process that connected, as the kernel vouches for them."""
    sent = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(sent)
    return pid, uid, gid


class Life:
    """Whether a process has ended; children that it forked off may keep its connection open.

    Args:
        pid: Of the process; 0 is one of another container, of which the kernel tells nothing.
    """

    def __init__(self, pid: int) -> None:
        self.fds: tuple[int, ...] = ()
        self._over = False
        if pid:
            try:
                self.fds = (os.pidfd_open(pid),)
            except ProcessLookupError:
                self._over = True

    def is_over(self) -> bool:
        """Return whether it has ended."""
        looks = select.poll()  # however many descriptors are open
        for fd in self.fds:
            looks.register(fd, select.POLLIN)
        return self._over or bool(looks.poll(0))

    def close(self) -> None:
        """Let go of what the kernel holds for it."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


def computing(uuid: str) -> set[int]:
    """Return which users compute on a GPU, and `UNSEEN`; inside an `nvml_session`.

    Raises:
        UnderclockError: The driver does not tell.
    """
    handle = call(f"open GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)
    running = list(call("list processes", pynvml.nvmlDeviceGetComputeRunningProcesses, handle))
    with contextlib.suppress(NotSupportedError):  # a driver that lists no clients of MPS apart
        running += call("list processes", pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle)
    users = set()
    for process in running:
        try:
            users.add(Path(f"/proc/{process.pid}").stat().st_uid)
        except OSError:  # it has just ended, is hidden, or is of another container
            users.add(UNSEEN)
    return users
