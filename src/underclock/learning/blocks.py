"""Clocks learned while a job trains: its steps are gathered in blocks, and a learner chooses.

All GPUs of a run take the same clocks in the same steps. A block is some whole steps after its
clocks have settled; its time is that of the slowest GPU, its energy that of all. A step that was
interrupted, by a checkpoint or an evaluation, counts for none.

Marks cut a step into pieces. While one clock is looked for, the controller times how long clocks
take to change; then pieces that last long enough for that get clocks of their own.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.learning.learner import Learner, LearningStage
from underclock.learning.pieces import kind_of
from underclock.learning.response import BlockReading
from underclock.records.runs import LEARNED, TRIED, ArmLine, StepLine
from underclock.units import format_duration, format_percent

_WARMING_STEPS, _WARMING_S = 5, 3.0  # a job's first steps compile, and fill caches
_BLOCK_S, _SETTLING_S = 1.5, 0.5  # the energy counter climbs ten times a second
_REMEMBERED = 100  # steps at auto
_FENCE, _LEAST_FENCE = 1.5, 0.01  # of the distance of their quartiles; of the upper one
_DEAR, _SURE = 2.0, 3.0  # of the budget; standard deviations of a sum of ranks
_FOLLOWED, _UNFOLLOWED, _UNREAD = 0.01, 3, 10  # of a clock; blocks that ran faster, or were unread
_BIN_MHZ = 8.0  # half of what core clocks are apart
_CHANGES, _MOST_CHANGES = 3, 12  # that say how long one takes
_HELD_FOR = 2.0  # times what a change takes: shorter stretches get no clock of their own
_ASSUMED_CHANGE_S = 1e-3, 9e-3  # call and delay, where nothing is set
_WHOLE = ("step",)
_PIPELINE = "GPUs are marked at different places, as in a pipeline: all get one clock together"
_NOTHING = "no clock saves energy within the budget of time: clocks are left to the driver"


class EndedStep(Protocol):
    """A step that ended, or some in a row; ``time_s`` is the mean of these."""

    began_s: float
    time_s: float
    steps: int
    stalled_s: float
    between_s: tuple[float, ...] | None

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
    was_odd: bool = False  # whether the last step was interrupted: it does not count
    read_mhz: list[float] = field(default_factory=list)
    pieces_s: list[tuple[float, ...]] = field(default_factory=list)  # of steps seen by all marks

    def add(self, step: EndedStep, line: StepLine) -> None:
        self.steps += line.steps
        self.time_s += line.steps * line.time_s
        if line.energy_j is not None:
            self.metered += line.steps
            self.energy_j += line.steps * line.energy_j
        if line.core_mhz is not None:
            self.read_mhz.append(line.core_mhz)
        if step.between_s is not None:
            self.pieces_s.append(step.between_s)


class JobLearning:
    """Learns for all GPUs of a run.

    Args:
        core_mhz: Clocks that all of them list.
        max_slowdown: Most time over auto's, as a fraction.
        dry: Whether nothing is set, and what would be tried is chosen all the same.
        held_before: Clock of each piece that an earlier run learned, which is tried first.
        planned: Returns a plan's clocks of pieces from their places, which else are tried first.

    Attributes:
        holds: For each GPU, what is called with the core clock in MHz of each piece from now on;
            ``None`` is auto.
        change_s: How long a call that sets a clock takes, and how long the clock takes from then.
    """

    def __init__(
        self,
        core_mhz: Sequence[int],
        max_slowdown: float,
        *,
        seed: int = 0,
        dry: bool = False,
        held_before: tuple[int, ...] = (),
        planned: Callable[[Sequence[Sequence[object]]], Sequence[int | None]] | None = None,
    ) -> None:
        self._core_mhz, self._budget, self._seed = core_mhz, max_slowdown, seed
        self._dry, self._held_before, self._planned = dry, held_before, planned
        self.holds: list[Callable[[Sequence[int | None]], None]] = []
        self._kinds: dict[int, tuple[Hashable, ...]] = {}  # of each GPU's pieces
        self.change_s = _ASSUMED_CHANGE_S
        self._changes_s: list[tuple[float, float]] = []
        self._begin(_WHOLE)
        self._active: set[int] = set()  # GPUs that have passed a step
        self._seen: dict[int, _Seen] = {}
        self._warming, self._warm_s = _WARMING_STEPS, math.inf
        self._from_s, self._latest_s = math.inf, -math.inf  # when steps count; the last that ended
        self._block_s: list[float] = []  # steps of this block, before their energy is known
        self._autos_s: deque[float] = deque(maxlen=_REMEMBERED)  # steps at auto
        self._longest_s = math.inf  # where one step takes longer alone, it was interrupted
        self._unfollowed = self._unread = 0
        self._why = ""  # nothing is learned any more

    def _begin(self, kinds: tuple[Hashable, ...]) -> None:
        self._cut, self._shares = kinds, np.full(len(kinds), math.nan)
        self._learner = Learner(self._core_mhz, budget=self._budget, seed=self._seed, kinds=kinds)
        if len(self._held_before) == len(kinds):
            self._learner.held_before = self._held_before
        if self._dry:
            self._learner.least_s = _HELD_FOR * sum(self.change_s)
        self._held: tuple[int | None, ...] = (None,) * len(kinds)

    def cut(self, gpu: int, places: Sequence[Sequence[object]]) -> str:
        """Take note of where a GPU's steps are cut; where that differs, they are not: say so."""
        self._kinds[gpu] = kinds = tuple(map(kind_of, places))
        if self._planned is not None and len(self._held_before) != len(places):
            planned_mhz = self._planned(places)
            self._held_before = tuple(mhz or self._core_mhz[-1] for mhz in planned_mhz)
        common = kinds if len({*self._kinds.values()}) == 1 else _WHOLE
        if common != self._cut:
            self._begin(common)
            self._hold()
        return "" if common == kinds else _PIPELINE

    def changed(self, call_s: float, delay_s: float | None) -> None:
        """Take note of what a change took; ``None`` where the power cap keeps clocks lower."""
        if delay_s is not None:
            self._changes_s.append((call_s, delay_s))
        if len(self._changes_s) >= _CHANGES:
            calls_s, delays_s = np.median(self._changes_s, axis=0)
            self.change_s = float(calls_s), float(delays_s)
            self._learner.least_s = _HELD_FOR * sum(self.change_s)

    @property
    def knows_changes(self) -> bool:
        """Whether it is known how long clocks take to change."""
        return len(self._changes_s) >= _MOST_CHANGES

    def _hold(self) -> None:
        for hold in self.holds:
            hold(self._held)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is looked for now."""
        return bool(self._why) or self._learner.stage is LearningStage.HELD

    @property
    def _is_auto(self) -> bool:
        return {*self._held} == {None}

    @property
    def label(self) -> str:
        """What steps that end now count for in the log."""
        if self._is_auto:
            return "auto"
        held = self._learner.stage in {LearningStage.TRIAL, LearningStage.HELD}
        return LEARNED if held else TRIED

    def passed(self, gpu: int, step: EndedStep) -> str:
        """Take note of a step of one GPU as it ends; leave clocks that cost much time at once."""
        self._active.add(gpu)
        self._latest_s = max(self._latest_s, step.ended_s)
        if self._warming > 0:
            self._warming -= step.steps
            self._warm_s = min(self._warm_s, step.ended_s + _WARMING_S)
            if self._warming <= 0:
                self._from_s = max(self._warm_s, step.ended_s)
        if not self._counts(step) or gpu != min(self._active):  # GPUs wait for one another
            return ""
        if self._is_auto or self._learner.auto_s is None:
            self._autos_s.append(step.time_s)
            low_s, high_s = np.quantile(self._autos_s, (0.25, 0.75))  # for the fence of Tukey
            fence_s = (1.0 + _LEAST_FENCE) * high_s + _FENCE * (high_s - low_s)
            self._longest_s = (1.0 + _DEAR * self._budget) * fence_s
            return ""
        self._block_s.append(step.time_s)
        seen = _Seen(steps=len(self._block_s), time_s=math.fsum(self._block_s))
        return self._end_block([seen], was_left=True) if self._is_dear() else ""

    def _is_dear(self) -> bool:
        """Whether steps of this block take more time over auto than twice the budget.

        A one-sided test of ranks (Mann and Whitney, 1947): a step that is much longer than all
        counts no more than one that is a little longer.
        """
        autos_s = (1.0 + _DEAR * self._budget) * np.array(self._autos_s)
        longer = float((np.array(self._block_s)[:, None] > autos_s).mean())
        some, of = len(self._block_s), len(autos_s)
        return longer > 0.5 + _SURE * math.sqrt((some + of + 1) / (12 * some * of))

    def known(self, gpu: int, step: EndedStep, line: StepLine) -> str:
        """Take note of what a step drew; return words for the log, if any."""
        if not self._counts(step):
            return ""
        seen = self._seen.setdefault(gpu, _Seen())
        seen.was_odd = step.time_s > self._longest_s and not seen.was_odd
        if not seen.was_odd:
            seen.add(step, line)
        some = list(self._seen.values())
        if self._active != self._seen.keys() or min(each.time_s for each in some) < _BLOCK_S:
            return ""
        return self._end_block(some, step.ended_s)

    def _counts(self, step: EndedStep) -> bool:
        return step.began_s >= self._from_s and not step.stalled_s and not self._why

    def _end_block(
        self, some: Sequence[_Seen], ended_s: float | None = None, *, was_left: bool = False
    ) -> str:
        """Hand a block to the learner, and hold what it chooses next."""
        learner = self._learner
        energies_j = [each.energy_j / each.metered for each in some if each.metered]
        read_mhz = [mhz for each in some for mhz in each.read_mhz]
        times_s = self._times_s(max(some, key=lambda each: each.time_s / each.steps))
        before, self._unread = learner.stage, 0 if read_mhz else self._unread + 1
        if times_s is None:  # no step was seen by all its marks: they are not cut
            self._begin(_WHOLE)
            learner = self._learner
        elif self._is_auto and not read_mhz:
            if self._unread >= _UNREAD:
                self._why = "the GPU's core clock cannot be read, so nothing can be learned"
        elif not self._is_followed(read_mhz):
            ran = f"the driver accepted {self._held[0]} MHz and ran {np.mean(read_mhz):.0f} MHz"
            self._why = f"{ran}: it does not follow, so its clocks are left to the driver"
        else:
            learner.ended(
                BlockReading(
                    at_auto=self._is_auto,
                    core_mhz=np.array([m or np.median(read_mhz) for m in self._held], dtype=float),
                    is_capped=self._is_capped(read_mhz, times_s),
                    times_s=times_s,
                    energy_j=sum(energies_j) if len(energies_j) == len(some) else None,
                    steps=some[0].steps,
                ),
                was_left=was_left,
            )
        is_auto = bool(self._why) or bool((learner.choice < 0).all())
        held = (None,) * len(self._cut) if is_auto else learner.of_pieces(learner.choice)
        self._seen.clear()
        self._block_s.clear()
        if held != self._held:
            self._held, ended_s = held, None
        if ended_s is None or learner.stage is not before:
            self._hold()
        self._from_s = self._latest_s + _SETTLING_S if ended_s is None else ended_s
        return self._why or ("" if learner.stage is before else self._news(before))

    def _times_s(self, slowest: _Seen) -> Floats | None:
        """Return what each piece took, the mean over steps; ``None`` where that was never seen."""
        step_s = slowest.time_s / slowest.steps
        if len(self._cut) == 1:
            return np.array([step_s])
        if slowest.pieces_s:
            pieces_s = np.mean(slowest.pieces_s, axis=0)
            self._shares = pieces_s / pieces_s.sum()
        return None if np.isnan(self._shares).any() else step_s * self._shares

    def _is_followed(self, read_mhz: Sequence[float]) -> bool:
        """Whether the GPU still may run at the clock it is held at; looked at where it has one."""
        asked_mhz = self._held[0]
        if asked_mhz is None or len({*self._held}) > 1 or not read_mhz or self._dry:
            return True
        is_unfollowed = bool(np.mean(read_mhz) > (1.0 + _FOLLOWED) * asked_mhz)
        self._unfollowed = self._unfollowed + 1 if is_unfollowed else 0
        return self._unfollowed < _UNFOLLOWED

    def _is_capped(self, read_mhz: Sequence[float], times_s: Floats) -> bool:
        """Whether the power cap left less than the clocks asked for, by what was read."""
        if self._is_auto or self._dry or not read_mhz:
            return False
        asked_mhz, shares = np.array(self._held, dtype=np.float64), times_s / times_s.sum()
        scatter_mhz = math.sqrt(float(shares @ (asked_mhz - shares @ asked_mhz) ** 2))
        unsure_mhz = _BIN_MHZ + 3.0 * scatter_mhz / math.sqrt(len(read_mhz))
        return bool(np.mean(read_mhz) < shares @ asked_mhz - unsure_mhz)

    def _news(self, before: LearningStage) -> str:
        """Say what a stage that ended found."""
        learner, stage = self._learner, self._learner.stage
        if before is LearningStage.AUTO and learner.auto_s is not None:
            return f"a step takes {format_duration(learner.auto_s)} at auto; {stage}"
        if learner.best is None:
            return _NOTHING if stage is LearningStage.HELD else str(stage)
        best = f"core {self._named(learner.best)}"
        if stage is LearningStage.HELD and learner.saving is not None:
            energy, time = (format_percent(each.mean) for each in learner.saving)
            return f"{best} changes energy by {energy} at {time} time; {stage}"
        return f"{best} is best so far; {stage}"

    def _named(self, best: Ints) -> str:
        mhz = [self._learner.core_mhz[int(each)] for each in best]
        if min(mhz) == max(mhz):
            return f"{mhz[0]} MHz"
        return f"{min(mhz)} to {max(mhz)} MHz in {len(mhz)} segments"

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
            held_mhz=() if learner.judged is None else learner.of_pieces(learner.judged),
        )
        return (line,)

    def ends(self) -> str:
        """Say how far learning came where it has no verdict."""
        learner = self._learner
        if learner.saving is not None or self._why:
            return self._why
        if learner.stage is LearningStage.HELD:
            return _NOTHING
        mhz = "" if learner.best is None else f"; {self._named(learner.best)} was best so far"
        return f"the job ended before it was known what clocks save{mhz}: that takes some minutes"
