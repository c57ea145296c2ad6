"""Rows, clocks and costs as the linear model has them, made up without any physics."""

from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.conditioning import Features, Model, Sizes
from underclock.core.model.most_likely import ParameterPrior
from underclock.core.model.observed import Observed, Targets
from underclock.core.model.posterior import Posterior
from underclock.records import Clocks

SIZES = Sizes(smooth=(0.02, 0.03), shared=(0.02, 0.05), row=(0.01, 0.02), run=(0.002, 0.004))
P, S = 2, 2  # parameters of a kernel, and of the GPU
CORES = np.array([600.0, 800.0, 1000.0, 1300.0, 1600.0, 1900.0])
MEMS = np.array([5001.0, 9251.0])
FREED_S, COUPLED, DRIVERS = 0.005, 0.5, 0.1  # as in `conditioning`


@dataclass(frozen=True)
class Places:
    """Rows and entries side by side, N of them, each time before each power."""

    kernel: Ints
    spot: Ints
    free: Floats
    features: tuple[Floats, Floats]
    by_kernel: Floats
    by_shared: Floats

    def covariance(
        self, prior: ParameterPrior, sizes: Sizes, scale: float, shared: float
    ) -> Floats:
        """Return the covariance of all of them, (2 N, 2 N); ``shared`` is 1 if that is unknown."""
        same = (self.kernel[:, None] == self.kernel).astype(np.float64)
        at = (self.spot[:, None] == self.spot) * same
        driven = DRIVERS**2 * np.outer(self.free, self.free)
        root = prior.shared_root @ prior.shared_root.T
        cov = np.zeros((2, len(same), 2, len(same)))
        for q in (0, 1):
            for r in (0, 1):
                by, spread2 = self.by_kernel, prior.spread[self.kernel] ** 2
                cov[q, :, r] += same * ((by[q] * spread2) @ by[r].T)
                cov[q, :, r] += shared * (self.by_shared[q] @ root @ self.by_shared[r].T)
        for q in (0, 1):
            alike = self.features[q] @ self.features[q].T
            own = (
                sizes.smooth[q] ** 2 * alike
                + np.diag(sizes.row[q] ** 2 + FREED_S**2 * self.free) @ at
            )
            deviation = scale**2 * same * own + shared * sizes.shared[q] ** 2 * alike
            cov[q, :, q] += deviation + shared * driven
            if q == 0:  # power is lower where time is longer, but for what the driver does
                cov[0, :, 1] -= COUPLED * deviation
                cov[1, :, 0] -= COUPLED * deviation
                cov[1, :, 1] += COUPLED**2 * deviation
        return cov.reshape(2 * len(same), 2 * len(same))

    def expected(self, prior: ParameterPrior) -> Floats:
        """Return the mean before any row. Shape (2 N,)."""
        own = np.einsum("qnp,np->qn", self.by_kernel, prior.kernels[self.kernel])
        expected: Floats = (own + self.by_shared @ prior.shared).ravel()
        return expected


def made_model(seed: int, kernels: int = 3, rows: int = 10, *, sizes: Sizes = SIZES) -> Model:
    """Return a model of random derivatives, whose rows are at random settings; the last is free.

    The first kernel has a row less than all others. Of every other kernel noise is unknown.
    """
    random, spots = np.random.default_rng(seed), len(CORES) * len(MEMS) + 1
    core = np.append(np.tile(CORES, len(MEMS)), CORES[-1])
    mem = np.append(np.repeat(MEMS, len(CORES)), MEMS[-1])
    free = np.arange(spots) == spots - 1
    targets = Targets(
        core_mhz=core,
        mem_mhz=mem,
        free=free,
        log=random.normal(0.0, 1.0, (2, kernels, spots)),
        by_kernel=random.normal(0.0, 1.0, (2, kernels, spots, P)),
        by_shared=random.normal(0.0, 1.0, (2, kernels, spots, S)),
    )
    at = np.stack([random.choice(spots, rows, replace=False) for _ in range(kernels)])
    every, windows = np.arange(kernels)[:, None], np.ones((2, kernels, rows))
    windows[:, 0, -1] = 0.0
    observed = Observed(
        log=targets.log[:, every, at],
        residual=np.zeros((2, kernels, rows)),
        windows=windows * np.array([1.0, 2.0])[:, None, None],
        core_mhz=core[at],
        mem_mhz=mem[at],
        free=free[at],
        by_kernel=targets.by_kernel[:, every, at],
        by_shared=targets.by_shared[:, every, at],
        squares=np.zeros((2, kernels)),
        freedom=np.zeros((2, kernels)),
        unknown=np.tile(np.arange(kernels) % 2 == 1, (2, 1)),
        visits=np.zeros((kernels, rows, 0)),
    )
    prior = ParameterPrior(
        kernels=random.normal(0.0, 0.02, (kernels, P)),
        spread=random.uniform(0.01, 0.03, (kernels, P)),
        shared=random.normal(0.0, 0.02, S),
        shared_root=0.02 * np.tril(random.uniform(0.5, 1.0, (S, S))),
    )
    return Model(observed=observed, targets=targets, prior=prior, sizes=sizes)


def places_of(model: Model, features: Features) -> tuple[Places, Ints, Bools]:
    """Return rows, kernel by kernel, then entries; the spot of each row; which rows are real."""
    observed, targets = model.observed, model.targets
    kernels, rows = observed.core_mhz.shape
    spots = len(targets.core_mhz)
    same = observed.core_mhz[..., None] == targets.core_mhz
    same &= (observed.mem_mhz[..., None] == targets.mem_mhz) & (
        observed.free[..., None] == targets.free
    )
    spot = same.argmax(axis=2)

    def side_by_side(of_rows: Floats, of_entries: Floats) -> Floats:
        return np.concatenate(
            [of_rows.reshape(2, kernels * rows, -1), of_entries.reshape(2, kernels * spots, -1)], 1
        )

    of_time, of_power = (
        np.concatenate([rows.reshape(kernels * rows.shape[1], -1), np.tile(settings, (kernels, 1))])
        for rows, settings in zip(features.rows, features.settings, strict=True)
    )
    places = Places(
        kernel=np.concatenate([np.repeat(np.arange(kernels), n) for n in (rows, spots)]),
        spot=np.concatenate([spot.ravel(), np.tile(np.arange(spots), kernels)]),
        free=np.concatenate([observed.free.ravel(), np.tile(targets.free, kernels)]).astype(float),
        features=(of_time, of_power),
        by_kernel=side_by_side(observed.by_kernel, targets.by_kernel),
        by_shared=side_by_side(observed.by_shared, targets.by_shared),
    )
    return places, spot, observed.real[0].ravel()


def made_posterior(seed: int, *, size: float = 0.02, kernels: int = 4) -> Posterior:
    """Return costs that rise and fall with clocks as they do, with random errors."""
    random = np.random.default_rng(seed)
    core, mem = np.tile(CORES, len(MEMS)) / CORES[-1], np.repeat(MEMS, len(CORES)) / MEMS[-1]
    log_s = random.uniform(-7.0, -5.0, (kernels, 1)) - random.uniform(
        0.3, 1.0, (kernels, 1)
    ) * np.log(core)
    log_w = 5.0 + random.uniform(0.5, 2.0, (kernels, 1)) * np.log(core) + 0.1 * np.log(mem)
    log_w = log_w + random.uniform(-0.2, 0.2, (kernels, 1))
    moves = size * random.normal(0.0, 1.0, (2, kernels, len(core), 3 + 64))
    moves[..., 3:] /= 8.0
    return Posterior(
        settings=tuple(
            Clocks(core_mhz=int(c), mem_mhz=int(m)) for m in MEMS.tolist() for c in CORES.tolist()
        ),
        log=np.stack([log_s - 0.1 * np.log(mem), log_w]),
        moves=moves,
        shared=3,
        noise=random.uniform(0.001, 0.01, (2, kernels)),
        parameters=np.zeros((kernels, P)),
        parameter_moves=np.zeros((kernels, P, 3 + 64)),
        gpu=np.zeros(S),
        of_setting=np.zeros((2, len(core))),
        gpu_moves=np.zeros((S, 3)),
    )
