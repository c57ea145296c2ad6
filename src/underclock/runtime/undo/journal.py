"""What was found on a GPU and what we set there, on disk before the first change.

A journal is a small file that is replaced whole: written under another name, synced, renamed, and
the folder synced. So there is an old one, a new one or none, never half of one. What is set ends
with the machine's run, so a journal names the boot that it is of, and is worth nothing in another.
One that cannot be read, or is worth nothing, is set aside under another name, for people.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from underclock.errors import DataError
from underclock.hw.settable import Lock, Setting
from underclock.runtime.undo.ownership import CAREFULLY, read_trusted

_KIND, _VERSION = "underclock journal", 3
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOST_MHZ = 1e5  # that a GPU may have
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)


def boot_id() -> str:
    """Return what this boot of the machine is called."""
    return _BOOT.read_text().strip()


class Journal(NamedTuple):
    """What an undo needs to know of one GPU."""

    uuid: str  # which GPU
    pid: int  # of the controller that sets it
    boot: str  # the boot of the machine in which
    # between which MHz each clock was locked before us; None where that cannot be read
    found: Mapping[Setting, Lock]
    changed: tuple[Setting, ...]  # what we may have set


class JournalFile:
    """The journal of one GPU, as a file in the folder where runs keep theirs."""

    def __init__(self, folder: Path, uuid: str) -> None:
        self.path = folder / f"{uuid}.journal"
        self._uuid = uuid
        self._aside = ""  # under which ending it is to be set aside; empty where it can be used

    def read(self) -> Journal | None:
        """Return what is on disk; ``None`` where there is none.

        Raises:
            DataError: It is not a journal.
        """
        self._aside = ""
        try:
            journal = _journal(json.loads(read_trusted(self.path)), self._uuid)
        except FileNotFoundError:
            return None
        except _UNREADABLE as exc:
            self._aside = "unreadable"
            why = (isinstance(exc, OSError) and exc.strerror) or f"{exc}"[:100]
            raise DataError(
                f"{self.path} is not a journal of Underclock ({why}): it is set aside as "
                f"*.{self._aside}, and clocks are given back",
                hint="see `nvidia-smi -q -d CLOCK`",
            ) from exc
        if journal.boot != boot_id():
            self._aside = "earlier"
        return journal

    def write(self, journal: Journal) -> None:
        """Bring it to disk: written under another name, synced, renamed, the name synced.

        Raises:
            DataError: The disk is full, or the folder cannot be written.
        """
        new = self.path.with_name(f".{self.path.name}.{os.urandom(4).hex()}")
        document = {"kind": _KIND, "version": _VERSION, **journal._asdict()}
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFULLY, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(document))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as exc:
            raise DataError(
                f"cannot bring the journal {self.path} to disk, so nothing is set: {exc.strerror}",
                hint="make room there, or name another folder with UNDERCLOCK_RUNTIME_DIR",
            ) from exc

    def remove(self) -> None:
        """Forget it; harmless where there is none. One that was read and is of no use is set aside.

        Raises:
            DataError: It stays where it is.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                if self._aside:
                    name = f"{self.path.name}.{os.urandom(4).hex()}.{self._aside}"
                    self.path.rename(self.path.with_name(name))
                else:
                    self.path.unlink()
        except OSError as exc:
            raise DataError(
                f"cannot remove the journal {self.path}: {exc.strerror}",
                hint="remove it, once `underclock restore` says that nothing else failed",
            ) from exc
        for path in self.path.parent.glob(f".{self.path.name}.*"):
            with contextlib.suppress(OSError):
                path.unlink()  # of a process that ended while it wrote


def _journal(document: Any, uuid: str) -> Journal:  # noqa: ANN401 - whatever JSON there was
    if (document["kind"], document["version"]) != (_KIND, _VERSION):
        raise ValueError(f"it is a {document['kind']!r} of version {document['version']!r}")
    if document["uuid"] != uuid:
        raise ValueError(f"it is of GPU {document['uuid']!r}")
    found = {Setting(name): _lock(value) for name, value in dict(document["found"]).items()}
    changed = tuple(Setting(name) for name in list(document["changed"]))
    if unread := set(changed) - found.keys():
        raise ValueError(f"it sets the {', '.join(unread)} without what was found")
    pid, boot = document["pid"], document["boot"]
    if not (isinstance(pid, int) and isinstance(boot, str)):
        raise TypeError(f"it is of process {pid!r} of boot {boot!r}")
    return Journal(uuid=uuid, pid=pid, boot=boot, found=found, changed=changed)


def _lock(given: Any) -> Lock:  # noqa: ANN401 - whatever JSON there was
    if given is None:
        return None
    low, high = given
    for mhz in (low, high):
        if isinstance(mhz, bool) or not isinstance(mhz, int):
            raise TypeError(f"{mhz!r} MHz is no clock")
        if not 0 <= mhz <= _MOST_MHZ:
            raise ValueError(f"{mhz} MHz is no clock")
    return low, high
