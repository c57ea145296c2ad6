"""The ledger: its file, whatever happens to that, and sums of what runs saved."""

import fcntl
import math
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from made_entries import BEGAN_S, HOUR_S, KWH_J, gpu, run, untold
from underclock import ledger
from underclock.errors import DataError
from underclock.ledger import (
    COUNTER,
    HEAT,
    LEDGER,
    LedgerRun,
    SavedAgainst,
    SavedTotal,
    append_run,
    read_runs,
    totals,
)
from underclock.records import Evidence

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


def _only(*runs: LedgerRun) -> SavedTotal:
    (total,) = totals(runs)
    assert not total.why
    return total


def test_one_run_is_what_it_drew_against_auto() -> None:
    total = _only(run())

    assert total.saved_j == pytest.approx(0.1 * KWH_J)
    reach_j = math.hypot(0.05, COUNTER * 0.1, HEAT * 0.1) * KWH_J
    assert total.saved_interval_j == pytest.approx((0.1 * KWH_J - reach_j, 0.1 * KWH_J + reach_j))
    assert (total.runs, total.gpus, total.gpu_s, total.steps) == (1, 1, HOUR_S, 100)


def test_evidence_is_never_added_up_nor_are_promises_and_blocks() -> None:
    told = totals(
        [
            run(),
            run(run="run 2", evidence=Evidence.SIMULATED),
            run(run="run 3", against=SavedAgainst.PROMISE),
        ]
    )

    assert len({(total.evidence, total.against) for total in told}) == len(told) == 3


def test_errors_add_up_within_a_comparison_and_in_squares_between_them() -> None:
    half_j = 0.05 * KWH_J
    gpus = [gpu(gpu=f"gpu {at}") for at in range(4)]
    one_run = [run(*gpus)]
    four_runs = [run(each, run=f"run of {each.gpu}") for each in gpus]
    promises = [
        msgspec.structs.replace(each, against=SavedAgainst.PROMISE, plan=each.run)
        for each in four_runs
    ]

    def half(runs: list[LedgerRun]) -> float:
        total = _only(*runs)
        reach_j = total.saved_interval_j[1] - total.saved_j
        of_blocks = total.against is SavedAgainst.BLOCKS
        alike = math.hypot(COUNTER, HEAT) if of_blocks else COUNTER
        return math.sqrt(reach_j**2 - (alike * 0.4 * KWH_J) ** 2)

    assert half(one_run) == pytest.approx(4 * half_j)
    assert half(four_runs) == pytest.approx(2 * half_j)
    assert half(promises) == pytest.approx(4 * half_j)


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("job", ["bert", "gpt"]),
        ("gpu", ["A100 gpu 1", "H200 gpu 0"]),
        ("month", ["2025-11", "2025-12"]),
        (None, [""]),
    ],
)
def test_runs_are_summed_by_job_gpu_or_month(by: str | None, groups: list[str]) -> None:
    other = run(gpu(gpu="gpu 1", name="A100"), run="run 2", job="bert", began_s=BEGAN_S - 1.0)

    assert [total.group for total in totals([run(), other], by)] == groups
