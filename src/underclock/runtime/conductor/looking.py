"""When to look at a page of marks, and looking on while a setter blocks.

A look takes some 20 µs of the host. So one looks closely about the time at which a mark is
expected, and hardly in between.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from underclock.hw.base import Clock
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page

_CLOSE_S = 1e-4  # between looks when a mark is due, at least
_CLOSE = 0.2  # of the margin: where marks come unevenly, a later look loses little
_WAITING_S = 5e-3  # between looks where nothing is known
_IDLE_S = 0.05  # and before there is a trainer that marks
_LEAST_MARGIN_S, _MOST_MARGIN_S = 1e-4, 5e-3
_MARGINS = 3.0  # of the usual error: so much before a mark is expected, one looks closely
_OFTEN = 0.1  # how fast the usual error is learned
_OVERDUE = 0.05  # of how long a mark is overdue: between looks
_PATIENCE = 0.01  # of how long a setter has blocked: likewise


class Looking:
    """Looks at one page.

    Attributes:
        next_s: When to look next.
        looks: How often it looked.
    """

    def __init__(self, page: Page, clock: Clock) -> None:
        self._page = page
        self._clock = clock
        self._margin_s = _MOST_MARGIN_S
        self._expected_s: float | None = None
        self.last = 0
        self.next_s = 0.0
        self.looks = 0

    def look(self) -> tuple[int, float] | None:
        """Return a mark that is new and when it was seen."""
        self.looks += 1
        mark = self._page.mark
        if mark == self.last:
            return None
        at_s = self._clock.now_s()
        self.last = mark
        if self._expected_s is not None:
            error_s = abs(at_s - self._expected_s)
            margin_s = self._margin_s + _OFTEN * (_MARGINS * error_s - self._margin_s)
            self._margin_s = min(max(margin_s, _LEAST_MARGIN_S), _MOST_MARGIN_S)
        return mark, at_s

    def expect(self, mark_s: float, now_s: float) -> None:
        """Say when the next mark is expected; infinite where nothing is known."""
        self._expected_s = mark_s if math.isfinite(mark_s) else None
        self.again(now_s)

    def again(self, now_s: float) -> None:
        """Decide when to look next."""
        if self._expected_s is None:
            marking = self._page.state == pages.MARKING
            self.next_s = now_s + (_WAITING_S if marking else _IDLE_S)
            return
        overdue_s = now_s - self._expected_s
        if overdue_s < -self._margin_s:
            self.next_s = self._expected_s - self._margin_s
        else:
            wait_s = max(_CLOSE_S, _CLOSE * self._margin_s, _OVERDUE * overdue_s)
            self.next_s = now_s + min(wait_s, _WAITING_S)


class LookingOn:
    """A thread that notes the marks of all pages while this process waits for a setter to return.

    Args:
        clock: The machine's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wanted = threading.Event()
        self._looks = threading.Lock()  # held while the thread looks
        self._began_s = 0.0
        self._pages: list[tuple[Looking, Callable[[int, float], None]]] = []
        self._seen: list[tuple[Callable[[int, float], None], int, float]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, page: Looking, tell: Callable[[int, float], None]) -> None:
        """Look at another page; tell of its marks, and when they were seen."""
        self._pages.append((page, tell))

    @contextmanager
    def during(self) -> Iterator[None]:
        """Note marks for the length of a block, and tell of them after it."""
        self._began_s = self._clock.now_s()
        self._wanted.set()
        try:
            yield
        finally:
            self._wanted.clear()
            with self._looks:
                seen, self._seen = self._seen, []
            for tell, mark, at_s in seen:
                tell(mark, at_s)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            with self._looks:
                if self._wanted.is_set():  # else nobody will hear of what is seen
                    self._look()
            # A setter that hangs is waited for in more and more peace.
            blocked_s = self._clock.now_s() - self._began_s
            self._clock.sleep_s(min(max(_CLOSE_S, _PATIENCE * blocked_s), _WAITING_S))

    def _look(self) -> None:
        for page, tell in self._pages:
            mark = page.look()
            if mark is not None:
                self._seen.append((tell, *mark))
