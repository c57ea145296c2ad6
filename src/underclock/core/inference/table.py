"""A table of runs as costs of every setting, with their errors.

The best of many predictions is one that flatters. By how much, rows tell that are left out: each is
predicted by all others, of each kernel the best is chosen at many prices of time, and what was
measured there is held against what was said. Sums of chosen rows are off by more than their errors,
and to one side; both are taken over to entries without a row.

Shape letters: K kernels, n rows of a kernel.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.inference.curves import ClockGrid, Curves, power_curves, time_curves
from underclock.core.inference.field import Errors, Field, FieldPosterior, FieldRows, Sizes
from underclock.core.inference.joint import JointCosts
from underclock.core.inference.runs import (
    RunLogs,
    first_weights,
    mean_rows,
    reweighed,
    scatter_within,
    without_odd,
)
from underclock.core.inference.sizes import likeliest
from underclock.core.model.row_runs import odd_repeats
from underclock.core.step.table import (
    CostTable,
    cost_table,
    overlapped,
    waited_counts,
)
from underclock.records import Clocks, SampleSet

_TWO_SIDED = 1.96  # deviations, within which 95 % of errors lie
# Of single times more of the rows left out lie within as many: what kernels share, and how large
# parts are, these rows told as well.
_INSIDE, _INSIDE_ALONE = 0.95, 0.97
_PRICES = np.geomspace(0.05, 20.0, 25)  # of time in energy, both as fractions


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimism:
    """By how much chosen entries flatter; time, energy.

    Attributes:
        deviations: How many standard deviations they cost more than predicted, not below zero.
        wider: By how much sums of them are off more than their errors say, not below one.
    """

    deviations: tuple[float, float] = (0.0, 0.0)
    wider: tuple[float, float] = (1.0, 1.0)


def optimism(
    time_rows: FieldRows,
    power_rows: FieldRows,
    time: tuple[Floats, Floats],
    power: tuple[Floats, Floats],
) -> Optimism:
    """Learn from rows that are left out how much choosing flatters.

    Args:
        time: How far each row is off what others say of its log time, and the variance of that.
    """
    if (time_rows.real.sum(axis=1) == 1).all():
        return Optimism()
    (time_off, time_variance), (power_off, power_variance) = time, power
    told = time_rows.log - time_off, power_rows.log - power_off
    off = time_off, time_off + power_off
    # A time too long goes with a power too low: what power's variance has of it, energy's has too.
    variance = time_variance, power_variance
    deviations, wider = [], []
    picks = [_best(told[0] + told[1] + price * told[0], time_rows) for price in _PRICES]
    for each, var in zip(off, variance, strict=True):
        chosen = [(each[pick], var[pick]) for pick in picks]
        ahead = float(np.mean([o.sum() / np.sqrt(v).sum() for o, v in chosen]))
        deviations.append(max(ahead, 0.0))
        wider.append(_wider(chosen, deviations[-1]))
    return Optimism(deviations=(deviations[0], deviations[1]), wider=(wider[0], wider[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """By how much errors are greater than told, as rows that are left out show; at least one.

    Attributes:
        time: Of the log time of a single entry.
        energy: Of its log energy.
        sums: Of sums of entries, over that of single ones: time, energy.
    """

    time: float
    energy: float
    sums: tuple[float, float]

    @classmethod
    def learned(cls, time: tuple[Floats, Floats], power: tuple[Floats, Floats]) -> "Beyond":
        """Learn it of rows.

        Args:
            time: How far each is off what others say of its log time, and the variance of that.
            power: The same of log power.
        """
        told = time[1] != 1.0
        times = (time[0] ** 2 / time[1])[told]
        energies = ((time[0] + power[0]) ** 2 / power[1])[told]
        alone, together = _factor(times, _INSIDE_ALONE), _factor(times, _INSIDE)
        return cls(time=alone, energy=_factor(energies, _INSIDE), sums=(together / alone, 1.0))


def _factor(squares: Floats, inside: float) -> float:
    """Return by how much wider errors must be told for so many to lie in their 95 % interval.

    Args:
        squares: Of errors over what was told of them.
    """
    beyond = float(np.quantile(squares, inside)) if len(squares) else 0.0
    return max(1.0, math.sqrt(beyond) / _TWO_SIDED)


def _best(merit: Floats, rows: FieldRows) -> tuple[Ints, Ints]:
    kernels = np.flatnonzero(rows.real.sum(axis=1) > 1)
    at = np.where(rows.real, merit, np.inf)[kernels].argmin(axis=1)
    return kernels, at


def _wider(chosen: list[tuple[Floats, Floats]], deviations: float) -> float:
    """Return by how much sums are off more than their errors say."""
    squares = []
    for off, variance in chosen:
        left = off - deviations * np.sqrt(variance)
        squares += [
            float(left.sum() ** 2 / variance.sum()),
            float((left**2).sum() / variance.sum()),
        ]
    return max(1.0, float(np.sqrt(np.mean(squares))))


_ROUNDS = 4  # of weights of runs and fields, each told by the other
_SETTLED = 0.05  # of a usual run


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """What runs say of every entry.

    Attributes:
        time: Of log time in s.
        power: Of log power in W; its errors are those of energy.
        sums: By how much sums are off, over what errors of entries say: time, energy.
        optimism: What choosing among entries without a row adds to that.
        sizes: How large the parts of both fields are.
    """

    time: FieldPosterior
    power: FieldPosterior
    sums: tuple[float, float]
    optimism: Optimism
    sizes: tuple[Sizes, Sizes]

    @property
    def of_sums(self) -> tuple[Errors, Errors]:
        """Errors of time and of energy as sums of entries have them."""
        time, energy = self.sums
        return self.time.widened(time).errors, self.power.widened(energy).errors


def inferred(runs: RunLogs, grid: ClockGrid, sizes: tuple[Sizes, Sizes] | None = None) -> Inferred:
    """Infer every entry from runs.

    Args:
        sizes: How large the parts of both fields are; by default that is learned.
    """
    learn = sizes is None
    curve = time_curves(grid)
    curves = curve, power_curves(grid, curve.mean)
    weights = first_weights(runs)
    fields = _Fields.of(runs, weights, grid, curves, sizes, learn=learn)
    if runs.single:
        # Sizes stay as rows that may be odd make them: learned without, they find more rows odd.
        weights = without_odd(runs, (fields.time.left_out(), fields.power.left_out()))
        fields = _Fields.of(runs, weights, grid, curves, fields.sizes, learn=False)
    else:
        for _ in range(_ROUNDS):
            before = weights
            weights = reweighed(runs, before, fields.told, fields.noises)
            if np.abs(weights - before).max() < _SETTLED:
                break
            fields = _Fields.of(runs, weights, grid, curves, fields.sizes, learn=learn)
    off = fields.time.left_out().moments(), fields.power.left_out().moments()
    beyond, (time, power) = Beyond.learned(*off), fields.told
    return Inferred(
        time=time.widened(beyond.time),
        power=power.widened(beyond.energy),
        sums=beyond.sums,
        optimism=optimism(fields.time.rows, fields.power.rows, *off),
        sizes=fields.sizes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    time: Field
    power: Field
    told: tuple[FieldPosterior, FieldPosterior]

    @classmethod
    def of(
        cls,
        runs: RunLogs,
        weights: Floats,
        grid: ClockGrid,
        curves: tuple[Curves, Curves],
        start: tuple[Sizes, Sizes] | None = None,
        *,
        learn: bool = True,
    ) -> "_Fields":
        rows = [mean_rows(runs, weights, q) for q in (0, 1)]
        sizes = start
        if learn or sizes is None:
            of_time, of_power = (
                likeliest(
                    curves[q], grid, rows[q], scatter_within(runs, weights, q), start and start[q]
                )
                for q in (0, 1)
            )
            sizes = of_time, of_power
        time = Field(curves[0], grid, rows[0], sizes[0])
        told = time.predicted()
        power = Field(curves[1], grid, rows[1], sizes[1], told.errors)
        return cls(time=time, power=power, told=(told, power.predicted()))

    @property
    def sizes(self) -> tuple[Sizes, Sizes]:
        return self.time.sizes, self.power.sizes

    @property
    def noises(self) -> tuple[float, float]:
        return self.time.sizes.run, self.power.sizes.run


def inferred_costs(sample_set: SampleSet, *, baseline: Clocks | None = None) -> JointCosts:
    """Return what a table of runs says of every setting that it set out to visit."""
    known = InferredTable.of(sample_set, baseline)
    return costed(known.table, known.told, known.seen, known.offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredTable:
    """A table and what was inferred from it.

    Attributes:
        table: With kernels, settings and baseline, the baseline last.
        told: Of one launch of each kernel.
        seen: Where there are rows. Shape (K, C).
        offered: Where there may be. Shape (K, C).
        logs: Logarithms of mean time and power of each row, ``nan`` without one. Shape (2, K, C).
    """

    table: CostTable
    told: Inferred
    seen: Bools
    offered: Bools
    logs: Floats

    @classmethod
    def of(
        cls,
        sample_set: SampleSet,
        baseline: Clocks | None,
        sizes: tuple[Sizes, Sizes] | None = None,
    ) -> "InferredTable":
        """Infer what a table says; ``sizes`` as of `inferred`."""
        measured = cost_table(sample_set, baseline=baseline)
        auto = measured.settings[measured.baseline]
        asked = dict.fromkeys((*measured.settings, *sample_set.settings))
        locked = [c for c in asked if c != auto and not c.is_auto]
        settings = (*sorted(locked, key=lambda clocks: clocks.rank), auto)
        place = {clocks: c for c, clocks in enumerate(settings)}
        names = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
        samples = [sample for sample in sample_set.samples if sample.asked in place]
        log = np.log([[s.time_s for s in samples], [s.energy_j / s.time_s for s in samples]])
        runs = RunLogs(
            kernel=np.array([names[s.kernel] for s in samples]),
            setting=np.array([place[s.asked] for s in samples]),
            log=log,
            kernels=len(names),
        )
        logs = np.full((2, len(names), len(settings)), np.nan)
        logs[:, runs.kernel, runs.setting] = log
        warnings = (*measured.warnings, *odd_repeats(sample_set))
        lacking = (sample_set.lacking.get(kernel.name, ()) for kernel in sample_set.kernels)
        return cls(
            table=dataclasses.replace(
                measured, settings=settings, baseline=len(settings) - 1, warnings=warnings
            ),
            told=inferred(runs, ClockGrid.of(settings), sizes),
            seen=np.isfinite(logs[0]),
            offered=np.array([[c not in some for c in settings] for some in lacking], dtype=bool),
            logs=logs,
        )


def costed(table: CostTable, told: Inferred, seen: Bools, offered: Bools) -> JointCosts:
    """Return costs of a step.

    Args:
        seen: Where there are rows. Shape (K, C).
        offered: Where there may be. Shape (K, C).
    """
    more_s, more_j = told.optimism.deviations
    time2, energy2 = (each.variance for each in told.of_sums)
    unseen = np.where(seen, 0.0, 1.0)
    # The mean of what is lognormal lies above its median.
    log_s = told.time.mean + unseen * more_s * np.sqrt(time2) + 0.5 * time2
    log_j = told.time.mean + told.power.mean + unseen * more_j * np.sqrt(energy2) + 0.5 * energy2
    counts = waited_counts(table.kernels)[:, None]
    at, beside = table.baseline, overlapped(table.kernels)
    fixed_j = table.fixed_j[:, None]

    def everywhere(values: Floats) -> Floats:
        """Return entries, those of kernels beside others as they are at auto."""
        wide = beside.reshape(-1, *[1] * (values.ndim - 1))
        alike: Floats = np.where(wide, values[:, [at]], values)
        return alike

    def errors(of: Errors) -> Errors:
        return Errors(
            own=everywhere(of.own), shared=everywhere(of.shared), rest=everywhere(of.rest)
        )

    shown = np.where(beside[:, None], True, offered | seen)
    chosen = told.optimism.wider if (shown & ~seen).any() else (1.0, 1.0)
    return JointCosts(
        table=dataclasses.replace(
            table,
            time_s=np.where(shown, everywhere(counts * np.exp(log_s)), np.inf),
            energy_j=np.where(shown, everywhere(counts * np.exp(log_j)) + fixed_j, np.inf),
        ),
        time=errors(told.time.errors),
        energy=errors(told.power.errors),
        wider=(told.sums[0] * chosen[0], told.sums[1] * chosen[1]),
    )
