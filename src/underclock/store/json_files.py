"""One record as one JSON file, which says first what kind it is and of which schema.

Functions take a record or the path of its file.
"""

import contextlib
import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol, TypeVar, get_args

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records import SCHEMAS, Plan, Record, SampleSet, Step, Validation, check_schema
from underclock.records.common import number_found
from underclock.records.job import Job, JobPlan
from underclock.records.latencies import DriverMoves, LatencyTable
from underclock.records.serving import ServingPlan
from underclock.store.database import SQLITE_MAGIC, read_bytes, write_text
from underclock.store.samples import SampleFile, is_merged, joined, read_parts
from underclock.store.tables import read_table

_R = TypeVar("_R", bound=Record)

_LATENCY = dict.fromkeys(("latencies", "driver moves"), "latency")
_MADE_BY: Final = {"step": "trace", "validation": "validate", "job": "job", **_LATENCY}
"""Commands by the kind of file that they make; plans of all kinds are `plan`'s."""
GONE: Final[dict[str, str]] = {
    "fit": "it holds constants of a GPU, which `underclock plan` fits by itself",
    "study": "it holds numbers of the paper's study, and `underclock paper --json` prints them",
    "score": "it says what a plan costs on a full table, and `python studies/score.py` prints that",
    "T4": "it holds results of an autotuner, and a CSV table of its rows is read",
    "Kernel Tuner cache": "it holds results of a tuner, and a CSV table of its rows is read",
}
"""Kinds of files that went: what each held, and what does that now."""
_FOREIGN: Final = {b'"invalidity"': "T4", b'"tune_params_keys"': "Kernel Tuner cache"}
"""Kinds of files that do not name their kind, each by what it holds."""

_A_TABLE = "give a samples.db or a CSV table of a sweep; a JSON list of its rows is one too"
_MOST_READ = 200_000  # bytes: the clocks of thousands of instructions are lines of a number each
_GREATEST = 1e30  # of any number: what is computed from a few of them stays finite


class _Head(msgspec.Struct):
    """What is read before anything else; the first schemas had no ``kind``."""

    kind: str = ""
    schema: int = 0


def write_document(path: Path, record: Record, *, force: bool = False) -> None:
    """Write a record as JSON; indented where a person may read it."""
    body = msgspec.json.encode(record)
    if len(body) < _MOST_READ:
        body = msgspec.json.format(body, indent=2)
    write_text(path, body.decode() + "\n", force=force, begins="{")


def kind_of(path: Path) -> str:
    """Return which kind a file is: ``samples`` of a database, else what a document says it is.

    It is empty where that is nothing. `DataError`: the file cannot be read at all.
    """
    head = read_bytes(path, hint="`underclock tune` makes such files", most=len(SQLITE_MAGIC))
    if head == SQLITE_MAGIC:
        return "samples"
    if not head.lstrip().startswith(b"{"):
        return ""
    body, kind = read_bytes(path), ""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kind = msgspec.json.decode(body, type=_Head).kind
    return kind or next((kind for mark, kind in _FOREIGN.items() if mark in body), "")


def read_document(path: Path, kind: type[_R]) -> _R:
    """Read a record of a known kind.

    Raises:
        DataError: The file is missing, damaged, of another kind or of another schema.
    """
    noun = str(kind.__struct_config__.tag)
    remake = f"make it anew with `underclock {_MADE_BY.get(noun, 'plan')}`"
    body = read_bytes(path, hint=remake)
    if body.startswith(SQLITE_MAGIC):
        hint = f"`underclock plan` takes samples; {remake}"
        raise DataError(f"{path} is not a readable {noun} file: it is a samples file", hint=hint)
    try:
        head = msgspec.json.decode(body, type=_Head)
        refuse_gone(path, head.kind)
        if head.kind in SCHEMAS and head.kind != noun:
            words = f"{path} is a {head.kind} file, where a {noun} file is needed"
            raise DataError(words, hint=remake)
        if head.schema < 1 or (head.kind != noun and head.schema >= SCHEMAS[noun]):
            raise msgspec.ValidationError("it does not say what kind of file it is")
        check_schema(path, noun, head.schema, remake)
        record = msgspec.json.decode(body, type=kind)
        if isinstance(record, Step) and not record.order:
            raise msgspec.ValidationError("its kernels are launched in no order")
        for where, number in _numbers(msgspec.to_builtins(record), "$"):
            if not abs(number) <= _GREATEST:
                raise msgspec.ValidationError(f"{number} is beyond all use - at `{where}`")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        words = f"{exc}{number_found(body, str(exc))}"
        raise DataError(f"{path} is not a readable {noun} file: {words}", hint=remake) from exc
    return record


def refuse_gone(path: Path, kind: str) -> None:
    """Refuse a file of a kind that went by `DataError`."""
    if kind in GONE:
        raise DataError(f"{path} is a {kind} file, which is no longer read: {GONE[kind]}")


def _numbers(value: object, where: str) -> Iterator[tuple[str, float]]:
    """Yield every number in plain data and where it stands."""
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        yield where, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{where}[{index}]")


_Document = Step | Plan | Validation | LatencyTable | DriverMoves | Job | JobPlan | ServingPlan
Saved = _Document | SampleSet
"""What has a file of its own."""

_KINDS: Final = {str(kind.__struct_config__.tag): kind for kind in get_args(_Document)}


class _Frame(Protocol):
    """A table of samples in memory, such as a pandas DataFrame, with the columns of a CSV table."""

    def to_csv(self, *, index: bool) -> str:
        """Return its rows as CSV under their names; empty for what is missing."""


SampleSource = SampleSet | str | Path | _Frame
"""Samples, a file of them, a CSV table, or a DataFrame with the columns of one."""


def as_record(source: _R | str | Path, kind: type[_R]) -> _R:
    """Return a record, reading it if a file is named."""
    return read_document(Path(source), kind) if isinstance(source, str | Path) else source


def read_samples(
    source: SampleSource, *, confirm: Callable[[str], bool] | None = None
) -> SampleSet:
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
        hint = "give a SampleSet, a samples file, a CSV table or a DataFrame"
        raise UsageError(f"a {type(source).__name__} holds no samples", hint=hint)
    path = Path(source)
    head = read_bytes(path, most=len(SQLITE_MAGIC))
    if head == SQLITE_MAGIC:
        return joined(read_parts(path)) if is_merged(path) else SampleFile.read(path)
    if path.suffix == ".db":
        hint = "make it anew with `underclock measure`"
        raise DataError(f"{path} is not a samples file: it is no SQLite database", hint=hint)
    if head[:1] == b"[":
        # A table whose rows are objects in a JSON list as CSV.
        try:
            rows = msgspec.json.decode(
                read_bytes(path), type=list[dict[str, str | int | float | None]]
            )
            if any(row.keys() != rows[0].keys() for row in rows):
                raise msgspec.ValidationError("not all rows have the same columns")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise DataError(
                f"{path} is JSON, and no list of a table's rows: {exc}", hint=_A_TABLE
            ) from exc
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row))
        writer.writeheader()
        writer.writerows(rows)
        text.seek(0)
        return read_table(path, text, confirm=confirm)
    if head[:1] == b"{":
        refuse_gone(path, kind_of(path))
        raise DataError(f"{path} is JSON, not samples", hint=_A_TABLE)
    return read_table(path, confirm=confirm)


def load(path: str | Path, *, yes: bool = False) -> Saved:
    """Read a file that this package wrote, or a table of samples, whatever it is of.

    Args:
        yes: Whether columns that another program names are taken for what they seem to be.

    Raises:
        DataError: It cannot be read.
    """
    path = Path(path)
    kind = _KINDS.get(kind_of(path))
    return read_samples(path, confirm=lambda _: yes) if kind is None else read_document(path, kind)


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
        hint = f"save {', '.join(kind.__name__ for kind in _KINDS.values())} or SampleSet"
        raise UsageError(f"a {type(record).__name__} is no file of its own", hint=hint)
    write_document(path, record, force=force)
