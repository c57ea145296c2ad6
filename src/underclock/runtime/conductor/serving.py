"""`underclock serve`: sets clocks for users who may not, and puts back what they leave behind.

Whoever connects takes a lease of a GPU, and is its owner by what the kernel says of the
connection. A lease ends with the connection, when its owner is silent for too long, or when its
time is up; what was set under it is undone then. Should this service end badly, a watcher of its
own undoes.

One process does all of it, one thing after the other: a driver takes one setter at a time anyway.
"""

import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from underclock.errors import DeviceError, NotPermittedError, UnderclockError, UsageError
from underclock.hw.base import Clock
from underclock.hw.leased import HEARTBEAT_S
from underclock.hw.peers import Life, peer_of
from underclock.hw.settable import CLOCKS, SettableGpu, Setting, Value
from underclock.hw.wire import Gone, Message, Unpacker, framed
from underclock.runtime.undo.armed import Armed, arm
from underclock.runtime.undo.others import refuse_beside_others
from underclock.runtime.undo.ownership import OwnedError
from underclock.runtime.undo.watching import Watching

SILENT_S = 3 * HEARTBEAT_S
"""An owner who says nothing for so long has lost its leases."""
LIMIT_S = 7 * 24 * 3600.0
"""No lease lasts longer unless the operator says so."""
_LONGEST = 4096  # bytes of a message
_CHUNK = 4096
_PATIENCE_S = 0.5  # for an owner to take an answer
_AGAIN_S = 1.0  # an undo that failed is tried again so often
_REST_S = 3600.0
_MOST = 256  # connections


@dataclass(slots=True)
class _Peer:
    """Who is connected.

    Attributes:
        connection: To it.
        pid: Its process.
        uid: Its user.
        life: Of the process.
        heard_s: When it last said something.
        unpacker: Puts together what it says.
    """

    connection: socket.socket
    pid: int
    uid: int
    life: Life
    heard_s: float
    unpacker: Unpacker = field(default_factory=lambda: Unpacker(_LONGEST))

    def __str__(self) -> str:
        return f"process {self.pid} of user {self.uid}"


@dataclass(slots=True)
class _Lease:
    """The right of one owner to have one GPU set.

    Attributes:
        owner: Whose; ``None`` once it has ended and could not be undone yet.
        armed: The GPU.
        watching: Undoes when this process ends badly.
        until_s: When its time is up, or the undo is tried again.
    """

    owner: _Peer | None
    armed: Armed
    watching: Watching
    until_s: float


class Service:
    """Leases, and who has them.

    Args:
        gpus: What may be leased, by UUID.
        folder: Where this process keeps locks and journals.
        clock: The machine's time.
        tell: Hears what happens, as sentences.
        limit_s: No lease lasts longer.
        pid: Of this process.
        uid: Of its user.
    """

    def __init__(
        self,
        gpus: Mapping[str, SettableGpu],
        folder: Path,
        clock: Clock,
        tell: Callable[[str], None],
        *,
        limit_s: float = LIMIT_S,
        pid: int,
        uid: int,
    ) -> None:
        if not limit_s > 0:
            raise UsageError(f"a lease of {limit_s:g} s is none", hint="give it some time")
        self._gpus = gpus
        self._folder = folder
        self._clock = clock
        self._tell = tell
        self._limit_s = limit_s
        self._pid, self._uid = pid, uid
        self._peers: dict[int, _Peer] = {}
        self._leases: dict[str, _Lease] = {}
        self._requests: dict[str, Callable[[_Peer, Message], Message]] = {
            "who": self._who,
            "lease": self._lease,
            "set": self._set,
            "beat": lambda _peer, _message: {},
        }

    def run(self, server: socket.socket, wake: int) -> None:
        """Answer until a descriptor can be read; end every lease on the way out.

        Args:
            server: Who connects to it is answered.
            wake: Can be read when this should end.
        """
        try:
            while True:
                watched = [lease.watching.fileno() for lease in self._leases.values()]
                lives = [fd for peer in self._peers.values() for fd in peer.life.fds]
                inputs = [wake, server.fileno(), *self._peers, *watched, *lives]
                ready, _, _ = select.select(inputs, [], [], self._wait_s())
                if wake in ready:
                    return
                for fd, peer in list(self._peers.items()):
                    if peer.life.is_over():
                        self._drop(peer, "has ended")
                    elif fd in ready:
                        self._hear(peer)
                if server.fileno() in ready:
                    self._accept(server)
                self.tend()
        finally:
            self._end_all()

    def _wait_s(self) -> float:
        now_s = self._clock.now_s()
        due_s = [now_s + _REST_S]
        for lease in self._leases.values():
            due_s += [lease.until_s, lease.watching.next_s]
            if lease.owner is not None:
                due_s.append(lease.owner.heard_s + SILENT_S)
        return max(0.0, min(due_s) - now_s)

    def _accept(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        pid, uid, _ = peer_of(connection)
        if len(self._peers) >= _MOST:
            connection.close()
            return
        connection.settimeout(_PATIENCE_S)
        peer = _Peer(connection, pid, uid, Life(pid), self._clock.now_s())
        self._peers[connection.fileno()] = peer

    def _hear(self, peer: _Peer) -> None:
        """Take what an owner says; where it has gone, end its leases."""
        try:
            chunk = peer.connection.recv(_CHUNK)
            peer.unpacker.feed(chunk)
            while (message := peer.unpacker.next()) is not None:
                peer.heard_s = self._clock.now_s()
                peer.connection.sendall(framed(self._answer(peer, message)))
        except (Gone, OSError):
            chunk = b""
        if not chunk:
            self._drop(peer, "has ended")

    def _answer(self, peer: _Peer, message: Message) -> Message:
        try:
            request = self._requests.get(str(message.get("do")))
            if request is None:
                raise UsageError(f"nothing here can do {message.get('do')!r}")
            return request(peer, message)
        except UnderclockError as exc:
            # A kind that only this program has is told as the one that it is of.
            kind = "UsageError" if isinstance(exc, OwnedError) else type(exc).__name__
            return {"error": str(exc), "hint": exc.hint, "kind": kind}
        except (ValueError, KeyError, TypeError) as exc:
            return {"error": f"{type(exc).__name__}: {exc}", "hint": "", "kind": "UsageError"}
        except OSError as exc:
            words = f"the journal cannot be written, so nothing was set: {exc}"
            return {"error": words, "hint": "the operator's disk is full?", "kind": "DeviceError"}

    def _who(self, _peer: _Peer, _message: Message) -> Message:
        leases = {
            uuid: {"pid": lease.owner.pid, "uid": lease.owner.uid}
            for uuid, lease in self._leases.items()
            if lease.owner is not None
        }
        return {"pid": self._pid, "uid": self._uid, "gpus": list(self._gpus), "leases": leases}

    def _lease(self, peer: _Peer, message: Message) -> Message:
        """Make a peer the owner of a GPU, once an undo is armed."""
        uuid = str(message["gpu"])
        if uuid not in self._gpus:
            raise UsageError(f"GPU {uuid} is not served here", hint=f"served: {list(self._gpus)}")
        self._make_free(uuid, peer)
        refuse_beside_others([uuid])
        watching = Watching(self._folder)
        try:
            armed = arm(self._gpus[uuid], self._folder, share_lock=watching.share)
        except BaseException:
            watching.close()
            raise
        until_s = self._clock.now_s() + self._limit_s
        self._leases[uuid] = _Lease(peer, armed, watching, until_s)
        self._tell(f"GPU {uuid} is leased to {peer}")
        return {"silent_s": SILENT_S, "limit_s": self._limit_s}

    def _make_free(self, uuid: str, peer: _Peer) -> None:
        """End a lease whose owner has gone without our having heard of it yet.

        Raises:
            OwnedError: Somebody else has it.
            DeviceError: What the last owner left cannot be put back.
        """
        held = self._leases.get(uuid)
        if held is None:
            return
        if held.owner is not None and held.owner is not peer and not _has_gone(held.owner):
            raise OwnedError(
                f"GPU {uuid} is leased to {held.owner}",
                hint="end that process first: the lease ends with it",
            )
        if held.owner is peer:
            raise UsageError(f"GPU {uuid} is leased to this process already")
        if held.owner is not None:
            self._drop(held.owner, "has ended")
        if uuid in self._leases:
            raise DeviceError(
                f"GPU {uuid} still has what its last owner had set",
                hint="the operator sees why in what `underclock serve` says",
            )

    def _set(self, peer: _Peer, message: Message) -> Message:
        """Set something for the owner of a lease."""
        uuid = str(message["gpu"])
        lease = self._leases.get(uuid)
        if lease is None or lease.owner is not peer:
            raise NotPermittedError(
                f"{peer} has no lease of GPU {uuid}", hint="it ended: take another"
            )
        setting, value = _setting(message["setting"]), _value(message["value"])
        if setting not in CLOCKS and not isinstance(value, float):
            raise UsageError(f"{value} is no {setting}", hint="only a clock can be given back")
        lease.armed.set(setting, value)
        return {}

    def tend(self) -> None:
        """End what is over, and keep the watchers alive."""
        now_s = self._clock.now_s()
        for uuid, lease in list(self._leases.items()):
            if lease.owner is None:
                if now_s >= lease.until_s:
                    self._end(uuid, "undo was tried again")
            elif now_s >= lease.until_s:
                self._end(uuid, f"lasted for {self._limit_s:g} s, which is the limit")
            elif now_s >= lease.owner.heard_s + SILENT_S and not _has_news(lease.owner):
                self._drop(lease.owner, f"said nothing for {SILENT_S:g} s")
            else:
                self._tend_watcher(uuid, lease, now_s)

    def _tend_watcher(self, uuid: str, lease: _Lease, now_s: float) -> None:
        try:
            lease.watching.tend(now_s)
        except DeviceError as exc:  # nothing may stay set with nobody to undo it
            self._end(uuid, f"lost its watcher: {exc}")

    def _drop(self, peer: _Peer, why: str) -> None:
        """Forget who has gone, and end its leases."""
        self._peers.pop(peer.connection.fileno(), None)
        peer.connection.close()
        peer.life.close()
        for uuid, lease in list(self._leases.items()):
            if lease.owner is peer:
                self._end(uuid, f"is over: {peer} {why}")

    def _end(self, uuid: str, why: str) -> None:
        """Undo what was set under a lease; where that fails, try again later."""
        lease = self._leases[uuid]
        undone = lease.armed.end()
        said = "; ".join((*undone.done, *undone.failed)) or "nothing was set"
        self._tell(f"the lease of GPU {uuid} {why}; {said}")
        if undone.failed:
            lease.owner, lease.until_s = None, self._clock.now_s() + _AGAIN_S
            return
        lease.watching.close()
        del self._leases[uuid]

    def _end_all(self) -> None:
        for uuid in list(self._leases):
            self._end(uuid, "is over: the service ends")
        for peer in list(self._peers.values()):
            self._drop(peer, "was asked to go")


def _has_news(peer: _Peer) -> bool:
    """Whether something came that we have yet to hear, as while a setter took its time."""
    return bool(select.select([peer.connection], [], [], 0.0)[0])


def _has_gone(peer: _Peer) -> bool:
    """Whether a peer closed its end, which we may have yet to hear of."""
    try:
        closed = _has_news(peer) and not peer.connection.recv(1, socket.MSG_PEEK)
        return closed or peer.life.is_over()
    except ConnectionError:
        return True


def _setting(name: Any) -> Setting:  # noqa: ANN401 - as it came
    try:
        return Setting(name)
    except ValueError as exc:
        raise UsageError(f"there is no setting {name!r}", hint=", ".join(Setting)) from exc


def _value(given: Any) -> Value:  # noqa: ANN401 - as it came
    match given:
        case None:
            return None
        case int() | float() if given >= 0:
            return float(given)
        case [int() as low, int() as high]:
            return low, high
    raise UsageError(f"{given!r} is no value of a setting")
