"""Setting one GPU so that it can be undone, and undoing it: by its owner, or later by its journal.

Every change goes through `GuardedGpu`, which brings to disk what an undo needs before it sets
anything. The undo puts back what we changed and nothing else. Other programs that set GPUs are
found by reading alone.

A journal is a small file that is replaced whole: written under another name, synced, renamed, and
the folder synced. So there is an old one, a new one or none, never half of one. Locks end with the
machine's run, so a journal names its boot and is void in any other. One that is void or cannot be
read is set aside under another name, for people.
"""

import contextlib
import json
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from underclock.errors import (
    DataError,
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.interrupts import interrupts_deferred
from underclock.hw.nvml_calls import Lock, SettableGpu, Value, enforced_profiles, settable_gpu
from underclock.runtime.undo.ownership import (
    CAREFULLY,
    MACHINE,
    OwnedError,
    Ownership,
    read_trusted,
    runtime_folder,
    say,
)
from underclock.runtime.undo.watchdog_process import BEAT_S, WatchdogLostError, WatchdogProcess
from underclock.units import Domain

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
    found: Mapping[Domain, Lock]
    changed: tuple[Domain, ...]  # what we may have set


class JournalFile:
    """The journal of one GPU, as a file in the folder where runs keep theirs."""

    def __init__(self, folder: Path, uuid: str) -> None:
        self.path = folder / f"{uuid}.journal"
        self._uuid = uuid
        self._aside = ""  # under which ending it is to be set aside; empty where it can be used

    def read(self) -> Journal | None:
        """Return what is on disk, if anything.

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
    found = {Domain(name): _lock(value) for name, value in dict(document["found"]).items()}
    changed = tuple(Domain(name) for name in list(document["changed"]))
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


_TOOK_NOTHING = (NotPermittedError, NotSupportedError, UsageError)  # answers, not failures
_JOURNAL = re.compile(r"([\w-]+)\.journal", re.ASCII)
_RUN, _PROC = Path("/run"), Path("/proc")
_GEOPM = ("geopm", "geopm-service")  # its service's folder, of late and before
_DCGM = "nv-hostengine"


def refuse_foreign_control(
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


def foreign_control_notes(proc: Path = _PROC) -> tuple[str, ...]:
    """Return programs that may set clocks too, where reading does not show whether they do."""
    notes = []
    for path in proc.glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == _DCGM:
                notes.append(
                    f"DCGM's host engine runs here (process {path.parent.name}): where a user "
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
    kept: str = ""  # who sets this GPU now, so that it was left alone; empty where free
    # whether a journal could not be read, so that only clocks were given back
    unreadable: bool = False


def undo(gpu: SettableGpu, file: JournalFile) -> Undone:
    """Put back what a journal says was changed, as far as the driver lets us."""
    try:
        journal = file.read()
    except DataError as exc:  # what is certain: a lock is better given back
        done, failed = _put_back(gpu, dict.fromkeys(Domain))
        said = f"{exc}; {exc.hint}"
        if failed:  # then it stays, and it is tried again
            return Undone(gpu.uuid, done, (*failed, said))
        return Undone(gpu.uuid, (*done, said), unreadable=True)
    if journal is None:
        return Undone(gpu.uuid)
    if journal.boot != boot_id():
        why = f"the journal {file.path} is of an earlier boot, which ended all that it lists"
        return Undone(gpu.uuid, (f"{why}: it is set aside as *.earlier",))
    back = {setting: journal.found[setting] for setting in journal.changed}
    return Undone(gpu.uuid, *_put_back(gpu, back))


def _put_back(
    gpu: SettableGpu, values: Mapping[Domain, Lock]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write each value, though one fails; return what was done, and what failed."""
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

    `set` is the one way to set it. The order of locks, journal and driver calls is what the
    exhaustive model of the undo explores (tests/undo_model).

    Args:
        folder: Where runs keep their files.
        share_lock: Gives the watchdog the lock, and returns when it watches.

    Attributes:
        recovered: What was undone of an earlier run.

    Raises:
        OwnedError: Another process sets it.
        UsageError: What an earlier run left cannot be undone.
    """

    def __init__(
        self, gpu: SettableGpu, folder: Path, *, share_lock: Callable[[Ownership], None]
    ) -> None:
        self.uuid = gpu.uuid
        self._gpu, self._folder = gpu, folder
        self._file = JournalFile(folder, gpu.uuid)
        self._accepted = False  # whether the driver took anything
        self.lock = Ownership.take(folder, gpu.uuid, machine=None if os.geteuid() == 0 else MACHINE)
        with contextlib.ExitStack() as refused:
            refused.callback(self.lock.release)
            self.lock.name(os.getpid())
            self.recovered = undo(gpu, self._file)
            if self.recovered.failed:
                raise UsageError(
                    f"GPU {self.uuid} still has what an earlier run set: "
                    f"{'; '.join(self.recovered.failed)}",
                    hint="run `underclock restore` as a user who may set this GPU",
                )
            self._file.remove()
            found = {setting: gpu.read(setting) for setting in Domain}
            share_lock(self.lock)
            refused.pop_all()
        self._journal = Journal(gpu.uuid, os.getpid(), boot_id(), found=found, changed=())

    def set(self, setting: Domain, value: Value) -> None:
        """Set something on the GPU, once the journal has it; ``None`` gives a clock back.

        Raises:
            DeviceError: The driver refuses.
            DataError: The journal cannot be written; nothing was set.
        """
        if setting not in self._journal.changed:
            if value is None:
                return  # there is nothing of ours to give back
            following = self._journal._replace(changed=(*self._journal.changed, setting))
            self._file.write(following)
            self._journal = following
        try:
            self._gpu.write(setting, value)
        except _TOOK_NOTHING:
            if not self._accepted:
                self._file.remove()
                self._journal = self._journal._replace(changed=())
            raise
        self._accepted = True

    def end(self) -> Undone:
        """Undo, and give the lock back; where the undo fails, the journal stays."""
        undone = give_back(self._gpu, self._folder)
        self.lock.release()
        return undone


@contextlib.contextmanager
def guarded(uuid: Callable[[], str]) -> Iterator[Callable[[Domain, Value], None]]:
    """Yield what sets a GPU from this process, armed as it is first called; undo after the block.

    A watchdog undoes where this process is killed. A process that was forked off inside the block
    leaves the undo to its parent.

    Args:
        uuid: Reads which GPU it is; nothing does before something is set.
    """
    guard = _ProcessGuard(uuid)
    try:
        yield guard.set
    finally:
        with interrupts_deferred():
            guard.end()


class _ProcessGuard:
    """A guarded GPU and its watchdog, which a thread replaces where that is killed."""

    def __init__(self, uuid: Callable[[], str]) -> None:
        self._uuid, self._pid = uuid, os.getpid()
        self._armed: tuple[GuardedGpu, WatchdogProcess, threading.Thread] | None = None
        self._one = threading.Lock()  # who speaks with the watchdog, or sets
        self._over = False

    def set(self, setting: Domain, value: Value) -> None:
        if self._armed is None and value is None:
            return  # there is nothing of ours to give back
        gpu, watchdog, _ = self._armed or self._arm()
        with self._one:
            watchdog.ready()
            gpu.set(setting, value)

    def _arm(self) -> tuple[GuardedGpu, WatchdogProcess, threading.Thread]:
        folder = runtime_folder()
        watchdog = WatchdogProcess(folder, beats=False)
        try:
            gpu = GuardedGpu(settable_gpu(self._uuid()), folder, share_lock=watchdog.share)
        except BaseException:
            watchdog.close()
            raise
        for line in gpu.recovered.done:
            say(f"an earlier run had left something set: {line}")
        thread = threading.Thread(target=self._keep, args=(watchdog,), daemon=True)
        self._armed = gpu, watchdog, thread
        thread.start()
        return self._armed

    def _keep(self, watchdog: WatchdogProcess) -> None:
        """Replace a watchdog that ends, until `end`; where none lives, the next set fails."""
        with contextlib.suppress(WatchdogLostError):
            while True:
                select.select([watchdog], [], [], BEAT_S)
                with self._one:
                    if self._over:
                        return
                    watchdog.poll(time.monotonic())

    def end(self) -> None:
        if self._armed is None or os.getpid() != self._pid:
            return
        gpu, watchdog, thread = self._armed
        with self._one:
            self._over = True
            undone = gpu.end()
        if not undone.failed:  # else the watchdog tries again after our end
            watchdog.close()
            thread.join(2.0 * BEAT_S)
            return
        words = "; ".join(undone.failed)
        if (error := sys.exception()) is None:
            raise DeviceError(words, hint="it is tried again for 15 s; then `underclock restore`")
        error.add_note(words)


def give_back(gpu: SettableGpu, folder: Path) -> Undone:
    """Undo by the journal, and remove it; where that fails, it stays.

    What fails on this GPU is returned and not raised, for more GPUs may follow.
    """
    file = JournalFile(folder, gpu.uuid)
    try:
        undone = undo(gpu, file)
        if not undone.failed:
            file.remove()
    except DataError as exc:
        return undone._replace(failed=(f"{exc}; {exc.hint}",))
    except Exception as exc:  # noqa: BLE001 - more GPUs are undone whatever this driver does
        return Undone(gpu.uuid, failed=(f"the undo failed: {type(exc).__name__}: {exc}",))
    return undone


def left_behind(folder: Path) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs with a journal in a folder: set, and not given back yet."""
    names = (_JOURNAL.fullmatch(path.name) for path in folder.glob("*.journal"))
    return tuple(sorted(name[1] for name in names if name))


def restore(
    folder: Path, uuids: Collection[str], open_gpu: Callable[[str], SettableGpu]
) -> tuple[Undone, ...]:
    """Undo what was left behind on some GPUs, if anything was, by the journals in a folder.

    It is for when controller and watchdog have both ended. A GPU that fails does not stop the rest.
    """
    undone = []
    for uuid in left_behind(folder):
        if uuid not in uuids:
            continue
        try:
            gpu, lock = open_gpu(uuid), Ownership.take(folder, uuid)
            try:
                undone.append(give_back(gpu, folder))
            finally:
                lock.release()
        except OwnedError as exc:  # a run that goes on: there is nothing to undo
            undone.append(Undone(uuid, kept=str(exc)))
        except UnderclockError as exc:
            failed = f"{exc}; {exc.hint}" if exc.hint else str(exc)
            undone.append(Undone(uuid, failed=(failed,)))
    return tuple(undone)
