"""Undoing what is left behind once conductor and watcher have both ended."""

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from underclock.errors import UnderclockError
from underclock.hw.settable import SettableGpu
from underclock.runtime.undo import protocol
from underclock.runtime.undo.armed import Undone, give_back
from underclock.runtime.undo.ownership import OwnedError, Ownership
from underclock.runtime.undo.protocol import Act

_JOURNAL = re.compile(r"([\w-]+)\.journal", re.ASCII)


def left_behind(folder: Path) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that somebody in a folder has set and not given back yet."""
    names = (_JOURNAL.fullmatch(path.name) for path in folder.glob("*.journal"))
    return tuple(sorted(name[1] for name in names if name))


def restore_left(
    folder: Path, uuids: Collection[str], open_gpu: Callable[[str], SettableGpu]
) -> tuple[Undone, ...]:
    """Undo what was left behind on some GPUs, if anything was; arguments as of `restore`."""
    left = set(left_behind(folder)) & set(uuids)
    return restore(folder, sorted(left), open_gpu)


def restore(
    folder: Path, uuids: Sequence[str], open_gpu: Callable[[str], SettableGpu]
) -> tuple[Undone, ...]:
    """Undo by the journals in a folder, GPU by GPU; where one fails, the others go on.

    Args:
        folder: Where runs keep their files.
        uuids: Which GPUs.
        open_gpu: Opens one.
    """
    return tuple(_restored(folder, uuid, open_gpu) for uuid in uuids)


def _restored(folder: Path, uuid: str, open_gpu: Callable[[str], SettableGpu]) -> Undone:
    locks: list[Ownership] = []
    hands = {
        Act.TAKE_LOCK: lambda: locks.append(Ownership.take(folder, uuid)),
        Act.RELEASE_LOCK: lambda: locks.pop().release(),
    }
    try:
        return give_back(protocol.RESTORE, open_gpu(uuid), folder, hands)
    except OwnedError as exc:  # a run that goes on: there is nothing to mend
        return Undone(uuid, kept=str(exc))
    except UnderclockError as exc:
        return Undone(uuid, failed=(f"{exc}; {exc.hint}" if exc.hint else str(exc),))
    finally:
        for lock in locks:
            lock.release()
