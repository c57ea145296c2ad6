"""What became of plans: executed, costed on another table, and checked on halves of a table."""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from underclock.records.choices import Objective, Strategy
from underclock.records.common import (
    SCHEMAS,
    Budget,
    Change,
    Clocks,
    Evidence,
    NotNegative,
    Number,
    Positive,
    Record,
    ShownRecord,
    check_agrees,
    check_interval,
)
from underclock.records.samples import GpuInfo
from underclock.units import format_percent


class Spread(Record, frozen=True, kw_only=True):
    """A quantity over all pairs of repeats."""

    mean: float
    best: float  # least value: the pair most in the plan's favour
    worst: float  # greatest value

    def check_of(self, auto: tuple[float, ...], other: tuple[float, ...]) -> None:
        """Reject what is not the change of all pairs of runs; nothing where none was run."""
        if not auto:
            return
        inverse = math.fsum(1.0 / each for each in auto) / len(auto)
        check_agrees("mean", self.mean, math.fsum(other) / len(other) * inverse - 1.0)
        check_agrees("best", self.best, min(other) / max(auto) - 1.0)
        check_agrees("worst", self.worst, max(other) / min(auto) - 1.0)


_ROUNDING = 1e-9  # of sums of floats
TOLERANCE = 0.001  # how far beyond its promise a plan may be and still have kept it
MOST_REPEATS = 1000  # more than are ever run: where these would not decide, no number is named


class Verdict(StrEnum):
    """Whether a plan kept its promise."""

    KEPT = "kept"
    NOT_KEPT = "not kept"
    INCONCLUSIVE = "inconclusive"

    @classmethod
    def of(cls, interval: tuple[float, float] | None, bound: float) -> Self:
        """Say on which side of a bound an interval lies; ``None`` is of a single run."""
        if interval is None:
            return cls.INCONCLUSIVE
        low, high = interval
        if high <= bound + _ROUNDING:
            return cls.KEPT
        return cls.NOT_KEPT if low > bound + _ROUNDING else cls.INCONCLUSIVE

    @classmethod
    def of_all(cls, sides: Sequence[Self]) -> Self:
        """Return the verdict where each of several bounds must be kept."""
        if cls.NOT_KEPT in sides:
            return cls.NOT_KEPT
        return cls.KEPT if all(side is cls.KEPT for side in sides) else cls.INCONCLUSIVE


class OtherArm(Record, frozen=True, kw_only=True):
    """A simpler way of choosing clocks, run in turns with auto and plan, and compared with auto."""

    name: Strategy
    clocks: Clocks
    time_s: tuple[Positive, ...]  # one total per repeat, as ``energy_j``
    energy_j: tuple[Positive, ...]
    time_change: Spread  # against auto, over all pairs
    energy_change: Spread
    # low and high end of the true change at 95 %; ``None`` of a single run
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None


class Validation(ShownRecord, frozen=True, kw_only=True, tag_field="kind", tag="validation"):
    """Auto and plan measured again, every auto run paired with every plan run.

    Of a plan that sets nothing no run is made: ``repeats`` is 0 and the runs are empty.

    Attributes:
        chosen: The arm whose clocks ran, and whose promise is judged.
        objective: What the plan minimises; for time its promise of time is judged. ``None`` when
            unknown.
        latency: Which switching latency the plan ran under, in words; ``None`` where it was taken
            as free.
        auto_time_s: One total per repeat, as in the three that follow it.
        time_change: Plan against auto over all ``repeats``² pairs; of energy likewise, here and
            below.
        promised_time_change: What the plan said.
        promised_time_interval: How sure it said that was, 95 %; ``None`` where it did not say.
        pairs_keeping_energy: Pairs that save at least the promised energy.
        pairs_keeping_time: Pairs no slower, by more than ``tolerance``, than the plan's budget
            allows or, where time is what it minimises, than its promise may be; ``None`` where
            time was free.
        time_interval: Low and high end of the true change of time at 95 %; ``None`` where single
            runs have no spread.
        max_slowdown: The plan's time budget; ``None`` where time was free.
        tolerance: How far beyond promise or budget still counts as kept, as a fraction of auto.
        verdict: Whether the promise held.
        further_repeats: About how many more repeats would decide; ``None`` where the verdict is
            known, nothing can be said, or no reasonable number would do.
        others: What ran in turns with auto and plan besides.
    """

    schema: int = SCHEMAS["validation"]
    evidence: Evidence
    gpu: GpuInfo
    workload: str
    chosen: Strategy
    objective: Objective | None = None
    latency: str | None = None
    repeats: Number
    auto_time_s: tuple[Positive, ...]
    auto_energy_j: tuple[Positive, ...]
    plan_time_s: tuple[Positive, ...]
    plan_energy_j: tuple[Positive, ...]
    time_change: Spread
    energy_change: Spread
    promised_time_change: Change
    promised_energy_change: Change
    promised_time_interval: tuple[float, float] | None = None
    promised_energy_interval: tuple[float, float] | None = None
    pairs_keeping_energy: Number
    pairs_keeping_time: Number | None
    time_interval: tuple[float, float] | None = None
    energy_interval: tuple[float, float] | None = None
    max_slowdown: Budget | None = None
    tolerance: NotNegative | None = None
    verdict: Verdict | None = None
    further_repeats: Number | None = None
    others: tuple[OtherArm, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("time", "energy"):
            promised = getattr(self, f"promised_{name}_change")
            check_interval(self, f"promised_{name}_interval", promised)
            check_interval(self, f"{name}_interval")
        if max(self.pairs_keeping_energy, self.pairs_keeping_time or 0) > self.repeats**2:
            raise ValueError(f"{self.repeats} repeats make {self.repeats**2} pairs at most")
        self._check_runs("auto", self.auto_time_s, self.auto_energy_j)
        self._check_runs("plan", self.plan_time_s, self.plan_energy_j, self)
        for other in self.others:
            check_interval(other, "time_interval")
            check_interval(other, "energy_interval")
            self._check_runs(other.name, other.time_s, other.energy_j, other)
        if self.tolerance is None or self.repeats == 0:
            return
        # Reject a verdict that is not what the intervals say, where runs were judged.
        high = (self.promised_energy_interval or (0.0, self.promised_energy_change))[1]
        sides = [Verdict.of(self.energy_interval, high + self.tolerance)]
        if self.max_slowdown is not None:
            sides.append(Verdict.of(self.time_interval, self.max_slowdown + self.tolerance))
        if self.verdict is not Verdict.of_all(sides):
            raise ValueError(
                f"the verdict is {self.verdict!r}, and the intervals say {Verdict.of_all(sides)!r}"
            )

    def _check_runs(
        self,
        name: str,
        time_s: tuple[float, ...],
        energy_j: tuple[float, ...],
        changes: "Validation | OtherArm | None" = None,
    ) -> None:
        """Reject totals that are not one a repeat and possible, and changes that are not theirs."""
        for what, totals in ((f"{name}_time_s", time_s), (f"{name}_energy_j", energy_j)):
            if len(totals) != self.repeats:
                raise ValueError(f"{what} has {len(totals)} totals of {self.repeats} repeats")
        if changes is not None:
            changes.time_change.check_of(self.auto_time_s, time_s)
            changes.energy_change.check_of(self.auto_energy_j, energy_j)

    @property
    def _facts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("verdict", "unknown" if self.verdict is None else str(self.verdict)),
            ("energy", _against(self.energy_change, self.promised_energy_change)),
            ("time", _against(self.time_change, self.promised_time_change)),
            ("repeats", str(self.repeats)),
        )


def _against(changes: Spread, promised: float) -> str:
    return f"{format_percent(changes.mean)} against {format_percent(promised)} promised"
