"""A Gaussian linear model around the fitted physics, conditioned on rows.

The logarithm of a kernel's time or power at a clock pair is

    the physics as fitted
    + derivatives by the kernel's parameters and by those that all kernels share
    + a deviation along clocks that all kernels share, and one of the kernel's own
    + what the row has of its own + noise of its runs, of a size that is the kernel's own.

All of it is normal, but how far a kernel deviates: a scale of its own, from a few with weights,
which makes deviations Student's t. A kernel that takes longer than the physics says draws less.

Shape letters: K kernels, n rows of a kernel (padded), C settings, L scales, P parameters of a
kernel, S shared parameters, M features of clocks, H directions that all kernels share, q = 2 n
quantities of a kernel: times, then powers.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax

from underclock.arrays import Floats, Ints
from underclock.core.model.most_likely import ParameterPrior
from underclock.core.model.observed import Observed, Targets, evenly

# Student's t with four degrees of freedom, in four steps: scales and the logarithms of their odds.
SCALES = np.array([0.5, 1.0, 2.0, 4.0])
LOG_ODDS = np.log([0.09, 0.65, 0.23, 0.03])
COUPLED = 0.5  # of a log time too long, by which power is too low: slower means less power
_DRIVERS = 0.1  # by which costs at clocks of the driver's choice may differ, of all kernels alike
_FREE = 0.005  # and of each kernel by itself
# Features of clocks: how many for time and for power, and what of a variance they may lack.
_FEATURES, _ENOUGH = (40, 90), 1e-3
_ROUNDS = 3  # of scales and what is shared, each following from the other
_NONE = (1e-6, 1e-6)  # sizes of a part that is left out
_TELLING, _TELLING_ROWS = 256, 24  # kernels, and rows of each, that say what all share


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Standard deviations of the model's parts, of log time and of log power."""

    smooth: tuple[float, float] = (0.02, 0.02)  # of a kernel's own deviation along clocks
    shared: tuple[float, float] = (0.02, 0.05)  # of the deviation that all kernels share
    row: tuple[float, float] = (0.003, 0.003)  # of what a row has of its own
    run: tuple[float, float] = (0.006, 0.006)  # of a usual run
    # over which deviations are alike, in the logarithm of the core clock; half of it in the memory
    # clock's
    length: float = 0.3


def likeness(
    one: tuple[Floats, Floats], other: tuple[Floats, Floats], length: float, *, smooth: bool
) -> Floats:
    """Return how alike deviations at core and memory clocks are, in their logarithms.

    Those of time are smooth, Matérn 3/2. Those of power are Matérn 1/2: on real boards power over
    clock goes up and down by steps, which smooth curves run through.
    """

    def along(a: Floats, b: Floats, reach: float) -> Floats:
        apart = np.abs(np.subtract.outer(np.log(a), np.log(b))) / reach
        if not smooth:
            return np.asarray(np.exp(-apart), dtype=np.float64)
        near: Floats = (1.0 + math.sqrt(3.0) * apart) * np.exp(-math.sqrt(3.0) * apart)
        return near

    return along(one[0], other[0], length) * along(one[1], other[1], 0.5 * length)


@dataclass(frozen=True, slots=True)
class Features:
    """Clocks as features: deviations at two of them covary as their features' product."""

    settings: tuple[Floats, Floats]  # of time and of power, (C, M)
    rows: tuple[Floats, Floats]  # (K, n, M)

    @classmethod
    def of(cls, observed: Observed, targets: Targets, length: float) -> "Features":
        """Find features by pivoted Cholesky decompositions over the settings."""
        points = targets.core_mhz, targets.mem_mhz
        rows = observed.core_mhz.ravel(), observed.mem_mhz.ravel()
        both = []
        for smooth, most in zip((True, False), _FEATURES, strict=True):
            lacking, found = np.ones(len(targets.free)), np.zeros((len(targets.free), 0))
            pivots: list[int] = []
            while len(pivots) < min(most, len(lacking)) and lacking.max() > _ENOUGH:
                at = int(lacking.argmax())
                pivots.append(at)
                here = points[0][[at]], points[1][[at]]
                column = likeness(points, here, length, smooth=smooth)[:, 0]
                column = (column - found @ found[at]) / math.sqrt(lacking[at])
                found = np.column_stack([found, column])
                lacking = np.maximum(lacking - column**2, 0.0)
            marks = points[0][pivots], points[1][pivots]
            of_rows = np.linalg.solve(found[pivots], likeness(marks, rows, length, smooth=smooth)).T
            shaped: Floats = of_rows.reshape(*observed.core_mhz.shape, -1).astype(np.float64)
            both.append((found, shaped))
        (time, time_rows), (power, power_rows) = both
        return cls((time, power), (time_rows, power_rows))


def loadings(
    by: tuple[Floats, Floats],
    features: tuple[Floats, Floats],
    free: Floats,
    visits: Floats,
    sizes: Sizes,
    prior: ParameterPrior,
) -> tuple[Floats, Floats]:
    """Return how quantities at m places move with what is unknown, times before powers.

    That is the kernel's parameters over their standard deviations, (K, 2 m, P), and the directions
    that all kernels share, (K, 2 m, H).

    Args:
        by: Derivatives by the kernel's and by shared parameters. (2, K, m, P), (2, K, m, S).
        features: Of clocks, for time and for power. Shapes (K or 1, m, M).
        free: 1 where the driver chooses the clock. Shape (K or 1, m).
        visits: By what a visit's power is off. Shape (K or 1, m, V).
    """
    by_kernel, by_shared = by
    kernels, places = by_kernel.shape[1:3]
    time, power = (size * of for size, of in zip(sizes.shared, features, strict=True))
    drivers = _DRIVERS * free[..., None]
    none = np.zeros((1, 1, 1))
    parts = (
        (
            by_shared[0] @ prior.shared_root,
            time,
            none * power,
            drivers,
            0.0 * drivers,
            none * visits,
        ),
        (by_shared[1] @ prior.shared_root, -COUPLED * time, power, 0.0 * drivers, drivers, visits),
    )
    shared = [
        np.concatenate(
            [np.broadcast_to(each, (kernels, places, each.shape[-1])) for each in of], axis=-1
        )
        for of in parts
    ]
    kernel = np.concatenate([by_kernel[0], by_kernel[1]], axis=1) * prior.spread[:, None]
    return kernel, np.concatenate(shared, axis=1)


def coupled(time: Floats, power: Floats) -> Floats:
    """Return the covariance of times, then powers, whose own parts have these. (..., 2 m, 2 k)."""
    upper = np.concatenate([time, -COUPLED * time], axis=-1)
    lower = np.concatenate([-COUPLED * time, power + COUPLED**2 * time], axis=-1)
    return np.concatenate([upper, lower], axis=-2)


def own_variance(sizes: Sizes, free: Floats) -> tuple[Floats, Floats]:
    """Return the variance that places have of their own, of time and power; ``free`` is 1 or 0."""
    time, power = (row**2 + _FREE**2 * free for row in sizes.row)
    return time, power


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioned:
    """Rows of some kernels under every scale, and what all kernels share."""

    by_kernel: Floats  # loadings of the rows, (K, q, P)
    by_shared: Floats  # (K, q, H)
    features: tuple[Floats, Floats]  # of the rows' clocks, of time and of power, (K, n, M)
    noise: Floats  # variance of each quantity's mean, (K, L, q)
    inverse: Floats  # of the covariance of a kernel's quantities, (K, L, q, q)
    log_det: Floats  # of what that is the inverse of, (K, L)
    off: Floats  # residuals less the prior's mean, (K, q)
    real: Floats  # which quantities are no padding, (K, q)
    odds: Floats = field(default_factory=lambda: np.zeros(0))  # of every scale, (K, L)
    shared: Floats = field(default_factory=lambda: np.zeros(0))  # expected directions, (H,)
    shared_cov: Floats = field(default_factory=lambda: np.zeros(0))  # (H, H)
    evidence: float = 0.0  # logarithm of how likely the rows are

    @classmethod
    def of(
        cls, observed: Observed, features: Features, prior: ParameterPrior, sizes: Sizes
    ) -> "Conditioned":
        """Prepare rows, nothing shared being known yet."""
        free = observed.free.astype(np.float64)
        by = observed.by_kernel, observed.by_shared
        by_kernel, by_shared = loadings(by, features.rows, free, observed.visits, sizes, prior)
        real = np.concatenate([observed.real[0], observed.real[1]], axis=1)
        time, power = (
            size**2 * of @ of.swapaxes(1, 2) + own[..., None] * np.eye(of.shape[1])
            for size, of, own in zip(
                sizes.smooth, features.rows, own_variance(sizes, free), strict=True
            )
        )
        runs = observed.noise(np.array(sizes.run))[..., None] ** 2
        noise = runs / np.maximum(observed.windows, 1e-9)
        noise = np.where(real, np.concatenate([noise[0], noise[1]], axis=1), 1.0)
        both = real[:, :, None] & real[:, None, :]
        cov = SCALES[:, None, None] ** 2 * coupled(time, power)[:, None]
        cov = np.where(both[:, None], cov + (by_kernel @ by_kernel.swapaxes(1, 2))[:, None], 0.0)
        unknown = np.repeat(observed.unknown.T, observed.real.shape[2], axis=1)
        noise_scales = np.where(unknown[:, None], SCALES[:, None], 1.0)
        cov += (noise_scales**2 * noise[:, None])[..., None] * np.eye(noise.shape[1])
        residual = np.concatenate([observed.residual[0], observed.residual[1]], axis=1)
        raw = np.concatenate([observed.by_kernel[0], observed.by_kernel[1]], axis=1)
        physics = np.concatenate([observed.by_shared[0], observed.by_shared[1]], axis=1)
        moved = raw @ prior.kernels[..., None]
        return cls(
            by_kernel=by_kernel,
            by_shared=np.where(real[..., None], by_shared, 0.0),
            features=features.rows,
            noise=noise_scales**2 * noise[:, None],
            inverse=np.asarray(np.linalg.inv(cov), dtype=np.float64),
            log_det=np.linalg.slogdet(cov)[1],
            off=np.where(real, residual - moved[..., 0] - physics @ prior.shared, 0.0),
            real=real,
        )

    def about(self, shared: Floats, shared_cov: Floats) -> "Conditioned":
        """Return the same, where what all kernels share is known from some of them."""
        odds = softmax(self._log_odds(shared), axis=1)
        return dataclasses.replace(self, odds=odds, shared=shared, shared_cov=shared_cov)

    def settled(self) -> "Conditioned":
        """Return the same with what is shared, and how far each kernel deviates, from the rows."""
        kernels, quantities, directions = self.by_shared.shape
        by = self.by_shared.reshape(-1, directions)
        shared, cov = np.zeros(directions), np.eye(directions)
        for _ in range(_ROUNDS - 1):
            odds = softmax(self._log_odds(shared), axis=1)
            flat = self.inverse.reshape(kernels, len(SCALES), -1)
            expected = (odds[:, None] @ flat).reshape(kernels, quantities, quantities)
            drawn = (expected @ self.by_shared).reshape(-1, directions).T
            cov = np.linalg.inv(np.eye(directions) + drawn @ by)
            shared = cov @ (drawn @ self.off.ravel())
        evidence = logsumexp(self._log_odds(shared), axis=1).sum() - 0.5 * shared @ shared
        evidence += 0.5 * np.linalg.slogdet(cov)[1]
        return dataclasses.replace(self.about(shared, cov), evidence=float(evidence))

    def left(self, shared: Floats) -> Floats:
        """Return residuals less what is shared. Shape (K, q)."""
        left: Floats = self.off - self.by_shared @ shared
        return left

    def _log_odds(self, shared: Floats) -> Floats:
        left = self.left(shared)[:, None, :, None]
        squares = (left.swapaxes(2, 3) @ self.inverse @ left)[..., 0, 0]
        log_odds: Floats = LOG_ODDS - 0.5 * (squares + self.log_det)
        return log_odds


# Usual sizes are those of `Sizes`; their logarithms are assumed to lie so far around them (standard
# deviations).
_SPREADS = {"smooth": 0.7, "shared": 0.7, "row": 1.0, "run": 1.2, "length": 0.25}
# Physics leaves some per cent over: what may excuse more excuses rows that should move parameters.
_GREATEST = {"smooth": 0.06, "shared": 0.06}
_SHORTEST = 0.1  # of lengths: a deviation of one clock is its row's own
_STEPS, _TURNS = (3.0, 1.7), 2  # factors tried of every size, and how often all of them
_GAIN = 0.01  # of the logarithm of the evidence, that is worth a move
_KERNELS, _ROWS = 24, 10  # of each, that sizes are learned from
_REPEATS = 3.0  # degrees of freedom, from which on repeats tell noise of runs from a row's own
_OF_ROW = 1.0  # where they do not: noise of a run, as a multiple of a row's own
OF_CO_LOAD = Sizes(smooth=(0.007, 0.007), shared=(0.005, 0.007))
"""Usual of windows of a GPU: the physics is its own, at one temperature, and clocks were read."""
OF_LOCKS = dataclasses.replace(OF_CO_LOAD, row=(0.0005, 0.0005))
"""Usual of windows at locked clocks, which were not read off a clock that moves."""


def likeliest_sizes(
    observed: Observed, targets: Targets, prior: ParameterPrior, usual: Sizes | None = None
) -> Sizes:
    """Return the sizes that rows and repeats find likeliest.

    Args:
        usual: About which they are; a part that is left out there stays out. By default of tables.
    """
    kernels = observed.spread(_KERNELS)
    some = observed.some(kernels, evenly(observed.residual.shape[2], _ROWS))
    prior, usual = prior.of(kernels), usual or Sizes()
    if len(kernels) == 1:  # one alone does not say what kernels share
        usual = dataclasses.replace(usual, shared=_NONE)
    repeated = bool(observed.freedom.sum() > _REPEATS) or usual.row == _NONE
    features: dict[float, Features] = {}

    @functools.cache
    def worth(sizes: Sizes) -> float:
        if sizes.length not in features:
            features[sizes.length] = Features.of(some, targets, sizes.length)
        evidence = Conditioned.of(some, features[sizes.length], prior, sizes).settled().evidence
        away = sum(
            float((np.log(np.divide(getattr(sizes, name), getattr(usual, name))) ** 2).sum())
            / spread**2
            for name, spread in _SPREADS.items()
        )
        return evidence + some.scatter_evidence(np.array(sizes.run)) - 0.5 * away

    def moved(sizes: Sizes, name: str, q: int, factor: float) -> Sizes:
        size = np.array(getattr(sizes, name))
        size[q if size.ndim else ()] *= factor
        size = np.minimum(size, _GREATEST.get(name, np.inf))
        size = np.maximum(size, _SHORTEST) if name == "length" else size
        new: dict[str, Any] = {name: tuple(size.tolist()) if size.ndim else float(size)}
        sizes = dataclasses.replace(sizes, **new)
        if repeated:
            return sizes
        return dataclasses.replace(sizes, run=(_OF_ROW * sizes.row[0], _OF_ROW * sizes.row[1]))

    sizes = dataclasses.replace(usual, run=_usual_run(observed, usual)) if repeated else usual
    best = worth(sizes)
    names = [
        (name, q)
        for name in _SPREADS
        if getattr(usual, name) != _NONE and (repeated or name != "run")
        for q in ((0, 1) if isinstance(getattr(usual, name), tuple) else (0,))
    ]
    for step in _STEPS:
        for name, q in names * _TURNS:
            for factor in (step, 1.0 / step):
                while True:
                    tried = moved(sizes, name, q, factor)
                    value = worth(tried)
                    if value <= best + _GAIN:
                        break
                    sizes, best = tried, value
    return sizes


def _usual_run(observed: Observed, usual: Sizes) -> tuple[float, float]:
    """Return the median over kernels of how runs scatter."""
    runs = []
    for squares, freedom, otherwise in zip(
        observed.squares, observed.freedom, usual.run, strict=True
    ):
        known = freedom > 0.0
        each = np.sqrt(squares[known] / freedom[known])
        runs.append(max(float(np.median(each)), 1e-5) if known.any() else otherwise)
    return runs[0], runs[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The linear model of a step: rows, where costs are asked for, priors, sizes of its parts."""

    observed: Observed
    targets: Targets
    prior: ParameterPrior
    sizes: Sizes

    def telling(self) -> tuple[Conditioned, Ints, Ints]:
        """Condition some rows of some kernels, which say what all kernels share.

        Returns:
            What they say; which kernels, and which columns of their rows.
        """
        kernels = self.observed.spread(_TELLING)
        columns = evenly(self.observed.residual.shape[2], _TELLING_ROWS)
        some = self.observed.some(kernels, columns)
        features = Features.of(some, self.targets, self.sizes.length)
        given = Conditioned.of(some, features, self.prior.of(kernels), self.sizes)
        return given.settled(), kernels, columns
