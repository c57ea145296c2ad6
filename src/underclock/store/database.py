"""Files that are read and written whole, and the SQLite file that windows lie in.

Write-ahead logging keeps every committed row when the process dies at any instant. What SQLite and
the system say is turned into our errors here.
"""

import fcntl
import gzip
import os
import sqlite3
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator
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
        hint = "another process may be measuring into the same file"
        raise MeasurementError(f"{path} already holds this measurement", hint=hint) from exc
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
    """Open a file, or its body; return it, without transactions of its own, and its header.

    Nothing is written to one that is refused by `DataError`: missing, damaged, of another schema,
    or something else altogether.
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
        hint = "make one with `underclock measure`"
        raise DataError(f"{path} is a database, but not a samples file", hint=hint)
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
    """Do all of a block or nothing; ``DEFERRED`` reads one state. Errors are as of `translated`."""
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
                hint = "wait until it has ended, or name another file with -o"
                raise UsageError(f"another process is measuring into {of}", hint=hint) from exc
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


_LOOKED_AT = 1000  # characters: more than any of our files has before it says something
SQLITE_MAGIC = b"SQLite format 3\x00"
_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path, *, hint: str = "", most: int = -1) -> bytes:
    """Return what a file holds, or the first bytes of it; what gzip packed is unpacked.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            packed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            return gzip.open(file).read(most) if packed else file.read(most)
    except (OSError, EOFError, zlib.error) as exc:
        words = getattr(exc, "strerror", None) or exc
        raise DataError(f"cannot read {path}: {words}", hint=hint) from exc


def check_output(
    path: Path,
    *,
    force: bool = False,
    inputs: Iterable[Path | None] = (),
    over_samples: bool = False,
    begins: str = "",
) -> None:
    """Make sure a file can be written, before any work is spent on its contents.

    A pipe or a device other than a disk may always be written to: nothing there is replaced.

    Args:
        inputs: Files that are read meanwhile, which are never replaced.
        begins: How files of the kind that will be written begin; a file that begins otherwise is
            a user's table or script, and never replaced.

    Raises:
        UsageError: It exists already, is an input, of another kind or holds measurements, or its
            folder is missing or not writable.
    """
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder", hint="name a file with -o")
        if path.exists():
            _check_existing(path, begins, force=force, inputs=inputs, over_samples=over_samples)
        if takes_writes_through(path):
            return
        folder = _target(path).parent
        if not folder.is_dir():
            hint = "make it first, or another -o"
            raise UsageError(f"cannot write {path}: there is no folder {folder}", hint=hint)
        # Asking the folder, not its mode bits: root and read-only mounts make those lie.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise UsageError(
            f"cannot write {path}: {exc.strerror}", hint="choose a writable folder with -o"
        ) from exc


def _check_existing(
    path: Path, begins: str, *, force: bool, inputs: Iterable[Path | None], over_samples: bool
) -> None:
    hint = "name another file with -o"
    for source in inputs:
        if source is not None and source.exists() and path.samefile(source):
            raise UsageError(f"will not overwrite {path}: it is read as {source}", hint=hint)
    if path.is_block_device():
        raise UsageError(f"will not write {path}: it is a disk", hint="name a file with -o")
    if not path.is_file():
        return
    with path.open("rb") as file:
        there = file.read(_LOOKED_AT)
    if there.startswith(SQLITE_MAGIC) and not over_samples:
        hint += ", or remove it yourself"
        raise UsageError(f"will not overwrite {path}: it holds measurements", hint=hint)
    if not force:
        raise UsageError(
            f"will not overwrite {path}: it exists", hint="pass --force, or another -o"
        )
    text = there.decode(errors="replace").lstrip() or begins  # an empty file is of any kind
    if not text.startswith(begins):
        raise UsageError(
            f"will not overwrite {path}: it is of another kind than what would be written there, "
            f"and begins with {text[:20]!r}",
            hint=f"{hint}, or remove it yourself",
        )


def takes_writes_through(path: Path) -> bool:
    """Whether there is a pipe or a device, which must be written to and never renamed over."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode))


def write_text(path: Path, text: str, *, force: bool = False, begins: str = "") -> None:
    """Write a file so that a reader finds the old one or the new one, never half of it.

    Raises:
        UsageError: As `check_output`, or the disk is full.
    """
    check_output(path, force=force, begins=begins)
    try:
        if takes_writes_through(path):
            path.write_text(text, encoding="utf-8")
            return
        target = _target(path)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".underclock.")
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)  # it can only be read by setting it
            os.umask(mask)
            partial.chmod(0o666 & ~mask)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}") from exc


def _target(path: Path) -> Path:
    """Follow a link to a file that is there; a link to nowhere stands for itself."""
    return path.resolve() if path.is_symlink() and path.exists() else path
