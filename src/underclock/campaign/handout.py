"""Which worker of a campaign does what: windows handed out, taken back, and never done by two.

A window that is wanted waits, is with one worker, or is on file. What a lost worker had goes to the
next that is free.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from underclock.core.design.wanted import Wanted

_MOST = 4  # windows that go out together, at the same clocks, while many wait


class Handout:
    """Windows that are wanted, and the workers that take them.

    Args:
        takes_s: Returns about how long a window takes.
        virtual: Whether each worker has a time of its own, as simulated GPUs do: then none is given
            what another would have come to earlier.
    """

    def __init__(self, takes_s: Callable[[Wanted], float], *, virtual: bool) -> None:
        self._takes_s = takes_s
        self._virtual = virtual
        self._waiting: deque[Wanted] = deque()
        self._own: dict[str, list[Wanted]] = {}
        self._with: dict[str, list[Wanted]] = {}
        self._spent_s: dict[str, float] = {}

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._spent_s)

    @property
    def busy(self) -> bool:
        """Whether any worker is at something."""
        return bool(self._with)

    @property
    def waiting(self) -> int:
        """How many windows nobody is at."""
        return len(self._waiting)

    @property
    def pending(self) -> tuple[Wanted, ...]:
        """Everything that is wanted and not on file."""
        lists = (*self._with.values(), *self._own.values(), self._waiting)
        return tuple(one for some in lists for one in some)

    def join(self, worker: str, spent_s: float, own: Sequence[Wanted] = ()) -> None:
        """Add a worker that is free.

        Args:
            spent_s: GPU time that its GPU took so far.
            own: What this worker takes itself, before all else.
        """
        self._spent_s[worker] = spent_s
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
        for worker in sorted(self._spent_s.keys() - self._with.keys(), key=self._order):
            if self._is_ahead(worker):
                continue
            if some := self._own.pop(worker, None) or self._next():
                self._with[worker] = some
                given.append((worker, some))
        return given

    def done(self, worker: str, spent_s: float) -> None:
        """Free a worker: all that it was at is on file."""
        del self._with[worker]
        self._spent_s[worker] = spent_s

    def lost(self, worker: str) -> None:
        """Take back what a worker was at; it comes first for others."""
        self._waiting.extendleft(reversed(self._with.pop(worker, [])))
        self._own.pop(worker, None)
        self._spent_s.pop(worker, None)

    def _order(self, worker: str) -> tuple[float, str]:
        return self._spent_s[worker], worker

    def _is_ahead(self, worker: str) -> bool:
        """Whether another will be free before the time that this one is at."""
        ends_s = (self._spent_s[w] + sum(map(self._takes_s, at)) for w, at in self._with.items())
        return self._virtual and self._spent_s[worker] > min(ends_s, default=float("inf"))

    def _next(self) -> list[Wanted]:
        """Take what goes out together: at the same clocks, and few where few wait."""
        if not self._waiting:
            return []
        most = max(1, min(_MOST, len(self._waiting) // (2 * self.workers)))
        asked = self._waiting[0].asked
        together = list(takewhile(lambda one: one.asked == asked, list(self._waiting)[:most]))
        for _ in together:
            self._waiting.popleft()
        return together
