"""A Unix socket that is in place only while somebody answers on it."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from underclock.errors import UsageError

_WAITING = 64
_LONGEST = 107  # bytes of a Unix socket's path on Linux


@contextmanager
def listening(path: Path, *, mode: int = 0o600, gid: int | None = None) -> Iterator[socket.socket]:
    """Listen on a socket that takes its place only once it does, and is gone afterwards.

    One that nobody answers on is replaced.

    Args:
        path: Where.
        mode: Who may connect.
        gid: Group it belongs to; by default the process's.

    Raises:
        UsageError: Somebody listens there, something else is there, or no socket can be.
    """
    path = path.absolute()
    made = path.with_name(f".{path.name}.{os.getpid()}")
    if len(os.fsencode(made)) > _LONGEST:
        raise UsageError(
            f"{path} is too long for a socket", hint=f"Linux takes {_LONGEST} bytes: go nearer /"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            _bind(server, made, mode, gid)
            _check_room(path)
            made.rename(path)  # over one that nobody answers on
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
                if path.stat().st_ino == own:  # nobody else's that came after
                    path.unlink()


def _bind(server: socket.socket, at: Path, mode: int, gid: int | None) -> None:
    """Bind and listen; nobody else may connect before the mode says so."""
    before = os.umask(0o177)
    try:
        server.bind(str(at))
    finally:
        os.umask(before)
    if gid is not None:
        os.chown(at, -1, gid)
    at.chmod(mode)
    server.listen(_WAITING)


def _check_room(path: Path) -> None:
    """Refuse to replace anything but a socket that nobody answers on.

    Nothing is locked meanwhile: who may read a folder could hold a lock on it for ever. Of two that
    begin at the same moment, nobody reaches the first.

    Raises:
        UsageError: Something else is there.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} exists and is no socket", hint="name another path")
    if _answers(path):
        raise UsageError(
            f"somebody already listens on {path}", hint="name another path, or end that process"
        )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # one whose queue is full answers too
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except ConnectionRefusedError:
            return False
    return True


@contextmanager
def answering(
    path: Path,
    serve: Callable[[socket.socket], None],
    *,
    mode: int = 0o600,
    gid: int | None = None,
) -> Iterator[None]:
    """Answer whoever connects to a socket, each in a thread, for the length of a block.

    Args:
        path: Where.
        serve: Answers one process until it goes.
        mode: Who may connect.
        gid: Group that the socket belongs to; by default the process's.

    Raises:
        UsageError: As for `listening`.
    """
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

    with listening(path, mode=mode, gid=gid) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            with lock:
                for connection in connections:
                    with contextlib.suppress(OSError):  # the other side was faster
                        connection.shutdown(socket.SHUT_RDWR)
