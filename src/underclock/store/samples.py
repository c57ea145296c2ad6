"""Our own measurements in SQLite: appended one by one, resumable, safe against kill -9.

One row per window, never changed afterwards; a kernel's repeat at a pair of clocks is unique, so
measuring it twice is an error. Each row is committed before the next is taken (`database`). Every
row has a checksum and the number of rows is kept, so that damage is never read as data.

A merged file holds the samples files of several boards, or of several runs on one, byte for byte:
provenance, GPU time and notes stay with their windows. Windows of one kernel at the same clocks in
several files are repeats.
"""

import itertools
import os
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Self

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records import SCHEMAS, SampleSet, Window, check_schema
from underclock.records.common import can_draw
from underclock.records.samples import renumbered
from underclock.store.database import (
    MERGED_ID,
    SQLITE_MAGIC,
    WriterLock,
    build,
    check_output,
    checksum,
    connect,
    damaged,
    transaction,
    translated,
)

_WITH_LOG: Final = slice(18, 20)  # of a database's header: versions to write and read, 2 with a log


class SampleFile:
    """An open samples file. Use as a context manager."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        header: SampleSet,
        lock: WriterLock | None = None,
    ) -> None:
        self.path = path
        self.header = header
        self._connection = connection
        self._lock = lock

    @classmethod
    def create(cls, path: Path, header: SampleSet) -> Self:
        """Start a file, and hold it as its only writer.

        Raises:
            UsageError: The path exists, is being written or cannot be.
        """
        check_output(path)
        try:
            lock = WriterLock.take(path)
        except OSError as exc:
            raise UsageError(f"cannot write {path}: {exc.strerror}") from exc
        try:
            check_output(path)  # again: the lock keeps other processes out from here on
            build(path, header)
        except BaseException as exc:
            lock.release()
            if isinstance(exc, OSError | sqlite3.Error):
                raise UsageError(f"cannot write {path}: {exc}") from exc
            raise
        return cls._open(path, lock)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Self:
        """Open an existing file, as its only writer or to read.

        Raises:
            UsageError: Another process is writing it.
            DataError: Missing, damaged, of another schema, or something else altogether.
        """
        with translated(path):
            if not path.is_file():
                words = "not a regular file" if path.exists() else "no such file"
                raise DataError(f"cannot read {path}: {words}")
            if not os.access(path, os.W_OK if writable else os.R_OK):
                # The system's own words, for it may be the disk that is read-only.
                path.open("r+b" if writable else "rb").close()
            lock = WriterLock.take(path) if writable else None
        return cls._open(path, lock)

    def body(self) -> bytes:
        """Return the whole file as bytes, with what is in its log."""
        with translated(self.path), closing(sqlite3.connect(":memory:")) as copy:
            self._connection.backup(copy)
            body = bytearray(copy.serialize())
        # Of a file that is being written the header says that a log belongs to it; here none does.
        body[_WITH_LOG] = b"\x01\x01"
        return bytes(body)

    @classmethod
    def _open(cls, path: Path, lock: WriterLock | None) -> Self:
        try:
            return cls(path, *connect(path, writable=lock is not None), lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def read(cls, path: Path) -> SampleSet:
        """Read everything in a file that `possible` keeps; errors are those of `open`."""
        with cls.open(path, writable=False) as file:
            return file.possible()

    def possible(self) -> SampleSet:
        """Return all but windows whose power no GPU draws, which a warning counts."""
        every = self.sample_set()
        stay = tuple(w for w in every.windows if can_draw(w.power_w, every.gpu.power_limit_w))
        if len(stay) == len(every.windows):
            return every
        words = (
            f"{len(every.windows) - len(stay)} of {len(every.windows)} windows were left out: by "
            "their energy and time the GPU drew what it cannot"
        )
        return msgspec.structs.replace(every, windows=stay, warnings=(*every.warnings, words))

    def append(self, window: Window, *, gpu_s: float = 0.0) -> None:
        """Add one window, and the GPU's time it took with warming up; it survives this process.

        Raises:
            MeasurementError: The file already holds it.
        """
        with transaction(self.path, self._connection):
            done, before_s = self._progress()
            self._insert(done + 1, window)
            self._set_progress(done + 1, before_s + gpu_s)

    def spend(self, gpu_s: float) -> None:
        """Add GPU time that led to no window."""
        with transaction(self.path, self._connection):
            done, before_s = self._progress()
            self._set_progress(done, before_s + gpu_s)

    @property
    def gpu_s(self) -> float:
        """The GPU's time that everything in the file took, over all runs."""
        with translated(self.path):
            return self._progress()[1]

    @property
    def taken(self) -> int:
        """How many windows are in the file."""
        with translated(self.path):
            return self._progress()[0]

    def note(self, sentences: Iterable[str]) -> None:
        """Add what a reader of the windows must know; what is there already is not repeated."""
        with translated(self.path):
            known = {*self.header.warnings, *self._notes()}
            for sentence in dict.fromkeys(sentences):
                if sentence not in known:
                    row = (sentence, checksum(sentence))
                    self._connection.execute("INSERT INTO notes VALUES (?, ?)", row)

    def set_apart(self, header: SampleSet, kernels: Collection[str]) -> tuple[Path, int]:
        """Go on under another header with the windows of some kernels; lay a copy of all aside.

        Co-load by itself stays as well; the whole step does not. GPU time is shared out by number.

        Returns:
            The copy, and how many windows are in it only.
        """
        every = self.sample_set().windows
        stay = [w for w in every if (w.kernel in kernels if w.kernel else not w.is_step)]
        names = (self.path.with_suffix(f".{n}{self.path.suffix}") for n in itertools.count(1))
        copy = next(name for name in names if not name.exists())
        partial = copy.with_name(f".{copy.name}.partial")
        partial.unlink(missing_ok=True)
        with translated(self.path):
            with closing(sqlite3.connect(partial)) as aside:
                self._connection.backup(aside)
                aside.execute("PRAGMA journal_mode = DELETE")
            partial.replace(copy)
        with transaction(self.path, self._connection):
            _, gpu_s = self._progress()
            body = msgspec.json.encode(header).decode()
            update = "UPDATE header SET body = ?, checksum = ?"
            self._connection.execute(update, (body, checksum(body)))
            self._connection.execute("DELETE FROM windows")
            for number, window in enumerate(stay, 1):
                self._insert(number, window)
            self._set_progress(len(stay), gpu_s * len(stay) / len(every) if every else gpu_s)
        self.header = header
        return copy, len(every) - len(stay)

    def sample_set(self) -> SampleSet:
        """Return the header with every window so far, in the order taken.

        Raises:
            DataError: The file is damaged.
        """
        # One transaction, so that another process's next window is not half seen.
        with transaction(self.path, self._connection, "DEFERRED"):
            windows, notes = self._windows(), self._notes()
        try:
            return msgspec.structs.replace(
                self.header, windows=windows, warnings=(*self.header.warnings, *notes)
            )
        except ValueError as exc:
            raise damaged(self.path, exc) from exc

    def _progress(self) -> tuple[int, float]:
        row = self._connection.execute("SELECT windows, gpu_s, checksum FROM progress").fetchone()
        if row is None or row[2] != checksum(*row[:2]):
            raise damaged(self.path, "the number of its windows is not as it was written")
        return row[0], row[1]

    def _set_progress(self, windows: int, gpu_s: float) -> None:
        values = (windows, float(gpu_s))
        update = "UPDATE progress SET windows = ?, gpu_s = ?, checksum = ?"
        self._connection.execute(update, (*values, checksum(*values)))

    def _insert(self, number: int, window: Window) -> None:
        what = msgspec.json.encode((*window.what, window.repeat)).decode()
        row = (number, what, msgspec.json.encode(window).decode())
        insert = "INSERT INTO windows VALUES (?, ?, ?, ?)"
        self._connection.execute(insert, (*row, checksum(*row)))

    def _windows(self) -> tuple[Window, ...]:
        count, _ = self._progress()
        kernels = {"", *(kernel.name for kernel in self.header.kernels)}
        rows = self._connection.execute("SELECT * FROM windows ORDER BY number")
        columns = [name for name, *_ in rows.description]
        if columns != ["number", "what", "body", "checksum"]:
            raise damaged(self.path, f"its windows have the columns {', '.join(columns)}")
        windows = []
        decoder = msgspec.json.Decoder(Window)
        for number, row in enumerate(rows, 1):
            if row[3] != checksum(*row[:3]) or row[0] != number:
                raise damaged(self.path, f"window {number} is not as it was written")
            try:
                window = decoder.decode(row[2])
            except (msgspec.DecodeError, TypeError, RecursionError) as exc:
                raise damaged(self.path, exc) from exc
            if window.kernel not in kernels:
                raise damaged(self.path, f"window {number} is of no kernel of the step")
            windows.append(window)
        if len(windows) != count:
            raise damaged(self.path, f"{count} windows were written, {len(windows)} are there")
        return tuple(windows)

    def _notes(self) -> tuple[str, ...]:
        """Read what a reader of the windows must know, in the order it was added."""
        select = "SELECT sentence, checksum FROM notes ORDER BY rowid"
        rows = self._connection.execute(select).fetchall()
        if any(written != checksum(sentence) for sentence, written in rows):
            raise damaged(self.path, "a note in it is not as it was written")
        return tuple(sentence for sentence, _written in rows)

    def close(self) -> None:
        """Close the file, leaving one self-contained file behind."""
        with translated(self.path):
            try:
                self._connection.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.OperationalError:
                pass  # opened read-only, or another process reads it: the log stays
            finally:
                self._connection.close()
                if self._lock is not None:
                    self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_AT: Final = slice(68, 72)  # where SQLite keeps it
_REMAKE: Final = "merge the files again with `underclock merge`"


def is_merged(path: Path) -> bool:
    """Whether a file was merged from several."""
    try:
        with path.open("rb") as file:
            head = file.read(_AT.stop)
    except OSError:
        return False
    return head.startswith(SQLITE_MAGIC) and head[_AT] == MERGED_ID.to_bytes(4, "big")


def merge(paths: Sequence[Path], to: Path, *, force: bool = False) -> tuple[SampleSet, ...]:
    """Put samples files, merged ones too, into one file; they stay as they are.

    Args:
        force: Whether an earlier merged file may be replaced; other samples never are.

    Returns:
        The samples of each board.

    Raises:
        UsageError: The file cannot be written.
        DataError: A file cannot be read, is there twice, or is of another GPU model, driver, power
            limit, evidence or step than the first.
    """
    check_output(to, force=force and is_merged(to), inputs=paths, over_samples=is_merged(to))
    bodies = [(path, body) for path in paths for body in _bodies(path)]
    sets = [(path, _part(path, body)) for path, body in bodies]
    _check(sets)
    partial = to.with_name(f".{to.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        with closing(sqlite3.connect(partial)) as connection, connection:
            connection.execute(f"PRAGMA application_id = {MERGED_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMAS['merged samples']}")
            connection.execute("CREATE TABLE parts (body BLOB NOT NULL, checksum INTEGER NOT NULL)")
            rows = [(body, zlib.crc32(body)) for _, body in bodies]
            connection.executemany("INSERT INTO parts VALUES (?, ?)", rows)
        partial.replace(to)
    except (OSError, sqlite3.Error) as exc:
        raise UsageError(f"cannot write {to}: {exc}") from exc
    boards: dict[str | None, list[SampleSet]] = {}
    for _, part in sets:
        boards.setdefault(part.gpu.uuid, []).append(part)
    return tuple(joined(each) for each in boards.values())


def read_parts(path: Path) -> tuple[SampleSet, ...]:
    """Read every file that was merged into one; of a file that was not, itself.

    Raises:
        DataError: It is missing or damaged.
    """
    return tuple(_part(path, body) for body in _bodies(path))


def joined(parts: Sequence[SampleSet]) -> SampleSet:
    """Return samples of several parts as one set; what several hold of one thing are repeats."""
    if len(parts) == 1:
        return parts[0]
    windows = renumbered(window for part in parts for window in part.windows)
    first = parts[0]
    known = [part.provenance for part in parts if part.provenance is not None]
    provenance = first.provenance
    if provenance is not None and any(each != provenance for each in known):
        # Of what differs none holds for all; each part keeps its own.
        alone = {
            name: getattr(provenance, name)
            for name in provenance.__struct_fields__
            if len({getattr(each, name) for each in known}) == 1
        }
        provenance = type(provenance)(**alone)
    boards = {part.gpu.uuid for part in parts}
    runs = f"{len(windows)} windows of one board are from {len(parts)} files"
    if len(boards) > 1:
        runs = f"{len(windows)} windows are from {len(boards)} boards, whose powers may differ"
    every = dict.fromkeys(sentence for part in parts for sentence in part.warnings)
    return msgspec.structs.replace(
        first,
        gpu=msgspec.structs.replace(first.gpu, uuid=first.gpu.uuid if len(boards) == 1 else None),
        windows=windows,
        settings=tuple(dict.fromkeys(clocks for part in parts for clocks in part.settings)),
        expected_samples=None,
        provenance=provenance,
        warnings=(*every, runs),
    )


def _check(sets: Sequence[tuple[Path, SampleSet]]) -> None:
    if not sets:
        raise UsageError("there is nothing to merge", hint="name the files of all GPUs")
    name, first = sets[0]
    seen: dict[str | None, dict[Window, Path]] = {}
    for path, one in sets:
        if one.gpu.uuid is None or one.is_table:
            hint = "only what `underclock measure` took on a GPU can be merged"
            raise DataError(f"{path} does not say which board its samples are of", hint=hint)
        if unlike := first.unlike(one):
            noun, mine, theirs = unlike
            hint = "samples are merged where only the boards differ"
            raise DataError(f"{name} and {path} are of two {noun}: {mine} and {theirs}", hint=hint)
        known = seen.setdefault(one.gpu.uuid, {})
        alike = {msgspec.structs.replace(window, repeat=0) for window in one.windows}
        if twice := next(iter(alike & known.keys()), None):
            hint = "name each file once; simulated GPUs that are alike need seeds of their own"
            raise DataError(f"{known[twice]} and {path} hold the same measurements", hint=hint)
        known.update(dict.fromkeys(alike, path))


def _bodies(path: Path) -> Iterable[bytes]:
    if not is_merged(path):
        with SampleFile.open(path, writable=False) as file:
            return [file.body()]
    with translated(path):
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            schema = connection.execute("PRAGMA user_version").fetchone()[0]
            check_schema(path, "merged samples", schema, _REMAKE)
            rows = connection.execute("SELECT body, checksum FROM parts ORDER BY rowid").fetchall()
    sums = [zlib.crc32(body) if isinstance(body, bytes) else None for body, _ in rows]
    if not rows or sums != [written for _, written in rows]:
        raise damaged(path, "what was merged is not as it was written")
    return [body for body, _ in rows]


def _part(path: Path, body: bytes) -> SampleSet:
    with SampleFile(path, *connect(path, writable=False, body=body)) as file:
        return file.possible()
