"""Setting one GPU so that it can be undone, and undoing it: by who set it, or later by its journal.

Other programs may set it too: nothing is asked of them, and nothing is set to find out.

Every change goes through `Armed`, which brings to disk what an undo must know before it sets
anything. The undo puts back what we changed and nothing else: a power limit that somebody else has
set meanwhile is theirs.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from underclock.errors import (
    DataError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.settable import CLOCKS, SettableGpu, Setting, Value, enforced_profiles
from underclock.runtime.undo import protocol
from underclock.runtime.undo.journal import Journal, JournalFile, boot_id
from underclock.runtime.undo.ownership import MACHINE, OwnedError, Ownership
from underclock.runtime.undo.protocol import Act, carry_out

_RUN, _PROC = Path("/run"), Path("/proc")
_GEOPM = ("geopm", "geopm-service")  # its service's folder, of late and before
_DCGM = "nv-hostengine"


def refuse_beside_others(
    uuids: Sequence[str],
    *,
    profiles: Callable[[str], tuple[int, ...]] = enforced_profiles,
    run: Path = _RUN,
) -> None:
    """Refuse to set GPUs that another program holds.

    Args:
        uuids: Of the GPUs; inside an `nvml_session`.
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
        pid = _number_in(run / folder / "CONTROL_LOCK")
        if pid is not None:
            raise OwnedError(
                f"process {pid} has a GEOPM session that may set this machine's controls",
                hint="end that session first",
            )


def notes_on_others(proc: Path = _PROC) -> tuple[str, ...]:
    """Return what may set clocks too, of which reading cannot tell whether it does.

    Args:
        proc: Where the system tells of processes.
    """
    return tuple(
        f"DCGM's host engine runs here (process {pid}): where somebody gave it a configuration "
        "(`dcgmi config --get` shows it), it may set clocks and limits again"
        for pid in _named(_DCGM, proc)
    )


def _named(name: str, proc: Path) -> Iterator[int]:
    for path in proc.glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                yield int(path.parent.name)
        except OSError:  # it ended meanwhile
            continue


def _number_in(path: Path) -> int | None:
    """Return the number in a file; ``None`` where there is no such file, or no number in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


_TOOK_NOTHING = (NotPermittedError, NotSupportedError, UsageError)  # answers, not failures
_Hands = Mapping[Act, Callable[[], None]]


class Undone(NamedTuple):
    """What an undo did on one GPU.

    Attributes:
        uuid: Which GPU.
        done: What it put back, as sentences.
        failed: What it could not put back, as sentences; the journal stays.
        kept: Who sets this GPU now, so that it was left alone; empty for nobody.
        unreadable: Whether a journal could not be read, so that only clocks were given back.
    """

    uuid: str
    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    kept: str = ""
    unreadable: bool = False


def undo(gpu: SettableGpu, file: JournalFile) -> Undone:
    """Put back what a journal says was changed, as far as the driver lets us."""
    try:
        journal = file.read()
    except DataError as exc:  # what is certain: a lock is better given back
        done, failed = _put_back(gpu, dict.fromkeys(CLOCKS))
        said = f"{exc}; {exc.hint}"
        if failed:  # then it stays, and it is tried again
            return Undone(gpu.uuid, done, (*failed, said))
        return Undone(gpu.uuid, (*done, said), unreadable=True)
    if journal is None:
        return Undone(gpu.uuid)
    if journal.boot != boot_id():
        why = f"the journal {file.path} is of an earlier boot, which ended all that it tells of"
        return Undone(gpu.uuid, (f"{why}: it is set aside as *.earlier",))
    back = {
        setting: journal.found[setting]
        for setting, asked in journal.asked.items()
        if asked and _is_ours(gpu, journal, setting)
    }
    return Undone(gpu.uuid, *_put_back(gpu, back))


def _is_ours(gpu: SettableGpu, journal: Journal, setting: Setting) -> bool:
    """Whether what is set now may be what we set, and not somebody else after us.

    What is as found is written again: behind a daemon, our last change may still be on its way.
    """
    if setting in CLOCKS or journal.found[setting] is None:  # a driver does not tell locks
        return True
    try:
        now = gpu.read(setting)
    except UnderclockError:
        return True
    return now == journal.found[setting] or now in journal.asked[setting]


def _put_back(
    gpu: SettableGpu, values: dict[Setting, Value]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write each value, whatever becomes of the others."""
    done, failed = [], []
    for setting, value in values.items():
        try:
            gpu.write(setting, value)
        except NotSupportedError:  # this GPU never took it
            continue
        except UnderclockError as exc:
            failed.append(f"the {setting} STAYS set: {exc}")
        else:
            done.append(_sentence(setting, value))
    return tuple(done), tuple(failed)


def _sentence(setting: Setting, value: Value) -> str:
    if value is None:
        return f"{setting} given back to the driver"
    if isinstance(value, tuple):
        return f"{setting} locked at {value[0]} to {value[1]} MHz again"
    unit = " W" if setting is Setting.LIMIT else ""
    return f"{setting} put back to {value:g}{unit}"


class Armed:
    """One GPU that this process may set, because an undo is armed.

    It is made by `arm`. Every change goes through `set`.
    """

    def __init__(self, gpu: SettableGpu, file: JournalFile, lock: Ownership) -> None:
        self.gpu = gpu
        self.lock = lock
        self.mended = Undone(gpu.uuid)
        self._file = file
        self._journal: Journal | None = None
        self._accepted = False  # whether the driver took anything

    @property
    def uuid(self) -> str:
        """Which GPU."""
        return self.gpu.uuid

    @property
    def found(self) -> dict[Setting, Value]:
        """What was set before us; ``None`` where that cannot be read."""
        return dict(self._armed.found)

    @property
    def changed(self) -> frozenset[Setting]:
        """What we may have set."""
        return frozenset(self._armed.asked)

    @property
    def _armed(self) -> Journal:
        if self._journal is None:
            raise AssertionError("armed before it is used")
        return self._journal

    def mend(self) -> None:
        """Undo what one before us left behind.

        Raises:
            UsageError: It cannot be undone, so nothing may be set on top of it.
        """
        self.mended = undo(self.gpu, self._file)
        if self.mended.failed:
            raise UsageError(
                f"GPU {self.uuid} still has what an earlier run set: "
                f"{'; '.join(self.mended.failed)}",
                hint="run `underclock restore` as whoever may set this GPU",
            )

    def read_found(self) -> None:
        """Read what is set now."""
        self._journal = Journal(
            uuid=self.uuid,
            pid=os.getpid(),
            boot=boot_id(),
            found={setting: self.gpu.read(setting) for setting in Setting},
            asked={},
        )

    def set(self, setting: Setting, value: Value) -> None:
        """Set something on the GPU, once an undo knows of it; ``None`` gives a clock back.

        Raises:
            UsageError: It could not be put back.
            DeviceError: The driver refuses.
            DataError: The journal cannot be written; nothing was set.
        """
        setting = Setting(setting)
        if setting not in CLOCKS and self._armed.found[setting] is None:
            raise UsageError(f"will not set the {setting}: what it is now cannot be read")
        put: _Hands = {Act.SET: lambda: self.gpu.write(setting, value)}
        if self._armed.covers(setting, value):
            carry_out((Act.SET,), put)
        elif value is not None:  # else there is nothing of ours to give back
            following = self._armed.with_asked(setting, value)
            try:
                carry_out(protocol.CHANGE, {**self._journal_hands(following), **put})
            except _TOOK_NOTHING:
                self._forget_refused()
                raise
        self._accepted = True

    def _forget_refused(self) -> None:
        """Take the journal back where the driver took nothing at all of what it says."""
        if not self._accepted:
            carry_out(protocol.REFUSED, {Act.REMOVE_JOURNAL: self._file.remove})
            self._journal = self._armed._replace(asked={})

    def end(self) -> Undone:
        """Undo, and give the lock back; where the undo fails, the journal stays."""
        hands = {Act.RELEASE_LOCK: self.lock.release}
        return give_back(protocol.END, self.gpu, self._file.path.parent, hands)

    def _journal_hands(self, following: Journal) -> _Hands:
        """Return what brings a journal to disk.

        Its acts raise `DataError` where the disk is full or gone; nothing was set then.
        """

        def placed() -> None:
            self._file.place()
            self._journal = following

        return {
            Act.WRITE_JOURNAL: lambda: self._file.write(following),
            Act.SYNC_JOURNAL: self._file.sync,
            Act.PLACE_JOURNAL: placed,
            Act.SYNC_FOLDER: self._file.sync_folder,
        }


def arm(gpu: SettableGpu, folder: Path, *, share_lock: Callable[[Ownership], None]) -> Armed:
    """Make one GPU ready to be set; what an earlier run left behind is undone first.

    Args:
        gpu: Which one.
        folder: Where runs keep their files.
        share_lock: Gives the watcher the lock, and returns when it watches.

    Raises:
        OwnedError: Somebody else sets it.
        UsageError: What an earlier run left cannot be undone.
    """
    file = JournalFile(folder, gpu.uuid)
    armed: Armed | None = None

    def take() -> None:
        nonlocal armed
        lock = Ownership.take(folder, gpu.uuid, machine=_above(gpu))
        lock.name(os.getpid())
        armed = Armed(gpu, file, lock)

    def taken() -> Armed:
        if armed is None:
            raise AssertionError("the lock comes first")
        return armed

    hands: _Hands = {
        Act.TAKE_LOCK: take,
        Act.UNDO: lambda: taken().mend(),
        Act.REMOVE_JOURNAL: file.remove,
        Act.READ_FOUND: lambda: taken().read_found(),
        Act.SHARE_LOCK: lambda: share_lock(taken().lock),
    }
    try:
        carry_out(protocol.ARM, hands)
    except BaseException:
        if armed is not None:
            armed.lock.release()
        raise
    return taken()


def _above(gpu: SettableGpu) -> Path | None:
    """Return where root's locks are, if whoever sets this GPU is not root nor asks its service."""
    if os.geteuid() == 0:
        return None
    from underclock.hw.leased import LeasedGpu  # noqa: PLC0415 - no watcher needs it

    return None if isinstance(gpu, LeasedGpu) else MACHINE


def give_back(
    acts: Sequence[Act],
    gpu: SettableGpu,
    folder: Path,
    hands: _Hands,
) -> Undone:
    """Undo by the journal as one of the protocol's sequences; where that fails, it stays.

    Whatever fails on this GPU is told and not raised: there may be others to undo.

    Args:
        acts: Which sequence.
        gpu: Which GPU.
        folder: Where runs keep their files.
        hands: What the sequence needs besides the undo: to take and release the lock.
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
