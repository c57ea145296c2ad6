"""Predict what clocks would save on measured sweeps, compare with their rows, fill the page.

    OMP_NUM_THREADS=1 python studies/prediction.py [FOLDER]

FOLDER is ../shared/data/measured by default. Steps of each of six sweeps' kernels are predicted
with reference kernels of the other five only. Constants are typical ones, scaled to the clocks and
the power of the GPU (it is unknown), or fitted to the sweep (it is known, its kernels are strange).
"""

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from gpu_specs import SPECS
from pages import MEASURED, fill, markdown, percent
from underclock.app.predicting import DRAWS, OF_ANOTHER
from underclock.core.calibration import Calibrated, calibrate
from underclock.core.model.parameters import unknown_gpu
from underclock.core.prediction.prior import (
    BUSIEST_DRAM,
    FITTED,
    PUBLISHED,
    Prior,
    ReferenceKernel,
    checks_of,
    prior_widening,
    reference_kernels,
)
from underclock.core.prediction.savings import at_baseline, baseline_runs, draw_tables, interval
from underclock.core.solvers import Problem
from underclock.core.solvers.knapsack import Exact
from underclock.core.step.table import CostTable, cost_table
from underclock.physics.costs import dram_mhz, duration_s
from underclock.records import Clocks, SampleSet, Utilisation, Window
from underclock.records.observed import Interval
from underclock.store import read_table

_SWEEPS = {
    "rtx3080ti_kernels": "rtx3080ti",
    "a40_llm_stages": "a40",
    "a100_apps": "a100",
    "titanx_apps": "titanx",
    "gtx1080ti_kernels": None,
    "rtx_laptop_repeats": None,
}
_BUDGETS = (0.0, 0.01, 0.05)
_STEPS, _KERNELS, _CONFIDENCE = 3, 6, 0.95
_BUSIEST_PIPES = 0.9
# What is seen of a step: whether counters at auto, how many rows elsewhere, of which part of it.
_WAYS = {
    "auto rows": (False, 0, 1.0),
    "auto rows with utilisation": (True, 0, 1.0),
    "and 2 other rows a kernel": (True, 2, 1.0),
    "and 4 other rows a kernel": (True, 4, 1.0),
    "and 6 other rows of every second kernel": (True, 6, 0.5),
}
# The laptop boosts to about 2 550 MHz: asked for more, its kernels draw the same. Some kernels are
# held by limits that move with heat: those it calls memory are not.
_LAPTOP, _LAPTOP_BOOST_MHZ, _LAPTOP_KERNELS = "laptop", 2550.0, "memory"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A sweep, and what a calibration makes of it."""

    name: str
    rows: SampleSet
    fit: Calibrated
    references: tuple[ReferenceKernel, ...]
    mem_mhz: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prediction against what the full rows allow.

    Attributes:
        name: Of the sweep.
        way: What is known of the GPU, and what is seen of the step.
        raw: What the best choice of all rows changes, as they stand.
        truth: The same where no slower clock is faster, or draws more.
        predicted: What was predicted.
    """

    name: str
    way: tuple[str, str]
    raw: float
    truth: float
    predicted: Interval

    @property
    def width(self) -> float:
        """Of the interval."""
        return self.predicted.high - self.predicted.low

    def covers(self, change: float) -> bool:
        """Whether a change lies in the interval."""
        return self.predicted.low - 1e-9 <= change <= self.predicted.high + 1e-9


def part_of(sample_set: SampleSet, names: set[str]) -> SampleSet:
    """Return some kernels of a sweep."""
    return msgspec.structs.replace(
        sample_set,
        kernels=tuple(k for k in sample_set.kernels if k.name in names),
        windows=tuple(s for s in sample_set.samples if s.kernel in names),
    )


def known(path: Path, spec: str | None) -> Known:
    """Read a sweep and fit a GPU's constants to it."""
    rows = read_table(path)
    laptop = _LAPTOP in path.stem
    if laptop:
        names = {k.name for k in rows.kernels if k.name.startswith(_LAPTOP_KERNELS)}
        rows = part_of(rows, names)
        held = [s for s in rows.samples if (s.asked.core_mhz or 0) <= _LAPTOP_BOOST_MHZ]
        rows = msgspec.structs.replace(rows, windows=tuple(held))
    mems = sorted({float(s.asked.mem_mhz) for s in rows.samples if s.asked.mem_mhz}) or [7000.0]
    if spec:
        model = SPECS[spec]
        start, limit_w, mem_mhz = model.constants, model.limit_w[0], float(model.mem_mhz[-1])
    else:
        # Nothing says at what power they are held, so nothing is taken to be.
        limit_w = 1.1 * max(s.energy_j / s.time_s for s in rows.samples)
        top = max(float(s.asked.core_mhz or 0) for s in rows.samples)
        boost = _LAPTOP_BOOST_MHZ if laptop else top
        start, mem_mhz = unknown_gpu(mems, fastest_mhz=boost, most_w=limit_w), mems[-1]
    fit = calibrate(rows, start, limit_w)
    bins = np.unique([float(s.asked.core_mhz) for s in rows.samples if s.asked.core_mhz])
    kernels = reference_kernels(fit.gpu, fit.kernels.values(), bins, fit.limit_w, path.stem)
    return Known(name=path.stem, rows=rows, fit=fit, references=kernels, mem_mhz=mem_mhz)


def priors(target: Known, every: Sequence[Known]) -> Iterator[tuple[str, Prior]]:
    """Return what is known without the target's kernels."""
    fit = target.fit
    others = tuple(k for each in every if each is not target for k in each.references)
    typical = unknown_gpu(fit.gpu.mem_points_mhz, fastest_mhz=fit.gpu.boost_mhz, most_w=fit.limit_w)
    prior = Prior(
        gpu=fit.gpu,
        deviations=FITTED,
        references=others,
        dram_j_per_mcycle=fit.per_dram_cycle[0],
        limit_w=fit.limit_w,
    )
    unknown = dataclasses.replace(
        prior,
        gpu=typical,
        deviations=PUBLISHED,
        dram_j_per_mcycle=0.75 * typical.mem_points_w[-1] / typical.mem_points_mhz[-1],
        off=OF_ANOTHER,
    )
    return iter((("known GPU", prior), ("unknown GPU", unknown)))


def seen(target: Known, part: SampleSet, baseline: Clocks, way: str, step: int) -> SampleSet:
    """Return what is seen of a step: rows at the baseline, and some of some kernels elsewhere."""
    counts, rows, share = _WAYS[way]
    random = np.random.default_rng([step, 7])
    samples = [
        _counted(target, sample) if counts else sample
        for sample in part.samples
        if sample.asked == baseline
    ]
    for kernel in part.kernels[: round(share * len(part.kernels))]:
        away = [s for s in part.samples if s.kernel == kernel.name and s.asked != baseline]
        samples += [away[i] for i in random.permutation(len(away))[:rows].tolist()]
    return msgspec.structs.replace(part, windows=tuple(samples))


def _counted(target: Known, sample: Window) -> Window:
    """Return a row with the utilisation that the fit to the whole sweep implies."""
    gpu, kernel = target.fit.gpu, target.fit.kernels[sample.kernel]
    core_mhz = float(sample.asked.core_mhz or gpu.boost_mhz)
    mem_mhz = float(sample.asked.mem_mhz or target.mem_mhz)
    time_s = float(duration_s(gpu, kernel, core_mhz, mem_mhz))
    dram_s = kernel.dram_mcycles / float(dram_mhz(gpu, mem_mhz))
    if _LAPTOP in target.name:  # of one memory clock: its fixed time is that of memory
        dram_s += kernel.fixed_s
    dram, pipes = (
        min(1.0, most * part_s / time_s)
        for most, part_s in (
            (BUSIEST_DRAM, dram_s),
            (_BUSIEST_PIPES, kernel.core_mcycles / core_mhz),
        )
    )
    busy = Utilisation(sm=1.0, tensor=0.0, fp32=pipes, dram=dram)
    return msgspec.structs.replace(sample, utilisation=busy)


def best_change(table: CostTable, budget: float) -> float:
    """Return the least energy change of all kernels together within a budget."""
    budget_s = table.auto_time_s * (1.0 + budget)
    problem = Problem(time_s=table.time_s, energy_j=table.energy_j, budget_s=budget_s)
    rows = np.arange(len(table.kernels))
    energy_j = math.fsum(table.energy_j[rows, np.array(Exact().solve(problem).choice)])
    return energy_j / table.auto_energy_j - 1.0


def falling(table: CostTable) -> CostTable:
    """Return a table without the scatter that a plan would seek out: pooled until it is monotone.

    Along the core clock, at each memory clock, neither does time rise nor power fall.
    """
    time_s, energy_j = table.time_s.copy(), table.energy_j.copy()
    core = np.array([clocks.core_mhz or math.inf for clocks in table.settings])
    for mem in {clocks.mem_mhz for clocks in table.settings}:
        same = np.array([s for s, clocks in enumerate(table.settings) if clocks.mem_mhz == mem])
        same = same[np.argsort(core[same])]
        for k in range(len(table.kernels)):
            here = same[np.isfinite(table.time_s[k, same])]
            log_s = _falling(np.log(table.time_s[k, here]))
            log_w = -_falling(-np.log(table.energy_j[k, here] / table.time_s[k, here]))
            time_s[k, here], energy_j[k, here] = np.exp(log_s), np.exp(log_s + log_w)
    return dataclasses.replace(table, time_s=time_s, energy_j=energy_j)


def _falling(values: np.ndarray) -> np.ndarray:
    """Return the nearest values that never rise: neighbours that do are pooled."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            count = counts[-2] + counts[-1]
            mean = (means[-2] * counts[-2] + means[-1] * counts[-1]) / count
            means[-2:], counts[-2:] = [mean], [count]
    return np.repeat(means, counts)


def cases(target: Known, every: Sequence[Known]) -> Iterator[Case]:
    """Predict some steps of a sweep's kernels, each in every way."""
    whole = cost_table(target.rows)
    baseline = whole.settings[whole.baseline]
    names = [kernel.name for kernel in target.rows.kernels]
    for step in range(_STEPS):
        random = np.random.default_rng([step, len(names)])
        some = {names[i] for i in random.permutation(len(names))[:_KERNELS].tolist()}
        part = part_of(target.rows, some)
        raw = cost_table(part, baseline=baseline)
        truth, absent = falling(raw), ~np.isfinite(raw.time_s)
        for (what, prior), way in ((p, w) for p in priors(target, every) for w in _WAYS):
            rows = seen(target, part, baseline, way, step)
            runs = baseline_runs(
                at_baseline(rows, baseline),
                baseline,
                mem_mhz=target.mem_mhz,
                limit_w=target.fit.limit_w,
            )
            off = prior_widening(checks_of(prior, runs, step)) * prior.off
            tables = draw_tables(
                rows,
                baseline,
                dataclasses.replace(prior, off=off),
                runs,
                raw.settings,
                draws=DRAWS,
                seed=step,
            )
            tables.time_s[:, absent] = tables.energy_j[:, absent] = np.inf
            for budget in _BUDGETS:
                drawn = [best_change(tables.draw(d), budget) for d in range(DRAWS)]
                yield Case(
                    name=target.name,
                    way=(what, way),
                    raw=best_change(raw, budget),
                    truth=best_change(truth, budget),
                    predicted=interval(np.array(drawn), _CONFIDENCE),
                )


def _line(words: str, some: Sequence[Case]) -> tuple[object, ...]:
    """Sum up cases that are alike."""
    truth, expected = np.mean([(c.truth, c.predicted.expected) for c in some], axis=0)
    return (
        words,
        f"{sum(c.covers(c.truth) for c in some)} of {len(some)}",
        f"{sum(c.covers(c.raw) for c in some)}",
        percent(float(truth), 1),
        percent(float(expected), 1),
        f"{100.0 * float(np.mean([c.width for c in some])):.1f}",
    )


def main() -> None:
    """Predict all, and fill the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else MEASURED
    every = [known(folder / f"{table}.csv", spec) for table, spec in _SWEEPS.items()]
    made = [case for target in every for case in cases(target, every)]
    header = ("", "covered", "as they stand", "truth", "predicted", "width")
    ways = dict.fromkeys(case.way for case in made)
    sums: list[Sequence[object]] = [header]
    sweeps: list[Sequence[object]] = [header]
    for way in ways:
        mine = [case for case in made if case.way == way]
        others = [case for case in mine if _LAPTOP not in case.name]
        sums += [_line(", ".join(way), mine), _line("the laptop left out", others)]
        if way[1] in list(_WAYS)[1:3]:
            sweeps.append((f"**{', '.join(way)}**", *[""] * 5))
            sweeps += [_line(f"`{n}`", [c for c in mine if c.name == n]) for n in _SWEEPS]
    repeats = f"{_STEPS} steps of {_KERNELS} kernels a sweep, 3 budgets, {DRAWS} draws, seeded."
    fill("prediction", {"sums": markdown(sums), "sweeps": markdown(sweeps)}, repeats=repeats)


if __name__ == "__main__":
    main()
