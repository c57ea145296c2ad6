"""Our own measurements in SQLite: appended one by one, resumable, safe against kill -9.

One row per measurement, never changed afterwards; a unique index makes measuring anything twice
an error. Write-ahead logging keeps every committed row when the process dies at any instant.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from underclock.errors import DataError, MeasurementError, UsageError
from underclock.records import SCHEMA, Clocks, Sample, SampleSet
from underclock.store.files import check_output

_APPLICATION_ID = 0x756E6463  # "undc", in the file's header

_TABLES = """
CREATE TABLE header (body TEXT NOT NULL);
CREATE TABLE samples (
    scope TEXT NOT NULL CHECK (scope IN ('kernel', 'step')),
    kernel TEXT NOT NULL,
    asked_core_mhz INTEGER,
    asked_mem_mhz INTEGER,
    repeat INTEGER NOT NULL,
    time_s REAL NOT NULL,
    energy_j REAL NOT NULL,
    observed_core_mhz INTEGER,
    observed_mem_mhz INTEGER,
    window_s REAL,
    ticks INTEGER,
    temperature_c REAL,
    throttle_reasons INTEGER,
    sm_utilisation REAL,
    tensor_utilisation REAL,
    fp32_utilisation REAL,
    dram_utilisation REAL
);
CREATE TABLE notes (sentence TEXT NOT NULL);
CREATE UNIQUE INDEX once ON samples
    (scope, kernel, ifnull(asked_core_mhz, 0), ifnull(asked_mem_mhz, 0), repeat);
"""

_PLAIN = (
    "kernel",
    "repeat",
    "time_s",
    "energy_j",
    "window_s",
    "ticks",
    "temperature_c",
    "throttle_reasons",
)
_PARTS = ("sm", "tensor", "fp32", "dram")


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
        raise DataError(
            f"{path} is damaged or not a samples file: {exc}",
            hint="make it anew with `underclock measure`",
        ) from exc


class SampleFile:
    """An open samples file. Use as a context manager.

    Attributes:
        path: Where it is.
        header: What all its samples share; a `SampleSet` without samples.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, header: SampleSet) -> None:
        self.path = path
        self.header = header
        self._connection = connection

    @classmethod
    def create(cls, path: Path, header: SampleSet) -> Self:
        """Start a file.

        Raises:
            UsageError: The path exists or cannot be written.
        """
        check_output(path)
        # Built aside and moved into place, so that a kill at any instant leaves a whole file or
        # none under the name that a later run resumes.
        partial = path.with_name(f".{path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            with closing(sqlite3.connect(partial)) as connection:
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
                connection.executescript(_TABLES)
                body = msgspec.json.encode(header).decode()
                connection.execute("INSERT INTO header VALUES (?)", (body,))
                connection.commit()
            # The log of a file of this name that was removed after a kill would be played into
            # the new one.
            for left_over in ("-wal", "-shm"):
                path.with_name(path.name + left_over).unlink(missing_ok=True)
            partial.replace(path)
        except (OSError, sqlite3.Error) as exc:
            raise UsageError(f"cannot write {path}: {exc}") from exc
        return cls.open(path, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Self:
        """Open an existing file.

        Raises:
            DataError: Missing, damaged, of a newer version, or something else altogether.
        """
        mode = "rw" if writable else "ro"
        with _translated(path):
            if not path.is_file():
                raise DataError(f"cannot read {path}: no such file")
            uri = f"{path.resolve().as_uri()}?mode={mode}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            try:
                header = cls._read_header(path, connection)
                if writable:
                    _bring_up_to_date(connection)
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, header)

    @classmethod
    def read(cls, path: Path) -> SampleSet:
        """Read everything in a file.

        Raises:
            DataError: As `open`.
        """
        with cls.open(path, writable=False) as file:
            return file.sample_set()

    @staticmethod
    def _read_header(path: Path, connection: sqlite3.Connection) -> SampleSet:
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise DataError(
                f"{path} is a database, but not a samples file",
                hint="make one with `underclock measure`",
            )
        schema = connection.execute("PRAGMA user_version").fetchone()[0]
        if schema > SCHEMA:
            raise DataError(
                f"{path} has schema {schema}; this version reads up to {SCHEMA}",
                hint="upgrade underclock, or measure anew with this version",
            )
        (body,) = connection.execute("SELECT body FROM header").fetchone() or (None,)
        try:
            return msgspec.json.decode(body or "", type=SampleSet)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise DataError(
                f"{path} has a damaged header: {exc}",
                hint="make it anew with `underclock measure`",
            ) from exc

    def append(self, sample: Sample, *, in_situ: bool = False) -> None:
        """Add one measurement; from here on it survives this process.

        Args:
            sample: The measurement.
            in_situ: Whether it is of the whole step rather than an isolated kernel.

        Raises:
            MeasurementError: The file already holds it.
        """
        observed, utilisation = sample.observed or Clocks(), sample.utilisation
        row: dict[str, object] = {"scope": "step" if in_situ else "kernel"}
        row |= {name: getattr(sample, name) for name in _PLAIN}
        for name in ("core_mhz", "mem_mhz"):
            row[f"asked_{name}"] = getattr(sample.asked, name)
            row[f"observed_{name}"] = getattr(observed, name)
        if utilisation is not None:
            row |= {f"{part}_utilisation": getattr(utilisation, part) for part in _PARTS}
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        with _translated(self.path):
            self._connection.execute(
                f"INSERT INTO samples ({names}) VALUES ({marks})",  # noqa: S608 - our own names
                tuple(row.values()),
            )

    def note(self, sentences: Iterable[str]) -> None:
        """Add what a reader of the samples must know; what is there already is not repeated."""
        known = {*self.header.warnings, *self._notes()}
        with _translated(self.path):
            for sentence in dict.fromkeys(sentences):
                if sentence not in known:
                    self._connection.execute("INSERT INTO notes VALUES (?)", (sentence,))

    def _notes(self) -> tuple[str, ...]:
        with _translated(self.path):
            try:
                rows = self._connection.execute("SELECT sentence FROM notes ORDER BY rowid")
            except sqlite3.OperationalError:  # of a version that took none, and opened to read
                return ()
            return tuple(row[0] for row in rows)

    def sample_set(self) -> SampleSet:
        """Return the header with every sample so far, in the order taken.

        Raises:
            DataError: The file is damaged.
        """
        samples: dict[str, list[Sample]] = {"kernel": [], "step": []}
        with _translated(self.path):
            rows = self._connection.execute("SELECT * FROM samples ORDER BY rowid")
            names = [column[0] for column in rows.description]
            for row in rows:
                cells = dict(zip(names, row, strict=True))
                samples[cells.pop("scope")].append(self._sample(cells))
        return msgspec.structs.replace(
            self.header,
            samples=tuple(samples["kernel"]),
            in_situ=tuple(samples["step"]),
            warnings=(*self.header.warnings, *self._notes()),
        )

    def _sample(self, cells: dict[str, object]) -> Sample:
        clocks = {
            of: {name: cells[f"{of}_{name}"] for name in ("core_mhz", "mem_mhz")}
            for of in ("asked", "observed")
        }
        # A file of a version that read no counters has no column for them.
        parts = {part: cells.get(f"{part}_utilisation") for part in _PARTS}
        whole: dict[str, object] = {
            "asked": clocks["asked"],
            "observed": clocks["observed"] if any(clocks["observed"].values()) else None,
            "utilisation": None if None in parts.values() else parts,
        }
        try:
            # What is left over is a column of somebody else's, and refused as one.
            left = {n: v for n, v in cells.items() if not n.endswith(("_mhz", "_utilisation"))}
            return msgspec.convert(whole | left, Sample)
        except (msgspec.ValidationError, ValueError) as exc:
            raise DataError(
                f"{self.path} holds an impossible sample: {exc}",
                hint="make it anew with `underclock measure`",
            ) from exc

    def close(self) -> None:
        """Close the file, leaving one self-contained file behind."""
        with _translated(self.path):
            try:
                self._connection.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.OperationalError:
                pass  # opened read-only, or somebody else reads it: the log stays beside it
            finally:
                self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Give a file of an older version the columns and the table to go on with."""
    found = {row[1] for row in connection.execute("PRAGMA table_info(samples)")}
    for part in _PARTS:
        if f"{part}_utilisation" not in found:
            connection.execute(f"ALTER TABLE samples ADD COLUMN {part}_utilisation REAL")
    connection.execute("CREATE TABLE IF NOT EXISTS notes (sentence TEXT NOT NULL)")
