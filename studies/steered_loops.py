"""Power loops that may explain the clocks inside steps: a mean of the power, a ceiling after it.

Shape letters: K kernels, C core clocks, n launches.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.step.cap import LaunchCosts
from underclock.physics.cap import window_means_w

_ROUNDS = 8  # in which the limit is found that gives the mean power as measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A power loop.

    Attributes:
        words: What it does.
        means_w: Mean power at the end of each launch, of launches' times and energies,
            shape (n, C).
        late_s: How long after a mean power its ceiling applies.
    """

    words: str
    means_w: Callable[[Floats, Floats], Floats]
    late_s: float = 0.0


def _fading(window_s: float, late_s: float = 0.0) -> Loop:
    """Return a loop over a mean whose past fades."""
    late = f", {late_s * 1e3:.0f} ms late" if late_s else ""
    return Loop(
        words=f"fading, {window_s * 1e3:.0f} ms{late}",
        means_w=lambda time_s, energy_j: window_means_w(time_s, energy_j, window_s),
        late_s=late_s,
    )


def _twice(window_s: float, late_s: float = 0.0) -> Loop:
    """Return a loop over the mean of a mean, the past of both fading."""

    def means_w(time_s: Floats, energy_j: Floats) -> Floats:
        once_w = window_means_w(time_s, energy_j, window_s)
        return window_means_w(time_s, once_w * time_s, window_s)

    late = f", {late_s * 1e3:.0f} ms late" if late_s else ""
    words = f"fading, {window_s * 1e3:.0f} ms twice{late}"
    return Loop(words=words, means_w=means_w, late_s=late_s)


def _even(window_s: float) -> Loop:
    """Return a loop over a mean in which the last so many seconds count alike."""

    def means_w(time_s: Floats, energy_j: Floats) -> Floats:
        means = np.empty_like(time_s)
        for c, (each_s, each_j) in enumerate(zip(time_s.T, energy_j.T, strict=True)):
            rounds = int(window_s // each_s.sum()) + 2
            ends_s = np.concatenate([[0.0], np.cumsum(np.tile(each_s, rounds))])
            spent_j = np.concatenate([[0.0], np.cumsum(np.tile(each_j, rounds))])
            last = slice(-len(each_s), None)
            before_j = np.interp(ends_s[last] - window_s, ends_s, spent_j)
            means[:, c] = (spent_j[last] - before_j) / window_s
        return means

    return Loop(words=f"even, {window_s * 1e3:.0f} ms", means_w=means_w)


LOOPS = (
    *(_fading(0.1), _fading(0.04), _fading(0.03), _fading(0.1, 0.01), _fading(0.04, 0.01)),
    *(_even(0.1), _even(0.07), _even(0.05)),
    *(_twice(0.04), _twice(0.02), _twice(0.02, 0.005), _twice(0.01)),
)
"""The first is the model's."""


def under(loop: Loop, costs: LaunchCosts, order: Ints, mean_w: float) -> tuple[Floats, Floats]:
    """Say how a step at auto runs under a loop that lets it draw so much on average.

    Args:
        loop: Which.
        costs: Of one launch.
        order: Kernel of each launch. Shape (n,).
        mean_w: Mean power of the step.

    Returns:
        Time in s and core clock in MHz of each launch. Shapes (n,).
    """
    known = [
        (float(clocks.core_mhz), s)
        for s, clocks in enumerate(costs.settings)
        if clocks.core_mhz is not None and np.isfinite(costs.time_s[:, s]).all()
    ]
    columns = [s for _, s in sorted(known)]
    core_mhz = np.array(sorted(mhz for mhz, _ in known))
    each_s, each_j = costs.time_s[order][:, columns], costs.energy_j[order][:, columns]
    means_w = loop.means_w(each_s, each_j)
    launches, last = np.arange(len(order)), len(columns) - 1

    def at(place: Floats, values: Floats) -> Floats:
        low = np.minimum(place.astype(np.int64), last - 1)
        below, above = values[launches, low], values[launches, low + 1]
        between: Floats = below + (place - low) * (above - below)
        return between

    limit_w = mean_w
    clocks = np.tile(core_mhz, (len(order), 1))
    for _ in range(_ROUNDS):
        place = _ceilings(means_w, limit_w)
        for _ in range(2 if loop.late_s else 0):
            place = _late(_ceilings(means_w, limit_w), at(place, each_s), loop.late_s)
        time_s = at(place, each_s)
        limit_w *= mean_w / float(at(place, each_j).sum() / time_s.sum())
    return time_s, at(place, clocks)


def _ceilings(means_w: Floats, limit_w: float) -> Floats:
    """Return the place of each launch's ceiling among clocks: the highest that keeps the limit."""
    rows = np.arange(len(means_w))
    highest = np.maximum((means_w <= limit_w).cumprod(axis=1).sum(axis=1) - 1, 0)
    following = np.minimum(highest + 1, means_w.shape[1] - 1)
    rise_w = means_w[rows, following] - means_w[rows, highest]
    room_w = limit_w - means_w[rows, highest]
    share = np.clip(room_w / np.where(rise_w > 0.0, rise_w, np.inf), 0.0, 1.0)
    places: Floats = highest + share * (following - highest)
    return places


def _late(place: Floats, time_s: Floats, late_s: float) -> Floats:
    """Return what held launches some time before, in a round that repeats."""
    ends_s = np.cumsum(time_s)
    seen_s = (ends_s - time_s / 2.0 - late_s) % ends_s[-1]
    held: Floats = np.interp(seen_s, np.append(0.0, ends_s), np.append(place[-1], place))
    return held
