"""The ledger's file: SQLite, the user's own, written by any number of jobs at once.

It keeps SQLite's rollback journal: write-ahead logging needs memory that all writers share, which a
home on a network file system does not give to nodes of a cluster. A write is one transaction every
few minutes, so nothing is lost by that, and a kill at any instant leaves the file before or after.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from underclock.errors import DataError
from underclock.ledger.entries import LedgerEntry
from underclock.records.schemas import SCHEMAS

LEDGER: Final = "UNDERCLOCK_LEDGER"
"""Names the file; empty for none."""
_APPLICATION_ID: Final = 0x756E646C  # "undl", in the file's header
_BUSY_S = 20.0  # that a writer waits for others
_TABLE = (
    "CREATE TABLE entries (run TEXT NOT NULL, gpu TEXT NOT NULL, body TEXT NOT NULL, "
    "PRIMARY KEY (run, gpu))"
)
_ASIDE = f"name another file with {LEDGER}, or move it away: the next run begins a new one"


def ledger_path(environment: Mapping[str, str]) -> Path | None:
    """Return where the ledger is; ``None`` where the user wants none."""
    named = environment.get(LEDGER)
    if named is not None:
        return Path(named) if named.strip() else None
    home = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "underclock" / "ledger.db"


def write_entries(path: Path, entries: Iterable[LedgerEntry]) -> None:
    """Write entries, each in the place of the one that it had before.

    Raises:
        DataError: It is of a newer version, damaged, something else, or the system refuses.
    """
    rows = [(each.run, each.gpu, msgspec.json.encode(each).decode()) for each in entries]
    with _translated(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        with closing(_connected(path, "rw")) as connection:
            connection.execute("BEGIN IMMEDIATE")  # so that one of several makes the table
            try:
                if not _is_made(path, connection):
                    connection.execute(_TABLE)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {SCHEMAS['ledger']}")
                connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")


def read_entries(path: Path) -> tuple[LedgerEntry, ...]:
    """Return all entries; none where there is no file yet.

    Raises:
        DataError: As of `write_entries`.
    """
    if not path.exists():
        return ()
    with _translated(path), closing(_connected(path, "ro")) as connection:
        connection.execute("BEGIN")  # one state of it, whoever writes meanwhile
        if not _is_made(path, connection):
            return ()
        bodies = connection.execute("SELECT body FROM entries ORDER BY rowid").fetchall()
    try:
        return tuple(msgspec.json.decode(body, type=LedgerEntry) for (body,) in bodies)
    except (msgspec.DecodeError, TypeError) as exc:
        raise DataError(f"{path} holds an entry that is none: {exc}", hint=_ASIDE) from exc


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_S)


def _is_made(path: Path, connection: sqlite3.Connection) -> bool:
    """Whether a file is a ledger; not yet, where it is empty.

    Raises:
        DataError: It is something else, or of another version.
    """
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if not found and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        return False
    if found != _APPLICATION_ID:
        raise DataError(f"{path} is a database, but no ledger", hint=_ASIDE)
    if schema != SCHEMAS["ledger"]:
        raise DataError(
            f"the ledger {path} was written by another version of underclock: it has schema "
            f"{schema}, this version reads and writes {SCHEMAS['ledger']}",
            hint=f"upgrade underclock (pip install -U underclock), or {_ASIDE}",
        )
    return True


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn errors of the system and of SQLite into ours."""
    try:
        yield
    except OSError as exc:
        raise DataError(f"cannot use the ledger {path}: {exc.strerror}", hint=_ASIDE) from exc
    except sqlite3.OperationalError as exc:  # busy, full, read only: the file is whole
        raise DataError(f"cannot use the ledger {path}: {exc}", hint=_ASIDE) from exc
    except sqlite3.DatabaseError as exc:
        raise DataError(f"the ledger {path} is damaged: {exc}", hint=_ASIDE) from exc
