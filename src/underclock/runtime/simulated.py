"""Runs a step under a schedule of clocks on a virtual GPU, as the controller does on a real one.

The machine is the same; its marks are launches that begin, calls take time, and its time is the
GPU's. What really happens is the device's doing: the machine does not know its delays. Where
switching is taken as free nothing is asked for: launches bring their clocks.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from underclock.errors import UsageError
from underclock.hw.base import Loop
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.driver import Rig
from underclock.hw.simulated.work import FaultKind, LaunchLoop
from underclock.records import AUTO, Clocks, Kernel, Mix
from underclock.records.latencies import LatencyTable
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import Ask, timetable
from underclock.runtime.trainer.page import STEPS
from underclock.units import Domain


class Asker:
    """Drives a machine that asks one virtual GPU for clocks, in that GPU's time.

    It wakes the machine when it wants to be, calls take as long as the GPU's driver takes, and
    marks are seen when they are looked for. The machine knows nothing of what the clocks then do.
    """

    def __init__(self, gpu: VirtualGpu, machine: Machine) -> None:
        # Launch that the last accepted change of each clock is for, until that happened.
        self.flying: dict[Domain, int] = {}
        self.stopped = False  # a call under way is then as if it had not been made
        self._machine, self._gpu = machine, gpu
        self._wakes_s, self._alarm = math.inf, 0

    def shows(self, word: int, step: int) -> None:
        """Show the machine a mark as it is reached."""
        if not self.stopped:
            self._machine.saw(word, self._gpu.now_s, step)
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Set the alarm to when there is something to ask for, unless it is set earlier."""
        at_s = self._machine.next_s
        if at_s < self._wakes_s:
            self._wakes_s = at_s
            self._alarm += 1
            wake = functools.partial(self._wake, self._alarm)
            self._gpu.agenda.add(max(at_s, self._gpu.now_s), wake)

    def _wake(self, alarm: int) -> None:
        if self.stopped or alarm != self._alarm:
            return  # the alarm was set to another time meanwhile
        self._wakes_s, now_s = math.inf, self._gpu.now_s
        ask = self._machine.ask(now_s)
        if ask is not None:
            returned_s = now_s + next(self._gpu.setter_call_s)
            self._gpu.agenda.add(returned_s, functools.partial(self._returns, ask, now_s))
        self._look_ahead()

    def _returns(self, ask: Ask, called_s: float) -> None:
        """End a call: the driver holds the lock, and the clock follows when it does."""
        if self.stopped:
            return
        if FaultKind.PERMISSION_REVOKED in self._gpu.faults:
            self._machine.refused(ask, self._gpu.now_s, FaultKind.PERMISSION_REVOKED)
        else:
            if ask.launch is not None:
                self.flying[ask.domain] = ask.launch
            bounds = None if ask.to_mhz is None else (ask.to_mhz, ask.to_mhz)
            if ask.domain is Domain.CORE:
                self._gpu.lock_core(bounds)
            else:
                self._gpu.lock_mem(bounds)
            self._machine.asked(ask, called_s, self._gpu.now_s)
        self._look_ahead()


class Driven:
    """A step that runs on a virtual GPU, and the machine, if any, that asks for its clocks."""

    def __init__(self, gpu: VirtualGpu, machine: Machine | None) -> None:
        self.rounds: list[tuple[float, float]] = []  # when each began but the first; energy so far
        self.ran_s = 0.0  # time in which launches executed: a stall puts nothing off its launch
        self.began_s: dict[int, float] = {}  # `ran_s` at the launches at which clocks change
        self.happened: list[tuple[int, float]] = []  # launch a change was for, and `ran_s` then
        self._gpu = gpu
        self._asker = None if machine is None else Asker(gpu, machine)
        table = None if machine is None else machine.timetable
        self._words = {} if table is None else {at: i for i, at in enumerate(table.marks, 1)}
        some = [] if table is None else [c for each in table.changes.values() for c in each]
        self._watched = {change.at for change in some}
        self._launch = 0
        self._reaches(0)

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Have the device, which just began the step, tell what it does until the block ends."""
        begun = self._gpu.running
        if begun is None:
            raise AssertionError("the loop was entered")
        same = {each.name: getattr(begun, each.name) for each in fields(begun) if each.init}
        self._gpu.running = _Reporting(**same, driven=self)
        self._gpu.on_follow = self.follows
        try:
            yield
        finally:
            if self._asker is not None:
                self._asker.stopped = True
            self._gpu.on_follow = None

    def begins(self, launches: int) -> None:
        """Note that the next launch begins, of so many in a round."""
        self._launch += 1
        at = self._launch % launches
        if at == 0:
            self.rounds.append((self._gpu.now_s, self._gpu.energy_j))
        if at in self._watched:
            self.began_s[self._launch] = self.ran_s
        self._reaches(at)

    def follows(self, domain: Domain) -> None:
        """Note for scoring that a clock changed; the machine does not get to know."""
        launch = None if self._asker is None else self._asker.flying.pop(domain, None)
        if launch is not None:
            self.happened.append((launch, self.ran_s))

    def _reaches(self, at: int) -> None:
        """Show the machine a mark, where there is one."""
        if self._asker is not None and at in self._words:
            self._asker.shows(self._words[at], len(self.rounds) % STEPS)


@dataclass(slots=True, kw_only=True)
class _Reporting(LaunchLoop):
    """A loop that reports every launch that begins."""

    driven: Driven

    def progress(self, stride_s: float, launch_s: float) -> None:
        """Count what a stride completed."""
        before = self.position
        LaunchLoop.progress(self, stride_s, launch_s)
        self.driven.ran_s += stride_s
        if self.position != before:
            self.driven.begins(len(self.turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """What a step runs under."""

    clocks: tuple[Clocks, ...]  # one setting for each launch
    table: LatencyTable | None = None  # what changes are believed to take; None takes them as free
    # what each launch is believed to take, stalls apart; not asked for where switching is free
    predicted_s: tuple[float, ...] = ()
    marks: tuple[int, ...] | None = None  # launches that are seen to begin; None for every one
    # how long after each launch begins a change to its clocks is to happen; by default as it begins
    aims_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduledLauncher:
    """Runs one step under its clocks, and looks like any launcher to what measures it."""

    look_s = 0.0  # what ran is known without a profiler

    rig: Rig
    schedule: Scheduled

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Loop]:
        """Keep launching the step from entry to exit."""
        if mix is not None or len(kernels) != len(self.schedule.clocks):
            raise ValueError(
                f"the schedule is of {len(self.schedule.clocks)} launches and nothing else"
            )
        with following(self.rig, kernels, self.schedule) as (loop, _):
            yield loop

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a model's kernels are what they are."""
        return ()


@contextmanager
def following(
    rig: Rig, kernels: Sequence[Kernel], schedule: Scheduled
) -> Iterator[tuple[Loop, Driven]]:
    """Launch a step over and over, each launch at its clocks, as well as the GPU can."""
    clocks = schedule.clocks
    settings = tuple(dict.fromkeys(clocks))
    memories = rig.gpu.supported_mem_mhz()
    for setting in settings:
        core, memory = setting.core_mhz, setting.mem_mhz
        known = memory is None or memory in memories
        if not known or not (core is None or core in rig.gpu.supported_core_mhz(memory)):
            raise UsageError(
                f"{rig.gpu.info().name} does not list {setting}",
                hint="see `underclock doctor` for its clocks",
            )
    machine = None
    if schedule.table is not None:
        marks = range(len(clocks)) if schedule.marks is None else schedule.marks
        table = timetable(clocks, schedule.table, schedule.predicted_s, marks, schedule.aims_s)
        machine = Machine(table, first=clocks[0])
    launcher = replace(rig.launcher, clocks=clocks) if machine is None else rig.launcher
    held = [setting for setting in settings if not setting.is_auto]
    with ClockLeases(rig.gpu) as leases, leases.hold(held[0] if held else AUTO):
        for setting in held[1:]:
            rig.gpu.lock(setting)
        if len(settings) > 1:  # keep nothing of the trials
            rig.gpu.unlock()
            rig.gpu.lock(clocks[0])
        with launcher.loop(kernels) as loop:
            driven = Driven(rig.device, machine)
            with driven.driving():
                yield loop, driven
