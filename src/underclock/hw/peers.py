"""Who is at the other end of a Unix socket, and whether it still lives."""

import os
import select
import socket
import struct

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
