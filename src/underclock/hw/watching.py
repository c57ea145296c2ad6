"""Watching a GPU at work: its clocks all through a window, and launches that get on.

Nothing is set.
"""

import math
import statistics

from underclock.errors import MeasurementError
from underclock.hw.base import Clock, Gpu, Loop, Progress
from underclock.records.common import can_climb

LONGEST_STILL_S = 120.0
"""No launch takes longer: of steps seen, the longest took some seconds."""
_LOOKS = 3  # at a counter that falls or leaps: two in a row may be odd
_EVERY_S = 0.0093  # no divisor of the power loop's tick (20 ms) or of the counter's (100 ms)
_MOST = 1024  # readings; of a longer window every second one is dropped, and half as many follow
_EARLY_S = 1e-6  # a reading this early is on time


class WatchedLoop:
    """A running loop that must get on; what is waited for, the error says."""

    def __init__(self, loop: Loop, clock: Clock, doing: str) -> None:
        self._loop, self._clock, self._doing = loop, clock, doing
        self._ended = (0, 0.0)
        self._since_s = clock.now_s()

    def progress(self) -> Progress:
        """Return how far it is.

        Raises:
            MeasurementError: No launch ended for too long.
            DeviceError: A launch failed.
        """
        progress, now_s = self._loop.progress(), self._clock.now_s()
        ended = (progress.launches, progress.work)
        if ended > self._ended:
            self._ended, self._since_s = ended, now_s
        elif now_s - self._since_s > LONGEST_STILL_S:
            raise MeasurementError(
                f"no launch ended in {now_s - self._since_s:.0f} s while {self._doing}",
                hint="the GPU hangs or was lost for a while: look at it with `nvidia-smi`, then "
                "run the same command again",
            )
        return progress


class EnergyCounter:
    """A GPU's energy counter, without single readings that those around them belie.

    A reading after which the counter would have fallen or leapt is looked at again at once. Where
    the next one goes on from the reading before, the odd one is dropped; where it goes on from the
    odd one, the counter did fall or leap, which the caller sees.

    Attributes:
        dropped: Readings that were.
    """

    def __init__(self, gpu: Gpu, clock: Clock, limit_w: float | None) -> None:
        self._gpu, self._clock, self._limit_w = gpu, clock, limit_w
        self._last: tuple[float, float] | None = None
        self.dropped = 0

    def energy_j(self) -> float:
        """Read it; the call may block for milliseconds."""
        before, odd = self._last, None
        for _ in range(_LOOKS):
            read = self._clock.now_s(), self._gpu.energy_j()
            if before is None or self._follows(before, read):
                self.dropped += odd is not None
                break
            if odd is not None and self._follows(odd, read):
                break
            odd = read
        self._last = read
        return read[1]

    def _follows(self, one: tuple[float, float], other: tuple[float, float]) -> bool:
        return can_climb(other[1] - one[1], other[0] - one[0], self._limit_w)


class ClockWatch:
    """A clock that reads the GPU's core clock while it sleeps, and never in between.

    So what is read one call after the other, as a counter's step, is not disturbed.
    """

    def __init__(self, gpu: Gpu, clock: Clock) -> None:
        self._gpu = gpu
        self._clock = clock
        self._every_s = _EVERY_S
        self._next_s = -math.inf
        self._seen_mhz: list[int] = []

    @property
    def core_mhz(self) -> float | None:
        """Mean of the readings; ``None`` where there are none."""
        return statistics.fmean(self._seen_mhz) if self._seen_mhz else None

    @property
    def spread_mhz(self) -> float | None:
        """Standard deviation of the readings; ``None`` where there are none."""
        return statistics.pstdev(self._seen_mhz) if self._seen_mhz else None

    def now_s(self) -> float:
        """Return the clock's time."""
        return self._clock.now_s()

    def sleep_s(self, duration_s: float) -> None:
        """Sleep; every now and then read the core clock."""
        clock = self._clock
        end_s = clock.now_s() + duration_s
        while True:
            if clock.now_s() >= self._next_s - _EARLY_S:
                self._next_s = clock.now_s() + self._every_s
                core_mhz = self._gpu.observed().core_mhz
                if core_mhz is not None:
                    self._seen_mhz.append(core_mhz)
                if len(self._seen_mhz) == _MOST:
                    self._seen_mhz, self._every_s = self._seen_mhz[::2], 2.0 * self._every_s
            now_s = clock.now_s()
            if now_s >= end_s:
                return
            clock.sleep_s(min(end_s, max(self._next_s, now_s)) - now_s)
