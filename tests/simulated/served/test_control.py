"""Controller and watchdog in this process, where what they do can be looked at."""

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
from underclock.hw.nvml_calls import SettableNvmlGpu
from underclock.runtime.controller.process import Work, WorkDone, control
from underclock.runtime.controller.process import hold as begin_hold
from underclock.runtime.undo.guarded_gpu import GuardedGpu
from underclock.runtime.undo.ownership import OwnedError, Ownership
from underclock.runtime.undo.watchdog import ControllerGone, Watchdog
from underclock.runtime.undo.watchdog_process import BEAT, WATCHED, WatchdogProcess
from underclock.testing import Control
from underclock.units import Domain
from undo_model import TAKE_OVER, acts_of


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Any process: a trainer here, a controller there."""
    with subprocess.Popen(["/bin/sleep", "100"]) as process:
        yield process
        process.kill()


def _hold(gpus: Mapping[str, GuardedGpu]) -> Work:
    return begin_hold(gpus, {uuid: {"core": 1200} for uuid in gpus})


def _control(
    rig: Rig,
    begin: Callable[[Mapping[str, GuardedGpu]], Work],
    trainer: int,
    tell: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> tuple[str, tuple[str, ...]]:
    gpus = [SettableNvmlGpu(rig.uuid)]
    pidfd = os.pidfd_open(trainer)
    try:
        why, undone = control(
            gpus,
            begin,
            trainer=pidfd,
            folder=rig.folder,
            watchdog=WatchdogProcess(rig.folder),
            tell=tell,
        )
    finally:
        os.close(pidfd)
    return why, undone[0].done


def test_it_ends_with_the_trainer(rig: Rig, other: "subprocess.Popen[bytes]") -> None:
    told: list[Mapping[str, Any]] = []

    def armed(message: Mapping[str, Any]) -> None:
        told.append(message)
        assert not rig.is_clean()
        other.kill()

    assert _control(rig, _hold, other.pid, armed) == (
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

    why, done = _control(rig, _hold, other.pid, lambda _: signal.raise_signal(number))

    assert (why, done) == (f"asked to end by {number.name}", ("core given back to the driver",))
    assert signal.getsignal(number) is before
    assert rig.is_clean()


class _Stepping:
    """Sets another clock at each call, then ends."""

    waits_on = ()

    def __init__(self, gpu: GuardedGpu, end: Exception) -> None:
        self._gpu = gpu
        self._left = [1200, 1500]
        self._end = end

    def next_s(self) -> float:
        return 0.0 if self._left else -math.inf

    def wake(self, now_s: float) -> None:
        del now_s
        if not self._left:
            raise self._end
        self._gpu.set(Domain.CORE, self._left.pop())


def test_work_that_is_done_ends_it(rig: Rig, other: "subprocess.Popen[bytes]") -> None:
    def begin(gpus: Mapping[str, GuardedGpu]) -> Work:
        return _Stepping(gpus[rig.uuid], WorkDone("no step is left"))

    why, done = _control(rig, begin, other.pid)

    assert (why, done) == ("no step is left", ("core given back to the driver",))
    assert rig.is_clean()


def test_work_that_fails_leaves_nothing_set(rig: Rig, other: "subprocess.Popen[bytes]") -> None:
    def begin(gpus: Mapping[str, GuardedGpu]) -> Work:
        return _Stepping(gpus[rig.uuid], DeviceError("it broke"))

    with pytest.raises(DeviceError, match="it broke"):
        _control(rig, begin, other.pid)

    assert rig.is_clean()


def test_of_two_gpus_one_that_is_anothers_leaves_both_alone(
    rig: Rig, other: "subprocess.Popen[bytes]"
) -> None:
    second = SettableNvmlGpu(NvmlGpu(1).uuid())
    taken = GuardedGpu(second, rig.folder, share_lock=lambda _: None)
    gpus = [SettableNvmlGpu(rig.uuid), second]

    with pytest.raises(OwnedError):
        control(
            gpus,
            _hold,
            trainer=other.pid,
            folder=rig.folder,
            watchdog=WatchdogProcess(rig.folder),
            tell=lambda _: None,
        )

    taken.end()
    Ownership.take(rig.folder, rig.uuid, wait_s=0).release()
    assert rig.is_clean()


@pytest.fixture
def ends(
    rig: Rig, other: "subprocess.Popen[bytes]"
) -> Iterator[tuple[socket.socket, Watchdog, GuardedGpu]]:
    """A watchdog of a process that has set something, and that process's end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pidfd = os.pidfd_open(other.pid)
    with ours, theirs:
        socket.send_fds(ours, [str(other.pid).encode()], [pidfd])
        os.close(pidfd)
        one = GuardedGpu(
            SettableNvmlGpu(rig.uuid),
            rig.folder,
            share_lock=lambda lock: _share(ours, lock),
        )
        one.set(Domain.CORE, 1200)
        one.lock.release()  # the watchdog's share keeps it
        yield ours, Watchdog(theirs, rig.folder), one


def _share(connection: socket.socket, lock: Ownership) -> None:
    socket.send_fds(connection, [lock.uuid.encode()], list(lock.descriptors))


def test_a_watchdog_undoes_when_the_controller_has_ended(
    ends: tuple[socket.socket, Watchdog, GuardedGpu], rig: Rig, other: "subprocess.Popen[bytes]"
) -> None:
    ours, watchdog, _ = ends
    ours.send(BEAT)
    watchdog.hear()
    watchdog.hear()
    assert [ours.recv(99), ours.recv(99)] == [WATCHED, BEAT]
    with pytest.raises(OwnedError):
        Ownership.take(rig.folder, rig.uuid, wait_s=0)

    other.kill()

    assert watchdog.wait() == "ended"
    (undone,) = watchdog.take_over()
    assert undone.done == ("core given back to the driver",)
    assert rig.is_clean()
    Ownership.take(rig.folder, rig.uuid, wait_s=0).release()


def test_a_watchdog_ends_a_controller_that_was_stopped(
    ends: tuple[socket.socket, Watchdog, GuardedGpu], rig: Rig, other: "subprocess.Popen[bytes]"
) -> None:
    _, watchdog, _ = ends
    watchdog.hear()
    other.send_signal(signal.SIGSTOP)

    assert watchdog.wait() == "was stopped"
    assert acts_of(watchdog.take_over) == TAKE_OVER

    assert other.wait() == -signal.SIGKILL
    assert rig.is_clean()


def test_a_watchdog_watches_though_the_disk_does_not_take_its_name(
    ends: tuple[socket.socket, Watchdog, GuardedGpu],
) -> None:
    ours, watchdog, _ = ends
    watchdog.hear()
    assert ours.recv(99) == WATCHED
    full = Ownership(NvmlGpu(1).uuid(), os.open("/dev/full", os.O_RDWR))
    with pytest.raises(DataError, match=r"cannot write the lock .*: No space left on device"):
        full.name(os.getpid())

    _share(ours, full)
    watchdog.hear()

    assert ours.recv(99) == WATCHED
    full.release()


def test_a_watchdog_whose_controller_hung_up_waits_for_its_end(
    ends: tuple[socket.socket, Watchdog, GuardedGpu], other: "subprocess.Popen[bytes]"
) -> None:
    ours, watchdog, _ = ends
    watchdog.hear()
    ours.close()

    assert not watchdog.hear()
    other.kill()
    assert watchdog.wait() == "ended"
    watchdog.take_over()


def test_a_gpu_that_refuses_does_not_keep_the_others_waiting(
    ends: tuple[socket.socket, Watchdog, GuardedGpu],
    rig: Rig,
    control: Control,
    other: "subprocess.Popen[bytes]",
    comes: Callable[[Callable[[], bool]], None],
) -> None:
    ours, watchdog, _ = ends
    second = SettableNvmlGpu(NvmlGpu(1).uuid())
    one = GuardedGpu(second, rig.folder, share_lock=lambda lock: _share(ours, lock))
    one.set(Domain.CORE, 1200)
    one.lock.release()
    watchdog.hear()
    watchdog.hear()
    control.fault("permission_revoked", gpu=0)
    other.kill()

    undoing = threading.Thread(target=watchdog.take_over)
    undoing.start()
    comes(lambda: second.read(Domain.CORE) is None)

    assert not rig.is_clean()
    control.heal()
    undoing.join()
    assert rig.is_clean()


def test_there_is_nobody_to_watch_where_the_controller_never_said_who_it_is(
    tmp_path: Path,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()

    with theirs, pytest.raises(ControllerGone):
        Watchdog(theirs, tmp_path)
