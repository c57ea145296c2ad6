"""The ledger's file: JSON lines, the user's own, to which any number of jobs append at once.

A run is one write at the file's end, under a lock where the file system has locks. What a kill or a
full disk cut short is a line by itself, which readers leave out.
"""

import errno
import fcntl
import io
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from underclock.errors import DataError
from underclock.ledger.entries import LedgerRun

LEDGER: Final = "UNDERCLOCK_LEDGER"
"""Names the file; empty for none."""
_BEGINS, _SQLITE = b'{"kind":"ledger"', b"SQLite format 3"
_ASIDE = f"name another file with {LEDGER}, or move it away: the next run begins a new one"
_WAITS, _WAIT_S = 200, 0.05  # for the lock; whoever holds it for longer was stopped


def ledger_path(environment: Mapping[str, str]) -> Path | None:
    """Return where the ledger is; ``None`` where the user wants none."""
    named = environment.get(LEDGER)
    if named is not None:
        return Path(named) if named.strip() else None
    home = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "underclock" / "ledger.jsonl"


def append_run(path: Path, run: LedgerRun) -> None:
    """Append a run; a later line of the same run stands for the earlier ones.

    Raises:
        DataError: The file is something else, or the system refuses.
    """
    line = msgspec.json.encode(run) + b"\n"
    with _opened(path, "a+") as file:
        _lock(file)
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # what was cut short
            line = b"\n" + line
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())


def read_runs(path: Path) -> tuple[tuple[LedgerRun, ...], tuple[str, ...]]:
    """Return all runs, none where there is no file yet, and sentences on what is not among them.

    Raises:
        DataError: The file is something else, or the system refuses.
    """
    runs, bad, notes = dict[str, LedgerRun](), list[str](), list[str]()
    old = path.with_suffix(".db")
    if old != path and old.is_file():
        notes.append(f"not counted: {old}, a ledger of an earlier underclock, which was SQLite")
    lines = list[bytes]()
    if path.exists():
        with _opened(path, "r") as file:
            lines = file.readall().split(b"\n")
    decoder = msgspec.json.Decoder(LedgerRun)
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                run = decoder.decode(line)
                runs[run.run] = run
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            bad.append(f"line {number} of {path} is no run: {exc}")
    if bad:
        more = f"; and {len(bad) - 1} more" if len(bad) > 1 else ""
        notes.append(f"not counted: {bad[0]}{more}")
    return tuple(runs.values()), tuple(notes)


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[io.FileIO]:
    """Open a ledger, or a file that may become one; what is none is refused without a wait."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK, 0o600)

    try:
        if mode != "r":
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with io.FileIO(path, mode, opener=opener) as file:
            _check(path, file.fileno())
            yield file
    except OSError as exc:
        raise DataError(f"cannot use the ledger {path}: {exc.strerror}", hint=_ASIDE) from exc


def _check(path: Path, file: int) -> None:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise DataError(f"the ledger {path} is no ordinary file", hint=_ASIDE)
    first = os.pread(file, len(_BEGINS), 0)
    if first.startswith(_SQLITE):
        raise DataError(
            f"{path} is a ledger of an earlier underclock, which was SQLite; now it is JSON lines",
            hint=_ASIDE,
        )
    if first != _BEGINS[: len(first)]:
        raise DataError(f"{path} is no ledger: it does not begin with a run", hint=_ASIDE)


def _lock(file: io.FileIO) -> None:
    """Keep other writers out until the file is closed; go on where that takes too long."""
    for _ in range(_WAITS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_WAIT_S)  # noqa: TID251 - another process gives it back in real time
        except OSError:  # a file system without locks
            return
        else:
            return
