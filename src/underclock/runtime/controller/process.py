"""The controller: the one process that sets clocks, while another one trains.

It arms an undo for every GPU, lets its work set clocks, and undoes on any end: the trainer's, its
own by a signal or an error, or the loss of every watchdog. Where it cannot, the watchdog does.

`starting.ControllerProcess` starts it and reads its messages.
"""

import atexit
import importlib
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast

from underclock.errors import UsageError
from underclock.hw.nvml_calls import SettableGpu, nvml_session, settable_gpu
from underclock.records import Clocks
from underclock.records.latencies import mhz_of
from underclock.runtime.undo.guarded_gpu import (
    GuardedGpu,
    Undone,
    foreign_control_notes,
    refuse_foreign_control,
)
from underclock.runtime.undo.ownership import Process, runtime_folder
from underclock.runtime.undo.watchdog_process import WatchdogProcess
from underclock.units import Domain

TRAINER_ENDED = "the training process ended"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Work(Protocol):
    """What a controller does between arming and undoing; it sets only through `GuardedGpu`."""

    @property
    def waits_on(self) -> tuple[int, ...]:
        """Descriptors at which it is woken too, as soon as one can be read."""
        ...

    def next_s(self) -> float:
        """When to wake it, on the monotonic clock; infinite for never, 0 for at once."""
        ...

    def wake(self, now_s: float) -> None:
        """Do what is due. `WorkDone`: there is nothing more to do."""
        ...


class WorkDone(Exception):  # noqa: N818 - an end, not an error
    """The work is at its end; the sentence says why."""


Begin = Callable[[Mapping[str, GuardedGpu], Mapping[str, Any]], Work]
"""Makes the work: of the GPUs by UUID, and of its options. It may set something already."""

Tell = Callable[[Mapping[str, Any]], None]

Setter = Callable[[Domain, float | None], None]
"""Sets a clock; ``None`` gives it back to the driver."""


def try_clocks(setter: Setter, some: Collection[Clocks]) -> None:
    """Set and give back each clock that some are to be held at, so that a refusal is known at once.

    Raises:
        NotPermittedError: A clock cannot be set.
    """
    for domain in Domain:
        held_mhz = [mhz for each in some if (mhz := mhz_of(each, domain)) is not None]
        if held_mhz:
            setter(domain, max(held_mhz))
            setter(domain, None)


def control(
    gpus: Sequence[SettableGpu],
    begin: Callable[[Mapping[str, GuardedGpu]], Work],
    *,
    trainer: int,
    folder: Path,
    watchdog: WatchdogProcess,
    tell: Tell,
) -> tuple[str, tuple[Undone, ...]]:
    """Set clocks as the work says, until the trainer or something else ends; then undo.

    Returns why it ended, in a few words, and what was undone, GPU by GPU.

    Args:
        gpus: Which GPUs the work may set.
        tell: Takes the message that everything is armed, and what was undone first.

    Raises:
        OwnedError: Another process sets one of the GPUs.
        UnderclockError: It cannot begin, or the work fails; everything was undone.
    """
    notes = foreign_control_notes()
    with asked_to_end() as asked:
        armed: dict[str, GuardedGpu] = {}
        undone: tuple[Undone, ...] = ()
        try:
            for gpu in gpus:
                # Kept at once: what fails at the next is undone here too.
                armed[gpu.uuid] = GuardedGpu(gpu, folder, share_lock=watchdog.share)
            ends = _Ends(trainer, asked)
            why = ends.why(watchdog)
            if why is None:
                work = begin(armed)
                recovered = [one.recovered._asdict() for one in armed.values()]
                tell({"state": "armed", "recovered": recovered, "notes": notes})
                why = _until_end(work, watchdog, ends)
        finally:
            undone = tuple(armed[uuid].end() for uuid in armed)
            failed = [line for one in undone for line in one.failed]
            if not failed:  # else it tries again after our end
                watchdog.close()
            elif (error := sys.exception()) is not None:
                error.add_note("; ".join(failed))
    return why, undone


class _Ends(NamedTuple):
    trainer: int  # its pidfd
    asked: socket.socket  # where signals to this process arrive as bytes

    def why(
        self, watchdog: WatchdogProcess, wait_s: float = 0.0, more: tuple[int, ...] = ()
    ) -> str | None:
        """Wait for an end or a message; return why it ends, if it does."""
        heard: list[Any] = [self.trainer, self.asked, watchdog, *more]
        ready, _, _ = select.select(heard, [], [], wait_s)
        if self.trainer in ready:
            return TRAINER_ENDED
        if self.asked in ready:
            return f"asked to end by {signal.Signals(self.asked.recv(1)[0]).name}"
        return None


def _until_end(work: Work, watchdog: WatchdogProcess, ends: _Ends) -> str:
    """Wake the work whenever it wants to be; return why that is over."""
    try:
        while True:
            now_s = time.monotonic()
            # Without a watchdog nothing more is set; what is set stays until there is another.
            due_s = math.inf
            more: tuple[int, ...] = ()
            if watchdog.watches:
                due_s, more = work.next_s(), work.waits_on
            why = ends.why(watchdog, max(0.0, min(due_s, watchdog.next_s) - now_s), more)
            if why is not None:
                return why
            now_s = time.monotonic()
            if now_s < due_s or now_s >= watchdog.next_s:  # else it has said nothing
                watchdog.poll(now_s)
            if watchdog.watches and (
                now_s >= due_s or (more and select.select(more, [], [], 0.0)[0])
            ):
                work.wake(now_s)
    except WorkDone as done:
        return str(done)


@contextmanager
def asked_to_end() -> Iterator[socket.socket]:
    """Turn signals that ask the process to end into bytes to read, so that none comes in between.

    A driver's call is never interrupted by one.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs, ExitStack() as stack:
        theirs.setblocking(False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(theirs.fileno()))
        for number in _SIGNALS:
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        yield ours


def carry_out(
    order: Mapping[str, Any], watchdog: WatchdogProcess, tell: Tell
) -> tuple[str, tuple[Undone, ...]]:
    """Do what a controller was started for.

    Args:
        order: What `ControllerProcess` writes: ``gpus``, UUIDs of what to set; ``trainer``, the
            process whose end is the controller's; ``work``, where to find the function that makes
            the work, as ``module:name``; and the ``options`` that it is called with.
        tell: Takes the message that everything is armed.

    Raises:
        UnderclockError: As `control`.
    """
    module, _, name = order["work"].partition(":")
    trainer = Process(*order["trainer"])
    try:
        pidfd = os.pidfd_open(trainer.pid)
    except ProcessLookupError:
        pidfd = -1
    if not trainer.lives:  # the number may be another's by now
        raise UsageError(f"the training process {trainer.pid} ended before anything was set for it")
    session = ExitStack()
    atexit.register(session.close)  # GPUs are read until all is written
    session.enter_context(nvml_session())
    refuse_foreign_control(order["gpus"])
    begin: Begin = getattr(importlib.import_module(module), name)
    return control(
        [settable_gpu(uuid) for uuid in order["gpus"]],
        lambda gpus: begin(gpus, order["options"]),
        trainer=pidfd,
        folder=runtime_folder(),
        watchdog=watchdog,
        tell=tell,
    )


def hold(gpus: Mapping[str, GuardedGpu], options: Mapping[str, Any]) -> Work:
    """Set what the options ask for, values by setting by UUID, and wait: work that sets once."""
    for uuid, values in options.items():
        for name, value in values.items():
            gpus[uuid].set(Domain(name), value)
    nothing = SimpleNamespace(waits_on=(), next_s=lambda: math.inf, wake=lambda _now_s: None)
    return cast("Work", nothing)  # there is nothing to do between the first setting and the undo
