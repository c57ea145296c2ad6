"""Making one clock change over and over, and seeing when it did. `latency` decides which changes.

The GPU is held by a lease from the first write on. Before each change the ticks must show that the
old clock stands; after it they must show the new one, or the change does not count.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from underclock.core.statistics.change_point import (
    Level,
    TraceStatus,
    find_change_point,
    level,
    tell_apart,
)
from underclock.errors import MeasurementError
from underclock.hw.base import Clock, SwitchableGpu, Ticker
from underclock.hw.lease import ClockLeases, check_applied
from underclock.records import Clocks
from underclock.records.latencies import Domain, switch_text
from underclock.units import format_duration, format_mhz

_SETTLE_S = 1.0  # longer than any known change of a clock
_TRIES = 5
# A tick at the fastest clock: the least is about one access of memory, or 1000 cycles of a core.
_TICKS_S = (20e-6, 2e-6, 0.5e-6)
_FINE_ENOUGH = 0.02  # of the usual time of a change: a tick no longer than this at either clock
_LEVEL_TICKS = 5000  # at the fastest clock; slow memory clocks still leave a hundred
_LEVEL_S = 0.02  # but never so short that another program's turn takes all of it
_LEAD_TICKS, _TAIL_TICKS = 200, 300
_LEAD_S = _LEAST_TAIL_S = 5e-3  # a lead or a tail is never shorter
_PHASE_S = 5e-3  # so that changes are not asked for in step with anything
_FIRST_TAIL_S, _LONGEST_TAIL_S, _LONGER = 0.1, 2.0, 4.0
_TAIL_DELAYS = 5.0  # watch so many usual times of a change; one that takes longer is an outlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What measuring switches needs.

    Attributes:
        gpu: Whose clocks change.
        leases: Of its clocks.
        ticker: Runs on it.
        clock: The host's, on which the ticker's times are too.
        random: When to ask.
    """

    gpu: SwitchableGpu
    leases: ClockLeases
    ticker: Ticker
    clock: Clock
    random: np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """One change of a clock.

    Attributes:
        call_s: How long the setter blocked.
        delay_s: From its return until the clock was the new one, or until the stall before that
            began; 0 where that was earlier.
        stall_s: How long nothing was done then.
        early: Whether it changed before the call returned, by more than a tick.
    """

    call_s: float
    delay_s: float
    stall_s: float
    early: bool


class Watch:
    """Watches one clock of a GPU change, while the other stands.

    Args:
        stand: GPU, ticker and clock.
        domain: Whose clock changes.
        core_mhz: For the memory clock: the core clock held meanwhile; ``None`` is auto.
    """

    def __init__(self, stand: Stand, domain: Domain, core_mhz: int | None = None) -> None:
        self.domain = domain
        self._stand = stand
        self._core_mhz = core_mhz
        self._levels: dict[tuple[int | None, float], Level] = {}
        self._seen_s: defaultdict[int | None, list[float]] = defaultdict(list)  # by target

    def learn(self, mhz: int | None) -> Level:
        """Hold a clock and learn how long ticks take at it.

        Raises:
            NotAppliedError: The GPU runs at another clock.
            MeasurementError: It does not come to rest at one.
        """
        with self._holding(mhz):
            for _ in range(_TRIES):
                self._stand.clock.sleep_s(_SETTLE_S)
                steady = {tick_s: self._steady(mhz, tick_s) for tick_s in _TICKS_S}
                levels = {(mhz, tick_s): one for tick_s, one in steady.items() if one is not None}
                if len(levels) == len(_TICKS_S):
                    self._levels |= levels
                    return levels[mhz, _TICKS_S[0]]
        raise MeasurementError(
            f"the {self.domain} clock does not settle at {format_mhz(mhz)} MHz",
            hint="power, heat or another program moves it: measure when nothing else runs",
        )

    @contextmanager
    def between(self, one: int | None, other: int | None) -> Iterator[None]:
        """Begin at the first of two clocks that is no auto; give all of them back at the end."""
        with self._holding(other if one is None else one):
            self._stand.clock.sleep_s(_SETTLE_S)
            yield

    def switch(self, origin: int | None, target: int | None) -> Switched:
        """Change the clock and return what it took; the GPU is left at the target.

        Raises:
            MeasurementError: The change does not show.
        """
        if target not in self._seen_s:  # how closely to look is not known yet: not counted
            self._insist(origin, target)
            self._return_to(origin)
        return self._insist(origin, target)

    def _insist(self, origin: int | None, target: int | None) -> Switched:
        """Try until a change is seen, looking longer each time it did not come."""
        tail_s, status = self._tail_s(target), TraceStatus.PENDING
        for _ in range(_TRIES):
            status, switched = self._try(origin, target, tail_s)
            if switched is not None:
                self._seen_s[target].append(switched.delay_s + switched.stall_s)
                return switched
            if status is TraceStatus.PENDING:
                tail_s = min(_LONGER * tail_s, _LONGEST_TAIL_S)
            self._return_to(origin)
        raise MeasurementError(
            f"{switch_text(self.domain, origin, target)}: {status} ({_TRIES} tries, the last over "
            f"{format_duration(tail_s)})",
            hint="power, heat or another program moves the clock: measure when nothing else runs",
        )

    def _try(
        self, origin: int | None, target: int | None, tail_s: float
    ) -> tuple[TraceStatus, Switched | None]:
        """Ask for a clock once, and return what was seen of it."""
        stand, tick_s = self._stand, self._tick_s(origin, target)
        before, after = self._levels[origin, tick_s], self._levels[target, tick_s]
        called_s = returned_s = 0.0

        def ask() -> None:
            nonlocal called_s, returned_s
            called_s = stand.clock.now_s()
            self._ask(target)
            returned_s = stand.clock.now_s()

        edges_s = stand.ticker.trace(
            ask,
            domain=self.domain,
            tick_s=tick_s,
            lead_s=max(_LEAD_S, _LEAD_TICKS * before.mean_s)
            + _PHASE_S * float(stand.random.random()),
            tail_s=tail_s + _TAIL_TICKS * after.mean_s,
        )
        change = find_change_point(edges_s, asked_s=called_s, before=before, after=after)
        if change.at_s is None or change.stall_s is None:
            return change.status, None
        return change.status, Switched(
            call_s=returned_s - called_s,
            delay_s=max(0.0, change.at_s - returned_s),
            stall_s=change.stall_s,
            early=change.at_s < returned_s - max(before.mean_s, after.mean_s),
        )

    def _tick_s(self, origin: int | None, target: int | None) -> float:
        """Return the longest ticks that are fine enough; not finer than can tell the clocks."""
        chosen_s = _TICKS_S[0]
        wanted_s = _FINE_ENOUGH * self._usual_s(target)
        for tick_s in _TICKS_S:
            before, after = self._levels[origin, tick_s], self._levels[target, tick_s]
            if not tell_apart(before, after):
                break
            chosen_s = tick_s
            if max(before.mean_s, after.mean_s) <= wanted_s:
                break
        return chosen_s

    def _tail_s(self, target: int | None) -> float:
        usual_s = self._usual_s(target)
        return max(_LEAST_TAIL_S, _TAIL_DELAYS * usual_s) if usual_s < math.inf else _FIRST_TAIL_S

    def _usual_s(self, target: int | None) -> float:
        """Return how long changes to a target took so far; infinite before the first."""
        return statistics.median(self._seen_s[target]) if target in self._seen_s else math.inf

    def _return_to(self, mhz: int | None) -> None:
        self._ask(mhz)
        self._stand.clock.sleep_s(_SETTLE_S)

    def _ask(self, mhz: int | None) -> None:
        """Ask for a clock in one call."""
        if mhz is None:
            self._stand.gpu.give_back(self.domain)
        elif self.domain is Domain.CORE:
            self._stand.gpu.lock(Clocks(core_mhz=mhz))
        else:
            self._stand.gpu.lock(Clocks(mem_mhz=mhz))

    def _holding(self, mhz: int | None) -> AbstractContextManager[None]:
        return self._stand.leases.hold(self._clocks(mhz))

    def _clocks(self, mhz: int | None) -> Clocks:
        if self.domain is Domain.CORE:
            return Clocks(core_mhz=mhz)
        return Clocks(core_mhz=self._core_mhz, mem_mhz=mhz)

    def _steady(self, mhz: int | None, tick_s: float) -> Level | None:
        """Return how long ticks take now; ``None`` while that changes."""
        stand, clocks = self._stand, self._clocks(mhz)

        def check() -> None:
            check_applied(stand.gpu, clocks)

        edges_s = stand.ticker.trace(
            check,
            domain=self.domain,
            tick_s=tick_s,
            lead_s=max(_LEVEL_S, _LEVEL_TICKS * tick_s),
            tail_s=max(_LEVEL_S, _LEVEL_TICKS * tick_s),
        )
        middle = len(edges_s) // 2
        moves = tell_apart(level(edges_s[: middle + 1]), level(edges_s[middle:]))
        return None if moves else level(edges_s)
