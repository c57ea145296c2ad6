"""Waiting without missing a signal: one that another thread takes is one that came too early."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from underclock.errors import DeviceError
from underclock.hw.base import SystemClock
from underclock.runtime.controller import starting
from underclock.runtime.controller.starting import ControllerProcess, can_be_read

CLOCK = SystemClock()


class _CameError(Exception):
    """What the handler raises."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def taken_by_another_thread() -> Iterator[threading.Thread]:
    """Have a signal come that interrupts no call of the main thread."""

    def take() -> None:
        CLOCK.sleep_s(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    def handle(_number: int, _frame: object) -> None:
        raise _CameError

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=take)
    yield thread
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_interrupts_no_call_is_handled_at_once(
    pipe: tuple[int, int], taken_by_another_thread: threading.Thread
) -> None:
    taken_by_another_thread.start()

    with pytest.raises(_CameError):
        can_be_read([pipe[0]], 5.0)


def _started_controller(pipe: tuple[int, int]) -> ControllerProcess:
    """Return a controller that is this process, and tells what is written to a pipe."""
    process: Any = SimpleNamespace(pid=os.getpid())
    return ControllerProcess(process, os.fdopen(pipe[0], "rb", 0, closefd=False))


def test_what_waited_for_signals_before_hears_of_them(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    before = signal.set_wakeup_fd(pipe[1])
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        ready, writing = os.pipe()
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1)).start()
        assert can_be_read([ready], 2.0) == []
        assert os.read(pipe[0], 8) == bytes([signal.SIGUSR1])
        os.close(ready)
        os.close(writing)
    finally:
        signal.signal(signal.SIGUSR1, handler)
        signal.set_wakeup_fd(before)


def test_messages_are_told_apart_however_they_come(pipe: tuple[int, int]) -> None:
    controller = _started_controller(pipe)
    os.write(pipe[1], b'{"state": "armed", "n": 1}\n{"state": "ended"')
    threading.Timer(0.02, os.write, (pipe[1], b', "n": 2}\n')).start()

    assert controller.armed() == {"state": "armed", "n": 1}
    assert controller.ended() == {"state": "ended", "n": 2}


@pytest.mark.parametrize(
    ("ask", "limit", "words"),
    [
        (ControllerProcess.armed, "ARMED_S", r"was not armed within 0\.1 s, and was killed"),
        (lambda one: one.end(0.1), "", r"was not ended within 0\.1 s, and was killed"),
    ],
)
def test_a_controller_that_says_nothing_is_killed_in_time(
    ask: Callable[[ControllerProcess], object],
    limit: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if limit:
        monkeypatch.setattr(starting, limit, 0.1)
    deaf = "trap '' TERM; printf '{'; exec sleep 60"  # half a line
    with subprocess.Popen(["/bin/sh", "-c", deaf], stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        controller = ControllerProcess(process, process.stdout)
        assert can_be_read([controller.fileno()], 5.0)
        with pytest.raises(DeviceError, match=words) as late:
            ask(controller)
        assert process.returncode == -signal.SIGKILL
        controller.close()
    assert "its watchdog undoes what it set" in late.value.hint
