"""Answers what processes ask of simulated GPUs, over a Unix socket.

Each connection is a process with NVML loaded: sessions and samples are its own, locks are the
GPUs'. A process that dies leaves them as they are, as on a real driver. Setters wait for one
another, whichever GPU they are for; readers do not wait.

Virtual time goes with the machine's monotonic clock. Nothing is computed ahead: a call lets the
GPUs catch up with the time it is. A thread does so when something is due that processes can see,
such as a mark.
"""

import contextlib
import functools
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from underclock.errors import DeviceError, UnderclockError, UsageError
from underclock.gpus.models import GpuModel, gpu_model
from underclock.hw.base import Clock, SystemClock
from underclock.hw.simulated import calls, work
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import SimulatedDriver
from underclock.hw.simulated.launcher import VirtualLauncher
from underclock.hw.simulated.served.client import Received
from underclock.hw.simulated.work import Entry, FaultKind, StreamLoop
from underclock.hw.wire import Gone, Life, Message, MessageReader, answering, peer_of, send
from underclock.records import Step
from underclock.units import name_hint

_SHORTEST_S = 2e-5  # no sleep is shorter: the socket takes longer than that
_BUSY_LOOK_S = 0.02  # a busy GPU is let catch up at least so often
_REST_S = 1.0
_WAITING = 1024  # launches that a stream holds; a process that launches more waits, as in CUDA
_LOOK_S = 0.05
_WORD = 4
_MARK = 0xFFFF  # of a word: above it is the number of the step


class PacedClock:
    """Time of virtual GPUs that other processes use: so many s in one of the machine's clock."""

    def __init__(self, gpus: tuple[VirtualGpu, ...], clock: Clock, *, speed: float = 1.0) -> None:
        if not 0 < speed < math.inf:
            raise ValueError(f"time cannot go at a speed of {speed}")
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # notified when launches may have ended
        self._gpus = gpus
        self._clock = clock
        self._speed = speed
        self._begun_s = clock.now_s()
        self._stopped = False

    def now_s(self) -> float:
        """Return virtual time in s."""
        return (self._clock.now_s() - self._begun_s) * self._speed

    def catch_up(self) -> None:
        """Let the GPUs do what they will have done by now."""
        with self.lock:
            now_s = self.now_s()
            for gpu in self._gpus:
                if now_s > gpu.now_s:
                    gpu.advance(now_s - gpu.now_s)

    def sleep_s(self, duration_s: float) -> None:
        """Let virtual time pass, for the caller and for clients that wait for the lock."""
        with self.lock:
            if duration_s > _SHORTEST_S:
                until_s = self.now_s() + duration_s
                waiting = threading.Condition(self.lock)  # it is never notified
                while (left_s := until_s - self.now_s()) > 0:
                    waiting.wait(left_s / self._speed)
            self.catch_up()

    def run(self, due_s: Callable[[], float]) -> None:
        """Catch up whenever something is due, in virtual time, until `stop`."""
        with self.lock:
            while not self._stopped:
                self.catch_up()
                self.changed.notify_all()
                left_s = min((due_s() - self.now_s()) / self._speed, _REST_S)
                self.changed.wait(max(left_s, _SHORTEST_S))

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, or the thread has ended; the caller holds the lock."""
        while not (self._stopped or self.changed.wait_for(is_so, _LOOK_S)):
            continue

    def look_again(self) -> None:
        """Have the thread look when something is due, now that something was put in a row."""
        with self.lock:
            self.changed.notify_all()

    def stop(self) -> None:
        """End the thread."""
        with self.lock:
            self._stopped = True
            self.changed.notify_all()


@dataclass(frozen=True, slots=True)
class Served:
    """Simulated GPUs that processes share, in index order."""

    gpus: tuple[VirtualGpu, ...]
    clock: PacedClock
    setters: threading.Lock = field(default_factory=threading.Lock)  # held by the call that writes

    def due_s(self) -> float:
        """Return when the GPUs should catch up next, in virtual time."""
        now_s = self.clock.now_s()
        due_s = now_s + _REST_S
        for gpu in self.gpus:
            due_s = min(due_s, gpu.agenda.next_s)
            if gpu.running is not None:
                due_s = min(due_s, now_s + _BUSY_LOOK_S)
            if isinstance(gpu.running, StreamLoop):
                due_s = min(due_s, gpu.now_s + gpu.running.until_action_s())
        return due_s


@contextmanager
def served_gpus(
    model: str | GpuModel,
    path: Path,
    *,
    count: int = 1,
    load: Step | None = None,
    speed: float = 1.0,
) -> Iterator[Served]:
    """Serve simulated GPUs over a socket for the length of a block.

    Each runs a load over and over, if there is one; so many virtual seconds are one of the machine.
    """
    if count < 1:
        raise ValueError(f"a machine needs at least one GPU, got {count}")
    made = gpu_model(model) if isinstance(model, str) else model
    gpus = tuple(VirtualGpu(made, seed=0, unit=unit) for unit in range(count))
    served = Served(gpus, PacedClock(gpus, SystemClock(), speed=speed))
    with contextlib.ExitStack() as stack:
        if load is not None:
            kernels = [load.kernels[index] for index in load.order]
            for gpu in gpus:
                stack.enter_context(VirtualLauncher(gpu).loop(kernels))
        stack.callback(served.clock.stop)
        threading.Thread(target=served.clock.run, args=(served.due_s,), daemon=True).start()
        stack.enter_context(answering(path, functools.partial(_serve, served)))
        yield served


def _serve(served: Served, connection: socket.socket) -> None:
    pid = peer_of(connection)
    with contextlib.suppress(Gone), contextlib.closing(Life(pid)) as life:
        reader = MessageReader(connection, life.fds)
        client = _Client(served, reader, life, pid=pid)
        with contextlib.closing(client):
            while True:
                answer = client.answer(reader.receive())
                if answer is not None:
                    send(connection, answer)


class Stream:
    """One process's launches of a step on one virtual GPU."""

    def __init__(self, gpu: VirtualGpu, step: Step, *, pid: int) -> None:
        kernels = [gpu.model.kernel(step.kernels[index]) for index in step.order]
        self.waiting = 0  # launches that have not ended
        self.launches = len(kernels)
        self.gpu = gpu
        self._pid = pid
        running = gpu.running
        if isinstance(running, StreamLoop):
            self._loop, self._first = running, running.add(kernels)
        elif running is not None:
            raise ValueError("the GPU runs a load of its own: serve it without --load")
        else:
            self._loop, self._first = StreamLoop(tuple(kernels), *gpu.draw_noise()), 0
            gpu.run(self._loop)
        self._loop.pids = (*self._loop.pids, pid)

    @property
    def lost(self) -> bool:
        """Whether nothing will ever run again."""
        return self.gpu.running is not self._loop

    def work(self, first: int, end: int) -> None:
        """Put launches in the row, from one up to another."""
        if not 0 <= first <= end <= self.launches:
            raise ValueError(f"launches {first} to {end} are not in a step of {self.launches}")
        self.waiting += end - first
        self._loop.put(Entry(self, self._first + first, self._first + end))

    def then(self, action: Callable[[], None]) -> None:
        """Do something when everything put there before has ended."""
        self._loop.put(Entry(self, action=action))

    def close(self) -> None:
        """End, as when the process does: what has not run never will."""
        self._loop.drop(self)
        pids = list(self._loop.pids)
        pids.remove(self._pid)
        self._loop.pids = tuple(pids)
        if not pids and not self.lost:
            self.gpu.end()


class _Client:
    """One process that is connected; it has at most one stream, and a page that comes with it."""

    def __init__(self, served: Served, reader: MessageReader, life: Life, *, pid: int) -> None:
        self._served, self._gpus, self._clock = served, served.gpus, served.clock
        self._reader = reader
        self._pid = pid
        self._driver = SimulatedDriver(
            served.gpus, root=True, clock=served.clock, caller_lives=lambda: not life.is_over()
        )
        self._stream: Stream | None = None
        self._page: tuple[int, int] | None = None  # descriptor and length
        self._greatest = 0  # of the marks written
        self._failed = ""  # of what was put there without waiting for an answer
        self._requests: dict[str, Callable[[Message], Message | None]] = {
            "call": self._call,
            "functions": lambda _: {"functions": self._driver.functions()},
            "fault": self._breaking(
                lambda gpu, message: let_fail(gpu, str(message["name"]), message.get("value"))
            ),
            "heal": self._breaking(lambda gpu, _: heal(gpu)),
            "truth": lambda message: truth(self._gpu(message)),
            "attach": self._attach,
            "work": self._quietly(self._work),
            "write": self._quietly(self._write),
            "synchronise": self._synchronise,
        }

    def answer(self, message: Message) -> Message | None:
        """Do what a message asks; what cannot be done is said, and ends nothing."""
        do = str(message.get("do"))
        if do not in self._requests:
            return {"error": f"nothing here can do {do!r}", "hint": "", "kind": "usage"}
        try:
            return self._requests[do](message)
        except UnderclockError as exc:
            kind = "device" if isinstance(exc, DeviceError) else "usage"
            return {"error": str(exc), "hint": exc.hint, "kind": kind}
        except (ValueError, KeyError, TypeError, msgspec.ValidationError) as exc:
            return {"error": str(exc), "hint": "", "kind": "usage"}

    def close(self) -> None:
        """End, as when the process does."""
        with self._clock.lock:
            self._clock.catch_up()
            if self._stream is not None:
                self._stream.close()  # so that no write of its is left
        for fd in (*self._reader.fds, *(self._page or ())[:1]):
            os.close(fd)

    def _call(self, message: Message) -> Message:
        name = str(message["name"])
        if name not in self._driver.functions():
            raise ValueError(f"the driver has no function {name}")
        arguments = [Received(sent) for sent in message["arguments"]]
        function = getattr(self._driver, name)
        writes = name in calls.WRITES
        with self._served.setters if writes else contextlib.nullcontext():
            self._clock.catch_up()
            result: Any = function(*(argument.passed for argument in arguments))
        if writes:
            self._clock.look_again()
        if isinstance(result, bytes):
            return {"text": result.decode()}
        return {"code": int(result), "out": [argument.answer() for argument in arguments]}

    def _gpu(self, message: Message) -> VirtualGpu:
        index = int(message.get("gpu") or 0)
        if not 0 <= index < len(self._gpus):
            raise ValueError(f"there is no GPU {index}, only {len(self._gpus)}")
        self._clock.catch_up()
        return self._gpus[index]

    def _breaking(
        self, action: Callable[[VirtualGpu, Message], None]
    ) -> Callable[[Message], Message]:
        def act(message: Message) -> Message:
            with self._clock.lock:
                self._clock.catch_up()
                for gpu in self._gpus if message.get("gpu") is None else (self._gpu(message),):
                    action(gpu, message)
            self._clock.look_again()
            return {}

        return act

    def _attach(self, message: Message) -> Message:
        index = int(message["gpu"])
        if self._stream is not None:
            raise ValueError("this connection has a stream")
        if not 0 <= index < len(self._gpus):
            raise UsageError(f"there is no GPU {index}", hint=f"{len(self._gpus)} are served")
        step = msgspec.convert(message["step"], Step)
        if self._reader.fds:
            fd = self._reader.fds.pop(0)
            self._page = fd, os.fstat(fd).st_size
        with self._clock.lock:
            self._clock.catch_up()
            self._stream = Stream(self._gpus[index], step, pid=self._pid)
        return {"launches": self._stream.launches}

    def _quietly(self, put: Callable[[Message, Stream], None]) -> Callable[[Message], None]:
        """Put something in the row; an error is raised at the next synchronisation."""

        def quiet(message: Message) -> None:
            try:
                with self._clock.lock:
                    put(message, self._attached())
                    self._clock.look_again()
            except (ValueError, KeyError, DeviceError) as exc:
                self._failed = self._failed or str(exc)

        return quiet

    def _attached(self) -> Stream:
        if self._stream is None:
            raise ValueError("no step was loaded")
        if self._stream.lost:
            raise DeviceError("the GPU fell off the bus", hint="reboot the machine")
        return self._stream

    def _work(self, message: Message, stream: Stream) -> None:
        self._clock.wait_until(lambda: stream.waiting < _WAITING or stream.lost)
        self._clock.catch_up()
        stream.work(int(message["first"]), int(message["end"]))

    def _write(self, message: Message, stream: Stream) -> None:
        page, offset, value = self._page, int(message["offset"]), int(message["value"])
        if page is None:
            raise ValueError("no page came with the step")
        fd, length = page
        if offset % _WORD or not 0 <= offset <= length - _WORD:
            raise ValueError(f"there is no word at {offset} in a page of {length} bytes")
        if not 0 <= value < 1 << 32:
            raise ValueError(f"{value} is no word of 32 bits")

        def write() -> None:
            mark, shown, faults = value & _MARK, value, stream.gpu.faults
            self._greatest = max(self._greatest, mark)
            if FaultKind.MARKS_STUCK in faults:
                return
            if FaultKind.MARKS_BACKWARDS in faults:
                shown = value - mark + self._greatest + 1 - mark
            with contextlib.suppress(OSError):  # a GPU would not mind either
                os.pwrite(fd, shown.to_bytes(_WORD, "little"), offset)

        self._clock.catch_up()
        stream.then(write)

    def _synchronise(self, _message: Message) -> Message:
        ended: list[bool] = []
        with self._clock.lock:
            stream = self._attached()
            self._clock.catch_up()
            stream.then(lambda: ended.append(True))
            self._clock.look_again()
            self._clock.wait_until(lambda: bool(ended) or stream.lost)
            if not ended:
                raise DeviceError("the GPU fell off the bus", hint="reboot the machine")
        if self._failed:
            failed, self._failed = self._failed, ""
            raise ValueError(failed)
        return {}


def let_fail(gpu: VirtualGpu, name: str, value: float | None = None) -> None:
    """Let something go wrong now; the value goes with it as `Control.fault` says."""
    if name not in work.FAULT_NAMES:
        raise UsageError(f"no fault is called {name!r}", hint=name_hint(name, work.FAULT_NAMES))
    if (value is not None) != (name in work.WITH_VALUE) or (value is not None and not value > 0):
        raise UsageError(
            f"the fault {name} does not go with the value {value}",
            hint=f"a value above 0 goes with {' and '.join(sorted(work.WITH_VALUE))}, and must",
        )
    if name == work.POWER_LIMIT_CHANGED:
        gpu.limit_power(value or 0.0)
        return
    kind = work.NAMES[name]
    if kind is FaultKind.SETTER_HANGS:
        gpu.hangs_s = value or 0.0
    if kind not in gpu.faults:
        gpu.fail(kind)


def heal(gpu: VirtualGpu) -> None:
    """End everything that is wrong; a limit that was set so stays."""
    for kind in tuple(gpu.faults):
        gpu.mend(kind)


def truth(gpu: VirtualGpu) -> dict[str, Any]:
    """Return what tests may judge by, and a driver does not tell."""
    names = ("now_s", "energy_j", "power_w", "core_mhz", "mem_mhz", "core_lock", "mem_lock")
    return {name: getattr(gpu, name) for name in (*names, "limit_w", "persistent")} | {
        "faults": [kind.name.lower() for kind in gpu.faults],
        "launches": 0 if gpu.running is None else gpu.running.launches,
    }
