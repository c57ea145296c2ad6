"""What will happen to a virtual GPU at a set time: a clock that switches, a fault and its end."""

import heapq
import itertools
import math
from collections.abc import Callable


class Agenda:
    """Actions in order of their time; at one time, in the order they were set down."""

    def __init__(self) -> None:
        self.next_s = math.inf
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def add(self, at_s: float, action: Callable[[], None]) -> None:
        """Set an action down."""
        heapq.heappush(self._entries, (at_s, next(self._count), action))
        self.next_s = self._entries[0][0]

    def run(self, now_s: float) -> None:
        """Do everything that is due; an action may set down others."""
        while self._entries and self._entries[0][0] <= now_s:
            _, _, action = heapq.heappop(self._entries)
            action()
        self.next_s = self._entries[0][0] if self._entries else math.inf
