"""What a machine is to do, step by step: follow the plan, hold clocks, or leave them alone.

Either a guard watches that steps are as fast as promised, or arms take turns, or clocks are
learned. Each learns of every step that ended. Schedules with fewer changes than the plan's are made
here too: without what pays least, or what the cap forbids.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from underclock.records import AUTO, Clocks, ClockSchedule, Plan, Segment, Strategy
from underclock.records.latencies import LatencyTable
from underclock.records.runs import ArmLine, StepLine
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep, timetable, timetable_of
from underclock.runtime.policy.arms import (
    LEAST_ROUNDS,
    ArmName,
    Arms,
    ExpectedRun,
    is_alike,
    parse_arms,
)
from underclock.runtime.policy.guard import Guard, Stage
from underclock.runtime.trainer.sites import scheduled
from underclock.units import format_duration

if TYPE_CHECKING:
    from underclock.learning.blocks import JobLearning  # it loads NumPy

OBSERVED = "observed"
"""What the log calls the steps of a run without a plan."""
_SIZED_BY = 12  # steps: blocks are sized by the last half of the first so many


class Policy:
    """Decides what a machine does: follow the plan, but for locks that the power cap overrules."""

    speaks = False  # whether what it says is for the user's stderr too
    # takes note of what a change of the core clock took, the call and from then on in s, if it
    # wants to know; None for the second where that did not show
    changed: Callable[[float, float | None], None] | None = None

    def __init__(self, machine: Machine, schedule: ClockSchedule, label: str = "plan") -> None:
        self._machine, self._planned, self._label = machine, schedule, label
        self._free: set[int] = set()

    @property
    def needs_all(self) -> bool:
        """Whether it is over for all GPUs of a run where it is for one."""
        return False

    @property
    def label(self) -> str:
        """What it does now, for the log."""
        return self._label

    @property
    def follows(self) -> bool:
        """Whether the plan's clocks are what is asked for now."""
        return True

    def discovered(self, places: Sequence[Sequence[object]]) -> str:
        """Take note of the places that a trainer marks; return words for the log, if any."""
        del places
        return ""

    def passed(self, step: PassedStep) -> str:
        """Take note of a step as soon as it ended; return words for the log, if any."""
        del step
        return ""

    def known(self, step: PassedStep, line: StepLine) -> str:
        """Take note of its energy, once that is known; return words for the log, if any."""
        del step, line
        return ""

    def lost(self, why: str) -> str:
        """Take note that no process marks steps any more; return words for the log, if any."""
        del why
        return ""

    def capped(self, launches: frozenset[int]) -> str:
        """Leave clocks to the driver where the power cap overrules them; return words likewise."""
        more = launches - self._free
        if not more:
            return ""
        self._free |= more
        if self.follows:
            self._hold(None)
        named = ", ".join(map(str, sorted(more)))
        return f"the cap does not sustain the locks from launches {named} on: they are left away"

    def differences(self, expected: ExpectedRun | None = None) -> tuple[ArmLine, ...]:
        """Return what arms differ by, as far as is known."""
        del expected
        return ()

    def ends(self) -> str:
        """Return what a reader should know of how far it came; empty for nothing."""
        return ""

    def _schedule(self) -> ClockSchedule:
        return without_locks(self._planned, self._free) if self._free else self._planned

    def _hold(self, clocks: Clocks | None) -> None:
        """Hold clocks whatever the launch; follow the schedule for ``None``."""
        if clocks is not None:
            self._machine.hold(clocks)
            return
        now = self._machine.timetable
        made = timetable_of(self._schedule(), now.marks)
        self._machine.follow(dataclasses.replace(made, busy=now.busy, quiet=now.quiet))


class Guarded(Policy):
    """Follows the plan while steps are as fast as promised."""

    def __init__(self, machine: Machine, plan: Plan, window: int) -> None:
        """Begin at auto, to learn what a step takes there."""
        super().__init__(machine, scheduled(plan))
        self._plan, budget = plan, plan.max_slowdown
        budget = plan.promise.time_change if budget is None else budget
        self._guard = Guard(max_slowdown=budget, has_fixed=plan.fixed is not None, window=window)
        machine.hold(AUTO)

    @property
    def label(self) -> str:
        """The guard's stage."""
        return self._guard.stage.name.lower()

    @property
    def follows(self) -> bool:
        """Whether the guard lets the plan be."""
        return self._guard.stage in {Stage.PLAN, Stage.REDUCED}

    def passed(self, step: PassedStep) -> str:
        """Let the guard judge the step; one that may be several says nothing."""
        if not step.counted:
            return ""
        words = self._guard.stepped(step.time_s, stalled=step.stalled_s > 0.0)
        if not words:
            return ""
        stage = self._guard.stage
        self._hold(AUTO if stage.at_auto else self._plan.fixed if stage is Stage.FIXED else None)
        return f"{words}; from now on: {stage}"

    def ends(self) -> str:
        """Say where the plan was never held."""
        if self._guard.stage is not Stage.LEARNING:
            return ""
        return (
            f"the plan was never held: the run ended before {self._guard.needs} steps had shown "
            "what one takes at auto, after which it is; --guard 0 holds it from the first step"
        )

    def _schedule(self) -> ClockSchedule:
        schedule = super()._schedule()
        if self._guard.stage is Stage.REDUCED:
            return without_least_paying(schedule) or schedule
        return schedule


class Alternating(Policy):
    """Lets arms take turns; of the GPUs of one run together, which share ``paces``."""

    speaks = True  # how long a verdict takes

    def __init__(
        self, machine: Machine, plan: Plan, arms: Arms, paces: list[float], steps: int | None
    ) -> None:
        super().__init__(machine, scheduled(plan))
        self._plan, self._arms, self._paces, self._steps = plan, arms, paces, steps
        autos = [arm.cost for arm in plan.arms if arm.name is Strategy.AUTO and arm.cost]
        self._auto_s = autos[0].time_s if autos else None  # what a step takes by the plan
        self._first_s: list[float] = []
        arms.size(math.fsum(scheduled(plan).launch_s))  # until steps were seen
        machine.hold(AUTO)

    @property
    def label(self) -> str:
        """Whose block it is."""
        return str(self._arms.arm or "warm-up")

    @property
    def follows(self) -> bool:
        """Whether it is the plan's."""
        return self._arms.arm is ArmName.PLAN

    def passed(self, step: PassedStep) -> str:
        """Size blocks by what the first steps take; say how long a verdict takes."""
        if len(self._first_s) >= _SIZED_BY:
            return ""
        self._first_s += [step.time_s] * min(step.steps, _SIZED_BY)
        if len(self._first_s) < _SIZED_BY:
            return ""
        if not self._paces:
            self._paces.append(statistics.median(self._first_s[_SIZED_BY // 2 :]))
        step_s, auto_s = self._paces[0], self._auto_s
        self._arms.size(step_s)
        needed, words = self._arms.needs(LEAST_ROUNDS), f"a step takes {format_duration(step_s)}"
        if auto_s is not None and not is_alike(step_s, auto_s):
            words += (
                f" and the plan's {format_duration(auto_s)}: it is another step, and there will "
            )
            return words + "be no verdict; trace and plan this one"
        words += f": a verdict takes {needed} steps, about {format_duration(needed * step_s)}, "
        has = "" if self._steps is None else f"; this one has {self._steps}"
        return f"{words}and a run of fewer has none{has}"

    def known(self, step: PassedStep, line: StepLine) -> str:
        """Count the step for its arm."""
        begins = self._arms.stepped(step, line.energy_j)
        if begins is not None:
            at_fixed = self._plan.fixed if begins is ArmName.BEST_FIXED else None
            self._hold(None if begins is ArmName.PLAN else at_fixed or AUTO)
        return ""

    def differences(self, expected: ExpectedRun | None = None) -> tuple[ArmLine, ...]:
        """Compare the arms over the rounds that are over."""
        cost = self._plan.headline.cost
        return self._arms.differences(
            dataclasses.replace(
                expected or ExpectedRun(),
                promise=None if cost is None else cost.energy_change,
                budget=self._plan.max_slowdown,
                auto_s=self._auto_s,
            )
        )

    def ends(self) -> str:
        """Say where no round was run whole."""
        arms = self._arms
        if self.differences():
            return ""
        return (
            f"nothing was compared: warming up and one round take {arms.needs(1)} steps, a "
            f"verdict {arms.needs(LEAST_ROUNDS)}, and {arms.seen} were seen"
        )


def policy_of(
    machine: Machine,
    plan: Plan,
    *,
    arms: str,
    window: int,
    seed: int = 0,
    paces: list[float] | None = None,
    steps: int | None = None,
) -> Policy:
    """Return what decides.

    Args:
        arms: As after ``--compare``; empty for none.
        window: Steps that a guard judges together; 0 for no guard.
        seed: Of the order in which arms take turns.
        paces: What a step takes in s, once the first GPU of the run saw some; its GPUs share it.
        steps: That the run is to have; ``None`` where that is not known.

    Raises:
        UsageError: Arms that cannot be compared.
    """
    if arms:
        names = parse_arms(arms, has_fixed=plan.fixed is not None)
        turns = Arms(names=names, warming=1, seed=seed)
        return Alternating(machine, plan, turns, [] if paces is None else paces, steps)
    return Guarded(machine, plan, window) if window else Policy(machine, scheduled(plan))


_SHARE = 0.5  # of the stretches are left away


def without_least_paying(schedule: ClockSchedule) -> ClockSchedule | None:
    """Return a schedule without its least-paying stretches; ``None`` where none can go.

    A stretch that goes runs at the clocks of the one before, which stays.
    """
    segments = list(schedule.segments)
    count = len(segments)
    pays_j = [math.inf if each.pays_j is None else each.pays_j for each in segments]
    gone: set[int] = set()
    for index in sorted(range(count), key=lambda i: pays_j[i]):
        neighbours = {(index - 1) % count, (index + 1) % count}
        if len(gone) >= _SHARE * count or pays_j[index] == math.inf:
            break
        if index in neighbours or gone & neighbours:
            continue
        gone.add(index)
    if not gone:
        return None
    for index in gone:
        clocks = segments[index - 1].clocks
        segments[index] = msgspec.structs.replace(
            segments[index], core_mhz=clocks.core_mhz, mem_mhz=clocks.mem_mhz
        )
    return _joined(schedule, segments)


def without_locks(schedule: ClockSchedule, launches: Collection[int]) -> ClockSchedule:
    """Return a schedule that leaves the core clock to the driver in some stretches."""
    kept, begins = [], 0
    for each in schedule.segments:
        kept.append(msgspec.structs.replace(each, core_mhz=None) if begins in launches else each)
        begins += each.launches
    return _joined(schedule, kept)


def _joined(schedule: ClockSchedule, segments: list[Segment]) -> ClockSchedule:
    """Return the schedule of other stretches; those of the same clocks become one."""
    joined: list[Segment] = []
    for each in segments:
        if joined and joined[-1].clocks == each.clocks:
            longer = joined[-1].launches + each.launches
            joined[-1] = msgspec.structs.replace(joined[-1], launches=longer, pays_j=None)
        else:
            joined.append(each)
    around = itertools.pairwise((joined[-1], *joined))
    switches = sum(before.clocks != after.clocks for before, after in around)
    return msgspec.structs.replace(schedule, segments=tuple(joined), switches=switches)


_BACK_WITHIN_S = 0.02  # after a stall: 0.1 % of the time where one comes every 20 s
_PIECE_S = 1e-6  # until steps were seen


class LearningPolicy(Policy):
    """Hands steps to what learns for all GPUs of the run, and holds what that chooses."""

    speaks = True

    def __init__(self, machine: Machine, schedule: ClockSchedule, job: "JobLearning") -> None:
        """Join the other GPUs of the run, and begin at auto."""
        super().__init__(machine, schedule)
        self._job, self._gpu, self.changed = job, len(job.holds), job.changed
        job.holds.append(self._take)
        machine.position.always_closely = True
        machine.hold(AUTO)

    def discovered(self, places: Sequence[Sequence[object]]) -> str:
        """Cut steps into pieces from each mark to the next."""
        count = len(places)
        clocks, free = [AUTO] * count, LatencyTable.free()
        self._machine.lay_out(timetable(clocks, free, [_PIECE_S] * count, range(count)))
        self._machine.position.always_closely = True
        return self._job.cut(self._gpu, places)

    def _take(self, core_mhz: Sequence[int | None]) -> None:
        """Hold one clock, or let clocks of pieces follow each other."""
        self._machine.position.always_closely = not self._job.is_over
        self.changed = None if self._job.knows_changes else self._job.changed
        # One of several may wait in a collective, which is not to be disturbed; and a clock that
        # comes back late costs more time than idling at a low one is worth.
        soon = sum(self._job.change_s) <= _BACK_WITHIN_S
        self._machine.waits_low = len(self._job.holds) == 1 and soon
        clocks = [Clocks(core_mhz=mhz) for mhz in core_mhz]
        if len({*core_mhz}) == 1:
            self._machine.hold(clocks[0])
            return
        call_s, delay_s = self._job.change_s
        believed = LatencyTable.constant(delay_s, call_s=call_s)
        usual_s = self._machine.position.intervals.usual_s
        self._machine.follow(timetable(clocks, believed, usual_s, self._machine.timetable.marks))

    @property
    def needs_all(self) -> bool:
        """GPUs of one job go on together or not at all."""
        return len(self._job.holds) > 1

    @property
    def label(self) -> str:
        """What its steps count for."""
        return self._job.label

    def passed(self, step: PassedStep) -> str:
        """Hand on a step."""
        return self._job.passed(self._gpu, step)

    def known(self, step: PassedStep, line: StepLine) -> str:
        """Hand on what it drew."""
        return self._job.known(self._gpu, step, line)

    def capped(self, launches: frozenset[int]) -> str:
        """Leave a lock that the power cap overrules: the learner goes by the clocks that run."""
        del launches
        return ""

    def differences(self, expected: ExpectedRun | None = None) -> tuple[ArmLine, ...]:
        """Return what the trial found."""
        return self._job.differences(0 if expected is None else expected.gpu)

    def ends(self) -> str:
        """Say how far learning came."""
        return self._job.ends()
