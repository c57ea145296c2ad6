"""One record as one JSON file, with a schema number that guards against the future."""

from pathlib import Path
from typing import TypeVar

import msgspec

from underclock.errors import DataError
from underclock.records import SCHEMA, Plan, Record, Step, Validation
from underclock.records.latencies import LatencyTable
from underclock.store.files import write_text

_R = TypeVar("_R", bound=Record)

_MADE_BY: dict[type[Record], str] = {
    Step: "underclock trace",
    Plan: "underclock plan",
    Validation: "underclock validate",
    LatencyTable: "underclock latency",
}


class _Header(msgspec.Struct):
    """The one field read before anything else."""

    schema: int = 0


def write_document(path: Path, record: Record, *, force: bool = False) -> None:
    """Write a record as indented JSON.

    Raises:
        UsageError: The file exists or cannot be written.
    """
    body = msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
    write_text(path, body + "\n", force=force)


def read_document(path: Path, kind: type[_R]) -> _R:
    """Read a record of a known kind.

    Raises:
        DataError: The file is missing, damaged, of another kind or of a newer version.
    """
    made_by = f"make it anew with `{_MADE_BY[kind]}`"
    try:
        body = path.read_bytes()
    except OSError as exc:
        raise DataError(f"cannot read {path}: {exc.strerror}", hint=made_by) from exc
    try:
        schema = msgspec.json.decode(body, type=_Header).schema
        if schema > SCHEMA:
            raise DataError(
                f"{path} has schema {schema}; this version reads up to {SCHEMA}",
                hint="upgrade underclock, or make the file anew with this version",
            )
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        noun = "".join(f" {c.lower()}" if c.isupper() else c for c in kind.__name__).strip()
        raise DataError(f"{path} is not a readable {noun} file: {exc}", hint=made_by) from exc
