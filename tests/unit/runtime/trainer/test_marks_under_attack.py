"""Whatever is done to marks, training ends as it would have, and nobody else's file is written.

Each attack is made by a small process of its own, which trains, in the middle of training.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from small_training import Model, launches, training
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marks import Marker
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.sites import sites_of
from underclock.runtime.trainer.streams import HostStream, ServedStream

_STEPS, _AT = 8, 4
_MINE = b"a checkpoint of the user's own"
_MANY = 64


@pytest.fixture(scope="module", autouse=True)
def wanted() -> list[float]:
    """Return the losses of a plain training, by which all that it loads is loaded once."""
    return _plain()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Page.create(tmp_path / "run.page", digest=bytes(32), marks=(0,)).close()
    return tmp_path / "run.page"


def _ended(act: Callable[[], object]) -> int:
    """Do something in a process that is forked off; return how that ended."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            act()
            code = 0
        except BaseException:  # noqa: BLE001 - told as a code
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _plain() -> list[float]:
    torch.manual_seed(0)
    return list(training(Model(), _STEPS))


class Broken(BaseException):
    """What no library should raise, and some do."""

    def __str__(self) -> str:
        raise ValueError("it cannot even say what it is")


class Breaks:
    """A stream that fails from the attack on."""

    def __init__(self, fail: Callable[[int], object]) -> None:
        self.fail, self.is_broken = fail, False

    def attack(self, _page: Page) -> None:
        self.is_broken = True

    def mark(self, value: int) -> None:
        if self.is_broken:
            self.fail(value)

    def close(self) -> None:
        if self.is_broken:
            self.fail(0)


def _trains(path: Path, attack: Callable[[Page], object], stream: Any = HostStream) -> None:
    """Train with marks, attack them in the middle; losses must be those of a plain training."""
    modules, of = zip(*launches(), strict=True)
    places = [(p.event, p.path, p.occurrence, p.total) for p in sites_of(modules, of)]
    wanted, losses, page = _plain(), [], Page.open(path)
    assert page.claim()
    Marker(places, lambda: page, lambda page, _optimizer: stream(page)).attach(torch)
    torch.manual_seed(0)
    for number, loss in enumerate(training(Model(), _STEPS)):
        losses.append(loss)
        if number == _AT:
            assert page.state == pages.MARKING
            attack(page)
    assert losses == wanted


def _close_all(_page: Page) -> None:
    os.closerange(0, 4096)


def _close_and_open_others(folder: Path) -> Callable[[Page], None]:
    """Close what is open, and have as many files of one's own, whose numbers are the same."""

    def attack(page: Page) -> None:
        _close_all(page)
        for number in range(_MANY):
            fd = os.open(folder / f"{number}.mine", os.O_RDWR | os.O_CREAT)
            os.write(fd, _MINE)

    return attack


def test_who_closes_every_descriptor_trains_on_and_is_marked_on(path: Path) -> None:
    assert _ended(lambda: _trains(path, _close_all)) == 0

    with closing(Page.open(path)) as page:
        assert (page.state, page.reached()[0]) == (pages.MARKING, 1)


def test_a_descriptor_that_is_anothers_by_now_is_not_written(path: Path, tmp_path: Path) -> None:
    assert _ended(lambda: _trains(path, _close_and_open_others(tmp_path))) == 0

    mine = list(tmp_path.glob("*.mine"))
    assert len(mine) == _MANY
    assert {each.read_bytes() for each in mine} == {_MINE}
    with closing(Page.open(path)) as page:
        assert page.reached()[0] == 1


def test_what_ends_marks_is_not_said_into_the_users_files(path: Path, tmp_path: Path) -> None:
    """Where the page is gone as well, it would be said on stderr: which is a checkpoint by now."""

    def act() -> None:
        sys.stderr = sys.__stderr__

        def attack(page: Page) -> None:
            path.unlink()
            _close_and_open_others(tmp_path)(page)

        _trains(path, attack)

    assert _ended(act) == 0
    assert {each.read_bytes() for each in tmp_path.glob("*.mine")} == {_MINE}


@pytest.mark.parametrize(
    "attack",
    [
        lambda page: os.truncate(page.path, 0),
        lambda page: os.truncate(page.path, 100),
        lambda page: os.unlink(page.path),  # noqa: PTH108
        lambda page: os.chmod(page.path, 0o400),  # noqa: PTH101
    ],
    ids=["emptied", "cut short", "removed", "made read-only"],
)
def test_a_page_that_is_spoilt_ends_no_training(path: Path, attack: Callable[[Page], None]) -> None:
    with closing(Page.open(path)) as theirs:  # as the controller, which must live too
        assert _ended(lambda: _trains(path, attack)) == 0
        assert theirs.reached()[0] in range(100)


def test_a_controller_is_told_of_a_page_that_is_cut_short(path: Path) -> None:
    with closing(Page.open(path)) as page:
        page.write(3)
        assert page.reached()[0] == 3
        os.truncate(path, 0)

        assert (page.reached()[0], page.state) == (3, pages.REFUSED)
        assert "was cut short" in page.sentence


def test_a_page_that_was_replaced_is_not_written(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(_MINE)

    def attack(page: Page) -> None:
        _close_all(page)
        other.rename(path)

    assert _ended(lambda: _trains(path, attack)) == 0
    assert path.read_bytes() == _MINE


@pytest.mark.parametrize(
    "error", [Broken(), MemoryError(), RecursionError(), GeneratorExit(), OSError(9, "closed")]
)
def test_whatever_a_stream_raises_ends_marking_alone(path: Path, error: BaseException) -> None:
    def fail(_value: int) -> None:
        raise error

    stream = Breaks(fail)
    assert _ended(lambda: _trains(path, stream.attack, lambda _page: stream)) == 0

    with closing(Page.open(path)) as page:
        assert page.state == pages.REFUSED
        assert page.sentence in {type(error).__name__, "[Errno 9] closed"}


def test_a_stack_that_is_full_ends_marking_alone(path: Path) -> None:
    def fail(value: int) -> None:
        fail(value + 1)

    stream = Breaks(fail)
    assert _ended(lambda: _trains(path, stream.attack, lambda _page: stream)) == 0

    with closing(Page.open(path)) as page:
        assert page.state == pages.REFUSED


class Preempted(Exception):  # noqa: N818 - as the user's own
    """What a trainer raises itself when a batch system asks it to end."""


def test_what_the_trainers_own_signal_raises_in_a_mark_is_the_trainers(path: Path) -> None:
    def preempt(_number: int, _frame: object) -> None:
        raise Preempted

    def act() -> None:
        signal.signal(signal.SIGUSR1, preempt)
        stream = Breaks(lambda value: signal.raise_signal(signal.SIGUSR1) if value else None)
        with pytest.raises(Preempted):
            _trains(path, stream.attack, lambda _page: stream)

    assert _ended(act) == 0
    with closing(Page.open(path)) as page:
        assert page.state == pages.MARKING


def test_a_child_that_is_forked_off_and_trains_marks_nothing(path: Path) -> None:
    marks: list[int] = []

    class Stream(HostStream):
        def __init__(self, page: Page) -> None:
            super().__init__(page)
            self.mark = marks.append

    def attack(_page: Page) -> None:
        before = len(marks)
        assert before
        assert _ended(lambda: _in_child(before)) == 0

    def _in_child(before: int) -> None:
        assert _plain()
        assert len(marks) == before

    assert _ended(lambda: _trains(path, attack, Stream)) == 0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_served_stream_that_was_closed_writes_into_no_connection_of_the_users(
    path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    """Its number is the user's own connection by now, which it neither writes to nor closes."""
    ours, _ = ends
    mine, far = socket.socketpair()
    number = ours.fileno()

    def act() -> None:
        def attack(_page: Page) -> None:
            os.dup2(mine.fileno(), number)
            mine.close()

        _trains(path, attack, lambda _page: ServedStream(ours, ()))
        os.write(number, b"still there")

    with mine, far:
        assert _ended(act) == 0
        assert far.recv(4096) == b"still there"
    with closing(Page.open(path)) as page:
        assert page.state == pages.REFUSED
        assert "no connection to the simulated GPU" in page.sentence


def test_a_server_that_is_gone_ends_no_trainer_that_a_broken_pipe_would(
    path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends

    def act() -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        stream = ServedStream(ours, ())
        _trains(path, lambda _: theirs.shutdown(socket.SHUT_RDWR), lambda _page: stream)

    assert _ended(act) == 0
    with closing(Page.open(path)) as page:
        assert page.sentence.startswith("the simulated GPU is gone: ")
        assert page.sentence.endswith("Broken pipe")


def test_a_served_streams_child_writes_nothing_into_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    stream = ServedStream(ours, ())

    assert _ended(stream.synchronise) == 1

    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
