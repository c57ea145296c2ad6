"""The clock domains of a GPU: which change is to be asked for next and when, and what became of it.

A number counts the changes of a domain over all rounds. What calls and delays take is believed from
a table, and known better once they were seen. Readings of the driver show whether a lock is in
force or overruled, which locks the power cap holds down, and whether the GPU waits.
"""

import bisect
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from underclock.records import Clocks, ThrottleReason
from underclock.records.latencies import mhz_of
from underclock.runtime.machine.position import Position
from underclock.runtime.machine.timetable import Ask, ClockChange, Outcome, Timetable
from underclock.units import Domain

_ENOUGH, _REMEMBERED = 5, 31  # changes seen before they count, and of which the mean is taken
_ODD = 3.0  # medians: a call that hangs for seconds says nothing of the next
_KEPT = 8  # boundaries remembered for calls that return after them
_ROUNDING_S = 1e-12
_MARGIN_S = 2e-3  # between a call's return and what must not be disturbed
_LEAST_QUIET_S = 0.05  # a collective that takes longer than twice the usual time waits for a rank
_WITHIN_MHZ = 15  # one bin of the core clock: what is read back may be the bin below
_WITHIN = 0.02  # and of the memory's, whose bins are wide
_TWICE = 2  # readings in a row that decide: one may fall on the very change
_RECENT, _MOST = 12, 11  # and of those over several holds: delays may be believed too short
_READINGS, _MOSTLY = 12, 0.9  # of a lock that decide whether the cap holds it down
_IDLE = 0.5  # of the usual power: the GPU waits. 150 of 690 W in a collective on an H200
_POWER_GAIN = 0.05  # of one reading in the usual power


class Latencies:
    """Calls and delays of one GPU: as believed, or as usual once enough were seen."""

    def __init__(self) -> None:
        self._usual_s: dict[Hashable, float] = {}
        self._lately_s: defaultdict[Hashable, deque[float]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )

    def returned(self, domain: Domain, to_mhz: int | None, call_s: float) -> None:
        """Note how long a setter blocked; setting and giving back are calls of their own."""
        self._add(("call", domain, to_mhz is None), call_s)

    def followed(self, domain: Domain, to_mhz: int | None, delay_s: float) -> None:
        """Note how long after the call's return the clock was seen to be the new one."""
        self._add(("delay", domain, to_mhz), delay_s)

    def _add(self, key: Hashable, duration_s: float) -> None:
        lately_s = self._lately_s[key]
        lately_s.append(duration_s)
        if len(lately_s) >= _ENOUGH:
            most_s = _ODD * statistics.median_high(lately_s)
            self._usual_s[key] = statistics.fmean(min(each_s, most_s) for each_s in lately_s)

    def call_s(self, change: ClockChange) -> float:
        """Return how long the setter is expected to block."""
        key = "call", change.domain, change.to_mhz is None
        return self._usual_s.get(key, change.believed.call_s)

    def delay_s(self, change: ClockChange) -> float:
        """Return how long after the call the clock is expected to be the new one."""
        key = "delay", change.domain, change.to_mhz
        return self._usual_s.get(key, change.believed.delay_s)

    def lead_s(self, change: ClockChange) -> float:
        """Return how long ahead a change is to be asked for; calls follow each other."""
        call_s = self.call_s(change)
        alone_s = call_s + self.delay_s(change)
        if change.behind is None:
            return alone_s
        return max(alone_s, self.lead_s(change.behind) + call_s)

    def sure_s(self, change: ClockChange) -> float:
        """Return how long after the call's return it has very likely happened."""
        believed = change.believed
        return self.delay_s(change) + believed.delay_p95_s - believed.delay_s


@dataclass(slots=True)
class DomainChanges:
    """The changes of one clock domain."""

    changes: tuple[ClockChange, ...]  # of a round, in order; at least one
    launches: int  # in a round
    following: int = -1  # number of the next change to ask for
    sure_s: float = -math.inf  # when what was asked for last has very likely happened
    passed: int = 0  # number of the next change whose launch has not begun
    _began_s: dict[int, float] = field(default_factory=dict)
    _flying: dict[int, tuple[float, float]] = field(default_factory=dict)

    def change(self, number: int) -> ClockChange:
        """Return a change by its number."""
        return self.changes[number % len(self.changes)]

    def change_to(self, mhz: int | None) -> ClockChange:
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

    def flies(self, number: int, expected_s: float, effect_s: float) -> list[Outcome]:
        """Note a change that was asked for; return how it met its launch if that has begun."""
        if number in self._began_s:
            return [self._met(number, expected_s, effect_s)]
        if number >= self.passed:
            self._flying[number] = expected_s, effect_s
        return []

    def passes(self, position: Position) -> list[Outcome]:
        """Note that the step got on; return how the changes met launches that began."""
        met = []
        while self.launch(self.passed) <= position.launch:
            number = self.passed
            self._began_s[number] = position.began_s(self.launch(number))
            if number in self._flying:
                met.append(self._met(number, *self._flying.pop(number)))
            self._began_s.pop(number - _KEPT, None)
            self.passed += 1
        return met

    def _met(self, number: int, expected_s: float, effect_s: float) -> Outcome:
        """Return how a change met its launch, by when it was to begin and when the clock moved."""
        began_s = self._began_s[number]
        late_s = effect_s - began_s - self.change(number).aim_s
        return late_s, None if expected_s == -math.inf else began_s - expected_s


class ClockDomains:
    """The clock domains that change; those in `without`, which may become more, are left alone."""

    def __init__(
        self,
        timetable: Timetable,
        position: Position,
        latencies: Latencies,
        without: Collection[Domain],
    ) -> None:
        self.of = {
            domain: DomainChanges(changes, timetable.launches)
            for domain, changes in timetable.changes.items()
        }
        self._position, self._latencies, self._without = position, latencies, without
        self._launches, self._quiet = timetable.launches, timetable.quiet
        self._asks_s: dict[Domain, float] | None = None  # unknown where something changed
        self._next_s = math.inf  # the first of them

    def moved(self) -> None:
        """Find out anew when changes are due: the step got on, or something was asked for."""
        self._asks_s = None

    def enter(self, launch: int) -> None:
        """Go on from a launch: what it should run at is asked for first."""
        for domain in self.of.values():
            domain.enter(launch)

    def passes(self) -> list[Outcome]:
        """Note that the step got on; return how the changes met launches that began."""
        return [met for domain in self.of.values() for met in domain.passes(self._position)]

    def next_s(self) -> float:
        """Return when the next change can be asked for, if no mark is seen before."""
        if self._asks_s is None:
            self._asks_s, mark_s = {}, self._position.next_mark_s()
            for name, domain in self.of.items():
                due_s = domain.due_s(domain.following, self._position, self._latencies)
                if self._quiet:
                    call_s = self._latencies.call_s(domain.change(domain.following))
                    due_s = self._beside_quiet_s(due_s, call_s)
                # What is due only after the next mark waits for the mark. A lock that is replaced
                # before it is followed never is, so the one before must have happened.
                if due_s <= mark_s and name not in self._without:
                    self._asks_s[name] = max(due_s, domain.sure_s)
            self._next_s = min(self._asks_s.values(), default=math.inf)
        return self._next_s

    def next_change(self, now_s: float, asked_mhz: Mapping[Domain, int | None]) -> Ask | None:
        """Return the newest change that is due, unless the clock was asked to be there."""
        now_s += _ROUNDING_S
        position, latencies = self._position, self._latencies
        while True:
            if self.next_s() > now_s or self._asks_s is None:
                return None
            due = [name for name, each_s in self._asks_s.items() if each_s <= now_s]
            name = min(
                due, key=lambda n: self.of[n].due_s(self.of[n].following, position, latencies)
            )
            domain = self.of[name]
            if self._disturbs(now_s, latencies.call_s(domain.change(domain.following))):
                self._asks_s[name] = math.inf  # until a mark shows that it is over
                self._next_s = min(self._asks_s.values())
                continue
            number = domain.newest(min(now_s, position.next_mark_s()), position, latencies)
            domain.following = number + 1
            self.moved()
            change, launch = domain.change(number), domain.launch(number)
            if change.to_mhz != asked_mhz[name]:
                return Ask(
                    domain=name,
                    to_mhz=change.to_mhz,
                    call_s=latencies.call_s(change),
                    number=number,
                    launch=launch,
                    expected_s=position.begins_s(launch),
                )

    def quiet_until_s(self) -> float:
        """Return until when nothing is to be asked for, as far as is known without another mark.

        Where communication lasts much longer than usual another rank may never come: then it ends.
        """
        quiet, position = self._next_quiet(), self._position
        if quiet is None or quiet[0] > position.launch:
            return -math.inf
        usual_s = position.begins_s(quiet[1]) - position.at_s
        return position.at_s + max(2.0 * usual_s, _LEAST_QUIET_S)

    def _next_quiet(self) -> tuple[int, int] | None:
        """Return the stretch of communication in which the step stands, or that comes next."""
        for rounds in (self._position.rounds, self._position.rounds + 1):
            for first, end in self._quiet:
                if rounds * self._launches + end > self._position.launch:
                    return rounds * self._launches + first, rounds * self._launches + end
        return None

    def _beside_quiet_s(self, due_s: float, call_s: float) -> float:
        """Return when to ask for what is due then, so that the call disturbs no communication.

        NCCL's transfers are late where clocks are locked meanwhile (nccl #1551). So a call ends
        before it; and only where there is no room for one it is made as soon as it may.
        """
        quiet, position = self._next_quiet(), self._position
        if quiet is None:
            return due_s
        first_s, end_s = (position.begins_s(each) for each in quiet)
        if quiet[0] <= position.launch:  # it stands there: the mark that ends it is waited for
            return math.inf
        if due_s + call_s <= first_s or due_s >= end_s:
            return due_s
        return min(due_s, max(first_s - call_s - _MARGIN_S, position.at_s))

    def _disturbs(self, now_s: float, call_s: float) -> bool:
        """Whether a call now would last into communication, and need not."""
        quiet = self._next_quiet()
        if quiet is None:
            return False
        if quiet[0] <= self._position.launch:
            return True
        # How long it usually is from the end of the communication before.
        first, ends = quiet[0] % self._launches, [end for _, end in self._quiet]
        at = bisect.bisect_right(ends, first) - 1
        before = ends[at] - (self._launches if at < 0 else 0)
        usual = self._position.intervals
        room_s = usual.into_s(first) - usual.into_s(before % self._launches)
        room_s += usual.step_s if room_s <= 0.0 else 0.0
        first_s = self._position.begins_s(quiet[0])
        return now_s + call_s > first_s and room_s >= call_s + _MARGIN_S


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
        """Compare with clocks read under load; return whether the state became another."""
        seen = mhz_of(clocks, self.domain)
        settled = self.state in {LockState.ACCEPTED, LockState.IN_FORCE, LockState.OVERRULED}
        if not settled or seen is None or ThrottleReason.GPU_IDLE in reasons:
            return False
        if self.mhz is None:  # given back: it is in force whatever the clock is
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
    """Compares what the driver shows with locks, and notes how long clocks took to change."""

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
