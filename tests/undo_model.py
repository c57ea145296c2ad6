"""The undo protocol taken apart: each interleaving of its acts with deaths, stops, host crashes.

The acts are those that the code does, as `acts_of` records them. The world around them is the worst
possible: a process may end or be stopped between any two acts, a setter may be refused, and when
the host crashes the GPU keeps its clocks while only what was synced is sure to be on disk. Or the
machine starts anew: the GPU is clean, and a journal is of an earlier boot.

A second user writes whatever he may write, at any time: into his own folder, which `restore --all`
reads. So each act there finds anything that there is to find, which stands for every moment at
which he could have written it: lies, rubbish, what hangs or fails its reader, a lock that names
anybody.

States are canonical (a dead process has no memory), so all of them are visited, whatever the number
of crashes.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from types import FrameType
from typing import Any, NamedTuple


class Act(StrEnum):
    """One step that a process takes; between any two of them it may die."""

    TAKE_LOCK = "take the GPU's lock, or end"
    SHARE_LOCK = "give the watchdog the same lock, and wait until it watches"
    READ_FOUND = "read what is set on the GPU"
    WRITE_JOURNAL = "write the journal beside its place"
    SYNC_JOURNAL = "sync its contents"
    PLACE_JOURNAL = "rename it into its place"
    SYNC_FOLDER = "sync its name"
    SET = "set something on the GPU"
    END_CONTROLLER = "kill the controller and wait until it has ended"
    UNDO = "put back what the journal says was changed"
    REMOVE_JOURNAL = "remove the journal"
    RELEASE_LOCK = "give the lock back"
    BECOME_OWNER = "give up all rights but those of whose files come next"
    RESTORE_OWN = "restore by one's own folder, GPU by GPU"
    RESTORE_THEIRS = "restore by another user's folder, GPU by GPU"


_JOURNAL = (Act.WRITE_JOURNAL, Act.SYNC_JOURNAL, Act.PLACE_JOURNAL, Act.SYNC_FOLDER)
_MEND = (Act.UNDO, Act.REMOVE_JOURNAL)  # nothing where there is no journal

ARM = (Act.TAKE_LOCK, *_MEND, Act.READ_FOUND, Act.SHARE_LOCK)
CHANGE = (*_JOURNAL, Act.SET)  # a change that the journal covers already is its last act alone
REFUSED = (Act.REMOVE_JOURNAL,)  # where the driver took nothing of this run: nothing to undo
END = (*_MEND, Act.RELEASE_LOCK)
TAKE_OVER = (Act.END_CONTROLLER, *_MEND, Act.RELEASE_LOCK)
RESTORE = (Act.TAKE_LOCK, *_MEND, Act.RELEASE_LOCK)
THEIRS = (Act.BECOME_OWNER, Act.RESTORE_THEIRS)  # in a process that others do not wait for
RESTORE_ALL = (Act.RESTORE_OWN, *THEIRS)

FOUND, OURS, LIE = 0, 1, 2
SETTINGS = (0, 1)
AS_FOUND = (FOUND, FOUND)
LIVE, STOPPED, DEAD, NEVER = "live", "stopped", "dead", "never"
TORN = "torn"  # a journal of which only the name came to disk
EARLIER = "earlier"  # one of an earlier boot


class Sequences(NamedTuple):
    """The protocol, or a wrong one that must be found out."""

    arm: tuple[Act, ...] = ARM
    change: tuple[Act, ...] = CHANGE
    refused: tuple[Act, ...] = REFUSED
    end: tuple[Act, ...] = END
    take_over: tuple[Act, ...] = TAKE_OVER
    restore: tuple[Act, ...] = RESTORE
    restore_theirs: tuple[Act, ...] = RESTORE
    restore_all: tuple[Act, ...] = RESTORE_ALL
    applies_earlier: bool = False  # journals of another boot
    clocks_only: bool = False  # whether lies may give clocks back, and set nothing


class Written(NamedTuple):
    """What a journal says."""

    found: tuple[int, int]
    asked: tuple[int, ...]


class Disk(NamedTuple):
    """The journal's files: as processes see them, and as they are after a host crash."""

    new: Written | None = None
    new_synced: bool = False
    placed: Written | str | None = None
    placed_synced: bool = True
    durable: Written | str | None = None

    def after_crash(self) -> set[Written | str | None]:
        """What may be there: the synced one, or the one whose name was not synced yet."""
        seen = self.placed if self.placed is None or self.placed_synced else TORN
        return {self.durable, seen}


Todo = tuple[tuple[Act, int, bool], ...]
"""Acts, the setting that each is about, and whether it is on the hostile user's files."""


class Process(NamedTuple):
    """What it does next, and whether it shares the lock."""

    status: str = NEVER
    todo: Todo = ()
    lock: bool = False
    refused: bool = False  # whether the driver did not let it undo
    is_root: bool = True
    is_over: bool = False  # whether it has seen to what root left

    @property
    def exists(self) -> bool:
        return self.status is LIVE or self.status is STOPPED


class Group(NamedTuple):
    """A controller with its watchdog, or a restore (which is a controller that changes nothing)."""

    controller: Process
    watchdog: Process = Process()
    found: tuple[int, int] = AS_FOUND
    asked: tuple[int, ...] = ()
    arming: bool = True
    armed: bool = False
    accepted: bool = False  # whether the driver took anything

    @property
    def has_lock(self) -> bool:
        return any(one.lock and one.exists for one in self[:2])

    @property
    def lives(self) -> bool:
        return LIVE in {self.controller.status, self.watchdog.status}

    @property
    def exists(self) -> bool:
        return self.controller.exists or self.watchdog.exists


class State(NamedTuple):
    gpu: tuple[int, int] = AS_FOUND
    disk: Disk = Disk()
    groups: tuple[Group, ...] = ()


class Violation(Exception):  # noqa: N818 - what the search looks for
    """The protocol leaves something behind."""


def explore(sequences: Sequences) -> tuple[int, int]:
    """Visit every state; return how many there are and how deep the farthest lies.

    Raises:
        Violation: In one of them something is left behind; the message is the way there.
    """
    start = State()
    came: dict[State, tuple[State, str] | None] = {start: None}
    depths = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        try:
            check(state)
            for name, following in moves(state, sequences):
                if following not in came:
                    came[following] = (state, name)
                    depths[following] = depths[state] + 1
                    queue.append(following)
        except Violation as exc:
            raise Violation(f"{exc}, after: {'; '.join(_way(came, state))}") from exc
    return len(came), max(depths.values())


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names = []
    step = came[state]
    while step is not None:
        names.append(step[1])
        step = came[step[0]]
    return names[::-1]


def check(state: State) -> None:
    """Hold a state to what must be true of every one."""
    changed = {setting for setting in SETTINGS if state.gpu[setting] != FOUND}
    for journal in ({state.disk.placed} | state.disk.after_crash()) if changed else ():
        if not isinstance(journal, Written) or not changed <= set(journal.asked):
            raise Violation("what is set is not in the journal")
        if any(journal.found[setting] != FOUND for setting in changed):
            raise Violation("the journal takes ours for what was found")
    writers = [
        one
        for group in state.groups
        for one in group[:2]
        if one.exists and one.todo and one.todo[0][0] in {Act.SET, Act.UNDO} and not one.todo[0][2]
    ]
    if len(writers) > 1:
        raise Violation("two processes may write at once")


def moves(state: State, sequences: Sequences) -> Iterator[tuple[str, State]]:
    """Yield everything that can happen next."""
    for at, group in enumerate(state.groups):
        yield from _acts(state, at, group, sequences)
        yield from _faults(state, at, group)
    yield from _starts(state, sequences)
    if state.groups or state.disk.placed != state.disk.durable:
        for journal in state.disk.after_crash():
            yield "host crashes", State(state.gpu, Disk(placed=journal, durable=journal))
            earlier = Disk(placed=journal and EARLIER, durable=journal and EARLIER)
            yield "machine starts anew", State(AS_FOUND, earlier)


def _starts(state: State, sequences: Sequences) -> Iterator[tuple[str, State]]:
    """A run or a restore begins; whoever is stopped and keeps the lock alone is killed."""
    if len(state.groups) > 1:
        return
    both = _all(sequences)
    if any(group.has_lock and group.lives for group in state.groups):
        todo = tuple(step for step in both if step[2])  # it finds its own lock taken, and goes on
        restore = Group(Process(LIVE, todo, is_over=True), arming=False)
        yield "restore begins beside", _with(state, len(state.groups), restore)
        return
    left = tuple(group for group in state.groups if not group.has_lock)
    for name, todo in (("run", _todo(sequences.arm)), ("restore", both)):
        lock = todo[0][0] is Act.TAKE_LOCK and not todo[0][2]  # who finds it taken ends at once
        group = Group(Process(LIVE, todo[1:] if lock else todo, lock=lock), arming=name == "run")
        yield f"{name} begins", _with(state._replace(groups=left), len(left), group)


def _todo(acts: tuple[Act, ...], setting: int = 0, *, theirs: bool = False) -> Todo:
    """Take the undo apart into its setters; crashes come between them."""
    steps: list[tuple[Act, int, bool]] = []
    for act in acts:
        apart = SETTINGS if act is Act.UNDO and not theirs else (setting,)
        steps.extend((act, one, theirs) for one in apart)
    return tuple(steps)


def _all(sequences: Sequences) -> Todo:
    """Take `restore --all` apart."""
    steps: Todo = ()
    for act in sequences.restore_all:
        if act is Act.RESTORE_OWN:
            steps += _todo(sequences.restore)
        elif act is Act.RESTORE_THEIRS:
            steps += _todo(sequences.restore_theirs, theirs=True)
        else:
            steps += ((act, 0, True),)
    return steps


def _with(state: State, at: int, group: Group) -> State:
    """Put a group in its place, forgetting what is gone."""
    if group.controller.status == DEAD:
        group = Group(Process(DEAD), group.watchdog, arming=False)
    others = state.groups[:at] + state.groups[at + 1 :]
    if not group.exists:
        return state._replace(groups=others)
    return state._replace(groups=tuple(sorted((*others, group))) if others else (group,))


def _acts(state: State, at: int, group: Group, sequences: Sequences) -> Iterator[tuple[str, State]]:
    controller, watchdog = group[:2]
    if controller.status == LIVE:
        if controller.todo:
            yield from _step(state, at, group, "controller", sequences)
        elif group.armed:
            for setting in SETTINGS:
                acts = (Act.SET,) if setting in group.asked else sequences.change
                todo = controller._replace(todo=_todo(acts, setting))
                yield f"change {setting}", _with(state, at, group._replace(controller=todo))
            todo = controller._replace(todo=_todo(sequences.end))
            yield "end", _with(state, at, Group(todo, watchdog, arming=False))
            if watchdog.status in {STOPPED, DEAD}:
                new = Process(LIVE, lock=True)
                yield "another watchdog", _with(state, at, group._replace(watchdog=new))
        else:
            yield "controller ends", _with(state, at, group._replace(controller=Process(DEAD)))
    if watchdog.status == LIVE:
        if watchdog.todo:
            yield from _step(state, at, group, "watchdog", sequences)
        elif not watchdog.lock:
            yield "watchdog ends", _with(state, at, group._replace(watchdog=Process(DEAD)))
        elif controller.status != LIVE:
            todo = watchdog._replace(todo=_todo(sequences.take_over))
            yield "watchdog takes over", _with(state, at, group._replace(watchdog=todo))


@dataclass
class _Doing:
    """One act of one process, and what it changes.

    Attributes:
        state: Before it.
        who: Which process of the group.
        setting: Which setting the act is about.
        process: The process after it.
        group: Its group after it, but for the process.
        gpu: The GPU after it.
        disk: The disk after it.
    """

    state: State
    who: str
    setting: int
    process: Process
    group: Group
    gpu: tuple[int, int]
    disk: Disk
    applies_earlier: bool

    def become_owner(self) -> None:
        self.process = self.process._replace(is_root=False)

    def take_lock(self) -> None:
        if any(one.has_lock for one in self.state.groups):
            self.process = Process(DEAD)
        else:
            self.process = self.process._replace(lock=True)

    def share_lock(self) -> None:
        self.group = self.group._replace(watchdog=Process(LIVE, lock=True))

    def read_found(self) -> None:
        self.group = self.group._replace(found=self.gpu)

    def write_journal(self) -> None:
        new = Written(self.group.found, _asked(self.group, self.setting))
        self.disk = self.disk._replace(new=new, new_synced=False)

    def sync_journal(self) -> None:
        self.disk = self.disk._replace(new_synced=True)

    def place_journal(self) -> None:
        disk = self.disk
        self.disk = Disk(placed=disk.new, placed_synced=disk.new_synced, durable=disk.durable)
        self.group = self.group._replace(asked=_asked(self.group, self.setting))

    def sync_folder(self) -> None:
        durable = self.disk.placed if self.disk.placed_synced else TORN
        self.disk = self.disk._replace(durable=durable)

    def set(self) -> None:
        if self.group.watchdog.status == NEVER:
            raise Violation("something is set before anybody watches")
        self.gpu = _put(self.gpu, self.setting, OURS)
        self.group = self.group._replace(accepted=True)

    def end_controller(self) -> None:
        self.group = self.group._replace(controller=Process(DEAD))

    def undo(self) -> None:
        journal = self.disk.placed
        if not self.process.is_root:
            return
        if journal is EARLIER and self.applies_earlier:
            self.gpu = _put(self.gpu, self.setting, LIE)
        if isinstance(journal, Written) and self.setting in journal.asked:
            self.gpu = _put(self.gpu, self.setting, journal.found[self.setting])

    def remove_journal(self) -> None:
        self.disk = Disk(durable=self.disk.durable)
        self.group = self.group._replace(asked=())

    def release_lock(self) -> None:
        if not self.process.refused and (self.gpu != AS_FOUND or self.disk.placed is not None):
            raise Violation("it ends before everything is as found")
        over = self.process._replace(lock=False, is_over=True)
        self.process = over if self.process.todo else Process(DEAD)


def _step(
    state: State, at: int, group: Group, who: str, sequences: Sequences
) -> Iterator[tuple[str, State]]:
    """Do the next act of a process; an undo may be refused instead."""
    process: Process = getattr(group, who)
    (act, setting, theirs), *rest = process.todo
    name = f"{who}: {act}"
    if theirs and act is not Act.BECOME_OWNER:
        yield from _on_theirs(state, at, group, sequences)
        return
    if act is Act.UNDO and state.disk.placed is not None:
        yield f"{name}, refused", _with(state, at, _refused(group, who))
    if act is Act.SET:
        todo = () if group.accepted else _todo(sequences.refused)
        yield f"{name}, refused", _with(state, at, _of(group, who, process._replace(todo=todo)))
    left = process._replace(todo=tuple(rest))
    earlier = sequences.applies_earlier
    doing = _Doing(state, who, setting, left, group, state.gpu, state.disk, earlier)
    getattr(doing, act.name.lower())()
    after = _of(doing.group, who, doing.process)
    if not rest and after.arming and who == "controller":
        after = after._replace(arming=False, armed=True)
    yield name, _with(state._replace(gpu=doing.gpu, disk=doing.disk), at, after)


def _on_theirs(
    state: State, at: int, group: Group, sequences: Sequences
) -> Iterator[tuple[str, State]]:
    """Do the next act on what the hostile user wrote, whatever that is.

    Raises:
        Violation: Root does by his word what it may not.
    """
    process = group.controller
    (act, setting, _), *rest = process.todo
    name = f"on theirs: {act}"
    if act is Act.TAKE_LOCK and process.is_root:
        raise Violation("somebody is killed because a hostile lock names him")
    if act is Act.UNDO:
        if not process.is_over:
            raise Violation("a hostile file that hangs its reader keeps root's own from its undo")
        lies = (FOUND,) if sequences.clocks_only else (FOUND, LIE)
        for value in lies if process.is_root else ():
            owned = any(one.has_lock for one in state.groups)
            if owned and value is FOUND and state.gpu[setting] != FOUND:
                raise Violation("a hostile journal takes clocks off a live run")
            yield f"{name} {value}", state._replace(gpu=_put(state.gpu, setting, value))
    following = process._replace(todo=tuple(rest)) if rest else Process(DEAD)
    yield name, _with(state, at, group._replace(controller=following))
    yield f"{name}, fails or hangs", _with(state, at, group._replace(controller=Process(DEAD)))


def _of(group: Group, who: str, process: Process) -> Group:
    """Return a group of which one process has changed."""
    if who == "controller":
        return group._replace(controller=process)
    return group._replace(watchdog=process)


def _asked(group: Group, setting: int) -> tuple[int, ...]:
    return tuple(sorted({*group.asked, setting}))


def _put(gpu: tuple[int, int], setting: int, value: int) -> tuple[int, int]:
    return (value, gpu[1]) if setting == 0 else (gpu[0], value)


def _refused(group: Group, who: str) -> Group:
    """Go on without removing the journal; one that was arming ends."""
    process: Process = getattr(group, who)
    if any(act is Act.READ_FOUND for act, _, _ in process.todo):
        return _of(group, who, Process(DEAD))
    kept = tuple(step for step in process.todo[1:] if step[0] is not Act.REMOVE_JOURNAL)
    return _of(group, who, process._replace(todo=kept, refused=True))


def _faults(state: State, at: int, group: Group) -> Iterator[tuple[str, State]]:
    for who in ("controller", "watchdog"):
        process: Process = getattr(group, who)
        if not process.exists or not process.is_root:
            continue  # one without rights fails or hangs in `_on_theirs`, and nobody waits for it
        yield f"{who} killed", _with(state, at, _of(group, who, Process(DEAD)))
        other = STOPPED if process.status == LIVE else LIVE
        switched = _of(group, who, process._replace(status=other))
        yield f"{who} {other}", _with(state, at, switched)


_CALLS = {
    ("_locked", "flock"): Act.TAKE_LOCK,
    ("write", "write"): Act.WRITE_JOURNAL,
    ("replace", "replace"): Act.PLACE_JOURNAL,
    ("kill", "pidfd_send_signal"): Act.END_CONTROLLER,
    ("unlink", "unlink"): Act.REMOVE_JOURNAL,
    ("release", "close"): Act.RELEASE_LOCK,
}
"""By the names of a function of ours and of the call to the system that it does."""


def acts_of(action: Callable[[], object]) -> tuple[Act, ...]:
    """Return what the code does, in its order; of several acts of one kind in a row the first."""
    acts: list[Act | None] = []

    def record(frame: FrameType, event: str, function: Any) -> None:
        code, caller = frame.f_code, frame.f_back.f_code.co_name if frame.f_back else ""
        if event == "c_call" and function is os.fsync:
            acts.append(Act.SYNC_FOLDER if "folder" in frame.f_locals else Act.SYNC_JOURNAL)
        elif event == "c_call":
            acts.append(_CALLS.get((code.co_name, function.__name__)))
        elif event == "call" and code.co_qualname.endswith("Gpu.read"):
            acts.append(Act.READ_FOUND)
        elif event == "call" and code.co_qualname.endswith("Gpu.write"):
            acts.append(Act.UNDO if caller == "_put_back" else Act.SET)
        elif event == "call" and code.co_name == "share_lock":
            acts.append(Act.SHARE_LOCK)

    sys.setprofile(record)
    try:
        action()
    finally:
        sys.setprofile(None)
    return tuple(act for act, _ in groupby(filter(None, acts)))
