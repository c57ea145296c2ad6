"""The driver's loop that keeps the board's power under its limit while different kernels alternate.

It averages over about 100 ms and acts every 20 ms, by whole clock bins; so kernels that draw much
borrow power from neighbours that draw little.
"""

import math
from collections import deque

CAP_TICK_S = 0.02
MEMORY_S = 0.1
_TICKS = round(MEMORY_S / CAP_TICK_S)
_BIN_W = 10.0  # one bin more for each of these above the limit
_MOST_BINS = 4
_SLACK_W = 2.0  # it climbs again only with more room than this
ROUNDING = 1e-9


class PowerLoop:
    """One GPU's loop.

    Args:
        margin_w: It settles this far under the limit.
        bin_mhz: Between two clocks.
        least_mhz: It goes no lower.
    """

    def __init__(self, *, margin_w: float, bin_mhz: float, least_mhz: float) -> None:
        self.ceiling_mhz = math.inf
        self._margin_w = margin_w
        self._bin_mhz = bin_mhz
        self._least_mhz = least_mhz
        self.average_w = 0.0
        self.reached_mhz = 0.0  # the highest clock since the last tick
        self._lately_mhz: deque[float] = deque(maxlen=_TICKS)  # and between the ticks before

    def reset(self) -> None:
        """Forget what ran before."""
        self.ceiling_mhz = math.inf
        self.average_w = self.reached_mhz = 0.0
        self._lately_mhz.clear()

    def to_tick_s(self, now_s: float) -> float:
        """Return how long until it acts next."""
        left_s = CAP_TICK_S - now_s % CAP_TICK_S
        return left_s if left_s > ROUNDING else CAP_TICK_S

    def average(self, stride_s: float, power_w: float, core_mhz: float) -> None:
        """Average a stride's power.

        Args:
            stride_s: Its length.
            power_w: Drawn in it.
            core_mhz: Clock in it.
        """
        fade = math.exp(-stride_s / MEMORY_S)
        self.average_w = self.average_w * fade + power_w * (1.0 - fade)
        self.reached_mhz = max(self.reached_mhz, core_mhz)

    def act(self, now_s: float, stretch_s: float, limit_w: float) -> None:
        """Act if a tick lay in a stretch of strides that were averaged.

        It moves its own ceiling, from where that held anything down: from the highest clock that
        was reached while the average grew. A kernel that is locked lower does not pull it down.

        Args:
            now_s: End of the stretch.
            stretch_s: Its length.
            limit_w: Power limit.
        """
        before = math.floor((now_s - stretch_s) / CAP_TICK_S + ROUNDING)
        if math.floor(now_s / CAP_TICK_S + ROUNDING) == before:
            return
        self._lately_mhz.append(self.reached_mhz)
        self.reached_mhz = 0.0
        room_w = limit_w - self._margin_w - self.average_w
        if room_w < 0:
            bins = min(_MOST_BINS, 1 + int(-room_w / _BIN_W))
            from_mhz = min(self.ceiling_mhz, max(self._lately_mhz))
            self.ceiling_mhz = max(self._least_mhz, from_mhz - bins * self._bin_mhz)
        elif room_w > _SLACK_W:
            self.ceiling_mhz += self._bin_mhz
