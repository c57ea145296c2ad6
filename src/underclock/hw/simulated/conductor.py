"""Plays a schedule of clocks on a virtual GPU, as a runtime on a real one would.

The runtime is a host thread beside the GPU. It sees where the step is at the beginning of every
launch, as events tell it, and between those goes by planned durations. A change is asked for as long
ahead of its boundary as the latency table says that call and delay take, but not before the clock's
previous change is due, nor before that has very likely happened: a lock that is replaced before it
is followed never is. What is overdue when the host comes to it gives way to what is newer. Calls
block the host, one after another, and never the GPU.

What really happens is the device's doing; nothing here knows its delays.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from underclock.errors import DeviceError
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.rig import Rig
from underclock.hw.simulated.work import Activity
from underclock.hw.switchable import SwitchableNvmlGpu
from underclock.latencies import Domain, LatencyTable
from underclock.records import Clocks, Kernel

_ROUNDING_S = 1e-12
_SETTLE_S = 1.0  # after the locks that try out whether they are taken
_LEAST_LAUNCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What steps under a schedule truly took. A core and a memory clock change apart.

    Attributes:
        time_s: Of every step.
        energy_j: Of every step; the truth, not the counter.
        planned: Changes in one step of the schedule.
        switches: Changes that happened in every step, early or late as they were.
        misses_s: When each of those happened, counted from the beginning of its launch.
        temperature_c: At the end.
    """

    time_s: tuple[float, ...]
    energy_j: tuple[float, ...]
    planned: int
    switches: tuple[int, ...]
    misses_s: tuple[float, ...]
    temperature_c: float

    @property
    def dropped(self) -> int:
        """Changes that never happened: overtaken by newer ones."""
        return self.planned * len(self.time_s) - sum(self.switches)

    def early(self, than_s: float) -> int:
        """Return how many happened earlier than that before their launch began."""
        return sum(miss_s < -than_s for miss_s in self.misses_s)

    def late(self, than_s: float) -> int:
        """Return how many happened later than that after their launch began."""
        return sum(miss_s > than_s for miss_s in self.misses_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One change of one clock in a round.

    Attributes:
        at: The launch that it is for.
        to_mhz: ``None`` gives the clock back.
        lead_s: It is asked for this long ahead.
        call_s: Of which the call blocks for so long.
        sure_s: This long after the call's return it has very likely happened.
        stall_s: Nothing executes for so long when it happens.
    """

    at: int
    to_mhz: int | None
    lead_s: float
    call_s: float
    sure_s: float
    stall_s: float


@dataclass(slots=True)
class _Line:
    """One clock, and its changes round after round; a number counts them over all rounds.

    Attributes:
        set_lock: Asks the device.
        launches: In a round.
        changes: Of a round, in order.
        asked_mhz: What the runtime asked for last.
        following: Number of the next change to ask for.
        sure_s: When what was asked for last has very likely happened.
        flying: Number of the change that was asked for and has not happened.
        happened: Launch and time of all that did.
    """

    set_lock: Callable[[tuple[int, int] | None], None]
    launches: int
    changes: tuple[_Change, ...]
    asked_mhz: int | None
    following: int = 0
    sure_s: float = -math.inf
    flying: int | None = None
    happened: list[tuple[int, float]] = field(default_factory=list)

    def change(self, number: int) -> _Change:
        """Return a change by its number."""
        return self.changes[number % len(self.changes)]

    def launch(self, number: int) -> int:
        """Return which launch a change is for, over all rounds."""
        rounds, index = divmod(number, len(self.changes))
        return rounds * self.launches + self.changes[index].at


@dataclass(slots=True)
class _Told(Activity):
    """An activity that tells whenever a launch begins."""

    begins: Callable[[], None] = lambda: None

    def progress(self, stride_s: float, kernel_s: float) -> None:
        """Count what a stride completed."""
        before = self.position
        Activity.progress(self, stride_s, kernel_s)
        if self.position != before:
            self.begins()


class _Host:
    """The runtime's thread.

    Args:
        gpu: What it asks for clocks.
        lines: Of the clocks that change.
        durations_s: Planned, of every launch of a round.
    """

    def __init__(
        self, gpu: VirtualGpu, lines: dict[Domain, _Line], durations_s: Sequence[float]
    ) -> None:
        self.steps: list[tuple[float, float]] = []  # when each began, and the energy until then
        self.began_s: dict[int, float] = {}  # launches at which clocks change
        self._gpu = gpu
        self._lines = lines
        stalls_s = [0.0] * len(durations_s)
        for line in lines.values():
            for change in line.changes:
                stalls_s[change.at] += change.stall_s
        self._watched = {change.at for line in lines.values() for change in line.changes}
        whole_s = (a + b for a, b in zip(durations_s, stalls_s, strict=True))
        self._upto_s = list(itertools.accumulate(whole_s, initial=0.0))
        self._launches = len(durations_s)
        self._launch, self._since_s = 0, gpu.now_s  # the one that runs
        self._free_s = -math.inf  # when the call under way returns
        self._wakes_s, self._wake_number = math.inf, 0
        self._look_ahead()

    def begins(self) -> None:
        """Note that the next launch begins."""
        self._launch += 1
        self._since_s = self._gpu.now_s
        at = self._launch % self._launches
        if at == 0:
            self.steps.append((self._since_s, self._gpu.energy_j))
        if at in self._watched:
            self.began_s[self._launch] = self._since_s
        self._look_ahead()

    def happens(self, domain: Domain) -> None:
        """Note that a clock follows what was asked for last."""
        line = self._lines.get(domain)
        if line is not None and line.flying is not None:
            line.happened.append((line.launch(line.flying), self._gpu.now_s))
            line.flying = None

    def _begins_s(self, launch: int) -> float:
        """Return when a launch will begin, as far as the runtime can tell."""
        if launch <= self._launch:
            return -math.inf
        return self._since_s + self._planned_s(launch) - self._planned_s(self._launch)

    def _planned_s(self, launch: int) -> float:
        rounds, at = divmod(launch, self._launches)
        return rounds * self._upto_s[-1] + self._upto_s[at]

    def _due_s(self, line: _Line, number: int) -> float:
        """Return when a change should be asked for: not before the one before it is due."""
        ahead_s = self._begins_s(line.launch(number)) - line.change(number).lead_s
        return max(ahead_s, self._begins_s(line.launch(number - 1)))

    def _asks_s(self, line: _Line) -> float:
        """Return when the next change can be asked for."""
        return max(self._due_s(line, line.following), line.sure_s, self._free_s)

    def _look_ahead(self) -> None:
        """Wake up when there is something to ask for."""
        at_s = min((self._asks_s(line) for line in self._lines.values()), default=math.inf)
        if at_s < self._wakes_s:
            self._wakes_s = at_s
            self._wake_number += 1
            wake = functools.partial(self._wake, self._wake_number)
            self._gpu.agenda.add(max(at_s, self._gpu.now_s), wake)

    def _wake(self, number: int) -> None:
        if number != self._wake_number:  # replaced by an earlier one
            return
        self._wakes_s = math.inf
        due = [line for line in self._lines.values() if self._asks_s(line) <= self._now_s()]
        if due:
            self._ask(min(due, key=lambda line: self._due_s(line, line.following)))
        self._look_ahead()

    def _now_s(self) -> float:
        return self._gpu.now_s + _ROUNDING_S

    def _ask(self, line: _Line) -> None:
        """Ask for the newest change that is due, unless the clock was asked to be there."""
        number = line.following
        while self._due_s(line, number + 1) <= self._now_s():
            number += 1
        line.following = number + 1
        change = line.change(number)
        if change.to_mhz == line.asked_mhz:
            return
        line.asked_mhz = change.to_mhz
        self._free_s = self._gpu.now_s + next(self._gpu.setter_call_s)
        line.sure_s = self._free_s + change.sure_s
        self._gpu.agenda.add(self._free_s, functools.partial(_returns, line, number))


def _returns(line: _Line, number: int) -> None:
    """End a call: from now on the device delays, as it does after any call."""
    line.flying = number
    mhz = line.change(number).to_mhz
    line.set_lock(None if mhz is None else (mhz, mhz))


def execute(
    rig: Rig,
    kernels: Sequence[Kernel],
    clocks: Sequence[Clocks],
    table: LatencyTable,
    *,
    predicted_s: Sequence[float],
    steps: int,
    warm_s: float = 150.0,
) -> Executed:
    """Run a step over and over, each launch at the clocks that a schedule gives it.

    Every setting is asked for once beforehand, through the driver, so that one it refuses is found
    before anything runs; clocks are given back at the end, whatever happens. Faults that befall the
    driver in between are not played.

    Args:
        rig: The GPU; its own switching decides what happens.
        kernels: In launch order.
        clocks: One setting for each launch.
        table: What the runtime believes of switching.
        predicted_s: What it believes each launch takes, without stalls.
        steps: How many are reported.
        warm_s: How long the schedule runs before that.

    Raises:
        ValueError: Not one setting and one duration for each of two launches or more, a duration
            that is none, or nothing to report.
        UsageError: A kernel does not say what it does, or a clock is none of the GPU's.
        NotSupportedError: The GPU does not take a lock.
        NotPermittedError: This process may not lock clocks.
        DataError: The table lacks a clock that changes.
        DeviceError: The GPU fell off the bus.
    """
    _check(kernels, clocks, predicted_s, steps, warm_s)
    device = rig.device
    changes = {domain: _changes(clocks, domain, table) for domain in Domain}
    _share_the_host(changes)
    setters = {Domain.CORE: device.lock_core, Domain.MEMORY: device.lock_mem}
    lines = {
        domain: _Line(setters[domain], len(clocks), tuple(some), _mhz(clocks[0], domain))
        for domain, some in changes.items()
        if some
    }
    gpu = SwitchableNvmlGpu()
    try:
        for setting in (*dict.fromkeys(clocks), clocks[0]):
            _hold(gpu, setting)
        rig.clock.sleep_s(_SETTLE_S)
        with rig.launcher.loop(kernels):
            host = _Host(device, lines, predicted_s)
            device.activity = _told(device.activity, host.begins)
            device.on_follow = host.happens
            rig.clock.sleep_s(warm_s)
            first = len(host.steps)
            # One more than reported, so that late changes of the last are seen.
            while len(host.steps) < first + steps + 2:
                rig.clock.sleep_s(sum(predicted_s))
                if device.lost:
                    raise DeviceError("the step failed: the GPU fell off the bus")
    finally:
        del device.on_follow
        gpu.unlock()
    return Executed()
