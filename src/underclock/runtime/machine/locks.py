"""Locks: asked for, accepted, in force, or overruled, by what the driver shows of the GPU.

Readings also tell which locks the power cap holds down, how long after its call a clock changed,
and whether the GPU waits.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.records import Clocks, ThrottleReason
from underclock.records.latencies import Domain, mhz_of
from underclock.runtime.machine.clock_domains import DomainChanges, Latencies

_WITHIN_MHZ = 15  # one bin of the core clock: what is read back may be the bin below
_WITHIN = 0.02  # and of the memory's, whose bins are wide
_TWICE = 2  # readings in a row that decide: one may fall on the very change
_RECENT, _MOST = 12, 11  # and of those over several holds: delays may be believed too short
_READINGS, _MOSTLY = 12, 0.9  # of a lock that decide whether the cap holds it down
_IDLE = 0.5  # of the usual power: the GPU waits. 150 of 690 W in a collective on an H200
_POWER_GAIN = 0.05  # of one reading in the usual power


class LockState(StrEnum):
    """How far a lock got; the value says it in words."""

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


@dataclass(slots=True)
class Lock:
    """One clock's lock."""

    domain: Domain  # whose clock
    mhz: int | None = None  # what was asked for last; None is auto
    state: LockState = LockState.NONE  # how far it got
    since_s: float = 0.0  # when it got there
    sure_s: float = 0.0  # readings count from then on: before, the clock may still change
    why: str = ""  # why it is overruled, in words; empty else
    _differed: int = 0  # readings in a row
    _recent: defaultdict[int, deque[bool]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_RECENT))
    )
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
        if self._is(seen, self.mhz):
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
        seen, mhz = mhz_of(clocks, self.domain), self.mhz
        return mhz is not None and seen is not None and seen < mhz and not self._is(seen, mhz)

    def _is(self, seen_mhz: int, asked_mhz: int) -> bool:
        within = _WITHIN_MHZ if self.domain is Domain.CORE else _WITHIN * asked_mhz
        return abs(seen_mhz - asked_mhz) <= within

    def _to(self, state: LockState, at_s: float) -> bool:
        if state is self.state:
            return False
        self.state, self.since_s = state, at_s
        if state is not LockState.OVERRULED:
            self.why, self._differed = "", 0
        return True


def why(reasons: ThrottleReason) -> str:
    """Say in words why clocks are lower than asked for, the gravest reason first."""
    unknown = "the driver accepted the lock and does not follow it, and gives no reason"
    return next((words for reason, words in _REASONS if reason in reasons), unknown)


class Readings:
    """Compares what the driver shows with locks, and tells latencies how long clocks took."""

    def __init__(self, locks: Mapping[Domain, Lock], latencies: Latencies) -> None:
        self._locks, self._latencies = locks, latencies
        # By the core's change: readings while its lock should have been in force, and of those how
        # many the power cap kept below it.
        self._of_locks: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._last: tuple[Clocks, float] | None = None
        self._usual_w: float | None = None
        self._power_w: float | None = None

    def begin_anew(self) -> None:
        """Count anew what the power cap holds down: the timetable is another."""
        self._of_locks.clear()

    def compare(
        self,
        clocks: Clocks,
        reasons: ThrottleReason,
        at_s: float,
        domains: Mapping[Domain, DomainChanges],
        *,
        follows: bool,
    ) -> list[Lock]:
        """Compare the locks with the clocks that run; return those that are found overruled."""
        self._learn_delay(clocks, at_s, domains)
        lock, core = self._locks[Domain.CORE], domains.get(Domain.CORE)
        settled = lock.state not in {LockState.ASKED, LockState.REFUSED} and at_s >= lock.sure_s
        if follows and core is not None and settled and lock.mhz is not None:
            counts = self._of_locks[(core.following - 1) % len(core.changes)]
            counts[0] += 1
            counts[1] += ThrottleReason.SW_POWER_CAP in reasons and lock.is_below(clocks)
        return [
            lock
            for lock in self._locks.values()
            if lock.observe(clocks, reasons, at_s) and lock.state is LockState.OVERRULED
        ]

    def above_cap(self, core: DomainChanges | None) -> frozenset[int]:
        """Return the launches whose core lock the power cap keeps from being in force."""
        if core is None:
            return frozenset()
        return frozenset(
            core.changes[index].at
            for index, (readings, held_down) in self._of_locks.items()
            if readings >= _READINGS and held_down >= _MOSTLY * readings
        )

    def draws(self, power_w: float | None, *, usually: bool) -> None:
        """Take note of what the board draws; ``None`` if that is not known."""
        self._power_w = power_w
        if power_w is not None and usually:
            before_w = power_w if self._usual_w is None else self._usual_w
            self._usual_w = before_w + _POWER_GAIN * (power_w - before_w)

    @property
    def waits(self) -> bool:
        """Whether the GPU draws so little that it does nothing; not where that is not known."""
        if self._power_w is None or self._usual_w is None:
            return False
        return self._power_w < _IDLE * self._usual_w

    def _learn_delay(
        self, clocks: Clocks, at_s: float, domains: Mapping[Domain, DomainChanges]
    ) -> None:
        """Learn when a clock changed, where it was read often enough to tell."""
        before, self._last = self._last, (clocks, at_s)
        if before is None:
            return
        was, was_s = before
        for name, domain in domains.items():
            lock = self._locks[name]
            old_mhz, new_mhz = mhz_of(was, name), mhz_of(clocks, name)
            if lock.state is not LockState.ACCEPTED or new_mhz != lock.mhz or old_mhz == new_mhz:
                continue
            believed_s = domain.change_to(lock.mhz).believed.delay_s
            if was_s >= lock.since_s and at_s - was_s <= believed_s:
                self._latencies.followed(name, lock.mhz, 0.5 * (was_s + at_s) - lock.since_s)
