"""What the machine says: what to ask for, what it does, and what became of a step."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.records.latencies import Domain
from underclock.runtime.machine.line import Outcome


class State(StrEnum):
    """What the machine does; the value is the sentence shown to the user."""

    WAITING = "no step began yet"
    FOLLOWING = "clocks follow the plan"
    HELD = "clocks are held, whatever the launch"
    STALLED = "the step stands still"
    LOST = "marks make no sense, so clocks are left to the driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to call the setter with.

    Attributes:
        domain: Whose clock.
        to_mhz: ``None`` gives it back.
        call_s: How long the call is expected to block.
        number: Of the change that it is; ``None`` where it holds, whatever the launch.
        expected_s: When the change's launch is expected to begin.
    """

    domain: Domain
    to_mhz: int | None
    call_s: float = 0.0
    number: int | None = None
    expected_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedStep:
    """A step that ended, or several in a row where nobody looked in between.

    Attributes:
        number: Counted from 0; of the first.
        began_s: When its first mark was reached.
        time_s: Until the next step's first mark; the mean of several.
        state: What the machine did all along; `State.FOLLOWING` only where it did nothing else.
        planned: Changes that the timetable has.
        asked: Of which were asked for.
        outcomes: How those met their launches that began in this step.
        stalled_s: How long it stood still.
        overruled: Of every lock that was overruled, why; in words.
        closely: Whether all its marks were to be looked at, so that outcomes are exact.
        steps: How many they are.
        counted: Whether that is known from their numbers; else one is taken to be one.
    """

    number: int
    began_s: float
    time_s: float
    state: State
    planned: int
    asked: int
    outcomes: tuple[Outcome, ...]
    stalled_s: float = 0.0
    overruled: tuple[str, ...] = ()
    closely: bool = True
    steps: int = 1
    counted: bool = True

    @property
    def ended_s(self) -> float:
        """When the next step's first mark was reached."""
        return self.began_s + self.steps * self.time_s


@dataclass(slots=True, kw_only=True)
class RunningStep:
    """What is noted of a step until it ends; attributes as in `PassedStep`.

    Attributes:
        began_s: Not a number where its beginning was not seen.
    """

    state: State
    began_s: float = math.nan
    asked: int = 0
    stalled_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    overruled: list[str] = field(default_factory=list)
    closely: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether its beginning was seen."""
        return not math.isnan(self.began_s)

    def passed(
        self, number: int, ended_s: float, planned: int, *, steps: int, counted: bool
    ) -> PassedStep:
        """Return the step as it ended."""
        return PassedStep(
            number=number,
            began_s=self.began_s,
            time_s=(ended_s - self.began_s) / steps,
            state=self.state,
            planned=planned,
            asked=self.asked,
            outcomes=tuple(self.outcomes),
            stalled_s=self.stalled_s,
            overruled=tuple(self.overruled),
            closely=self.closely and steps == 1,
            steps=steps,
            counted=counted,
        )
