"""What a stage's forward and backward take at any clock, from plans that asked for some clocks.

Logarithms of times over logarithms of clocks are one Gaussian process: a shape that all stages have
in common, one of each kind of pass, and one of each stage's own. So a stage that ran at few clocks
is drawn like the others, and how sure that is follows. A clock that only few microbatches ran at
counts less: the power limit averages, and one microbatch alone is faster than many are.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from learned_jobs.runs import PASSES, ExecutedRuns
from underclock.arrays import Floats, Ints

_COMMON, _KIND, _OWN = 0.15, 0.03, 0.03  # standard deviations of ln time
_LENGTH = 0.3  # of ln clock
_LEVEL = 1.0
_REPEAT = 5e-4  # least scatter of a median from plan to plan, relative
_FEW = 0.01  # of a microbatch that runs alone at a clock
_FACTOR = 2e-3  # least difference of a microbatch from the others that counts
_PAIR = 2  # plans, of which no median is taken
_ROUNDS = 3


def near(one: Floats, other: Floats, length: float) -> Floats:
    """Return Matérn's covariance of order 3/2. Shape (a, b)."""
    apart = np.sqrt(3.0) * np.abs(one[:, None] - other) / length
    alike: Floats = (1.0 + apart) * np.exp(-apart)
    return alike


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Times of passes at any clock.

    Attributes:
        group: Stage and kind of each clock seen, as ``2 stage + kind``. Shape (n,).
        log_mhz: Of each. Shape (n,).
        log_s: Its median over plans and microbatches. Shape (n,).
        variance: Of ``log_s``. Shape (n,).
        factor: By how much a microbatch differs from the others, logarithm. Shape (S, K, M).
    """

    group: Ints
    log_mhz: Floats
    log_s: Floats
    variance: Floats
    factor: Floats

    @classmethod
    def of(cls, runs: ExecutedRuns) -> "PassTimes":
        """Learn them; the first stage's forward includes the loading of its data."""
        times_s = runs.times_s.copy()
        times_s[:, 0, 0] += runs.loads_s[:, 0, None]
        log_s = np.log(times_s)
        factor = np.zeros(log_s.shape[1:])
        for _ in range(_ROUNDS):
            seen = [
                (group, *row)
                for group in range(len(PASSES) * runs.stages)
                for row in _clocks_seen(
                    runs.clocks_mhz[:, *divmod(group, 2)],
                    (log_s - factor)[:, *divmod(group, 2)],
                )
            ]
            group, mhz, median, variance = (np.array(each) for each in zip(*seen, strict=True))
            curves = cls(
                group=group.astype(np.int64),
                log_mhz=np.log(mhz),
                log_s=median,
                variance=variance,
                factor=factor,
            )
            factor = _shrunk(log_s - np.log(curves.times_s(runs.clocks_mhz)) + factor)
        return cls(
            group=curves.group,
            log_mhz=curves.log_mhz,
            log_s=curves.log_s,
            variance=curves.variance,
            factor=factor,
        )

    @cached_property
    def _level(self) -> Floats:
        """Mean of each group. Shape (groups,)."""
        weight = 1.0 / self.variance
        summed = np.bincount(self.group, weight * self.log_s)
        return np.asarray(summed / np.bincount(self.group, weight), dtype=np.float64)

    @cached_property
    def _inverse(self) -> Floats:
        covariance = _covariance(self.group, self.log_mhz, self.group, self.log_mhz)
        inverse = np.linalg.inv(covariance + np.diag(self.variance))
        return np.asarray(inverse, dtype=np.float64)

    def at(self, group: Ints, mhz: Ints) -> tuple[Floats, Floats]:
        """Return ln time of usual microbatches and its covariance. Shapes (u,) and (u, u)."""
        log_mhz = np.log(mhz)
        across = _covariance(group, log_mhz, self.group, self.log_mhz)
        mean = self._level[group] + across @ (
            self._inverse @ (self.log_s - self._level[self.group])
        )
        covariance = _covariance(group, log_mhz, group, log_mhz) - across @ self._inverse @ across.T
        return mean, covariance

    def points(self, clocks_mhz: Ints) -> tuple[Ints, Ints, Ints]:
        """Return every group and clock that plans use, and which each pass uses.

        Args:
            clocks_mhz: Shape (..., S, K, M).

        Returns:
            Groups and clocks, shapes (u,), and indices of them. Shape (..., S, K, M).
        """
        groups = np.arange(self.factor.shape[0] * len(PASSES)).reshape(-1, len(PASSES), 1)
        coded = groups * 1_000_000 + clocks_mhz
        points, which = np.unique(coded, return_inverse=True)
        return points // 1_000_000, points % 1_000_000, which.reshape(coded.shape)

    def times_s(self, clocks_mhz: Ints) -> Floats:
        """Return what passes take. Shapes (..., S, K, M)."""
        group, mhz, which = self.points(clocks_mhz)
        taken: Floats = np.exp(self.at(group, mhz)[0][which] + self.factor)
        return taken


def _covariance(group: Ints, log_mhz: Floats, other: Ints, other_mhz: Floats) -> Floats:
    same = group[:, None] == other
    kind = group[:, None] % len(PASSES) == other % len(PASSES)
    amount = _COMMON**2 + kind * _KIND**2 + same * _OWN**2
    covariance: Floats = same * _LEVEL**2 + amount * near(log_mhz, other_mhz, _LENGTH)
    return covariance


def _clocks_seen(clocks_mhz: Ints, log_s: Floats) -> list[tuple[int, float, float]]:
    """Return each clock, the weighted median of plans' medians, and its variance."""
    found: dict[int, tuple[Floats, Ints]] = {}
    for mhz in np.unique(clocks_mhz):
        at = clocks_mhz == mhz
        plans = np.flatnonzero(at.any(axis=1))
        medians = np.array([np.median(log_s[p, at[p]]) for p in plans])
        found[int(mhz)] = medians, at[plans].sum(axis=1)
    apart = np.concatenate(
        [each - np.median(each) for each, _ in found.values() if len(each) > 1] or [np.zeros(1)]
    )
    repeat = max(_REPEAT, 1.4826 * float(np.median(np.abs(apart))))
    seen = []
    for mhz, (medians, count) in found.items():
        weight = 1.0 / (repeat**2 + (_FEW / count) ** 2)
        order = np.argsort(medians)
        half = np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum())
        middle = medians[order][half] if len(medians) > _PAIR else weight @ medians / weight.sum()
        seen.append((mhz, float(middle), float(1.0 / weight.sum())))
    return seen


def _shrunk(differs: Floats) -> Floats:
    """Return what microbatches differ by from the usual, where that is more than chance."""
    middle = np.median(differs, axis=0)
    middle = middle - np.median(middle, axis=-1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(differs - np.median(differs, axis=0)), axis=0)
    error = spread / np.sqrt(len(differs)) + _REPEAT
    shrunk = middle**3 / (middle**2 + error**2)
    factor: Floats = np.where(np.abs(shrunk) > _FACTOR, shrunk, 0.0)
    return factor
