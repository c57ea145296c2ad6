"""One Gaussian model of all kernels' curves, conditioned on rows.

A row is the mean of a kernel's runs at one setting. Its logarithm is

    level of the kernel + mean curve + what kernels share + what the kernel has of its own
    + the row's own + its runs' noise,

all normal but the level, of which nothing is known. How far a kernel deviates is a scale of its
own, from a few with weights, which makes deviations Student's t. What is shared is exact in the
settings, and its error reaches every prediction.

Shape letters: K kernels, n rows of a kernel (padded), C settings, L scales, S shared directions,
P own directions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.inference.curves import ClockGrid, Curves, matern

# Student's t with four degrees of freedom, in four steps: scales and the logarithms of their odds.
SCALES = np.array([0.5, 1.0, 2.0, 4.0])
_LOG_ODDS = np.log([0.09, 0.65, 0.23, 0.03])
_OWN, _SHARED = 12, 12  # directions kept of errors; what is left is each entry's own
_ROUNDS = 3  # of scales and what is shared, each told by the other
_RELEVANT = 1e-4  # odds of a scale that is worth a prediction
_DRIVERS = 0.1  # by which costs at clocks of the driver's choice may differ, of all kernels alike
_BATCH = 256  # kernels: they tell what all share, and bound the memory that conditioning takes
_COUPLED = 0.5  # of a log time too long, by which power is too low: slower means less power


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the parts are, as standard deviations of logarithms.

    Attributes:
        own: Scale of what physics lets kernels differ by.
        smooth: What physics does not say of a kernel, smooth in the clocks.
        length: Over which that is alike, in the logarithm of the core clock.
        free: What a kernel has of its own where the driver chooses the clock.
    """

    own: float = 1.0
    smooth: float = 0.02
    length: float = 0.3
    shared: float = 0.02
    row: float = 0.003
    run: float = 0.006
    free: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRows:
    """Rows of every kernel.

    Attributes:
        setting: Shape (K, n).
        log: Mean of the runs. Shape (K, n).
        runs: How many that is the mean of; 0 pads. Shape (K, n).
    """

    setting: Ints
    log: Floats
    runs: Floats

    @property
    def real(self) -> Bools:
        """Which are no padding. Shape (K, n)."""
        there: Bools = self.runs > 0.0
        return there

    def of(self, kernels: Ints) -> "FieldRows":
        """Return the rows of some kernels."""
        return FieldRows(
            setting=self.setting[kernels], log=self.log[kernels], runs=self.runs[kernels]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How entries are off, together.

    Attributes:
        own: By directions of each kernel. Shape (K, C, P).
        shared: By directions of all. Shape (K, C, S).
        rest: Variance that no other entry has. Shape (K, C).
    """

    own: Floats
    shared: Floats
    rest: Floats

    def of(self, kernels: Ints) -> "Errors":
        """Return those of some kernels."""
        return Errors(own=self.own[kernels], shared=self.shared[kernels], rest=self.rest[kernels])

    @property
    def variance(self) -> Floats:
        """Of each entry. Shape (K, C)."""
        total: Floats = (self.own**2).sum(-1) + (self.shared**2).sum(-1) + self.rest
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPosterior:
    """What a field says of every entry.

    Attributes:
        mean: Of the logarithm. Shape (K, C).
        variance: Of that. Shape (K, C).
        errors: How entries are off together; of a field of powers, how energies are.
    """

    mean: Floats
    variance: Floats
    errors: Errors

    def widened(self, factor: float) -> "FieldPosterior":
        """Return the same, standard deviations greater by a factor."""
        errors = Errors(
            own=factor * self.errors.own,
            shared=factor * self.errors.shared,
            rest=factor**2 * self.errors.rest,
        )
        return FieldPosterior(mean=self.mean, variance=factor**2 * self.variance, errors=errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conditioned:
    """Rows of some kernels under every scale: what conditioning on them takes.

    Attributes:
        of_time: What power has of errors of time. Shape (K, C, C); ``None`` of times.
        inverse: Of the covariance of rows. Shape (K, L, n, n).
        ones: That times ones. Shape (K, L, n).
        total: The sum of that: precision of the level. Shape (K, L).
        precision: The inverse, the level unknown. Shape (K, L, n, n).
        log_det: Of what that is the inverse of, the level's included. Shape (K, L).
        residual: Rows less the mean curve. Shape (K, n).
        off: That less what is shared. Shape (K, n).
        odds: Of every scale. Shape (K, L).
        evidence: Logarithm of how likely the rows of each kernel are. Shape (K,).
    """

    rows: FieldRows
    of_time: Floats | None
    inverse: Floats
    ones: Floats
    total: Floats
    precision: Floats
    log_det: Floats
    residual: Floats
    off: Floats
    odds: Floats
    evidence: Floats

    def about(self, shared: Floats) -> "_Conditioned":
        """Return the same where all kernels share something. Shape (C,)."""
        off = self.residual - np.where(self.rows.real, shared[self.rows.setting], 0.0)
        squares = ((self.precision @ off[:, None, :, None])[..., 0] * off[:, None]).sum(-1)
        log_odds = _LOG_ODDS - 0.5 * (squares + self.log_det)
        evidence = log_sum(log_odds, 1)
        odds = np.exp(log_odds - evidence[:, None])
        return replace(self, off=off, odds=odds, evidence=evidence)


class Field:
    """A fitted field of one quantity.

    Args:
        coupled: Errors of the kernels' times, which power follows; ``None`` for a field of times.
    """

    def __init__(
        self,
        curves: Curves,
        grid: ClockGrid,
        rows: FieldRows,
        sizes: Sizes,
        coupled: Errors | None = None,
    ) -> None:
        self.rows, self.sizes = rows, sizes
        self._curves, self._coupled = curves, coupled
        near = matern(grid, sizes.length)
        free = _DRIVERS**2 * np.outer(grid.free, grid.free)
        self._shared_prior = curves.shared + sizes.shared**2 * near + free
        own = sizes.own**2 * curves.own + sizes.smooth**2 * near
        self._own_prior = own + np.diag(sizes.row**2 + sizes.free**2 * grid.free)
        count = len(rows.setting)
        some = np.unique(np.linspace(0, count - 1, min(count, _BATCH)).round().astype(np.int64))
        learned = self._settle(self._condition(some))
        self._all = learned if len(some) == count else None

    def _condition(self, kernels: Ints) -> _Conditioned:
        rows, sizes = self.rows.of(kernels), self.sizes
        at, real = rows.setting, rows.real
        both = real[:, :, None] & real[:, None, :]
        own = np.where(both, self._own_prior[at[:, :, None], at[:, None, :]], 0.0)
        noise = np.where(real, sizes.run**2 / np.maximum(rows.runs, 1e-9), 1.0)
        cov = SCALES[:, None, None] ** 2 * own[:, None]
        cov = cov + (noise[:, :, None] * np.eye(at.shape[1]))[:, None]
        of_time = None
        if self._coupled is not None:
            of_time = _of_time(self._coupled.of(kernels))
            cov = cov + np.where(both, _pairs(of_time, at), 0.0)[:, None]
        inverse = np.linalg.inv(cov)
        there = real.astype(np.float64)
        ones = (inverse @ there[:, None, :, None])[..., 0]
        total = (ones * there[:, None]).sum(axis=-1)
        precision = inverse - ones[..., :, None] * ones[..., None, :] / total[..., None, None]
        nothing = np.zeros(len(kernels))
        return _Conditioned(
            rows=rows,
            of_time=of_time,
            inverse=inverse,
            ones=ones,
            total=total,
            precision=np.where(both[:, None], precision, 0.0),
            log_det=np.linalg.slogdet(cov)[1] + np.log(total),
            residual=np.where(real, rows.log - self._curves.mean[at], 0.0),
            off=nothing,
            odds=nothing,
            evidence=nothing,
        ).about(np.zeros(len(self._shared_prior)))

    def _settle(self, given: _Conditioned) -> _Conditioned:
        """Find what is shared, and how far each kernel deviates, each told by the other."""
        at, count = given.rows.setting, len(self._shared_prior)
        for turn in range(_ROUNDS):
            precision = (given.odds[:, :, None, None] * given.precision).sum(axis=1)
            told = np.zeros((count, count))
            np.add.at(told, (at[:, :, None], at[:, None, :]), precision)
            drawn = np.zeros(count)
            np.add.at(drawn, at, (precision @ given.residual[..., None])[..., 0])
            left = np.eye(count) + self._shared_prior @ told
            self._shared_cov = np.linalg.solve(left, self._shared_prior)
            self._shared = self._shared_cov @ drawn
            if turn < _ROUNDS - 1:
                given = given.about(self._shared)
        # What is shared is its prior's covariance times this, so their product is its square.
        about = drawn - told @ self._shared
        self.evidence = float(
            given.evidence.sum() - 0.5 * self._shared @ about - 0.5 * np.linalg.slogdet(left)[1]
        )
        """Logarithm of how likely the rows are, what is shared at its likeliest."""
        return given.about(self._shared)

    def _batches(self) -> Iterator[_Conditioned]:
        """Yield what is known of all kernels, some at a time."""
        if self._all is not None:
            yield self._all
            return
        count = len(self.rows.setting)
        for first in range(0, count, _BATCH):
            kernels = np.arange(first, min(first + _BATCH, count))
            yield self._condition(kernels).about(self._shared)

    def predicted(self) -> "FieldPosterior":
        """Say what every entry is; where a row is, its own part too, as far as its runs tell it."""
        cov = 0.5 * (self._shared_cov + self._shared_cov.T)
        directions = _factor(cov[None], _SHARED)[0][0]
        means, variances, own, rest, shared = [], [], [], [], []
        for given in self._batches():
            for k in range(len(given.off)):
                mean, cov, told = self._kernel(given, k)
                at = given.rows.setting[k, given.rows.real[k]]
                moves = directions - told @ directions[at]
                factor, left = _factor(cov[1:], _OWN)
                means.append(mean)
                variances.append(np.diag(cov[0]) + (moves**2).sum(axis=1))
                own.append(factor[0])
                rest.append(left[0])
                shared.append(moves)
        common = np.array(shared)
        if self._coupled is not None:
            common = np.concatenate([self._coupled.shared, common], axis=2)
        errors = Errors(own=np.array(own), shared=common, rest=np.array(rest))
        return FieldPosterior(mean=np.array(means), variance=np.array(variances), errors=errors)

    def _kernel(self, given: _Conditioned, k: int) -> tuple[Floats, Floats, Floats]:
        """Say what the entries of the k-th of some kernels are."""
        real = np.flatnonzero(given.rows.real[k])
        at = given.rows.setting[k, real]
        likely = np.flatnonzero(given.odds[k] > _RELEVANT)
        odds = given.odds[k, likely] / given.odds[k, likely].sum()
        of_time = None if given.of_time is None else given.of_time[k]
        prior = SCALES[likely, None, None] ** 2 * self._own_prior
        if of_time is not None:
            prior = prior + of_time
        inverse = given.inverse[k][np.ix_(likely, real, real)]
        ones = given.ones[k][np.ix_(likely, real)]
        total = given.total[k, likely]
        gain = prior[:, :, at] @ inverse
        open_ = 1.0 - gain.sum(-1)
        cov = prior - gain @ prior[:, at, :]
        cov = cov + open_[:, :, None] * open_[:, None, :] / total[:, None, None]
        gain = gain + open_[..., None] * (ones / total[:, None])[:, None, :]
        each = self._curves.mean + self._shared + gain @ given.off[k, real]
        mean = odds @ each
        apart = each - mean
        whole = np.einsum("l,lcd->cd", odds, cov) + np.einsum("l,lc,ld->cd", odds, apart, apart)
        told = np.einsum("l,lcn->cn", odds, gain)
        energy = whole
        if of_time is not None:  # energy is time and power, and their errors make up for each other
            cross = -(of_time - of_time[:, at] @ told.T) / _COUPLED
            energy = whole + of_time / _COUPLED**2 + cross + cross.T
        return mean, np.stack([whole, energy]), told

    def left_out(self) -> "LeftOut":
        """Return how far each row is off what all others say, under every scale."""
        parts = [_left_out(given) for given in self._batches()]
        return LeftOut(
            told=np.concatenate([part.told for part in parts]),
            error=np.concatenate([part.error for part in parts]),
            variance=np.concatenate([part.variance for part in parts]),
            log_odds=np.concatenate([part.log_odds for part in parts]),
        )


def _left_out(given: _Conditioned) -> "LeftOut":
    """Return how far rows of some kernels are off what all others say."""
    real = given.rows.real
    told = real & (real.sum(axis=1, keepdims=True) > 1)
    precision = np.where(told[:, None], np.einsum("klii->kli", given.precision), 1.0)
    error = (given.precision @ given.off[:, None, :, None])[..., 0] / precision
    log_odds = np.log(np.maximum(given.odds, 1e-300))[:, :, None]
    log_odds = log_odds - 0.5 * (np.log(precision) - error**2 * precision)
    log_odds = log_odds - log_sum(log_odds, 1)[:, None]
    return LeftOut(told=told, error=error, variance=1.0 / precision, log_odds=log_odds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows against what all other rows say of them.

    Attributes:
        told: Which rows have others of their kernel. Shape (K, n).
        error: By how much each is off, under every scale. Shape (K, L, n).
        variance: Of that. Shape (K, L, n).
        log_odds: Of the scales, told by the others. Shape (K, L, n).
    """

    told: Bools
    error: Floats
    variance: Floats
    log_odds: Floats

    def moments(self) -> tuple[Floats, Floats]:
        """Return the errors and their variance, 0 and 1 where others say nothing. (K, n)."""
        odds = np.exp(self.log_odds)
        mean = (odds * self.error).sum(axis=1)
        variance = (odds * (self.variance + self.error**2)).sum(axis=1) - mean**2
        return np.where(self.told, mean, 0.0), np.where(self.told, variance, 1.0)

    def oddness(self, off: float) -> Floats:
        """Return by how much a disturbance makes rows likelier, as logarithms. Shape (K, n)."""
        likely = [
            log_sum(self.log_odds - 0.5 * (np.log(var) + self.error**2 / var), 1)
            for var in (self.variance, self.variance + off**2)
        ]
        return np.where(self.told, likely[1] - likely[0], -np.inf)


def _of_time(errors: Errors) -> Floats:
    """Return the covariance that power has of errors of its kernel's time. Shape (K, C, C)."""
    own, rest = errors.own, errors.rest
    cov: Floats = own @ own.swapaxes(1, 2) + rest[:, :, None] * np.eye(rest.shape[1])
    return _COUPLED**2 * cov


def log_sum(logs: Floats, axis: int) -> Floats:
    """Return the logarithm of a sum of what these are the logarithms of."""
    most = logs.max(axis=axis, keepdims=True)
    total: Floats = np.squeeze(most, axis) + np.log(np.exp(logs - most).sum(axis=axis))
    return total


def _pairs(cov: Floats, at: Ints) -> Floats:
    """Return the covariance of each kernel's rows. Shape (K, n, n)."""
    k = np.arange(len(at))[:, None, None]
    pairs: Floats = cov[k, at[:, :, None], at[:, None, :]]
    return pairs


def _factor(cov: Floats, most: int) -> tuple[Floats, Floats]:
    """Split covariances into a few directions and what is left on the diagonal."""
    values, vectors = np.linalg.eigh(cov)
    values = np.clip(values[:, ::-1][:, :most], 0.0, None)
    factor = vectors[:, :, ::-1][:, :, :most] * np.sqrt(values)[:, None, :]
    whole = np.einsum("kcc->kc", cov)
    rest: Floats = np.clip(whole - (factor**2).sum(-1), 0.0, None)
    return factor, rest
