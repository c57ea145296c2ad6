"""Clocks learned from a job's steps, by one GPU or several."""

from collections.abc import Sequence

import numpy as np
import pytest

from small_training import line_of
from underclock.learning.blocks import JobLearning
from underclock.records import AUTO, Clocks
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep, State
from underclock.runtime.policy.arms import ExpectedRun
from underclock.runtime.policy.parts import observed_part
from underclock.runtime.policy.policy import LearningPolicy

_AUTO_MHZ, _AUTO_S, _AUTO_W = 1905.0, 0.1, 300.0


class Job:
    """Steps of some GPUs that take the clocks they are held at.

    Args:
        follows: Whether the driver does what it accepts.
        readable: Whether clocks can be read.
        dear: Times as long a step takes below 1900 MHz.
        scatter: Standard deviation of a step's time, as a fraction.
        odd: Times as long one step in twenty takes.
        bound: Core-bound part of each piece's time.
    """

    def __init__(
        self,
        gpus: int = 1,
        *,
        follows: bool = True,
        readable: bool = True,
        dear: float = 1.0,
        scatter: float = 1e-3,
        odd: float = 1.0,
        bound: tuple[float, ...] = (0.15,),
    ) -> None:
        self._follows, self._readable, self._dear = follows, readable, dear
        self._scatter, self._odd, self._bound = scatter, odd, np.array(bound)
        self.learning = JobLearning(range(210, 2101, 15), 0.01)
        part = observed_part()
        self.machines = [Machine(part.timetable(0)) for _ in range(gpus)]
        self.policies = [
            LearningPolicy(machine, part.schedules[0], self.learning) for machine in self.machines
        ]
        if len(bound) > 1:
            for policy in self.policies:
                policy.discovered([["step", "", 0, 1], ["enter", "head", 0, 1]][: len(bound)])
        self.asked_mhz: tuple[int | None, ...] = (None,) * len(bound)
        self.learning.holds.append(self._hold)
        self.words: list[str] = []
        self.slow = 0  # steps at clocks that cost much time
        self._now_s, self._number = 0.0, 0
        self._random = np.random.default_rng(0)

    @property
    def holds(self) -> Clocks | None:
        return self.machines[0]._held  # noqa: SLF001 - it is seen in no other way

    @property
    def left(self) -> int:
        """Blocks that were left early."""
        return self.learning._learner._left  # noqa: SLF001 - likewise

    def _hold(self, core_mhz: Sequence[int | None]) -> None:
        self.asked_mhz = tuple(core_mhz)

    def run(self, steps: int, *, energy: bool = True) -> None:
        for _ in range(steps):
            asked = np.array([float(mhz or _AUTO_MHZ) for mhz in self.asked_mhz])
            ran = asked if self._follows else np.full(len(asked), _AUTO_MHZ)
            ratio = np.minimum(ran, _AUTO_MHZ) / _AUTO_MHZ
            pieces_s = _AUTO_S / len(asked) * (1.0 - self._bound + self._bound / ratio)
            odd = self._odd if self._random.random() < 0.05 else 1.0
            pieces_s *= odd + self._random.normal(0.0, self._scatter)
            time_s, mhz = float(pieces_s.sum()), float(ran.mean())
            if mhz < 1900.0:
                time_s, self.slow = self._dear * time_s, self.slow + 1
            checkpoint_s = 5.0 if self._number % 100 == 99 else 0.0
            step = PassedStep(
                number=self._number,
                began_s=self._now_s,
                time_s=time_s + checkpoint_s,
                state=State.HELD,
                between_s=tuple(pieces_s),
            )
            for policy in self.policies:
                self.words.append(policy.passed(step))
            drawn_j = float(pieces_s @ (0.4 + 0.6 * ratio**2.4)) * _AUTO_W if energy else None
            for policy in self.policies:
                line = line_of(step, drawn_j, mhz if self._readable else None)
                self.words.append(policy.known(step, line))
            self._number, self._now_s = self._number + 1, step.ended_s


def test_clocks_are_learned_compared_with_auto_and_held() -> None:
    job = Job()
    job.run(2200)
    held = job.holds
    assert held is not None
    assert held.core_mhz is not None
    assert 1740 <= held.core_mhz <= 1845
    (line,) = job.policies[0].differences(ExpectedRun(gpu=0))
    assert line.energy_change is not None
    assert -0.09 < line.energy_change < -0.04
    assert line.time_change < 0.012
    said = [words for words in job.words if words]
    assert "a step takes 100 ms at auto" in said[0]
    assert "changes energy by" in said[-1]
    assert job.policies[0].label == "learned"
    assert job.policies[0].ends() == ""


@pytest.mark.parametrize(("scatter", "odd"), [(0.02, 1.0), (0.15, 1.0), (0.01, 3.0), (0.01, 1.6)])
def test_steps_of_varying_length_are_no_reason_to_leave_a_clock(scatter: float, odd: float) -> None:
    job = Job(scatter=scatter, odd=odd)
    job.run(4400)
    assert job.left <= 0.01 * job.learning._learner.blocks  # noqa: SLF001
    assert job.policies[0].label in {"learned", "auto"}


def test_gpus_of_one_job_take_the_same_clocks() -> None:
    job = Job(3)
    assert all(policy.needs_all for policy in job.policies)
    for _ in range(300):
        job.run(1)
        assert len({machine._held for machine in job.machines}) == 1  # noqa: SLF001
    assert job.policies[0].label == "tried" or job.holds == AUTO


@pytest.mark.parametrize("dear", [1.5, 1.03])
def test_clocks_that_cost_much_time_are_left_at_once(dear: float) -> None:
    """Of some fifteen steps of a block four show that it is too slow, once five have settled."""
    job = Job(dear=dear, bound=(0.0,))
    job.run(2200)
    assert 0 < job.slow <= 9 * job.left <= 120
    assert (job.holds or AUTO).core_mhz in {None, 1905}


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job(follows=False), "it does not follow"),
        (Job(readable=False), "core clock cannot be read"),
    ],
)
def test_a_gpu_on_which_nothing_can_be_learned_is_left_alone(job: Job, reason: str) -> None:
    job.run(1500)
    assert job.holds == AUTO
    assert reason in "".join(job.words)
    assert reason in job.policies[0].ends()
    assert job.policies[0].differences() == ()


def _timed(job: Job, steps: int) -> None:
    """Run steps, with changes of clocks as the controller times them."""
    job.run(120)
    for _ in range(3):
        job.learning.changed(2e-3, 4e-3)
    job.run(steps)


def test_pieces_long_enough_for_a_change_get_clocks_of_their_own() -> None:
    """One that memory bounds goes low, one that the core bounds stays fast."""
    job = Job(bound=(0.05, 0.9))
    _timed(job, 5000)
    (line,) = job.policies[0].differences(ExpectedRun(gpu=0))
    assert line.energy_change is not None
    assert line.energy_change < -0.06  # one clock at 1 % saves 3 %
    assert line.time_change < 0.012
    low, high = job.asked_mhz
    assert low is not None
    assert high is not None
    assert low < 1600
    assert high > 1800
    assert "in 2 segments" in "".join(job.words)
    assert job.machines[0].timetable.planned == 2
    assert line.held_mhz == (low, high)
    assert job.machines[0].state is not State.HELD or job.machines[0]._held is None  # noqa: SLF001


@pytest.mark.parametrize("delay_s", [0.05, None])
def test_slow_or_unknown_changes_leave_one_clock_to_all_pieces(delay_s: float | None) -> None:
    job = Job(bound=(0.05, 0.9))
    job.run(120)
    for _ in range(3):
        job.learning.changed(2e-3, delay_s)
    job.run(2500)
    assert len({*job.asked_mhz}) == 1
    assert job.policies[0].label in {"learned", "auto"}


@pytest.mark.parametrize(("delay_s", "gpus", "low"), [(5e-3, 1, 1), (0.05, 1, 0), (5e-3, 2, 0)])
def test_a_stall_is_waited_for_low_where_clocks_come_back_soon_and_no_other_gpu_waits(
    delay_s: float, gpus: int, low: int
) -> None:
    job = Job(gpus)
    job.learning.holds[:] = [policy._take for policy in job.policies]  # noqa: SLF001 - no more
    for _ in range(3):
        job.learning.changed(2e-3, delay_s)
    for hold in job.learning.holds:
        hold((1500,))
    assert [machine.waits_low for machine in job.machines] == [bool(low)] * gpus


def test_gpus_whose_steps_are_cut_otherwise_have_one_clock() -> None:
    job = Job(2, bound=(0.05, 0.9))
    words = job.policies[1].discovered([["step", "", 0, 1], ["enter", "tail", 0, 1]])
    assert "as in a pipeline" in words
    job.asked_mhz = (None,)
    job._bound = job._bound[:1]  # noqa: SLF001 - steps go on, and are not cut
    _timed(job, 1000)
    assert len(job.asked_mhz) == 1


def test_a_plans_clocks_and_auto_take_turns_from_the_first() -> None:
    job = Job()
    job.learning._planned = lambda places: (1800,) * len(places)  # noqa: SLF001 - as it is given
    job.policies[0].discovered([["step", "", 0, 1]])
    job.run(900)
    (line,) = job.policies[0].differences()
    assert line.held_mhz == (1800,)
    assert "is looked for" not in "".join(job.words)


def test_a_short_job_says_how_far_it_came() -> None:
    (job := Job()).run(200)
    assert "before it was known what clocks save" in job.policies[0].ends()
