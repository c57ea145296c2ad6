"""Watches that steps under a plan are no slower than promised, and takes the plan back if they are.

What a step takes at auto is measured on the job itself: for a window of steps at the beginning, and
again before anything is held against the plan, for jobs become slower by themselves too. A plan
that is slower than its budget is left for one without its least-paying segments; if that is slower
as well, one pair of clocks is held. Where that keeps the budget it is switching that slows the job,
and the pair stays; else clocks are left to the driver until the user asks.

Its driver hands it every step and does what `stage` says. It stands on the standard library
alone: it judges while clocks are held, and what loads NumPy then leaves them for half a second.
"""

import math
import statistics
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.core.statistics.student import student_quantile
from underclock.records import TOLERANCE
from underclock.units import format_percent

_SETTLING = 2  # steps after a change of stage that do not count: clocks and heat move
_NO_SCATTER = 1e-18


class Stage(StrEnum):
    """What the clocks are to do; the value is shown to the user."""

    LEARNING = "auto: what a step takes is measured"
    PLAN = "the plan"
    CHECKING = "auto: the plan seems slower than promised"
    REDUCED = "the plan without its least-paying segments"
    FIXED = "one pair of clocks for the whole step"
    OFF = "off: clocks are left to the driver until asked"

    @property
    def at_auto(self) -> bool:
        """Whether clocks are left to the driver."""
        return self in {Stage.LEARNING, Stage.CHECKING, Stage.OFF}


class Finding(StrEnum):
    """What the guard found; the value is the sentence shown to the user."""

    NONE = "steps are as promised"
    JOB = "the job itself became slower, at auto too; the plan goes on"
    SLOWER = "steps under the plan are slower than promised"
    SWITCHING = (
        "switching itself slows the job: with one pair of clocks held steps are as promised, with "
        "clocks that change within the step they are not"
    )
    CLOCKS = "steps are slower than promised even with one pair of clocks held"


@dataclass(slots=True, kw_only=True)
class Guard:
    """Watches one job."""

    max_slowdown: float  # the plan's time budget, as a fraction of auto
    has_fixed: bool  # whether there is a pair of clocks to hold that keeps the budget by itself
    window: int = 20  # steps that are judged together
    tolerance: float = TOLERANCE  # how far beyond the budget still counts as kept
    stage: Stage = Stage.LEARNING  # what clocks are to do now
    finding: Finding = Finding.NONE  # the last one
    _steps_s: list[float] = field(default_factory=list)
    _skipped: int = 0
    _auto_s: list[float] = field(default_factory=list)
    _suspect_s: list[float] = field(default_factory=list)

    @property
    def needs(self) -> int:
        """Steps at auto, until the plan is held."""
        return _SETTLING + self.window

    def stepped(self, time_s: float, *, stalled: bool = False) -> str:
        """Take note of a step; return why something was decided, with numbers, where it was.

        `stage` says what to do from now on, and `finding` why.

        Args:
            stalled: Whether it stood still or was not of one stage; it is not counted then.
        """
        if self._skipped < _SETTLING:
            self._skipped += 1
            return ""
        if stalled or self.stage is Stage.OFF:
            return ""
        self._steps_s.append(time_s)
        if len(self._steps_s) < self.window:
            return ""
        steps_s, self._steps_s = self._steps_s, []
        return self._judge(steps_s)

    def _judge(self, steps_s: list[float]) -> str:
        if self.stage is Stage.LEARNING:
            self._auto_s = steps_s
            return self._move(Stage.PLAN, Finding.NONE, None)
        if self.stage is Stage.CHECKING:
            self._auto_s = steps_s
            change = self._slower(self._suspect_s)
            if change is None:
                return self._move(Stage.PLAN, Finding.JOB, None)
            return self._move(Stage.REDUCED, Finding.SLOWER, change)
        change = self._slower(steps_s)
        if change is None:
            if self.stage is Stage.FIXED and self.finding is not Finding.SWITCHING:
                return self._move(Stage.FIXED, Finding.SWITCHING, None)
            return ""
        if self.stage is Stage.PLAN:
            self._suspect_s = steps_s
            return self._move(Stage.CHECKING, Finding.SLOWER, change)
        if self.stage is Stage.REDUCED and self.has_fixed:
            return self._move(Stage.FIXED, Finding.SLOWER, change)
        finding = Finding.CLOCKS if self.stage is Stage.FIXED else Finding.SLOWER
        return self._move(Stage.OFF, finding, change)

    def _slower(self, steps_s: list[float]) -> float | None:
        """Return the change against auto where it is surely beyond the budget."""
        change, low = slowdown(self._auto_s, steps_s)
        return change if low > self.max_slowdown + self.tolerance else None

    def _move(self, stage: Stage, finding: Finding, change: float | None) -> str:
        words = str(finding)
        if change is not None:
            words += (
                f": {format_percent(change)} time over {self.window} steps, "
                f"{format_percent(self.max_slowdown)} promised"
            )
        if stage is not self.stage:
            self.stage = stage
            self.begin_anew()
        self.finding = finding
        return words

    def begin_anew(self) -> None:
        """Forget the steps of a window that is not full: what is held is another."""
        self._steps_s, self._skipped = [], 0


def slowdown(auto_s: list[float], steps_s: list[float]) -> tuple[float, float]:
    """Return the mean change of time from auto, and the low end of its 95 % interval.

    The mean over all pairs of steps is that of the steps times that of auto's reciprocals. Of two
    such means, with scatters of their own, the interval is Welch's.
    """
    arms = steps_s, [1.0 / each_s for each_s in auto_s]
    means = [statistics.fmean(arm) for arm in arms]
    change = math.prod(means) - 1.0
    variances = [
        statistics.variance(arm) / (len(arm) * mean**2)
        for arm, mean in zip(arms, means, strict=True)
    ]
    variance = math.fsum(variances)
    if variance <= _NO_SCATTER:
        return change, change
    freedom = variance**2 / math.fsum(
        each**2 / (len(arm) - 1) for each, arm in zip(variances, arms, strict=True)
    )
    return change, change - student_quantile(freedom) * math.sqrt(variance) * (1.0 + change)
