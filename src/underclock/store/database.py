"""The SQLite file that windows lie in: made whole, opened, locked, changed as a whole, its errors.

Write-ahead logging keeps every committed row when the process dies at any instant. What SQLite and
the system say is turned into our errors here.
"""

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec

from underclock.errors import DataError, MeasurementError, UsageError
from underclock.records import SCHEMAS, SampleSet, check_schema

TABLES: Final = """
CREATE TABLE header (body TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE windows (
    number INTEGER PRIMARY KEY,
    what TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE notes (sentence TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE progress (windows INTEGER NOT NULL, gpu_s REAL NOT NULL, checksum INTEGER NOT NULL);
"""
_APPLICATION_ID = 0x756E6463  # "undc", in the file's header
MERGED_ID: Final = 0x756E646D  # "undm", of files that were merged into one
_REMAKE = "measure again with `underclock measure`"
_REFUSALS = {  # of the system: the file is as healthy as it was
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


def checksum(*values: object) -> int:
    """Return a number that changes where text or a number does, down to its last digit."""
    return zlib.crc32(msgspec.json.encode(values))


def damaged(path: Path, words: object) -> DataError:
    """Return the error to raise where a file is not as it was written."""
    return DataError(f"{path} is damaged or not a samples file: {words}", hint=_REMAKE)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the errors of reading and appending into ours, at this one boundary.

    Raises:
        DataError: The file is damaged, or the system refuses.
        MeasurementError: A row was written that the file already holds.
    """
    try:
        yield
    except OSError as exc:
        raise DataError(f"cannot read {path}: {exc.strerror}") from exc
    except sqlite3.IntegrityError as exc:
        raise MeasurementError(
            f"{path} already holds this measurement",
            hint="another process may be measuring into the same file",
        ) from exc
    except (sqlite3.Error, UnicodeDecodeError) as exc:  # of names of columns, and words of damage
        code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in _REFUSALS and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            raise DataError(
                f"cannot use {path}: {exc}",
                hint="the file is whole: see to space and permissions where it lies, then run the "
                "same command again",
            ) from exc
        raise damaged(path, exc) from exc


def build(path: Path, header: SampleSet) -> None:
    """Make a file aside and move it into place, so that a kill leaves a whole file or none.

    Raises:
        OSError, sqlite3.Error: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    body = msgspec.json.encode(header).decode()
    with closing(sqlite3.connect(partial)) as connection:
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMAS['samples']}")
        connection.executescript(TABLES)
        connection.execute("INSERT INTO header VALUES (?, ?)", (body, checksum(body)))
        connection.execute("INSERT INTO progress VALUES (0, 0.0, ?)", (checksum(0, 0.0),))
        connection.commit()
    # The log of a file of this name that was removed after a kill would be played into the new one.
    for left_over in ("-wal", "-shm"):
        path.with_name(path.name + left_over).unlink(missing_ok=True)
    partial.replace(path)


def connect(
    path: Path, *, writable: bool, body: bytes | None = None
) -> tuple[sqlite3.Connection, SampleSet]:
    """Open a file, and read what it says it is; nothing is written to one that is refused.

    Args:
        body: The whole file, where it was read already.

    Returns:
        A connection without transactions of its own, and the header.

    Raises:
        DataError: Missing, damaged, of another schema, or something else altogether.
    """
    with translated(path):
        uri = f"{path.resolve().as_uri()}?mode={'rw' if writable else 'ro'}"
        if body is not None:
            uri = ":memory:"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            if body is not None:
                connection.deserialize(body)
            header = _read_header(path, connection)
            if writable:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
    return connection, header


def _read_header(path: Path, connection: sqlite3.Connection) -> SampleSet:
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    if found == MERGED_ID:
        raise DataError(
            f"{path} was merged of several samples files, and is not measured into",
            hint="measure into a file of its own, then merge again",
        )
    if found != _APPLICATION_ID:
        raise DataError(
            f"{path} is a database, but not a samples file",
            hint="make one with `underclock measure`",
        )
    check_schema(path, "samples", connection.execute("PRAGMA user_version").fetchone()[0], _REMAKE)
    row = connection.execute("SELECT body, checksum FROM header").fetchone()
    if row is None or row[1] != checksum(row[0]):
        raise DataError(f"{path} has a damaged header", hint=_REMAKE)
    try:
        return msgspec.json.decode(row[0], type=SampleSet)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError) as exc:
        raise DataError(f"{path} has a damaged header: {exc}", hint=_REMAKE) from exc


@contextmanager
def transaction(
    path: Path, connection: sqlite3.Connection, kind: str = "IMMEDIATE"
) -> Iterator[None]:
    """Do all of a block or nothing.

    Args:
        kind: ``"IMMEDIATE"`` to write, ``"DEFERRED"`` to read one state of it.

    Raises:
        DataError: The file is damaged, or the system refuses.
        MeasurementError: A row was written that the file already holds.
    """
    with translated(path):
        connection.execute(f"BEGIN {kind}")
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


class WriterLock:
    """The right to write one file, from before it is made; the system takes it where we die.

    The lock is a file of its own next to it, because closing any handle of a database gives up the
    locks that SQLite holds on it in the same process.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, of: Path) -> Self:
        """Lock a file, which need not be there yet.

        Raises:
            UsageError: Another process has the lock.
            OSError: The folder takes no file.
        """
        target = of.resolve()
        path = target.with_name(f".{target.name}.lock")
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                os.close(descriptor)
                raise UsageError(
                    f"another process is measuring into {of}",
                    hint="wait until it has ended, or name another file with -o",
                ) from exc
            except OSError:  # a file system without locks: there, two writers are the user's care
                return cls(path, descriptor)
            # Who had the lock before may have removed its file between our opening and locking it.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return cls(path, descriptor)
            os.close(descriptor)

    def release(self) -> None:
        """Give the lock back, and leave nothing behind; harmless when it was given back."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1
