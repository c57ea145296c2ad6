"""`underclock serve`: sets clocks for users who may not, and puts back what they leave behind.

Whoever connects leases a GPU, and is its owner by what the kernel says of the connection. A lease
ends with the connection, when its owner is silent for too long, or when its time is up; what was
set under it is undone then. Should this service end badly, watchers of its own undo.

Clients are not trusted: one may send anything, or nothing, or leave answers unread, and loses its
own connection by it. This loop waits for nobody; what takes long is done in a thread of each GPU.
"""

import collections
import contextlib
import grp
import os
import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from underclock.errors import DeviceError, NotPermittedError, UnderclockError, UsageError
from underclock.hw import nvml_calls as nvml
from underclock.hw.clock import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.settable import SettableGpu, SettableNvmlGpu, Setting
from underclock.hw.wire import Gone, Life, Message, Unpacker, framed, listening, peer_of
from underclock.runtime.conductor.leases import (
    LIMIT_S,
    SILENT_S,
    Client,
    Leases,
    Owners,
    Terms,
    called,
    rules_in,
)
from underclock.runtime.conductor.process import asked_to_end
from underclock.runtime.undo.armed import restore
from underclock.runtime.undo.ownership import OwnedError, runtime_folder

MOST, MOST_OF_USER = 256, 32
"""Connections, in all and of one user."""
FIRST_S, REST_S, IDLE_S = 5.0, 2.0, 30.0
"""For a first message, the rest of one (or to take an answer), and without a lease."""
_LONGEST = 4096  # bytes of a message
_UNREAD = 16384  # bytes of answers that the kernel keeps for a client
_TURN_S, _SHARE = 0.01, 8  # so many messages of a connection are taken in so long
_ACCEPTED = 64  # in a turn
_AGAIN_S = 1.0  # to accept once descriptors have run out
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL

_Uuid = Annotated[str, msgspec.Meta(max_length=96)]
_OWNER, _GROUP = 0o600, 0o660  # who may connect
_MOST_VALUE = 100_000  # MHz or W


class _Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"
):
    """What a client may ask."""


class _Who(_Request, frozen=True, tag="who"): ...


class _Beat(_Request, frozen=True, tag="beat"): ...


class _Take(_Request, frozen=True, tag="lease"):
    gpu: _Uuid


class _Set(_Request, frozen=True, tag="set"):
    gpu: _Uuid
    setting: Setting
    value: float | tuple[int, int] | None

    def __post_init__(self) -> None:
        # As bounds in the type of a union, msgspec 0.22 ends the process by them.
        values = self.value if isinstance(self.value, tuple) else (self.value or 0.0,)
        if min(values) < 0 or max(values) > _MOST_VALUE:
            raise ValueError(f"{self.value} is no value of a setting: 0 to {_MOST_VALUE}")


_DECODER = msgspec.json.Decoder(_Who | _Beat | _Take | _Set)


@dataclass(eq=False)
class _Peer(Client):
    connection: socket.socket = field(kw_only=True)
    life: Life = field(kw_only=True)  # of its process
    heard_s: float = field(kw_only=True)  # when it last said something
    busy_s: float = field(kw_only=True)  # when it last had a lease, or asked for one
    part_s: float | None = None  # when an unfinished message began, or an answer it does not take
    turn_s: float = 0.0  # when its share of messages was new
    share: int = _SHARE  # messages that are left of it
    unsent: bytes = b""  # what it has not taken
    asked: Leases | None = None  # of whom it waits for an answer
    silent: bool = True  # whether it never said anything
    waiting: bool = False  # whether a whole message of it may wait for its turn
    ends: str = ""  # why the connection ends once it has the answer; empty where it does not
    unpacker: Unpacker = field(default_factory=lambda: Unpacker(_LONGEST))

    @property
    def is_free(self) -> bool:
        """Whether its next message may be taken."""
        return self.asked is None and not self.unsent and not self.ends and self.share > 0

    def deadline(self, *, has_lease: bool) -> tuple[float, str]:
        """Return when its connection ends unless it does something, and why."""
        if self.part_s is not None:
            what = "takes no answer" if self.unsent else "ends no message"
            return self.part_s + REST_S, f"{what} within {REST_S:g} s"
        if self.asked is not None:
            return float("inf"), ""
        if has_lease:
            return self.heard_s + SILENT_S, f"said nothing for {SILENT_S:g} s"
        if self.silent:
            return self.busy_s + FIRST_S, f"asked for nothing within {FIRST_S:g} s"
        return self.busy_s + IDLE_S, f"had no lease for {IDLE_S:g} s"


class Service:
    """Who is connected, and the leases of each GPU; `peer` says who is at a connection's end."""

    def __init__(
        self,
        gpus: Mapping[str, SettableGpu],
        terms: Terms,
        *,
        pid: int,
        uid: int,
        peer: Callable[[socket.socket], tuple[int, int, int]] = peer_of,
    ) -> None:
        self._gpus = {uuid: Leases(gpu, terms) for uuid, gpu in gpus.items()}
        self._now_s = terms.clock.now_s
        self._known_as = terms.owners.known_as
        self._pid, self._uid = pid, uid
        self._peer_of = peer
        self._peers: dict[int, _Peer] = {}
        self._answers: collections.deque[tuple[_Peer, Message]] = collections.deque()
        self._answered = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._accept_s = 0.0

    def run(self, server: socket.socket, wake: int) -> None:
        """Answer until a descriptor can be read; end every lease on the way out.

        Args:
            server: Who connects to it is answered.
            wake: Can be read when this should end.
        """
        server.setblocking(False)
        for leases in self._gpus.values():
            leases.start()
        try:
            while self._turn(server, wake):
                pass
        finally:
            for leases in self._gpus.values():
                leases.stop()
            for leases in self._gpus.values():
                leases.join()
            for peer in list(self._peers.values()):
                self._drop(peer, "was asked to go")
            os.close(self._answered)

    def _turn(self, server: socket.socket, wake: int) -> bool:
        """Wait for something, and give every client its share; return whether to go on."""
        ready = self._wait(server, wake)
        if wake in ready:
            return False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._answered)
        for fd, peer in list(self._peers.items()):  # who comes next need not wait for who went
            if ready.get(fd, 0) & _GONE or any(life in ready for life in peer.life.fds):
                self._drop(peer, "has ended")
        while self._answers:
            peer, answer = self._answers.popleft()
            peer.asked = None
            peer.heard_s = peer.busy_s = self._now_s()
            self._send(peer, answer)
        for fd, peer in list(self._peers.items()):
            try:
                self._hear(peer, ready.get(fd, 0))
            except Exception as exc:  # noqa: BLE001 - nobody but who did it has the harm
                self._drop(peer, f"caused {type(exc).__name__}: {exc}")
        if server.fileno() in ready:
            self._accept(server)
        self._end_overdue()
        return True

    def _wait(self, server: socket.socket, wake: int) -> dict[int, int]:
        now_s = self._now_s()
        poll, due_s = select.poll(), [now_s + IDLE_S]
        poll.register(wake, select.POLLIN)
        poll.register(self._answered, select.POLLIN)
        if now_s >= self._accept_s:
            poll.register(server, select.POLLIN)
        else:
            due_s.append(self._accept_s)
        owners = self._owners()
        for fd, peer in self._peers.items():
            hears = select.POLLIN if peer.is_free and not peer.waiting else 0
            poll.register(fd, hears | (select.POLLOUT if peer.unsent else 0))
            for life in peer.life.fds:
                poll.register(life, select.POLLIN)
            due_s.append(peer.deadline(has_lease=peer in owners)[0])
            if peer.share <= 0 or (peer.waiting and peer.is_free):
                due_s.append(peer.turn_s + _TURN_S if peer.share <= 0 else now_s)
        return dict(poll.poll(max(0.0, (min(due_s) - now_s) * 1e3)))

    def _owners(self) -> set[Client]:
        return {leases.owner for leases in self._gpus.values() if leases.owner is not None}

    def _accept(self, server: socket.socket) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, _ = server.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left
                self._accept_s = self._now_s() + _AGAIN_S
                return
            try:
                self._admit(connection)
            except OSError:
                connection.close()

    def _admit(self, connection: socket.socket) -> None:
        """Let a client in where there is room; where there is none, who has most makes some."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)
        pid, uid, _ = self._peer_of(connection)
        who = self._known_as(pid, uid)
        users = collections.Counter(peer.who for peer in self._peers.values())
        refused = (
            f"{called(who)} has {users[who]} connections" if users[who] >= MOST_OF_USER else ""
        )
        if not refused and len(self._peers) >= MOST:
            owners = self._owners()
            idle = [each for each in self._peers.values() if each not in owners]
            most = max(idle, key=lambda each: users[each.who], default=None)
            if most is not None and users[most.who] > users[who] + 1:
                self._drop(most, "made room")
            else:
                refused = f"{len(self._peers)} clients are connected"
        if refused:
            hint = "end some of them, or try again"
            connection.send(framed(_ending(f"{refused}, and no more are served", hint)))
            connection.close()
            return
        now_s, life = self._now_s(), Life(pid)
        if life.is_over():
            connection.close()
            return
        peer = _Peer(pid, who, connection=connection, life=life, heard_s=now_s, busy_s=now_s)
        self._peers[connection.fileno()] = peer

    def _hear(self, peer: _Peer, events: int) -> None:
        """Take what a client says, up to its share."""
        now_s = self._now_s()
        if now_s >= peer.turn_s + _TURN_S:
            peer.turn_s, peer.share = now_s, _SHARE
        if events & select.POLLOUT:
            self._send(peer)
        if events & select.POLLIN:
            try:
                chunk = peer.connection.recv(_LONGEST)
            except OSError:
                chunk = b""
            if not chunk:
                self._drop(peer, "has ended")
                return
            peer.unpacker.feed(chunk)
            peer.waiting = True
        while peer.waiting and peer.is_free and not peer.gone:
            self._take(peer)

    def _take(self, peer: _Peer) -> None:
        """Take one message, if it is whole."""
        now_s = self._now_s()
        try:
            body = peer.unpacker.body()
        except Gone as exc:
            self._end(peer, str(exc))
            return
        if body is None:
            peer.waiting = False
            if peer.unpacker.is_empty:
                peer.part_s = None
            elif peer.part_s is None:
                peer.part_s = now_s
            return
        peer.part_s, peer.heard_s, peer.silent = None, now_s, False
        peer.share -= 1
        try:
            request = _DECODER.decode(body)
        except msgspec.ValidationError as exc:
            self._send(peer, _refusal(UsageError(f"this is no request: {exc}")))
        except (msgspec.DecodeError, ValueError, RecursionError) as exc:
            self._end(peer, f"sent what is no message: {exc}")
        else:
            self._answer(peer, request)

    def _answer(self, peer: _Peer, request: _Request) -> None:
        """Answer what this loop knows; leave the rest to the GPU's thread."""
        match request:
            case _Who():
                self._send(peer, self._who())
            case _Take() | _Set() if request.gpu not in self._gpus:
                said, served = f"GPU {request.gpu} is not served here", f"served: {[*self._gpus]}"
                self._send(peer, _refusal(UsageError(said, hint=served)))
            case _Take():
                self._ask(peer, request.gpu, lambda leases: leases.take(peer))
            case _Set(gpu=gpu, setting=setting, value=value):
                self._ask(peer, gpu, lambda leases: leases.set(peer, setting, value))
            case _:
                self._send(peer, {})

    def _ask(self, peer: _Peer, gpu: str, job: Callable[[Leases], Message]) -> None:
        """Have a GPU's thread do something, and answer once it has."""
        leases = peer.asked = self._gpus[gpu]

        def do() -> None:
            self._answers.append((peer, _answered(partial(job, leases))))
            os.eventfd_write(self._answered, 1)

        leases.post(do)

    def _who(self) -> Message:
        owners = {uuid: leases.owner for uuid, leases in self._gpus.items()}
        leases = {uuid: {"pid": it.pid, "uid": it.who} for uuid, it in owners.items() if it}
        return {"pid": self._pid, "uid": self._uid, "gpus": list(self._gpus), "leases": leases}

    def _end(self, peer: _Peer, why: str) -> None:
        """Say why the connection ends, and end it once that is taken."""
        peer.ends = why
        self._send(peer, _ending(f"{peer} {why}"))

    def _send(self, peer: _Peer, message: Message | None = None) -> None:
        """Send a message and what is unsent, as far as the client takes it."""
        if peer.gone:
            return
        if message is not None:
            peer.unsent += framed(message)
        try:
            sent = peer.connection.send(peer.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(peer, "has ended")
            return
        peer.unsent = peer.unsent[sent:]
        if not peer.unsent:
            peer.part_s = None
            if peer.ends:
                self._drop(peer, peer.ends)
        elif peer.part_s is None:
            peer.part_s = self._now_s()

    def _end_overdue(self) -> None:
        now_s, owners = self._now_s(), self._owners()
        for peer in list(self._peers.values()):
            if peer in owners:
                peer.busy_s = now_s
            until_s, why = peer.deadline(has_lease=peer in owners)
            if now_s >= until_s:
                self._end(peer, why)
                self._drop(peer, why)

    def _drop(self, peer: _Peer, why: str) -> None:
        """Forget who has gone, and end its leases."""
        if peer.gone:
            return
        peer.gone = True
        del self._peers[peer.connection.fileno()]
        peer.connection.close()
        peer.life.close()
        for leases in self._gpus.values():
            if leases.owner is peer or leases is peer.asked:
                leases.post(partial(leases.leave, peer, why))


def _answered(job: Callable[[], Message]) -> Message:
    """Do something; whatever goes wrong is an answer."""
    try:
        return job()
    except UnderclockError as exc:
        return _refusal(exc)
    except OSError as exc:
        words = f"the journal cannot be written, so nothing was set: {exc}"
        return _refusal(DeviceError(words, hint="the operator's disk is full?"))
    except Exception as exc:  # noqa: BLE001 - the service goes on, and so do all others' leases
        return _refusal(UsageError(f"{type(exc).__name__}: {exc}"))


def _refusal(error: UnderclockError) -> Message:
    # A kind that only this program has is told as the one that it is of.
    kind = "UsageError" if isinstance(error, OwnedError) else type(error).__name__
    return {"error": str(error), "hint": error.hint, "kind": kind}


def _ending(words: str, hint: str = "") -> Message:
    return {**_refusal(UsageError(words, hint=hint)), "ends": True}


def serve(
    path: Path,
    *,
    group: str | None = None,
    rules: Path | None = None,
    limit_s: float = LIMIT_S,
    tell: Callable[[str], None],
) -> None:
    """Serve leases until a signal asks to end; then undo what is set under them.

    Args:
        group: Who may use it; by default the user who serves, and root.
        rules: File that says who may lease which GPU; by default the usual one, if there is any.
        limit_s: No lease lasts longer.
        tell: Hears what happens.

    Raises:
        UsageError: No such group or limit, rules that cannot be read, or a socket that cannot be.
        NotPermittedError: This process may not set GPUs itself.
        DeviceError: There is no driver.
    """
    gid, owners = _gid(group), Owners(rules_in(rules), uid=os.geteuid())
    with nvml.nvml_session(), asked_to_end() as asked:
        nvml.check_writable("set clocks for others")
        if not nvml.may_set():
            raise NotPermittedError(
                "this process may not set clocks itself, so it cannot for others",
                hint="run it as root, outside a container or with CAP_SYS_ADMIN",
            )
        folder = runtime_folder()
        uuids = [NvmlGpu(index).uuid() for index in range(nvml.gpu_count())]
        for undone in restore(folder, uuids, SettableNvmlGpu):
            for line in (*undone.done, *undone.failed):
                tell(f"left by an earlier run on GPU {undone.uuid}: {line}")
        terms = Terms(folder=folder, clock=SystemClock(), tell=tell, owners=owners, limit_s=limit_s)
        gpus = {uuid: SettableNvmlGpu(uuid) for uuid in uuids}
        service = Service(gpus, terms, pid=os.getpid(), uid=os.getuid())
        mode = _OWNER if gid is None else _GROUP
        with listening(path, mode=mode, gid=gid) as server:
            whom = f"{group or 'this user alone'}, by policy {owners.rules.policy!s}"
            tell(f"serving {len(uuids)} GPUs at {path} to {whom}")
            service.run(server, asked.fileno())


def _gid(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as exc:
        raise UsageError(f"there is no group {group!r}", hint="see `getent group`") from exc
