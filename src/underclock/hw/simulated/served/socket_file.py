"""A Unix socket that is in place only while somebody answers on it."""

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
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
            with _alone_in(path.parent):
                _make_room(path)
                made.rename(path)
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
            with contextlib.suppress(OSError), _alone_in(path.parent):
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


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep others from putting sockets into a folder meanwhile."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make_room(path: Path) -> None:
    """Take away a socket that nobody answers on.

    Raises:
        UsageError: Something else is there.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} exists and is no socket", hint="name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        with contextlib.suppress(ConnectionRefusedError):
            probe.connect(str(path))
            raise UsageError(
                f"somebody already listens on {path}", hint="name another path, or end that process"
            )
    path.unlink()
