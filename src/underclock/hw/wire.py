"""Messages over Unix sockets, and who is at the other end.

A message is four bytes of length, little-endian, and as many of JSON. A socket is in place only
while a process answers on it. Standard library only: the process that gives clocks back after
another one's death speaks it too.
"""

import contextlib
import json
import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from underclock.errors import UsageError

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_LONGEST_MESSAGE = 1 << 26  # a step of 100 000 kernels and more
_CHUNK = 1 << 16
_MOST_FDS = 4
_QUEUE = 64  # connections that wait to be accepted
_LONGEST_PATH = 107  # bytes of a Unix socket's path on Linux
_ANSWER_S = 60.0  # a driver's setter that hangs for 10 s is waited for
_CREDENTIALS = struct.Struct("3i")  # pid, user, group


class Gone(Exception):  # noqa: N818 - it is no error that the other side ended
    """The other side closed the connection, or said something that is no message."""


def framed(message: Message) -> bytes:
    """Return a message as it is sent."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def send(connection: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message, and open files with it."""
    body = framed(message)
    try:
        if fds:
            sent = socket.send_fds(connection, [body[: _LENGTH.size]], list(fds))
            body = body[sent:]
        # Without the signal that a process may have left to end it.
        connection.sendall(body, socket.MSG_NOSIGNAL)
    except OSError as exc:
        raise Gone(f"the connection broke: {exc}") from exc


class Unpacker:
    """Puts messages together from what comes in, however it is cut."""

    def __init__(self, longest: int = _LONGEST_MESSAGE) -> None:
        self._buffer = bytearray()
        self._longest = longest

    def feed(self, chunk: bytes) -> None:
        """Take in what came."""
        self._buffer += chunk

    def next(self) -> Message | None:
        """Return the next message; ``None`` where it is not whole yet."""
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
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise Gone(f"what came is no message: {exc}") from exc
        if not isinstance(message, dict):
            raise Gone("what came is no message: it is no object")
        return message


class MessageReader:
    """Takes messages, and the files that came with them, off a connection.

    Once one of the descriptors `ends` can be read, nothing will come any more. A connection's own
    timeout bounds each wait; a server has none, and waits for a client as long as that lives.
    """

    def __init__(self, connection: socket.socket, ends: Sequence[int] = ()) -> None:
        self._connection = connection
        self._ends = ends
        self._unpacker = Unpacker()
        self.fds: list[int] = []

    def receive(self) -> Message:
        """Wait for a message."""
        while (message := self._unpacker.next()) is None:
            if self._ends:
                inputs = [self._connection.fileno(), *self._ends]
                ready, _, _ = select.select(inputs, [], [])
                if any(end in ready for end in self._ends):
                    raise Gone("the other side has ended")
            try:
                chunk, fds, _, _ = socket.recv_fds(self._connection, _CHUNK, _MOST_FDS)
            except TimeoutError as exc:
                waited_s = self._connection.gettimeout() or 0.0
                raise Gone(f"the other side said nothing for {waited_s:g} s") from exc
            except OSError as exc:
                raise Gone(f"the connection broke: {exc}") from exc
            self.fds.extend(fds)
            if not chunk:
                raise Gone("the other side closed the connection")
            self._unpacker.feed(chunk)
        return message


class Connection:
    """A connection to a Unix socket, over which each question has one answer."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(_ANSWER_S)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self._reader = MessageReader(self.socket)

    def ask(self, message: Message) -> Message:
        """Ask, and wait for the answer."""
        with contextlib.suppress(Gone):  # its last words can still be read
            send(self.socket, message)
        return self._reader.receive()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket that takes its place only once it does, and is gone afterwards."""
    path = path.absolute()
    made = path.with_name(f".{path.name}.{os.getpid()}")
    if len(os.fsencode(made)) > _LONGEST_PATH:
        raise UsageError(
            f"{path} is too long for a socket",
            hint=f"Linux takes {_LONGEST_PATH} bytes: go nearer /",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            before = os.umask(0o177)
            try:
                server.bind(str(made))
            finally:
                os.umask(before)
            server.listen(_QUEUE)
            _check_room(path)
            made.rename(path)  # over one that no process answers on
        except OSError as exc:
            raise UsageError(
                f"cannot put a socket at {path}: {exc.strerror}",
                hint="name a path in a folder that you may write to",
            ) from exc
        finally:
            made.unlink(missing_ok=True)
        own = path.stat().st_ino
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == own:  # and not another process's that came after
                    path.unlink()


def _check_room(path: Path) -> None:
    """Refuse to replace anything but a socket that no process answers on."""
    # Nothing is locked meanwhile: who may read a folder could hold a lock on it for ever. Of two
    # that begin at the same moment, the first is never reached.
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} exists and is no socket", hint="name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except BlockingIOError:  # one whose queue is full answers too
            pass
    raise UsageError(
        f"a process already listens on {path}", hint="name another path, or end that process"
    )


@contextmanager
def answering(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Answer processes that connect to a socket, each in a thread, for the length of a block."""
    lock, connections = threading.Lock(), set[socket.socket]()

    def answer(connection: socket.socket) -> None:
        with connection:
            with lock:
                connections.add(connection)
            try:
                serve(connection)
            finally:
                with lock:
                    connections.discard(connection)

    def accept(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # shut down
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with listening(path) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            with lock:
                for connection in connections:
                    with contextlib.suppress(OSError):  # the other side was faster
                        connection.shutdown(socket.SHUT_RDWR)


def peer_of(connection: socket.socket) -> int:
    """Return the number of the process that connected, as the kernel vouches for it."""
    sent = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(sent)[0]
    return pid


class Life:
    """Whether a process has ended; children that it forked off may keep its connection open."""

    def __init__(self, pid: int) -> None:
        self.fds: tuple[int, ...] = ()
        self._over = False
        if pid:  # 0 is one of another container, which the kernel does not name
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
