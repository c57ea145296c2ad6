"""When to poll a mark page, also while a setter blocks.

Every poll wakes this process, which costs some 50 µs of processor before anything is done. So one
polls when a mark is expected, and, where it is not there, again a little later. When a mark was
reached follows from the last poll at which it was not there, the first at which it was, and when
it was expected. Now and then a step is seen closely, without that last resort.
"""

import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from underclock.hw.base import Clock
from underclock.runtime.machine.position import Position
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page

_FIRST_CLOSE_S, _LEAST_CLOSE_S, _MOST_CLOSE_S = 5e-4, 1e-4, 5e-3
_LATER, _IN_TIME = 1.03, 0.99  # so one mark in four comes later than one close poll after another
_UNSURE = 3.0  # deviations that a mark may be early by
_WAITING_S = 5e-3  # between polls where nothing is known
_IDLE_S = 0.05  # and before there is a trainer that marks
_REST_S = 1.0  # of the thread, while no setter blocks
_PR_SET_TIMERSLACK = 29

Tell = Callable[[int, float, int], None]
"""Hears of a mark, when it was reached, and the number of its step."""


_BRIEFLY, _CLOSELY = (2.0, 1.0, 0.5), (4.0, 0.5, 0.25)
"""How long before a mark is expected polls begin, how far they are apart where it is due, in waits,
and elsewhere, as a part of how far off that is."""


def wake_on_time() -> None:
    """Have the system wake this thread when it asks to be, and threads that it starts.

    Linux lets a sleeper sleep on for 50 µs, to have several wake-ups at once.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


class Polling:
    """Polls one page.

    Attributes:
        position: By which marks are expected.
        next_s: When to poll next.
        polls: How often it was polled.
    """

    def __init__(self, page: Page, clock: Clock, position: Position) -> None:
        self._page = page
        self._clock = clock
        self.position = position
        self._close_s = _FIRST_CLOSE_S
        self._polled_s = -math.inf
        self._expected_s = self._first_s = math.inf
        self._last = (0, 0)
        self.next_s = 0.0
        self.polls = 0

    def poll(self) -> tuple[int, float, int] | None:
        """Return a mark that is new, when it was reached, and the number of its step."""
        self.polls += 1
        reached = self._page.reached()
        now_s = self._clock.now_s()
        before_s, self._polled_s = self._polled_s, now_s
        if reached == self._last:
            if now_s - self._expected_s >= self._close_s:
                self._close_s = min(_LATER * self._close_s, _MOST_CLOSE_S)
            self._choose_next(now_s)
            return None
        self._last = reached
        mark, steps = reached
        if now_s - self._expected_s <= self._close_s:
            self._close_s = max(_IN_TIME * self._close_s, _LEAST_CLOSE_S)
        expected_s = self.position.reaches_s(mark - 1, steps)
        return mark, self._reached_s(expected_s, before_s, now_s), steps

    def expect(self, mark_s: float, now_s: float) -> None:
        """Say when the next mark is expected; infinite where nothing is known."""
        self._expected_s = mark_s
        if mark_s < math.inf:
            early = (_CLOSELY if self.position.closely else _BRIEFLY)[0]
            early_s = max(early * self._close_s, _UNSURE * self.position.unsure_s)
            self._first_s = mark_s - early_s
        self._choose_next(now_s)

    def expect_after(self, mark: int, at_s: float) -> None:
        """Expect the mark after one that was reached then, before its reader hears of that."""
        self.expect(self.position.after_s(mark - 1, at_s), self._polled_s)

    def _choose_next(self, now_s: float) -> None:
        if self._expected_s == math.inf:
            self.next_s = now_s + (_WAITING_S if self._page.state == pages.MARKING else _IDLE_S)
        elif self._first_s > now_s:
            self.next_s = self._first_s
        else:
            _, between, off = _CLOSELY if self.position.closely else _BRIEFLY
            overdue_s = abs(now_s - self._expected_s)
            wait_s = max(between * self._close_s, off * overdue_s, _LEAST_CLOSE_S)
            self.next_s = now_s + min(wait_s, _WAITING_S)

    def _reached_s(self, expected_s: float, before_s: float, now_s: float) -> float:
        """Return when a mark was reached that was not there at one poll and is at the next."""
        if now_s - before_s <= 2.0 * self._close_s:
            return 0.5 * (before_s + now_s)
        if not math.isfinite(expected_s):
            return now_s
        early_s = max(before_s, expected_s - self._close_s)
        late_s = min(now_s, expected_s + self._close_s)
        if early_s > late_s:  # it was not expected between the two
            early_s, late_s = max(before_s, now_s - self._close_s), now_s
        return 0.5 * (early_s + late_s)


class PollingThread:
    """A thread that notes the marks of all pages while this process waits for a setter.

    Each page has a function that takes its marks.
    """

    def __init__(self, clock: Clock, pages: Sequence[tuple[Polling, Tell]]) -> None:
        self._clock, self._pages = clock, pages
        self._wanted = threading.Event()
        self._polls = threading.Lock()  # held while the thread polls
        self._seen: list[tuple[Tell, int, float, int]] = []
        threading.Thread(target=self._run, daemon=True).start()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Note marks for the length of a block, and tell of them after it."""
        self._wanted.set()
        try:
            yield
        finally:
            self._wanted.clear()
            with self._polls:
                seen, self._seen = self._seen, []
            for tell, mark, at_s, steps in seen:
                tell(mark, at_s, steps)

    def _run(self) -> None:
        while True:
            if not self._wanted.wait(_REST_S):
                continue
            with self._polls:
                now_s = self._clock.now_s()
                # What is seen once the block is over would reach no reader.
                for page, tell in self._pages if self._wanted.is_set() else ():
                    seen = page.poll() if page.next_s <= now_s else None
                    if seen is not None:
                        self._seen.append((tell, *seen))
                        page.expect_after(*seen[:2])
            next_s = min((page.next_s for page, _ in self._pages), default=math.inf)
            wait_s = next_s - self._clock.now_s()
            self._clock.sleep_s(min(max(wait_s, _LEAST_CLOSE_S), _WAITING_S))
