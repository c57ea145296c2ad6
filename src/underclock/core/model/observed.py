"""Rows as the linear model sees them: residuals of the physics, and derivatives by its parameters.

Around the physics that was fitted everything is linear and normal in logarithms. Runs of a kernel
at one clock pair are one row, their mean; how runs scatter about it is noise of the kernel's own.

Shape letters: K kernels, n rows of the kernel with most (padded), C settings, P parameters of a
kernel, S shared parameters, N runs; a leading 2 is time and power.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.parameters import Points, Runs, predicted_rows

_USUAL_RUNS = 3.0  # a kernel's noise of runs leans on other kernels' as on this many of its own
_HARDLY = 1e-4  # what a disturbed row counts for
_AS_ONE = 1e-9  # core clocks so close, as a part, are one setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Where costs are asked for."""

    core_mhz: Floats  # of each setting, (C,)
    mem_mhz: Floats  # (C,)
    free: Bools  # where the driver chooses the core clock, (C,)
    log: Floats  # what the physics says, (2, K, C)
    by_kernel: Floats  # how that moves with the kernels' parameters, (2, K, C, P)
    by_shared: Floats  # with the shared ones, (2, K, C, S)

    @classmethod
    def of(
        cls, model: FittedModel, clocks: tuple[Floats, Floats], free: Bools, temperature_c: float
    ) -> "Targets":
        """Look at the physics at core and memory clocks, each of shape (C,)."""
        kernels, many = len(model.parameters.kernels), len(free)
        physics = predicted_rows(
            model.parameters,
            Points(
                kernel=np.repeat(np.arange(kernels), many),
                core_mhz=np.tile(clocks[0], kernels),
                mem_mhz=np.tile(clocks[1], kernels),
                temperature_c=np.full(kernels * many, temperature_c),
            ),
        )
        shape = 2, kernels, many
        return cls(
            core_mhz=clocks[0],
            mem_mhz=clocks[1],
            free=free,
            log=physics.log.reshape(shape),
            by_kernel=physics.by_kernel().reshape(*shape, model.prior.spread.shape[1]),
            by_shared=physics.by_shared().reshape(*shape, len(model.prior.shared)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Rows of every kernel, about the physics."""

    log: Floats  # means as measured, (2, K, n)
    residual: Floats  # these less what was fitted, (2, K, n)
    windows: Floats  # how many usual windows each row stands for; 0 pads, (2, K, n)
    core_mhz: Floats  # (K, n)
    mem_mhz: Floats  # (K, n)
    free: Bools  # (K, n)
    by_kernel: Floats  # derivatives, (2, K, n, P)
    by_shared: Floats  # (2, K, n, S)
    squares: Floats  # sum of squares of runs about their rows, (2, K)
    freedom: Floats  # degrees of freedom of that, (2, K)
    unknown: Bools  # whose noise no repeat shows: it may be large where rows deviate, (2, K)
    visits: Floats  # by which log power of all rows of a visit is off alike, (K, n, V)

    @classmethod
    def of(cls, model: FittedModel, runs: Runs, kernels: int, *, alike: bool = False) -> "Observed":
        """Join runs at one clock pair, and compare rows with the physics.

        Args:
            alike: Whether kernels without repeats scatter as the rest does: windows of one GPU.
        """
        # Each row's kernel and place among the kernel's rows, and which row each run is of.
        free = np.zeros(len(runs.kernel), dtype=bool) if runs.free is None else runs.free
        clocks = np.stack([runs.kernel, runs.core_mhz, runs.mem_mhz, free])
        unique, row = np.unique(clocks, axis=1, return_inverse=True)
        of_kernel = unique[0].astype(np.int64)
        place = of_kernel, np.arange(len(of_kernel)) - np.searchsorted(of_kernel, of_kernel)
        row = row.ravel()
        physics = predicted_rows(model.parameters, runs)
        # Runs of a row were not all as warm: each is compared with the physics as warm as it was.
        off = runs.log - physics.log
        weights = np.array([np.bincount(row, of) for of in runs.windows])
        logs, means = (
            np.array(
                [np.bincount(row, of * each) for of, each in zip(runs.windows, q, strict=True)]
            )
            / np.maximum(weights, 1e-300)
            for q in (runs.log, off)
        )
        first = np.unique(row, return_index=True)[1]
        kernel = runs.kernel[first]
        squares, freedom = np.zeros((2, 2, kernels))
        for q, (of, each) in enumerate(zip(runs.windows, off, strict=True)):
            off2 = of * (each - means[q][row]) ** 2
            spare = np.maximum(np.bincount(row, of) - 1.0, 0.0) * (np.bincount(row, of > 0.0) > 1)
            squares[q] = np.bincount(runs.kernel, off2 * (spare > 0.0)[row], minlength=kernels)
            freedom[q] = np.bincount(kernel, spare, minlength=kernels)

        def padded(values: Floats, fill: float = 0.0) -> Floats:
            """Spread what belongs to rows, (..., rows, ...), over kernels: (2, K, n, ...)."""
            many = int(place[1].max()) + 1
            spread = np.full((values.shape[0], kernels, many, *values.shape[2:]), fill)
            spread[:, kernel, place[1]] = values
            return spread

        return cls(
            log=padded(logs),
            residual=padded(means),
            windows=padded(weights),
            core_mhz=padded(runs.core_mhz[None, first], 1.0)[0],
            mem_mhz=padded(runs.mem_mhz[None, first], 1.0)[0],
            free=padded(free[None, first].astype(np.float64))[0] > 0.0,
            by_kernel=padded(physics.by_kernel()[:, first]),
            by_shared=padded(physics.by_shared()[:, first]),
            squares=squares,
            freedom=freedom,
            unknown=(freedom == 0.0) & (not alike),
            visits=padded(np.zeros((1, len(first), 0)))[0],
        )

    def with_visits(self, targets: Targets, errors: Floats) -> "Observed":
        """Return the same whose rows have a setting's errors of log power. Shape (C, V)."""
        at = np.array([is_at(self, targets, k) for k in range(len(self.core_mhz))])
        return dataclasses.replace(self, visits=at @ errors)

    @property
    def real(self) -> Bools:
        """Which rows say something of each quantity. Shape (2, K, n)."""
        there: Bools = self.windows > 0.0
        return there

    def counted(self, targets: Targets) -> Bools:
        """Return which settings have a row that counts. Shape (K, C)."""
        counts = self.windows.min(axis=0) > _HARDLY
        at = [row @ is_at(self, targets, k) for k, row in enumerate(counts)]
        return np.array(at).reshape(len(counts), -1)

    def without(self, odd: Bools) -> "Observed":
        """Return the same where some rows, (K, n), hardly count."""
        return dataclasses.replace(self, windows=np.where(odd, _HARDLY, 1.0) * self.windows)

    def noise(self, usual: Floats) -> Floats:
        """Return the standard deviation of a run of each kernel, by its own repeats. Shape (2, K).

        Most kernels repeat to 0.03 %, some to 1.5 %: each kernel's scatter counts for itself, and
        leans on the usual one where it was not repeated (an inverse gamma prior).

        Args:
            usual: Of time and power. Shape (2,).
        """
        variance = _USUAL_RUNS * usual[:, None] ** 2 + self.squares
        noise: Floats = np.sqrt(variance / (_USUAL_RUNS + self.freedom))
        return noise

    def scatter_evidence(self, usual: Floats) -> float:
        """Return the logarithm of how likely the scatter within rows is, but a constant."""
        prior = _USUAL_RUNS * usual[:, None] ** 2
        logs = (_USUAL_RUNS + self.freedom) * np.log(prior + self.squares)
        return -0.5 * float((logs - _USUAL_RUNS * np.log(prior)).sum())

    def spread(self, most: int) -> Ints:
        """Return at most so many kernels, evenly from short to long, however they are listed."""
        order = self.log[0].sum(axis=1).argsort(kind="stable")
        return np.sort(order[evenly(len(order), most)])

    def some(self, kernels: Ints, columns: Ints) -> "Observed":
        """Return some rows of some kernels."""
        of_kernels = {
            name: getattr(self, name)[:, kernels] for name in ("squares", "freedom", "unknown")
        }
        pairs = {
            name: getattr(self, name)[np.ix_(kernels, columns)]
            for name in ("core_mhz", "mem_mhz", "free", "visits")
        }
        both = {
            name: getattr(self, name)[:, kernels][:, :, columns]
            for name in ("log", "residual", "windows", "by_kernel", "by_shared")
        }
        return dataclasses.replace(self, **of_kernels, **pairs, **both)


def evenly(count: int, most: int) -> Ints:
    """Return at most so many of the numbers from 0, evenly. Ascending."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def is_at(observed: Observed, targets: Targets, kernel: int) -> Bools:
    """Return which rows of a kernel are at which settings. Shape (n, C)."""
    core, free = observed.core_mhz[kernel, :, None], observed.free[kernel, :, None]
    same = np.abs(core - targets.core_mhz) <= _AS_ONE * core
    same &= (observed.mem_mhz[kernel, :, None] == targets.mem_mhz) & (free == targets.free)
    real = np.asarray(observed.real[:, kernel].any(axis=0))
    at: Bools = same & real[:, None]
    return at
