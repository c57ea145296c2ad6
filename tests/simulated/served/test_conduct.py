"""Conductor and watcher in this process, where what they do can be looked at."""

import math
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kills import Rig
from underclock.errors import DataError, DeviceError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.settable import SettableNvmlGpu, Setting
from underclock.runtime.conductor.process import Work, WorkDone, conduct
from underclock.runtime.conductor.process import hold as begin_hold
from underclock.runtime.undo.armed import Armed
from underclock.runtime.undo.ownership import OwnedError, Ownership
from underclock.runtime.undo.watcher import ConductorGone, Watcher
from underclock.runtime.undo.watching import BEAT, WATCHED, Watching
from underclock.testing import Control


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Any process: a trainer here, a conductor there."""
    with subprocess.Popen(["/bin/sleep", "100"]) as process:
        yield process
        process.kill()


def _hold(gpus: Mapping[str, Armed]) -> Work:
    return begin_hold(gpus, {uuid: {"core": 1200} for uuid in gpus})


def _conduct(
    rig: Rig,
    begin: Callable[[Mapping[str, Armed]], Work],
    trainer: int,
    tell: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> tuple[str, tuple[str, ...]]:
    gpus = [SettableNvmlGpu(rig.uuid)]
    pidfd = os.pidfd_open(trainer)
    try:
        ending = conduct(
            gpus,
            begin,
            trainer=pidfd,
            folder=rig.folder,
            watching=Watching(rig.folder),
            tell=tell,
        )
    finally:
        os.close(pidfd)
    return ending.why, ending.undone[0].done


def test_it_ends_with_the_trainer(rig: Rig, other: "subprocess.Popen[bytes]") -> None:
    told: list[Mapping[str, Any]] = []

    def armed(message: Mapping[str, Any]) -> None:
        told.append(message)
        assert not rig.is_clean()
        other.kill()

    assert _conduct(rig, _hold, other.pid, armed) == (
        "the training process ended",
        ("core given back to the driver",),
    )
    assert [message["state"] for message in told] == ["armed"]
    assert rig.is_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_ends_when_asked_to(
    number: signal.Signals, rig: Rig, other: "subprocess.Popen[bytes]"
) -> None:
    before = signal.getsignal(number)

    why, done = _conduct(rig, _hold, other.pid, lambda _: signal.raise_signal(number))

    assert (why, done) == (f"asked to end by {number.name}", ("core given back to the driver",))
    assert signal.getsignal(number) is before
    assert rig.is_clean()


class _Stepping:
    """Sets another clock at each call, then ends."""

    waits_on = ()

    def __init__(self, gpu: Armed, end: Exception) -> None:
        self._gpu = gpu
        self._left = [1200, 1500]
        self._end = end

    def next_s(self) -> float:
        return 0.0 if self._left else -math.inf

    def wake(self, now_s: float) -> None:
        del now_s
        if not self._left:
            raise self._end
        self._gpu.set(Setting.CORE, self._left.pop())


def test_work_that_is_done_ends_it(rig: Rig, other: "subprocess.Popen[bytes]") -> None:
    def begin(gpus: Mapping[str, Armed]) -> Work:
        return _Stepping(gpus[rig.uuid], WorkDone("no step is left"))

    why, done = _conduct(rig, begin, other.pid)

    assert (why, done) == ("no step is left", ("core given back to the driver",))
    assert rig.is_clean()


def test_work_that_fails_leaves_nothing_set(rig: Rig, other: "subprocess.Popen[bytes]") -> None:
    def begin(gpus: Mapping[str, Armed]) -> Work:
        return _Stepping(gpus[rig.uuid], DeviceError("it broke"))

    with pytest.raises(DeviceError, match="it broke"):
        _conduct(rig, begin, other.pid)

    assert rig.is_clean()


def test_of_two_gpus_one_that_is_anothers_leaves_both_alone(
    rig: Rig, other: "subprocess.Popen[bytes]"
) -> None:
    second = SettableNvmlGpu(NvmlGpu(1).uuid())
    taken = Armed(second, rig.folder, share_lock=lambda _: None)
    gpus = [SettableNvmlGpu(rig.uuid), second]

    with pytest.raises(OwnedError):
        conduct(
            gpus,
            _hold,
            trainer=other.pid,
            folder=rig.folder,
            watching=Watching(rig.folder),
            tell=lambda _: None,
        )

    taken.end()
    Ownership.take(rig.folder, rig.uuid, wait_s=0).release()
    assert rig.is_clean()


@pytest.fixture
def ends(
    rig: Rig, other: "subprocess.Popen[bytes]"
) -> Iterator[tuple[socket.socket, Watcher, Armed]]:
    """A watcher of a process that has set something, and that process's end of their connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pidfd = os.pidfd_open(other.pid)
    with ours, theirs:
        socket.send_fds(ours, [str(other.pid).encode()], [pidfd])
        os.close(pidfd)
        one = Armed(
            SettableNvmlGpu(rig.uuid),
            rig.folder,
            share_lock=lambda lock: _share(ours, lock),
        )
        one.set(Setting.CORE, 1200)
        one.lock.release()  # the watcher's share keeps it
        yield ours, Watcher(theirs, rig.folder), one


def _share(connection: socket.socket, lock: Ownership) -> None:
    socket.send_fds(connection, [lock.uuid.encode()], list(lock.descriptors))


def test_a_watcher_undoes_when_the_conductor_has_ended(
    ends: tuple[socket.socket, Watcher, Armed], rig: Rig, other: "subprocess.Popen[bytes]"
) -> None:
    ours, watcher, _ = ends
    ours.send(BEAT)
    watcher.hear()
    watcher.hear()
    assert [ours.recv(99), ours.recv(99)] == [WATCHED, BEAT]
    with pytest.raises(OwnedError):
        Ownership.take(rig.folder, rig.uuid, wait_s=0)

    other.kill()

    assert watcher.wait() == "ended"
    (undone,) = watcher.take_over()
    assert undone.done == ("core given back to the driver",)
    assert rig.is_clean()
    Ownership.take(rig.folder, rig.uuid, wait_s=0).release()


def test_a_watcher_ends_a_conductor_that_was_stopped(
    ends: tuple[socket.socket, Watcher, Armed], rig: Rig, other: "subprocess.Popen[bytes]"
) -> None:
    _, watcher, _ = ends
    watcher.hear()
    other.send_signal(signal.SIGSTOP)

    assert watcher.wait() == "was stopped"
    watcher.take_over()

    assert other.wait() == -signal.SIGKILL
    assert rig.is_clean()


def test_a_watcher_watches_though_the_disk_does_not_take_its_name(
    ends: tuple[socket.socket, Watcher, Armed],
) -> None:
    ours, watcher, _ = ends
    watcher.hear()
    assert ours.recv(99) == WATCHED
    full = Ownership(NvmlGpu(1).uuid(), os.open("/dev/full", os.O_RDWR))
    with pytest.raises(DataError, match=r"cannot write the lock .*: No space left on device"):
        full.name(os.getpid())

    _share(ours, full)
    watcher.hear()

    assert ours.recv(99) == WATCHED
    full.release()


def test_a_watcher_whose_conductor_hung_up_waits_for_its_end(
    ends: tuple[socket.socket, Watcher, Armed], other: "subprocess.Popen[bytes]"
) -> None:
    ours, watcher, _ = ends
    watcher.hear()
    ours.close()

    assert not watcher.hear()
    other.kill()
    assert watcher.wait() == "ended"
    watcher.take_over()


def test_a_gpu_that_refuses_does_not_keep_the_others_waiting(
    ends: tuple[socket.socket, Watcher, Armed],
    rig: Rig,
    control: Control,
    other: "subprocess.Popen[bytes]",
    comes: Callable[[Callable[[], bool]], None],
) -> None:
    ours, watcher, _ = ends
    second = SettableNvmlGpu(NvmlGpu(1).uuid())
    one = Armed(second, rig.folder, share_lock=lambda lock: _share(ours, lock))
    one.set(Setting.CORE, 1200)
    one.lock.release()
    watcher.hear()
    watcher.hear()
    control.fault("permission_revoked", gpu=0)
    other.kill()

    undoing = threading.Thread(target=watcher.take_over)
    undoing.start()
    comes(lambda: second.read(Setting.CORE) is None)

    assert not rig.is_clean()
    control.heal()
    undoing.join()
    assert rig.is_clean()


def test_there_is_nobody_to_watch_where_the_conductor_never_said_who_it_is(
    tmp_path: Path,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()

    with theirs, pytest.raises(ConductorGone):
        Watcher(theirs, tmp_path)
