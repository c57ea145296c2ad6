"""Whole steps under a plan: the clocks its launches run at, and a GPU that can run them."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.gpus.models import Latency, SwitchingModel
from underclock.hw.base import Capability, Measurer
from underclock.hw.measurer import QUICK
from underclock.records import AUTO, Clocks, Kernel, MeasurementSettings, Plan, Strategy
from underclock.records.latencies import Domain, LatencyTable
from underclock.runtime.simulated.execute import Scheduled
from underclock.stages.backends import open_measurer, open_scheduled
from underclock.stages.gpu_names import GpuKind, GpuName
from underclock.stages.sources import step_of
from underclock.stages.step_source import StepFile, StepFunction

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
        clocks: Of each launch.
        scheduled: What runs them where they change.
        wording: Which latency they were planned under, in words; ``None`` where it was none.
    """

    arm: Strategy
    clocks: tuple[Clocks, ...]
    scheduled: Scheduled
    wording: str | None = None

    @property
    def changes(self) -> bool:
        """Whether clocks change within a step."""
        return len(set(self.clocks)) > 1

    def runs_on(self, name: GpuName) -> bool:
        """Whether a GPU can run it: one pair can be held on any that runs steps at all."""
        needed = Capability.SCHEDULE if self.changes else Capability.RUN
        return needed in name.capabilities


def course_of(plan: Plan) -> Course | None:
    """Return how the step runs under a plan; ``None`` where its order of launches is unknown."""
    if not plan.order:
        return None
    schedule = plan.schedule
    if schedule is None:
        clocks = tuple(plan.kernels[plan.runs[index].name].clocks for index in plan.order)
        return Course(arm=plan.chosen, clocks=clocks, scheduled=Scheduled(clocks=clocks))
    return Course(
        arm=Strategy.ACHIEVABLE,
        clocks=schedule.clocks,
        scheduled=Scheduled(
            clocks=schedule.clocks,
            table=schedule.latencies,
            predicted_s=schedule.launch_s,
            aims_s=schedule.aims_s,
        ),
        wording=schedule.latency,
    )


def why_one_by_one(plan: Plan, course: Course | None, name: GpuName) -> str | None:
    """Say why a GPU cannot run the whole step under the plan; ``None`` where it can."""
    if name.kind is GpuKind.REPLAYED:
        return "a table only repeats what was measured before"
    if course is None:
        return f"nobody knows in which order {plan.workload} launches its kernels"
    if not course.runs_on(name):
        return (
            f"{name.text} cannot {Capability.SCHEDULE} in this version, and the plan changes them "
            "within the step"
        )
    return None


def switching_of(table: LatencyTable | None) -> SwitchingModel | None:
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
        kernels: The step's, in launch order.
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


@contextmanager
def open_whole_steps(
    plan: Plan,
    course: Course,
    name: GpuName,
    *,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    run: StepFunction | StepFile | None = None,
) -> Iterator[WholeSteps]:
    """Open a GPU that can run the step under its plan; a simulated one has the plan's power limit.

    Args:
        plan: Of a step.
        course: Of that plan.
        name: The GPU.
        measuring: How long to wait and measure; by default at each arm's own heat.
        seed: Of a simulated GPU's noise.
        run: The step's function, or where it may be found; a real GPU needs it.

    Raises:
        UsageError: No such GPU, or no traced step for a real one.
        DeviceError: The GPU cannot do what is asked.
    """
    settings = measuring or (OWN_HEAT if name.is_simulated else QUICK)
    led: Measurer | None = None
    with contextlib.ExitStack() as stack:
        if course.changes:
            measurer, led = stack.enter_context(
                open_scheduled(
                    name,
                    course.scheduled,
                    measuring=settings,
                    seed=seed,
                    switching=switching_of(course.scheduled.table),
                    limit_w=plan.power_limit_w,
                )
            )
        else:
            measurer = stack.enter_context(
                open_measurer(
                    name.text,
                    measuring=settings,
                    seed=seed,
                    step=step_of(plan),
                    run=run,
                    limit_w=plan.power_limit_w,
                )
            )
        yield WholeSteps(
            measurer=measurer,
            led=led,
            kernels=[plan.runs[index] for index in plan.order],
            planned=course.clocks,
        )
