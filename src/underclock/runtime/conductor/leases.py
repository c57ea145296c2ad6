"""One GPU that `underclock serve` leases: who may have it, who has it, and a thread that sets it.

Each GPU has its own thread: what takes long on one of them (a driver, a watcher that starts) delays
nobody's lease of another, and never the loop that hears the clients. Whose a GPU is goes by a rule
that the operator names in a file of root's.
"""

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from underclock.errors import DeviceError, NotPermittedError, UnderclockError, UsageError
from underclock.hw.base import Clock
from underclock.hw.leased import HEARTBEAT_S
from underclock.hw.settable import (
    CLOCKS,
    UNSEEN,
    SettableGpu,
    Setting,
    Value,
    computing,
    pod_of,
)
from underclock.hw.wire import Message
from underclock.runtime.undo.armed import Armed, refuse_beside_others
from underclock.runtime.undo.ownership import OwnedError, read_trusted
from underclock.runtime.undo.watching import Watching

RULES = Path("/etc/underclock/serve.toml")
"""Where the operator says who may lease what."""


class LeasePolicy(StrEnum):
    """Which users may lease a GPU."""

    ANY = "any"  # all who may connect
    PROCESS = "process"  # the one user who computes on it
    FILE = "file"  # whom the site's prolog names
    POD = "pod"  # the one Kubernetes pod that computes on it, where it asks for that


class LeaseRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator's file says.

    Attributes:
        owners: Folder of one file per GPU, named by UUID, with the numbers of its users; for pods
            of one empty file per pod that asks, named by its UID.
        start_s: So long a lease waits for its user to compute on a GPU that nobody computes on.
    """

    policy: LeasePolicy = LeasePolicy.PROCESS
    owners: str = "/run/underclock-owners"
    start_s: float = 120.0


def rules_in(path: Path | None) -> LeaseRules:
    """Return what a file says; without a path, what the usual one does if there is any.

    Raises:
        UsageError: It says something else, or others may have written it.
    """
    try:
        return msgspec.toml.decode(read_trusted(path or RULES), type=LeaseRules)
    except (msgspec.DecodeError, ValueError, OSError) as exc:
        if path is None and isinstance(exc, FileNotFoundError):
            return LeaseRules()
        raise UsageError(
            f"{path or RULES} does not say who may lease which GPU: {exc}",
            hint=f"a file of root's: policy = one of {', '.join(map(repr, map(str, LeasePolicy)))}",
        ) from exc


class Owners:
    """Whose the GPUs are; inside an `nvml_session`. Root and who serves (`uid`) may lease any.

    Under the policy for pods nobody is trusted: root of a container is the kernel's root too.
    """

    def __init__(
        self,
        rules: LeaseRules,
        *,
        uid: int,
        computing: Callable[..., set[int | str]] = computing,
        pod_of: Callable[[int], str] = pod_of,
    ) -> None:
        self.rules = rules
        self._of_pods = rules.policy is LeasePolicy.POD
        self._trusted = set[int | str]() if self._of_pods else {0, uid}
        self._computing = partial(computing, whose=pod_of) if self._of_pods else computing
        self._pod_of = pod_of

    def known_as(self, pid: int, uid: int) -> int | str:
        """Return what a client is known by: its user, or the pod that it is in.

        Raises:
            OSError: It has ended.
        """
        return self._pod_of(pid) if self._of_pods else uid

    def check(self, uuid: str, uid: int | str) -> bool:
        """Refuse a user or pod whose a GPU is not; return whether it surely is, and not nobody's.

        Raises:
            NotPermittedError: It is not; the error says what to do.
            UnderclockError: The driver does not tell.
        """
        whose = f"GPU {uuid} is not known to be {called(uid)}'s"
        if self.rules.policy is LeasePolicy.ANY or uid in self._trusted:
            return True
        if self.rules.policy is LeasePolicy.FILE:
            if uid not in (self._named(uuid) or ()):
                raise NotPermittedError(
                    f"{whose}: no file of the operator's says so",
                    hint=f"the job's prolog names its user in {self.rules.owners}/{uuid}",
                )
            return True
        if self._of_pods and not self._asks(uid):
            who = called(uid) if uid else "a process in no pod"
            raise NotPermittedError(
                f"{who} does not ask to have clocks of GPU {uuid} set",
                hint="annotate the pod: underclock/clocks: leased",
            )
        users = self._computing(uuid) - self._trusted
        if users - {uid}:
            names = ", ".join(sorted(map(called, users)))
            raise NotPermittedError(
                f"{whose} alone: processes of {names} compute there",
                hint=f'lease one that nobody shares, or ask for policy = "file" in {RULES}',
            )
        if not users and not self.rules.start_s > 0:
            raise NotPermittedError(
                f"{whose}: none of its processes computes there",
                hint="start the job first, then set clocks",
            )
        return bool(users)

    def sees(self, uuid: str, uid: int | str) -> bool | None:
        """Return whether a GPU still is somebody's; ``None`` where it is nobody's, or not told."""
        if self.rules.policy is LeasePolicy.ANY or uid in self._trusted:
            return True
        if self.rules.policy is LeasePolicy.FILE:
            users = self._named(uuid)
        elif self._of_pods and not self._asks(uid):
            return False
        else:
            try:
                users = self._computing(uuid) - self._trusted - {UNSEEN}
            except UnderclockError:
                users = set()
        if users is None:
            return False
        return uid in users if users else None

    def _asks(self, pod: int | str) -> bool:
        """Return whether a pod is among those that ask; what is in none never is."""
        try:
            return bool(pod) and read_trusted(Path(self.rules.owners) / str(pod)) is not None
        except OSError:
            return False

    def _named(self, uuid: str) -> set[int | str] | None:
        """Return whom the site names; ``None`` where it has no file.

        Nobody is named where the file cannot be believed, or is only just being written.
        """
        try:
            return {int(word) for word in read_trusted(Path(self.rules.owners) / uuid).split()}
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return set()


def called(who: int | str) -> str:
    """Say who: a user by number, or a pod."""
    if who == UNSEEN:
        return "somebody unknown"
    return f"user {who}" if isinstance(who, int) else f"pod {who}" if who else "no pod"


SILENT_S = 3 * HEARTBEAT_S
"""An owner who says nothing for so long has lost its leases."""
LIMIT_S = 7 * 24 * 3600.0
"""No lease lasts longer unless the operator says so."""
_AGAIN_S = 1.0  # an undo that failed is tried again so often
_WHOSE_S = 2.0  # whether the GPU still is its owner's is looked up so often
_REST = 10  # who did not compute in time may not try again for so many times as long


@dataclass(eq=False)
class Client:
    """A process that may lease GPUs, whether its connection has ended, and why its last lease."""

    pid: int
    who: int | str  # its user, or its pod
    gone: bool = False
    lost: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} of {called(self.who)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for all leases."""

    folder: Path  # where this process keeps locks and journals
    clock: Clock  # the machine's time
    tell: Callable[[str], None]  # hears what happens, as sentences
    owners: Owners  # who may lease what
    limit_s: float = LIMIT_S  # no lease lasts longer

    def __post_init__(self) -> None:
        if not self.limit_s > 0:
            raise UsageError(f"a lease of {self.limit_s:g} s is none", hint="give it some time")


@dataclass(slots=True)
class _Lease:
    """The right of one client to have the GPU set."""

    armed: Armed
    watching: Watching | None  # undoes when this process ends badly; None once it is lost
    until_s: float  # when its time is up, or the undo is tried again
    whose_s: float  # when to look whether the GPU still is the client's
    seen_s: float  # when it last was


class Leases:
    """The leases of one GPU, one after the other. `post` alone may be called by other threads."""

    def __init__(self, gpu: SettableGpu, terms: Terms) -> None:
        self.owner: Client | None = None
        self._gpu = gpu
        self._terms = terms
        self._lease: _Lease | None = None
        self._said = ""
        self._waited_s: dict[int | str, float] = {}  # since when a user has not computed here
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin to do what is posted."""
        self._thread.start()

    def post(self, job: Callable[[], None]) -> None:
        """Have something done in this GPU's thread, after what was posted before."""
        self._jobs.put(job)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Let the thread put back what is set, and end."""
        self._jobs.put(None)
        os.eventfd_write(self._wake, 1)

    def join(self) -> None:
        """Wait until it has."""
        self._thread.join()
        os.close(self._wake)

    def _work(self) -> None:
        while self._do_posted():
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            if self._lease is not None and self._lease.watching is not None:
                poll.register(self._lease.watching.fileno(), select.POLLIN)
            poll.poll(self._wait_ms())
        if self._lease is not None:
            self._end("is over: the service ends")

    def _do_posted(self) -> bool:
        """Do what was posted and what is due; return whether to go on."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                return False
            job()
        if self._lease is not None:
            try:
                self._tend(self._lease)
            except Exception as exc:  # noqa: BLE001 - the lease goes on
                self._tell(f"GPU {self._gpu.uuid}: {type(exc).__name__}: {exc}")
        return True

    def _tell(self, what: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._terms.tell(what)

    def _wait_ms(self) -> float | None:
        lease = self._lease
        if lease is None:
            return None
        due_s = [lease.until_s]
        if self.owner is not None:
            due_s.append(lease.whose_s)
        if lease.watching is not None:
            due_s.append(lease.watching.next_s)
        return max(1.0, (min(due_s) - self._terms.clock.now_s()) * 1e3)

    def take(self, client: Client) -> Message:
        """Make a client the owner, once an undo is armed.

        Raises:
            UsageError: Somebody has the GPU.
            NotPermittedError: It is not this client's.
            DeviceError: What the last owner left cannot be put back.
        """
        uuid = self._gpu.uuid
        if self.owner is client:
            raise UsageError(f"GPU {uuid} is leased to this process already")
        owners, now_s = self._terms.owners, self._terms.clock.now_s()
        if self.owner is not None and owners.sees(uuid, self.owner.who) is False:
            self._end(f"is over: the GPU is no longer {called(self.owner.who)}'s")
        if self.owner is not None:
            raise OwnedError(
                f"GPU {uuid} is leased to {self.owner}",
                hint="end that process first: the lease ends with it",
            )
        if not owners.check(uuid, client.who):
            self._wait_for_job(client.who, now_s)
        if self._lease is not None:
            raise DeviceError(
                f"GPU {uuid} still has what its last owner had set",
                hint="the operator sees why in what `underclock serve` says",
            )
        if client.gone:
            return {}
        refuse_beside_others([uuid])
        watching = Watching(self._terms.folder)
        try:
            armed = Armed(self._gpu, self._terms.folder, share_lock=watching.share)
        except BaseException:
            watching.close()
            raise
        now_s = self._terms.clock.now_s()
        self._lease = _Lease(armed, watching, now_s + self._terms.limit_s, now_s + _WHOSE_S, now_s)
        self.owner = client
        self._tell(f"GPU {uuid} is leased to {client}")
        return {"silent_s": SILENT_S, "limit_s": self._terms.limit_s}

    def _wait_for_job(self, who: int | str, now_s: float) -> None:
        """Let a user lease a GPU that nobody computes on, for a while and not again and again."""
        start_s = self._terms.owners.rules.start_s
        since_s = self._waited_s.setdefault(who, now_s)
        if now_s > since_s + _REST * start_s:
            self._waited_s[who] = now_s
        elif now_s > since_s + start_s:
            raise NotPermittedError(
                f"{called(who)} had GPU {self._gpu.uuid} for {start_s:g} s and computed nothing "
                "there",
                hint="start the job first, then set clocks",
            )

    def set(self, client: Client, setting: Setting, value: Value) -> Message:
        """Set something for the owner; an error where the client is not, or it cannot be set."""
        if self._lease is None or self.owner is not client:
            raise NotPermittedError(
                f"{client} has no lease of GPU {self._gpu.uuid}", hint=client.lost or "take one"
            )
        if setting not in CLOCKS and not isinstance(value, float):
            raise UsageError(f"{value} is no {setting}", hint="only a clock can be given back")
        self._lease.armed.set(setting, value)
        return {}

    def leave(self, client: Client, why: str) -> None:
        """End the lease of a client that has gone, if it has it."""
        if self.owner is client:
            self._end(f"is over: {client} {why}")

    def _tend(self, lease: _Lease) -> None:
        """End what is over, and keep the watcher alive."""
        now_s, owner = self._terms.clock.now_s(), self.owner
        if now_s >= lease.until_s:
            limit = f"lasted for {self._terms.limit_s:g} s, which is the limit"
            self._end(limit if owner else "is over: undo was tried again")
        elif owner is not None and now_s >= lease.whose_s:
            lease.whose_s = now_s + _WHOSE_S
            seen = self._terms.owners.sees(self._gpu.uuid, owner.who)
            if seen:
                lease.seen_s = now_s
                self._waited_s.pop(owner.who, None)
            elif seen is False:
                self._end(f"is over: the GPU is no longer {called(owner.who)}'s")
            elif now_s > lease.seen_s + self._terms.owners.rules.start_s:
                self._waited_s.setdefault(owner.who, lease.seen_s)
                self._end(f"is over: {called(owner.who)} computes nothing there")
        if self._lease is not None and lease.watching is not None:
            try:
                lease.watching.tend(now_s)
            except Exception as exc:  # noqa: BLE001 - nothing may stay set with nobody to undo it
                lease.watching.close()
                lease.watching = None
                self._end(f"lost its watcher: {exc}")

    def _end(self, why: str) -> None:
        """Undo what was set under the lease; where that fails, try again later."""
        lease, owner, self.owner = self._lease, self.owner, None
        if lease is None:
            return
        if owner is not None:
            owner.lost = f"the last one {why}"
        done: tuple[str, ...] = ()
        try:
            undone = lease.armed.end()
            done, failed = undone.done, undone.failed
        except Exception as exc:  # noqa: BLE001 - whatever it was, it is tried again
            failed = (f"the undo failed: {type(exc).__name__}: {exc}",)
        said = "; ".join((*done, *failed)) or "nothing was set"
        if said != self._said or not failed:
            self._tell(f"the lease of GPU {self._gpu.uuid} {why}; {said}")
        self._said = said
        if failed:
            lease.until_s = self._terms.clock.now_s() + _AGAIN_S
            return
        if lease.watching is not None:
            lease.watching.close()
        self._lease = None
