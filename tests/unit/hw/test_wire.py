"""Messages over sockets, however they are cut, and who is at the other end."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.errors import UsageError
from underclock.hw import wire
from underclock.hw.wire import Gone, Life, Unpacker, answering, listening, peer_of

_WORDS = st.text(max_size=8)
_MESSAGES = st.lists(st.dictionaries(_WORDS, st.integers() | _WORDS, max_size=3), max_size=4)


@given(_MESSAGES, st.integers(1, 40))
def test_messages_come_out_as_they_went_in(messages: list[wire.Message], cut: int) -> None:
    sent = b"".join(wire.framed(message) for message in messages)
    unpacker, came = Unpacker(), []
    for begin in range(0, len(sent), cut):
        unpacker.feed(sent[begin : begin + cut])
        while (message := unpacker.next()) is not None:
            came.append(message)
    assert came == messages


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"\xff", b"{}{}", b"x" * 300_001]
)
def test_what_is_no_message_is_the_other_sides_end(body: bytes) -> None:
    unpacker = Unpacker(longest=600_000 if body[0:1] != b"x" else 300_000)
    unpacker.feed(len(body).to_bytes(4, "little") + body)
    with pytest.raises(Gone):
        unpacker.next()


def _connect(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_it_is_there_while_somebody_listens_and_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        _connect(path).close()
        assert _names(tmp_path) == ["s"]
    assert _names(tmp_path) == []


def test_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with listening(path):
        _connect(path).close()


def test_a_live_one_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(path):
        with pytest.raises(UsageError, match="a process already listens"), listening(path):
            pass
        _connect(path).close()
        assert _names(tmp_path) == ["s"]


def test_what_is_no_socket_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(UsageError, match="is no socket"), listening(path):
        pass
    assert path.read_text() == "mine"
    assert _names(tmp_path) == ["s"]


@pytest.mark.parametrize("name", ["x" * 120, "no/such/folder/s"])
def test_a_path_where_none_can_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError), listening(tmp_path / name):
        pass


def test_whoever_connects_is_answered_and_known(tmp_path: Path) -> None:
    path = tmp_path / "s"

    def serve(connection: socket.socket) -> None:
        connection.sendall(f"{peer_of(connection)}".encode())
        connection.recv(1)

    with answering(path, serve), _connect(path) as first, _connect(path) as second:
        for connection in (second, first):
            assert connection.recv(100).decode() == str(os.getpid())


def test_the_life_of_a_process_is_known_until_its_end() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        life = Life(process.pid)
        assert not life.is_over()
        process.kill()
        process.wait()
        assert life.is_over()
        life.close()
    assert Life(process.pid).is_over()
    other = Life(0)  # of another container
    assert not other.is_over()
    other.close()


def test_one_whose_queue_is_full_is_a_live_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(0)
        with _connect(path), pytest.raises(UsageError, match="already listens"), listening(path):
            pass
