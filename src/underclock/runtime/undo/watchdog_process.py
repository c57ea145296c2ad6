"""The controller's side of the watchdog: starts one, shares locks with it, and notices its end.

The controller has training to follow, the watchdog has nothing else to do: so the watchdog polls
often whether the controller was stopped, and beats, which show that neither hangs, are few.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from underclock.errors import DeviceError
from underclock.runtime.undo.ownership import Ownership, Process, kill, say

READY, WATCHED, BEAT, QUIET = b"ready", b"watched", b"beat", b" quiet"
"""What the watchdog says; the controller sends its number, beats unless it is to be quiet, and the
UUID of each GPU with its lock."""
BEAT_S = 0.25  # between beats, and between the controller's polls whether the watchdog was stopped
POLL_S = 0.05  # between the watchdog's polls whether the controller was stopped
HUNG_S = 3.0  # without a beat: a setter takes 0.1 s at most; a busy machine may hold a process up

_THEIRS = 3  # its descriptor of the connection
_START_S = 10.0
_MOST, _LONG_S = 3, 60.0  # watchdogs that end one after the other, none of which lived so long
# It ends with the controller and not before: signals that ask it to are ignored from the start.
_CODE = (
    "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
    "from underclock.runtime.undo.watchdog import main; main()"
)


class WatchdogLostError(DeviceError):
    """No watchdog can be kept alive, so nothing may stay set."""


class WatchdogProcess:
    """A watchdog, and another one where it ends.

    Args:
        folder: Where runs keep their files.
        beats: Whether `poll` is called often, so that a controller that hangs or is stopped is
            ended; else only its end counts.
    """

    def __init__(self, folder: Path, *, beats: bool = True) -> None:
        self._folder, self._beats = folder, beats
        self._locks: list[Ownership] = []
        self._lost = 0
        self._begin()

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [sys.executable, "-P", "-c", _CODE, str(_THEIRS), str(self._folder)]
        # It keeps nothing open that another process waits to be closed (nor does one that another
        # thread starts just now); what it says goes to stderr.
        quiet = [
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), _THEIRS),
        ]
        self.pid = os.posix_spawn(
            sys.executable, arguments, os.environ, file_actions=quiet, setpgroup=0
        )
        theirs.close()
        self._process, self._was_stopped = Process.of(self.pid), False
        pidfd = os.pidfd_open(os.getpid())
        with contextlib.suppress(OSError):  # it has ended already: noticed as any other end
            socket.send_fds(ours, [b"%d%b" % (os.getpid(), b"" if self._beats else QUIET)], [pidfd])
        os.close(pidfd)
        ours.setblocking(False)
        self._connection = ours
        self._over = False
        self._unanswered: int | None = None  # locks shared and not confirmed; None until it began
        self._unheard_s: float | None = None  # since when a beat has no answer
        self._beat_s = self._begun_s = time.monotonic()

    def fileno(self) -> int:
        """Return what to wait on for its messages."""
        return self._connection.fileno()

    @property
    def watches(self) -> bool:
        """Whether a watchdog has everything it needs to undo."""
        return self._unanswered == 0

    @property
    def next_s(self) -> float:
        """When to call `poll` at the latest."""
        return self._beat_s + BEAT_S

    def share(self, lock: Ownership) -> None:
        """Give it the lock of one more GPU, and wait until it watches.

        Raises:
            WatchdogLostError: It does not.
        """
        self._locks.append(lock)
        if self._unanswered is not None:
            self._send_lock(lock)
        self.ready()

    def ready(self) -> None:
        """Wait until it watches.

        Raises:
            WatchdogLostError: It does not.
        """
        self.poll(time.monotonic())
        while not self.watches:
            select.select([self._connection], [], [], POLL_S)
            self.poll(time.monotonic())

    def _send_lock(self, lock: Ownership) -> None:
        self._unanswered = (self._unanswered or 0) + 1
        with contextlib.suppress(OSError):  # its end is noticed where its answer is read
            socket.send_fds(self._connection, [lock.uuid.encode()], list(lock.descriptors))

    def poll(self, now_s: float) -> None:
        """Take its answers, send it a beat where one is due, and replace it where it has ended.

        Raises:
            WatchdogLostError: It cannot start, or one after the other ends.
        """
        if not self._listen():
            self._replace()
            return
        if self._unanswered is None:
            if now_s - self._begun_s > _START_S:
                raise WatchdogLostError(f"the watchdog did not start within {_START_S:g} s")
            self._beat_s = now_s  # nothing is due before it says that it is there
            return
        if now_s >= self.next_s:
            self._beat_s = now_s
            if self._beats:
                self._unheard_s = now_s if self._unheard_s is None else self._unheard_s
                with contextlib.suppress(OSError):
                    self._connection.send(BEAT)
            hangs = self._unheard_s is not None and now_s - self._unheard_s > HUNG_S
            # Stopped at two polls in a row: a container may be resuming.
            before, stopped = self._was_stopped, self._process and self._process.stopped
            self._was_stopped = bool(stopped)
            if (before and stopped) or hangs:
                os.kill(self.pid, signal.SIGKILL)  # its end is noticed as any other

    def _listen(self) -> bool:
        """Take what it says; return whether it lives."""
        while True:
            try:
                message = self._connection.recv(4096)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not message:
                return False
            self._unheard_s = None
            if message == READY:
                self._unanswered = 0
                for lock in self._locks:
                    self._send_lock(lock)
            elif message == WATCHED:
                self._unanswered = (self._unanswered or 0) - 1
            elif message != BEAT:
                raise WatchdogLostError(f"the watchdog cannot watch: {message.decode()}")

    def _replace(self) -> None:
        self.close()
        lived_s = time.monotonic() - self._begun_s
        self._lost = self._lost + 1 if lived_s < _LONG_S else 1
        if self._lost > _MOST:
            raise WatchdogLostError(
                f"{self._lost} watchdogs ended one after the other",
                hint="without one, nothing gives the clocks back after a kill: see who ends them",
            )
        say(f"the watchdog (process {self.pid}) has ended, and is replaced by another")
        self._begin()

    def close(self) -> None:
        """End it: there is nothing left to undo, or another takes its place."""
        if not self._over:
            self._over, self._unanswered = True, None
            self._connection.close()
            pidfd = os.pidfd_open(self.pid)
            kill(pidfd)
            os.close(pidfd)
            os.waitpid(self.pid, os.WNOHANG)
