"""How the segments of a training step respond to clocks, learned from blocks of steps that ran.

A block is some steps under one choice of clocks. Marks say how long each of its segments took,
readings at which clock it ran, and the energy counter what all of them drew together:
E = Σ_s t_s P_s(f_s). So times are observed segment by segment, and the power of a segment is
inferred from sums. Auto is a state of its own: at the power cap no lock takes what it takes.

What segments say is not all: a power cap that holds a choice slows it, in one segment more than in
another, and asking for more than the cap allows costs time. So what choices took over what their
segments say is a Gaussian process over choices, and a choice that ran is known as it ran. A block
that the cap held says nothing of segments, only of its choice.

Times and powers are Gaussian processes over the clocks; powers have a part that all segments
share. A reading changes the state by one rank-one update. The prior of a time is a straight line in
1/f whose slope is the core-bound part; that of a power is a static part and one that goes as
f · V(f)². Both are wide: one block at another clock outweighs them.

Shape letters: S segments, C core clocks, N choices.
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
_LEVEL_TIME, _LEVEL_SHARED, _LEVEL_OWN = 0.03, 0.02, 0.2
_BENT_POWER_OWN, _BENDS_MHZ = 0.01, 200.0
# Levels of power over the clock, which all segments share: as wide as real boards have them, and
# how far they reach (docs/evidence/calibration.md).
_LEVELS = (0.08, 300.0), (0.005, 45.0)
_DRIFT, _WANDERS = 0.02, 0.001  # of power: heat, at first; and from block to block
_LEAST_NOISE = 0.002
# What choices take and draw over what segments say: how wide, how far it reaches as a part of the
# clock, and the noise of a block.
_OVER, _OVER_REACH, _OVER_NOISE = (0.02, 0.015), 0.05, (0.003, 0.005)
_ODD = 3.0  # deviations of the middle segment: from there on a block counts less
_JITTER = 1e-9  # of variances, against rounding
_SMALLEST = 1e-3  # of a draw, so that no time or power is negative


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReading:
    """Some steps in a row under one choice of clocks.

    Attributes:
        at_auto: Whether the driver chose the clocks.
        core_mhz: Clock that each segment was held at; at auto the one read. Shape (S,).
        times_s: Of each segment, the mean over the steps. Shape (S,).
        energy_j: Of a step; ``None`` where the counter did not say.
        steps: How many.
        is_capped: Whether the power cap left less than these clocks.
    """

    at_auto: bool
    core_mhz: Floats
    times_s: Floats
    energy_j: float | None
    steps: int
    is_capped: bool = False

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
        self._places = ratio * np.sqrt(self.auto_s / self.auto_s.sum())[:, None] / _OVER_REACH
        self._tried: dict[bytes, Floats] = {}  # of choices: blocks, capped ones; sums of both
        self._weights: Floats | None = None

    def learn(self, block: BlockReading, time_noise: Floats, energy_noise: float) -> None:
        """Take in a block.

        Args:
            time_noise: Of each segment's mean over the block, as a fraction. Shape (S,).
            energy_noise: Likewise of the block's energy.
        """
        self._weights = None
        energy_noise = max(energy_noise, _LEAST_NOISE)
        drawn = None if block.energy_j is None else block.energy_j / (self.auto_w * block.time_s)
        if drawn is not None:
            self._power.covariance[-1, -1] += _WANDERS**2
        if block.at_auto:
            if drawn is not None:
                self._power.observe(np.array([-1]), np.ones(1), drawn - 1.0, energy_noise)
            return
        choice, odd = np.abs(self.core_mhz[:, None] - block.core_mhz).argmin(axis=0), 1.0
        if not block.is_capped:
            values = block.times_s / self.auto_s
            noise = np.maximum(time_noise, _LEAST_NOISE) * values
            away = [
                abs(value - own.mean[at]) / np.sqrt(own.covariance[at, at] + off**2)
                for own, at, value, off in zip(self._times, choice, values, noise, strict=True)
            ]
            odd = max(odd, float(np.median(away)) / _ODD)
            for own, at, value, off in zip(self._times, choice, values, odd * noise, strict=True):
                own.observe(np.array([at]), np.ones(1), float(value), float(off))
            if drawn is not None:
                index = np.append(np.arange(len(choice)) * len(self.core_mhz) + choice, -1)
                weight = np.append(block.times_s / block.time_s, drawn)
                self._power.observe(index, weight, drawn, odd * energy_noise * drawn)
        if drawn is not None:
            time = block.time_s / self.auto_s.sum()
            now = 1.0, block.is_capped, time, time * (drawn - float(self._power.mean[-1]))
            before = self._tried.get(choice.tobytes(), np.zeros(4))
            self._tried[choice.tobytes()] = before + np.array(now) / odd**2

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

    @property
    def tried(self) -> Ints:
        """Choices that ran, and whose energy is known. Shape (N, S)."""
        return np.frombuffer(b"".join(self._tried), np.int64).reshape(-1, len(self.auto_s))

    @property
    def capped(self) -> Ints:
        """Choices that the power cap held: what is as high everywhere is tried in vain. (N, S)."""
        return self.tried[[each[1] > 0.5 * each[0] for each in self._tried.values()]]

    def sums(self, choices: Ints, tables: tuple[Floats, Floats]) -> Floats:
        """Return time in s and energy in J of choices, as they ran or as those near them.

        Args:
            choices: Index of the clock of each segment. Shape (N, S).
            tables: Time and energy of each segment, as expected or drawn.

        Returns:
            Both. Shape (2, N).
        """
        said = _sums(choices, tables)
        if not self._tried:
            return said
        tried, auto = self.tried, self.auto_s.sum() * np.array([[1.0], [self.auto_w]])
        weights = self._weights
        if weights is None:
            blocks, _, *ran = np.array([*self._tried.values()]).T
            over = ran / blocks - _sums(tried, self.expected()) / auto
            alike = self._alike(tried, tried)
            weights = np.array(
                [
                    np.linalg.solve(wide**2 * alike + np.diag(noise**2 / blocks), wide**2 * each)
                    for wide, noise, each in zip(_OVER, _OVER_NOISE, over, strict=True)
                ]
            )
            self._weights = weights
        return np.asarray(said + auto * (weights @ self._alike(tried, choices)))

    def _alike(self, some: Ints, others: Ints) -> Floats:
        at = np.arange(len(self.auto_s))
        apart = self._places[at, some][:, None] - self._places[at, others]
        alike: Floats = np.exp(-np.sqrt((apart**2).sum(axis=-1)))
        return alike


def _sums(choices: Ints, tables: tuple[Floats, Floats]) -> Floats:
    at = np.arange(choices.shape[1])
    return np.array([table[at, choices].sum(axis=1) for table in tables])


class _Field:
    """A Gaussian state that readings of weighed sums of it update."""

    def __init__(self, mean: Floats, covariance: Floats) -> None:
        self.mean, self.covariance = mean, covariance
        self._root: Floats | None = None

    def observe(self, index: Ints, weight: Floats, value: float, noise: float) -> None:
        """Take in a reading of a weighed sum of some entries; ``noise`` is its deviation."""
        self._root = None
        along = self.covariance[:, index] @ weight
        along /= np.sqrt(variance := along[index] @ weight + noise**2)
        self.mean = self.mean + along * ((value - self.mean[index] @ weight) / np.sqrt(variance))
        self.covariance -= np.outer(along, along)

    def drawn(self, random: np.random.Generator) -> Floats:
        """Return a draw of the state."""
        if self._root is None:
            sure = self.covariance + _JITTER * np.eye(len(self.mean))
            self._root = np.asarray(np.linalg.cholesky(sure), dtype=np.float64)
        return np.asarray(self.mean + self._root @ random.standard_normal(len(self.mean)))


def _near(at: Floats) -> Floats:
    """Return how alike values at some places are: the squared-exponential kernel."""
    alike: Floats = np.exp(-0.5 * (at[:, None] - at) ** 2)
    return alike
