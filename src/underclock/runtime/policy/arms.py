"""Ways of choosing clocks that take turns on a training job, block by block, and what they differ.

A job warms up first. Then every round holds one block of each arm, in an order that is drawn, and
the next round in the reverse one: drift falls on all alike, no arm always follows the same one,
and each comes first as often. The first steps of a block are left out, for clocks and
heat move. Time and energy are those of all other steps of a block together, however many of them
were seen one by one. Differences are taken within a round, so that what changes from round to
round cancels. Where what was seen cannot be, there is no verdict.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.errors import UsageError
from underclock.records.runs import ArmLine
from underclock.runtime.machine.timetable import PassedStep

LEAST_ROUNDS = 3
"""So many tell how far rounds scatter, and so how sure a difference is."""
CANNOT_TELL = "cannot tell, because "
_OTHER_STEP = 1.25  # times the plan's, or the plan's that much more: it is another step
_ABOVE_LIMIT = 1.05  # of the power limit: no board draws that for long
_LEAST_SEEN = 0.9  # of the steps that were put on the stream; and what a queue may hold at the end
_QUEUED = 10
_ENERGY_KNOWN_S = 1.0  # after a step, at the latest
_LEAST_SETTLING, _LEAST_BLOCK = 4, 20
_INTERRUPTED = 2.0  # times what a step takes: a checkpoint, or input that comes late
_BLOCKS = 5  # of what settles, a block counts so many


class ArmName(StrEnum):
    """A way of choosing clocks; the value is what ``--compare`` takes."""

    AUTO = "auto"
    PLAN = "plan"
    BEST_FIXED = "best-fixed"
    AGAIN = "auto-again"


def parse_arms(text: str, *, has_fixed: bool) -> tuple[ArmName, ...]:
    """Read what a user writes after ``--compare``; ``auto,auto`` shows what comparing errs by.

    Raises:
        UsageError: An arm that is not known, twice the same, one that is not to be had, or nothing
            to compare.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names == [ArmName.AUTO, ArmName.AUTO]:
        names[1] = ArmName.AGAIN
    known = ", ".join(ArmName)
    for name in names:
        if name not in set(ArmName):
            raise UsageError(f"there is no way {name!r} of choosing clocks", hint=f"known: {known}")
    arms = tuple(ArmName(name) for name in names)
    if len(set(arms)) < len(arms):
        raise UsageError(f"a way is named twice in {text!r}", hint=f"--compare {known}")
    if ArmName.AUTO not in arms or len(arms) == 1:
        raise UsageError(
            f"{text!r} compares nothing with auto", hint="--compare auto,plan alternates the two"
        )
    if ArmName.BEST_FIXED in arms and not has_fixed:
        raise UsageError(
            "the plan has no best fixed clock: none keeps its time budget",
            hint="--compare auto,plan",
        )
    return arms


@dataclass(slots=True)
class Block:
    """What the steps of a block that count took together."""

    steps: int = 0  # how many
    time_s: float = 0.0  # of all
    energy_j: float | None = 0.0  # of all; None where one is unknown

    def add(self, step: PassedStep, energy_j: float | None) -> None:
        """Count a step, or some in a row."""
        self.steps += step.steps
        self.time_s += step.steps * step.time_s
        if self.energy_j is not None:
            self.energy_j = None if energy_j is None else self.energy_j + step.steps * energy_j


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRun:
    """What is known of a run from elsewhere; a verdict needs it to fit what was seen."""

    gpu: int = 0  # local rank
    promise: float | None = None  # change of energy that the plan promised; None for none
    budget: float | None = None  # greatest change of time that it allows; None where time was free
    # what a step takes at auto by the plan; None where that is not known
    auto_s: float | None = None
    limit_w: float | None = None  # the board's power limit; likewise
    enqueued: int | None = None  # steps that the trainer put on its stream; likewise
    is_set: bool = True  # whether clocks are, and not only decided on


@dataclass(slots=True, kw_only=True)
class Arms:
    """Arms that take turns."""

    names: tuple[ArmName, ...]  # of the arms; auto is among them
    block: int = _LEAST_BLOCK  # steps in a block
    settling: int = _LEAST_SETTLING  # of which the first so many do not count
    warming: int = 0  # steps at auto before the first block
    seed: int = 0  # of the order
    # whose block it is; None while the job warms up
    arm: ArmName | None = field(init=False, default=None)
    longest_s: float = field(init=False, default=math.inf)  # of a step that counts
    seen: int = field(init=False, default=0)  # steps so far
    counted: bool = field(init=False, default=True)  # whether that number is known
    _rounds: list[dict[ArmName, Block]] = field(init=False, default_factory=list)
    _orders: Iterator[tuple[ArmName, ...]] = field(init=False)
    _left: list[ArmName] = field(init=False, default_factory=list)
    _in_block: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._orders = _orders(self.names, self.seed)
        if not self.warming:
            self._next_block()

    def size(self, step_s: float) -> None:
        """Make blocks as long as steps of this length in s need; warming up takes one.

        A block is left when its last step's energy is known: some steps of the next are past.
        """
        self.longest_s = _INTERRUPTED * step_s
        self.settling = max(_LEAST_SETTLING, math.ceil(_ENERGY_KNOWN_S / step_s))
        self.block = self.warming = max(_LEAST_BLOCK, _BLOCKS * self.settling)

    def needs(self, rounds: int) -> int:
        """Return how many steps some rounds take, with those before the first."""
        return self.warming + rounds * len(self.names) * self.block

    def stepped(self, step: PassedStep, energy_j: float | None) -> ArmName | None:
        """Take note of a step; return whose block begins with the next one, where one does.

        Args:
            step: That ended. One that was interrupted does not count, and the block is no longer.
            energy_j: Of it, the mean of some in a row; ``None`` where it is unknown.
        """
        self.seen += step.steps
        self.counted &= step.counted
        has_settled = self._in_block >= self.settling
        self._in_block += step.steps
        counts = not step.stalled_s and step.time_s <= self.longest_s
        if self.arm is not None and has_settled and counts:
            self._rounds[-1].setdefault(self.arm, Block()).add(step, energy_j)
        if self._in_block < (self.warming if self.arm is None else self.block):
            return None
        self._next_block()
        return self.arm

    def differences(self, expected: ExpectedRun | None = None) -> tuple[ArmLine, ...]:
        """Compare every arm with auto, over the rounds in which both ran.

        Args:
            expected: What must fit before there is a verdict; by default nothing but rounds.
        """
        from underclock.core.statistics.verdict import judge, paired_change  # noqa: PLC0415

        expected = expected or ExpectedRun()
        done = self._rounds[:-1]  # the last has not ended
        lines = []
        for name in self.names:
            both = [
                (of[ArmName.AUTO], of[name]) for of in done if {ArmName.AUTO, name} <= of.keys()
            ]
            if name is ArmName.AUTO or not both:
                continue
            times = [(auto.time_s / auto.steps, arm.time_s / arm.steps) for auto, arm in both]
            known = [
                (auto.energy_j / auto.steps, arm.energy_j / arm.steps)
                for auto, arm in both
                if auto.energy_j is not None and arm.energy_j is not None
            ]
            time = paired_change(times)
            energy = paired_change(known) if len(known) == len(both) else None
            promised = expected.promise if name is ArmName.PLAN else None
            doubts = self._doubts(len(both), expected, has_energy=energy is not None)
            verdict = CANNOT_TELL + "; ".join(doubts) if doubts else ""
            if not doubts and promised is not None and energy is not None:
                verdict = str(judge(energy, time, promise=promised, budget=expected.budget)[0])
            lines.append(
                ArmLine(
                    gpu=expected.gpu,
                    arm=str(name),
                    rounds=len(both),
                    steps=sum(arm.steps for _, arm in both),
                    time_change=time.mean,
                    time_interval=time.interval,
                    energy_change=None if energy is None else energy.mean,
                    energy_interval=None if energy is None else energy.interval,
                    verdict=verdict,
                )
            )
        return tuple(lines)

    def _doubts(self, rounds: int, expected: ExpectedRun, *, has_energy: bool) -> tuple[str, ...]:
        """Say why a difference cannot be believed, or not yet."""
        blocks = [block for one in self._rounds for block in one.values() if block.steps]
        autos = [one[ArmName.AUTO] for one in self._rounds if ArmName.AUTO in one]
        auto_s = sum(each.time_s for each in autos) / sum(each.steps for each in autos)
        powers_w = [each.energy_j / each.time_s for each in blocks if each.energy_j is not None]
        power_w = max(powers_w, default=0.0)
        least = 0 if expected.enqueued is None else _LEAST_SEEN * expected.enqueued - _QUEUED
        most = math.inf if expected.enqueued is None else expected.enqueued
        times = 1.0 if expected.auto_s is None else auto_s / expected.auto_s
        found = (
            not expected.is_set and "nothing was set: it was a dry run",
            not self.counted and "steps are not counted, and several may be taken for one",
            not least <= self.seen <= most
            and f"{self.seen} steps were seen where {expected.enqueued} were taken",
            not is_alike(times, 1.0)
            and f"a step at auto takes {times:.3g} times what the plan says: it is another step",
            expected.limit_w is not None
            and power_w > _ABOVE_LIMIT * expected.limit_w
            and f"steps drew {power_w:.0f} W by what was seen, and the limit is "
            f"{expected.limit_w:g} W",
            not has_energy and "what steps drew is not known",
            rounds < LEAST_ROUNDS
            and f"{rounds} rounds are too few: {LEAST_ROUNDS} take {self.needs(LEAST_ROUNDS)} "
            f"steps, and there were {self.seen}",
        )
        return tuple(words for words in found if words)

    def _next_block(self) -> None:
        if not self._left:
            self._left = list(next(self._orders))
            self._rounds.append({})
        self.arm = self._left.pop(0)
        self._in_block = 0


def is_alike(step_s: float, planned_s: float) -> bool:
    """Whether a step may be the plan's, by what it takes at auto, in s."""
    return 1.0 / _OTHER_STEP <= step_s / planned_s <= _OTHER_STEP


def _orders(names: Sequence[ArmName], seed: int) -> Iterator[tuple[ArmName, ...]]:
    """Return an order for each round: cyclic shifts of a drawn one, each there and back.

    Within twice as many rounds as arms every arm has every place twice, and within as many every
    arm comes first once.
    """
    draw = random.Random(seed)  # noqa: S311 - an order that can be made again
    while True:
        drawn = draw.sample(names, len(names))
        for shift in range(len(drawn)):
            order = (*drawn[shift:], *drawn[:shift])
            yield order
            yield order[::-1]
