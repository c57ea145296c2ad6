"""What a follower of pages is given in tests: time, readings, and a setter that notes."""

import bisect
import threading
from collections.abc import Callable

from underclock.errors import NotPermittedError
from underclock.hw.base import SystemClock
from underclock.hw.nvml_calls import Value
from underclock.runtime.controller.gauges import Gauge, Gauges
from underclock.units import Domain

CLOCK = SystemClock()


class Virtual:
    """Time that goes on as the controller sleeps, and a stream that reaches marks meanwhile."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def now_s(self) -> float:
        return self._now_s

    def sleep_s(self, duration_s: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            CLOCK.sleep_s(1e-4)  # who looks on while a setter blocks has no time of its own
            return
        until_s = self._now_s + max(duration_s, 1e-6)
        while self._due and self._due[0][0] <= until_s:
            self._now_s, action = self._due.pop(0)
            action()
        self._now_s = until_s

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        bisect.insort(self._due, (at_s, action), key=lambda each: each[0])


class Given(Gauges):
    """Readings that a test gives."""

    def __init__(self) -> None:
        self.error = ""
        self.closely_s = 0.0
        self.awaited: list[int] = []  # clocks that a controller waited for
        self.given: list[Gauge] = []

    def taken(self) -> list[Gauge]:
        some, self.given = self.given, []
        return some

    def read_closely(self, for_s: float) -> None:
        self.closely_s = for_s

    def follows_s(self, core_mhz: int) -> float | None:
        self.awaited.append(core_mhz)
        return 0.0

    def gives(self, gauge: Gauge) -> None:
        self.given.append(gauge)

    def close(self) -> None:
        """Nothing reads."""


class Asked:
    """A setter that notes what it is asked for, and does something."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.values: list[tuple[Domain, Value]] = []
        self.refuses: Domain | None = None
        self._then = then

    def __call__(self, setting: Domain, value: Value) -> None:
        self.values.append((setting, value))
        if setting is self.refuses:
            raise NotPermittedError("it may not be")
        self._then()
