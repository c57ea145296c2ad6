"""What the driver shows of one GPU while it trains, read now and then by a thread of its own.

`TelemetryBuffer` lays what was read over the steps.

Reading blocks, the energy counter some milliseconds, and marks must not be missed meanwhile. It
also costs: on an H200 what goes by time and not by polls took some 4 % of a core, and that is ten
readings a second and little else. So one reads often only as long as something hangs on it.
"""

import bisect
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from underclock.errors import NotSupportedError, UnderclockError
from underclock.hw.base import Clock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.watching import EnergyCounter
from underclock.records import Clocks, ThrottleReason
from underclock.records.common import can_climb
from underclock.records.runs import StepLine
from underclock.runtime.machine.timetable import PassedStep

_OFTEN_S, _SELDOM_S = 0.1, 1.0
_ALL_EVERY, _ALL_EVERY_EXACTLY = 2, 4  # readings: of energy and temperature too
_CLIMB_S, _CLIMBS_WITHIN_S = 4e-3, 0.15  # between looks for a climb of the counter, and for long
_LEARNED_FROM, _BEFORE_S = 4, 2e-3  # climbs in a row; the first look, before one is due
_STAYS_EARLY = 0.9  # of what a climb comes after it was due: the next is due as much sooner
_READY_S = 0.01  # sooner, so that readings meet climbs
_MOST = 4096  # readings kept, where the GPU's energy cannot be read
_HIT_S = 1e-3
_STANDS_S = 1.0  # without a climb, and the counter is not believed; they tick every 0.1 s at least
_ODD = 1000  # readings of a counter for one that cannot be, or it is not believed
_LIMIT_EVERY = 10  # of the power limit, which another program may set
_APART_S = 5.0  # readings of power further apart say nothing of what was drawn in between
_FOLLOWS_WITHIN_S, _FOLLOWS_EVERY_S, _BIN_MHZ = 0.25, 2e-3, 8  # a clock that was asked for
_LAST_S = 0.5  # that the last reading may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One reading."""

    at_s: float  # when it was taken
    clocks: Clocks  # those that run
    reasons: ThrottleReason | None  # why; None where the driver does not say
    power_w: float | None  # what the board draws; likewise
    temperature_c: float | None = None  # how warm it is; None where it was not read this time
    energy_j: float | None = None  # the counter; likewise
    # when it climbed to that; None where that is not known, but by `at_s`
    energy_s: float | None = None
    by_power: bool = False  # whether the energy is power integrated, for there is no counter
    dropped: int = 0  # readings of the counter so far that could not be
    limit_w: float | None = None  # the power limit; likewise, or where this GPU has none


class EnergyCounterSampler:
    """Finds when an energy counter climbs, and to what, with few questions.

    On an H200 a question takes 5 ms of a core. So how often the counter climbs is learned once;
    from then on one is asked just before a climb is due, and one or two just after. Climbs there
    are up to 18 ms off an even pace: one is due when an early one would come.
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
                every_s = self._every_s
                if count := round((self._at_s - self._since_s) / every_s):
                    every_s = self._every_s = (self._at_s - self._since_s) / count
                late_s = (self._at_s - self._due_s + 0.5 * every_s) % every_s - 0.5 * every_s
                self._due_s = self._at_s - _STAYS_EARLY * max(0.0, late_s)
        return (self._at_s if has_climbed else self._clock.now_s()), now_j

    def _learn(self) -> tuple[bool, float]:
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
        limit_w: float | None = None,
    ) -> None:
        self._gpu, self._clock = gpu, clock
        self._counter = EnergyCounter(gpu, clock, limit_w)
        self._climbs = EnergyCounterSampler(self._counter.energy_j, clock) if exactly else None
        self._all_every = _ALL_EVERY_EXACTLY if exactly else _ALL_EVERY
        self._closely_until_s = clock.now_s() + closely_s
        self._ended, self._asked = False, threading.Event()
        self._taken: list[Gauge] = []
        self._lock = threading.Lock()
        self._by_power, self._drawn_j = False, 0.0  # whether there is no counter; since the first
        self._power: tuple[float, float] | None = None  # the last reading of it, and when
        self.error = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

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

    def follows_s(self, core_mhz: int) -> float | None:
        """Return how long from now the clock takes to be that; ``None`` where it is not soon."""
        began_s = now_s = self._clock.now_s()
        while now_s < began_s + _FOLLOWS_WITHIN_S:
            read_s, read_mhz = now_s, self._gpu.observed().core_mhz
            now_s = self._clock.now_s()
            if read_mhz is not None and abs(read_mhz - core_mhz) <= _BIN_MHZ:
                return 0.5 * (read_s + now_s) - began_s
            self._clock.sleep_s(_FOLLOWS_EVERY_S)
        return None

    def close(self) -> None:
        """Read a last time, and no more; call it inside of an `nvml_session`."""
        self._ended = True
        self._asked.set()
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        count, wait_s = 0, 0.0
        while True:
            asked = self._asked.wait(wait_s)
            self._asked.clear()
            is_last = self._ended
            closely = self._clock.now_s() < self._closely_until_s
            wait_s = _OFTEN_S if closely else _SELDOM_S
            wait_s -= _READY_S if self._climbs else 0.0
            if asked and not is_last:
                continue
            try:
                gauge = self._read(
                    of_all=is_last or count % self._all_every == 0,
                    of_limit=count % _LIMIT_EVERY == 0,
                    climbs=None if is_last else self._climbs,
                )
            except UnderclockError as exc:  # the GPU may come back, and setting is not our business
                self.error = str(exc)
            else:
                self.error = ""
                count += 1
                with self._lock:
                    self._taken.append(gauge)
            if is_last:
                return

    def _read(self, *, of_all: bool, of_limit: bool, climbs: EnergyCounterSampler | None) -> Gauge:
        gpu, energy_j, energy_s = self._gpu, None, None
        try:
            if of_all and not self._by_power:
                energy_s, energy_j = climbs.next() if climbs else (None, self._counter.energy_j())
        except NotSupportedError:
            self._by_power = True
        power_w, now_s = gpu.power_w(), self._clock.now_s()
        if self._by_power and power_w is not None:
            last_s, last_w = self._power or (now_s, power_w)
            if now_s - last_s <= _APART_S:
                self._drawn_j += 0.5 * (last_w + power_w) * (now_s - last_s)
            self._power, energy_j = (now_s, power_w), self._drawn_j
        return Gauge(
            at_s=now_s,
            clocks=gpu.observed(),
            reasons=gpu.throttle_reasons(),
            power_w=power_w,
            temperature_c=gpu.temperature_c() if of_all else None,
            energy_j=energy_j,
            energy_s=energy_s,
            by_power=self._by_power,
            dropped=self._counter.dropped,
            limit_w=gpu.power_limit_w() if of_limit else None,
        )


class TelemetryBuffer:
    """What the driver showed lately, to be laid over steps."""

    def __init__(self) -> None:
        self._gauges: deque[Gauge] = deque(maxlen=_MOST)
        self._energy: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._climbed_s = float("-inf")
        self._stands = False
        self.limit_w: float | None = None
        self.limits = 0  # power limits that were in force, one after the other
        self._by_power = False  # whether power was integrated
        self._climbed_j = 0.0  # by the counter
        self._since_s = math.inf  # when it was read first
        self._times = 0  # that it was read
        self._dropped = 0  # readings of it that could not be
        self._leaps = 0
        self._without_power = 0
        self._gaps: deque[tuple[float, float]] = deque(
            maxlen=_MOST
        )  # where the energy is not known

    def __len__(self) -> int:
        return len(self._gauges)

    def drop_before(self, before_s: float) -> None:
        """Drop readings that no step needs which began then or later."""
        while len(self._energy) > 1 and self._energy[1][0] <= before_s:
            self._energy.popleft()
        while self._energy and self._gauges and self._gauges[0].at_s < self._energy[0][0]:
            self._gauges.popleft()
        while self._gaps and self._gaps[0][1] <= before_s:
            self._gaps.popleft()

    def add(self, gauges: Sequence[Gauge]) -> tuple[str, ...]:
        """Take note of readings; return what a reader of the log should know of them."""
        self._gauges.extend(gauges)
        words = []
        self._without_power += sum(gauge.power_w is None for gauge in gauges)
        for gauge in gauges:
            if gauge.dropped > self._dropped:
                words.append("" if self._dropped else "a reading of the energy counter cannot be")
                self._dropped = gauge.dropped
            if gauge.by_power and not self._by_power:
                self._by_power = True
                words.append("the GPU has no energy counter: what it draws is power, integrated")
            if gauge.energy_j is not None:
                at_s = gauge.at_s if gauge.energy_s is None else gauge.energy_s
                words.append(self._counted(at_s, gauge.energy_j))
            if gauge.limit_w is not None:
                last_w, self.limit_w = self.limit_w, gauge.limit_w
                self.limits += last_w != gauge.limit_w
                if last_w is not None and last_w != gauge.limit_w:
                    words.append(
                        f"the power limit was changed from {last_w:g} to {gauge.limit_w:g} W, "
                        "and the plan is for the first: plan again for the other"
                    )
        return tuple(filter(None, words))

    def upto_s(self) -> float:
        """Return up to when the energy is known, or known not to be; at first minus infinity."""
        return self._energy[-1][0] if self._stands else self._climbed_s

    def _counted(self, at_s: float, energy_j: float) -> str:
        """Take note of the energy counter; return what is wrong with it, as soon as it is."""
        last_s, last_j = self._energy[-1] if self._energy else (at_s, float("-inf"))
        self._energy.append((at_s, energy_j))
        self._times, self._since_s = self._times + 1, min(self._since_s, at_s)
        climbed_j = max(0.0, energy_j - last_j) if last_j >= 0.0 else 0.0
        if not can_climb(climbed_j, at_s - last_s, self.limit_w):
            self._gaps.append((last_s, at_s))
            self._climbed_s, self._stands, self._leaps = at_s, False, self._leaps + 1
            if self._leaps > 1:
                return ""
            return (
                f"the energy counter climbed by {climbed_j:.3g} J in {at_s - last_s:.2g} s, which "
                "no GPU draws: what steps drew then is not known, nor what the run did"
            )
        self._climbed_j += climbed_j
        if energy_j == last_j:
            if at_s - self._climbed_s < _STANDS_S:
                return ""
            self._gaps.append((self._climbed_s, at_s))
            stood, self._stands = self._stands, True
            return "" if stood else "the energy counter stands still: what steps draw is not known"
        if self._stands:
            self._gaps.append((last_s, at_s))
        self._climbed_s, self._stands = at_s, False
        if energy_j > last_j:
            return ""
        self._gaps.append((last_s, at_s))
        return (
            f"the energy counter fell from {last_j:.0f} to {energy_j:.0f} J: what the step drew in "
            "which it did is not known"
        )

    def line(self, gpu: int, step: PassedStep, arm: str) -> StepLine:
        """Return a step with what was shown meanwhile."""
        ended_s = step.ended_s
        inside = [gauge for gauge in self._gauges if step.began_s <= gauge.at_s <= ended_s]
        energy_j = self._energy_j(step.began_s, ended_s)
        late_s = tuple(each_s for each_s, _ in step.outcomes)
        errors_s = tuple(each_s for _, each_s in step.outcomes if each_s is not None)
        return StepLine(
            gpu=gpu,
            step=step.number,
            steps=step.steps,
            began_s=step.began_s,
            time_s=step.time_s,
            state=str(step.state),
            arm=arm,
            planned=step.planned,
            asked=step.asked,
            hits=sum(abs(each_s) <= _HIT_S for each_s in late_s) if step.closely else None,
            late_s=late_s if step.closely else (),
            error_s=errors_s if step.closely else (),
            energy_j=None if energy_j is None else energy_j / step.steps,
            core_mhz=_mean([gauge.clocks.core_mhz for gauge in inside]),
            mem_mhz=_mean([gauge.clocks.mem_mhz for gauge in inside]),
            power_w=_mean([gauge.power_w for gauge in inside]),
            temperature_c=_mean([gauge.temperature_c for gauge in inside]),
            overruled=tuple(step.overruled),
        )

    def _energy_j(self, began_s: float, ended_s: float) -> float | None:
        """Return what the counter climbed, interpolated between the readings around."""
        if any(from_s < ended_s and began_s < to_s for from_s, to_s in self._gaps):
            return None
        ends = [_between(self._energy, at_s) for at_s in (began_s, ended_s)]
        if ends[0] is None or ends[1] is None:
            return None
        drawn_j = ends[1] - ends[0]
        return drawn_j if can_climb(drawn_j, ended_s - began_s, self.limit_w) else None

    @property
    def energy_j(self) -> float | None:
        """What the GPU drew so far; ``None`` where its counter says nothing, or not the truth."""
        drawn_j = self._climbed_j
        lasted_s = self._energy[-1][0] - self._since_s if self._energy else 0.0
        if (
            self._leaps
            or self._dropped * _ODD > self._times
            or not can_climb(drawn_j, lasted_s, self.limit_w)
        ):
            return None
        return drawn_j or None

    def dropped(self) -> str:
        """Say how many readings were dropped, for those who read the log; empty for none."""
        counted = (
            (self._dropped + self._leaps, "of the energy counter cannot be"),
            (self._without_power, "of power lack or cannot be"),
        )
        some = [f"{count} readings {what}" for count, what in counted if count]
        return f"{' and '.join(some)}: they were dropped" if some else ""


def _between(read: Sequence[tuple[float, float]], at_s: float) -> float | None:
    after = bisect.bisect_right(read, at_s, key=lambda each: each[0])
    if not 0 < after < len(read):
        return None
    (one_s, one_j), (other_s, other_j) = read[after - 1], read[after]
    return one_j + (other_j - one_j) * (at_s - one_s) / (other_s - one_s)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
