"""Controller and watchdog as processes, and what they leave on a GPU that outlives them."""

import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kills import Rig, kill_once
from underclock.errors import DeviceError, NotPermittedError, UnderclockError
from underclock.hw.nvml import NvmlGpu
from underclock.runtime.controller.starting import ControllerProcess
from underclock.runtime.undo.guarded_gpu import left_behind
from underclock.runtime.undo.ownership import named_in
from underclock.testing import Control, Served

Comes = Callable[[Callable[[], bool]], None]
Start = Callable[..., ControllerProcess]
HOLD = "underclock.runtime.controller.process:hold"


@pytest.fixture
def trainer() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["/bin/sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.fixture
def holds(rig: Rig, trainer: "subprocess.Popen[bytes]") -> Iterator[Start]:
    """Start a controller that holds something; end it with the test."""
    started: list[ControllerProcess] = []

    pid = trainer.pid

    def hold(**values: float) -> ControllerProcess:
        options = {rig.uuid: values}
        one = ControllerProcess.start([rig.uuid], work=HOLD, options=options, trainer_pid=pid)
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


def test_a_stopped_controller_is_taken_over_and_sets_nothing_when_it_goes_on(
    rig: Rig, holds: Start, comes: Comes
) -> None:
    controller = holds(core=1200)
    controller.armed()

    controller.process.send_signal(signal.SIGSTOP)
    comes(rig.is_clean)
    controller.process.send_signal(signal.SIGCONT)

    assert controller.process.wait() == -signal.SIGKILL
    assert rig.is_clean()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_watchdog_that_ends_or_stops_is_replaced(
    number: signal.Signals, rig: Rig, holds: Start, comes: Comes
) -> None:
    controller = holds(core=1200)
    controller.armed()
    first = rig.watchdog_of(controller.process.pid)
    assert first is not None

    os.kill(first, number)
    comes(lambda: rig.watchdog_of(controller.process.pid) not in {first, None})

    assert not rig.is_clean()
    comes(lambda: _watches(rig, controller.process.pid))
    controller.process.kill()
    comes(rig.is_clean)


def _watches(rig: Rig, controller: int) -> bool:
    """Whether the lock names the watchdog there is."""
    _, watchdog = named_in(rig.folder / f"{rig.uuid}.lock")
    return watchdog is not None and watchdog.pid == rig.watchdog_of(controller)


@pytest.mark.parametrize("number", [None, signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_measurement_leaves_nothing(number: int | None, rig: Rig, comes: Comes) -> None:
    code = "import kills_work; kills_work.measure()"
    with subprocess.Popen([sys.executable, "-P", "-c", code, rig.uuid, "0"]) as process:
        try:
            comes(lambda: not rig.is_clean())
            first = rig.watchdog_of(process.pid)
            if number is not None and first is not None:  # it gets another watchdog first
                os.kill(first, number)
                comes(lambda: rig.watchdog_of(process.pid) != first and _watches(rig, process.pid))
        finally:
            process.kill()
    comes(rig.is_clean)


def test_where_no_watchdog_can_live_everything_is_given_back(
    rig: Rig, holds: Start, comes: Comes
) -> None:
    controller = holds(core=1200, memory=5001)
    controller.armed()

    def kills_it() -> bool:
        pid = rig.watchdog_of(controller.process.pid)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return controller.process.poll() is not None

    comes(kills_it)

    assert rig.is_clean()
    with pytest.raises(DeviceError, match="watchdogs ended one after the other"):
        controller.ended()


def test_a_setter_that_fails_half_way_leaves_nothing(
    rig: Rig, control: Control, holds: Start
) -> None:
    control.fault("memory_refused")

    with pytest.raises(DeviceError, match="could not lock the memory"):
        holds(core=1200, memory=5001).armed()

    assert rig.is_clean()


def test_what_stays_set_is_said_beside_what_went_wrong(
    rig: Rig, trainer: "subprocess.Popen[bytes]", control: Control, comes: Comes
) -> None:
    controller = ControllerProcess.start(
        [rig.uuid], work="kills_work:begin", options={"first": 0}, trainer_pid=trainer.pid
    )
    controller.armed()
    control.fault("permission_revoked")

    with pytest.raises(NotPermittedError, match="the core STAYS set"):
        controller.ended()

    control.heal()
    comes(rig.is_clean)
    controller.close()


def test_permission_that_is_revoked_meanwhile_comes_back_in_time(
    rig: Rig, control: Control, holds: Start, comes: Comes
) -> None:
    controller = holds(core=1200)
    controller.armed()
    control.fault("permission_revoked")

    ended = controller.end()
    control.heal()

    assert "STAYS set" in ended["undone"][0]["failed"][0]
    comes(rig.is_clean)  # the watchdog tries again


def test_a_trainer_that_ends_while_the_controller_starts_ends_it(
    rig: Rig, trainer: "subprocess.Popen[bytes]", holds: Start
) -> None:
    controller = holds(core=1200)
    trainer.kill()
    trainer.wait()

    with pytest.raises(UnderclockError, match="ended before anything was set"):
        controller.armed()

    assert rig.is_clean()


@pytest.mark.slow
def test_a_setter_that_hangs_is_taken_over(rig: Rig, control: Control, comes: Comes) -> None:
    hung = ControllerProcess.start(
        [rig.uuid], work="kills_work:begin", options={"first": 0}, trainer_pid=os.getpid()
    )
    hung.armed()
    control.fault("setter_hangs", 4.5)  # its watchdog takes 3 s for hung, and may be late itself

    assert hung.process.wait(60) == -signal.SIGKILL
    control.heal()
    comes(rig.is_clean)
    hung.close()


def test_a_lost_gpu_keeps_its_journal(rig: Rig, control: Control, holds: Start) -> None:
    controller = holds(core=1200)
    controller.armed()
    control.fault("gpu_lost")

    (undone,) = controller.end()["undone"]

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


@pytest.mark.parametrize("ends", ["controller", "watchdog"])
def test_a_journal_that_cannot_be_removed_keeps_no_other_gpu_locked(
    ends: str, rig: Rig, served: Served, trainer: "subprocess.Popen[bytes]", comes: Comes
) -> None:
    uuids = [NvmlGpu(index).uuid() for index in range(2)]
    options = {uuid: {"core": 1200} for uuid in uuids}
    controller = ControllerProcess.start(uuids, work=HOLD, options=options, trainer_pid=trainer.pid)
    controller.armed()

    with immutable(rig.folder / f"{uuids[0]}.journal"):
        if ends == "controller":
            first, second = controller.end()["undone"]
            assert "cannot remove the journal" in first["failed"][0]
            assert second["done"] == ["core given back to the driver"]
        else:
            controller.process.kill()
        comes(lambda: left_behind(rig.folder) == (uuids[0],))
        comes(lambda: [gpu.core_lock for gpu in served.gpus] == [None, None])
    controller.close()
    comes(lambda: not left_behind(rig.folder))  # the watchdog tries again
