"""What a conductor does while a server is governed: it reads notes, and asks for clocks."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from underclock.hw.base import Clock
from underclock.hw.clock import SystemClock
from underclock.hw.settable import Setting
from underclock.records.latencies import changed
from underclock.records.serving import ServingPlan
from underclock.runtime.conductor.process import Setter, WorkDone, try_clocks
from underclock.runtime.policy.governor import Governor, Note
from underclock.runtime.trainer.notes import NOTE
from underclock.runtime.undo.armed import Armed
from underclock.store import as_record

_MOST_NOTES = 1024  # read at once; a pipe holds four times as many
_ENDED = "the server ended, or governs no more"


class Governing:
    """Holds what a governor says on one GPU.

    Attributes:
        waits_on: The pipe from the server.
    """

    def __init__(self, governor: Governor, setter: Setter, pipe: int, clock: Clock) -> None:
        self.waits_on = (pipe,)
        self._governor, self._setter, self._clock = governor, setter, clock

    def next_s(self) -> float:
        """When to wake it, unless a note comes before."""
        return self._governor.next_s(self._clock.now_s())

    def wake(self, now_s: float) -> None:
        """Read what the server said, and ask for what is due.

        Raises:
            WorkDone: The server says nothing more.
            DeviceError: The driver refuses; whoever woke it undoes everything.
        """
        for note in self._notes():
            self._governor.noted(note, now_s)
        clocks = self._governor.ask(now_s)
        if clocks is not None:
            for domain, _, to_mhz in changed(self._governor.asked, clocks):
                self._setter(Setting(domain), to_mhz)
            self._governor.changed(clocks, self._clock.now_s())

    def _notes(self) -> list[Note]:
        try:
            data = os.read(self.waits_on[0], NOTE.size * _MOST_NOTES)
        except BlockingIOError:
            return []
        if not data:
            raise WorkDone(_ENDED)
        return Note.read(data)


def begin(gpus: Mapping[str, Armed], options: Mapping[str, Any]) -> Governing:
    """Begin to govern; notes come on standard input.

    Args:
        gpus: The one GPU, by UUID.
        options: ``plan``: the file of a serving plan; ``latency_s``: what a change takes.

    Raises:
        NotPermittedError: A clock cannot be set.
    """
    (armed,) = gpus.values()
    plan = as_record(Path(options["plan"]), ServingPlan)
    try_clocks(armed.set, [each.chosen.clocks for each in plan.buckets])
    pipe = sys.stdin.fileno()
    os.set_blocking(pipe, False)
    return Governing(Governor(plan, options["latency_s"]), armed.set, pipe, SystemClock())
