"""The ledger's file: several jobs at once, kills, torn lines, what is none."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from made_entries import gpu, run, untold
from underclock import ledger
from underclock.errors import DataError
from underclock.ledger import LEDGER, append_run, read_runs

_WRITING = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from made_entries import gpu, run
from underclock.ledger import append_run
gpus = [gpu(gpu=f"gpu {{at}}") for at in range(64)]
for at in range({count}):
    append_run(Path({path!r}), run(*gpus, run=f"{{sys.argv[1]}} {{at}}"))
    print(at, flush=True)
"""
_TESTS = str(Path(__file__).parents[2])


def _writer(path: Path, name: str, count: int) -> "subprocess.Popen[bytes]":
    code = _WRITING.format(tests=_TESTS, count=count, path=str(path))
    return subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE)


def test_the_last_line_of_a_run_stands_for_the_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.jsonl"
    assert read_runs(path) == ((), ())

    append_run(path, run(untold()))
    append_run(path, run(run="run 2"))
    append_run(path, run(lasted_s=7200.0))

    runs, notes = read_runs(path)
    assert {each.run: each.lasted_s for each in runs} == {"run 1": 7200.0, "run 2": 3600.0}
    assert notes == ()
    assert len(path.read_text().splitlines()) == 3
    assert [oct(each.stat().st_mode & 0o777) for each in (path, path.parent)] == ["0o600", "0o700"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.untraced
def test_a_kill_while_it_writes_leaves_every_run_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with _writer(path, "run", 10_000) as writer:
        assert writer.stdout is not None
        written = [int(writer.stdout.readline()) for _ in range(5)]
        writer.send_signal(signal.SIGKILL)
        written += map(int, writer.stdout.read().split())

    runs = {each.run for each in read_runs(path)[0]}
    assert {f"run {at}" for at in written} <= runs
    append_run(path, run(run="after"))
    assert len(read_runs(path)[0]) == len(runs) + 1


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_line_that_was_cut_short_spoils_no_other_one(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    append_run(path, run())
    append_run(path, run(run="run 2"))
    os.truncate(path, path.stat().st_size - cut)

    append_run(path, run(run="run 3"))

    runs, notes = read_runs(path)
    whole = ["run 1", "run 2", "run 3"] if cut == 1 else ["run 1", "run 3"]
    assert [each.run for each in runs] == whole
    assert len(notes) == (cut > 1)
    assert all(f"line 2 of {path} is no run" in note for note in notes)


@pytest.mark.parametrize(
    ("field", "value"),
    [("began_s", 1e15), ("began_s", -1.0), ("lasted_s", 1e300), ("lasted_s", -1.0), ("gpus", [{}])],
)
def test_a_value_that_cannot_be_is_left_out_with_a_sentence(
    tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "ledger.jsonl"
    append_run(path, run())
    odd = {**msgspec.to_builtins(run(run="odd")), field: value}
    path.write_bytes(path.read_bytes() + msgspec.json.encode(odd) + b"\n\xff\xfe\n")

    runs, (note,) = read_runs(path)

    assert [each.run for each in runs] == ["run 1"]
    assert note.startswith(f"not counted: line 2 of {path} is no run: ")
    assert note.endswith("; and 1 more")
    assert field in note


def _refused(path: Path, words: str) -> None:
    for use in (lambda: read_runs(path), lambda: append_run(path, run())):
        with pytest.raises(DataError, match=words) as raised:
            use()
        assert LEDGER in raised.value.hint


def test_what_is_no_ledger_is_refused_and_never_written(tmp_path: Path) -> None:
    fifo, text, plan = (tmp_path / name for name in ("fifo", "notes", "plan.json"))
    os.mkfifo(fifo)
    text.write_text("my notes\n" * 40)
    plan.write_text('{"kind":"plan","schema":9}')

    _refused(fifo, "is no ordinary file")
    _refused(Path("/dev/null"), "is no ordinary file")
    _refused(tmp_path, "cannot use the ledger .*: Is a directory")
    for file in (text, plan):
        before = file.read_bytes()
        _refused(file, "is no ledger: it does not begin with a run")
        assert file.read_bytes() == before
    _refused(text / "ledger.jsonl", "cannot use the ledger .*: Not a directory|File exists")


def test_a_ledger_that_was_sqlite_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE entries (run TEXT)")
    before = path.read_bytes()

    _refused(path, "a ledger of an earlier underclock, which was SQLite")
    assert path.read_bytes() == before
    assert read_runs(tmp_path / "ledger.jsonl") == (
        (),
        (f"not counted: {path}, a ledger of an earlier underclock, which was SQLite",),
    )


def test_a_writer_that_was_stopped_holds_up_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    append_run(path, run())
    monkeypatch.setattr(ledger, "_WAITS", 2)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        append_run(path, run(gpu(gpu="gpu 1"), run="run 2"))

    assert len(read_runs(path)[0]) == 2
