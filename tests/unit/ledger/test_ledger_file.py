"""The ledger's file: several jobs at once, other versions, kills, what is none."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from made_entries import entry, untold
from underclock.errors import DataError
from underclock.ledger.store import LEDGER, ledger_path, read_entries, write_entries

_WRITING = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from made_entries import entry
from underclock.ledger.store import write_entries
for at in range({count}):
    write_entries(Path({path!r}), [entry(run=f"run {{at}}", gpu=sys.argv[1])])
    print(at, flush=True)
"""
_TESTS = str(Path(__file__).parents[2])


def _writer(path: Path, name: str, count: int) -> "subprocess.Popen[bytes]":
    code = _WRITING.format(tests=_TESTS, count=count, path=str(path))
    return subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE)


def test_an_entry_is_replaced_by_the_same_runs_next_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.db"
    assert read_entries(path) == ()

    write_entries(path, [untold(), entry(gpu="gpu 1")])
    write_entries(path, [entry(lasted_s=7200.0)])

    assert {each.gpu: each.lasted_s for each in read_entries(path)} == {
        "gpu 0": 7200.0,
        "gpu 1": 3600.0,
    }
    assert [oct(each.stat().st_mode & 0o777) for each in (path, path.parent)] == ["0o600", "0o700"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.untraced
def test_two_jobs_write_at_once_and_begin_the_file_together(tmp_path: Path) -> None:
    path, count = tmp_path / "ledger.db", 12
    writers = [_writer(path, name, count) for name in ("gpu 0", "gpu 1")]

    assert [each.wait() for each in writers] == [0, 0]
    for each in writers:
        each.communicate()
    assert len(read_entries(path)) == 2 * count


@pytest.mark.untraced
def test_a_kill_while_it_writes_leaves_every_entry_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with _writer(path, "gpu 0", 10_000) as writer:
        assert writer.stdout is not None
        written = [int(writer.stdout.readline()) for _ in range(5)]
        writer.send_signal(signal.SIGKILL)
        written += map(int, writer.stdout.read().split())

    runs = {each.run for each in read_entries(path)}
    assert {f"run {at}" for at in written} <= runs
    write_entries(path, [entry(run="after")])
    assert len(read_entries(path)) == len(runs) + 1


def _changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_ledger_of_a_newer_version_is_left_alone_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    write_entries(path, [entry()])
    _changed(path, "PRAGMA user_version = 2")
    before = path.read_bytes()

    for use in (lambda: read_entries(path), lambda: write_entries(path, [entry()])):
        with pytest.raises(DataError, match="it has schema 2, this version reads") as raised:
            use()
        assert "pip install -U underclock" in raised.value.hint
        assert LEDGER in raised.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("PRAGMA application_id = 7", "is a database, but no ledger"),
        ("UPDATE entries SET body = '{}'", "holds an entry that is none"),
        ("UPDATE entries SET body = 7", "holds an entry that is none"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path: Path, statement: str, reason: str) -> None:
    path = tmp_path / "ledger.db"
    write_entries(path, [entry()])
    _changed(path, statement)

    with pytest.raises(DataError, match=reason):
        read_entries(path)


def test_a_file_of_something_else_is_never_written(tmp_path: Path) -> None:
    text = tmp_path / "ledger.db"
    text.write_text("my notes, which nobody may lose\n" * 40)
    with pytest.raises(DataError, match=r"ledger\.db is damaged: file is not a database"):
        write_entries(text, [entry()])
    assert text.read_text().startswith("my notes")

    for path in (tmp_path, text / "ledger.db"):
        with pytest.raises(DataError, match="cannot use the ledger"):
            write_entries(path, [entry()])


def test_the_user_says_where_it_is_or_that_there_is_none() -> None:
    assert ledger_path({LEDGER: "/a/b.db"}) == Path("/a/b.db")
    assert ledger_path({LEDGER: ""}) is None
    assert ledger_path({"XDG_DATA_HOME": "/data"}) == Path("/data/underclock/ledger.db")
    assert ledger_path({}) == Path.home() / ".local/share/underclock/ledger.db"
