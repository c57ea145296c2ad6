"""What may be given: a record, or the file that holds it, told apart by content."""

import io
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records import Plan, Record, SampleSet, Step, Validation
from underclock.records.job import Job, JobPlan
from underclock.records.latencies import DriverMoves, LatencyTable
from underclock.records.serving import ServingPlan
from underclock.store.documents import (
    kind_of,
    read_bytes,
    read_document,
    refuse_gone,
    write_document,
)
from underclock.store.files import SQLITE_MAGIC
from underclock.store.merged import is_merged, joined, read_parts
from underclock.store.samples import SampleFile
from underclock.store.tables import read_table

_R = TypeVar("_R", bound=Record)

Saved = (
    Step | SampleSet | Plan | Validation | LatencyTable | DriverMoves | Job | JobPlan | ServingPlan
)
"""What has a file of its own."""

_KINDS: Final[dict[str, type[Saved]]] = {
    "step": Step,
    "plan": Plan,
    "validation": Validation,
    "latencies": LatencyTable,
    "driver moves": DriverMoves,
    "job": Job,
    "job plan": JobPlan,
    "serving plan": ServingPlan,
}


class _Frame(Protocol):
    """A table of samples in memory, such as a pandas DataFrame, with the columns of a CSV table."""

    def to_csv(self, *, index: bool) -> str:
        """Return its rows as CSV under their names; empty for what is missing."""
        ...


SampleSource = SampleSet | str | Path | _Frame
"""Samples, a file of them, a CSV table, or a DataFrame with the columns of one."""


def as_record(source: _R | str | Path, kind: type[_R]) -> _R:
    """Return a record, reading it if a file is named."""
    return read_document(Path(source), kind) if isinstance(source, str | Path) else source


def read_samples(source: SampleSource) -> SampleSet:
    """Return samples, reading them where a samples file, a table or a DataFrame is given.

    Raises:
        DataError: The file is missing, damaged, or neither.
        UsageError: It is nothing that holds samples.
    """
    if isinstance(source, SampleSet):
        return source
    if not isinstance(source, str | Path):
        if hasattr(source, "to_csv"):
            return read_table(Path("DataFrame"), io.StringIO(source.to_csv(index=False)))
        raise UsageError(
            f"a {type(source).__name__} holds no samples",
            hint="give a SampleSet, a samples file, a CSV table or a DataFrame",
        )
    path = Path(source)
    head = read_bytes(path, most=len(SQLITE_MAGIC))
    if head == SQLITE_MAGIC:
        return joined(read_parts(path)) if is_merged(path) else SampleFile.read(path)
    if path.suffix == ".db":
        raise DataError(
            f"{path} is not a samples file: it is no SQLite database",
            hint="make it anew with `underclock measure`",
        )
    if head[:1] in {b"{", b"["}:
        refuse_gone(path, kind_of(path))
        raise DataError(
            f"{path} is JSON, not samples", hint="give a samples.db or a CSV table of a sweep"
        )
    return read_table(path)


def load(path: str | Path) -> Saved:
    """Read a file that this package wrote, or a CSV table of samples, whatever it is of.

    Raises:
        DataError: It cannot be read.
    """
    path = Path(path)
    kind = _KINDS.get(kind_of(path))
    return read_samples(path) if kind is None else read_document(path, kind)


def save(record: Saved, path: str | Path, *, force: bool = False) -> None:
    """Write a record as the command that makes it does: `load` reads it.

    Args:
        force: Whether an existing file may be replaced; samples never are.

    Raises:
        UsageError: It exists or cannot be written, or the record is no file of its own.
    """
    path = Path(path)
    if isinstance(record, SampleSet):
        with SampleFile.create(path, msgspec.structs.replace(record, windows=())) as file:
            for window in record.windows:
                file.append(window)
        return
    if type(record) not in _KINDS.values():
        raise UsageError(
            f"a {type(record).__name__} is no file of its own",
            hint=f"save {', '.join(kind.__name__ for kind in _KINDS.values())} or SampleSet",
        )
    write_document(path, record, force=force)
