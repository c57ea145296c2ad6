"""One clock of a timetable, change after change; a number counts them over all rounds."""

import bisect
import math
from dataclasses import dataclass, field

from underclock.runtime.machine.latency import Latencies
from underclock.runtime.machine.position import Position
from underclock.runtime.machine.timetable import Change

_KEPT = 8  # boundaries remembered for calls that return after them


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one change met its launch, as far as can be told without seeing the clock.

    Attributes:
        change: Which.
        expected_s: When its launch was expected to begin as the change was asked for; minus
            infinity where it had begun.
        began_s: When it began, told from the marks around it.
        effect_s: When the clock is taken to have changed: call and delay after the asking.
    """

    change: Change
    expected_s: float
    began_s: float
    effect_s: float

    @property
    def late_s(self) -> float:
        """How long after it was to happen the clock changed; negative where it was before."""
        return self.effect_s - self.began_s - self.change.aim_s

    @property
    def error_s(self) -> float | None:
        """How far off the launch was expected; ``None`` where it had begun already."""
        return None if self.expected_s == -math.inf else self.began_s - self.expected_s


@dataclass(slots=True)
class Line:
    """One clock.

    Attributes:
        changes: Of a round, in order; at least one.
        launches: In a round.
        following: Number of the next change to ask for.
        sure_s: When what was asked for last has very likely happened.
        passed: Number of the next change whose launch has not begun.
    """

    changes: tuple[Change, ...]
    launches: int
    following: int = -1
    sure_s: float = -math.inf
    passed: int = 0
    _began_s: dict[int, float] = field(default_factory=dict)
    _flying: dict[int, tuple[float, float]] = field(default_factory=dict)

    def change(self, number: int) -> Change:
        """Return a change by its number."""
        return self.changes[number % len(self.changes)]

    def change_to(self, mhz: int | None) -> Change:
        """Return a change to a clock, ``None`` being auto, or any where there is no such change."""
        return next((each for each in self.changes if each.to_mhz == mhz), self.changes[0])

    def launch(self, number: int) -> int:
        """Return which launch a change is for, counted over all rounds."""
        rounds, index = divmod(number, len(self.changes))
        return rounds * self.launches + self.changes[index].at

    def enter(self, launch: int) -> None:
        """Go on from a launch: what it should run at is asked for first."""
        rounds, at = divmod(launch, self.launches)
        index = bisect.bisect_right([change.at for change in self.changes], at)
        self.passed = rounds * len(self.changes) + index
        self.following = self.passed - 1
        self._began_s.clear()
        self._flying.clear()

    def due_s(self, number: int, position: Position, latencies: Latencies) -> float:
        """Return when a change should be asked for: not before the one before it is due."""
        change = self.change(number)
        ahead_s = position.begins_s(self.launch(number)) + change.aim_s - latencies.lead_s(change)
        return max(ahead_s, position.begins_s(self.launch(number - 1)))

    def newest(self, now_s: float, position: Position, latencies: Latencies) -> int:
        """Return the number of the newest change that is due; older ones give way to it."""
        number = self.following
        while self.due_s(number + 1, position, latencies) <= now_s:
            number += 1
        return number

    def flies(self, number: int, expected_s: float, effect_s: float) -> Outcome | None:
        """Note a change that was asked for; return how it met its launch if that has begun."""
        if number in self._began_s:
            return Outcome(
                change=self.change(number),
                expected_s=expected_s,
                began_s=self._began_s[number],
                effect_s=effect_s,
            )
        if number >= self.passed:
            self._flying[number] = expected_s, effect_s
        return None

    def passes(self, position: Position) -> list[Outcome]:
        """Note that the step got on; return how the changes met launches that began."""
        met = []
        while self.launch(self.passed) <= position.launch:
            number = self.passed
            began_s = self._began_s[number] = position.began_s(self.launch(number))
            flown = self._flying.pop(number, None)
            if flown is not None:
                met.append(
                    Outcome(
                        change=self.change(number),
                        expected_s=flown[0],
                        began_s=began_s,
                        effect_s=flown[1],
                    )
                )
            self._began_s.pop(number - _KEPT, None)
            self.passed += 1
        return met
