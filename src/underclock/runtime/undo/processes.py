"""Processes by number and start time, their end without polling, and what they have to say."""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

_STATE_WITHIN = 128  # bytes: a number, a name of 15 letters, the state
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
        """Whether a signal or a debugger has stopped it."""
        fields = _fields(self.pid)
        return fields is not None and fields[0] in "Tt"

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
    def whose(self) -> str:
        """Words on its user, if that is another."""
        uid = self._uid
        return "" if uid in {None, os.geteuid()} else f", of user {uid}"

    @property
    def _uid(self) -> int | None:
        try:
            return Path(f"/proc/{self.pid}").stat().st_uid
        except OSError:
            return None

    @property
    def age_s(self) -> float:
        """How long ago it started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / _TICKS_PER_S


def _fields(pid: int) -> list[str] | None:
    """Return what the system says of a process, from its state on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


class StoppedPoll:
    """Sees at a fifth of the cost, again and again, whether one process was stopped."""

    def __init__(self, pid: int) -> None:
        try:
            self._fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # it has ended
            self._fd = -1
        self._before = False  # whether it was at the poll before

    def __call__(self) -> bool:
        """Whether a signal or a debugger has stopped it; one that has ended is not stopped."""
        try:
            text = os.pread(self._fd, _STATE_WITHIN, 0) if self._fd >= 0 else b""
        except ProcessLookupError:
            return False
        return text.rpartition(b")")[2].lstrip()[:1] in {b"T", b"t"}

    def lasts(self) -> bool:
        """Whether it is stopped now and was at the poll before; a container may be resuming."""
        before, self._before = self._before, self()
        return before and self._before

    def close(self) -> None:
        """Poll no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
