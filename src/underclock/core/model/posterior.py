"""Costs of every kernel at every setting after rows: what is expected, and joint errors.

Errors are the columns of a factor. Some are directions that all kernels share; the rest are draws
of what is each kernel's own, over the root of their number. So a variance is a sum of squares, what
a power limit makes of costs is worked out column by column, and a draw is a sum of columns.

Shape letters: K kernels, C settings, n rows of a kernel, P parameters of a kernel, S shared
parameters, H shared columns, E columns: H shared and D drawn; a leading 2 is time and power.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.model.conditioning import (
    COUPLED,
    SCALES,
    Conditioned,
    Features,
    Model,
    coupled,
    loadings,
    own_variance,
)
from underclock.core.model.observed import evenly, is_at
from underclock.records import Clocks

_SHARED = 16, 64  # columns of what all kernels share, at least and at most
_MOST, _FEWEST = 256, 32  # draws
_CELLS = 2**23  # kernels times settings times columns or draws, twice: bounds the memory
_RELEVANT = 1e-4  # odds of a scale that is worth a prediction
_BATCH = 128  # kernels, conditioned at once
_MANY, _ROWS_OF_MANY = 512, 24  # kernels, from which on so many rows of each are enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Costs of one launch, as logarithms, with their errors."""

    settings: tuple[Clocks, ...]  # length C
    log: Floats  # expected log time in s and log power in W, (2, K, C)
    moves: Floats  # columns of errors, (2, K, C, E)
    shared: int  # how many of them all kernels share: H
    noise: Floats  # standard deviation of a measurement of each kernel, (2, K)
    parameters: Floats  # what the kernels' parameters are more than was fitted, (K, P)
    parameter_moves: Floats  # columns of their errors, (K, P, E)
    gpu: Floats  # what the shared parameters are more than was fitted, (S,)
    gpu_moves: Floats  # columns of their errors, which all kernels share, (S, H)
    # deviations of log time and log power that all kernels at a setting share besides, (2, C)
    of_setting: Floats

    @property
    def log_s(self) -> Floats:
        """Expected log time in s. Shape (K, C)."""
        return np.asarray(self.log[0])

    @property
    def log_w(self) -> Floats:
        """Expected log power in W. Shape (K, C)."""
        return np.asarray(self.log[1])

    def costs(self, counts: Floats) -> tuple[Floats, Floats]:
        """Return expected time in s and energy in J of so many launches, (K,). Shapes (K, C)."""
        time_s: Floats = np.exp(self.log[0]) * counts[:, None]
        energy_j: Floats = np.exp(self.log.sum(axis=0)) * counts[:, None]
        return time_s, energy_j

    def variance(self, time: float, power: float) -> Floats:
        """Return the variance of time·log s + power·log W of every entry. Shape (K, C)."""
        moved = time * self.moves[0] + power * self.moves[1]
        variance: Floats = np.einsum("kce,kce->kc", moved, moved)
        return variance

    def of_first(self, kernels: int) -> "Posterior":
        """Return what is said of the first kernels only."""
        return dataclasses.replace(
            self,
            log=self.log[:, :kernels],
            moves=self.moves[:, :kernels],
            noise=self.noise[:, :kernels],
            parameters=self.parameters[:kernels],
            parameter_moves=self.parameter_moves[:kernels],
        )

    def drawn(self, most: int, seed: int) -> Floats:
        """Return how far draws of log time and log power are off, in pairs of opposites.

        Returns:
            Shape (D, 2, K, C).
        """
        own = self.moves[..., self.shared :]
        draws = own.shape[-1]
        first = np.arange(min(most, draws) // 2)
        random = np.random.default_rng(seed)
        half = random.standard_normal((len(first), self.shared))
        normal, pairs = np.concatenate([half, -half]), np.concatenate([first, first + draws // 2])
        off = self.moves[..., : self.shared] @ normal.T + math.sqrt(draws) * own[..., pairs]
        off = np.ascontiguousarray(np.moveaxis(off, -1, 0))
        of_setting = self.of_setting * random.standard_normal((len(first), 2, off.shape[-1]))
        off += np.concatenate([of_setting, -of_setting])[:, :, None]
        return off


def posterior_of(
    model: Model,
    shared: tuple[Floats, Floats],
    settings: tuple[Clocks, ...],
    wider: tuple[float, float] = (1.0, 1.0),
) -> Posterior:
    """Say what every entry is; where a row is, its own part too, as far as its runs tell it.

    Args:
        shared: What all kernels share: mean and covariance. Shapes (H',) and (H', H').
        settings: Those that the model's targets are. Length C.
        wider: Factors by which standard deviations of time and of energy are greater.
    """
    (mean, cov), prior, sizes, targets = shared, model.prior, model.sizes, model.targets
    observed = model.observed
    if observed.residual.shape[1] > _MANY:
        some_rows = evenly(observed.residual.shape[2], _ROWS_OF_MANY)
        observed = observed.some(np.arange(observed.residual.shape[1]), some_rows)
        model = dataclasses.replace(model, observed=observed)
    features = Features.of(observed, targets, sizes.length)
    directions, of_setting = _directions(model, features, cov)
    kernels, columns = observed.residual.shape[1], np.arange(observed.residual.shape[2])
    count, size = len(settings), prior.spread.shape[1]
    draws = int(np.clip(_CELLS // max(1, targets.log.size), _FEWEST, _MOST)) // 2 * 2
    expected = np.empty((2 * count + size, kernels))
    moves = np.empty((kernels, 2 * count + size, directions.shape[1] + draws))
    random = np.random.default_rng(count)
    for first in range(0, kernels, _BATCH):
        some = np.arange(first, min(first + _BATCH, kernels))
        part = Features(features.settings, (features.rows[0][some], features.rows[1][some]))
        given = Conditioned.of(observed.some(some, columns), part, prior.of(some), sizes)
        given = given.about(mean, cov)
        for k in some.tolist():
            kernel = _Kernel(model, features.settings, k)
            expected[:, k], moves[k] = kernel.after(given, k - first, directions, draws, random)
            time, power = moves[k, :count], moves[k, count : 2 * count]
            power[:] = wider[1] * (time + power) - wider[0] * time
            time *= wider[0]
    return Posterior(
        settings=settings,
        log=targets.log + expected[: 2 * count].reshape(2, count, kernels).swapaxes(1, 2),
        moves=moves[:, : 2 * count].reshape(kernels, 2, count, -1).swapaxes(0, 1),
        shared=directions.shape[1],
        noise=observed.noise(np.array(sizes.run)),
        parameters=expected[2 * count :].T,
        parameter_moves=moves[:, 2 * count :],
        gpu=prior.shared + prior.shared_root @ mean[: len(prior.shared)],
        gpu_moves=prior.shared_root @ directions[: len(prior.shared)],
        of_setting=of_setting * np.array(wider)[:, None],
    )


def _directions(model: Model, features: Features, cov: Floats) -> tuple[Floats, Floats]:
    """Return the directions of what is shared that move costs most, and what the rest move.

    Returns:
        Shape (H', H); standard deviations of log time and log power at each setting, (2, C).
    """
    targets = model.targets
    some = np.arange(0, targets.log.shape[1], max(1, targets.log.shape[1] // _BATCH))
    by = targets.by_kernel[:, some], targets.by_shared[:, some]
    free, prior = targets.free.astype(np.float64)[None], model.prior.of(some)
    time, power = features.settings
    none = np.zeros((1, len(time), model.observed.visits.shape[-1]))
    shared = loadings(by, (time[None], power[None]), free, none, model.sizes, prior)[1]
    values, vectors = np.linalg.eigh(0.5 * (cov + cov.T))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    moved = (shared @ root).reshape(-1, len(cov))
    columns = int(np.clip(_CELLS // max(1, targets.log.size), *_SHARED))
    kept = np.linalg.eigh(moved.T @ moved)[1][:, : -columns - 1 : -1]
    rest = np.square(moved).sum(axis=1) - np.square(moved @ kept).sum(axis=1)
    rest = np.maximum(rest.reshape(len(some), -1).mean(axis=0), 0.0)
    lacking = np.stack([1.0 - np.square(each).sum(axis=1) for each in features.settings])
    unseen = np.square(model.sizes.shared)[:, None] * np.maximum(lacking, 0.0)
    return root @ kept, np.sqrt(rest.reshape(2, -1) + unseen)


class _Kernel:
    """A kernel's entries, times before powers, and its parameters after them: 2 C + P in all.

    Args:
        features: Of the settings' clocks, for time and for power. Shapes (C, M).
    """

    def __init__(self, model: Model, features: tuple[Floats, Floats], kernel: int) -> None:
        observed, targets, prior = model.observed, model.targets, model.prior.of(np.array([kernel]))
        by = targets.by_kernel[:, [kernel]], targets.by_shared[:, [kernel]]
        free = targets.free.astype(np.float64)
        here = features[0][None], features[1][None]
        none = np.zeros((1, len(free), observed.visits.shape[-1]))
        by_kernel, by_shared = loadings(by, here, free[None], none, model.sizes, prior)
        size = prior.spread.shape[1]
        parameters = np.diag(prior.spread[0])
        raw, physics = (np.concatenate([each[0, 0], each[1, 0]]) for each in by)
        moved = raw @ prior.kernels[0] + physics @ prior.shared
        self._expected = np.concatenate([moved, prior.kernels[0]])
        self._by_kernel = np.concatenate([by_kernel[0], parameters])
        self._shared = np.pad(by_shared[0], ((0, size), (0, 0)))
        self._features, self._sizes = features, model.sizes
        self._own = own_variance(model.sizes, free)
        self._rows_own = own_variance(model.sizes, observed.free[kernel].astype(np.float64))
        self._at = is_at(observed, targets, kernel)

    def after(
        self,
        given: Conditioned,
        k: int,
        directions: Floats,
        draws: int,
        random: np.random.Generator,
    ) -> tuple[Floats, Floats]:
        """Return what is expected after rows, (2 C + P,), and columns of errors, (2 C + P, E).

        Draws are Matheron's: of the prior, moved by what rows say of them.

        Args:
            k: Which kernel of those that ``given`` is of.
        """
        real = np.flatnonzero(given.real[k])
        by_rows = given.by_kernel[k][real]
        # Entries and rows at the same place have its own part in common.
        time, power = (
            size**2 * here @ there[k].T + own[:, None] * self._at.T
            for size, here, there, own in zip(
                self._sizes.smooth, self._features, given.features, self._own, strict=True
            )
        )
        smooth = np.zeros((len(self._expected), len(real)))
        smooth[: 2 * len(time)] = coupled(time, power)[:, real]
        likely = np.flatnonzero(given.odds[k] > _RELEVANT)
        odds = given.odds[k, likely] / given.odds[k, likely].sum()
        physics = self._by_kernel @ by_rows.T
        inverses = given.inverse[k][np.ix_(likely, real, real)]
        gains = [
            (physics + SCALES[scale] ** 2 * smooth) @ inverse
            for scale, inverse in zip(likely.tolist(), inverses, strict=True)
        ]
        off, by_shared = given.left(given.shared)[k, real], given.by_shared[k][real]
        each = np.array([gain @ off for gain in gains])
        known = np.tensordot(odds, np.array(gains), 1)
        expected = self._expected + self._shared @ given.shared + odds @ each
        common = (self._shared - known @ by_shared) @ directions
        which = random.choice(len(likely), size=draws // 2, p=odds)
        own, own_rows = self._before(SCALES[likely[which]], given, k, random)
        noise = np.sqrt(given.noise[k][likely[which]][:, real])
        away = own_rows[:, real] + noise * random.standard_normal(noise.shape)
        for i, gain in enumerate(gains):
            of = which == i
            own[of] -= away[of] @ gain.T
        # Draws come in pairs of opposites, about what their scale expects.
        about = (each - odds @ each)[which]
        columns = np.concatenate([about + own, about - own]) / math.sqrt(draws)
        return expected, np.concatenate([common, columns.T], axis=1)

    def _before(
        self, scales: Floats, given: Conditioned, k: int, random: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """Draw what is the kernel's own before rows: of entries, (D, 2 C + P), of rows, (D, q)."""
        draws = len(scales)
        parameters = random.standard_normal((draws, self._by_kernel.shape[1]))
        entries, rows = [], []
        for q in (0, 1):
            here, there = self._features[q], given.features[q][k]
            weights = self._sizes.smooth[q] * random.standard_normal((draws, here.shape[1]))
            places = np.sqrt(self._own[q]) * random.standard_normal((draws, len(here)))
            apart = np.sqrt(self._rows_own[q]) * random.standard_normal((draws, len(there)))
            of_rows = np.where(self._at.any(axis=1), places @ self._at.T, apart)
            entries.append(scales[:, None] * (weights @ here.T + places))
            rows.append(scales[:, None] * (weights @ there.T + of_rows))
        own = parameters @ self._by_kernel.T
        own_rows = parameters @ given.by_kernel[k].T
        for all_of, (time, power) in ((own, entries), (own_rows, rows)):
            count = time.shape[1]
            all_of[:, :count] += time
            all_of[:, count : 2 * count] += power - COUPLED * time
        return own, own_rows


def opposite(random: np.random.Generator, draws: int, *shape: int) -> Floats:
    """Return columns of errors, each entry's own, in pairs of opposites. Shape (..., D)."""
    half = random.standard_normal((*shape, draws // 2)) / math.sqrt(draws)
    return np.concatenate([half, -half], axis=-1)
