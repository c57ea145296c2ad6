"""Waiting for launches, but not for ever: a GPU that was lost for a moment launches no more."""

from underclock.errors import MeasurementError
from underclock.hw.base import Clock, Loop, Progress

LONGEST_STILL_S = 120.0
"""No launch takes longer: of steps seen, the longest took some seconds."""


class WatchedLoop:
    """A running loop that must get on.

    Args:
        loop: The loop.
        clock: Its GPU's time.
        doing: What is waited for, as it ends "no launch ended in 120 s while …".
    """

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
