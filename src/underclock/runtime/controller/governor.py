"""Clocks of a server's GPU, step by step, from a table of phases and batches.

Steps of a server last milliseconds and follow one another as requests come, so they are not
known beforehand. The server announces each, and the governor looks its clocks up. A change takes a
while, and where phases alternate faster than that, changing back and forth would leave the slow
phase fast and the fast one slow. So clocks go up as soon as a step wants them up, and down only
when no step has wanted them up for as long as going down and up again takes. Waiting as long as a
change costs loses at most twice what an oracle would (the ski rental problem: Karlin, Manasse,
Rudolph and Sleator, 1988).

A late request takes clocks back to auto at once. They come back after a while without another,
and that while doubles each time it was too short.
"""

import atexit
import math
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from underclock.hw.base import Clock, SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import is_simulated
from underclock.records import AUTO, SERVING, Clocks, Evidence, Pass
from underclock.records.latencies import changed
from underclock.records.runs import RunLine
from underclock.records.serving import ServingPlan
from underclock.runtime.controller.booking import Booking, RunTally, booked
from underclock.runtime.controller.gauges import Gauges, TelemetryBuffer
from underclock.runtime.controller.process import Setter, WorkDone, try_clocks
from underclock.runtime.trainer.notes import BEGIN, END, NOTE, PHASES
from underclock.runtime.undo.guarded_gpu import GuardedGpu
from underclock.runtime.undo.ownership import say
from underclock.store import as_record
from underclock.units import format_drawn, format_duration

CALM_S, MOST_CALM_S = 1.0, 64.0
"""At auto after a late request: at first, and at most."""
_FORGIVEN = 8  # calms without a late request, after which the next begins with the least again


class Note(NamedTuple):
    """What a server said."""

    kind: int  # BEGIN, END or LATE of `trainer.notes`
    phase: Pass = Pass.DECODE  # of what begins
    batch: int = 1  # sequences of it
    context: int = 1  # tokens of the longest of them
    within_s: float | None = None  # how long it may take; None for as the plan has it

    @classmethod
    def read(cls, data: bytes) -> "list[Note]":
        """Return the notes in what came from a hook: whole ones, for each is written at once."""
        return [
            cls(kind, Pass(PHASES[phase]), batch, context, None if within_s < 0.0 else within_s)
            for kind, phase, _, batch, context, within_s in NOTE.iter_unpack(data)
        ]


class Governor:
    """Chooses clocks for one GPU; while a change is under way nothing else is asked for."""

    def __init__(self, plan: ServingPlan, latency_s: float) -> None:
        self.asked: Clocks = AUTO  # last
        self._latency_s = latency_s
        self._buckets = {
            phase: sorted(
                (each for each in plan.buckets if each.pass_ is phase),
                key=lambda each: (each.batch, each.context),
            )
            for phase in SERVING
        }
        self._wanted: Clocks = AUTO
        self._recent: deque[tuple[float, Clocks]] = deque()  # wanted lately, and until when held
        self._fastest: Clocks | None = None  # of all these; None where that is to be found again
        self._free_s = -math.inf
        self._auto_s, self._forgiven_s, self._calm_s = -math.inf, -math.inf, CALM_S
        # It idles at the clocks of the smallest decode, which comes soon after, and at its lowest:
        # lower ones than its least energy takes would save little more, for nothing switches then.
        decode = self._buckets[Pass.DECODE]
        self._idle = decode[0].chosen.clocks if decode else AUTO
        self._lowest = decode[0].frontier[-1].clocks if decode else AUTO

    def noted(self, note: Note, now_s: float) -> None:
        """Take note of what the server says."""
        if note.kind == BEGIN:
            self._want(self._of(note), now_s)
        elif note.kind == END:
            may_sink = note.within_s is not None and note.within_s >= self._latency_s
            self._want(self._lowest if may_sink else self._idle, now_s)
        else:
            if now_s >= self._auto_s:  # not one of those that go on while clocks rise to auto
                again = now_s < self._forgiven_s
                self._calm_s = min(2.0 * self._calm_s, MOST_CALM_S) if again else CALM_S
            self._auto_s = now_s + self._calm_s
            self._forgiven_s = self._auto_s + _FORGIVEN * self._calm_s

    def _of(self, note: Note) -> Clocks:
        """Look up the clocks of a step: auto for one that the table has not."""
        for bucket in self._buckets.get(note.phase, ()):
            if bucket.batch >= note.batch and bucket.context >= note.context:
                break
        else:
            return AUTO
        if note.within_s is None:
            return bucket.chosen.clocks
        fitting = [each for each in bucket.frontier if each.time_interval_s[1] <= note.within_s]
        return fitting[-1].clocks if fitting else AUTO  # the last takes the least energy

    def _want(self, clocks: Clocks, now_s: float) -> None:
        if clocks != self._wanted:
            # Clocks stay up for as long as a change down and one up again take.
            self._recent.append((now_s + 2.0 * self._latency_s, self._wanted))
            self._wanted, self._fastest = clocks, None

    def _target(self, now_s: float) -> Clocks:
        """Return what clocks should be: the fastest that was wanted lately."""
        while self._recent and self._recent[0][0] <= now_s:
            self._recent.popleft()
            self._fastest = None
        if now_s < self._auto_s:
            return AUTO
        if self._fastest is None:
            self._fastest = fastest(self._wanted, *(clocks for _, clocks in self._recent))
        return self._fastest

    def next_s(self, now_s: float) -> float:
        """Return when `ask` is to be called next, unless something is noted before."""
        if self._target(now_s) != self.asked:
            return max(now_s, self._free_s)
        first_s = self._recent[0][0] if self._recent else math.inf
        return min(first_s, self._auto_s if now_s < self._auto_s else math.inf)

    def ask(self, now_s: float) -> Clocks | None:
        """Return the clocks to ask for now, if any; `changed` says that they were."""
        target = self._target(now_s)
        return target if target != self.asked and now_s >= self._free_s else None

    def changed(self, clocks: Clocks, now_s: float) -> None:
        """Take note that the driver was asked for these."""
        self.asked, self._free_s = clocks, now_s + self._latency_s


def fastest(*clocks: Clocks) -> Clocks:
    """Return clocks that are in each domain as fast as the fastest of these; auto is that."""
    core = [each.core_mhz for each in clocks]
    mem = [each.mem_mhz for each in clocks]
    return Clocks(core_mhz=_most(core), mem_mhz=_most(mem))


def _most(mhz: list[int | None]) -> int | None:
    known = [each for each in mhz if each is not None]
    return max(known) if len(known) == len(mhz) else None


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
                self._setter(domain, to_mhz)
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
