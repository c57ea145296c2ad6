"""Real time. The simulated GPU brings its own."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Return monotonic time in s."""
        return time.perf_counter()

    def sleep_s(self, duration_s: float) -> None:
        """Let time pass."""
        if duration_s > 0:
            time.sleep(duration_s)  # noqa: TID251 - the one place that may
