"""One GPU of a run whose clocks are learned, as the controller drives it."""

from underclock.learning.blocks import JobLearning
from underclock.records import AUTO, ClockSchedule
from underclock.records.runs import ArmLine, StepLine
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import PassedStep
from underclock.runtime.policy.arms import ExpectedRun
from underclock.runtime.policy.policy import Policy


class LearningPolicy(Policy):
    """Hands steps to what learns for all GPUs of the run, and holds what that chooses."""

    speaks = True

    def __init__(self, machine: Machine, schedule: ClockSchedule, job: JobLearning) -> None:
        """Join the other GPUs of the run, and begin at auto."""
        super().__init__(machine, schedule)
        self._job, self._gpu = job, len(job.holds)
        job.holds.append(machine.hold)
        machine.hold(AUTO)

    @property
    def needs_all(self) -> bool:
        """GPUs of one job go on together or not at all."""
        return len(self._job.holds) > 1

    @property
    def label(self) -> str:
        """What its steps count for."""
        return self._job.label

    @property
    def follows(self) -> bool:
        """There is no plan."""
        return False

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
