"""Records to files and back. Nothing here computes; everything here distrusts its input.

* `files`: where output may go, and writing it whole or not at all
* `documents`: one record as one JSON file (step, plan, validation)
* `tables`: a sweep somebody measured, as CSV
* `samples`: our own measurements, in SQLite, appended one by one
* `database`, `contents`: the SQLite file they lie in, and the rows it holds
"""

from pathlib import Path

from underclock.errors import DataError
from underclock.records import SampleSet
from underclock.store.documents import kind_of, read_document, write_document
from underclock.store.files import SQLITE_MAGIC, check_output, write_text
from underclock.store.samples import SampleFile
from underclock.store.tables import read_table

__all__ = [
    "SampleFile",
    "check_output",
    "is_samples",
    "kind_of",
    "read_document",
    "read_samples",
    "read_table",
    "write_document",
    "write_text",
]


def read_samples(path: Path) -> SampleSet:
    """Read samples from a samples file or a table, told apart by content.

    Raises:
        DataError: The file is missing, damaged, or neither.
    """
    head = _head(path)
    if head == SQLITE_MAGIC:
        return SampleFile.read(path)
    if path.suffix == ".db":
        raise DataError(
            f"{path} is not a samples file: it is no SQLite database",
            hint="make it anew with `underclock measure`",
        )
    if head[:1] in {b"{", b"["}:
        raise DataError(
            f"{path} is JSON, not samples", hint="give a samples.db or a CSV table of a sweep"
        )
    return read_table(path)


def is_samples(path: Path) -> bool:
    """Whether a file is a database, as our own measurements are.

    Raises:
        DataError: The file cannot be read.
    """
    return _head(path) == SQLITE_MAGIC


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC))
    except OSError as exc:
        raise DataError(
            f"cannot read {path}: {exc.strerror}", hint="`underclock --help` says what makes files"
        ) from exc
