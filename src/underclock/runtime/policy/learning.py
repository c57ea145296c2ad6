"""One GPU of a run whose clocks are learned, as the controller drives it."""

from collections.abc import Sequence

from underclock.learning.blocks import JobLearning
from underclock.learning.pieces import kind_of
from underclock.records import AUTO, Clocks, ClockSchedule
from underclock.records.latencies import LatencyTable
from underclock.records.runs import ArmLine, StepLine
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep, timetable
from underclock.runtime.policy.arms import ExpectedRun
from underclock.runtime.policy.policy import Policy

_PIECE_S = 1e-6  # until steps were seen


class LearningPolicy(Policy):
    """Hands steps to what learns for all GPUs of the run, and holds what that chooses."""

    speaks = True

    def __init__(self, machine: Machine, schedule: ClockSchedule, job: JobLearning) -> None:
        """Join the other GPUs of the run, and begin at auto."""
        super().__init__(machine, schedule)
        self._job, self._gpu, self.changed = job, len(job.holds), job.changed
        job.holds.append(self._take)
        machine.position.always_closely = True
        machine.hold(AUTO)

    def discovered(self, places: Sequence[Sequence[object]]) -> None:
        """Cut steps into pieces from each mark to the next."""
        count = len(places)
        clocks, free = [AUTO] * count, LatencyTable.free()
        self._machine.lay_out(timetable(clocks, free, [_PIECE_S] * count, range(count)))
        self._machine.position.always_closely = True
        self._job.cut(self._gpu, tuple(map(kind_of, places)))

    def _take(self, core_mhz: Sequence[int | None]) -> None:
        """Hold one clock, or let clocks of pieces follow each other."""
        self._machine.position.always_closely = not self._job.is_over
        self.changed = None if self._job.knows_changes else self._job.changed
        # One of several may wait in a collective, which is not to be disturbed.
        self._machine.waits_low = len(self._job.holds) == 1
        clocks = [Clocks(core_mhz=mhz) for mhz in core_mhz]
        if len({*core_mhz}) == 1:
            self._machine.hold(clocks[0])
            return
        call_s, delay_s = self._job.change_s
        believed = LatencyTable.constant(delay_s, call_s=call_s)
        usual_s = self._machine.position.intervals.usual_s
        marks = self._machine.timetable.marks
        self._machine.follow(timetable(clocks, believed, usual_s, marks))

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
