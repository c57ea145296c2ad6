"""Our own measurements in SQLite: appended one by one, resumable, safe against kill -9.

One row per measurement, never changed afterwards; a unique index makes measuring anything twice
an error. Write-ahead logging keeps every committed row when the process dies at any instant. Every
row carries a checksum, and their number is kept, so that no damage reads as another measurement.
"""

import itertools
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from underclock.errors import DataError, MeasurementError, UsageError
from underclock.records import SCHEMAS, MixSample, Sample, SampleSet, check_schema
from underclock.store.files import check_output
from underclock.store.locking import WriterLock
from underclock.store.rows import (
    TABLES,
    RowReader,
    checksum,
    mixed_row_of,
    mixed_sample,
    row_of,
)

_APPLICATION_ID = 0x756E6463  # "undc", in the file's header
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


def _damaged(path: Path, words: object) -> DataError:
    return DataError(f"{path} is damaged or not a samples file: {words}", hint=_REMAKE)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn the errors of reading and appending into ours, at this one boundary."""
    try:
        yield
    except OSError as exc:
        raise DataError(f"cannot read {path}: {exc.strerror}") from exc
    except sqlite3.IntegrityError as exc:
        raise MeasurementError(
            f"{path} already holds this measurement",
            hint="another process may be measuring into the same file",
        ) from exc
    except sqlite3.Error as exc:
        code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in _REFUSALS and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            raise DataError(
                f"cannot use {path}: {exc}",
                hint="the file is whole: see to space and permissions where it lies, then run the "
                "same command again",
            ) from exc
        raise _damaged(path, exc) from exc
    except UnicodeDecodeError as exc:  # names of columns, and SQLite's own words of damage
        raise _damaged(path, exc) from exc


class _Progress(NamedTuple):
    """How many samples were written, alone and in company, and the GPU time all took."""

    samples: int
    mixed: int
    gpu_s: float


class SampleFile:
    """An open samples file. Use as a context manager.

    Attributes:
        path: Where it is.
        header: What all its samples share; a `SampleSet` without samples.
    """

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
            check_output(path)  # again, for nobody else can make it from here on
            _build(path, header)
            return cls._open(path, lock)
        except (OSError, sqlite3.Error) as exc:
            lock.release()
            raise UsageError(f"cannot write {path}: {exc}") from exc
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Self:
        """Open an existing file, as its only writer or to read.

        Raises:
            UsageError: Another process is writing it.
            DataError: Missing, damaged, of another schema, or something else altogether.
        """
        with _translated(path):
            if not path.is_file():
                words = "not a regular file" if path.exists() else "no such file"
                raise DataError(f"cannot read {path}: {words}")
            if not os.access(path, os.W_OK if writable else os.R_OK):
                # The system's own words, for it may be the disk that is read-only.
                path.open("r+b" if writable else "rb").close()
            lock = WriterLock.take(path) if writable else None
        try:
            return cls._open(path, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def _open(cls, path: Path, lock: WriterLock | None) -> Self:
        with _translated(path):
            uri = f"{path.resolve().as_uri()}?mode={'rw' if lock else 'ro'}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            try:
                header = _read_header(path, connection)
                if lock is not None:
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, header, lock)

    @classmethod
    def read(cls, path: Path) -> SampleSet:
        """Read everything in a file.

        Raises:
            DataError: As `open`.
        """
        with cls.open(path, writable=False) as file:
            return file.sample_set()

    def append(self, sample: Sample, *, in_situ: bool = False, gpu_s: float = 0.0) -> None:
        """Add one measurement; from here on it survives this process.

        Args:
            sample: The measurement.
            in_situ: Whether it is of the whole step rather than an isolated kernel.
            gpu_s: The GPU's time that went into it, warming up and waiting included.

        Raises:
            MeasurementError: The file already holds it.
        """
        with self._transaction():
            done = self._progress()
            self._insert(done.samples + 1, sample, in_situ=in_situ)
            self._set_progress(done.samples + 1, done.mixed, done.gpu_s + gpu_s)

    def append_mixed(self, sample: MixSample, *, gpu_s: float = 0.0) -> None:
        """Add one measurement in company, as `append` does.

        Args:
            sample: The measurement.
            gpu_s: The GPU's time that went into it, warming up and waiting included.

        Raises:
            MeasurementError: The file already holds it.
        """
        with self._transaction():
            done = self._progress()
            self._insert_mixed(done.mixed + 1, sample)
            self._set_progress(done.samples, done.mixed + 1, done.gpu_s + gpu_s)

    def spend(self, gpu_s: float) -> None:
        """Add GPU time that led to no sample."""
        with self._transaction():
            done = self._progress()
            self._set_progress(done.samples, done.mixed, done.gpu_s + gpu_s)

    @property
    def gpu_s(self) -> float:
        """The GPU's time that everything in the file took, over all runs."""
        with _translated(self.path):
            return self._progress().gpu_s

    @property
    def taken(self) -> int:
        """How many measurements are in the file, alone and in company."""
        with _translated(self.path):
            done = self._progress()
        return done.samples + done.mixed

    def note(self, sentences: Iterable[str]) -> None:
        """Add what a reader of the samples must know; what is there already is not repeated."""
        known = {*self.header.warnings, *self._notes()}
        with _translated(self.path):
            for sentence in dict.fromkeys(sentences):
                if sentence not in known:
                    self._connection.execute(
                        "INSERT INTO notes VALUES (?, ?)", (sentence, checksum(sentence))
                    )

    def set_apart(self, header: SampleSet, kernels: Collection[str]) -> tuple[Path, int]:
        """Go on under another header with the samples of some kernels; lay a copy of all aside.

        Company by itself stays as well; the whole step does not. GPU time is shared out by number.

        Args:
            header: What the samples that stay, and those to come, share.
            kernels: Names of the kernels whose samples stay.

        Returns:
            The copy, and how many measurements are in it only.
        """
        all_ = self.sample_set()
        samples = [sample for sample in all_.samples if sample.kernel in kernels]
        mixed = [
            sample
            for sample in all_.mixed
            if sample.kernel in kernels or not (sample.kernel or sample.mix.launches)
        ]
        copy = self._copy()
        with self._transaction():
            done = self._progress()
            body = msgspec.json.encode(header).decode()
            self._connection.execute(
                "UPDATE header SET body = ?, checksum = ?", (body, checksum(body))
            )
            self._connection.execute("DELETE FROM samples")
            self._connection.execute("DELETE FROM mixed")
            for number, sample in enumerate(samples, 1):
                self._insert(number, sample, in_situ=False)
            for number, mix in enumerate(mixed, 1):
                self._insert_mixed(number, mix)
            before, stay = done.samples + done.mixed, len(samples) + len(mixed)
            gpu_s = done.gpu_s * stay / before if before else done.gpu_s
            self._set_progress(len(samples), len(mixed), gpu_s)
        self.header = header
        return copy, before - stay

    def _copy(self) -> Path:
        """Copy the file as it is to a free name beside it."""
        names = (self.path.with_suffix(f".{n}{self.path.suffix}") for n in itertools.count(1))
        free = next(name for name in names if not name.exists())
        partial = free.with_name(f".{free.name}.partial")
        partial.unlink(missing_ok=True)
        with _translated(self.path):
            with closing(sqlite3.connect(partial)) as other:
                self._connection.backup(other)
                other.execute("PRAGMA journal_mode = DELETE")
            partial.replace(free)
        return free

    def sample_set(self) -> SampleSet:
        """Return the header with every sample so far, in the order taken.

        Raises:
            DataError: The file is damaged.
        """
        samples: dict[str, list[Sample]] = {"kernel": [], "step": []}
        known = {kernel.name for kernel in self.header.kernels}
        # One transaction, so that another process's next sample is not half seen.
        with self._transaction("DEFERRED"):
            done = self._progress()
            rows = self._connection.execute("SELECT * FROM samples ORDER BY number")
            try:
                reader = RowReader([column[0] for column in rows.description])
            except KeyError as exc:
                raise _damaged(self.path, f"its samples lack {exc}") from exc
            number = 0
            for number, row in enumerate(rows, 1):
                try:
                    scope, sample = reader.sample(number, row)
                except ValueError as exc:
                    raise _damaged(self.path, exc) from exc
                if scope == "kernel" and sample.kernel not in known:
                    raise _damaged(self.path, f"sample {number} is of no kernel of the step")
                samples[scope].append(sample)
            if number != done.samples:
                raise _damaged(
                    self.path, f"{done.samples} samples were written, {number} are there"
                )
            mixed = self._mixed(done.mixed)
            notes = self._notes()
        return msgspec.structs.replace(
            self.header,
            samples=tuple(samples["kernel"]),
            in_situ=tuple(samples["step"]),
            mixed=mixed,
            warnings=(*self.header.warnings, *notes),
        )

    def close(self) -> None:
        """Close the file, leaving one self-contained file behind."""
        with _translated(self.path):
            try:
                self._connection.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.OperationalError:
                pass  # opened read-only, or somebody else reads it: the log stays beside it
            finally:
                self._connection.close()
                if self._lock is not None:
                    self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Do all of a block or nothing."""
        with _translated(self.path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _insert(self, number: int, sample: Sample, *, in_situ: bool) -> None:
        row = row_of(number, sample, in_situ=in_situ)
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self._connection.execute(
            f"INSERT INTO samples ({names}) VALUES ({marks})",  # noqa: S608 - our own names
            tuple(row.values()),
        )

    def _insert_mixed(self, number: int, sample: MixSample) -> None:
        row = mixed_row_of(number, sample)
        self._connection.execute("INSERT INTO mixed VALUES (?, ?, ?, ?)", row)

    def _mixed(self, count: int) -> tuple[MixSample, ...]:
        """Return every measurement in company, of which so many were written."""
        names = {kernel.name for kernel in self.header.kernels}
        samples = []
        rows = self._connection.execute(
            "SELECT number, once, body, checksum FROM mixed ORDER BY number"
        )
        for number, row in enumerate(rows, 1):
            try:
                sample = mixed_sample(number, row)
            except ValueError as exc:
                raise _damaged(self.path, exc) from exc
            if sample.kernel and sample.kernel not in names:
                raise _damaged(self.path, f"measurement {number} is of no kernel of the step")
            samples.append(sample)
        if len(samples) != count:
            raise _damaged(
                self.path,
                f"{count} measurements in company were written, {len(samples)} are there",
            )
        return tuple(samples)

    def _progress(self) -> _Progress:
        """Return how far the file is."""
        row = self._connection.execute(
            "SELECT samples, mixed, gpu_s, checksum FROM progress"
        ).fetchone()
        if row is None or row[3] != checksum(*row[:3]):
            raise _damaged(self.path, "the number of its samples is not as it was written")
        return _Progress(*row[:3])

    def _set_progress(self, samples: int, mixed: int, gpu_s: float) -> None:
        values = (samples, mixed, float(gpu_s))
        self._connection.execute(
            "UPDATE progress SET samples = ?, mixed = ?, gpu_s = ?, checksum = ?",
            (*values, checksum(*values)),
        )

    def _notes(self) -> tuple[str, ...]:
        with _translated(self.path):
            rows = self._connection.execute(
                "SELECT sentence, checksum FROM notes ORDER BY rowid"
            ).fetchall()
        if any(written != checksum(sentence) for sentence, written in rows):
            raise _damaged(self.path, "a note in it is not as it was written")
        return tuple(sentence for sentence, _written in rows)


def _build(path: Path, header: SampleSet) -> None:
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
        connection.execute("INSERT INTO progress VALUES (0, 0, 0.0, ?)", (checksum(0, 0, 0.0),))
        connection.commit()
    # The log of a file of this name that was removed after a kill would be played into the new one.
    for left_over in ("-wal", "-shm"):
        path.with_name(path.name + left_over).unlink(missing_ok=True)
    partial.replace(path)


def _read_header(path: Path, connection: sqlite3.Connection) -> SampleSet:
    """Read what a file says it is.

    Raises:
        DataError: Something else, of another schema, or damaged.
    """
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
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
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as exc:
        raise DataError(f"{path} has a damaged header: {exc}", hint=_REMAKE) from exc
