"""Processes by number and start time, and the right to set one GPU: a lock that names its owner.

The lock is on an open file, which controller and watchdog share: it is free as soon as both have
ended, however they ended, and not before. What the file says is for people and for `restore`.

What root writes lies in one folder per machine, where only root may write: root reads nothing else
as root. A lock there is root's alone, unless the operator gives the folder a group: a user who may
open a lock may have it.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

from underclock.errors import DataError, NotPermittedError, UsageError

_STAT_BYTES = 4096
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KILLED_S = 10.0  # until what was killed is out of its driver's calls


class Process(NamedTuple):
    """One process, by its number and its start in clock ticks since the machine's.

    A number alone may be another's by now.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the process of a number; ``None`` where there is none."""
        fields = _fields(pid)
        return None if fields is None else cls(pid, int(fields[19]))

    @property
    def lives(self) -> bool:
        """Whether it still runs; one that has ended and was not waited for does not."""
        fields = _fields(self.pid)
        return fields is not None and int(fields[19]) == self.started and fields[0] not in "ZX"

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it; one that has ended is not stopped."""
        fields = _fields(self.pid)
        return fields is not None and int(fields[19]) == self.started and fields[0] in "Tt"

    @property
    def is_ours(self) -> bool:
        """Whether it is an Underclock of this user, by its executable and its command line."""
        proc = Path(f"/proc/{self.pid}")
        try:
            is_python = (proc / "exe").readlink().name.startswith("python")
            _python, *words = (proc / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        # Where Python lies says nothing: any program may run on the one in a folder of that name.
        named = any(b"underclock" in word for word in words)
        return is_python and named and self._uid == os.geteuid()

    @property
    def _uid(self) -> int | None:
        try:
            return Path(f"/proc/{self.pid}").stat().st_uid
        except OSError:
            return None

    @property
    def whose(self) -> str:
        """Words on its user, if that is not ours."""
        return "" if self._uid in {None, os.geteuid()} else f", of user {self._uid}"

    @property
    def age_s(self) -> float:
        """How long ago it started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / _TICKS_PER_S


def _fields(pid: int) -> list[str] | None:
    """Return what the system says of a process, from its state on; it is asked for often."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.pread(descriptor, _STAT_BYTES, 0).decode(errors="replace")
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def kill(pidfd: int) -> None:
    """Kill a process and wait until it has ended, that is, until it has left the driver too.

    One that the driver does not let go of in time is waited for no more: nothing else ends it.
    """
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if not select.select([pidfd], [], [], _KILLED_S)[0]:
        say(f"a process was killed and did not end in {_KILLED_S:g} s: its driver keeps it")


def family_of(pid: int) -> tuple[Process, ...]:
    """Return a process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _fields(int(entry.name))) is not None:
            parents[int(entry.name)] = int(fields[1])
    family = [pid]
    for eldest in family:  # which grows meanwhile
        family.extend(child for child, parent in parents.items() if parent == eldest)
    return tuple(filter(None, map(Process.of, family)))


def say(sentence: str) -> None:
    """Write a sentence to stderr, if it can still be written."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be closed, or none
        os.write(sys.stderr.fileno(), f"underclock: {sentence}\n".encode())


RUNTIME_DIR = "UNDERCLOCK_RUNTIME_DIR"
MACHINE = Path("/run/underclock")
"""Where root's locks and journals are."""
CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_BYTES = 64 * 1024

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_WAIT_S, _POLL_S = 1.0, 0.005
_READS = 3  # of the kernel's list, in which one is passed over where locks come and go
_MOST_PID = 2**22


class OwnedError(UsageError):
    """Another process sets this GPU."""


def runtime_folder() -> Path:
    """Return the folder of locks, journals and pages, made where it is not there.

    Raises:
        NotPermittedError: Another user may write there, or this one may not.
    """
    named = os.environ.get(RUNTIME_DIR)
    if named:
        return _checked(Path(named).absolute())
    if os.geteuid() == 0 and os.access(MACHINE.parent, os.W_OK):
        return _checked(MACHINE, mode=0o755)  # everybody may see who has a lock
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and os.access(session, os.W_OK):
        return _checked(Path(session) / "underclock")
    return _checked(usual_folder(os.geteuid()))


def usual_folder(uid: int) -> Path:
    """Return where a user's runs keep their files if he has no session."""
    return Path(f"/tmp/underclock-{uid}")  # noqa: S108 - checked to be that user's


def _checked(folder: Path, *, mode: int = 0o700) -> Path:
    hint = f"name another folder: export {RUNTIME_DIR}=$(mktemp -d)"
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        found = folder.lstat()
        if found.st_uid == os.geteuid() and found.st_mode & mode != mode:
            folder.chmod(found.st_mode & 0o7777 | mode)  # whatever the umask was
    except OSError as exc:
        raise NotPermittedError(f"cannot make the folder {folder}: {exc}", hint=hint) from exc
    if not stat.S_ISDIR(found.st_mode):
        raise NotPermittedError(f"{folder} is not a folder", hint=hint)
    for each in (folder, *folder.parents):  # who may write above may put another in its place
        found = each.lstat()
        if each != folder and (os.geteuid() != 0 or found.st_mode & stat.S_ISVTX):
            continue  # a sticky folder prevents that; above a user's own, he decides
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & _OTHERS_WRITE:
            raise NotPermittedError(
                f"other users may write to {each}, so locks and journals in {folder} cannot be "
                "trusted",
                hint=f"chmod go-w {each} as its owner, or {hint}",
            )
    return folder


def open_trusted(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a file that root or this user wrote, without waiting and without following a link.

    Raises:
        OSError: It cannot be opened, or not be trusted.
    """
    descriptor = os.open(path, flags | CAREFULLY, mode)
    found = os.fstat(descriptor)
    wrong = {
        "it is no file": not stat.S_ISREG(found.st_mode),
        f"it is of user {found.st_uid}": found.st_uid not in {0, os.geteuid()},
        "other users may write to it": bool(found.st_mode & _OTHERS_WRITE),
        f"it has {found.st_nlink} names": found.st_nlink != 1,
        f"it has {found.st_size} bytes": found.st_size > MOST_BYTES,
    }
    if any(wrong.values()):
        os.close(descriptor)
        why = next(why for why, is_so in wrong.items() if is_so)
        raise OSError(errno.EPERM, why, str(path))
    return descriptor


def read_trusted(path: Path) -> bytes:
    """Read such a file.

    Raises:
        OSError: As `open_trusted`.
    """
    with os.fdopen(open_trusted(path), "rb") as file:
        return file.read(MOST_BYTES + 1)


class Ownership:
    """The right to set one GPU; the system gives it up once no process has its file open."""

    def __init__(self, uuid: str, *descriptors: int) -> None:
        self.uuid = uuid
        self.descriptors = descriptors

    @classmethod
    def take(
        cls, folder: Path, uuid: str, *, wait_s: float = _WAIT_S, machine: Path | None = None
    ) -> Self:
        """Take the lock of a GPU, waiting a little for a watchdog that is just giving it back.

        Owners of which none can act, because all that live were stopped, are killed: what they set
        would stay as long as they do.

        Args:
            machine: Where root's locks are, for a user who sets this GPU past them.

        Raises:
            OwnedError: Another process has it; the error says who and since when.
            NotPermittedError: There can be no lock.
        """
        path = folder / f"{uuid}.lock"
        descriptor = _opened(path)
        until_s = time.monotonic() + wait_s
        while not _locked(descriptor, path):
            controller, watchdog = named_in(path)
            acts = [one for one in (controller, watchdog) if one and one.lives and not one.stopped]
            if not acts:
                for one in filter(None, (controller, watchdog)):
                    _end_stopped(one)
            if controller in acts or time.monotonic() > until_s:
                os.close(descriptor)
                # The kernel's list may lack a lock; the file names whom this user or root wrote.
                known = Process.of(_holder(path) or 0) or controller
                raise _owned(uuid, acts[0] if acts else known)
            time.sleep(_POLL_S)  # noqa: TID251 - another process gives it back in real time
        try:
            above = () if machine in {None, folder} else _above(machine / f"{uuid}.lock", uuid)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(uuid, descriptor, *above)

    def name(self, controller: int, watchdog: int | None = None) -> None:
        """Say who has it.

        Raises:
            DataError: The disk is full.
        """
        who = {"conductor": Process.of(controller), "watcher": watchdog and Process.of(watchdog)}
        text = json.dumps(who).encode()
        try:
            os.pwrite(self.descriptors[0], text, 0)  # before it is cut: that takes no more room
            os.ftruncate(self.descriptors[0], len(text))
        except OSError as exc:
            raise DataError(
                f"cannot write the lock of GPU {self.uuid}, so nothing is set: {exc.strerror}",
                hint=f"make room there, or name another folder with {RUNTIME_DIR}",
            ) from exc

    def release(self) -> None:
        """Give up this process's share of it; harmless when it was given up."""
        descriptors, self.descriptors = self.descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)


def named_in(path: Path) -> tuple[Process | None, Process | None]:
    """Return the controller and the watchdog that a lock names; ``None`` for who is not named."""
    try:
        who = json.loads(read_trusted(path))
        controller, watchdog = who["conductor"], who["watcher"]
        return controller and _process(*controller), watchdog and _process(*watchdog)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, None


def _process(pid: int, started: int) -> Process:
    if not (isinstance(pid, int) and isinstance(started, int) and 0 < pid <= _MOST_PID):
        raise ValueError(f"{pid} is no process")
    return Process(pid, started)


def _opened(path: Path) -> int:
    try:
        return open_trusted(path, os.O_RDWR | os.O_CREAT, 0o640)
    except OSError as exc:
        raise NotPermittedError(
            f"cannot open the lock {path}: {exc.strerror}",
            hint="remove it if no run has this GPU, or run as the user who set it",
        ) from exc


def _above(path: Path, uuid: str) -> tuple[int, ...]:
    """Take root's lock too, as far as the operator lets this user; else check that it is free."""
    try:
        descriptor = open_trusted(path)
    except OSError:
        holder = _holder(path)
        if holder is not None:
            raise _owned(uuid, Process.of(holder)) from None
        return ()
    if not _locked(descriptor, path):
        os.close(descriptor)
        raise _owned(uuid, Process.of(_holder(path) or 0))
    return (descriptor,)


def _holder(path: Path) -> int | None:
    """Return the process that took the lock of a file, by the kernel's word.

    The file may be closed to us, and the process may have ended: another one then shares the lock.
    """
    with contextlib.suppress(OSError):
        found = path.lstat()
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for _ in range(_READS):
            for line in Path("/proc/locks").read_text().splitlines():
                _, kind, *_, pid, file, _, _ = line.split()
                if kind == "FLOCK" and file == device:
                    return int(pid)
    return None


def _locked(descriptor: int, path: Path) -> bool:
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


def _end_stopped(owner: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(owner.pid)
        try:
            # Looked at last, the start time says that all of it was of the process that we hold.
            if owner.is_ours and owner.stopped and owner.lives:
                kill(pidfd)
        finally:
            os.close(pidfd)


def _owned(uuid: str, owner: Process | None) -> OwnedError:
    if owner is None:
        return OwnedError(
            f"GPU {uuid} is set by another Underclock", hint="it has only just begun: look again"
        )
    return OwnedError(
        f"GPU {uuid} is set by another Underclock: process {owner.pid}, for {owner.age_s:.0f} s"
        f"{owner.whose}",
        hint=f"end it first, with `kill {owner.pid}`: it gives back what it set",
    )
