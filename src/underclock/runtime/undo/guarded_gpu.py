"""Setting one GPU so that it can be undone, and undoing it: by who set it, or later by its journal.

Every change goes through `GuardedGpu`, which brings to disk what an undo must know before it sets
anything. The undo puts back what we changed and nothing else. Other programs that set GPUs are
found by reading alone.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from underclock.errors import (
    DataError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.settable import Lock, SettableGpu, Setting, Value, enforced_profiles
from underclock.runtime.undo import protocol
from underclock.runtime.undo.journal import Journal, JournalFile, boot_id
from underclock.runtime.undo.ownership import MACHINE, OwnedError, Ownership
from underclock.runtime.undo.protocol import Act, carry_out

_TOOK_NOTHING = (NotPermittedError, NotSupportedError, UsageError)  # answers, not failures
_JOURNAL = re.compile(r"([\w-]+)\.journal", re.ASCII)
_RUN, _PROC = Path("/run"), Path("/proc")
_GEOPM = ("geopm", "geopm-service")  # its service's folder, of late and before
_DCGM = "nv-hostengine"
_Hands = Mapping[Act, Callable[[], None]]


def refuse_beside_others(
    uuids: Sequence[str],
    *,
    profiles: Callable[[str], tuple[int, ...]] = enforced_profiles,
    run: Path = _RUN,
) -> None:
    """Refuse to set GPUs that another program holds; inside an `nvml_session`.

    Args:
        profiles: Reads which workload power profiles are in force.
        run: Where services keep what they know of themselves.

    Raises:
        OwnedError: One does; the error names it.
    """
    for uuid in uuids:
        numbers = profiles(uuid)
        if numbers:
            raise OwnedError(
                f"GPU {uuid} has workload power profile {', '.join(map(str, numbers))} in force, "
                "which sets its clocks and limits",
                hint="see `nvidia-smi power-profiles --list`; clear what is requested first",
            )
    for folder in _GEOPM:
        try:
            pid = int((run / folder / "CONTROL_LOCK").read_text())
        except (OSError, ValueError):
            continue
        raise OwnedError(
            f"process {pid} has a GEOPM session that may set this machine's controls",
            hint="end that session first",
        )


def notes_on_others(proc: Path = _PROC) -> tuple[str, ...]:
    """Return what may set clocks too, of which reading cannot tell whether it does."""
    notes = []
    for path in proc.glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == _DCGM:
                notes.append(
                    f"DCGM's host engine runs here (process {path.parent.name}): where somebody "
                    "gave it a configuration (`dcgmi config --get` shows it), it may set clocks "
                    "and limits again"
                )
        except OSError:  # it ended meanwhile
            continue
    return tuple(notes)


class Undone(NamedTuple):
    """What an undo did on one GPU."""

    uuid: str  # which GPU
    done: tuple[str, ...] = ()  # what it put back, as sentences
    failed: tuple[str, ...] = ()  # what it could not put back, as sentences; the journal stays
    kept: str = ""  # who sets this GPU now, so that it was left alone; empty for nobody
    # whether a journal could not be read, so that only clocks were given back
    unreadable: bool = False


def undo(gpu: SettableGpu, file: JournalFile) -> Undone:
    """Put back what a journal says was changed, as far as the driver lets us."""
    try:
        journal = file.read()
    except DataError as exc:  # what is certain: a lock is better given back
        done, failed = _put_back(gpu, dict.fromkeys(Setting))
        said = f"{exc}; {exc.hint}"
        if failed:  # then it stays, and it is tried again
            return Undone(gpu.uuid, done, (*failed, said))
        return Undone(gpu.uuid, (*done, said), unreadable=True)
    if journal is None:
        return Undone(gpu.uuid)
    if journal.boot != boot_id():
        why = f"the journal {file.path} is of an earlier boot, which ended all that it tells of"
        return Undone(gpu.uuid, (f"{why}: it is set aside as *.earlier",))
    back = {setting: journal.found[setting] for setting in journal.changed}
    return Undone(gpu.uuid, *_put_back(gpu, back))


def _put_back(
    gpu: SettableGpu, values: Mapping[Setting, Lock]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write each value, whatever becomes of the others; return what was done, and what failed."""
    done, failed = [], []
    for setting, value in values.items():
        try:
            gpu.write(setting, value)
        except NotSupportedError:  # this GPU never took it
            continue
        except UnderclockError as exc:
            failed.append(f"the {setting} STAYS set: {exc}")
        else:
            again = value and f"locked at {value[0]} to {value[1]} MHz again"
            done.append(f"{setting} {again or 'given back to the driver'}")
    return tuple(done), tuple(failed)


class GuardedGpu:
    """One GPU that this process may set; what an earlier run left behind is undone first.

    Every change goes by `set`.

    Args:
        folder: Where runs keep their files.
        share_lock: Gives the watchdog the lock, and returns when it watches.

    Attributes:
        mended: What was undone of an earlier run.

    Raises:
        OwnedError: Somebody else sets it.
        UsageError: What an earlier run left cannot be undone.
    """

    def __init__(
        self, gpu: SettableGpu, folder: Path, *, share_lock: Callable[[Ownership], None]
    ) -> None:
        self.uuid = gpu.uuid
        self.lock = Ownership(gpu.uuid)  # nothing is taken yet
        self.mended = Undone(gpu.uuid)
        self._gpu = gpu
        self._folder = folder
        self._file = JournalFile(folder, gpu.uuid)
        self._journal = Journal(gpu.uuid, os.getpid(), boot_id(), found={}, changed=())
        self._accepted = False  # whether the driver took anything
        hands: _Hands = {
            Act.TAKE_LOCK: self._take_lock,
            Act.UNDO: self._mend,
            Act.REMOVE_JOURNAL: self._file.remove,
            Act.READ_FOUND: self._read_found,
            Act.SHARE_LOCK: lambda: share_lock(self.lock),
        }
        try:
            carry_out(protocol.ARM, hands)
        except BaseException:
            self.lock.release()
            raise

    def _take_lock(self) -> None:
        self.lock = Ownership.take(
            self._folder, self.uuid, machine=None if os.geteuid() == 0 else MACHINE
        )
        self.lock.name(os.getpid())

    def _mend(self) -> None:
        self.mended = undo(self._gpu, self._file)
        if self.mended.failed:
            raise UsageError(
                f"GPU {self.uuid} still has what an earlier run set: "
                f"{'; '.join(self.mended.failed)}",
                hint="run `underclock restore` as whoever may set this GPU",
            )

    def _read_found(self) -> None:
        found = {setting: self._gpu.read(setting) for setting in Setting}
        self._journal = self._journal._replace(found=found)

    def set(self, setting: Setting, value: Value) -> None:
        """Set something on the GPU, once an undo knows of it; ``None`` gives a clock back.

        Raises:
            DeviceError: The driver refuses.
            DataError: The journal cannot be written; nothing was set.
        """
        setting = Setting(setting)
        following = self._journal._replace(changed=(*self._journal.changed, setting))

        def place() -> None:
            self._file.place()
            self._journal = following

        hands: _Hands = {
            Act.WRITE_JOURNAL: lambda: self._file.write(following),
            Act.SYNC_JOURNAL: self._file.sync,
            Act.PLACE_JOURNAL: place,
            Act.SYNC_FOLDER: self._file.sync_folder,
            Act.SET: lambda: self._gpu.write(setting, value),
        }
        if setting in self._journal.changed:
            carry_out((Act.SET,), hands)
        elif value is not None:  # else there is nothing of ours to give back
            try:
                carry_out(protocol.CHANGE, hands)
            except _TOOK_NOTHING:
                if not self._accepted:
                    carry_out(protocol.REFUSED, {Act.REMOVE_JOURNAL: self._file.remove})
                    self._journal = self._journal._replace(changed=())
                raise
        self._accepted = True

    def end(self) -> Undone:
        """Undo, and give the lock back; where the undo fails, the journal stays."""
        hands = {Act.RELEASE_LOCK: self.lock.release}
        return give_back(protocol.END, self._gpu, self._folder, hands)


def give_back(acts: Sequence[Act], gpu: SettableGpu, folder: Path, hands: _Hands) -> Undone:
    """Undo by the journal as one of the protocol's sequences; where that fails, it stays.

    Whatever fails on this GPU is told and not raised: there may be others to undo.
    """
    file = JournalFile(folder, gpu.uuid)
    undone = Undone(gpu.uuid)

    def put_back() -> None:
        nonlocal undone
        try:
            undone = undo(gpu, file)
        except Exception as exc:  # noqa: BLE001 - others are undone whatever this driver does
            undone = Undone(gpu.uuid, failed=(f"the undo failed: {type(exc).__name__}: {exc}",))

    def remove() -> None:
        nonlocal undone
        try:
            if not undone.failed:
                file.remove()
        except DataError as exc:
            undone = undone._replace(failed=(f"{exc}; {exc.hint}",))

    carry_out(acts, {Act.UNDO: put_back, Act.REMOVE_JOURNAL: remove, **hands})
    return undone


def left_behind(folder: Path) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that somebody in a folder has set and not given back yet."""
    names = (_JOURNAL.fullmatch(path.name) for path in folder.glob("*.journal"))
    return tuple(sorted(name[1] for name in names if name))


def restore(
    folder: Path, uuids: Collection[str], open_gpu: Callable[[str], SettableGpu]
) -> tuple[Undone, ...]:
    """Undo what was left behind on some GPUs, if anything was, by the journals in a folder.

    It is for when controller and watchdog have both ended. Where one GPU's fails, the others go on.
    """
    left = [uuid for uuid in left_behind(folder) if uuid in uuids]
    return tuple(_restored(folder, uuid, open_gpu) for uuid in left)


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
