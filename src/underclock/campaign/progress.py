"""How long a campaign takes: said before it begins, and as time left while it runs.

Before anything ran only the settings are known: how long each measurement warms up and lasts, and
how many there are in any case. A long launch makes its window longer, and launch times
are known only from measuring, so the time left follows the pace so far.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from underclock.campaign.adaptive import first_looks
from underclock.campaign.grid import Campaign
from underclock.core.steering import first_measurements
from underclock.hw.base import Capability, Measurer
from underclock.records import MeasurementSettings, SampleSet
from underclock.units import format_duration

TICK_S = 0.1  # until the energy counter's next step, at both ends of a window: half of one each
_HEAT_S, _WARMER_C = 30.0, 40.0  # time constant of a board, and how much warmer work makes it
_NARROWS = 1.5  # power of the interval's width that time goes with: 2 if windows were alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a campaign is expected to take."""

    kernels: int  # it measures
    first: int  # measurements it takes in any case and has not got yet
    first_s: float  # GPU time of these, and of warming up
    goal: str  # how sure the promise gets after that, in words; empty where these are all
    limit_s: float | None  # of GPU time that a limit leaves; ``None`` without one
    refines_s: float  # after the first, at most; infinite where a limit was named

    def __str__(self) -> str:
        time = format_duration(self.first_s)
        if not self.goal:
            return f"{self.kernels} kernels, {self.first} measurements: about {time} of GPU time"
        words = f"{self.kernels} kernels"
        if self.first:
            words += f": about {time} of GPU time for the first {self.first} measurements"
            words += ", then"
        words += f"{'' if self.first else ':'} samples of highest value, until {self.goal}"
        if self.limit_s is None:
            return words
        limit = f"{format_duration(self.limit_s)}, less than the first take"
        if self.limit_s >= self.first_s:
            limit = f"{format_duration(self.limit_s - self.first_s)} for that"
        return f"{words}; the time limit leaves {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How far a campaign is."""

    done: int  # samples on file
    total: int | None  # samples it set out to take; ``None`` where it takes as many as it needs
    gpu_s: float  # the measurer's own time since this run began; virtual on a simulated GPU
    doing: str  # what is being done, for a person
    time_limit_s: float | None = None  # of that time; ``None`` where it has none
    # what of it, where it has several; the first is of a length that is known before
    phase: str = ""
    phase_s: float = 0.0  # GPU time since that began
    left_s: float | None = None  # about how much more it takes; ``None`` where that is unknown

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1, of all or else of its phase; ``None`` where that is unknown."""
        ends = ((self.done, self.total), (self.gpu_s, self.time_limit_s))
        shares = [done / whole for done, whole in ends if whole]
        if not shares and self.left_s is not None and self.phase_s + self.left_s > 0:
            shares = [self.phase_s / (self.phase_s + self.left_s)]
        return min(1.0, max(shares)) if shares else None


def expected_of(
    measurer: Measurer, samples: SampleSet, campaign: Campaign, spent_s: float
) -> Expected | None:
    """Return what a campaign is expected to take; ``None`` of a table, which answers at once."""
    measuring = samples.measuring
    if Capability.RUN not in measurer.capabilities or measuring is None:
        return None
    steers, whole = campaign.steers(measurer), bool(samples.order) and campaign.in_situ
    each_s = measurer.takes_s(0.0, timed=steers) + TICK_S
    done = len(samples.samples) + len(samples.in_situ)
    limit_s = campaign.limit_s(steers=steers)
    goal = f"the promise is sure to {100.0 * campaign.precision:g} %"
    refines_s = math.inf if steers else campaign.refines_s
    goal += f", or for {format_duration(refines_s)}" if math.isfinite(refines_s) else ""
    if steers:
        first = first_measurements(len(samples.kernels), whole=whole)
        done = len(samples.mixed)
    elif samples.expected_samples is None:
        first = first_looks(samples, campaign, whole=whole)
        each_s += measuring.settle_s / max(1, len(samples.kernels))
    else:
        first = samples.expected_samples + campaign.repeats * whole
        each_s += measuring.settle_s * len(samples.settings) / max(1, first)
        goal = ""
    left = max(0, first - done)
    if campaign.max_samples is not None:
        left = min(left, max(0, campaign.max_samples - done))
    return Expected(
        kernels=len(samples.kernels),
        first=left,
        first_s=(warming_s(measuring) if left and not (steers and whole) else 0.0) + left * each_s,
        goal=goal,
        refines_s=refines_s,
        limit_s=None if limit_s is None else max(0.0, limit_s - spent_s),
    )


def warming_s(measuring: MeasurementSettings) -> float:
    """Return about how long it takes until the temperature is steady enough, from a cold GPU."""
    moves = math.expm1(measuring.steady_s / _HEAT_S)  # until a look, of what is still to come
    steady_s = _HEAT_S * math.log(max(1.0, _WARMER_C * moves / measuring.steady_c))
    looks = math.ceil(max(measuring.warm_s, steady_s) / measuring.steady_s)
    return max(measuring.least_warm_s, min(looks * measuring.steady_s, measuring.longest_warm_s))


class TimeLeft:
    """Says how much longer the first measurements take, and then what follows."""

    def __init__(self, expected: Expected, now_s: Callable[[], float]) -> None:
        self._expected = expected
        self._now_s = now_s
        self._began_s = self._first_s = self._then_s = now_s()

    def phase(self, taken: int, short_of: float | None) -> tuple[str, float, float | None]:
        """Return the campaign's phase, GPU time since that began and about how much more it takes.

        Both are in s; how much more is ``None`` where that is unknown.

        Args:
            short_of: How many times as unsure as asked the promise is; ``None`` while none is made.
        """
        now_s = self._now_s()
        if taken < self._expected.first:
            self._then_s = now_s
            if taken == 0:  # what goes before the first one is not their pace
                self._first_s = now_s
                left_s = max(0.0, self._expected.first_s - (now_s - self._began_s))
            else:
                left_s = (now_s - self._first_s) / taken * (self._expected.first - taken)
            return "first look", now_s - self._began_s, left_s
        refined_s = now_s - self._then_s
        if short_of is None:
            return "refining", refined_s, None
        left_s = (now_s - self._began_s) * max(0.0, short_of**_NARROWS - 1.0)
        return "refining", refined_s, max(0.0, min(left_s, self._expected.refines_s - refined_s))
