"""What became of a lock: asked for, accepted by the driver, in force, or overruled, and by what."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.records import Clocks, ThrottleReason
from underclock.records.latencies import Domain, mhz_of
from underclock.units import format_mhz

_WITHIN_MHZ = 15  # one bin of the core clock: what is read back may be the bin below
_WITHIN = 0.02  # and of the memory's, whose bins are wide
_TWICE = 2  # readings in a row that decide: one may fall on the very change
_RECENT, _MOST = 12, 11  # and of those over several holds: delays may be believed too short


class LockState(StrEnum):
    """How far a lock got; the value is the sentence shown to the user."""

    NONE = "nothing was asked for"
    ASKED = "asked for; the driver has not answered"
    ACCEPTED = "accepted by the driver; not seen in force yet"
    IN_FORCE = "in force: the clock was read back"
    OVERRULED = "accepted by the driver, and the clock is another"
    REFUSED = "refused by the driver"


_REASONS = (
    (ThrottleReason.HW_THERMAL_SLOWDOWN, "the hardware slows down because it is too hot"),
    (ThrottleReason.HW_POWER_BRAKE_SLOWDOWN, "the power supply asks for less"),
    (ThrottleReason.HW_SLOWDOWN, "the hardware slows itself down"),
    (ThrottleReason.SW_THERMAL_SLOWDOWN, "the driver keeps the GPU under its temperature"),
    (ThrottleReason.SW_POWER_CAP, "the driver keeps the board under its power limit"),
    (ThrottleReason.SYNC_BOOST, "a group of GPUs boosts as far as its slowest"),
)
SLOWDOWNS = (
    ThrottleReason.HW_THERMAL_SLOWDOWN
    | ThrottleReason.HW_POWER_BRAKE_SLOWDOWN
    | ThrottleReason.HW_SLOWDOWN
    | ThrottleReason.SW_THERMAL_SLOWDOWN
)
"""Reasons that no plan reckons with."""


def _readings() -> "defaultdict[int, deque[bool]]":
    return defaultdict(lambda: deque(maxlen=_RECENT))


@dataclass(slots=True)
class Lock:
    """One clock's lock.

    Attributes:
        domain: Whose clock.
        mhz: What was asked for last; ``None`` is auto.
        state: How far it got.
        since_s: When it got there.
        sure_s: Readings count from then on: before, the clock may still change.
        why: Why it is overruled, in words; empty else.
    """

    domain: Domain
    mhz: int | None = None
    state: LockState = LockState.NONE
    since_s: float = 0.0
    sure_s: float = 0.0
    why: str = ""
    _differed: int = 0  # readings in a row
    _recent: defaultdict[int, deque[bool]] = field(default_factory=_readings)
    """Whether readings differed, by what was asked for: it may never be held for two of them."""

    def ask(self, mhz: int | None, at_s: float) -> None:
        """Note that the driver is being asked."""
        self.mhz = mhz
        self._to(LockState.ASKED, at_s)

    def accept(self, at_s: float, sure_s: float) -> None:
        """Note that the driver took it."""
        self._to(LockState.ACCEPTED, at_s)
        self.sure_s = sure_s

    def refuse(self, at_s: float) -> None:
        """Note that the driver did not take it."""
        self._to(LockState.REFUSED, at_s)

    def observe(self, clocks: Clocks, reasons: ThrottleReason, at_s: float) -> bool:
        """Compare with clocks read under load; return whether the state became another.

        A clock that was given back is in force whatever it is.
        """
        seen = mhz_of(clocks, self.domain)
        settled = self.state in {LockState.ACCEPTED, LockState.IN_FORCE, LockState.OVERRULED}
        if not settled or seen is None or ThrottleReason.GPU_IDLE in reasons:
            return False
        if self.mhz is None:
            return self._to(LockState.IN_FORCE, at_s)
        recent = self._recent[self.mhz]
        if self._is(seen):
            self._differed = 0
            recent.append(False)
            return self._to(LockState.IN_FORCE, at_s)
        if at_s < self.sure_s:
            return False
        self._differed += 1
        recent.append(True)
        if self._differed < _TWICE and sum(recent) < _MOST:
            return False
        self.why = f"{self.domain} {self.mhz} MHz was asked for and {seen} MHz runs: {why(reasons)}"
        return self._to(LockState.OVERRULED, at_s)

    def is_below(self, clocks: Clocks) -> bool:
        """Say whether the clock read is lower than the lock."""
        seen = mhz_of(clocks, self.domain)
        return self.mhz is not None and seen is not None and seen < self.mhz and not self._is(seen)

    def _is(self, seen_mhz: int) -> bool:
        if self.mhz is None:
            raise AssertionError("auto is any clock")
        within = _WITHIN_MHZ if self.domain is Domain.CORE else _WITHIN * self.mhz
        return abs(seen_mhz - self.mhz) <= within

    def _to(self, state: LockState, at_s: float) -> bool:
        if state is self.state:
            return False
        self.state, self.since_s = state, at_s
        if state is not LockState.OVERRULED:
            self.why, self._differed = "", 0
        return True

    def __str__(self) -> str:
        return f"{self.domain} {format_mhz(self.mhz)} MHz: {self.why or self.state}"


def why(reasons: ThrottleReason) -> str:
    """Say in words why clocks are lower than asked for, the gravest reason first."""
    for reason, words in _REASONS:
        if reason in reasons:
            return words
    return "the driver accepted the lock and does not follow it, and gives no reason"
