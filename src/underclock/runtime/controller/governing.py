"""What a controller does while a server is governed: it reads notes, and asks for clocks."""

import atexit
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from underclock.hw.base import Clock, SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import is_simulated
from underclock.hw.settable import Setting
from underclock.records import Evidence
from underclock.records.latencies import changed
from underclock.records.runs import RunLine
from underclock.records.serving import ServingPlan
from underclock.runtime.controller.booking import Booking, RunTally, booked
from underclock.runtime.controller.gauges import Gauges, TelemetryBuffer
from underclock.runtime.controller.process import Setter, WorkDone, try_clocks
from underclock.runtime.policy.governor import Governor, Note
from underclock.runtime.trainer.notes import BEGIN, NOTE
from underclock.runtime.undo.guarded_gpu import GuardedGpu
from underclock.runtime.undo.processes import say
from underclock.store import as_record
from underclock.units import format_drawn, format_duration

_MOST_NOTES = 1024  # read at once; a pipe holds four times as many
_READ_EVERY_S = 10.0  # what the driver showed meanwhile is taken note of
_ENDED = "the server ended, or governs no more"


class Governing:
    """Holds what a governor says on one GPU."""

    def __init__(
        self, governor: Governor, setter: Setter, pipe: int, clock: Clock, gauges: Gauges
    ) -> None:
        self.waits_on = (pipe,)  # from the server
        self.shown = TelemetryBuffer()  # what the driver showed so far
        self._governor, self._setter, self._clock = governor, setter, clock
        self._gauges, self._began_s, self._read_s = gauges, clock.now_s(), 0.0
        self._steps = self._changes = 0

    def next_s(self) -> float:
        """When to wake it, unless a note comes before."""
        return min(self._governor.next_s(self._clock.now_s()), self._read_s)

    def wake(self, now_s: float) -> None:
        """Read what the server said, and ask for what is due; `WorkDone` where it says no more."""
        if now_s >= self._read_s:
            self._read_s = now_s + _READ_EVERY_S
            self._read()
        for note in self._notes():
            self._steps += note.kind == BEGIN
            self._governor.noted(note, now_s)
        clocks = self._governor.ask(now_s)
        if clocks is not None:
            for domain, _, to_mhz in changed(self._governor.asked, clocks):
                self._setter(Setting(domain), to_mhz)
            self._changes += 1
            self._governor.changed(clocks, self._clock.now_s())

    def end(self, bookings: Sequence[Booking]) -> None:
        """Book what the GPU drew, and say what it came to."""
        self._gauges.close()
        self._read()
        for booking in bookings:
            booking.close()
        lasted = format_duration(self._clock.now_s() - self._began_s)
        say(
            f"governed {self._steps} steps in {lasted} with {self._changes} changes of clocks; "
            f"{format_drawn(self.shown.energy_j)}"
        )

    def _read(self) -> None:
        for words in self.shown.add(self._gauges.taken()):
            say(words)

    def _notes(self) -> list[Note]:
        try:
            data = os.read(self.waits_on[0], NOTE.size * _MOST_NOTES)
        except BlockingIOError:
            return []
        if not data:
            raise WorkDone(_ENDED)
        return Note.read(data)


def begin(gpus: Mapping[str, GuardedGpu], options: Mapping[str, Any]) -> Governing:
    """Begin to govern one GPU by the file of a serving plan; notes come on standard input."""
    (armed,) = gpus.values()
    plan = as_record(Path(options["plan"]), ServingPlan)
    try_clocks(armed.set, [each.chosen.clocks for each in plan.buckets])
    pipe, clock, gpu = sys.stdin.fileno(), SystemClock(), NvmlGpu(options["index"])
    os.set_blocking(pipe, False)
    info, governor = gpu.info(), Governor(plan, options["latency_s"])
    gauges = Gauges(gpu, clock, closely_s=0.0, limit_w=info.power_limit_w)
    governing = Governing(governor, armed.set, pipe, clock, gauges)
    board = (str(info.uuid), info.name)
    tally = RunTally(plan, [board], 0, os.environ, lambda _gpu: governing.shown)
    run = RunLine(
        evidence=Evidence.SIMULATED if is_simulated() else Evidence.MEASURED,
        gpus=(info.name,),
        workload=plan.workload,
        began_s=clock.now_s(),
    )
    tally.add(run)
    atexit.register(governing.end, booked(tally))  # after the undo, which matters more
    return governing
