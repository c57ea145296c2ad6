"""How the segments of a training step respond to clocks, learned from blocks of steps that ran.

A block is some steps under one choice of clocks. Marks say how long each of its segments took,
readings at which clock it ran, and the energy counter what all of them drew together:
E = Σ_s t_s P_s(f_s). So times are observed segment by segment, and the power of a segment is
inferred from sums. The clocks are those that ran, not those asked for: where the power cap held
the board, a segment tells of the clock that the cap left it.

Times and powers are Gaussian processes over the clocks; powers have a part that all segments
share. A reading changes the state by one rank-one update. The prior of a time is a straight line in
1/f whose slope is the core-bound part; that of a power is a static part and one that goes as
f · V(f)². Both are wide: one block at another clock outweighs them.

Shape letters: S segments, C core clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from underclock.arrays import Floats, Ints

# Prior deviations, as fractions of auto unless a name says otherwise. They are wide: measured
# training kernels lie between memory-bound (0) and core-bound (1), and the power that does not
# depend on the core clock is 25 to 60 % of a busy board (docs/evidence/calibration.md).
_CORE_BOUND, _CORE_BOUND_SPREAD = 0.65, 0.35
_BENT_TIME = 0.06  # of the change of time: a roofline bends
_STATIC, _STATIC_SHARED, _STATIC_OWN = 0.4, 0.12, 0.08
_EXPONENT, _EXPONENT_SHARED, _EXPONENT_OWN = 2.4, 0.6, 0.3  # f · V(f)²: 1 where V is flat, 3 else
_LEVEL_TIME, _LEVEL_SHARED, _LEVEL_OWN = 0.01, 0.02, 0.2
_BENT_POWER_OWN, _BENDS_MHZ = 0.01, 200.0
# Levels of power over the clock, which all segments share: as wide as real boards have them, and
# how far they reach (docs/evidence/calibration.md).
_LEVELS = (0.05, 300.0), (0.005, 45.0)
_DRIFT, _WANDERS = 0.02, 0.001  # of power: heat, at first; and from block to block
_LEAST_NOISE = 0.002
_ODD = 3.0  # deviations of the middle segment: from there on a block counts less
_JITTER = 1e-9  # of variances, against rounding
_SMALLEST = 1e-3  # of a draw, so that no time or power is negative


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReading:
    """Some steps in a row under one choice of clocks.

    Attributes:
        at_auto: Whether the driver chose the clocks.
        core_mhz: Clock at which each segment ran, or that it was held at. Shape (S,).
        times_s: Of each segment, the mean over the steps. Shape (S,).
        energy_j: Of a step; ``None`` where the counter did not say.
        steps: How many.
    """

    at_auto: bool
    core_mhz: Floats
    times_s: Floats
    energy_j: float | None
    steps: int

    @property
    def time_s(self) -> float:
        """Time of a step in s."""
        return float(self.times_s.sum())

    def by_segments(self, segments: Sequence[int]) -> "BlockReading":
        """Return the reading of fewer segments.

        Args:
            segments: Of each segment here, which one there it is part of, from 0. Shape (S,).
        """
        times_s: Floats = np.bincount(segments, weights=self.times_s).astype(np.float64)
        core_mhz = np.bincount(segments, weights=self.times_s * self.core_mhz) / times_s
        return replace(self, core_mhz=core_mhz, times_s=times_s)


class Response:
    """What each segment takes and draws at each core clock, with errors.

    Args:
        core_mhz: Clocks that may be held, ascending. Shape (C,).
        auto: A block at auto.
    """

    def __init__(self, core_mhz: Sequence[int], auto: BlockReading) -> None:
        if auto.energy_j is None:
            raise ValueError("what a step draws at auto is not known")
        auto_mhz = float(auto.core_mhz @ auto.times_s) / auto.time_s
        self.core_mhz = np.array(core_mhz, dtype=np.float64)
        self.auto_s = auto.times_s.copy()
        self.auto_w = auto.energy_j / auto.time_s
        count = len(self.auto_s)
        slower = auto_mhz / self.core_mhz - 1.0
        bent = slower[:, None] * slower * _near(slower / 0.3)
        prior = _CORE_BOUND_SPREAD**2 * np.outer(slower, slower)
        prior += _BENT_TIME**2 * bent + _LEVEL_TIME**2
        usual = 1.0 + _CORE_BOUND * slower
        self._times = [_Field(usual, prior.copy()) for _ in range(count)]
        ratio = self.core_mhz / auto_mhz
        dynamic = ratio**_EXPONENT
        moves = 1.0 - dynamic, (1.0 - _STATIC) * dynamic * np.log(ratio)

        def power(static: float, exponent: float, level: float) -> Floats:
            parts = static * moves[0], exponent * moves[1], np.full_like(ratio, level)
            return np.asarray(np.sum([np.outer(each, each) for each in parts], axis=0))

        shared = power(_STATIC_SHARED, _EXPONENT_SHARED, _LEVEL_SHARED)
        apart_mhz = np.abs(self.core_mhz[:, None] - self.core_mhz)
        shared += sum(wide**2 * np.exp(-apart_mhz / reach_mhz) for wide, reach_mhz in _LEVELS)
        own = power(_STATIC_OWN, _EXPONENT_OWN, _LEVEL_OWN)
        own += _BENT_POWER_OWN**2 * _near(self.core_mhz / _BENDS_MHZ)
        covariance = np.zeros((count * len(ratio) + 1,) * 2)  # and the drift of all power
        covariance[:-1, :-1] = np.kron(np.ones((count, count)), shared)
        covariance[:-1, :-1] += np.kron(np.eye(count), own)
        covariance[-1, -1] = _DRIFT**2
        usual = np.append(np.tile(_STATIC + (1.0 - _STATIC) * dynamic, count), 0.0)
        self._power = _Field(usual, covariance)
        self._at = np.arange(count) * len(ratio)

    def learn(self, block: BlockReading, time_noise: Floats, energy_noise: float) -> None:
        """Take in a block.

        Args:
            time_noise: Of each segment's mean over the block, as a fraction. Shape (S,).
            energy_noise: Likewise of the block's energy.
        """
        rows = [self._row(mhz) for mhz in block.core_mhz]
        values = block.times_s / self.auto_s
        odd = self._oddness(rows, values, time_noise)
        noise = odd * np.maximum(time_noise, _LEAST_NOISE) * values
        for own, (index, weight), value, off in zip(self._times, rows, values, noise, strict=True):
            own.observe(index, weight, float(value), float(off))
        if block.energy_j is None:
            return
        self._power.spread(-1, _WANDERS**2)
        share = block.times_s / block.time_s
        drawn = block.energy_j / (self.auto_w * block.time_s)
        index = np.concatenate([at + index for at, (index, _) in zip(self._at, rows, strict=True)])
        weight = np.concatenate([each * own for each, (_, own) in zip(share, rows, strict=True)])
        self._power.observe(
            np.append(index, len(self._power.mean) - 1),
            np.append(weight, drawn),
            drawn,
            odd * max(energy_noise, _LEAST_NOISE) * drawn,
        )

    def _row(self, mhz: float) -> tuple[Ints, Floats]:
        """Return the two clocks around one that ran, and how near it is to each."""
        clocks = self.core_mhz
        if len(clocks) == 1:
            return np.array([0]), np.ones(1)
        above = int(np.clip(np.searchsorted(clocks, mhz), 1, len(clocks) - 1))
        share = (mhz - clocks[above - 1]) / (clocks[above] - clocks[above - 1])
        share = float(np.clip(share, 0.0, 1.0))
        return np.array([above - 1, above]), np.array([1.0 - share, share])

    def _oddness(
        self, rows: Sequence[tuple[Ints, Floats]], values: Floats, time_noise: Floats
    ) -> float:
        """Return how many times less sure than others a block is: one that was interrupted."""
        away = [
            abs(value - own.mean[index] @ weight)
            / np.sqrt(weight @ own.covariance[np.ix_(index, index)] @ weight + off**2)
            for own, (index, weight), value, off in zip(
                self._times, rows, values, time_noise, strict=True
            )
        ]
        return max(1.0, float(np.median(away)) / _ODD)

    def expected(self) -> tuple[Floats, Floats]:
        """Return time in s and energy in J of each segment at each clock. Shapes (S, C)."""
        return self._costs([each.mean for each in self._times], self._power.mean)

    def drawn(self, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Return one draw of time in s and energy in J likewise."""
        return self._costs([each.drawn(random) for each in self._times], self._power.drawn(random))

    def _costs(self, times: Sequence[Floats], powers: Floats) -> tuple[Floats, Floats]:
        shape = len(self.auto_s), len(self.core_mhz)
        time_s = np.maximum(np.array(times), _SMALLEST) * self.auto_s[:, None]
        power_w = np.maximum(powers[:-1].reshape(shape), _SMALLEST) * self.auto_w
        return time_s, time_s * power_w


class _Field:
    """A Gaussian state that readings of weighed sums of it update."""

    def __init__(self, mean: Floats, covariance: Floats) -> None:
        self.mean, self.covariance = mean, covariance

    def observe(self, index: Ints, weight: Floats, value: float, noise: float) -> None:
        """Take in a reading of a weighed sum of some entries; ``noise`` is its deviation."""
        along = self.covariance[:, index] @ weight
        along /= np.sqrt(variance := along[index] @ weight + noise**2)
        self.mean = self.mean + along * ((value - self.mean[index] @ weight) / np.sqrt(variance))
        self.covariance -= np.outer(along, along)

    def spread(self, index: int, variance: float) -> None:
        """Let one entry move by a random step of some variance."""
        self.covariance[index, index] += variance

    def drawn(self, random: np.random.Generator) -> Floats:
        """Return a draw of the state."""
        root = np.linalg.cholesky(self.covariance + _JITTER * np.eye(len(self.mean)))
        return np.asarray(self.mean + root @ random.standard_normal(len(self.mean)))


def _near(at: Floats) -> Floats:
    """Return how alike values at some places are: the squared-exponential kernel."""
    alike: Floats = np.exp(-0.5 * (at[:, None] - at) ** 2)
    return alike
