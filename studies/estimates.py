"""A step's rows told by the fit of physics and by the inference that tables have, side by side.

    OMP_NUM_THREADS=1 python studies/estimates.py

Samples of steered steps (docs/evidence/h200) have many times of each kernel and one power of most.
A quarter of the times after the other is left out and predicted from the rest; how power follows
the clock is told from all rows.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calibrate_h200 import read
from pages import fill, markdown
from underclock.arrays import Bools, Floats, Ints
from underclock.core.inference.curves import ClockGrid, power_curves, time_curves
from underclock.core.inference.field import Field, FieldPosterior, FieldRows
from underclock.core.inference.sizes import Within, likeliest
from underclock.core.model.fitting import fit_rows, fitted, some_rows, start_of
from underclock.core.model.parameters import Shared
from underclock.core.model.predictive import posterior_of
from underclock.core.model.rows import STEADY_C, Rows
from underclock.records import Clocks, SampleSet

FILES = ("layer-9", "xl-5", "xl-7", "small-9", "medium-9", "h100-10")
_PARTS, _SIGMAS, _SEED = 4, 1.96, 0
_HARDLY = 1e-4  # of a run: what a kernel without a row is told by


@dataclass(frozen=True)
class Told:
    """What is told of kernels (K) at clocks (C): of log time in s, and of log power in W."""

    log_s: Floats
    time_variance: Floats
    time_noise: Floats  # standard deviation of a usual row, of each kernel
    log_w: Floats
    power_variance: Floats  # of the change from the greatest clock, of each


class Step:
    """Rows of one step, and the clocks at which they ran."""

    def __init__(self, samples: SampleSet) -> None:
        self.rows, _ = fit_rows(samples, samples.settings)
        self._settings = samples.settings
        mhz = zip(self.rows.core_mhz.round(), self.rows.mem_mhz.round(), strict=True)
        at = [Clocks(core_mhz=int(core), mem_mhz=int(mem)) for core, mem in mhz]
        self.clocks = tuple(sorted(set(at), key=lambda clocks: clocks.rank))
        self.column = np.array([self.clocks.index(clocks) for clocks in at])

    def by_fit(self, kept: Bools) -> Told:
        """Fit physics to some rows."""
        some = some_rows(self.rows, np.flatnonzero(kept))
        model = fitted(some, Shared(start_of(some, self._settings)))
        told = posterior_of(model, self.clocks, temperature_c=STEADY_C, limit_w=np.inf)
        shared, own = (each - each[:, -1:] for each in (told.by_shared[1], told.by_kernel[1]))
        moved = np.einsum("kcs,st,kct->kc", shared, told.shared_cov, shared)
        moved += np.einsum("kcp,kpq,kcq->kc", own, told.kernel_cov, own)
        return Told(
            told.log_s,
            told.variance(1.0, 0.0),
            told.noise[0],
            told.log_w,
            moved + told.discrepancy[1] + told.discrepancy[1][:, -1:],
        )

    def by_inference(self, kept: Bools) -> Told:
        """Infer from some rows, as from those of a table."""
        grid, nothing = ClockGrid.of(self.clocks), Within(squares=0.0, freedom=0.0)
        curves = time_curves(grid)
        powers = power_curves(grid, curves.mean)
        found, runs = list[FieldPosterior](), list[float]()
        for q, (curve, log) in enumerate(((curves, self.rows.log_s), (powers, self.rows.log_w))):
            rows = self._table(q, log, kept)
            sizes = likeliest(curve, grid, rows, nothing)
            errors = found[0].errors if found else None
            found.append(Field(curve, grid, rows, sizes, errors).predicted())
            runs.append(sizes.run)
        time, power = found
        moved = power.variance + power.variance[:, -1:]
        noise = np.full(len(time.mean), runs[0])
        return Told(time.mean, time.variance, noise, power.mean, moved)

    def _table(self, q: int, log: Floats, kept: Bools) -> FieldRows:
        """Return the rows of each kernel that tell of a quantity."""
        rows, count = self.rows, len(self.rows.names)
        told = [
            np.flatnonzero(kept & (rows.windows[q] > 0) & (rows.kernel == k)) for k in range(count)
        ]
        shape = count, max(map(len, told))
        setting, logs, runs = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
        usual = float(np.median(log[np.concatenate(told)]))
        for k, at in enumerate(told):
            setting[k, : len(at)], logs[k, : len(at)] = self.column[at], log[at]
            runs[k, : len(at)] = rows.windows[q][at]
            if not len(at):
                logs[k, 0], runs[k, 0] = usual, _HARDLY
        return FieldRows(setting=setting, log=logs, runs=runs)


def of_file(name: str) -> Iterator[tuple[str, ...]]:
    """Yield what both say of one file."""
    step = Step(read(name))
    rows, every = step.rows, np.ones(len(step.rows.kernel), dtype=bool)
    part = np.random.default_rng(_SEED).integers(_PARTS, size=len(every))
    once = np.bincount(rows.kernel[rows.windows[1] > 0], minlength=len(rows.names)) == 1
    for way, tell in (("fit", step.by_fit), ("inference", step.by_inference)):
        off, deviations = list[Floats](), list[Floats]()
        for left_out in range(_PARTS):
            told = tell(part != left_out)
            at = _of_part(rows, part == left_out)
            entry = rows.kernel[at], step.column[at]
            off.append(told.log_s[entry] - rows.log_s[at])
            noise2 = told.time_noise[entry[0]] ** 2 / rows.windows[0][at]
            deviations.append(np.sqrt(told.time_variance[entry] + noise2))
        missed, sure = np.abs(np.concatenate(off)), _SIGMAS * np.concatenate(deviations)
        told = tell(every)
        lower = (told.log_w[:, 0] - told.log_w[:, -1])[once]
        sigma = np.sqrt(told.power_variance[:, 0])[once]
        clocks = f"{step.clocks[-1].core_mhz} to {step.clocks[0].core_mhz} MHz"
        yield (
            *((f"`{name}`", clocks) if way == "fit" else ("", "")),
            *(way, f"{np.median(missed):.2%}", f"{np.sqrt((missed**2).mean()):.1%}"),
            *(f"{(missed <= sure).mean():.0%}", f"{np.expm1(np.median(lower)):.0%}"),
            f"{_SIGMAS * np.median(sigma):.0%}",
        )


def _of_part(rows: Rows, left_out: Bools) -> Ints:
    """Return the rows left out of kernels of which others are kept."""
    at: Ints = np.flatnonzero(left_out & (rows.windows[0] > 0))
    kept = np.bincount(rows.kernel[~left_out & (rows.windows[0] > 0)], minlength=len(rows.names))
    return at[kept[rows.kernel[at]] > 2]  # noqa: PLR2004 - fewer tell no curve


def main() -> None:
    """Fill the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    head = ("file", "clocks", "told by", "time off, median", "rms", "covered", "power", "±")
    parts = {"steps": markdown([head, *(row for name in FILES for row in of_file(name))])}
    fill("estimates", parts, repeats="Each quarter of the rows of times is left out once.")


if __name__ == "__main__":
    main()
