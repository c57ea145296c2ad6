"""Messages on a socket: four bytes of length, little-endian, and as many of JSON.

Standard library only: the process that gives clocks back after another one's death, and the one
that trains (`runtime.served_stream`), speak it too.
"""

import json
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 26  # a step of 100 000 kernels and more
_CHUNK = 1 << 16
_MOST_FDS = 4


class Gone(Exception):  # noqa: N818 - it is no error that the other side ended
    """The other side closed the connection, or said something that is no message."""


def framed(message: Message) -> bytes:
    """Return a message as it is sent."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def send(connection: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message, and open files with it.

    Raises:
        Gone: Nobody listens any more.
    """
    body = framed(message)
    try:
        if fds:
            sent = socket.send_fds(connection, [body[: _LENGTH.size]], list(fds))
            body = body[sent:]
        connection.sendall(body)
    except OSError as exc:
        raise Gone(f"the connection broke: {exc}") from exc


class Unpacker:
    """Puts messages together from what comes in, however it is cut.

    Args:
        longest: No message is longer than so many bytes.
    """

    def __init__(self, longest: int = _LONGEST) -> None:
        self._buffer = bytearray()
        self._longest = longest

    def feed(self, chunk: bytes) -> None:
        """Take in what came."""
        self._buffer += chunk

    @property
    def is_empty(self) -> bool:
        """Whether nothing came that was not returned."""
        return not self._buffer

    def body(self) -> bytes | None:
        """Return the next message as it came; ``None`` where it is not whole yet.

        Raises:
            Gone: It is too long.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._longest:
            raise Gone(f"sent a message of {length} bytes: {self._longest} are the most")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body

    def next(self) -> Message | None:
        """Return the next message; ``None`` where it is not whole yet.

        Raises:
            Gone: It is no message.
        """
        body = self.body()
        if body is None:
            return None
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise Gone(f"what came is no message: {exc}") from exc
        if not isinstance(message, dict):
            raise Gone("what came is no message: it is no object")
        return message


class Reader:
    """Takes messages, and the files that came with them, off a connection.

    Args:
        connection: From which.
        ends: Descriptors that can be read once nothing will come any more.
    """

    def __init__(self, connection: socket.socket, ends: Sequence[int] = ()) -> None:
        self._connection = connection
        self._ends = ends
        self._unpacker = Unpacker()
        self.fds: list[int] = []

    def receive(self) -> Message:
        """Wait for a message.

        Raises:
            Gone: The other side closed, or sends no messages.
        """
        while (message := self._unpacker.next()) is None:
            if self._ends:
                inputs = [self._connection.fileno(), *self._ends]
                ready, _, _ = select.select(inputs, [], [])
                if any(end in ready for end in self._ends):
                    raise Gone("the other side has ended")
            try:
                chunk, fds, _, _ = socket.recv_fds(self._connection, _CHUNK, _MOST_FDS)
            except OSError as exc:
                raise Gone(f"the connection broke: {exc}") from exc
            self.fds.extend(fds)
            if not chunk:
                raise Gone("the other side closed the connection")
            self._unpacker.feed(chunk)
        return message
