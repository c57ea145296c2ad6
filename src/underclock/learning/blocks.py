"""Clocks learned while a job trains: its steps are gathered in blocks, and a learner chooses.

All GPUs of a run take the same clocks in the same steps. A block is some whole steps after its
clocks have settled; its time is that of the slowest GPU, its energy that of all. A step that was
interrupted, by a checkpoint or an evaluation, counts for none.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from underclock.core.statistics.change_point import robust_sigma
from underclock.learning.learner import Learner, LearningStage
from underclock.learning.response import BlockReading
from underclock.records import AUTO, Clocks
from underclock.records.runs import LEARNED, TRIED, ArmLine, StepLine
from underclock.units import format_duration, format_percent

_WARMING_STEPS, _WARMING_S = 5, 3.0  # a job's first steps compile, and fill caches
_BLOCK_S, _SETTLING_S = 1.5, 0.5  # the energy counter climbs ten times a second
_INTERRUPTED = 2.0  # times what a step takes at auto
_DEAR, _DEAR_S, _DEAR_STEPS = 3.0, 0.3, 2  # of the budget, and how long a block is seen before
_DEAR_ERRORS, _REMEMBERED = 4.0, 100  # standard errors; of steps at auto
_FOLLOWED, _UNFOLLOWED = 0.01, 3  # of a clock; blocks in a row that ran so much faster
_NOTHING = "no clock saves energy within the budget of time: clocks are left to the driver"


class EndedStep(Protocol):
    """A step that ended, or some in a row; ``time_s`` is the mean of these."""

    began_s: float
    time_s: float
    steps: int
    stalled_s: float

    @property
    def ended_s(self) -> float:
        """When the last of them ended."""
        ...


@dataclass(slots=True)
class _Seen:
    """What one GPU did in a block so far."""

    steps: int = 0
    time_s: float = 0.0
    energy_j: float = 0.0
    metered: int = 0  # steps whose energy is known
    read_mhz: list[float] = field(default_factory=list)

    def add(self, line: StepLine) -> None:
        self.steps += line.steps
        self.time_s += line.steps * line.time_s
        if line.energy_j is not None:
            self.metered += line.steps
            self.energy_j += line.steps * line.energy_j
        if line.core_mhz is not None:
            self.read_mhz.append(line.core_mhz)


class JobLearning:
    """Learns for all GPUs of a run.

    Args:
        core_mhz: Clocks that all of them list.
        max_slowdown: Most time over auto's, as a fraction.
        dry: Whether nothing is set, and what would be tried is chosen all the same.

    Attributes:
        holds: For each GPU, what is called with the clocks to hold from now on.
    """

    def __init__(
        self, core_mhz: Sequence[int], max_slowdown: float, *, seed: int = 0, dry: bool = False
    ) -> None:
        self._learner = Learner(core_mhz, segments=1, budget=max_slowdown, seed=seed)
        self._dry = dry
        self.holds: list[Callable[[Clocks], None]] = []
        self._active: set[int] = set()  # GPUs that have passed a step
        self._seen: dict[int, _Seen] = {}
        self._warming, self._warm_s = _WARMING_STEPS, math.nan
        self._from_s, self._latest_s = math.inf, -math.inf  # when steps count; the last that ended
        self._held = AUTO
        self._brief = _Seen()  # this block, before its energy is known
        self._autos_s: deque[float] = deque(maxlen=_REMEMBERED)  # steps at auto
        self._unfollowed = 0
        self._why = ""  # nothing is learned any more

    @property
    def label(self) -> str:
        """What steps that end now count for in the log."""
        if self._held == AUTO:
            return "auto"
        held = self._learner.stage in {LearningStage.TRIAL, LearningStage.HELD}
        return LEARNED if held else TRIED

    def passed(self, gpu: int, step: EndedStep) -> str:
        """Take note of a step of one GPU as it ends; leave clocks that cost much time at once."""
        self._active.add(gpu)
        self._latest_s = max(self._latest_s, step.ended_s)
        if self._warming > 0:
            self._warming -= step.steps
            if math.isnan(self._warm_s):
                self._warm_s = step.ended_s + _WARMING_S
            if self._warming <= 0:
                self._from_s = max(self._warm_s, step.ended_s)
        if not self._counts(step):
            return ""
        auto_s, brief = self._learner.auto_s, self._brief
        if self._held == AUTO or auto_s is None:
            self._autos_s.append(step.time_s)
            return ""
        brief.steps += step.steps
        brief.time_s += step.steps * step.time_s
        if brief.time_s < _DEAR_S or brief.steps < _DEAR_STEPS:
            return ""
        slower = brief.time_s / (brief.steps * auto_s) - 1.0
        autos_s = np.array(self._autos_s)
        scatter = robust_sigma(autos_s / np.median(autos_s) - 1.0)
        sure = _DEAR_ERRORS * scatter / math.sqrt(brief.steps)
        if slower <= _DEAR * self._learner.budget + sure:
            return ""
        return self._end_block([brief], was_left=True)

    def known(self, gpu: int, step: EndedStep, line: StepLine) -> str:
        """Take note of what a step drew; return words for the log, if any."""
        if not self._counts(step):
            return ""
        self._seen.setdefault(gpu, _Seen()).add(line)
        if self._active != self._seen.keys():
            return ""
        some = list(self._seen.values())
        if min(each.time_s for each in some) < _BLOCK_S:
            return ""
        return self._end_block(some, step.ended_s)

    def _counts(self, step: EndedStep) -> bool:
        auto_s = self._learner.auto_s
        is_whole = auto_s is None or step.time_s <= _INTERRUPTED * auto_s
        return step.began_s >= self._from_s and not step.stalled_s and is_whole and not self._why

    def _end_block(
        self, some: Sequence[_Seen], ended_s: float | None = None, *, was_left: bool = False
    ) -> str:
        """Hand a block to the learner, and hold what it chooses next."""
        learner, asked_mhz = self._learner, self._held.core_mhz
        energies_j = [each.energy_j / each.metered for each in some if each.metered]
        read_mhz = [mhz for each in some for mhz in each.read_mhz]
        ran_mhz = sum(read_mhz) / len(read_mhz) if read_mhz else asked_mhz
        if asked_mhz is not None and ran_mhz is not None and not self._dry:
            is_unfollowed = ran_mhz > (1.0 + _FOLLOWED) * asked_mhz
            self._unfollowed = self._unfollowed + 1 if is_unfollowed else 0
        before = learner.stage
        if ran_mhz is None:
            self._why = "the GPU's core clock cannot be read, so nothing can be learned"
        elif self._unfollowed == _UNFOLLOWED:
            self._why = (
                f"the driver accepted {asked_mhz} MHz, and the GPU ran at {ran_mhz:.0f} MHz: it "
                "does not follow, so its clocks are left to the driver"
            )
        else:
            learner.ended(
                BlockReading(
                    at_auto=asked_mhz is None,
                    core_mhz=np.array([float(asked_mhz or max(read_mhz))]),
                    times_s=np.array([max(each.time_s / each.steps for each in some)]),
                    energy_j=sum(energies_j) if len(energies_j) == len(some) else None,
                    steps=some[0].steps,
                ),
                was_left=was_left,
            )
        choice = -1 if self._why else int(learner.choice[0])
        clocks = AUTO if choice < 0 else Clocks(core_mhz=learner.core_mhz[choice])
        self._seen.clear()
        self._brief = _Seen()
        if clocks != self._held:
            self._held, ended_s = clocks, None
            for hold in self.holds:
                hold(clocks)
        self._from_s = self._latest_s + _SETTLING_S if ended_s is None else ended_s
        return self._why or ("" if learner.stage is before else self._news(before))

    def _news(self, before: LearningStage) -> str:
        """Say what a stage that ended found."""
        learner, stage = self._learner, self._learner.stage
        if before is LearningStage.AUTO and learner.auto_s is not None:
            return f"a step takes {format_duration(learner.auto_s)} at auto; {stage}"
        if learner.best is None:
            return _NOTHING if stage is LearningStage.HELD else str(stage)
        best = f"core {learner.core_mhz[int(learner.best[0])]} MHz"
        if stage is LearningStage.HELD and learner.saving is not None:
            energy, time = (format_percent(each.mean) for each in learner.saving)
            return f"{best} changes energy by {energy} at {time} time; {stage}"
        return f"{best} is best so far, after {learner.blocks} blocks; {stage}"

    def differences(self, gpu: int) -> tuple[ArmLine, ...]:
        """Return what the trial found so far; nothing where there was none, or it was dry."""
        learner = self._learner
        if learner.saving is None or self._dry:
            return ()
        energy, time = learner.saving
        line = ArmLine(
            gpu=gpu,
            arm=LEARNED,
            rounds=energy.repeats,
            steps=learner.trial_steps,
            time_change=time.mean,
            time_interval=time.interval,
            energy_change=energy.mean,
            energy_interval=energy.interval,
            verdict="",
        )
        return (line,)

    def ends(self) -> str:
        """Say how far learning came where it has no verdict."""
        learner = self._learner
        if learner.saving is not None or self._why:
            return self._why
        if learner.stage is LearningStage.HELD:
            return _NOTHING
        best = learner.best
        mhz = "" if best is None else f"; {learner.core_mhz[int(best[0])]} MHz was best so far"
        return (
            f"the job ended after {learner.blocks} blocks, before it was known what clocks save"
            f"{mhz}: learning takes some minutes"
        )
