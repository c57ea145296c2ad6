"""Faults: what goes wrong with a virtual GPU, at a set time or on demand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from underclock.records import ThrottleReason


class FaultKind(StrEnum):
    """What can go wrong."""

    PERMISSION_REVOKED = "every setter is refused"
    MEMORY_REFUSED = "memory locks fail, so a lock of both clocks stops half-way"
    GPU_LOST = "the GPU falls off the bus"
    COUNTER_RESTARTS = "the energy counter begins again at zero"
    COUNTER_STUCK = "the energy counter stands still, and goes on from there"
    SOFT_SLOWDOWN = "the driver lowers the clocks against heat"
    HARD_SLOWDOWN = "the hardware halves the clocks against heat"
    SETTER_HANGS = "every setter takes as long as a GPU's `hangs_s` before it does anything"
    LOCKS_IGNORED = "locks are accepted, and the clocks do not follow them"
    MARKS_STUCK = "what a stream writes does not arrive"
    MARKS_BACKWARDS = "what a stream writes counts down"


REASON_SOFT_SLOWDOWN = ThrottleReason.SW_THERMAL_SLOWDOWN
REASON_HARD_SLOWDOWN = ThrottleReason.HW_THERMAL_SLOWDOWN | ThrottleReason.HW_SLOWDOWN
_SLOWDOWNS = {  # reason, and the part of the highest clock that is left; the part is assumed
    FaultKind.SOFT_SLOWDOWN: (REASON_SOFT_SLOWDOWN, 0.75),
    FaultKind.HARD_SLOWDOWN: (REASON_HARD_SLOWDOWN, 0.5),
}
LASTING = frozenset(FaultKind) - {FaultKind.COUNTER_RESTARTS}
POWER_LIMIT_CHANGED = "power_limit_changed"
NAMES = {kind.name.lower(): kind for kind in FaultKind}
FAULT_NAMES = (*NAMES, POWER_LIMIT_CHANGED)
"""What can go wrong on demand."""
WITH_VALUE = {FaultKind.SETTER_HANGS.name.lower(), POWER_LIMIT_CHANGED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float  # in virtual time
    kind: FaultKind
    for_s: float = math.inf  # a restarted counter is over at once
    gpu: int | None = None  # index of the GPU it befalls; None for all of them

    def __post_init__(self) -> None:
        if not (self.at_s >= 0 and self.for_s > 0):
            raise ValueError("a fault begins at or after 0 s and lasts some time")


@dataclass(frozen=True, slots=True)
class FaultScript:
    """Everything that will go wrong, in any order."""

    faults: Sequence[Fault] = ()


def slowdown(faults: Sequence[FaultKind]) -> tuple[ThrottleReason, float]:
    """Return the throttle reasons of the slowdowns there are, and what they leave of the clock."""
    slowdowns = [_SLOWDOWNS[kind] for kind in faults if kind in _SLOWDOWNS]
    reasons = ThrottleReason.NONE
    for bits, _ in slowdowns:
        reasons |= bits
    return reasons, min((left for _, left in slowdowns), default=1.0)
