"""Conductor and watcher as processes, and what they leave on a GPU that outlives them."""

import fcntl
import os
import random
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kills import Rig, kill_once
from underclock.errors import DeviceError, NotPermittedError, UnderclockError
from underclock.hw.nvml import NvmlGpu
from underclock.runtime.conductor.starting import Conducting
from underclock.runtime.undo.armed import left_behind
from underclock.runtime.undo.processes import Process
from underclock.testing import Control, Served

Comes = Callable[[Callable[[], bool]], None]
HOLD = "underclock.runtime.conductor.process:hold"


@pytest.fixture
def trainer() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["/bin/sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.fixture
def holds(rig: Rig, trainer: "subprocess.Popen[bytes]") -> Iterator[Callable[..., Conducting]]:
    """Start a conductor that holds something; end it with the test."""
    started: list[Conducting] = []

    def hold(**values: float) -> Conducting:
        options = {rig.uuid: values}
        one = Conducting.start([rig.uuid], work=HOLD, options=options, trainer_pid=trainer.pid)
        started.append(one)
        return one

    yield hold
    for one in started:
        one.process.kill()
        one.close()


@pytest.mark.slow
def test_random_kills_leave_nothing(rig: Rig) -> None:
    draw = random.Random(5)  # noqa: S311 - which kill comes next

    for _ in range(4):
        kill = kill_once(rig, draw)

        assert kill.nobody_left or not kill.left, kill
        assert kill.mended, kill
        assert rig.is_clean()


def test_a_stopped_conductor_is_taken_over_and_sets_nothing_when_it_goes_on(
    rig: Rig, holds: Callable[..., Conducting], comes: Comes
) -> None:
    conducting = holds(core=1200)
    conducting.armed()

    conducting.process.send_signal(signal.SIGSTOP)
    comes(rig.is_clean)
    conducting.process.send_signal(signal.SIGCONT)

    assert conducting.process.wait() == -signal.SIGKILL
    assert rig.is_clean()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_watcher_that_ends_or_stops_is_replaced(
    number: signal.Signals, rig: Rig, holds: Callable[..., Conducting], comes: Comes
) -> None:
    conducting = holds(core=1200)
    conducting.armed()
    first = rig.watcher_of(conducting.process.pid)
    assert first is not None

    os.kill(first, number)
    comes(lambda: rig.watcher_of(conducting.process.pid) not in {first, None})

    assert not rig.is_clean()
    comes(lambda: _watches(rig, conducting))
    conducting.process.kill()
    comes(rig.is_clean)


def _watches(rig: Rig, conducting: Conducting) -> bool:
    """Whether the lock names the watcher there is."""
    from underclock.runtime.undo.ownership import named_in

    _, watcher = named_in(rig.folder / f"{rig.uuid}.lock")
    pid = rig.watcher_of(conducting.process.pid)
    return pid is not None and watcher == Process.of(pid)


def test_where_no_watcher_can_live_everything_is_given_back(
    rig: Rig, holds: Callable[..., Conducting], comes: Comes
) -> None:
    conducting = holds(core=1200, memory=5001)
    conducting.armed()

    def kills_it() -> bool:
        pid = rig.watcher_of(conducting.process.pid)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return conducting.process.poll() is not None

    comes(kills_it)

    assert rig.is_clean()
    with pytest.raises(DeviceError, match="watchers ended one after the other"):
        conducting.ended()


def test_a_setter_that_fails_half_way_leaves_nothing(
    rig: Rig, control: Control, holds: Callable[..., Conducting]
) -> None:
    control.fault("memory_refused")

    with pytest.raises(DeviceError, match="could not lock the memory"):
        holds(core=1200, memory=5001).armed()

    assert rig.is_clean()


def test_what_stays_set_is_said_beside_what_went_wrong(
    rig: Rig, trainer: "subprocess.Popen[bytes]", control: Control, comes: Comes
) -> None:
    conducting = Conducting.start(
        [rig.uuid], work="kills_work:begin", options={"first": 0}, trainer_pid=trainer.pid
    )
    conducting.armed()
    control.fault("permission_revoked")

    with pytest.raises(NotPermittedError, match="the core STAYS set"):
        conducting.ended()

    control.heal()
    comes(rig.is_clean)
    conducting.close()


def test_permission_that_is_revoked_meanwhile_comes_back_in_time(
    rig: Rig, control: Control, holds: Callable[..., Conducting], comes: Comes
) -> None:
    conducting = holds(core=1200)
    conducting.armed()
    control.fault("permission_revoked")

    ended = conducting.end()
    control.heal()

    assert "STAYS set" in ended["undone"][0]["failed"][0]
    comes(rig.is_clean)  # the watcher tries again


def test_a_trainer_that_ends_while_the_conductor_starts_ends_it(
    rig: Rig, trainer: "subprocess.Popen[bytes]", holds: Callable[..., Conducting]
) -> None:
    conducting = holds(core=1200)
    trainer.kill()
    trainer.wait()

    with pytest.raises(UnderclockError, match="ended before anything was set"):
        conducting.armed()

    assert rig.is_clean()


@pytest.mark.slow
def test_a_setter_that_hangs_is_taken_over(rig: Rig, control: Control, comes: Comes) -> None:
    hung = Conducting.start(
        [rig.uuid], work="kills_work:begin", options={"first": 0}, trainer_pid=os.getpid()
    )
    hung.armed()
    control.fault("setter_hangs", 3.5)

    assert hung.process.wait(10) == -signal.SIGKILL
    control.heal()
    comes(rig.is_clean)
    hung.close()


def test_a_lost_gpu_keeps_its_journal(
    rig: Rig, control: Control, holds: Callable[..., Conducting]
) -> None:
    conducting = holds(core=1200)
    conducting.armed()
    control.fault("gpu_lost")

    (undone,) = conducting.end()["undone"]

    assert "the core STAYS set" in undone["failed"][0]
    assert left_behind(rig.folder) == (rig.uuid,)
    control.heal()  # it comes back without locks


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """A file that not even root can remove, for the length of a block."""
    set_flags, immutable = 0x40086602, 0x10  # FS_IOC_SETFLAGS, FS_IMMUTABLE_FL
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, set_flags, struct.pack("l", immutable))
    except OSError as exc:
        pytest.skip(f"no file can be made immutable here: {exc}")
    try:
        yield
    finally:
        fcntl.ioctl(descriptor, set_flags, struct.pack("l", 0))
        os.close(descriptor)


@pytest.mark.parametrize("ends", ["conductor", "watcher"])
def test_a_journal_that_cannot_be_removed_keeps_no_other_gpu_locked(
    ends: str, rig: Rig, served: Served, trainer: "subprocess.Popen[bytes]", comes: Comes
) -> None:
    uuids = [NvmlGpu(index).uuid() for index in range(2)]
    options = {uuid: {"core": 1200} for uuid in uuids}
    conducting = Conducting.start(uuids, work=HOLD, options=options, trainer_pid=trainer.pid)
    conducting.armed()

    with immutable(rig.folder / f"{uuids[0]}.journal"):
        if ends == "conductor":
            first, second = conducting.end()["undone"]
            assert "cannot remove the journal" in first["failed"][0]
            assert second["done"] == ["core given back to the driver"]
        else:
            conducting.process.kill()
        comes(lambda: left_behind(rig.folder) == (uuids[0],))
        comes(lambda: [gpu.core_lock for gpu in served.gpus] == [None, None])
    conducting.close()
    comes(lambda: not left_behind(rig.folder))  # the watcher tries again
