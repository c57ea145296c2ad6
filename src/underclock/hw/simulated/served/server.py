"""Answers what processes ask of simulated GPUs, over a Unix socket.

Each connection is a process with NVML loaded: sessions and samples are its own, locks are the
GPUs'. Whoever dies leaves them as they are, as on a real driver. Setters wait for one another,
whichever GPU they are for; reading waits for nobody.
"""

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from underclock.errors import DeviceError, UnderclockError
from underclock.gpus.catalogue import gpu_model
from underclock.gpus.models import GpuModel
from underclock.hw.clock import SystemClock
from underclock.hw.simulated import calls_write
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import SimulatedDriver
from underclock.hw.simulated.launcher import VirtualLauncher
from underclock.hw.simulated.served.ctypes_json import Received
from underclock.hw.simulated.served.fault_requests import heal, let_fail, truth
from underclock.hw.simulated.served.paced import PacedClock
from underclock.hw.simulated.served.stream_requests import StreamRequests
from underclock.hw.simulated.served.streams import StreamLoop
from underclock.hw.wire import Gone, Life, Message, Reader, answering, peer_of, send
from underclock.records import Step

_LOOK_S = 0.02  # a busy GPU is let catch up at least so often
_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """Simulated GPUs that processes share.

    Attributes:
        gpus: In index order.
        clock: Their time.
        setters: Held by the one call that writes.
    """

    gpus: tuple[VirtualGpu, ...]
    clock: PacedClock
    setters: threading.Lock = field(default_factory=threading.Lock)

    def due_s(self) -> float:
        """Return when somebody should look at the GPUs next, in virtual time."""
        now_s = self.clock.now_s()
        return min(*(self._due_s(gpu, now_s) for gpu in self.gpus), now_s + _REST_S)

    def _due_s(self, gpu: VirtualGpu, now_s: float) -> float:
        due_s = gpu.agenda.next_s
        if gpu.running is not None:
            due_s = min(due_s, now_s + _LOOK_S)
        if isinstance(gpu.running, StreamLoop):
            due_s = min(due_s, gpu.now_s + gpu.running.until_action_s())
        return due_s


@contextmanager
def served_gpus(
    model: str | GpuModel,
    path: Path,
    *,
    count: int = 1,
    seed: int = 0,
    load: Step | None = None,
    speed: float = 1.0,
    everyone: bool = False,
) -> Iterator[Served]:
    """Serve simulated GPUs over a socket for the length of a block.

    Args:
        model: Name, as in ``sim:NAME``, or a model.
        path: Of the socket.
        count: How many GPUs.
        seed: Of their noise.
        load: A step that each of them runs over and over; by default they rest.
        speed: Virtual seconds in one of the machine's.
        everyone: Whether all users may look at them, as at real ones; only root, and who serves
            them, may set them.

    Raises:
        UsageError: No such model, a kernel does not say what it does, or somebody listens there.
        ValueError: No GPU at all, or time that stands still.
    """
    if count < 1:
        raise ValueError(f"a machine needs at least one GPU, got {count}")
    made = gpu_model(model) if isinstance(model, str) else model
    gpus = tuple(VirtualGpu(made, seed=seed, unit=unit) for unit in range(count))
    served = Served(gpus, PacedClock(gpus, SystemClock(), speed=speed))
    with contextlib.ExitStack() as stack:
        for gpu in gpus if load is not None else ():
            kernels = [load.kernels[index] for index in load.order] if load is not None else []
            stack.enter_context(VirtualLauncher(gpu).loop(kernels))
        stack.callback(served.clock.stop)
        _thread(served.clock.run, served.due_s)
        mode = 0o666 if everyone else 0o600
        stack.enter_context(answering(path, functools.partial(_serve, served), mode=mode))
        yield served


def _thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _serve(served: Served, connection: socket.socket) -> None:
    """Answer one process until it goes."""
    pid, uid, _ = peer_of(connection)
    with contextlib.suppress(Gone), contextlib.closing(Life(pid)) as life:
        reader = Reader(connection, life.fds)
        streams = StreamRequests(served.gpus, served.clock, reader, pid=pid)
        client = _Client(served, streams, life, root=uid in {0, os.geteuid()})
        with contextlib.closing(streams):  # locks stay
            _answer(client, reader, connection)


def _answer(client: "_Client", reader: Reader, connection: socket.socket) -> NoReturn:
    """Answer until the process is gone.

    Raises:
        Gone: It is.
    """
    while True:
        answer = client.answer(reader.receive())
        if answer is not None:
            send(connection, answer)


class _Client:
    """One process that is connected."""

    def __init__(self, served: Served, streams: StreamRequests, life: Life, *, root: bool) -> None:
        self._served = served
        self._driver = SimulatedDriver(
            served.gpus, root=root, clock=served.clock, caller_lives=lambda: not life.is_over()
        )
        self._root = root
        self._requests: dict[str, Callable[[Message], Message | None]] = {
            "call": self._call,
            "functions": lambda _: {"functions": self._driver.functions()},
            "fault": self._fault,
            "heal": self._heal,
            "truth": lambda message: truth(_gpu(served, message)),
            **streams.table(),
        }

    def answer(self, message: Message) -> Message | None:
        """Do what a message asks; what cannot be done is said, and ends nothing."""
        try:
            return self._requests.get(str(message.get("do")), _unknown)(message)
        except UnderclockError as exc:
            kind = "device" if isinstance(exc, DeviceError) else "usage"
            return {"error": str(exc), "hint": exc.hint, "kind": kind}
        except (ValueError, KeyError, TypeError, msgspec.ValidationError) as exc:
            return {"error": str(exc), "hint": "", "kind": "usage"}

    def _call(self, message: Message) -> Message:
        """Call a function of NVML."""
        name = str(message["name"])
        if name not in self._driver.functions():
            raise ValueError(f"the driver has no function {name}")
        arguments = [Received(sent) for sent in message["arguments"]]
        function = getattr(self._driver, name)
        alone = self._served.setters if name in calls_write.TABLE else contextlib.nullcontext()
        with alone:
            self._served.clock.catch_up()
            result: Any = function(*(argument.passed for argument in arguments))
        if name in calls_write.TABLE:
            self._served.clock.look_again()
        if isinstance(result, bytes):
            return {"text": result.decode()}
        return {"code": int(result), "out": [argument.answer() for argument in arguments]}

    def _fault(self, message: Message) -> Message:
        self._may_break()
        with self._served.clock.lock:
            self._served.clock.catch_up()
            for gpu in _chosen(self._served, message):
                let_fail(gpu, str(message["name"]), message.get("value"))
        self._served.clock.look_again()
        return {}

    def _heal(self, message: Message) -> Message:
        self._may_break()
        with self._served.clock.lock:
            self._served.clock.catch_up()
            for gpu in _chosen(self._served, message):
                heal(gpu)
        self._served.clock.look_again()
        return {}

    def _may_break(self) -> None:
        if not self._root:
            raise ValueError("only who serves the GPUs, or root, lets things go wrong")


def _unknown(message: Message) -> Message:
    raise ValueError(f"nothing here can do {message.get('do')!r}")


def _gpu(served: Served, message: Message) -> VirtualGpu:
    index = int(message.get("gpu") or 0)
    if not 0 <= index < len(served.gpus):
        raise ValueError(f"there is no GPU {index}, only {len(served.gpus)}")
    served.clock.catch_up()
    return served.gpus[index]


def _chosen(served: Served, message: Message) -> tuple[VirtualGpu, ...]:
    return served.gpus if message.get("gpu") is None else (_gpu(served, message),)
