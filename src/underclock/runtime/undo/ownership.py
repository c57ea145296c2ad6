"""The right to set one GPU: a lock per GPU that names who has it.

The lock is on an open file, which conductor and watcher share: it is free as soon as both have
ended, however they ended, and not before. What the file says is for people and for `restore`.
"""

import contextlib
import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import Self

from underclock.errors import DataError, NotPermittedError, UsageError
from underclock.runtime.undo.processes import Process, kill

RUNTIME_DIR = "UNDERCLOCK_RUNTIME_DIR"

_WAIT_S, _LOOK_S = 1.0, 0.005


class OwnedError(UsageError):
    """Somebody else sets this GPU."""


def runtime_folder() -> Path:
    """Return the folder of locks, journals and pages, made where it is not there.

    Raises:
        NotPermittedError: Others may write there, or nobody may.
    """
    named = os.environ.get(RUNTIME_DIR)
    if named:
        return _checked(Path(named))
    if os.access("/run", os.W_OK):
        return _checked(Path("/run/underclock"))
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and os.access(session, os.W_OK):
        return _checked(Path(session) / "underclock")
    return _checked(Path(f"/tmp/underclock-{os.getuid()}"))  # noqa: S108 - checked to be ours


def _checked(folder: Path) -> Path:
    hint = f"name another folder with {RUNTIME_DIR}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as exc:
        raise NotPermittedError(f"cannot make the folder {folder}: {exc}", hint=hint) from exc
    if not stat.S_ISDIR(found.st_mode):
        raise NotPermittedError(f"{folder} is not a folder", hint=hint)
    if found.st_uid not in {0, os.getuid()} or found.st_mode & 0o022:
        raise NotPermittedError(
            f"others may write to {folder}, so its locks and journals cannot be trusted",
            hint=f"chmod 700 {folder}, or {hint}",
        )
    return folder


class Ownership:
    """The right to set one GPU; the system gives it up when nobody has its file open any more."""

    def __init__(self, uuid: str, descriptor: int) -> None:
        self.uuid = uuid
        self.descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, uuid: str, *, wait_s: float = _WAIT_S) -> Self:
        """Take the lock of a GPU, waiting a little for a watcher that is just giving it back.

        Owners of which none can act, because all that live were stopped, are killed: what they set
        would stay as long as they do.

        Raises:
            OwnedError: Somebody else has it; the error says who and since when.
            NotPermittedError: There can be no lock.
        """
        path = folder / f"{uuid}.lock"
        descriptor = _opened(path)
        until_s = time.monotonic() + wait_s
        while not _locked(descriptor, path):
            conductor, watcher = named_in(path)
            acts = [one for one in (conductor, watcher) if one and one.lives and not one.stopped]
            if not acts:
                for one in (conductor, watcher):
                    _end_stopped(one)
            if conductor in acts or time.monotonic() > until_s:
                os.close(descriptor)
                raise _owned(uuid, acts[0] if acts else None)
            time.sleep(_LOOK_S)  # noqa: TID251 - another process gives it back in real time
        return cls(uuid, descriptor)

    def name(self, conductor: int, watcher: int | None = None) -> None:
        """Say who has it.

        Raises:
            DataError: The disk is full.
        """
        who = {"conductor": Process.of(conductor), "watcher": watcher and Process.of(watcher)}
        text = json.dumps(who).encode()
        try:
            os.pwrite(self.descriptor, text, 0)  # before it is cut: what it has takes no more room
            os.ftruncate(self.descriptor, len(text))
        except OSError as exc:
            raise DataError(
                f"cannot write the lock of GPU {self.uuid}, so nothing is set: {exc.strerror}",
                hint=f"make room there, or name another folder with {RUNTIME_DIR}",
            ) from exc

    def release(self) -> None:
        """Give up this process's share of it; harmless when it was given up."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def named_in(path: Path) -> tuple[Process | None, Process | None]:
    """Return the conductor and the watcher that a lock names; ``None`` for who is not named."""
    try:
        who = json.loads(path.read_bytes())
        conductor, watcher = who["conductor"], who["watcher"]
        return conductor and Process(*conductor), watcher and Process(*watcher)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _opened(path: Path) -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)
    except OSError as exc:
        raise NotPermittedError(
            f"cannot open the lock {path}: {exc.strerror}",
            hint="run as whoever set this GPU, or as root",
        ) from exc


def _locked(descriptor: int, path: Path) -> bool:
    """Take the lock of an open file if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        raise NotPermittedError(
            f"the file system of {path} has no locks: {exc.strerror}",
            hint=f"name a folder on a local disk with {RUNTIME_DIR}",
        ) from exc
    return True


def _end_stopped(owner: Process | None) -> None:
    """Kill a process that lives and was stopped."""
    if owner is None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(owner.pid)
        try:
            if owner.lives and owner.stopped:  # the number is still that process's
                kill(pidfd)
        finally:
            os.close(pidfd)


def _owned(uuid: str, owner: Process | None) -> OwnedError:
    if owner is None:
        return OwnedError(
            f"GPU {uuid} is set by another Underclock", hint="it has only just begun: look again"
        )
    return OwnedError(
        f"GPU {uuid} is set by another Underclock: process {owner.pid}, for {_span(owner.age_s)}",
        hint=f"end it first, with `kill {owner.pid}`: it gives back what it set",
    )


def _span(age_s: float) -> str:
    minutes = int(age_s // 60)
    if minutes == 0:
        return f"{age_s:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"  # noqa: PLR2004 - two hours
