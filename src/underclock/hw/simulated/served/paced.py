"""Virtual time that goes with the machine's monotonic clock.

Nothing is computed ahead: whoever looks lets the GPUs catch up with the time it is. A thread looks
when something is due that others can see, such as a mark.
"""

import math
import threading
from collections.abc import Callable

from underclock.hw.base import Clock
from underclock.hw.simulated.device import VirtualGpu

_SHORTEST_S = 2e-5  # no sleep is shorter: the socket takes longer than that


class PacedClock:
    """Time of virtual GPUs that other processes use.

    Args:
        gpus: They all keep one time.
        clock: Of the machine; all its processes share it.
        speed: Virtual seconds in one of those.
    """

    def __init__(self, gpus: tuple[VirtualGpu, ...], clock: Clock, *, speed: float = 1.0) -> None:
        if not 0 < speed < math.inf:
            raise ValueError(f"time cannot go at a speed of {speed}")
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # told when launches may have ended
        self._gpus = gpus
        self._clock = clock
        self._speed = speed
        self._begun_s = clock.now_s()
        self._stopped = False

    def now_s(self) -> float:
        """Return virtual time in s."""
        return (self._clock.now_s() - self._begun_s) * self._speed

    def catch_up(self) -> None:
        """Let the GPUs do what they will have done by now."""
        with self.lock:
            now_s = self.now_s()
            for gpu in self._gpus:
                if now_s > gpu.now_s:
                    gpu.advance(now_s - gpu.now_s)

    def sleep_s(self, duration_s: float) -> None:
        """Let virtual time pass, for the caller and for others who wait for the lock."""
        with self.lock:
            if duration_s > _SHORTEST_S:
                until_s = self.now_s() + duration_s
                waiting = threading.Condition(self.lock)  # nobody calls it
                while (left_s := until_s - self.now_s()) > 0:
                    waiting.wait(left_s / self._speed)
            self.catch_up()

    def run(self, due_s: Callable[[], float]) -> None:
        """Catch up whenever something is due, until `stop`.

        Args:
            due_s: Virtual time at which somebody should look next.
        """
        with self.lock:
            while not self._stopped:
                self.catch_up()
                self.changed.notify_all()
                left_s = (due_s() - self.now_s()) / self._speed
                self.changed.wait(None if left_s == math.inf else max(left_s, _SHORTEST_S))

    def look_again(self) -> None:
        """Have the thread look when something is due, now that something was put in a row."""
        with self.lock:
            self.changed.notify_all()

    def stop(self) -> None:
        """End the thread."""
        with self.lock:
            self._stopped = True
            self.changed.notify_all()
