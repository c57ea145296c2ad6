"""The watchdog: a tiny process that undoes when the controller has ended, or will not go on.

It waits on the controller's pidfd and opens nothing but NVML, so that nothing in it can fail for
want of a module or of memory. `watchdog_process` starts it so that it ignores every signal that
asks it to end: it ends by itself once the controller has, and there is nothing left to undo.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from underclock.errors import DataError, UnderclockError
from underclock.hw.nvml_calls import nvml_session, settable_gpu
from underclock.runtime.undo.guarded_gpu import Undone, give_back
from underclock.runtime.undo.ownership import Ownership, Process, kill, say
from underclock.runtime.undo.watchdog_process import BEAT, HUNG_S, POLL_S, QUIET, READY, WATCHED

if TYPE_CHECKING:
    from underclock.hw.nvml_calls import SettableGpu

_MOST_FDS = 4
_LONGEST = 4096
_AGAIN_S = (0.1, 0.3, 1.0, 3.0, 10.0)  # a refused undo is tried again after so long


class ControllerGone(Exception):  # noqa: N818 - nothing went wrong
    """The controller ended before it set anything."""


class Watchdog:
    """Waits for the end of the controller at the other end of a connection.

    Raises:
        ControllerGone: The controller has ended already.
    """

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        # With this process's share of their locks.
        self._gpus: dict[str, tuple[SettableGpu, Ownership]] = {}
        message, fds, *_ = socket.recv_fds(connection, _LONGEST, _MOST_FDS)
        if not fds:
            raise ControllerGone
        self._pid, (self._pidfd,) = int(message.split()[0]), fds
        self._beats = not message.endswith(QUIET)
        self._controller = Process.of(self._pid)

    def wait(self) -> str:
        """Wait until the controller has ended, or will not go on; return which.

        One that sends no beats is left alone while it lives, stopped or not.
        """
        listening = self._connection.fileno()
        heard_s = time.monotonic()
        poll_s = POLL_S if self._beats else None
        while True:
            before_s = time.monotonic()
            ready, _, _ = select.select([self._pidfd, listening], [], [], poll_s)
            now_s = time.monotonic()
            if self._pidfd in ready:
                return "ended"
            if not self._beats:
                if listening in ready:
                    self.hear()
                continue
            slept = now_s - before_s > 2 * POLL_S  # we too, as in a suspended container
            if (listening in ready and self.hear()) or slept:
                heard_s = now_s
            if not slept and self._controller and self._controller.stopped:
                return "was stopped"
            if now_s - heard_s > HUNG_S:
                return f"has not answered for {HUNG_S:g} s"

    def hear(self) -> bool:
        """Take a message; return whether there was one."""
        try:
            message, fds, *_ = socket.recv_fds(self._connection, _LONGEST, _MOST_FDS)
        except OSError:  # it ended with answers of ours unread
            message, fds = b"", []
        if not message:  # it closed its end: its own end follows
            select.select([self._pidfd], [], [], POLL_S)
            return False
        answer = BEAT
        if message != BEAT:
            uuid = message.decode()
            lock = Ownership(uuid, *fds)
            with contextlib.suppress(DataError):  # it watches though the lock does not name it
                lock.name(self._pid, os.getpid())
            self._gpus[uuid] = settable_gpu(uuid), lock
            answer = WATCHED
        with contextlib.suppress(OSError):
            self._connection.send(answer, socket.MSG_DONTWAIT)
        return True

    def take_over(self) -> list[Undone]:
        """Undo what the controller left, and give its locks back.

        What a driver refuses is tried again, once everything else is undone.
        """
        undone: dict[str, Undone] = {}
        left = list(self._gpus)
        for wait_s in (0.0, *_AGAIN_S):
            time.sleep(wait_s)  # noqa: TID251 - the driver's own time
            for uuid in left:
                gpu, lock = self._gpus[uuid]
                kill(self._pidfd)
                undone[uuid] = give_back(gpu, self._folder)
                if not undone[uuid].failed:  # else it is kept, for that is tried again
                    lock.release()
            left = [uuid for uuid in left if undone[uuid].failed]
            if not left:
                break
        for uuid in left:  # `restore` is next
            self._gpus[uuid][1].release()
        return list(undone.values())


def main() -> None:
    """Watch the controller at the other end of an inherited socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        with nvml_session():
            watchdog = Watchdog(connection, Path(sys.argv[2]))
            with contextlib.suppress(OSError):  # its pidfd shows its end
                connection.send(READY)
            why = watchdog.wait()
            for gpu in watchdog.take_over():
                if lines := [*gpu.done, *gpu.failed]:
                    say(f"the controller {why}; GPU {gpu.uuid}: {'; '.join(lines)}")
    except ControllerGone:
        pass
    except UnderclockError as exc:
        with contextlib.suppress(OSError):
            connection.send(json.dumps({"error": str(exc), "hint": exc.hint}).encode())
