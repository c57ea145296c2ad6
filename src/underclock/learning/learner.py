"""Which clocks to try in the next block of a running job, until the best are known and proven.

First auto, then one clock for the whole step, by a few looks between what is fast and where the
time budget ends, then clocks of each segment around the best of these. A step is cut at marks into
pieces; which of them share a clock is decided once it is known how fast clocks change. In both, a
block takes the choice that is best for one draw of what is known (Thompson sampling), within a
region around the best known choice that grows. When what may still be gained is little, auto and
the learned clocks take turns until the saving is known well enough; then those clocks are held.

A pure state machine: whoever drives it asks for `choice`, holds that for a block and says what the
block took. Time that looks cost is paid back: what was lost over the budget lowers the budget of
the next blocks.
"""

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.solvers import Effort, Problem, solve
from underclock.core.statistics.repeats import robust_sigma
from underclock.core.statistics.verdict import MeanChange, paired_change
from underclock.learning.pieces import merged_kinds
from underclock.learning.response import BlockReading, Response
from underclock.records import Status

_AUTO_BLOCKS = 3  # before anything is tried
_LEAST_LOOKS, _MOST_LOOKS = 5, 10  # at one clock for the whole step
_SETTLED_LOOKS, _NEAR_LOOKS = 3, 1  # of the last four, and how many clocks apart: they end it
_FIRST_LOOK = 0.5  # of the budget: the time that the first look is expected to cost
_EDGE, _EDGE_EVERY = 0.75, 3  # the same of one look in three later: what is below is not known
_GENTLE = 1.5  # of the budget: the most that any choice is expected to cost while learning
_AUTO_EVERY, _AGAIN_EVERY = 8, 3  # blocks: drift; the best so far
_REACH, _GROWS_EVERY = 4, 2  # clocks from the best known choice; blocks
_CHECKED_EVERY, _CHECKS = 10, 8  # blocks; draws
_GAIN = 0.001  # of the step's energy: less than this is not looked for
_LEAST_OF_ONE, _LEAST_BLOCKS, _MOST_BLOCKS = 30, 60, 160  # clock; of segments, for far ones
_PAYS_BACK = 20  # blocks in which lost time is made up for
_NOISE_FROM = 4  # blocks at auto that say how blocks scatter
_USUAL_NOISE = 0.004
_SURE, _LEAST_PAIRS, _MOST_PAIRS = 0.003, 16, 120  # half of an interval; of the trial
_JUDGED_EVERY = 8  # pairs: looking after each would end trials that seem surer than they are
_TOLERATED, _MOST_CORRECTIONS = 0.001, 3  # of time over the budget in a trial; and how often
_NEAR, _TRIES = 0.0005, 12  # of time; at a choice that keeps the budget as near ones did
_REMEMBERED = 24
_BARRED = 30  # blocks in which clocks as low as one that cost much time are not tried; and longer
_LOWEST, _ABOVE = 0.5, 1.35  # times auto's clock: where the rest draws less, a cap leaves more
_LATELY = 24  # blocks at auto that say what a step takes there
_AGAIN_S = 3600.0  # that learned clocks are held until they are compared with auto again
_MOST_SEGMENTS = 12  # more are learned slower than they save


class LearningStage(StrEnum):
    """What is being learned; the value is shown to the user."""

    AUTO = "auto: what a step takes is measured"
    ONE_CLOCK = "one clock for the whole step is looked for"
    SEGMENTS = "clocks near the best are tried"
    TRIAL = "auto and the learned clocks take turns"
    HELD = "the learned clocks are held"


class Learner:
    """Learns clocks for one step.

    Args:
        listed_mhz: Clocks that may be held.
        budget: Most time over auto's, as a fraction.
        kinds: Of each piece of the step, in its order; pieces of a kind share a clock.

    Attributes:
        core_mhz: Clocks to choose from, ascending; none before auto was measured.
        stage: What is being learned.
        least_s: How long clocks must be held to pay for the change to them; ``None`` where that is
            not known, and all pieces have one clock.
        held_before: Clock of each piece that an earlier run held, which is tried first; or empty.
        segments: Of each piece, which segment it is part of.
        choice: Clock of each segment in the next block, as an index; -1 for auto. Shape (S,).
        auto_s: Time of a step at auto, lately; an odd block does not move it. ``None`` before any.
        best: The best known choice; ``None`` before one was found, and where a trial did not show
            that it saves.
        saving: What the last trial found of energy and time, and `judged` of which choice.
    """

    def __init__(
        self,
        listed_mhz: Sequence[int],
        *,
        budget: float,
        seed: int = 0,
        kinds: Sequence[Hashable] = ("step",),
    ) -> None:
        self.core_mhz: tuple[int, ...] = ()
        self._listed_mhz = tuple(listed_mhz)
        self.stage = LearningStage.AUTO
        self.least_s: float | None = None
        self.held_before: tuple[int, ...] = ()
        self._kinds = tuple(kinds)
        self.segments: tuple[int, ...] = (0,) * len(self._kinds)
        self._blocks: list[BlockReading] = []  # by pieces, until these are segments
        self._auto: Ints = np.full(1, -1)
        self.choice: Ints = self._auto
        self.best: Ints | None = None
        self.judged: Ints | None = None
        self.saving: tuple[MeanChange, MeanChange] | None = None
        self.blocks = self.trial_steps = self._in_stage = 0
        self.budget = budget
        self.auto_s: float | None = None
        self._held_s = self._lost = 0.0  # since a trial; blocks' worth of time over the budget
        self._random = np.random.default_rng(seed)
        self._least: Ints = np.zeros_like(self._auto)  # of choices, for some blocks
        self._left, self._barred_until, self._slow = 0, 0, 0
        self._ones = 0  # clocks that all may share: a lock of all above auto's changes nothing
        self._response: Response | None = None
        self._autos: deque[BlockReading] = deque(maxlen=_REMEMBERED)
        self._looks: list[int] = []
        self._margin, self._corrections = 0.0, 0  # what trials found over the budget
        self._pairs: list[tuple[BlockReading, BlockReading]] = []
        self._last: BlockReading | None = None  # the first of a pair

    def of_pieces(self, choice: Ints) -> tuple[int, ...]:
        """Return the clock in MHz of each piece; ``choice`` has none at auto."""
        return tuple(self.core_mhz[int(choice[segment])] for segment in self.segments)

    def ended(self, block: BlockReading, *, was_left: bool = False) -> None:
        """Take note of a block at `choice`, and choose the next.

        Args:
            was_left: Whether it was left early, for it cost much more time than the budget: clocks
                as low are not tried again for some time.
        """
        self.blocks += 1
        self._in_stage += 1
        # What was tried often is slow by chance, unless it is twice; in a trial with auto between.
        if was_left and self.stage in {LearningStage.TRIAL, LearningStage.HELD}:
            was_left = self._slow > (self.stage is LearningStage.TRIAL)
            self._slow = max(self._slow, 1)
        else:
            self._slow = 2 * self._slow if block.at_auto else 0
        if self.stage in {LearningStage.AUTO, LearningStage.ONE_CLOCK}:
            self._blocks.append(block)
        block = block.by_segments(self.segments)
        if was_left:
            self._left += 1
            # Segments that ran lower than in the best choice are to blame, if there are any.
            lower = self.choice < (self.choice if self.best is None else self.best)
            self._least = np.where(lower | ~lower.any(), self.choice + 1, 0)
            self._barred_until = self.blocks + _BARRED * self._left
            if self.best is not None and (self.best < self._least).any():
                self.best = None
        elif self.blocks >= self._barred_until:
            self._least = np.zeros_like(self._auto)
        if block.at_auto:
            self._autos.append(block)
            self.auto_s = float(np.median([b.time_s for b in list(self._autos)[-_LATELY:]]))
        else:
            self._lost += block.time_s / self._auto_s - 1.0 - self.budget
            self._lost = max(self._lost, -self.budget * _PAYS_BACK)
        if self._response is not None and self.stage is not LearningStage.HELD:
            self._learn(block)
        if was_left and self.stage in {LearningStage.TRIAL, LearningStage.HELD}:
            self._pairs.clear()
            self._enter(LearningStage.SEGMENTS)
            self.choice = self._auto
            return
        getattr(self, f"_after_{self.stage.name.lower()}")(block)

    @property
    def _auto_s(self) -> float:
        if self.auto_s is None:
            raise AssertionError("auto was measured first")
        return self.auto_s

    def _learn(self, block: BlockReading) -> None:
        """Take in a block; how far each segment and the energy scatter is known from auto."""
        times_s = np.array([each.times_s for each in self._autos])
        energies_j = [each.energy_j for each in self._autos if each.energy_j is not None]
        time_noise = np.array([_scatter(each) for each in times_s.T])
        self._known.learn(block, time_noise, _scatter(np.array(energies_j)))

    def _enter(self, stage: LearningStage) -> None:
        self.stage, self._in_stage = stage, 0

    def _after_auto(self, block: BlockReading) -> None:
        if len(self._autos) < _AUTO_BLOCKS or block.energy_j is None:
            return
        if self.held_before:
            mhz = sorted({*self.held_before})
            segments = tuple(map(mhz.index, self.held_before))
            self._cut(segments, self._blocks)
            self.best, self.choice = np.searchsorted(self.core_mhz, mhz), self._auto
            self._enter(LearningStage.TRIAL)
            return
        self._begin(self._autos)
        self._enter(LearningStage.ONE_CLOCK)
        self._look()

    def _begin(self, blocks: Iterable[BlockReading]) -> None:
        """Choose the clocks to choose from, and know of them what blocks at auto say."""
        autos = [each for each in blocks if each.at_auto and each.energy_j is not None]
        middle = BlockReading(
            at_auto=True,
            core_mhz=np.median([each.core_mhz for each in autos], axis=0),
            times_s=np.median([each.times_s for each in autos], axis=0),
            energy_j=float(np.median([each.energy_j for each in autos if each.energy_j])),
            steps=sum(each.steps for each in autos),
        )
        if not self.core_mhz:
            auto_mhz, listed = float(middle.core_mhz.max()), self._listed_mhz
            near_mhz = min((mhz for mhz in listed if mhz >= auto_mhz), default=max(listed))
            some = {m for m in listed if _LOWEST * near_mhz <= m <= _ABOVE * near_mhz}
            self.core_mhz = tuple(sorted({*some, *self.held_before}))
            self._ones = self.core_mhz.index(near_mhz) + 1
        self._response = Response(self.core_mhz, middle)

    def _after_one_clock(self, block: BlockReading) -> None:
        looks = self._looks
        near = [each for each in looks[-4:] if abs(each - looks[-1]) <= _NEAR_LOOKS]
        settled = len(looks) >= _LEAST_LOOKS and len(near) >= _SETTLED_LOOKS
        if settled or len(looks) >= _MOST_LOOKS:
            self.best = self._mean_best(one_clock=True)
            self._split()
            self._enter(LearningStage.SEGMENTS)
            self.choice = self._auto
        elif not block.at_auto and len(looks) % 2 == 1:
            self.choice = self._auto
        else:
            self._look()

    def _split(self) -> None:
        """Let segments have clocks of their own, where they last long enough for that."""
        blocks, self._blocks = self._blocks, []
        if self.least_s is None:
            return
        lasts_s = np.median([each.times_s for each in blocks if each.at_auto], axis=0)
        segments = merged_kinds(self._kinds, lasts_s.tolist(), self.least_s, _MOST_SEGMENTS)
        count = max(segments) + 1
        if count == len(self._auto) == 1:
            return
        best, least = self.best, int(self._least[0])
        self._cut(segments, blocks)
        self._least = np.full(count, least)
        self.best = None if best is None else np.full(count, best[0])

    def _cut(self, segments: tuple[int, ...], blocks: Sequence[BlockReading]) -> None:
        """Know of segments what blocks say of pieces."""
        self.segments, self._auto = segments, np.full(max(segments) + 1, -1)
        self._least = np.zeros_like(self._auto)
        grouped = [each.by_segments(segments) for each in blocks]
        self._autos = deque((each for each in grouped if each.at_auto), maxlen=_REMEMBERED)
        self._begin(grouped)
        for block in grouped:
            self._learn(block)

    def _look(self) -> None:
        """Choose one clock for the next block."""
        response = self._known
        mean_s, _ = response.expected()
        slower = mean_s.sum(axis=0) / self._auto_s - 1.0
        slower[: self._least[0]] = slower[self._ones :] = np.inf
        if len(self._looks) % _EDGE_EVERY == 0:
            edge = _EDGE if self._looks else _FIRST_LOOK
            at = int(np.argmin(np.abs(slower - edge * self.budget)))
        else:
            time_s, energy_j = (each.sum(axis=0) for each in response.drawn(self._random))
            allowed = (slower <= _GENTLE * self.budget) & (time_s <= self._budget_s)
            at = int(np.argmin(np.where(allowed, energy_j, np.inf))) if allowed.any() else -1
        self._looks.append(at)
        self.choice = np.full(len(self._auto), at) if at >= 0 else self._auto

    def _after_segments(self, _block: BlockReading) -> None:
        if self._in_stage % _AUTO_EVERY == 0:
            self.choice = self._auto
            return
        reach = _REACH + self._in_stage // _GROWS_EVERY
        if len(self._auto) == 1:
            reach = len(self.core_mhz)  # at the power limit those far apart may cost the same time
        self.best = self._mean_best(reach=reach)
        if self._is_learned(reach):
            self._enter(LearningStage.TRIAL)
            self.choice = self._auto
            return
        if len(self._auto) == 1:
            self._look()
            return
        # What seems best was lucky, perhaps: it is seen again, or another is.
        drawn = None
        if self.best is None or self._in_stage % _AGAIN_EVERY:
            drawn = self._best(self._known.drawn(self._random), self._budget_s, reach)
        if drawn is not None:
            self.choice = drawn
        else:
            self.choice = self._auto if self.best is None else self.best

    def _is_learned(self, reach: int) -> bool:
        """Whether nothing much is to be gained by more blocks."""
        if self._in_stage >= _MOST_BLOCKS:
            return True
        enough = self._in_stage >= (_LEAST_BLOCKS if len(self._auto) > 1 else _LEAST_OF_ONE)
        return enough and self._in_stage % _CHECKED_EVERY == 0 and self._gain(reach) < _GAIN

    def _gain(self, reach: int) -> float:
        """Return what knowing all costs would still save, as a fraction of the step's energy."""
        if self.best is None:
            return math.inf
        gains = []
        for _ in range(_CHECKS):
            drawn = self._known.drawn(self._random)
            now_s, now_j = self._known.sums(self.best[None], drawn)[:, 0]
            better = self._best(drawn, max(float(now_s), self._budget_s), reach)
            if better is not None:
                gains.append(1.0 - self._known.sums(better[None], drawn)[1, 0] / now_j)
        return float(sum(gains)) / _CHECKS

    def _after_trial(self, block: BlockReading) -> None:
        if self.best is None:
            self._end_trial()
            return
        # Auto first in one pair and last in the next, so that drift falls on both alike.
        if self._in_stage > 1 and self._in_stage % 2 == 1:
            first = self._last or block
            pair = (first, block) if first.at_auto else (block, first)
            self._pairs.append(pair)
            self.trial_steps += pair[1].steps
            if self._has_verdict():
                self._end_trial()
                return
        self._last = block
        order = (self._auto, self.best, self.best, self._auto)
        self.choice = order[(self._in_stage - 1) % 4]

    def _end_trial(self) -> None:
        """Hold the best; where what an earlier run held saves nothing on this job, learn anew."""
        if self.best is None and self.held_before:
            self.held_before = ()
            self._enter(LearningStage.ONE_CLOCK)
            self._look()
            return
        self._enter(LearningStage.HELD)
        self.choice = self._auto if self.best is None else self.best

    def _has_verdict(self) -> bool:
        count = len(self._pairs)
        if count < _LEAST_PAIRS or count % _JUDGED_EVERY:
            return False
        energies = [(a.energy_j, h.energy_j) for a, h in self._pairs if a.energy_j and h.energy_j]
        if len(energies) < _LEAST_PAIRS:  # what steps draw is hardly known
            self.best = None if count >= _MOST_PAIRS else self.best
            return count >= _MOST_PAIRS
        energy = paired_change(energies)
        time = paired_change([(auto.time_s, held.time_s) for auto, held in self._pairs])
        self.saving, self.judged = (energy, time), self.best
        low, high = energy.interval or (-math.inf, math.inf)
        if 0.5 * (high - low) > _SURE and count < _MOST_PAIRS:
            return False
        if high >= 0.0:  # it may save nothing
            self.best = self.judged = None
        if (over := time.mean - self.budget) <= _TOLERATED or self.best is None:
            return True
        self._corrections += 1
        self._margin += over
        best = self._mean_best(reach=_REACH) if self._corrections <= _MOST_CORRECTIONS else None
        self.best = self._mean_best(one_clock=True) if best is None else best
        self._pairs.clear()
        self.saving = None
        return self.best is None

    def _after_held(self, block: BlockReading) -> None:
        """Go on as it is, and begin a trial anew once an hour: boards age, and data change."""
        self._held_s += block.steps * block.time_s
        if self._held_s >= _AGAIN_S and self.best is not None:
            self._held_s = 0.0
            self._pairs.clear()
            self._enter(LearningStage.TRIAL)
            self.choice = self._auto

    @property
    def _known(self) -> Response:
        if self._response is None:
            raise AssertionError("auto was measured first")
        return self._response

    @property
    def _budget_s(self) -> float:
        """Time that a step may take, in the response's unit: what was lost is paid back."""
        lost = min(self._lost / _PAYS_BACK, _GENTLE * self.budget)
        return self._auto_s * (1.0 + self.budget - self._margin - max(0.0, lost))

    def _mean_best(self, *, reach: int = 0, one_clock: bool = False) -> Ints | None:
        """Return the best of what was tried and what is expected; ``None`` for none in time."""
        expected, count = self._known.expected(), len(self._auto)
        budget_s = self._auto_s * (1.0 + self.budget - self._margin)
        some = np.repeat(np.arange(self._ones)[:, None], count, axis=1)
        if not one_clock:
            found = self._best(expected, budget_s, reach)
            some = self._known.tried if found is None else np.vstack([self._known.tried, found])
        time_s, energy_j = self._known.sums(some, expected)
        in_time = (time_s <= (1.0 + _NEAR) * budget_s) & (some >= self._least).all(axis=1)
        return some[np.argmin(np.where(in_time, energy_j, np.inf))] if in_time.any() else None

    def _best(self, tables: tuple[Floats, Floats], budget_s: float, reach: int) -> Ints | None:
        """Return the choice of least energy near the best known; ``None`` where none is in time."""
        around, at = self.best, np.arange(len(self.core_mhz))
        near = at >= np.minimum(self._least, len(at) - 1)[:, None]
        near &= (at < self._ones) | (len(near) > 1)
        if around is not None:
            near &= np.abs(at - around[:, None]) <= reach
        time_s, energy_j = (np.where(near, each, np.inf) for each in tables)
        capped, less_s = self._known.capped, 0.0
        for _ in range(_TRIES):
            if not np.isfinite(time_s).any(axis=1).all():
                return None
            problem = Problem(time_s=time_s, energy_j=energy_j, budget_s=budget_s - less_s)
            solution = solve(problem, Effort.QUICK)
            if solution.status is Status.INFEASIBLE:
                return None
            choice = solution.choice
            above = choice - capped[(choice >= capped).all(axis=1)]
            if len(above):  # the segment that is furthest above goes below
                segment = int(above[0].argmax())
                lowered = choice[segment] - above[0, segment]
                time_s[segment, lowered:] = energy_j[segment, lowered:] = np.inf
                continue
            over_s = float(self._known.sums(choice[None], tables)[0, 0]) - budget_s
            if over_s <= _NEAR * budget_s:
                return choice
            less_s += over_s
        return None


def _scatter(values: Floats) -> float:
    """Return how far blocks in a row scatter, as a fraction."""
    if len(values) < _NOISE_FROM:
        return _USUAL_NOISE
    return robust_sigma(np.diff(np.log(values))) / math.sqrt(2.0)
