"""Run a step at auto, under a plan and at the best fixed clock in turns, over and over.

Each repeat begins with another arm, so that drift of the GPU falls on all alike.

Shape letters: N repeats; a trailing 2 is time in s and energy in J.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.campaign.progress import Tally
from underclock.gpus.models import Latency, SwitchingModel
from underclock.hw.base import Measurer
from underclock.records import (
    AUTO,
    Clocks,
    Kernel,
    MeasurementSettings,
    Plan,
)
from underclock.records.latencies import Domain, LatencyTable
from underclock.runtime.simulated import Scheduled

# Heat follows power with some 30 s, and warm silicon leaks more: an arm at another's heat is wrong
# by some tenths of a per cent. So each arm is warmed to its own. After each beginning the
# power loop settles before anything is read: within 1 s power is still 0.1 % too high at the cap of
# a simulated H200, within 3 s it is right. What is left of the bias of a change in energy, without
# noise: 0.01 points on a simulated RTX 3080 Ti, 0.02 on an H200.
OWN_HEAT = MeasurementSettings(
    warm_s=70.0,
    steady_s=10.0,
    longest_warm_s=200.0,
    settle_s=0.2,
    kernel_warm_s=3.0,
    window_s=10.0,
    launches=2,
)

# Of an arm in its turn; the step is begun anew for each. What one beginning is off by, some 0.3 %
# of power, is averaged over them.
WINDOWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The clocks that a step under a plan runs at.

    Attributes:
        scheduled: The clocks of each launch, and what runs them where they change.
        wording: Which latency they were planned under, in words; ``None`` where it was none.
    """

    scheduled: Scheduled
    wording: str | None = None

    @property
    def clocks(self) -> Sequence[Clocks]:
        """Of each launch."""
        return self.scheduled.clocks

    @property
    def changes(self) -> bool:
        """Whether clocks change within a step."""
        return len(set(self.clocks)) > 1


def course_of(plan: Plan) -> Course | None:
    """Return how the step runs under a plan; ``None`` where its order of launches is unknown."""
    if not plan.order:
        return None
    clocks, schedule = plan.launch_clocks, plan.schedule
    if schedule is None:
        return Course(scheduled=Scheduled(clocks=clocks))
    return Course(
        scheduled=Scheduled(
            clocks=clocks,
            table=schedule.latencies,
            predicted_s=schedule.launch_s,
            aims_s=schedule.aims_s,
        ),
        wording=schedule.latency,
    )


def switching_model(table: LatencyTable | None) -> SwitchingModel | None:
    """Return how a simulated GPU switches whose latencies somebody assumed.

    Each clock takes what the slowest of its changes is said to take; only changes of the memory
    clock can stall.

    Returns:
        ``None`` where latencies were measured or do not matter: the GPU switches as it does.
    """
    if table is None or table.evidence is not None:
        return None
    slowest = {switch.domain: switch for switch in sorted(table.slowest(), key=lambda s: s.total_s)}
    calls_s = [switch.call_s for switch in slowest.values()]
    delays_s = {domain: switch.delay_s for domain, switch in slowest.items()}
    jitters = [s.jitter_s / s.delay_s for s in slowest.values() if s.delay_s > 0]
    memory = slowest.get(Domain.MEMORY)
    return SwitchingModel(
        setter=Latency(shares=(0.0, 1.0), points_s=(max(calls_s), max(calls_s))),
        core_s=delays_s.get(Domain.CORE, 0.0),
        mem_s=delays_s.get(Domain.MEMORY, 0.0),
        target_spread=0.0,
        jitter=max(jitters, default=0.0),
        mem_stall_s=0.0 if memory is None else memory.stall_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSteps:
    """Runs the step whole, at clocks that are held or under the plan.

    Attributes:
        measurer: Holds clocks.
        led: Runs the step under the plan; ``None`` where its clocks do not change.
        kernels: Of each launch.
    """

    measurer: Measurer
    led: Measurer | None
    kernels: Sequence[Kernel]

    def run(self, clocks: Sequence[Clocks], repeat: int) -> Floats:
        """Run one arm at its own heat; return time in s and energy in J of a step. Shape (2,)."""
        held = clocks[0] if len(set(clocks)) == 1 else None
        measurer = self.led if held is None else self.measurer
        if measurer is None:
            raise AssertionError("an arm whose clocks change was opened with what runs it")
        with measurer.hold(held or AUTO):
            measurer.warm(self.kernels)
            readings = [measurer.measure(self.kernels, repeat) for _ in range(WINDOWS)]
        means: Floats = np.mean([[each.time_s, each.energy_j] for each in readings], axis=0)
        return means


def run_in_turns(
    steps: WholeSteps,
    arms: Mapping[str, Sequence[Clocks]],
    repeats: int,
    progress: Callable[[Tally], None],
) -> dict[str, Floats]:
    """Run every arm as often as asked; return a step's time in s, energy in J. Shapes (N, 2)."""
    names, measurer = list(arms), steps.measurer
    doing = " and ".join(("auto", "the plan", *("the best fixed clock" for _ in names[2:])))
    started_s = measurer.now_s()

    def tell(done: int, doing: str) -> None:
        progress(Tally(done=done, total=repeats, gpu_s=measurer.now_s() - started_s, doing=doing))

    tell(0, "warming the GPU to a steady temperature")
    measurer.warm(steps.kernels)
    totals: dict[str, list[Floats]] = {name: [] for name in names}
    for repeat in range(repeats):
        tell(repeat, f"run {repeat + 1} of {doing}")
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            totals[name].append(steps.run(arms[name], repeat))
    tell(repeats, "done")
    return {name: np.stack(runs) for name, runs in totals.items()}
