"""What is printed: names that try to steer the terminal, and what takes long, on stderr."""

import contextlib
import io
import re
import subprocess
import sys
import threading
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from rich.console import Console

from fake_gpu import FakeClock
from underclock.app import main
from underclock.app.output import (
    PlainLines,
    _bar,
    clean,
    counted_bar,
    progress_bar,
    share_bar,
)
from underclock.campaign.progress import Tally

_EVIL = "a\x1b[2J\x1b]0;pwned\x07\x9b31m\u202eb"
_STEERS = ("\x1b", "\x07", "\x9b", "\u202e")


@pytest.fixture(autouse=True)
def _in_a_folder_with_an_evil_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.csv").write_text(
        "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\n"
        f"{_EVIL},{_EVIL},,,1.0,100,100\n"
        f"{_EVIL},{_EVIL},900,5001,1.0,80,80\n"
    )


def test_control_characters_are_written_out() -> None:
    assert clean(_EVIL) == r"a\u001b[2J\u001b]0;pwned\u0007\u009b31m\u202eb"


@pytest.mark.parametrize(
    "command",
    ["plan sweep.csv", "plan sweep.csv --json", "validate p.json --gpu replay:s.csv"],
)
def test_no_command_lets_a_name_steer_the_terminal(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main(command.split())
    said = capsys.readouterr()

    assert said.out + said.err
    assert not any(mark in said.out + said.err for mark in _STEERS)


@pytest.mark.parametrize(("err", "code"), [("True", 0), ("False", 1)])
def test_a_full_disk_behind_stderr_ends_nothing_and_behind_stdout_is_an_error(
    err: str, code: int
) -> None:
    program = f"from underclock.app.output import say; say('words', err={err})"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, check=False, stdout=full, stderr=full)

    assert min(ended.returncode, 1) == code


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    """Return a terminal of 120 columns, for stderr to go to."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return _Terminal()


def _plain(terminal: _Terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def _tally(done: int, total: int | None, gpu_s: float, time_limit_s: float | None = None) -> Tally:
    return Tally(done=done, total=total, gpu_s=gpu_s, doing="a at auto", time_limit_s=time_limit_s)


def test_names_cannot_speak_to_the_terminal(shown: _Terminal) -> None:
    with redirect_stderr(shown), progress_bar("measuring") as show:
        show(Tally(done=1, total=2, gpu_s=1.0, doing="[red]x\x1b]0;owned\x07"))
    assert "[red]x\\u001b]0;owned\\u0007" in _plain(shown)


def test_a_narrow_terminal_shows_the_time_left_whole(shown: _Terminal) -> None:
    clock = FakeClock()
    with _bar(
        PlainLines("work", clock), Console(file=shown, width=60, force_terminal=True)
    ) as show:
        clock.sleep_s(100.0)
        show(completed=0.5, total=1.0, count="406", gpu_time="33 min of GPU time", doing="a" * 30)
    assert "406 0:01:40, 0:01:40 left 33 min" in _plain(shown)


class _Pipe(io.StringIO):
    """Stderr that is no terminal; somebody waits for what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Semaphore(0)

    def write(self, text: str) -> int:
        written = super().write(text)
        if "\n" in text:
            self.came.release()
        return written


def test_plain_lines_come_where_stderr_is_piped() -> None:
    for bar, told, words in (
        (share_bar, (0.5,), "work: 50%; 0:00:0"),
        (counted_bar, (5, 11, "at 6 ms\x1b[2J"), "work: 5/11, at 6 ms\\u001b[2J; 0:00:0"),
        (progress_bar, (_tally(20, 40, 60.0),), "work: 20/40, 1 min of GPU time, a at auto; "),
    ):
        pipe = _Pipe()
        with redirect_stderr(pipe), bar("work", every_s=0.01) as show:
            show(*told)
            for _ in range(3):
                assert pipe.came.acquire(timeout=10.0)
        lines = pipe.getvalue().splitlines()
        assert lines[-1].startswith(words)
        assert "\x1b" not in pipe.getvalue()
        before = len(lines)
        assert not pipe.came.acquire(timeout=0.03) or len(pipe.getvalue().splitlines()) == before


def test_no_time_left_is_said_before_it_can_be_known() -> None:
    clock = FakeClock()
    lines = PlainLines("work", clock)
    clock.sleep_s(10.0)
    lines.show(completed=0.1, total=1.0)
    assert lines.line() == "work: 0:00:10"
    lines.show(completed=0.5, total=1.0)
    assert lines.line() == "work: 0:00:10, 0:00:10 left"
    lines.show(completed=1.0, total=1.0)
    assert lines.line() == "work: 0:00:10"
    lines.show(description="work: refining", completed=0.8, total=1.0)
    clock.sleep_s(10.0)
    lines.show(completed=0.9, total=1.0)  # half of what the phase has to do
    assert lines.line() == "work: refining: 0:00:20, 0:00:10 left"
