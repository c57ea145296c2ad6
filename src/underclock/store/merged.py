"""Samples files of several boards, or of several runs on one, in one file; and apart again.

Every file stands in the merged one as it was, byte for byte: its provenance, its GPU time and what
it notes stay with its windows. What several files hold of one thing are repeats.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from underclock.errors import DataError, UsageError
from underclock.records import SCHEMAS, SampleSet, Window, check_schema
from underclock.records.measured import renumbered
from underclock.store.database import MERGED_ID, damaged, translated
from underclock.store.files import SQLITE_MAGIC, check_output
from underclock.store.samples import SampleFile

_AT: Final = slice(68, 72)  # where SQLite keeps it
_REMAKE: Final = "merge the files again with `underclock merge`"


def is_merged(path: Path) -> bool:
    """Whether a file is one that was merged of others."""
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
    """Refuse what does not go together, by name."""
    if not sets:
        raise UsageError("there is nothing to merge", hint="name the files of all GPUs")
    name, first = sets[0]
    seen: dict[str | None, dict[Window, Path]] = {}
    for path, one in sets:
        if one.gpu.uuid is None or one.is_table:
            raise DataError(
                f"{path} does not say which board its samples are of",
                hint="only what `underclock measure` took on a GPU can be merged",
            )
        if unlike := first.unlike(one):
            noun, mine, others = unlike
            raise DataError(
                f"{name} and {path} are of two {noun}: {mine} and {others}",
                hint="samples are merged where only the boards differ",
            )
        known = seen.setdefault(one.gpu.uuid, {})
        alike = {msgspec.structs.replace(window, repeat=0) for window in one.windows}
        if twice := next(iter(alike & known.keys()), None):
            raise DataError(
                f"{known[twice]} and {path} hold the same measurements",
                hint="name each file once; simulated GPUs that are alike need seeds of their own",
            )
        known.update(dict.fromkeys(alike, path))


def _bodies(path: Path) -> Iterable[bytes]:
    """Return each file in a merged one as it was, or one that is not merged as it is."""
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
    """Read a file that lies in another."""
    with SampleFile.of_body(path, body) as file:
        return file.possible()
