"""What is left of mixes for their kernels: times and powers at the clocks read."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from underclock.arrays import Floats
from underclock.core.costs.cap import CapMargin, driver_says
from underclock.core.costs.power_window import clock_moves, is_uneven, with_durations
from underclock.core.steering.company import WINDOW_NOISE, Company, Draw
from underclock.physics.constants import GpuConstants
from underclock.records import Kernel, MixSample, SampleSet

COMPANION = ""
"""Stands for the name of the hot companion, which is no kernel of the step."""
HUNTS_MHZ = 40.0
"""Spread of the clock in a window from which its mean says less."""
_SURE = 0.2  # windows' worth of power from which it may tell of a peak
_RUNG, _NO_FASTER = 0.03, 0.4  # of the clock between two rungs; exponent of time between them
_BOOSTS = 0.985  # of the highest clock read: what ran there ran at boost
_VOLTAGE = 0.5  # exponent of a launch's energy with clock, at least
_PILE, _PILE_WIDTH = 3, 0.03  # kernels whose greatest powers are alike: a peak
OFF_PEAK = 1.0 - _PILE_WIDTH  # what draws less of a peak runs at the clock that is read
_STILL = 0.85  # of the usual exponent: a peak within the last rung would show
_AS_HOT = 0.94  # of a peak: what draws as much would be near it
_ABOVE = 1.15  # of the limit: a peak below that is the cap's own
_STAYS = 0.2  # of the spread of a step's clock, in the mean clock of one of its kernels: simulated
_TIME_NOISE = 0.002  # of a duration in a window
_MOST_SPREAD = 0.25  # of a power; what is less sure than this tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What one measurement in company tells of one kernel.

    Attributes:
        kernel: Its name; `COMPANION` for the hot companion by itself.
        core_mhz: Mean core clock it ran at.
        mem_mhz: Memory clock asked for; ``None`` is what the driver chose.
        time_s: Of a launch.
        power_w: While it ran; ``None`` where that cannot be told from the others'.
        time_windows: How many windows of the usual length that time is worth.
        power_windows: How many that power is worth, were company known; 0 where there is none.
        temperature_c: ``None`` where it was not read.
        by_company: How log power moves with each error of company, by its standard deviation.
            Length H.
        apart: How far its clock in the whole step is from the mean that was read, as a standard
            deviation of its logarithm: it meets the power loop at the same place each time, so
            measurements have it in common. 0 where nothing else ran.
    """

    kernel: str
    core_mhz: float
    mem_mhz: int | None
    time_s: float
    power_w: float | None
    time_windows: float
    power_windows: float
    temperature_c: float | None
    by_company: tuple[float, ...] = ()
    apart: float = 0.0

    @property
    def variance(self) -> float:
        """Of log power, errors of company included; ``inf`` where there is none."""
        if not self.power_windows:
            return math.inf
        return WINDOW_NOISE**2 / self.power_windows + math.hypot(*self.by_company) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """At which clocks the kernels of a step run, where the cap moves the clock within the step.

    Attributes:
        ratio: Of each kernel's mean clock to the step's, in the order of the step. Shape (K,).
        windows: How many windows of the usual length a time at that clock is worth. Shape (K,).
    """

    ratio: Floats
    windows: Floats


def taken_off(
    mixed: Sequence[MixSample],
    kernels: Sequence[Kernel],
    company: Company,
    paces: Paces | None = None,
) -> tuple[Left, ...]:
    """Take off what company drew, of every measurement that a kernel was in.

    A measurement of the whole step tells each kernel's time at that clock, and no kernel's power;
    one of the companion by itself tells what that is, of which a model learns how power goes with
    the clock.
    Where the clock moved within the step it tells nothing until somebody knows how.

    Args:
        mixed: As measured.
        kernels: Of the step, in its order.
        company: What idling and the companion draw.
        paces: Of kernels in steps within which the clock moves; ``None`` while nobody knows.
    """
    left: list[Left] = []
    # The companion by itself is no launch of ours that was timed.
    companions = [s for s in mixed if not s.mix.launches and s.hot_s is not None]
    for sample in [*with_durations(mixed), *companions]:
        if clock_moves(sample):
            left += _at_paces(sample, kernels, paces) if paces is not None else ()
            continue
        times_s = _times_s(sample, kernels)
        whole_step = sample.is_step
        moves = sample.core_spread_mhz / sample.core_mhz
        known = not whole_step or sample.kernel_mhz or len(times_s) == 1
        apart = 0.0 if known else _STAYS * moves
        steady = min(1.0, HUNTS_MHZ / max(sample.core_spread_mhz, HUNTS_MHZ)) ** 2
        if sample.spin_mhz is not None:
            # Idling tells the clock at its own place in the round, and kernels ran elsewhere.
            left += _by_spin(sample, times_s, apart, steady if apart else 1.0)
        scale = _as_in_window(sample, kernels)
        draw = None if whole_step else _power(sample, company, scale)
        if sample.spin_mhz is not None and draw is None:
            continue
        # Kernels of a step follow the clock each in its own way, and the scale is their mean.
        moved = scale - 1.0 if whole_step else 0.0
        sure = steady / (1.0 + (moved / _TIME_NOISE) ** 2)
        left += [
            Left(
                kernel=name,
                core_mhz=sample.core_mhz,
                mem_mhz=sample.asked.mem_mhz,
                time_s=scale * time_s,
                power_w=draw.mean_w if draw else None,
                time_windows=sure if sample.spin_mhz is None else 0.0,
                power_windows=steady * _windows(draw) if draw else 0.0,
                temperature_c=sample.temperature_c,
                by_company=tuple((draw.shared_w / draw.mean_w).tolist()) if draw else (),
                apart=apart,
            )
            for name, time_s in times_s.items()
        ]
    return tuple(left)


def _at_paces(sample: MixSample, kernels: Sequence[Kernel], paces: Paces) -> list[Left]:
    """Return what launches took in a step within which the clock moves."""
    of_kernels = zip(
        kernels, sample.kernel_s, paces.ratio.tolist(), paces.windows.tolist(), strict=True
    )
    return [
        _timed(sample, kernel.name, ratio * sample.core_mhz, time_s, windows=windows)
        for kernel, time_s, ratio, windows in of_kernels
    ]


def _times_s(sample: MixSample, kernels: Sequence[Kernel]) -> dict[str, float]:
    """Return what a launch of each kernel took, or of the companion by itself."""
    if not sample.mix.launches and sample.hot_s is not None:
        return {COMPANION: sample.hot_s}
    names = [sample.kernel] if sample.kernel else [kernel.name for kernel in kernels]
    return dict(zip(names, sample.kernel_s, strict=True))


def _by_spin(
    sample: MixSample, times_s: dict[str, float], apart: float, windows: float
) -> list[Left]:
    """Return what launches took at the clock at which they were timed."""
    # The companion by itself has no launches of ours.
    clocks_mhz = sample.timed_mhz or (sample.spin_mhz or sample.core_mhz,) * len(times_s)
    return [
        _timed(sample, name, core_mhz, time_s, windows=windows, apart=apart)
        for (name, time_s), core_mhz in zip(times_s.items(), clocks_mhz, strict=True)
    ]


def _timed(
    sample: MixSample,
    kernel: str,
    core_mhz: float,
    time_s: float,
    *,
    windows: float,
    apart: float = 0.0,
) -> Left:
    """Return what a launch took at a clock, where nothing tells what it drew."""
    return Left(
        kernel=kernel,
        core_mhz=core_mhz,
        mem_mhz=sample.asked.mem_mhz,
        time_s=time_s,
        power_w=None,
        time_windows=windows,
        power_windows=0.0,
        temperature_c=sample.temperature_c,
        apart=apart,
    )


def _as_in_window(sample: MixSample, kernels: Sequence[Kernel]) -> float:
    """Return by how much launches took longer in the window of the clock than when timed.

    They are timed a second later, and a clock that hunts is another then: a round tells both.
    What a round takes more than the clock moved by is time between launches.
    """
    step_s = sample.mix.launches * _once_s(sample, kernels)
    parts_s = [step_s, sample.mix.hot * (sample.hot_s or 0.0), sample.idle_s or 0.0]
    scale = sample.round_s / math.fsum(parts_s)
    moved = sample.core_spread_mhz / sample.core_mhz
    return scale if abs(scale - 1.0) <= moved else 1.0


def _once_s(sample: MixSample, kernels: Sequence[Kernel]) -> float:
    """Return how long the kernel of a mix, or one step, took when it was timed."""
    if not sample.mix.launches:
        return 0.0
    if sample.kernel:
        return sample.kernel_s[0]
    counted = zip(kernels, sample.kernel_s, strict=True)
    return math.fsum(kernel.waited_count * each_s for kernel, each_s in counted)


def _power(sample: MixSample, company: Company, scale: float) -> Draw | None:
    """Return the power of the kernel of a mix, or of the companion; ``None`` if hardly known.

    Args:
        sample: The mix.
        company: What idling and the companion draw.
        scale: By how much launches took longer in its window than when timed.
    """
    hot_s = scale * sample.mix.hot * (sample.hot_s or 0.0)
    own_s = scale * sample.mix.launches * sample.kernel_s[0] if sample.mix.launches else 0.0
    draw = company.left(sample, hot_s, own_s)
    return None if draw is None or draw.total_w >= _MOST_SPREAD * draw.mean_w else draw


def _windows(draw: Draw) -> float:
    """Return how many windows of the usual length a power is worth, company apart."""
    return min(1.0, (WINDOW_NOISE * draw.mean_w / draw.spread_w) ** 2)


def peak_w(left: Sequence[Left], limit_w: float) -> float:
    """Return the power that the GPU lets no kernel exceed, however low the mean; ``inf`` if unseen.

    On an H200 with a limit of 700 W eleven products thinned out by idling all drew 963 to 986 W,
    reading 1980 MHz, and took as long as at about 1800: something faster than the cap held them,
    and no clock that is read shows it.

    Args:
        left: What is left of mixes for their kernels.
        limit_w: Power limit of the GPU.
    """
    most: dict[str, float] = {}
    boost_mhz = max((one.core_mhz for one in left), default=0.0)
    for one in left:
        boosts = one.core_mhz >= _BOOSTS * boost_mhz
        sure = one.kernel != COMPANION and one.variance <= WINDOW_NOISE**2 / _SURE
        if boosts and one.power_w is not None and sure:
            most[one.kernel] = max(one.power_w, most.get(one.kernel, 0.0))
    greatest_w = max(most.values(), default=0.0)
    pile = [power_w for power_w in most.values() if power_w >= OFF_PEAK * greatest_w]
    if len(pile) < _PILE or statistics.median(pile) < _ABOVE * limit_w:
        return math.inf
    return statistics.median(pile)


class AtBoost(NamedTuple):
    """What the hot companion did at boost.

    Attributes:
        power_w: It drew.
        exponent: Of its time against the clock, between its fastest rung and the next.
        usual: The same below; ``None`` where it was not seen at a third clock.
    """

    power_w: float
    exponent: float
    usual: float | None = None

    @property
    def follows(self) -> bool:
        """Whether it surely gets faster all the way to boost."""
        return self.usual is not None and self.exponent >= _STILL * self.usual


def peak_seen_w(pile_w: float, companion: AtBoost | None, limit_w: float) -> float:
    """Return the peak of power that kernels and the companion show together; ``inf`` for none.

    Kernels that are alike draw alike, whatever holds them: so the companion must not be seen to
    draw as much and to follow the clock, nor to draw more.

    Args:
        pile_w: What several kernels draw at most; ``inf`` where they differ.
        companion: At boost; ``None`` where it was not seen there.
        limit_w: Power limit of the GPU.
    """
    if companion is None:
        return pile_w
    if companion.exponent < _NO_FASTER and companion.power_w >= _ABOVE * limit_w:
        alike = pile_w >= OFF_PEAK * companion.power_w
        return min(pile_w, companion.power_w) if alike else companion.power_w
    free = companion.follows and companion.power_w >= _AS_HOT * pile_w
    return math.inf if free else pile_w


def companion_at_boost(mixed: Sequence[MixSample], company: Company) -> AtBoost | None:
    """Return what the hot companion did at boost; ``None`` where it was at one clock at most.

    Args:
        mixed: As measured.
        company: What idling draws.
    """
    rungs = []
    for sample in mixed:
        if sample.mix.launches or sample.hot_s is None:
            continue
        draw = company.left(sample, sample.mix.hot * sample.hot_s, 0.0)
        if draw is not None:
            core_mhz = sample.spin_mhz or sample.core_mhz
            rungs.append((core_mhz, sample.hot_s, draw.mean_w))
    rungs.sort()
    slower = [rung for rung in rungs if rung[0] < (1.0 - _RUNG) * rungs[-1][0]]
    if not slower:
        return None
    slowest, next_, boost = slower[0], slower[-1], rungs[-1]
    third = slowest[0] < (1.0 - _RUNG) * next_[0]
    return AtBoost(boost[2], _exponent(next_, boost), _exponent(slowest, next_) if third else None)


def _exponent(slow: tuple[float, ...], fast: tuple[float, ...]) -> float:
    """Return the exponent of time against the clock, between a clock with a time and another."""
    return math.log(slow[1] / fast[1]) / math.log(fast[0] / slow[0])


def below_peak(left: Sequence[Left], peak: float) -> tuple[Left, ...]:
    """Return what ran at the clock that was read: not what a peak of power held.

    Args:
        left: What is left of mixes for their kernels.
        peak: The greatest power there is, in W.
    """
    held_w = OFF_PEAK * peak
    held = {one.kernel for one in left if one.power_w is not None and one.power_w >= held_w}
    highest = dict.fromkeys(held, 0.0)
    nearest: dict[str, tuple[float, Left]] = {}
    for one in sorted(left, key=lambda one: one.core_mhz):
        if one.power_w is None or one.power_w >= held_w:
            continue
        if one.kernel in held:
            # Power goes with the square of the clock there, or a little less.
            reach = one.core_mhz * math.sqrt(peak / one.power_w)
            highest[one.kernel] = min(reach, highest[one.kernel] or math.inf)
        elif one.power_windows >= _SURE:
            nearest[one.kernel] = one.power_w, one

    def below(one: Left) -> bool:
        if one.power_w is not None:
            return one.power_w < held_w
        if one.kernel not in nearest:
            return True
        # Of what nobody saw there: energy rises with voltage, and power with the pace besides.
        power_w, seen = nearest[one.kernel]
        rise = (one.core_mhz / seen.core_mhz) ** _VOLTAGE * seen.time_s / one.time_s
        return bool(power_w * rise < held_w)

    return tuple(
        one for one in left if below(one) and one.core_mhz <= highest.get(one.kernel, math.inf)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Measurements in company, taken apart.

    Attributes:
        company: What idling and the companion draw, where no peak of power holds it.
        left: What is left for kernels and for the companion by itself, where none holds them.
        peak_w: The peak; ``inf`` where none was seen.
    """

    company: Company
    left: tuple[Left, ...]
    peak_w: float


def taken_apart(
    mixed: Sequence[MixSample],
    kernels: Sequence[Kernel],
    shape: GpuConstants,
    own_mem_mhz: float,
    limit_w: float | None,
    paces: Paces | None = None,
) -> Apart:
    """Take off what company drew, where everything ran at the clock that was read.

    Args:
        mixed: As measured.
        kernels: Of the step, in its order.
        shape: How idle power is assumed to follow clock and temperature.
        own_mem_mhz: Memory clock of a GPU left to itself.
        limit_w: Power limit of the GPU.
        paces: Of kernels in steps within which the clock moves; ``None`` while nobody knows.
    """
    company = Company.of(mixed, shape, own_mem_mhz)
    left = taken_off(mixed, kernels, company, paces)
    limit_w = limit_w or math.inf
    peak = peak_seen_w(peak_w(left, limit_w), companion_at_boost(mixed, company), limit_w)
    if math.isfinite(peak):
        company = Company.of(mixed, shape, own_mem_mhz, below_w=OFF_PEAK * peak)
        left = below_peak(taken_off(mixed, kernels, company, paces), peak)
    return Apart(company=company, left=left, peak_w=peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDraw:
    """What the whole step drew at one clock, its company taken off.

    Attributes:
        core_mhz: Mean core clock.
        power_w: Mean power.
        spread_w: Standard deviation of that.
    """

    core_mhz: float
    power_w: float
    spread_w: float


def step_draws(
    mixed: Sequence[MixSample], kernels: Sequence[Kernel], company: Company
) -> tuple[StepDraw, ...]:
    """Return what the whole step drew, at every clock at which it ran.

    Args:
        mixed: As measured.
        kernels: Of the step, in its order.
        company: What idling and the companion draw.
    """
    draws = []
    for sample in mixed:
        if sample.kernel or not sample.kernel_s or is_uneven(sample):
            continue
        scale = _as_in_window(sample, kernels)
        step_s = scale * sample.mix.launches * _once_s(sample, kernels)
        draw = company.left(sample, scale * sample.mix.hot * (sample.hot_s or 0.0), step_s)
        if draw is not None and draw.total_w < _MOST_SPREAD * draw.mean_w:
            draws.append(
                StepDraw(core_mhz=sample.core_mhz, power_w=draw.mean_w, spread_w=draw.total_w)
            )
    return tuple(draws)


def at_cap(sample: MixSample, limit_w: float | None) -> bool:
    """Whether the power cap held a measurement's clock.

    Args:
        sample: The measurement.
        limit_w: Power limit of the GPU.
    """
    said = driver_says(sample.throttle_reasons)
    if said is not None or limit_w is None:
        return bool(said)
    return sample.round_j / sample.round_s >= CapMargin.FIT * limit_w


def reach_mhz(sample_set: SampleSet) -> tuple[float, float] | None:
    """Return the lowest and highest core clock at which kernels ran where none was ever set.

    Returns:
        The clocks; ``None`` where clocks were held, or nothing ran in company.
    """
    asked = [s.asked for s in sample_set.samples] + [s.asked for s in sample_set.mixed]
    steered = all(clocks.is_auto for clocks in asked) and any(
        sample.in_company for sample in sample_set.mixed
    )
    seen = [sample.core_mhz for sample in sample_set.mixed if sample.kernel_s]
    return (min(seen), max(seen)) if seen and steered else None


def told(sample_set: SampleSet) -> tuple[str, ...]:
    """Say what a reader of measurements in company must know of them; nothing of other samples."""
    mixed = sample_set.mixed
    reach = reach_mhz(sample_set)
    if reach is None:
        return ()
    lowest, highest = (f"{mhz:.0f}" for mhz in reach)
    sentence = (
        f"clocks were steered by company, not set: only core clocks from {lowest} to {highest} "
        "MHz are known; what lower ones and other memory clocks would save cannot be seen"
    )
    sentences = [sentence]
    limit_w = sample_set.gpu.power_limit_w
    if not any(at_cap(sample, limit_w) for sample in mixed):
        most_w = max(sample.round_j / sample.round_s for sample in mixed)
        limit = "unknown" if limit_w is None else f"{limit_w:g} W"
        sentence = (
            f"nothing steers this GPU: it drew {most_w:.0f} W at most, below its power limit "
            f"({limit}), and ran at {highest} MHz whatever the company; with root it can be "
            "measured at clocks that are held"
        )
        sentences = [sentence]
    wild = [sample for sample in mixed if sample.core_spread_mhz > HUNTS_MHZ]
    if wild:
        worst = max(wild, key=lambda sample: sample.core_spread_mhz)
        what = repr(worst.kernel) if worst.kernel else "the step"
        sentences.append(
            f"the core clock hunted in {len(wild)} of {len(mixed)} measurements in company, in one "
            f"of {what} by {worst.core_spread_mhz:.0f} MHz around {worst.core_mhz:.0f}: these "
            "count less"
        )
    return tuple(sentences)
