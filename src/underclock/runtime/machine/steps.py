"""What the machine says: what to ask for, what it does, and what became of a step."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.records.latencies import Domain
from underclock.runtime.machine.timetable import ClockChange


class State(StrEnum):
    """What the machine does; the value is the sentence shown to the user."""

    WAITING = "no step began yet"
    FOLLOWING = "clocks follow the plan"
    HELD = "clocks are held, whatever the launch"
    STALLED = "the step stands still"
    LOST = "marks make no sense, so clocks are left to the driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to call the setter with."""

    domain: Domain  # whose clock
    to_mhz: int | None  # None gives it back
    call_s: float = 0.0  # how long the call is expected to block
    number: int | None = None  # of the change that it is; None where it holds, whatever the launch
    launch: int | None = None  # that the change is for, counted over all rounds; likewise
    expected_s: float = -math.inf  # when the change's launch is expected to begin


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one change met its launch, as far as can be told without seeing the clock."""

    change: ClockChange
    # when its launch was expected to begin as the change was asked for; minus infinity where it had
    # begun
    expected_s: float
    began_s: float  # when it began, told from the marks around it
    effect_s: float  # when the clock is taken to have changed: call and delay after the asking

    @property
    def late_s(self) -> float:
        """How long after it was to happen the clock changed; negative where it was before."""
        return self.effect_s - self.began_s - self.change.aim_s

    @property
    def error_s(self) -> float | None:
        """How far off the launch was expected; ``None`` where it had begun already."""
        return None if self.expected_s == -math.inf else self.began_s - self.expected_s


@dataclass(slots=True, kw_only=True)
class PassedStep:
    """A step that ended, or several in a row where nobody polled in between; or one that runs."""

    number: int = 0  # counted from 0; of the first
    began_s: float = math.nan  # when its first mark was reached; nan where that was not seen
    time_s: float = math.nan  # until the next step's first mark; the mean of several
    state: State  # what the machine did all along; `State.FOLLOWING` only where it did nothing else
    planned: int = 0  # changes that the timetable has
    asked: int = 0  # of which were asked for
    # how those met their launches that began in this step
    outcomes: list[Outcome] = field(default_factory=list)
    stalled_s: float = 0.0  # how long it stood still
    # of every lock that was overruled, why; in words
    overruled: list[str] = field(default_factory=list)
    closely: bool = True  # whether all its marks were to be looked at, so that outcomes are exact
    steps: int = 1  # how many they are
    counted: bool = True  # whether that is known from their numbers; else one is taken to be one
    busy_s: float | None = None  # what launches took that compute; None where that was not seen
    # from each mark to the next, and from the last to the step's end; likewise
    between_s: tuple[float, ...] | None = None

    @property
    def ended_s(self) -> float:
        """When the next step's first mark was reached."""
        return self.began_s + self.steps * self.time_s
