"""What was found on a GPU and what we set there, on disk before the first change.

A journal is a small file that is replaced whole: written beside its place, synced, renamed, and
the folder synced. So there is an old one, a new one or none, never half of one. Where it lies in
memory (``/run``), it ends with the machine, and so do the clocks.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from underclock.errors import DataError
from underclock.hw.settable import CLOCKS, Setting, Value

_KIND, _VERSION = "underclock journal", 1


class Journal(NamedTuple):
    """What an undo needs to know of one GPU.

    Attributes:
        uuid: Which GPU.
        pid: Of the conductor that sets it.
        found: What was set before us; ``None`` where that cannot be read.
        asked: Every value that we may have set, so that what is set now can be told to be ours.
    """

    uuid: str
    pid: int
    found: Mapping[Setting, Value]
    asked: Mapping[Setting, tuple[Value, ...]]

    def covers(self, setting: Setting, value: Value) -> bool:
        """Whether an undo knows already that this may be set.

        A driver does not tell locks, so of them it only matters that there is one.
        """
        asked = self.asked.get(setting, ())
        return value in asked or (bool(asked) and setting in CLOCKS)

    def with_asked(self, setting: Setting, value: Value) -> "Journal":
        """Return it with one more value that we may have set."""
        asked = dict(self.asked)
        asked[setting] = (*asked.get(setting, ()), value)
        return self._replace(asked=asked)


class JournalFile:
    """The journal of one GPU, as a file.

    Args:
        folder: Where runs keep their files.
        uuid: Which GPU.
    """

    def __init__(self, folder: Path, uuid: str) -> None:
        self.path = folder / f"{uuid}.journal"
        self._new = folder / f".{uuid}.journal.new"
        self._uuid = uuid

    def read(self) -> Journal | None:
        """Return what is on disk; ``None`` where there is none.

        Raises:
            DataError: It is not a journal.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise DataError(f"cannot read the journal {self.path}: {exc.strerror}") from exc
        with os.fdopen(descriptor, "rb") as file:
            text = file.read()
        try:
            return _journal(json.loads(text), self._uuid)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise DataError(
                f"{self.path} is not a journal of Underclock: {exc}",
                hint="after `nvidia-smi -rgc -rmc` on this GPU, remove the file",
            ) from exc

    def write(self, journal: Journal) -> None:
        """Write it beside its place.

        Raises:
            DataError: The disk is full, or the folder cannot be written.
        """
        with self._on_disk():
            self._new.write_text(json.dumps(_document(journal)))

    def sync(self) -> None:
        """Bring to disk what was written beside its place."""
        with self._on_disk():
            _sync(self._new)

    def place(self) -> None:
        """Put what was written into its place."""
        with self._on_disk():
            self._new.replace(self.path)

    def sync_folder(self) -> None:
        """Bring its name to disk."""
        with self._on_disk():
            _sync(self.path.parent)

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise DataError(
                f"cannot bring the journal {self.path} to disk, so nothing is set: {exc.strerror}",
                hint="make room there, or name another folder with UNDERCLOCK_RUNTIME_DIR",
            ) from exc

    def remove(self) -> None:
        """Forget it; harmless where there is none."""
        for path in (self.path, self._new):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _document(journal: Journal) -> dict[str, Any]:
    return {
        "kind": _KIND,
        "version": _VERSION,
        "uuid": journal.uuid,
        "pid": journal.pid,
        "found": dict(journal.found),
        "asked": {setting: list(values) for setting, values in journal.asked.items()},
    }


def _journal(document: dict[str, Any], uuid: str) -> Journal:
    if (document["kind"], document["version"]) != (_KIND, _VERSION):
        raise ValueError(f"it is a {document['kind']!r} of version {document['version']}")
    if document["uuid"] != uuid:
        raise ValueError(f"it is of GPU {document['uuid']}")
    return Journal(
        uuid=uuid,
        pid=int(document["pid"]),
        found={Setting(name): _value(value) for name, value in document["found"].items()},
        asked={
            Setting(name): tuple(_value(value) for value in values)
            for name, values in document["asked"].items()
        },
    )


def _value(value: float | list[int] | None) -> Value:
    if isinstance(value, list):
        low, high = value
        return int(low), int(high)
    return None if value is None else float(value)
