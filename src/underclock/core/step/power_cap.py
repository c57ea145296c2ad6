"""The step under its power cap: one constraint on the mean power of what runs.

The driver averages the board's power over about 100 ms and lowers one ceiling for the core clock
of everything, whatever runs. So kernels share a clock at the cap, and one that draws little lends
power to its neighbours. A schedule whose mean power stays below the limit is never touched; where
it would not, the loop settles at the ceiling at which it does. Auto is the case where all ask for
boost.

The ceiling is taken to follow the mean at once. A real loop moves in steps of a bin at each tick of
some 20 ms, which evens out over a step.

Whether the cap held a sample is one rule for all who ask: what the driver said decides where it
was asked. Elsewhere a sample that draws nearly the limit is taken to be held; how nearly depends on
what a mistake would cost.

Shape letters: K kernels, S settings, n launches, C ceilings.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.physics.cap import SIMULATED, WINDOW_S, Fading
from underclock.records import Clocks, Mix, SampleSet, ThrottleReason, Window

_METER_S = 1e-3  # a piece of idling of less reads the clock and does not change it
HALF_BIN_MHZ = 7.5
"""Half of what core clocks are apart on recent GPUs."""
_CEILINGS = 32  # of many boards, at least
_TOGETHER = 64  # boards settled side by side
_PART = 1.0 / 16.0  # of the window, in which launches of boards are added up
_HELD = 0.985  # of the limit: each row left out of a fit in error is knowledge lost
_ROUNDS = 6  # of the limit at which the loop settles: a fixed point, reached to a part in 10⁵


def driver_says(reasons: ThrottleReason | None) -> bool | None:
    """Return whether the driver named the power cap; ``None`` where it was not asked."""
    return None if reasons is None else bool(reasons & ThrottleReason.SW_POWER_CAP)


def is_power_capped(samples: Sequence[Window], limit_w: float) -> Bools:
    """Return which samples of one campaign the power cap held.

    Where the driver was asked of any, what it said decides for all.
    """
    said = [driver_says(sample.throttle_reasons) for sample in samples]
    if any(word is not None for word in said):
        return np.array([bool(word) for word in said])
    power_w = np.array([sample.energy_j / sample.time_s for sample in samples])
    return np.asarray(power_w >= _HELD * limit_w, dtype=np.bool_)


def held_at_auto(sample_set: SampleSet) -> bool:
    """Whether a power limit held the step when it ran whole at auto, by the driver's word."""
    return any(driver_says(window.throttle_reasons) for window in sample_set.in_situ)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCap:
    """What a step's power is held below, and the order in which it is averaged."""

    limit_w: float  # mean power at which the loop settles
    order: Ints
    # the setting that stands for auto before the cap: the highest core clock, and the memory clock
    # that the driver chooses
    boost: int
    fading: Fading = SIMULATED  # how the past fades in the mean
    # What a launch takes, in time and in energy, that the loop slows, over what its costs say.
    slowed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCosts:
    """What one launch of every kernel costs at every locked setting, cap apart."""

    settings: tuple[Clocks, ...]  # locked core clocks; memory may be auto. Length S
    time_s: Floats  # ``inf`` where unknown, (K, S)
    energy_j: Floats  # ``inf`` in the same places, (K, S)

    def under_ceilings(self) -> Ints:
        """Return what each setting becomes below each core clock there is, ascending. (S, C)."""
        core = np.array([clocks.core_mhz or math.inf for clocks in self.settings])
        memory = [clocks.mem_mhz for clocks in self.settings]
        ceilings = np.unique(core[np.isfinite(core)])
        becomes = np.tile(np.arange(len(core))[:, None], len(ceilings))
        for mem in dict.fromkeys(memory):
            same = np.array([s for s, each in enumerate(memory) if each == mem])
            same = same[np.argsort(core[same], kind="stable")]
            # The fastest of the same memory clock that is below both; the slowest where none is.
            place = np.searchsorted(core[same], ceilings, side="right") - 1
            lowered = same[np.maximum(place, 0)]
            slower = core[lowered][None, :] < core[same][:, None]
            becomes[same] = np.where(slower, lowered, same[:, None])
        return becomes


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledStep:
    """A step as it runs under its cap."""

    time_s: Floats  # of each launch, (n,)
    energy_j: Floats  # of each launch, (n,)
    core_mhz: Floats  # of each launch, (n,)
    is_held: bool = False  # whether the cap holds any


def greatest_mean_w(cap: PowerCap, time_s: Floats, energy_j: Floats) -> float:
    """Return the greatest mean power in W that the loop sees in a step of some launches, (n,)."""
    return float(cap.fading.means_w(time_s, energy_j).max())


def is_uneven(sample: Window) -> bool:
    """Whether what was measured and its co-load ran at clocks of their own.

    A cap averages over a window; co-load that comes less often changes the clock only after it.
    Co-load of a kernel at a lock that did not hold ran faster than the kernel.
    """
    mix = sample.mix
    rarely = sample.time_s / mix.pieces > WINDOW_S
    slips = sample.asked.core_mhz is not None and sample.spread_mhz > HALF_BIN_MHZ
    return coload_moves_clock(mix) and rarely and (sample.is_step or slips)


def coload_moves_clock(mix: Mix) -> bool:
    """Whether the co-load of a mix changes the kernels' clock, rather than only reads it."""
    return mix.hot > 0 or mix.idle_s > _METER_S * mix.pieces


def settled_at(cap: PowerCap, costs: LaunchCosts, mean_w: float) -> tuple[PowerCap, SettledStep]:
    """Say where a step at auto settles whose mean power was measured; loops settle below the limit.

    Returns:
        The cap, and the step under it.
    """
    asked = np.full(len(cap.order), cap.boost)
    settled = settle(cap, costs, asked)
    for _ in range(_ROUNDS):
        predicted_w = float(settled.energy_j.sum() / settled.time_s.sum())
        cap = dataclasses.replace(cap, limit_w=cap.limit_w * mean_w / predicted_w)
        settled = settle(cap, costs, asked)
    return cap, settled


def settle(cap: PowerCap, costs: LaunchCosts, choice: Ints) -> SettledStep:
    """Say how a schedule, a setting for each launch, (n,), runs under the cap."""
    time_s, energy_j = costs.time_s[cap.order, choice], costs.energy_j[cap.order, choice]
    core = np.array([clocks.core_mhz or math.nan for clocks in costs.settings])
    if greatest_mean_w(cap, time_s, energy_j) <= cap.limit_w:
        return SettledStep(time_s=time_s, energy_j=energy_j, core_mhz=core[choice])
    lowered = _lowered(cap.order, costs, choice)
    slowed = np.where(lowered != choice[:, None], cap.slowed, 1.0)
    each_s = slowed * costs.time_s[cap.order[:, None], lowered]
    each_j = slowed * costs.energy_j[cap.order[:, None], lowered]
    between = _settling(cap.fading.means_w(each_s, each_j), cap.limit_w)
    settled_s, settled_mhz, settled_j = map(between, (each_s, core[lowered], each_j))
    return SettledStep(time_s=settled_s, energy_j=settled_j, core_mhz=settled_mhz, is_held=True)


def settled_sums(cap: PowerCap, boards: Sequence[LaunchCosts], choice: Ints) -> Floats:
    """Say what a schedule takes on boards side by side: time in s and energy in J. Shape (B, 2).

    Launches are added up in parts that are short against the window.

    Args:
        boards: What launches cost on each, at the same settings.
        choice: Setting of each launch. Shape (n,).
    """
    pairs, pair = np.unique(np.stack([cap.order, choice]), axis=1, return_inverse=True)
    ends_s = np.cumsum(boards[0].time_s[cap.order, choice])
    part = np.unique(ends_s // (_PART * cap.fading.each_s), return_inverse=True)[1]
    count = np.zeros((part.max() + 1, pairs.shape[1]))
    np.add.at(count, (part, pair), 1.0)
    each_s, each_j = (
        count @ np.array([costs[pairs[0], pairs[1]] for costs in of_boards]).T
        for of_boards in ([board.time_s for board in boards], [board.energy_j for board in boards])
    )
    sums = np.stack([each_s.sum(axis=0), each_j.sum(axis=0)], axis=1)
    means_w = cap.fading.means_w(each_s, each_j)
    held = np.flatnonzero(means_w.max(axis=0) > cap.limit_w)
    for some in np.array_split(held, -(-len(held) // _TOGETHER)) if len(held) else ():
        lowered = _lowered(pairs[0], boards[0], pairs[1])
        # Costs between ceilings are mixed, so twice as far apart they are hardly further off.
        lowered = lowered[:, :: -max(1, lowered.shape[1] // _CEILINGS)][:, ::-1]
        slowed = np.where(lowered != pairs[1][:, None], cap.slowed, 1.0)
        at, own = (pairs[0][:, None], lowered), [boards[b] for b in some.tolist()]
        each_s = np.stack([slowed * board.time_s[at] for board in own], axis=-1)
        each_j = np.stack([slowed * board.energy_j[at] for board in own], axis=-1)
        times_s, energies_j = np.tensordot(count, each_s, 1), np.tensordot(count, each_j, 1)
        between = _settling(cap.fading.means_w(times_s, energies_j), cap.limit_w)
        sums[some, 0] = between(times_s).sum(axis=0)
        sums[some, 1] = between(energies_j).sum(axis=0)
    return sums


def _lowered(kernels: Ints, costs: LaunchCosts, choice: Ints) -> Ints:
    """Return what launches of kernels, (n,), run at below each ceiling, ascending. Shape (n, C)."""
    becomes = costs.under_ceilings()[choice]
    # A ceiling below what is known of some launch is one of which nothing can be said.
    known = np.isfinite(costs.time_s[kernels[:, None], becomes]).all(axis=0)
    return becomes[:, known]


def _settling(power_w: Floats, limit_w: float) -> Callable[[Floats], Floats]:
    """Return what takes values below ceilings, (n, C, ...), to where launches settle, (n, ...)."""
    # Power is seen at each launch below each ceiling, ascending. A loop comes from above: where
    # more clock draws less, the first that fits holds it.
    least_w = np.minimum.accumulate(power_w[:, ::-1], axis=1)[:, ::-1]
    highest = np.maximum((least_w <= limit_w).sum(axis=1, keepdims=True) - 1, 0)
    following = np.minimum(highest + 1, power_w.shape[1] - 1)
    below_w, above_w = (np.take_along_axis(power_w, ends, axis=1) for ends in (highest, following))
    rise_w = np.where(above_w > below_w, above_w - below_w, np.inf)
    share = np.clip((limit_w - below_w) / rise_w, 0.0, 1.0)

    def settled(values: Floats) -> Floats:
        low, high = (np.take_along_axis(values, ends, axis=1) for ends in (highest, following))
        return (low + share * (high - low))[:, 0]

    return settled
