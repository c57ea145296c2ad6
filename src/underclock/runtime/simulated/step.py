"""Runs a step under a schedule of clocks on a virtual GPU, as the conductor does on a real one.

The machine is the same; its marks are launches that begin, calls take time, and its time is the
GPU's. What really happens is the device's doing: nothing here that the machine is told knows its
delays. Where switching is taken as free nobody asks for anything: launches bring their clocks.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import numpy as np

from underclock.errors import DeviceError, UsageError
from underclock.gpus.models import Latency
from underclock.hw.base import Loop
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.rig import Rig
from underclock.hw.simulated.work import LaunchLoop
from underclock.hw.watching import WatchedLoop
from underclock.records import AUTO, Clocks, Kernel, Mix
from underclock.records.latencies import Domain, LatencyTable, changed
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import Ask
from underclock.runtime.machine.timetable import timetable
from underclock.runtime.simulated.asking import Asker
from underclock.runtime.trainer.page import STEPS

_LEAST_LENGTH = 0.2  # of a step that varies
_LEAST_LAUNCHES = 2  # a single one has nothing to change clocks between


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLengths:
    """Steps of a length each, as inputs of varying size make them: every launch takes that part."""

    spread: float = 0.0  # standard deviation, as a fraction
    seed: int = 0  # of the draws

    def drawn(self) -> Iterator[float]:
        """Return the length of one step after the other, against the usual one."""
        random = np.random.default_rng(self.seed)
        while True:
            yield max(1.0 + self.spread * float(random.standard_normal()), _LEAST_LENGTH)


class Driven:
    """A step that runs on a virtual GPU, and the machine, if any, that asks for its clocks.

    Marks are seen some time after they are reached, by `looks`, or at once.
    """

    def __init__(
        self,
        gpu: VirtualGpu,
        machine: Machine | None,
        lengths: StepLengths,
        looks: Latency | None = None,
    ) -> None:
        self.rounds: list[tuple[float, float]] = []  # when each began but the first; energy so far
        self.lengths: list[float] = []  # of every round, the first too
        self.ran_s = 0.0  # time in which launches executed: a stall puts nothing off its launch
        self.began_s: dict[int, float] = {}  # `ran_s` at the launches at which clocks change
        self.happened: list[tuple[int, float]] = []  # launch a change was for, and `ran_s` then
        self._gpu = gpu
        random = np.random.default_rng([lengths.seed, 1])
        looks_s = None if looks is None else looks.draws(random)
        self._asker = None if machine is None else Asker(gpu, machine, looks_s, self._flies)
        table = None if machine is None else machine.timetable
        self._words = {} if table is None else {at: i for i, at in enumerate(table.marks, 1)}
        some = [] if table is None else [c for each in table.changes.values() for c in each]
        self._watched = {change.at for change in some}
        self._flying: dict[Domain, int] = {}
        self._drawn = lengths.drawn()
        self._launch = 0
        self.length = self._draw()
        self._reaches(0)

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Have the device, which just began the step, tell what it does until the block ends."""
        begun = self._gpu.running
        if begun is None:
            raise AssertionError("the loop was entered")
        same = {each.name: getattr(begun, each.name) for each in fields(begun) if each.init}
        self._gpu.running = _Told(**same, driven=self, usual_noise=begun.time_noise)
        self._gpu.on_follow = self.follows
        try:
            yield
        finally:
            if self._asker is not None:
                self._asker.stop()
            self._gpu.on_follow = None

    def begins(self, launches: int) -> None:
        """Note that the next launch begins, of so many in a round."""
        self._launch += 1
        at = self._launch % launches
        if at == 0:
            self.rounds.append((self._gpu.now_s, self._gpu.energy_j))
            self.length = self._draw()
        if at in self._watched:
            self.began_s[self._launch] = self.ran_s
        self._reaches(at)

    def follows(self, domain: Domain) -> None:
        """Note for scoring that a clock changed; the machine does not get to know."""
        launch = self._flying.pop(domain, None)
        if launch is not None:
            self.happened.append((launch, self.ran_s))

    def _draw(self) -> float:
        self.lengths.append(next(self._drawn))
        return self.lengths[-1]

    def _reaches(self, at: int) -> None:
        """Show the machine a mark, where there is one."""
        if self._asker is not None and at in self._words:
            self._asker.shows(self._words[at], len(self.rounds) % STEPS)

    def _flies(self, ask: Ask) -> None:
        if ask.launch is not None:
            self._flying[ask.domain] = ask.launch


@dataclass(slots=True, kw_only=True)
class _Told(LaunchLoop):
    """A loop that tells of every launch that begins, and whose steps are of a length each."""

    driven: Driven
    usual_noise: float

    def __post_init__(self) -> None:
        """Begin with the first step's length."""
        LaunchLoop.__post_init__(self)
        self.time_noise = self.usual_noise * self.driven.length

    def progress(self, stride_s: float, launch_s: float) -> None:
        """Count what a stride completed."""
        before = self.position
        LaunchLoop.progress(self, stride_s, launch_s)
        self.driven.ran_s += stride_s
        if self.position != before:
            self.driven.begins(len(self.turns))
            self.time_noise = self.usual_noise * self.driven.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What steps under a schedule truly took. Changes of core and of memory count apart."""

    time_s: tuple[float, ...]  # of every step
    energy_j: tuple[float, ...]  # of every step; the truth, not the counter
    lengths: tuple[float, ...]  # of every step against the usual one: what it took is in proportion
    planned: int  # changes in one step of the schedule
    switches: tuple[int, ...]  # changes that happened for every step, early or late as they were
    # when each of those happened, counted from the beginning of its launch; stalls do not count
    misses_s: tuple[float, ...]
    temperature_c: float  # at the end

    @property
    def dropped(self) -> int:
        """Changes that never happened: newer ones overtook them."""
        return self.planned * len(self.time_s) - sum(self.switches)

    def early(self, than_s: float) -> int:
        """Return how many happened longer than that before their launch began."""
        return sum(miss_s < -than_s for miss_s in self.misses_s)

    def late(self, than_s: float) -> int:
        """Return how many happened longer than that after their launch began."""
        return sum(miss_s > than_s for miss_s in self.misses_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """What a step runs under."""

    clocks: tuple[Clocks, ...]  # one setting for each launch
    table: LatencyTable | None = None  # what changes are believed to take; None takes them as free
    # what each launch is believed to take, stalls apart; not asked for where switching is free
    predicted_s: tuple[float, ...] = ()
    marks: tuple[int, ...] | None = None  # launches that are seen to begin; None for every one
    lengths: StepLengths = field(default_factory=StepLengths)  # of the steps
    # how long after each launch begins a change to its clocks is to happen; by default as it begins
    aims_s: tuple[float, ...] = ()
    looks: Latency | None = None  # how long after a mark it is seen; by default at once

    def machine(self) -> Machine | None:
        """Return what asks for the clocks, the first held already; ``None`` if they are free."""
        if self.table is None:
            return None
        marks = range(len(self.clocks)) if self.marks is None else self.marks
        return Machine(
            timetable(self.clocks, self.table, self.predicted_s, marks, self.aims_s),
            first=self.clocks[0],
        )


def execute(
    rig: Rig, kernels: Sequence[Kernel], schedule: Scheduled, *, steps: int, warm_s: float = 150.0
) -> Executed:
    """Run a step over and over, each launch at the clocks that a schedule gives it.

    Every setting is asked for once beforehand, through the driver, so that one it refuses is found
    before anything runs; clocks are given back at the end, whatever happens. A fault that befalls
    the driver in between is not played, but for a GPU that falls off the bus.

    Args:
        rig: The GPU; its own switching decides what happens.
        kernels: In launch order.
        schedule: Of those, with their durations even where switching is free.
        steps: How many are reported.
        warm_s: How long the schedule runs before those.

    Raises:
        ValueError: Not one setting and one duration for each of two launches or more, or a number
            that makes no sense.
        UsageError: A kernel does not say what it does, or the GPU lists no such clocks.
        NotSupportedError: The GPU takes no such lock.
        NotPermittedError: This process may not lock clocks.
        DataError: The table lacks a clock that changes.
        DeviceError: The GPU fell off the bus, or refused.
    """
    _check(len(kernels), schedule.clocks, schedule.predicted_s, steps, warm_s)
    device = rig.device
    with _following(rig, kernels, schedule) as (loop, driven):
        watched = WatchedLoop(loop, rig.clock, "running the schedule")
        rig.clock.sleep_s(warm_s)
        first = len(driven.rounds)
        # One round more than reported, so that late changes of the last are seen.
        while len(driven.rounds) < first + steps + 2:
            rig.clock.sleep_s(sum(schedule.predicted_s))
            watched.progress()
            if device.lost:
                raise DeviceError(
                    "the step failed: the GPU fell off the bus", hint="reboot the machine"
                )
        temperature_c = device.temperature_c
    return _summary(driven, schedule, first, steps, temperature_c)


@dataclass(frozen=True, slots=True)
class ScheduledLauncher:
    """Runs one step under its clocks, and looks like any launcher to what measures it."""

    look_s = 0.0  # what ran is known without a profiler

    rig: Rig
    schedule: Scheduled

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Loop]:
        """Keep launching the step from entry to exit; errors as of `execute`."""
        if mix is not None or len(kernels) != len(self.schedule.clocks):
            raise ValueError(
                f"the schedule is of {len(self.schedule.clocks)} launches and nothing beside them"
            )
        with _following(self.rig, kernels, self.schedule) as (loop, _):
            yield loop

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a model's kernels are what they are."""
        return ()


@contextmanager
def _following(
    rig: Rig, kernels: Sequence[Kernel], schedule: Scheduled
) -> Iterator[tuple[Loop, Driven]]:
    """Launch a step over and over, each launch at its clocks, as well as the GPU can."""
    clocks = schedule.clocks
    settings = tuple(dict.fromkeys(clocks))
    _check_listed(rig, settings)
    machine = schedule.machine()
    launcher = replace(rig.launcher, clocks=clocks) if machine is None else rig.launcher
    held = [setting for setting in settings if not setting.is_auto]
    with ClockLeases(rig.gpu) as leases, leases.hold(held[0] if held else AUTO):
        for setting in held[1:]:
            rig.gpu.lock(setting)
        if len(settings) > 1:  # keep nothing of the trials
            rig.gpu.unlock()
            rig.gpu.lock(clocks[0])
        with launcher.loop(kernels) as loop:
            driven = Driven(rig.device, machine, schedule.lengths, schedule.looks)
            with driven.driving():
                yield loop, driven


def _summary(
    driven: Driven, schedule: Scheduled, first: int, steps: int, temperature_c: float
) -> Executed:
    """Count what happened in some rounds."""
    edges = itertools.pairwise(driven.rounds[first : first + steps + 1])
    took = [(b_s - a_s, b_j - a_j) for (a_s, a_j), (b_s, b_j) in edges]
    launches = len(schedule.clocks)
    misses = [
        (launch // launches - first - 1, ran_s - driven.began_s[launch])
        for launch, ran_s in driven.happened
        if first < launch // launches <= first + steps
    ]
    counts = Counter(step for step, _ in misses)
    clocks = schedule.clocks
    planned = sum(len(changed(*pair)) for pair in itertools.pairwise((clocks[-1], *clocks)))
    free = schedule.table is None  # then every change happens with its launch
    return Executed(
        time_s=tuple(time_s for time_s, _ in took),
        energy_j=tuple(energy_j for _, energy_j in took),
        lengths=tuple(driven.lengths[first + 1 : first + steps + 1]),
        planned=planned,
        switches=tuple(planned if free else counts[step] for step in range(steps)),
        misses_s=tuple(miss_s for _, miss_s in misses),
        temperature_c=temperature_c,
    )


def _check(
    launches: int, clocks: Sequence[Clocks], predicted_s: Sequence[float], steps: int, warm_s: float
) -> None:
    if launches < _LEAST_LAUNCHES or {len(clocks), len(predicted_s)} != {launches}:
        raise ValueError(
            f"{launches} launches need as many clocks and durations, and there must be two at "
            f"least; got {len(clocks)} clocks and {len(predicted_s)} durations"
        )
    if not all(0 < duration_s < math.inf for duration_s in predicted_s):
        raise ValueError("every predicted duration must be positive and finite")
    if steps < 1 or not 0 <= warm_s < math.inf:
        raise ValueError(f"cannot report {steps} steps after {warm_s} s")


def _check_listed(rig: Rig, settings: Sequence[Clocks]) -> None:
    """Make sure that the GPU lists all clocks, and in these pairs."""
    memories = rig.gpu.supported_mem_mhz()
    for setting in settings:
        core, memory = setting.core_mhz, setting.mem_mhz
        known = memory is None or memory in memories
        if not known or not (core is None or core in rig.gpu.supported_core_mhz(memory)):
            raise UsageError(
                f"{rig.gpu.info().name} does not list {setting}",
                hint="see `underclock doctor` for its clocks",
            )
