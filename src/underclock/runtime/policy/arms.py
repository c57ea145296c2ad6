"""Ways of choosing clocks that take turns on a training job, block by block, and what they differ.

Every round holds one block of each arm, in an order drawn anew: drift falls on all alike, and no
arm always follows the same one. The first steps of a block are left out, for clocks and heat move.
Differences are taken within a round, so that what changes from round to round cancels.
"""

import dataclasses
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from underclock.errors import UsageError
from underclock.records import TOLERANCE

if TYPE_CHECKING:  # it loads SciPy, which is for the end: a conductor is to start at once
    from underclock.core.statistics.verdict import Judgement, MeanChange

_SEED = 0  # equal steps are judged equally


class ArmName(StrEnum):
    """A way of choosing clocks; the value is what ``--arms`` takes."""

    AUTO = "auto"
    PLAN = "plan"
    BEST_FIXED = "best-fixed"


def parse_arms(text: str, *, has_fixed: bool) -> tuple[ArmName, ...]:
    """Read what a user writes after ``--arms``.

    Raises:
        UsageError: An arm that is not known, twice the same, one that is not to be had, or nothing
            to compare.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    known = ", ".join(ArmName)
    for name in names:
        if name not in set(ArmName):
            raise UsageError(f"there is no arm {name!r}", hint=f"arms are: {known}")
    arms = tuple(ArmName(name) for name in names)
    if len(set(arms)) < len(arms):
        raise UsageError(f"an arm is named twice in {text!r}", hint=f"--arms {known}")
    if ArmName.AUTO not in arms or len(arms) == 1:
        raise UsageError(
            f"{text!r} compares nothing with auto", hint="--arms auto,plan alternates the two"
        )
    if ArmName.BEST_FIXED in arms and not has_fixed:
        raise UsageError(
            "the plan has no best fixed clock: none keeps its time budget", hint="--arms auto,plan"
        )
    return arms


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmStep:
    """A step that counts.

    Attributes:
        time_s: What it took.
        energy_j: From the counter; ``None`` where it could not be told.
    """

    time_s: float
    energy_j: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmDifference:
    """An arm against auto, round by round.

    Attributes:
        arm: Which.
        rounds: That both ran whole.
        steps: Of the arm that counted.
        time: Mean change.
        energy: Mean change; ``None`` where the counter could not tell.
        judgement: Whether the plan's promise was kept; ``None`` for arms that promised nothing.
    """

    arm: ArmName
    rounds: int
    steps: int
    time: "MeanChange"
    energy: "MeanChange | None"
    judgement: "Judgement | None"


@dataclass(slots=True, kw_only=True)
class Arms:
    """Arms that take turns.

    Attributes:
        names: Of the arms; auto is among them.
        block: Steps in a block.
        settling: Of which the first so many do not count.
        seed: Of the order.
        arm: Whose block it is.
    """

    names: tuple[ArmName, ...]
    block: int = 20
    settling: int = 4
    seed: int = 0
    arm: ArmName = field(init=False)
    _rounds: list[dict[ArmName, list[ArmStep]]] = field(init=False, default_factory=list)
    _orders: Iterator[tuple[ArmName, ...]] = field(init=False)
    _left: list[ArmName] = field(init=False, default_factory=list)
    _in_block: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Begin the first block."""
        if not 0 <= self.settling < self.block:
            raise ValueError(
                f"a block of {self.block} steps cannot leave out its first {self.settling}"
            )
        self._orders = _orders(self.names, self.seed)
        self._next_block()

    def stepped(self, step: ArmStep, *, stalled: bool = False) -> ArmName | None:
        """Take note of a step; return whose block begins with the next one, where one does.

        Args:
            step: That ended.
            stalled: Whether it stood still: then it does not count, and the block is no longer.
        """
        self._in_block += 1
        if self._in_block > self.settling and not stalled:
            self._rounds[-1].setdefault(self.arm, []).append(step)
        if self._in_block < self.block:
            return None
        self._next_block()
        return self.arm

    def differences(
        self,
        *,
        promise: float | None = None,
        budget: float | None = None,
        tolerance: float = TOLERANCE,
    ) -> tuple[ArmDifference, ...]:
        """Compare every arm with auto, over the rounds in which both ran.

        Args:
            promise: Change of energy that the plan promised.
            budget: Greatest change of time that it allows; ``None`` where time was free.
            tolerance: How far beyond either still counts as kept.
        """
        others = [name for name in self.names if name is not ArmName.AUTO]
        compared = [self._against_auto(name) for name in others]
        return tuple(
            _judged(each, promise, budget, tolerance) if each.arm is ArmName.PLAN else each
            for each in compared
            if each is not None
        )

    def _against_auto(self, arm: ArmName) -> ArmDifference | None:
        """Compare an arm with auto; ``None`` before both ran."""
        done = self._rounds[:-1]  # the last has not ended
        both = [(of[ArmName.AUTO], of[arm]) for of in done if {ArmName.AUTO, arm} <= of.keys()]
        if not both:
            return None
        energies = [(_mean_j(auto), _mean_j(mine)) for auto, mine in both]
        known = [(auto, mine) for auto, mine in energies if auto is not None and mine is not None]
        return ArmDifference(
            arm=arm,
            rounds=len(both),
            steps=sum(len(mine) for _, mine in both),
            time=paired_change([(_mean_s(auto), _mean_s(mine)) for auto, mine in both]),
            energy=paired_change(known) if len(known) == len(both) else None,
            judgement=None,
        )

    def _next_block(self) -> None:
        if not self._left:
            self._left = list(next(self._orders))
            self._rounds.append({})
        self.arm = self._left.pop(0)
        self._in_block = 0


def paired_change(pairs: Sequence[tuple[float, float]]) -> "MeanChange":
    """Return the mean change from the first to the second of each pair, and its interval.

    What both of a pair share is in neither: the ratios are one sample, held against exactly one.
    """
    import numpy as np  # noqa: PLC0415

    from underclock.core.statistics.verdict import mean_change  # noqa: PLC0415

    ratios = np.array([second / first for first, second in pairs])
    return mean_change(np.ones(len(ratios)), ratios, np.random.default_rng(_SEED))


def _judged(
    difference: ArmDifference, promise: float | None, budget: float | None, tolerance: float
) -> ArmDifference:
    """Hold the plan's arm against what it promised."""
    from underclock.core.statistics.verdict import judge  # noqa: PLC0415

    if promise is None or difference.energy is None:
        return difference
    judgement = judge(
        difference.energy, difference.time, promise=promise, budget=budget, tolerance=tolerance
    )
    return dataclasses.replace(difference, judgement=judgement)


def _mean_s(steps: Sequence[ArmStep]) -> float:
    return statistics.fmean(step.time_s for step in steps)


def _mean_j(steps: Sequence[ArmStep]) -> float | None:
    energies = [step.energy_j for step in steps if step.energy_j is not None]
    return statistics.fmean(energies) if len(energies) == len(steps) else None


def _orders(names: Sequence[ArmName], seed: int) -> Iterator[tuple[ArmName, ...]]:
    """Return an order for each round: cyclic shifts of a drawn one, so that places balance.

    Within as many rounds as arms every arm has every place once.
    """
    draw = random.Random(seed)  # noqa: S311 - an order that can be made again
    while True:
        drawn = draw.sample(names, len(names))
        for shift in draw.sample(range(len(names)), len(names)):
            yield (*drawn[shift:], *drawn[:shift])
