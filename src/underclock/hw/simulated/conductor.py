"""Runs a step under a schedule of clocks on a virtual GPU, as a runtime would on a real one.

Where switching is taken as free there is no runtime: launches bring their clocks with them.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from underclock.errors import DeviceError, UsageError
from underclock.hw.base import Loop
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.simulated.rig import Rig
from underclock.hw.simulated.runtime import Runtime, lines_of
from underclock.hw.simulated.work import LaunchLoop
from underclock.hw.waiting import WatchedLoop
from underclock.records import AUTO, Clocks, Kernel, Mix
from underclock.records.latencies import LatencyTable, changed

_LEAST_LAUNCHES = 2  # a single one has nothing to change clocks between


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What steps under a schedule truly took. Changes of core and of memory count apart.

    Attributes:
        time_s: Of every step.
        energy_j: Of every step; the truth, not the counter.
        planned: Changes in one step of the schedule.
        switches: Changes that happened for every step, early or late as they were.
        misses_s: When each of those happened, counted from the beginning of its launch; stalls do
            not count.
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
        """Changes that never happened: newer ones overtook them."""
        return self.planned * len(self.time_s) - sum(self.switches)

    def early(self, than_s: float) -> int:
        """Return how many happened longer than that before their launch began."""
        return sum(miss_s < -than_s for miss_s in self.misses_s)

    def late(self, than_s: float) -> int:
        """Return how many happened longer than that after their launch began."""
        return sum(miss_s > than_s for miss_s in self.misses_s)


def execute(
    rig: Rig,
    kernels: Sequence[Kernel],
    clocks: Sequence[Clocks],
    table: LatencyTable | None,
    *,
    predicted_s: Sequence[float],
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
        clocks: One setting for each launch.
        table: What the runtime believes of switching; ``None`` takes it as free.
        predicted_s: What it believes each launch takes, stalls apart.
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
    _check(len(kernels), clocks, predicted_s, steps, warm_s)
    device = rig.device
    schedule = Scheduled(clocks=tuple(clocks), table=table, predicted_s=tuple(predicted_s))
    with _following(rig, kernels, schedule) as (loop, runtime):
        watched = WatchedLoop(loop, rig.clock, "running the schedule")
        rig.clock.sleep_s(warm_s)
        first = len(runtime.rounds)
        # One round more than reported, so that late changes of the last are seen.
        while len(runtime.rounds) < first + steps + 2:
            rig.clock.sleep_s(sum(predicted_s))
            watched.progress()
            if device.lost:
                raise DeviceError(
                    "the step failed: the GPU fell off the bus", hint="reboot the machine"
                )
        temperature_c = device.temperature_c
    return _summary(runtime, schedule, first, steps, temperature_c)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """What a step runs under.

    Attributes:
        clocks: One setting for each launch.
        table: What the runtime believes of switching; ``None`` takes it as free.
        predicted_s: What it believes each launch takes, stalls apart; not asked for where
            switching is free.
    """

    clocks: tuple[Clocks, ...]
    table: LatencyTable | None = None
    predicted_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduledLauncher:
    """Runs one step under its clocks, and looks like any launcher to what measures it.

    Attributes:
        rig: The GPU.
        schedule: Of the step.
    """

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
) -> Iterator[tuple[Loop, Runtime]]:
    """Launch a step over and over, each launch at its clocks, as well as the GPU can."""
    clocks, device = schedule.clocks, rig.device
    settings = tuple(dict.fromkeys(clocks))
    _check_listed(rig, settings)
    free = schedule.table is None
    lines = {} if schedule.table is None else lines_of(clocks, schedule.table)
    launcher = replace(rig.launcher, clocks=clocks) if free else rig.launcher
    held = [setting for setting in settings if not setting.is_auto]
    with ClockLeases(rig.gpu) as leases, leases.hold(held[0] if held else AUTO):
        for setting in held[1:]:
            rig.gpu.lock(setting)
        if len(settings) > 1:  # keep nothing of the trials
            rig.gpu.unlock()
            rig.gpu.lock(clocks[0])
        with launcher.loop(kernels) as loop:
            # Where nothing is asked for ahead, nobody needs to know when launches begin.
            predicted_s = schedule.predicted_s or (0.0,) * len(clocks)
            runtime = Runtime(device, lines, predicted_s)
            _tell(device, runtime)
            device.on_follow = runtime.follows
            try:
                yield loop, runtime
            finally:
                runtime.stop()
                device.on_follow = None


def _summary(
    runtime: Runtime, schedule: Scheduled, first: int, steps: int, temperature_c: float
) -> Executed:
    """Count what happened in some rounds.

    Args:
        runtime: It noted when they began.
        schedule: What it ran under.
        first: The entry of ``runtime.rounds`` to begin with; entry 0 is round 1.
        steps: How many.
        temperature_c: At the end.
    """
    edges = itertools.pairwise(runtime.rounds[first : first + steps + 1])
    took = [(b_s - a_s, b_j - a_j) for (a_s, a_j), (b_s, b_j) in edges]
    misses = [
        (launch // line.launches - first - 1, ran_s - runtime.began_s[launch])
        for line in runtime.lines.values()
        for launch, ran_s in line.happened
        if first < launch // line.launches <= first + steps
    ]
    counts = Counter(step for step, _ in misses)
    planned = _changes(schedule.clocks)
    free = schedule.table is None  # then every change happens with its launch
    return Executed(
        time_s=tuple(time_s for time_s, _ in took),
        energy_j=tuple(energy_j for _, energy_j in took),
        planned=planned,
        switches=tuple(planned if free else counts[step] for step in range(steps)),
        misses_s=tuple(miss_s for _, miss_s in misses),
        temperature_c=temperature_c,
    )


def _changes(clocks: Sequence[Clocks]) -> int:
    """Count what changes in a round."""
    return sum(len(changed(*pair)) for pair in itertools.pairwise((clocks[-1], *clocks)))


@dataclass(slots=True, kw_only=True)
class _Told(LaunchLoop):
    """A loop that tells the runtime of every launch that begins."""

    runtime: Runtime

    def progress(self, stride_s: float, kernel_s: float) -> None:
        """Count what a stride completed."""
        before = self.position
        LaunchLoop.progress(self, stride_s, kernel_s)
        self.runtime.runs(stride_s, ends=self.position != before)


def _tell(device: VirtualGpu, runtime: Runtime) -> None:
    """Have a device that just began tell the runtime what it sees."""
    begun = device.running
    if begun is None:
        raise AssertionError("the loop was entered")
    same = {each.name: getattr(begun, each.name) for each in fields(begun) if each.init}
    device.running = _Told(**same, runtime=runtime)


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
