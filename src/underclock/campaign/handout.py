"""Which worker of a campaign does what: windows handed out, taken back, and never done by two.

A window that is wanted waits, is with one worker, or is on file. What a lost worker had goes to the
next that is free.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

from underclock.core.design.wanted import Wanted

_MOST = 4  # windows that go out together, at the same clocks, while many wait


class Handout:
    """Windows that are wanted, and the workers that take them."""

    def __init__(self) -> None:
        self._waiting: deque[Wanted] = deque()
        self._own: dict[str, list[Wanted]] = {}
        self._with: dict[str, list[Wanted]] = {}
        self._free: list[str] = []  # first come, first served

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._free) + len(self._with)

    @property
    def busy(self) -> int:
        """How many are at something."""
        return len(self._with)

    @property
    def short(self) -> bool:
        """Whether more workers are free than windows wait."""
        return len(self._waiting) + len(self._own) < len(self._free)

    @property
    def pending(self) -> tuple[Wanted, ...]:
        """Everything that is wanted and not on file."""
        lists = (*self._with.values(), *self._own.values(), self._waiting)
        return tuple(one for some in lists for one in some)

    def join(self, worker: str, own: Sequence[Wanted] = ()) -> None:
        """Add a worker that is free.

        Args:
            own: What this worker takes itself, before all else.
        """
        self._free.append(worker)
        if own:
            self._own[worker] = list(own)

    def want(self, wanted: Iterable[Wanted]) -> None:
        """Add windows, after those that wait."""
        self._waiting.extend(wanted)

    def forget(self) -> None:
        """Drop what nobody is at: the campaign ends."""
        self._waiting.clear()
        self._own.clear()

    def hand_out(self) -> list[tuple[str, list[Wanted]]]:
        """Return what free workers are to take now, and count them as being at it."""
        given = []
        for worker in tuple(self._free):
            if some := self._own.pop(worker, None) or self._next():
                self._free.remove(worker)
                self._with[worker] = some
                given.append((worker, some))
        return given

    def done(self, worker: str) -> None:
        """Free a worker: all that it was at is on file."""
        del self._with[worker]
        self._free.append(worker)

    def lost(self, worker: str) -> None:
        """Take back what a worker was at; it comes first for others."""
        self._waiting.extendleft(reversed(self._with.pop(worker, [])))
        self._own.pop(worker, None)
        if worker in self._free:
            self._free.remove(worker)

    def _next(self) -> list[Wanted]:
        """Take what goes out together: at the same clocks, and few where few wait."""
        if not self._waiting:
            return []
        first, most = self._waiting[0], max(1, min(_MOST, len(self._waiting) // (2 * self.workers)))
        alike = itertools.takewhile(
            lambda one: one.asked == first.asked and not one.is_step, list(self._waiting)[:most]
        )
        return [self._waiting.popleft() for _ in range(max(1, len(list(alike))))]
