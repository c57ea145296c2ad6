"""The seam for watching clocks change: tiny pieces of equal work, each with the time of its end.

No driver tells when a clock changed; the work does. See `core.change` for how.
"""

from collections.abc import Callable
from typing import Protocol

from underclock.arrays import Floats
from underclock.records.latencies import Domain


class Ticker(Protocol):
    """Runs a kernel that does the same tiny work over and over, and notes when each was done.

    On a real GPU that is one warp on every SM, so that it draws little power, and its times must be
    put on the host's clock: delays are differences between the two.
    """

    def trace(
        self,
        during: Callable[[], None],
        *,
        domain: Domain,
        tick_s: float,
        lead_s: float,
        tail_s: float,
    ) -> Floats:
        """Tick, and do something meanwhile.

        Args:
            during: Called while it ticks; it may take its time.
            domain: What bounds the work: ticks are as long as this domain's clock is slow.
            tick_s: About how long one takes at the domain's fastest clock; a ticker whose timer is
                too coarse for that makes them longer.
            lead_s: Ticks for this long before the call; the GPU is busy when it begins.
            tail_s: Ticks for this long after it.

        Returns:
            Start of the first tick, then the end of every tick, on the host's clock, ascending.
            Shape (N + 1,) for N ticks.

        Raises:
            DeviceError: The GPU does not answer.
        """
        ...
