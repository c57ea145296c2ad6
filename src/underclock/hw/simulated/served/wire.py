"""Messages on a socket: four bytes of length, little-endian, and as many of JSON.

The trainer's half writes the same with the standard library alone (`runtime.streams`).
"""

import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 26  # a step of 100 000 kernels and more
_CHUNK = 1 << 16
_MOST_FDS = 4


class Gone(Exception):  # noqa: N818 - it is no error that the other side ended
    """The other side closed the connection, or said something that is no message."""


def send(connection: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message, and open files with it.

    Raises:
        Gone: Nobody listens any more.
    """
    body = msgspec.json.encode(message)
    try:
        if fds:
            sent = socket.send_fds(connection, [_LENGTH.pack(len(body))], list(fds))
            connection.sendall(_LENGTH.pack(len(body))[sent:] + body)
        else:
            connection.sendall(_LENGTH.pack(len(body)) + body)
    except OSError as exc:
        raise Gone(f"the connection broke: {exc.strerror}") from exc


class Reader:
    """Takes messages, and the files that came with them, off a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self.fds: list[int] = []

    def receive(self) -> Message:
        """Wait for a message.

        Raises:
            Gone: The other side closed, or sends no messages.
        """
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
        if length > _LONGEST:
            raise Gone(f"a message of {length} bytes is none")
        try:
            return msgspec.json.decode(self._take(length), type=Message)
        except msgspec.DecodeError as exc:
            raise Gone(f"what came is no message: {exc}") from exc

    def _take(self, length: int) -> bytes:
        while len(self._buffer) < length:
            try:
                chunk, fds, _, _ = socket.recv_fds(self._connection, _CHUNK, _MOST_FDS)
            except OSError as exc:
                raise Gone(f"the connection broke: {exc.strerror}") from exc
            self.fds.extend(fds)
            if not chunk:
                raise Gone("the other side closed the connection")
            self._buffer += chunk
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken
