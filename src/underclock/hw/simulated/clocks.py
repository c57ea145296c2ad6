"""How the clocks of one virtual GPU follow what is asked of them: locks, and the power cap.

The driver's power loop averages over about 100 ms, or as the model says, and acts every 20 ms, by
whole clock bins; so kernels that draw much borrow power from neighbours that draw little.
"""

import bisect
import functools
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

import numpy as np

from underclock.gpus.models import Bounds, GpuModel, SwitchingModel
from underclock.physics.cap import SIMULATED, Fading
from underclock.units import Domain

CAP_TICK_S = 0.02
_BIN_W = 10.0  # one bin more for each of these above the limit
_MOST_BINS = 4
_SLACK_W = 2.0  # it climbs again only with more room than this
ROUNDING = 1e-9


class Agenda:
    """What happens at a set time: a clock that switches, a fault and its end."""

    def __init__(self) -> None:
        self.next_s = math.inf
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def add(self, at_s: float, action: Callable[[], None]) -> None:
        """Set an action down."""
        heapq.heappush(self._entries, (at_s, next(self._count), action))
        self.next_s = self._entries[0][0]

    def run(self, now_s: float) -> None:
        """Do everything that is due; an action may set down more."""
        while self._entries and self._entries[0][0] <= now_s:
            _, _, action = heapq.heappop(self._entries)
            action()
        self.next_s = self._entries[0][0] if self._entries else math.inf


class Locks:
    """Locks asked for, and followed some time later; `changed` is called then."""

    def __init__(
        self,
        model: GpuModel,
        agenda: Agenda,
        random: np.random.Generator,
        changed: Callable[[Domain], None],
    ) -> None:
        self.switching = model.switching or SwitchingModel()
        self._model = model
        self._agenda = agenda
        self._random = random
        self._changed = changed
        self._asked: dict[Domain, Bounds | None] = dict.fromkeys(Domain)
        self._followed: dict[Domain, Bounds | None] = dict.fromkeys(Domain)
        self._times = dict.fromkeys(Domain, 0)

    def asked(self, domain: Domain) -> Bounds | None:
        """Return the lock that the driver holds."""
        return self._asked[domain]

    def follows(self, domain: Domain) -> bool:
        """Whether a clock is held by a lock now."""
        return self._followed[domain] is not None

    def allowed(self, domain: Domain, mhz: float) -> float:
        """Return the clock nearest to another that the lock now followed allows."""
        bounds = self._followed[domain]
        return mhz if bounds is None else min(max(mhz, bounds[0]), bounds[1])

    def ask(self, now_s: float, domain: Domain, bounds: Bounds | None) -> None:
        """Hold a clock between two bounds in MHz, or let it go; it follows later, if at all."""
        self._asked[domain] = bounds
        self._times[domain] += 1
        if domain in self._model.ignored_locks:
            return
        delay_s = self.switching.delay_s(self._model.name, domain, bounds, self._random)
        follow = functools.partial(self._follow, domain, bounds, self._times[domain])
        if delay_s == 0:
            follow()
        else:
            self._agenda.add(now_s + delay_s, follow)

    def forget(self) -> None:
        """Drop every lock, as a reset does."""
        for domain in Domain:
            self._times[domain] += 1
            self._asked[domain] = self._followed[domain] = None

    def _follow(self, domain: Domain, bounds: Bounds | None, times: int) -> None:
        if times == self._times[domain]:
            self._followed[domain] = bounds
            self._changed(domain)


def snap(mhz: float, table: tuple[int, ...]) -> int:
    """Return the greatest table clock not above the asked one, or the least."""
    return table[max(0, bisect.bisect_right(table, mhz) - 1)]


class PowerLoop:
    """One GPU's loop: it settles a margin under the limit, and goes no lower than a least clock."""

    def __init__(
        self, *, margin_w: float, bin_mhz: float, least_mhz: float, fading: Fading = SIMULATED
    ) -> None:
        self.ceiling_mhz = math.inf
        self._each_s, self._twice = fading.each_s, fading.stages > 1
        self._margin_w = margin_w
        self._bin_mhz = bin_mhz
        self._least_mhz = least_mhz
        self.first_w = self.average_w = 0.0  # the mean, and of two loops the one before it
        self.reached_mhz = 0.0  # the highest clock since the last tick
        self._lately_mhz: deque[float] = deque(
            maxlen=round(fading.stages * fading.each_s / CAP_TICK_S)
        )  # and between the ticks before

    def reset(self) -> None:
        """Forget what ran before."""
        self.ceiling_mhz = math.inf
        self.first_w = self.average_w = self.reached_mhz = 0.0
        self._lately_mhz.clear()

    def to_tick_s(self, now_s: float) -> float:
        """Return how long until it acts next."""
        left_s = CAP_TICK_S - now_s % CAP_TICK_S
        return left_s if left_s > ROUNDING else CAP_TICK_S

    def average(self, stride_s: float, power_w: float, core_mhz: float) -> None:
        """Average a stride's power, drawn at a clock."""
        past = stride_s / self._each_s
        fade = math.exp(-past)
        late_w = (self.first_w - power_w) * past * fade if self._twice else 0.0
        self.first_w = self.first_w * fade + power_w * (1.0 - fade)
        self.average_w = self.average_w * fade + power_w * (1.0 - fade) + late_w
        if core_mhz > self.reached_mhz:  # noqa: PLR1730 - `max` takes longer
            self.reached_mhz = core_mhz

    def act(self, now_s: float, stretch_s: float, limit_w: float) -> None:
        """Act if a tick lay in a stretch of strides that were averaged.

        It moves its own ceiling, from where that held anything down: from the highest clock that
        was reached while the average grew. A kernel that is locked lower does not pull it down.
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
