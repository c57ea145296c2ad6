"""Steps run under a schedule of clocks on a virtual GPU, and what they truly took."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from underclock.errors import DeviceError
from underclock.hw.simulated.driver import Rig
from underclock.hw.watching import WatchedLoop
from underclock.records import Kernel
from underclock.records.latencies import changed
from underclock.runtime.simulated import Driven, Scheduled, following


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What steps under a schedule truly took. Changes of core and of memory count apart."""

    time_s: tuple[float, ...]  # of every step
    energy_j: tuple[float, ...]  # of every step; the truth, not the counter
    planned: int  # changes in one step of the schedule
    switches: tuple[int, ...]  # changes that happened for every step, early or late as they were
    # when each of those happened, counted from the beginning of its launch; stalls do not count
    misses_s: tuple[float, ...]
    temperature_c: float  # at the end

    @property
    def dropped(self) -> int:
        """Changes that never happened: newer ones overtook them."""
        return self.planned * len(self.time_s) - sum(self.switches)


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
        UsageError: A kernel does not say what it does, or the GPU lists no such clocks.
        NotSupportedError: The GPU takes no such lock.
        NotPermittedError: This process may not lock clocks.
        DataError: The table lacks a clock that changes.
        DeviceError: The GPU fell off the bus, or refused.
    """
    device = rig.device
    with following(rig, kernels, schedule) as (loop, driven):
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
        planned=planned,
        switches=tuple(planned if free else counts[step] for step in range(steps)),
        misses_s=tuple(miss_s for _, miss_s in misses),
        temperature_c=temperature_c,
    )
