"""Our own measurements in SQLite: appended one by one, resumable, safe against kill -9.

One row per measurement, never changed afterwards; a unique index makes measuring anything twice
an error. Each is committed before the next is taken (`database`). Every row carries a checksum, and
their number is kept, so that no damage reads as another measurement (`contents`).
"""

import os
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records import MixSample, Sample, SampleSet
from underclock.store.contents import Contents
from underclock.store.database import (
    build,
    connect,
    copy_aside,
    set_header,
    transaction,
    translated,
)
from underclock.store.files import check_output
from underclock.store.locking import WriterLock


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
        self._contents = Contents(path, connection)
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
            build(path, header)
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
        with translated(path):
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
        connection, header = connect(path, writable=lock is not None)
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
            done = self._contents.progress()
            self._contents.insert(done.samples + 1, sample, in_situ=in_situ)
            self._contents.set_progress(done.samples + 1, done.mixed, done.gpu_s + gpu_s)

    def append_mixed(self, sample: MixSample, *, gpu_s: float = 0.0) -> None:
        """Add one measurement in company, as `append` does.

        Args:
            sample: The measurement.
            gpu_s: The GPU's time that went into it, warming up and waiting included.

        Raises:
            MeasurementError: The file already holds it.
        """
        with self._transaction():
            done = self._contents.progress()
            self._contents.insert_mixed(done.mixed + 1, sample)
            self._contents.set_progress(done.samples, done.mixed + 1, done.gpu_s + gpu_s)

    def spend(self, gpu_s: float) -> None:
        """Add GPU time that led to no sample."""
        with self._transaction():
            done = self._contents.progress()
            self._contents.set_progress(done.samples, done.mixed, done.gpu_s + gpu_s)

    @property
    def gpu_s(self) -> float:
        """The GPU's time that everything in the file took, over all runs."""
        with translated(self.path):
            return self._contents.progress().gpu_s

    @property
    def taken(self) -> int:
        """How many measurements are in the file, alone and in company."""
        with translated(self.path):
            done = self._contents.progress()
        return done.samples + done.mixed

    def note(self, sentences: Iterable[str]) -> None:
        """Add what a reader of the samples must know; what is there already is not repeated."""
        with translated(self.path):
            known = {*self.header.warnings, *self._contents.notes()}
            for sentence in dict.fromkeys(sentences):
                if sentence not in known:
                    self._contents.add_note(sentence)

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
        copy = copy_aside(self.path, self._connection)
        with self._transaction():
            done = self._contents.progress()
            set_header(self._connection, header)
            self._contents.clear()
            for number, sample in enumerate(samples, 1):
                self._contents.insert(number, sample, in_situ=False)
            for number, mix in enumerate(mixed, 1):
                self._contents.insert_mixed(number, mix)
            before, stay = done.samples + done.mixed, len(samples) + len(mixed)
            gpu_s = done.gpu_s * stay / before if before else done.gpu_s
            self._contents.set_progress(len(samples), len(mixed), gpu_s)
        self.header = header
        return copy, before - stay

    def sample_set(self) -> SampleSet:
        """Return the header with every sample so far, in the order taken.

        Raises:
            DataError: The file is damaged.
        """
        kernels = {kernel.name for kernel in self.header.kernels}
        # One transaction, so that another process's next sample is not half seen.
        with self._transaction("DEFERRED"):
            done = self._contents.progress()
            samples = self._contents.samples(done.samples, kernels)
            mixed = self._contents.mixed(done.mixed, kernels)
            notes = self._contents.notes()
        return msgspec.structs.replace(
            self.header,
            samples=samples["kernel"],
            in_situ=samples["step"],
            mixed=mixed,
            warnings=(*self.header.warnings, *notes),
        )

    def close(self) -> None:
        """Close the file, leaving one self-contained file behind."""
        with translated(self.path):
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

    def _transaction(self, kind: str = "IMMEDIATE") -> AbstractContextManager[None]:
        return transaction(self.path, self._connection, kind)
