"""Clients of `underclock serve` that mean harm, and a service that believes them who they are.

Run as a program it serves; a hostile client's user is what its socket is named, so that one process
can be several users.
"""

import contextlib
import itertools
import json
import os
import random
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from underclock.hw.clock import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import gpu_count, nvml_session
from underclock.hw.settable import SettableNvmlGpu
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.wire import Gone, Reader, listening, peer_of
from underclock.runtime.conductor.leases import LeasePolicy, LeaseRules, Owners, Terms
from underclock.runtime.conductor.process import asked_to_end
from underclock.runtime.conductor.serving import Service

_NUMBERS = itertools.count()
_VALUES = (b"Infinity", b"-Infinity", b"NaN", b"1e400", b"1" + b"0" * 400, b"1" * 3900)


def connect(path: Path, uid: int) -> socket.socket:
    """Return a connection of a user."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(f"\0user {uid} {os.getpid()} {next(_NUMBERS)}")
    made.connect(str(path))
    made.settimeout(20.0)
    return made


def named_peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return who is at the other end, of the user that its socket is named by."""
    pid, uid, gid = peer_of(connection)
    name = connection.getpeername()
    words = (name if isinstance(name, bytes) else name.encode()).split()
    return pid, int(words[1]) if len(words) == 4 else uid, gid


def framed(body: bytes) -> bytes:
    """Return a message as it is sent."""
    return len(body).to_bytes(4, "little") + body


_NONSENSE = (
    *(framed(b'{"do":"set","gpu":"g","setting":"core","value":%s}' % value) for value in _VALUES),
    framed(b"[" * 4000),
    framed(b'{"do":' * 600 + b"1" + b"}" * 600),
    framed(b'{"do":"beat","x":' + b"[" * 2000 + b"]" * 2000 + b"}"),
    framed(b"\xff\xfe" * 100),
    framed(b'"\\ud800"'),
    framed(b'{"do":"beat"}' * 2),
    framed(b" " * 5000),
    framed(b""),
    b"\xff\xff\xff\xff",
)


def ending(connection: socket.socket) -> str:
    """Return why the service ends a connection, once it does."""
    reader = Reader(connection)
    said = ""
    with contextlib.suppress(Gone):
        while True:
            message = reader.receive()
            said = str(message.get("error")) if message.get("ends") else said
    return said


class Hostile:
    """Hostile clients of several users, by a seed.

    Args:
        path: Of the service's socket.
        gpus: What they ask for.
        seed: What they do is told by it alone.
    """

    def __init__(self, path: Path, gpus: list[str], seed: int) -> None:
        self._path = path
        self._gpus = [*gpus, "GPU-none", "", "x" * 500]
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._open: list[socket.socket] = []
        self.done: Counter[str] = Counter()

    def close(self) -> None:
        """Let all of them go."""
        for each in self._open:
            each.close()
        self._open.clear()

    def act(self, *, connections: int) -> None:
        """Do one thing: connect while connections are to be made, send something, read, or go."""
        draw = self._random.random()
        due = self.done["connections"] < connections
        if not self._open or (draw < 0.02 and due) or len(self._open) < 8:
            self._connect()
        elif draw < 0.1:
            self._read(self._random.choice(self._open))
        elif draw < 0.11 and due:
            self._leave(self._random.choice(self._open))
        else:
            self._send(self._random.choice(self._open))

    def _connect(self) -> None:
        while len(self._open) >= 200:
            self._leave(self._open[0])
        made = connect(self._path, 2000 + self._random.randrange(6))
        made.setblocking(False)
        self._open.append(made)
        self.done["connections"] += 1

    def _leave(self, who: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._random.random() < 0.3:
                who.shutdown(socket.SHUT_WR)
                self.done["half closed"] += 1
                return
        self._open.remove(who)
        who.close()

    def _read(self, who: socket.socket) -> None:
        try:
            while chunk := who.recv(1 << 16):
                self.done["bytes of answers"] += len(chunk)
                self.done["faults answered"] += chunk.count(b'"error"')
            self.done["ended by the service"] += 1
        except BlockingIOError:
            return
        except OSError:
            self.done["ended by the service"] += 1
        self._open.remove(who)
        who.close()

    def _send(self, who: socket.socket) -> None:
        many = 200 if self._random.random() < 0.01 else 1
        body = self._message()
        for _ in range(many):
            try:
                sent = who.send(body)
            except BlockingIOError:
                self.done["not taken"] += 1
                return
            except OSError:
                self.done["ended by the service"] += 1
                self._open.remove(who)
                who.close()
                return
            self.done["messages" if many == 1 else "flooded"] += sent == len(body)

    def _message(self) -> bytes:
        draw = self._random.random()
        good = framed(json.dumps(self._request()).encode())
        if draw < 0.5:
            return good
        if draw < 0.7:
            damaged = bytearray(good)
            for _ in range(self._random.randint(1, 4)):
                damaged[self._random.randrange(len(damaged))] = self._random.randrange(256)
            return bytes(damaged)
        if draw < 0.75:
            return good[: self._random.randint(1, len(good))]
        if draw < 0.78:
            return self._random.randbytes(self._random.randint(1, 4000))
        return self._random.choice(_NONSENSE)

    def _request(self) -> dict[str, Any]:
        gpu = self._random.choice(self._gpus)
        settings = ["core", "memory", "limit", "persistence", "voltage", None, 3]
        values: list[Any] = [
            None,
            900,
            300.0,
            [210, 900],
            [900, 210],
            -1,
            1e30,
            "900",
            [1, 2, 3],
            {},
            True,
        ]
        setting, value = self._random.choice(settings), self._random.choice(values)
        return self._random.choice(
            [
                {"do": "beat"},
                {"do": "who"},
                {"do": "lease", "gpu": gpu},
                {"do": "set", "gpu": gpu, "setting": setting, "value": value},
                {"do": "set", "gpu": gpu, "setting": "core", "value": 900},
                {"do": self._random.choice(["", "restore", None, 1, []])},
            ]
        )


def main() -> None:
    """Serve, to whoever a socket says it is, until a signal asks to end."""
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    terms = Terms(
        folder=folder,
        clock=SystemClock(),
        tell=lambda _line: None,
        owners=Owners(LeaseRules(policy=LeasePolicy.ANY), uid=0),
    )
    with nvml_session(), asked_to_end() as asked, listening(path) as server:
        uuids = [NvmlGpu(index).uuid() for index in range(gpu_count())]
        gpus = {uuid: SettableNvmlGpu(uuid) for uuid in uuids}
        service = Service(gpus, terms, pid=os.getpid(), uid=os.getuid(), peer=named_peer)
        service.run(server, asked.fileno())


if __name__ == "__main__":
    main()


def as_found(gpu: VirtualGpu) -> bool:
    """Say whether nothing is set on a simulated GPU of the usual limit."""
    return (gpu.core_lock, gpu.mem_lock, gpu.limit_w) == (None, None, 350.0)
