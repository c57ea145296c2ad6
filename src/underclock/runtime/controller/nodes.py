"""Controllers of one job on several machines: one decides, and all do what it says.

The controller of rank 0 listens at the run's ``--leader``, and each other one connects. They send
what their ranks' iterations took; orders come back with the iteration from which all ranks take
them up together. No controller waits for the network: connections are polled.

Clocks are set and given back by each machine for itself. Who hears nothing of the other side for
`SILENT_S`, or finds the connection closed, leaves its clocks to the driver for good. Before all
ranks have joined and armed nothing is set.

Who connects names the plan by its digest, and can do no more than have a rank of its own seem slow
or lost: orders name plans of the frontier that each machine has by itself, or auto.
"""

import contextlib
import errno
import math
import socket
from collections.abc import Iterator

import msgspec

from underclock.errors import DataError, UsageError
from underclock.hw.wire import Gone, Message, Unpacker, framed
from underclock.runtime.machine.timetable import PassedStep
from underclock.runtime.policy.job import JobPolicy, JobRanks, Order

SILENT_S = 3.0
"""So long one hears nothing of a machine before it counts as lost."""
AHEAD = 2
"""Iterations between one whose end led to an order and the first one under it."""
_LOOK_S, _BEAT_S, _AGAIN_S = 5e-3, 0.5, 0.5
_LONGEST, _CHUNK, _QUEUE = 1 << 20, 1 << 16, 64
_UNDER_WAY = {0, errno.EINPROGRESS, errno.EALREADY, errno.EISCONN}


class _Joins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plan: str
    ranks: tuple[int, ...]


class _Iterated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank's iteration took; ``lost`` says why it takes no more."""

    rank: int
    iteration: int = 0
    time_s: float = math.nan
    busy_s: float | None = None
    stalled: bool = False
    lost: str = ""


class _Ordered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    order: Order
    from_iteration: int | None
    label: str


class _Link:
    """A connection to another machine's controller, without waiting."""

    def __init__(self, connection: socket.socket, now_s: float) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.heard_s, self.ranks = now_s, tuple[int, ...]()
        self.has_heard = False
        self._unsent, self._beat_s = b"", -math.inf
        self._unpacker = Unpacker(_LONGEST)

    def send(self, message: Message | None = None) -> None:
        """Send a message, and what is unsent, as far as that is taken at once."""
        self._unsent += b"" if message is None else framed(message)
        try:
            self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as exc:
            raise Gone(f"the connection broke: {exc}") from exc

    def received(self, now_s: float) -> Iterator[Message]:
        """Yield what came, say now and then that one is there; `Gone` ends what never comes."""
        if now_s >= self._beat_s + _BEAT_S:
            self._beat_s = now_s
            self.send({})
        elif self._unsent:
            self.send()
        while True:
            try:
                chunk = self.connection.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError as exc:
                raise Gone(f"the connection broke: {exc}") from exc
            if not chunk:
                raise Gone("its controller has ended")
            self.heard_s, self.has_heard = now_s, True
            self._unpacker.feed(chunk)
            while (message := self._unpacker.next()) is not None:
                if message:
                    yield message
        if now_s > self.heard_s + SILENT_S:
            raise Gone(f"it said nothing for {SILENT_S:g} s")

    def close(self) -> None:
        self.connection.close()


class DecidingRanks(JobRanks):
    """The ranks of the machine whose controller decides for all, which join it at an address."""

    def __init__(self, job: JobPolicy, address: tuple[str, int], digest: str) -> None:
        super().__init__(job)
        self._digest = digest
        self._links: list[_Link] = []
        self._iteration = 0  # the latest that any rank began
        try:
            self._server = socket.create_server(address, backlog=_QUEUE)
        except OSError as exc:
            raise UsageError(
                f"cannot listen at {address[0]}:{address[1]}: {exc.strerror or exc}",
                hint="--leader names an address of the machine with rank 0, and a free port",
            ) from exc
        self._server.setblocking(False)
        self.next_s = 0.0

    def passed(self, rank: int, step: PassedStep, iteration: int) -> str:
        """Take note of an iteration of a rank of this machine."""
        self._iteration = max(self._iteration, iteration)
        return super().passed(rank, step, iteration)

    def carry_out(self, order: Order | None) -> str:
        """Have all machines' ranks do what is ordered: together, or at once where one is lost."""
        if order is None:
            return ""
        at = None if self.job.over else self._iteration + AHEAD
        label = self.job.stage.name.lower()
        ordered = _Ordered(order, at, label)
        for link in list(self._links):
            try:
                link.send(msgspec.to_builtins(ordered))
            except Gone:  # it is noticed when it is looked at next
                continue
        return self.follow(order, label, at)

    def tend(self, now_s: float) -> Iterator[str]:
        """Hear of the other machines' ranks; yield words for the log."""
        self.next_s = now_s + _LOOK_S
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                self._links.append(_Link(self._server.accept()[0], now_s))
                if len(self._links) > len(self.job.order.points):
                    self._links.pop().close()
        for link in list(self._links):
            try:
                for message in link.received(now_s):
                    yield from filter(None, self._heard(link, message))
            except (Gone, msgspec.ValidationError) as exc:
                self._links.remove(link)
                link.close()
                if link.ranks:
                    yield self.lost(link.ranks[0], f"its machine is lost: {exc}")

    def _heard(self, link: _Link, message: Message) -> Iterator[str]:
        if not link.ranks:
            joins = msgspec.convert(message, _Joins)
            known = {*self.own, *(rank for each in self._links for rank in each.ranks)}
            ours = set(range(len(self.job.order.points)))
            why = ""
            if joins.plan != self._digest:
                why = "it holds another plan"
            elif not joins.ranks or not ours.issuperset(joins.ranks) or known & {*joins.ranks}:
                why = f"its ranks {list(joins.ranks)} are not among those that lack"
            elif self.job.over:
                why = f"the job is at auto for good: {self.job.over}"
            if why:
                link.send({"refused": why})
                raise Gone(why)
            link.ranks = joins.ranks
            ranks = ", ".join(map(str, joins.ranks))
            yield f"ranks {ranks} joined from {link.connection.getpeername()[0]}"
            return
        report = msgspec.convert(message, _Iterated)
        if report.rank not in link.ranks:
            raise Gone(f"it spoke of rank {report.rank}, which is another machine's")
        if report.lost:
            yield self.lost(report.rank, report.lost)
            return
        self._iteration = max(self._iteration, report.iteration)
        self.job.armed(report.rank)
        yield self.carry_out(
            self.job.passed(report.rank, report.time_s, report.busy_s, stalled=report.stalled)
        )

    def close(self) -> None:
        """Let all other machines see that this controller has ended."""
        for each in self._links:
            each.close()
        self._server.close()


class OrderedRanks(JobRanks):
    """The ranks of a machine whose controller does what another one, at an address, decides."""

    def __init__(self, job: JobPolicy, address: tuple[str, int], digest: str) -> None:
        super().__init__(job)
        self.label = "learning"
        self._digest = digest
        try:
            self._found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        except OSError as exc:
            raise DataError(
                f"there is no host {address[0]}: {exc}",
                hint="--leader names the machine with rank 0, as the other machines reach it",
            ) from exc
        self._socket: socket.socket | None = None  # that is about to connect
        self._link: _Link | None = None
        self._again_s = 0.0
        self._over = ""
        self.next_s = 0.0

    def passed(self, rank: int, step: PassedStep, iteration: int) -> str:
        """Report an iteration; what comes of it is heard later."""
        report = _Iterated(rank, iteration, step.time_s, step.busy_s, step.stalled_s > 0.0)
        return self._send(report)

    def lost(self, rank: int, why: str) -> str:
        """Go to auto with all ranks of this machine at once, and report that."""
        if self._over:
            return ""
        self._send(_Iterated(rank, lost=why))
        return self._leave(f"rank {rank}: {why}")

    def tend(self, now_s: float) -> Iterator[str]:
        """Connect where that is not done, and do what is ordered; yield words for the log."""
        self.next_s = math.inf if self._over else now_s + _LOOK_S
        if self._over or (self._link is None and not self._connected(now_s)):
            return
        try:
            for message in () if self._link is None else self._link.received(now_s):
                yield self._do(message)
        except (Gone, msgspec.ValidationError) as exc:
            if self._link is not None and not self._link.has_heard:
                self.close()  # another program answered: it is tried again
                return
            yield self._leave(f"the machine that decides is lost: {exc}")

    def _connected(self, now_s: float) -> bool:
        """Whether there is a connection by now; the controller that decides may begin later."""
        if self._socket is None:
            if now_s < self._again_s:
                return False
            self._socket = socket.socket(*self._found[:3])
            self._socket.setblocking(False)
            self._again_s = now_s + _AGAIN_S
        code = self._socket.connect_ex(self._found[4])
        if code == errno.EISCONN or not code:
            self._link, self._socket = _Link(self._socket, now_s), None
            with contextlib.suppress(Gone):  # it is noticed when it is looked at next
                self._link.send(msgspec.to_builtins(_Joins(self._digest, self.own)))
            return True
        if code not in _UNDER_WAY or now_s >= self._again_s:
            self._socket.close()
            self._socket = None
        return False

    def _send(self, report: _Iterated) -> str:
        if self._link is not None:
            with contextlib.suppress(Gone):  # it is noticed when it is looked at next
                self._link.send(msgspec.to_builtins(report))
        return ""

    def _do(self, message: Message) -> str:
        if "refused" in message:
            raise Gone(str(message["refused"]))
        report = msgspec.convert(message, _Ordered)
        points = report.order.points
        if len(points) <= max(self.own) or not all(
            each is None or 0 <= each < len(self.job.points) for each in points
        ):
            raise Gone("it ordered what the plan has not")
        return self.follow(report.order, report.label, report.from_iteration)

    def _leave(self, why: str) -> str:
        """Leave the clocks of this machine's ranks to the driver for good."""
        self._over, self.label = why, "off"
        self.take_up((None,) * (1 + max(self.own)))
        self.close()
        return f"{why}; from now on: auto on all ranks of this machine"

    def close(self) -> None:
        """Connect no more, and let the other side see it."""
        for each in (self._link, self._socket):
            if each is not None:
                each.close()
        self._link = self._socket = None
