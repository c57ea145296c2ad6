"""Hearing a controller, whatever it says and whenever."""

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from underclock.errors import DeviceError
from underclock.runtime.controller import starting
from underclock.runtime.controller.starting import ControllerProcess


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def _started_controller(pipe: tuple[int, int]) -> ControllerProcess:
    """Return a controller that is this process, and tells what is written to a pipe."""
    process: Any = SimpleNamespace(pid=os.getpid())
    return ControllerProcess(process, os.fdopen(pipe[0], "rb", 0, closefd=False))


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
        assert select.select([controller], [], [], 5.0)[0]
        with pytest.raises(DeviceError, match=words) as late:
            ask(controller)
        assert process.returncode == -signal.SIGKILL
        controller.close()
    assert "its watchdog undoes what it set" in late.value.hint
