"""Run auto, a plan and the best fixed clock in turns, over and over.

Each repeat begins with another arm, so that drift of the GPU falls on all alike.

Shape letters: K kernels, N repeats; a trailing 2 is time in s and energy in J.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.campaign.progress import Tally
from underclock.core.step.table import waited_counts
from underclock.gpus.models import Latency, SwitchingModel
from underclock.hw.base import Capability, Measurer, Reading
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    MeasurementSettings,
    Plan,
    Strategy,
)
from underclock.records.latencies import Domain, LatencyTable
from underclock.runtime.simulated import Scheduled

_TITLES: dict[str, str] = {Strategy.BEST_FIXED: "the best fixed clock"}


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
        arm: Of the plan; its promise is the one that such a run can judge.
        scheduled: The clocks of each launch, and what runs them where they change.
        wording: Which latency they were planned under, in words; ``None`` where it was none.
    """

    arm: Strategy
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

    @property
    def needs(self) -> Capability:
        """What a GPU must be able to do: one pair can be held on any that runs steps at all."""
        return Capability.SCHEDULE if self.changes else Capability.RUN


def course_of(plan: Plan) -> Course | None:
    """Return how the step runs under a plan; ``None`` where its order of launches is unknown."""
    if not plan.order:
        return None
    clocks, schedule = plan.launch_clocks, plan.schedule
    if schedule is None:
        return Course(arm=plan.chosen, scheduled=Scheduled(clocks=clocks))
    return Course(
        arm=Strategy.ACHIEVABLE,
        scheduled=Scheduled(
            clocks=clocks,
            table=schedule.latencies,
            predicted_s=schedule.launch_s,
            aims_s=schedule.aims_s,
        ),
        wording=schedule.latency,
    )


def why_one_by_one(
    plan: Plan, course: Course | None, gpu: str, able: frozenset[Capability]
) -> str | None:
    """Say why a GPU cannot run the whole step under the plan; ``None`` where it can."""
    if Capability.RUN not in able:
        return "a table only repeats what was measured before"
    if course is None:
        return f"nobody knows in which order {plan.workload} launches its kernels"
    if course.needs not in able:
        return (
            f"{gpu} cannot {Capability.SCHEDULE} in this version, and the plan changes them "
            "within the step"
        )
    return None


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
        planned: The clocks of each launch under the plan.
    """

    measurer: Measurer
    led: Measurer | None
    kernels: Sequence[Kernel]
    planned: Sequence[Clocks]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOne:
    """Measures every kernel alone, and adds them up: the accounting of arXiv 2601.08539.

    Attributes:
        measurer: Holds clocks.
        planned: The plan's clocks of each.
    """

    measurer: Measurer
    kernels: Sequence[Kernel]
    planned: Sequence[Clocks]

    def run(self, clocks: Sequence[Clocks], repeat: int) -> Floats:
        """Measure every kernel at its clocks; return what a step of them takes. Shape (2,)."""
        counts = waited_counts(self.kernels)
        readings = measured(self.measurer, self.kernels, clocks, repeat)
        each = np.array([[reading.time_s, reading.energy_j] for reading in readings])
        total: Floats = (each * counts[:, None]).sum(axis=0)
        return total


Runner = WholeSteps | OneByOne
"""Runs one arm after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What was run.

    Attributes:
        evidence: Of every number.
        repeats: Runs of every arm.
        clocks: Of everything that ran, by arm: ``auto``, ``plan`` and what ran besides.
        totals: Time in s and energy in J of every run, by arm. Shapes (N, 2).
        rows: How many runs of an arm can differ, by arm.
    """

    evidence: Evidence
    gpu: GpuInfo
    repeats: int
    clocks: dict[str, list[Clocks]]
    totals: dict[str, Floats]
    rows: dict[str, int]
    warnings: tuple[str, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """The arms besides auto and the plan."""
        return tuple(name for name in self.clocks if name not in {"auto", "plan"})

    def distinct(self, *names: str) -> int:
        """Return how many runs of all these arms are no repetition of a table's rows."""
        return min(self.repeats, *(self.rows[name] for name in names))


def run_in_turns(
    plan: Plan,
    runner: Runner,
    repeats: int,
    *,
    only_plan: bool,
    progress: Callable[[Tally], None],
    notes: tuple[str, ...] = (),
) -> Turns:
    """Run every arm of a plan as often as asked; ``notes`` go before the measurer's own."""
    measurer = runner.measurer
    arms = _arms(plan, runner, only_plan=only_plan)
    launches = [plan.runs[index] for index in plan.order]
    totals = _run_turns(runner, arms, repeats, progress, launches or plan.runs)
    return Turns(
        evidence=measurer.evidence,
        gpu=measurer.info(),
        repeats=repeats,
        clocks=arms,
        totals=totals,
        rows={name: _rows(runner, clocks) for name, clocks in arms.items()},
        warnings=(*notes, *measurer.notes()),
    )


def _arms(plan: Plan, runner: Runner, *, only_plan: bool) -> dict[str, list[Clocks]]:
    """Return the clocks of everything that runs in every arm worth running.

    The best fixed clock is left away where it is auto or the plan itself, or has no rows.
    """
    count = len(runner.kernels)
    arms = {"auto": [plan.baseline] * count, "plan": list(runner.planned)}
    if plan.fixed is not None and not only_plan:
        fixed = [plan.fixed] * count
        known = all(runner.measurer.can_measure(kernel, plan.fixed) for kernel in runner.kernels)
        if known and fixed not in arms.values():
            arms[Strategy.BEST_FIXED] = fixed
    return arms


def _rows(runner: Runner, arm: Sequence[Clocks]) -> int:
    """Return how many runs of an arm can differ: a table gives the rows it has, over and over."""
    asked = zip(runner.kernels, arm, strict=True)
    counts = [runner.measurer.repeats(kernel, clocks) for kernel, clocks in asked]
    return min((count for count in counts if count is not None), default=sys.maxsize)


def _run_turns(
    runner: Runner,
    arms: Mapping[str, Sequence[Clocks]],
    repeats: int,
    progress: Callable[[Tally], None],
    step: Sequence[Kernel],
) -> dict[str, Floats]:
    """Return time in s and energy in J of every run of every arm. Shapes (N, 2)."""
    names, measurer = list(arms), runner.measurer
    doing = " and ".join(("auto", "the plan", *(_TITLES[name] for name in names[2:])))
    started_s = measurer.now_s()

    def tell(done: int, doing: str) -> None:
        progress(Tally(done=done, total=repeats, gpu_s=measurer.now_s() - started_s, doing=doing))

    if Capability.RUN in measurer.capabilities:
        tell(0, "warming the GPU to a steady temperature")
        measurer.warm(step)
    totals: dict[str, list[Floats]] = {name: [] for name in names}
    for repeat in range(repeats):
        tell(repeat, f"run {repeat + 1} of {doing}")
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            totals[name].append(runner.run(arms[name], repeat))
    tell(repeats, "done")
    return {name: np.stack(runs) for name, runs in totals.items()}


def measured(
    measurer: Measurer, kernels: Sequence[Kernel], clocks: Sequence[Clocks], repeat: int
) -> list[Reading]:
    """Measure every kernel at its clocks, one change of clocks per distinct pair."""
    readings: dict[int, Reading] = {}
    for setting in dict.fromkeys(clocks):
        with measurer.hold(setting):
            for k, kernel in enumerate(kernels):
                if clocks[k] == setting:
                    readings[k] = measurer.measure([kernel], repeat)
    return [readings[k] for k in range(len(kernels))]
