"""Runs a step under a schedule of clocks on a virtual GPU, as the conductor does on a real one.

The machine is the same; its marks are launches that begin, and its time is the GPU's. Where
switching is taken as free nobody asks for anything: launches bring their clocks with them.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from underclock.errors import DeviceError, UsageError
from underclock.gpus.models import Latency
from underclock.hw.base import Loop
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.rig import Rig
from underclock.hw.watching import WatchedLoop
from underclock.records import AUTO, Clocks, Kernel, Mix
from underclock.records.latencies import LatencyTable, changed
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import timetable
from underclock.runtime.simulated.virtual import Driven, StepLengths

_LEAST_LAUNCHES = 2  # a single one has nothing to change clocks between


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What steps under a schedule truly took. Changes of core and of memory count apart.

    Attributes:
        time_s: Of every step.
        energy_j: Of every step; the truth, not the counter.
        lengths: Of every step against the usual one: what it took is in proportion.
        planned: Changes in one step of the schedule.
        switches: Changes that happened for every step, early or late as they were.
        misses_s: When each of those happened, counted from the beginning of its launch; stalls do
            not count.
        temperature_c: At the end.
    """

    time_s: tuple[float, ...]
    energy_j: tuple[float, ...]
    lengths: tuple[float, ...]
    planned: int
    switches: tuple[int, ...]
    misses_s: tuple[float, ...]
    temperature_c: float

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
    """What a step runs under.

    Attributes:
        clocks: One setting for each launch.
        table: What changes are believed to take; ``None`` takes them as free.
        predicted_s: What each launch is believed to take, stalls apart; not asked for where
            switching is free.
        marks: Launches that are seen to begin; ``None`` for every one.
        lengths: Of the steps.
        aims_s: How long after each launch begins a change to its clocks is to happen; by default
            as it begins.
        looks: How long after a mark it is seen; by default at once.
    """

    clocks: tuple[Clocks, ...]
    table: LatencyTable | None = None
    predicted_s: tuple[float, ...] = ()
    marks: tuple[int, ...] | None = None
    lengths: StepLengths = field(default_factory=StepLengths)
    aims_s: tuple[float, ...] = ()
    looks: Latency | None = None

    def machine(self) -> Machine | None:
        """Return what will ask for the clocks, the first held already; ``None`` if they are free.

        Raises:
            ValueError: Durations or marks that make no sense.
            DataError: The table lacks a clock that changes.
        """
        if self.table is None:
            return None
        marks = range(len(self.clocks)) if self.marks is None else self.marks
        return Machine(
            timetable(self.clocks, self.table, self.predicted_s, marks, self.aims_s),
            first=self.clocks[0],
        )


def execute(
    rig: Rig,
    kernels: Sequence[Kernel],
    schedule: Scheduled,
    *,
    steps: int,
    warm_s: float = 150.0,
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
    """Runs one step under its clocks, and looks like any launcher to what measures it.

    Attributes:
        rig: The GPU.
        schedule: Of the step.
    """

    look_s = 0.0  # what ran is known without a profiler

    rig: Rig
    schedule: Scheduled

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Loop]:
        """Keep launching the step from entry to exit.

        Raises:
            ValueError: Kernels or company that the schedule knows nothing of.
            Otherwise as `execute`.
        """
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
    """Count what happened in some rounds.

    Args:
        driven: It noted when they began.
        schedule: What it ran under.
        first: The entry of ``driven.rounds`` to begin with; entry 0 is round 1.
        steps: How many.
        temperature_c: At the end.
    """
    edges = itertools.pairwise(driven.rounds[first : first + steps + 1])
    took = [(b_s - a_s, b_j - a_j) for (a_s, a_j), (b_s, b_j) in edges]
    launches = len(schedule.clocks)
    misses = [
        (launch // launches - first - 1, ran_s - driven.began_s[launch])
        for launch, ran_s in driven.happened
        if first < launch // launches <= first + steps
    ]
    counts = Counter(step for step, _ in misses)
    planned = _changes(schedule.clocks)
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


def _changes(clocks: Sequence[Clocks]) -> int:
    """Count what changes in a round."""
    return sum(len(changed(*pair)) for pair in itertools.pairwise((clocks[-1], *clocks)))


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
