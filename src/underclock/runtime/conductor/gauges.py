"""What the driver shows of one GPU while it trains, read now and then by a thread of its own.

Reading blocks, the energy counter some milliseconds, and marks must not be missed meanwhile. It
also costs: on an H200 what goes by time and not by looks took some 4 % of a core, and that is ten
readings a second and little else. So one reads often only as long as something hangs on it.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from underclock.errors import NotSupportedError, UnderclockError
from underclock.hw.base import Clock
from underclock.hw.nvml import NvmlGpu
from underclock.records import Clocks, ThrottleReason

_OFTEN_S, _SELDOM_S = 0.1, 1.0
_ALL_EVERY, _ALL_EVERY_EXACTLY = 2, 4  # readings: of energy and temperature too
_CLIMB_S, _CLIMBS_WITHIN_S = 4e-3, 0.15  # between looks for a climb of the counter, and for long
_LEARNED_FROM, _BEFORE_S = 4, 2e-3  # climbs in a row; the first look, before one is due
_STAYS_EARLY = 0.9  # of what a climb comes after it was due: the next is due as much sooner
_READY_S = 0.01  # sooner, so that readings meet climbs
_LIMIT_EVERY = 10  # of the power limit, which somebody else may set


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One reading.

    Attributes:
        at_s: When it was taken.
        clocks: Those that run.
        reasons: Why.
        power_w: What the board draws.
        temperature_c: How warm it is; ``None`` where it was not read this time.
        energy_j: The counter; likewise.
        energy_s: When it climbed to that; ``None`` where that is not known, but by `at_s`.
        limit_w: The power limit; likewise, or where this GPU tells none.
    """

    at_s: float
    clocks: Clocks
    reasons: ThrottleReason
    power_w: float
    temperature_c: float | None = None
    energy_j: float | None = None
    energy_s: float | None = None
    limit_w: float | None = None


class Climbs:
    """Tells when an energy counter climbs, and to what, with few questions.

    On an H200 a question takes 5 ms of a core. So how often the counter climbs is learned once;
    from then on one is asked just before a climb is due, and one or two just after. Climbs there
    are up to 18 ms off an even pace: one is due when an early one would come.

    Args:
        energy_j: Reads the counter.
        clock: The machine's.
    """

    def __init__(self, energy_j: Callable[[], float], clock: Clock) -> None:
        self._energy_j, self._clock = energy_j, clock
        self._at_s = self._since_s = self._doubt_s = 0.0  # of the last climb; of the first
        self._due_s = 0.0  # the last was, early as they may come
        self._every_s: float | None = None

    def next(self) -> tuple[float, float]:
        """Wait for a climb, but not for long; return when it was, and the counter."""
        now_s = self._clock.now_s()
        if self._every_s is None:
            has_climbed, now_j = self._learn()
        else:
            early_s = self._due_s - self._doubt_s - _BEFORE_S
            self._clock.sleep_s((early_s - now_s) % self._every_s)
            has_climbed, now_j = self._ask()
            if has_climbed:
                self._note(self._every_s)
        return (self._at_s if has_climbed else self._clock.now_s()), now_j

    def _note(self, every_s: float) -> None:
        """Take note of a climb, where it is known how often they come."""
        if count := round((self._at_s - self._since_s) / every_s):
            every_s = self._every_s = (self._at_s - self._since_s) / count
        late_s = (self._at_s - self._due_s + 0.5 * every_s) % every_s - 0.5 * every_s
        self._due_s = self._at_s - _STAYS_EARLY * max(0.0, late_s)

    def _learn(self) -> tuple[bool, float]:
        """Wait for some climbs in a row."""
        has_climbed, now_j = self._ask()
        self._since_s = self._at_s
        for _ in range(_LEARNED_FROM):
            if not has_climbed:
                return False, now_j
            has_climbed, now_j = self._ask()
        if has_climbed:
            self._every_s = (self._at_s - self._since_s) / _LEARNED_FROM
            self._due_s = self._at_s
        return has_climbed, now_j

    def _ask(self) -> tuple[bool, float]:
        """Ask until the counter climbs; return whether it did in time, and what it shows."""
        now_s = self._clock.now_s()
        first_j = now_j = self._energy_j()
        until_s = now_s + _CLIMBS_WITHIN_S
        while now_j == first_j and now_s < until_s:
            before_s = now_s
            self._clock.sleep_s(_CLIMB_S)
            now_s, now_j = self._clock.now_s(), self._energy_j()
        if now_j == first_j:
            return False, now_j
        self._at_s, self._doubt_s = 0.5 * (before_s + now_s), 0.5 * (now_s - before_s)
        return True, now_j


class Gauges:
    """Reads one GPU until it is closed.

    Args:
        gpu: Which one.
        clock: The machine's.
        closely_s: For how long it is read often to begin with.
        exactly: Whether the energy counter is read as it climbs, every fourth time. Counters climb
            ten times a second, so that any other reading is up to a tenth of a second old: 1 % of
            four seconds.
    """

    def __init__(
        self,
        gpu: NvmlGpu,
        clock: Clock,
        *,
        closely_s: float = math.inf,
        exactly: bool = False,
    ) -> None:
        self._gpu, self._clock = gpu, clock
        self._climbs = Climbs(gpu.energy_j, clock) if exactly else None
        self._all_every = _ALL_EVERY_EXACTLY if exactly else _ALL_EVERY
        self._closely_until_s = clock.now_s() + closely_s
        self._ended, self._asked = False, threading.Event()
        self._taken: list[Gauge] = []
        self._lock = threading.Lock()
        self.error = ""
        threading.Thread(target=self._run, daemon=True).start()

    def taken(self) -> list[Gauge]:
        """Return what was read since this was asked last."""
        with self._lock:
            some, self._taken = self._taken, []
        return some

    def read_closely(self, for_s: float) -> None:
        """Read often from now on, for some time."""
        now_s = self._clock.now_s()
        reads_seldom = now_s >= self._closely_until_s
        self._closely_until_s = max(self._closely_until_s, now_s + for_s)
        if reads_seldom:
            self._asked.set()

    def close(self) -> None:
        """Read no more."""
        self._ended = True
        self._asked.set()

    def _run(self) -> None:
        count, wait_s = 0, 0.0
        while True:
            asked = self._asked.wait(wait_s)
            self._asked.clear()
            if self._ended:
                return
            closely = self._clock.now_s() < self._closely_until_s
            wait_s = _OFTEN_S if closely else _SELDOM_S
            wait_s -= _READY_S if self._climbs else 0.0
            if asked:
                continue
            try:
                gauge = self._read(
                    of_all=count % self._all_every == 0, of_limit=count % _LIMIT_EVERY == 0
                )
            except UnderclockError as exc:  # the GPU may come back, and setting is not our business
                self.error = str(exc)
                continue
            self.error = ""
            count += 1
            with self._lock:
                self._taken.append(gauge)

    def _read(self, *, of_all: bool, of_limit: bool) -> Gauge:
        gpu, energy_j, energy_s = self._gpu, None, None
        if of_all and self._climbs:
            energy_s, energy_j = self._climbs.next()
        elif of_all:
            energy_j = gpu.energy_j()
        return Gauge(
            at_s=self._clock.now_s(),
            clocks=gpu.observed(),
            reasons=gpu.throttle_reasons(),
            power_w=gpu.power_w(),
            temperature_c=gpu.temperature_c() if of_all else None,
            energy_j=energy_j,
            energy_s=energy_s,
            limit_w=self._limit_w() if of_limit else None,
        )

    def _limit_w(self) -> float | None:
        try:
            return self._gpu.power_limit_w()
        except NotSupportedError:
            return None
