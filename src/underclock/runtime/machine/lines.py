"""Which change of a timetable is to be asked for next, of either clock."""

import math
from collections.abc import Collection, Iterator, Mapping

from underclock.records.latencies import Domain
from underclock.runtime.machine.latency import Latencies
from underclock.runtime.machine.line import Line, Outcome
from underclock.runtime.machine.locks import Lock
from underclock.runtime.machine.position import Position
from underclock.runtime.machine.steps import Ask
from underclock.runtime.machine.timetable import Change, Timetable

_ROUNDING_S = 1e-12


class Lines:
    """The clocks that change, each with its own line.

    Args:
        timetable: Of the step.
        position: Where the step is.
        latencies: What changes take.
        without: Clocks that are not asked for; it may become more.
    """

    def __init__(
        self,
        timetable: Timetable,
        position: Position,
        latencies: Latencies,
        without: Collection[Domain],
    ) -> None:
        self._lines = {
            domain: Line(changes, timetable.launches)
            for domain, changes in timetable.changes.items()
        }
        self._position, self._latencies, self._without = position, latencies, without
        self._asks_s: dict[Domain, float] | None = None  # unknown where something changed
        self._next_s = math.inf  # the first of them

    def of(self, domain: Domain) -> Line | None:
        """Return one clock's line; ``None`` if that clock never changes."""
        return self._lines.get(domain)

    def items(self) -> Iterator[tuple[Domain, Line]]:
        """Return every clock that changes, and its line."""
        yield from self._lines.items()

    def changes(self) -> Iterator[Change]:
        """Return the changes of a round, one clock's after the other's."""
        for line in self._lines.values():
            yield from line.changes

    def moved(self) -> None:
        """Find out anew when changes are due: the step got on, or something was asked for."""
        self._asks_s = None

    def enter(self, launch: int) -> None:
        """Go on from a launch: what it should run at is asked for first."""
        for line in self._lines.values():
            line.enter(launch)

    def passes(self) -> list[Outcome]:
        """Note that the step got on; return how the changes met launches that began."""
        met: list[Outcome] = []
        for line in self._lines.values():
            met += line.passes(self._position)
        return met

    def next_s(self) -> float:
        """Return when the next change can be asked for; it is looked at often."""
        if self._asks_s is None:
            self._asks_s = self._find_asks_s()
            self._next_s = min(self._asks_s.values(), default=math.inf)
        return self._next_s

    def next_change(self, now_s: float, locks: Mapping[Domain, Lock]) -> Ask | None:
        """Return the newest change that is due, unless the clock was asked to be there.

        Args:
            now_s: The time.
            locks: What each clock was asked for last.
        """
        now_s += _ROUNDING_S
        position, latencies, lines = self._position, self._latencies, self._lines
        while True:
            if self.next_s() > now_s or self._asks_s is None:
                return None
            due = [domain for domain, each_s in self._asks_s.items() if each_s <= now_s]
            domain = min(due, key=lambda d: lines[d].due_s(lines[d].following, position, latencies))
            line = lines[domain]
            number = line.newest(min(now_s, position.next_mark_s()), position, latencies)
            line.following = number + 1
            self.moved()
            change = line.change(number)
            if change.to_mhz != locks[domain].mhz:
                return Ask(
                    domain=domain,
                    to_mhz=change.to_mhz,
                    call_s=latencies.call_s(change),
                    number=number,
                    expected_s=position.begins_s(line.launch(number)),
                )

    def _find_asks_s(self) -> dict[Domain, float]:
        """Return when each clock's next change can be asked for, if no mark is seen before.

        A lock that is replaced before it is followed never is, so the one before must have
        happened. What is due only after the next mark waits for the mark.
        """
        mark_s = self._position.next_mark_s()
        asks_s = {}
        for domain, line in self._lines.items():
            due_s = line.due_s(line.following, self._position, self._latencies)
            if due_s <= mark_s and domain not in self._without:
                asks_s[domain] = max(due_s, line.sure_s)
        return asks_s
