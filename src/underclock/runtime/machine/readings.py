"""What the driver shows of a GPU, compared with what was asked of it.

Readings tell which locks are overruled or held down by the power cap, how long after its call a
clock changed, and whether the GPU waits.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from underclock.records import Clocks, ThrottleReason
from underclock.records.latencies import Domain, mhz_of
from underclock.runtime.machine.latency import Latencies
from underclock.runtime.machine.line import Line
from underclock.runtime.machine.lines import Lines
from underclock.runtime.machine.locks import Lock, LockState

_READINGS, _MOSTLY = 12, 0.9  # of a lock that decide whether the cap holds it down
_IDLE = 0.5  # of the usual power: the GPU waits. 150 of 690 W in a collective on an H200
_POWER_GAIN = 0.05  # of one reading in the usual power


@dataclass(slots=True)
class LockReadings:
    """Readings while one lock of a timetable should have been in force.

    Attributes:
        readings: How many.
        held_down: Of which the power cap kept the clock below the lock.
    """

    readings: int = 0
    held_down: int = 0


class Readings:
    """Compares readings with locks.

    Args:
        locks: Of each clock; told of every reading.
        latencies: Told how long clocks took to change.
    """

    def __init__(self, locks: Mapping[Domain, Lock], latencies: Latencies) -> None:
        self._locks, self._latencies = locks, latencies
        self._of_locks: defaultdict[int, LockReadings] = defaultdict(LockReadings)
        self._looked: tuple[Clocks, float] | None = None
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
        lines: Lines,
        *,
        follows: bool,
    ) -> list[Lock]:
        """Compare the locks with the clocks that run; return those that are found overruled.

        Args:
            clocks: Those that run.
            reasons: Why they are what they are.
            at_s: When that was read.
            lines: Of the timetable.
            follows: Whether clocks follow it.
        """
        self._learn_delay(clocks, at_s, lines)
        core = lines.of(Domain.CORE)
        if follows and core is not None:
            self._count(clocks, reasons, at_s, core)
        return [
            lock
            for lock in self._locks.values()
            if lock.observe(clocks, reasons, at_s) and lock.state is LockState.OVERRULED
        ]

    def above_cap(self, line: Line | None) -> frozenset[int]:
        """Return the launches whose core lock the power cap keeps from being in force.

        Args:
            line: The core's; ``None`` if it never changes.
        """
        if line is None:
            return frozenset()
        return frozenset(
            line.changes[index].at
            for index, read in self._of_locks.items()
            if read.readings >= _READINGS and read.held_down >= _MOSTLY * read.readings
        )

    def draws(self, power_w: float | None, *, usually: bool) -> None:
        """Take note of what the board draws; ``None`` if that is not known.

        Args:
            power_w: What it draws.
            usually: Whether the step is seen to get on, so that this is what it usually draws.
        """
        self._power_w = power_w
        if power_w is not None and usually:
            usual_w = self._usual_w
            self._usual_w = (
                power_w if usual_w is None else usual_w + _POWER_GAIN * (power_w - usual_w)
            )

    @property
    def waits(self) -> bool:
        """Whether the GPU draws so little that it does nothing; not where that is not known."""
        if self._power_w is None or self._usual_w is None:
            return False
        return self._power_w < _IDLE * self._usual_w

    def _count(self, clocks: Clocks, reasons: ThrottleReason, at_s: float, line: Line) -> None:
        """Count how often the power cap holds down the core lock that the timetable has now."""
        lock = self._locks[Domain.CORE]
        settled = lock.state not in {LockState.ASKED, LockState.REFUSED} and at_s >= lock.sure_s
        if not settled or lock.mhz is None:
            return
        read = self._of_locks[(line.following - 1) % len(line.changes)]
        read.readings += 1
        read.held_down += ThrottleReason.SW_POWER_CAP in reasons and lock.is_below(clocks)

    def _learn_delay(self, clocks: Clocks, at_s: float, lines: Lines) -> None:
        """Learn when a clock changed, where it was looked at often enough to tell."""
        before, self._looked = self._looked, (clocks, at_s)
        if before is None:
            return
        was, was_s = before
        for domain, line in lines.items():
            lock = self._locks[domain]
            old_mhz, new_mhz = mhz_of(was, domain), mhz_of(clocks, domain)
            if lock.state is not LockState.ACCEPTED or new_mhz != lock.mhz or old_mhz == new_mhz:
                continue
            believed_s = line.change_to(lock.mhz).believed.delay_s
            if was_s >= lock.since_s and at_s - was_s <= believed_s:
                delay_s = 0.5 * (was_s + at_s) - lock.since_s
                self._latencies.followed(domain, lock.mhz, delay_s)
