"""What is shown on stderr while something takes long."""

import io
import re
import threading
from contextlib import redirect_stderr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock import Tally
from underclock.app.output import PlainLines, counted_bar, progress_bar, share_bar, times_text


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


def test_a_campaign_with_an_end_shows_how_much_is_left(shown: _Terminal) -> None:
    with redirect_stderr(shown), progress_bar("measuring") as show:
        show(_tally(10, 40, 60.0))
    assert "10/40" in _plain(shown)
    assert "1 min of GPU time" in _plain(shown)
    assert "a at auto" in _plain(shown)


def test_a_campaign_without_an_end_pretends_to_none(shown: _Terminal) -> None:
    with redirect_stderr(shown), progress_bar("measuring") as show:
        show(_tally(51, None, 60.0))
    words = _plain(shown)
    assert "51 " in words
    assert "51/51" not in words
    assert "left" not in words


def test_each_phase_is_named_and_has_its_own_share(shown: _Terminal) -> None:
    with redirect_stderr(shown), progress_bar("measuring") as show:
        for phase in ("first look", "what tells most"):
            show(
                Tally(done=3, total=None, gpu_s=9.0, doing="", phase=phase, phase_s=1.0, left_s=3.0)
            )
    words = _plain(shown)
    assert "measuring: what tells most" in words


def test_names_cannot_speak_to_the_terminal(shown: _Terminal) -> None:
    with redirect_stderr(shown), progress_bar("measuring") as show:
        show(Tally(done=1, total=2, gpu_s=1.0, doing="[red]x\x1b]0;owned\x07"))
    assert "[red]x\\u001b]0;owned\\u0007" in _plain(shown)


def test_a_computation_shows_its_share_once_it_is_known(shown: _Terminal) -> None:
    with redirect_stderr(shown), share_bar("predicting") as show:
        show(0.25)
    assert "predicting" in _plain(shown)
    assert "25%" in _plain(shown)


def test_pieces_of_work_are_counted_and_named(shown: _Terminal) -> None:
    with redirect_stderr(shown), counted_bar("planning") as show:
        show(3, 11, "at 6 ms\x1b[2J")
    assert "3/11" in _plain(shown)
    assert "at 6 ms\\u001b[2J" in _plain(shown)


def test_nothing_is_said_of_what_is_soon_over(capsys: pytest.CaptureFixture[str]) -> None:
    with share_bar("predicting") as show:
        show(0.25)
    with progress_bar("measuring") as tell:
        tell(_tally(1, 2, 1.0))
    assert capsys.readouterr().err == ""


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
        (share_bar, (0.25,), "work: 25%; 0:00:00, "),
        (counted_bar, (3, 11, "at 6 ms\x1b[2J"), "work: 3/11, at 6 ms\\u001b[2J; 0:00:00, "),
        (progress_bar, (_tally(10, 40, 60.0),), "work: 10/40, 1 min of GPU time, a at auto; "),
    ):
        pipe = _Pipe()
        with redirect_stderr(pipe), bar("work", every_s=0.01) as show:
            show(*told)
            for _ in range(3):
                assert pipe.came.acquire(timeout=10.0)
        lines = pipe.getvalue().splitlines()
        assert lines[-1].startswith(words)
        assert lines[-1].endswith(" left")
        assert "\x1b" not in pipe.getvalue()
        before = len(lines)
        assert not pipe.came.acquire(timeout=0.03) or len(pipe.getvalue().splitlines()) == before


class _Clock:
    """Time that a test lets pass."""

    now = 100.0

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, duration_s: float) -> None:
        self.now += duration_s


def test_a_line_says_how_long_each_phase_takes() -> None:
    clock = _Clock()
    lines = PlainLines("measuring", clock)
    clock.sleep_s(10.0)
    assert lines.line() == "measuring: 0:00:10"
    lines.show(description="measuring: first", completed=0.5, total=1.0, count="1/2")
    clock.sleep_s(30.0)
    assert lines.line() == "measuring: first: 1/2; 0:00:40, 0:00:30 left"
    lines.show(description="measuring: second", completed=0.0, total=None, count="3")
    assert lines.line() == "measuring: second: 3; 0:00:40"
    clock.sleep_s(6.0)
    lines.show(description="measuring: second", completed=3, total=4)
    assert lines.line() == "measuring: second: 3; 0:00:46, 0:00:02 left"


@pytest.mark.parametrize(
    ("tally", "share"),
    [
        (_tally(10, 40, 60.0), 0.25),
        (_tally(10, None, 60.0), None),
        (_tally(10, None, 60.0, 120.0), 0.5),
        (_tally(10, 40, 60.0, 120.0), 0.5),  # whichever ends it first
        (_tally(50, 40, 60.0), 1.0),
        (_tally(0, 0, 0.0), None),
        (Tally(done=1, total=None, gpu_s=9.0, doing="", phase_s=1.0, left_s=3.0), 0.25),
        (Tally(done=1, total=None, gpu_s=9.0, doing="", phase_s=0.0, left_s=0.0), None),
        (Tally(done=1, total=2, gpu_s=9.0, doing="", phase_s=1.0, left_s=3.0), 0.5),
    ],
)
def test_how_much_of_a_campaign_is_done(tally: Tally, share: float | None) -> None:
    assert tally.share == share


@given(st.floats(0, 1e6), st.none() | st.floats(0, 1e6))
def test_times_are_said(elapsed_s: float, left_s: float | None) -> None:
    words = times_text(elapsed_s, left_s)

    assert words.endswith(" left") == (left_s is not None)
    assert times_text(None, None) == "0:00:00"
    assert times_text(3.9, 61.0) == "0:00:03, 0:01:01 left"
