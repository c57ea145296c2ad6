"""Predictions from auto clocks, for GPUs and kernels that the prior never saw.

    OMP_NUM_THREADS=1 python studies/prediction.py [FOLDER]

FOLDER is ../shared/data/measured by default. Each of six measured sweeps is predicted from its rows
at auto clocks without anything of it in the prior: reference kernels are those of the other five
sweeps, constants are typical ones, scaled to the clocks and the power of the GPU. Then with
constants fitted to the sweep itself, as of a GPU that is known, but kernels of the other five. And
a step of GPT-3 XL on simulated GPUs, against plans on all of its samples.
"""

import dataclasses
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

import underclock
from gpu_specs import SPECS
from pages import MEASURED, fill, markdown
from underclock.app.predicting import OF_ANOTHER, settings_of
from underclock.core.calibration.gpu import Calibrated, calibrate
from underclock.core.calibration.sweep import sweep_of
from underclock.core.model.start import unknown_gpu
from underclock.core.prediction.checks import checks_of, widening
from underclock.core.prediction.prior import (
    FITTED,
    PUBLISHED,
    Prior,
    ReferenceKernel,
    reference_kernels,
)
from underclock.core.prediction.savings import at_baseline, baseline_runs, draw_tables, interval
from underclock.core.solvers import Problem
from underclock.core.solvers.knapsack import Exact
from underclock.core.step.table import CostTable, cost_table
from underclock.gpus.models import GpuModel, encode, gpu_model
from underclock.records import Clocks, SampleSet, Strategy
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
_STEPS, _KERNELS, _DRAWS, _CONFIDENCE = 3, 6, 60, 0.95
_CHECK_ROWS = 2  # of each kernel
_FARTHEST = 4.0  # as in `stages.predict`
# The laptop boosts to about 2 550 MHz: asked for more, its kernels draw the same. Some kernels are
# held by limits that move with heat: those it calls memory are not.
_LAPTOP_BOOST_MHZ, _LAPTOP_KERNELS = 2550.0, "memory"


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
        way: What is known of the GPU, and what checks it.
        truth: What the best choice of all rows changes.
        predicted: What was predicted.
        off: By how much the prior was found to be off.
    """

    name: str
    way: str
    truth: float
    predicted: Interval
    off: float

    @property
    def covered(self) -> bool:
        """Whether the truth lies in the interval."""
        return self.predicted.low - 1e-9 <= self.truth <= self.predicted.high + 1e-9


def part_of(sample_set: SampleSet, names: set[str]) -> SampleSet:
    """Return some kernels of a sweep."""
    return msgspec.structs.replace(
        sample_set,
        kernels=tuple(k for k in sample_set.kernels if k.name in names),
        samples=tuple(s for s in sample_set.samples if s.kernel in names),
    )


def best_change(table: CostTable, budget: float) -> float:
    """Return the least energy change of all kernels together within a budget."""
    budget_s = table.auto_time_s * (1.0 + budget)
    problem = Problem(time_s=table.time_s, energy_j=table.energy_j, budget_s=budget_s)
    rows = np.arange(len(table.kernels))
    energy_j = math.fsum(table.energy_j[rows, np.array(Exact().solve(problem).choice)])
    return energy_j / table.auto_energy_j - 1.0


def known(path: Path, spec: str | None) -> Known:
    """Read a sweep and fit a GPU's constants to it."""
    rows = read_table(path)
    laptop = "laptop" in path.stem
    if laptop:
        names = {k.name for k in rows.kernels if k.name.startswith(_LAPTOP_KERNELS)}
        rows = part_of(rows, names)
        held = [s for s in rows.samples if (s.asked.core_mhz or 0) <= _LAPTOP_BOOST_MHZ]
        rows = msgspec.structs.replace(rows, samples=tuple(held))
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
    sweep = sweep_of(rows, auto_mem_mhz=mem_mhz, limit_w=limit_w)
    fit = calibrate(sweep, start)
    bins = np.unique(sweep.core_mhz[np.isfinite(sweep.core_mhz)])
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
        dram_j_per_mcycle=fit.dram_j_per_mcycle,
        limit_w=fit.limit_w,
    )
    yield "known GPU", prior
    yield (
        "unknown GPU",
        dataclasses.replace(
            prior,
            gpu=typical,
            deviations=PUBLISHED,
            dram_j_per_mcycle=0.75 * typical.mem_points_w[-1] / typical.mem_points_mhz[-1],
            off=OF_ANOTHER,
        ),
    )


def some_rows(part: SampleSet, baseline: Clocks, random: np.random.Generator) -> SampleSet:
    """Return rows at the baseline, and a few of each kernel at other clocks."""
    samples = [s for s in part.samples if s.asked == baseline]
    for kernel in part.kernels:
        away = [s for s in part.samples if s.kernel == kernel.name and s.asked != baseline]
        chosen = random.permutation(len(away))[:_CHECK_ROWS].tolist()
        samples += [away[i] for i in chosen]
    return msgspec.structs.replace(part, samples=tuple(samples))


def cases(target: Known, every: Sequence[Known]) -> Iterator[Case]:
    """Predict some steps of a sweep's kernels, each in every way."""
    whole = cost_table(target.rows)
    baseline = whole.settings[whole.baseline]
    names = [kernel.name for kernel in target.rows.kernels]
    for step in range(_STEPS):
        random = np.random.default_rng([step, len(names)])
        some = {names[i] for i in random.permutation(len(names))[:_KERNELS].tolist()}
        part = part_of(target.rows, some)
        truth = cost_table(part, baseline=baseline)
        seen, more = at_baseline(part, baseline), some_rows(part, baseline, random)
        runs = baseline_runs(seen, baseline, mem_mhz=target.mem_mhz, limit_w=target.fit.limit_w)
        absent = ~np.isfinite(truth.time_s)
        for what, prior in priors(target, every):
            for how, rows in (("auto only", seen), (f"{_CHECK_ROWS} rows more", more)):
                off = widening(checks_of(prior, runs, rows, baseline, step))
                wider = dataclasses.replace(prior, off=off * prior.off)
                tables = draw_tables(
                    seen, baseline, wider, runs, truth.settings, draws=_DRAWS, seed=step
                )
                tables.time_s[:, absent] = tables.energy_j[:, absent] = np.inf
                for budget in _BUDGETS:
                    drawn = [best_change(tables.draw(d), budget) for d in range(_DRAWS)]
                    yield Case(
                        name=target.name,
                        way=f"{what}, {how}",
                        truth=best_change(truth, budget),
                        predicted=interval(np.array(drawn), _CONFIDENCE),
                        off=off,
                    )


def summed_up(words: str, some: Sequence[Case]) -> tuple[str, ...]:
    """Sum up cases that are alike, as a row of the table."""
    covered = sum(case.covered for case in some)
    kept = [case for case in some if case.off <= _FARTHEST]
    truth, expected, width = np.mean(
        [(c.truth, c.predicted.expected, c.predicted.high - c.predicted.low) for c in some], axis=0
    )
    offs = sorted(case.off for case in some)
    return (
        words,
        f"{covered} of {len(some)}",
        f"{len(some) - len(kept)}",
        f"{sum(c.covered for c in kept)} of {len(kept)}",
        f"{truth:+.1%}",
        f"{expected:+.1%}",
        f"{100 * width:.0f}",
        f"{offs[len(offs) // 2]:.2f} ({offs[0]:.2f} to {offs[-1]:.2f})",
    )


def strangers(made: Sequence[Case]) -> str:
    """Return the table of measured sweeps."""
    heads = ("", "covered", "refused", "covered if not refused", "truth, mean", "predicted")
    rows: list[tuple[str, ...]] = [(*heads, "width", "off")]
    for way in dict.fromkeys(case.way for case in made):
        mine = [case for case in made if case.way == way]
        rows.append(summed_up(f"**{way}**", mine))
        rows += [
            summed_up(f"`{name}`", [case for case in mine if case.name == name])
            for name in dict.fromkeys(case.name for case in mine)
        ]
    return markdown(rows)


def simulated(name: str, model: GpuModel | None, folder: Path) -> Iterator[tuple[str, ...]]:
    """Predict a GPT-3 XL step from auto clocks; the truth is a plan on all its samples."""
    gpu, known_gpu = f"sim:{name}", gpu_model(name)
    if model is not None:
        known_gpu, file = model, folder / f"{name}.json"
        file.write_text(encode(model), encoding="utf-8")
        gpu = f"sim:{file}"
    cores = {clocks.core_mhz for clocks in settings_of(known_gpu)}
    campaign = underclock.Campaign(
        core_mhz=(*sorted(mhz for mhz in cores if mhz is not None), None),
        mem_mhz=() if known_gpu.memory_lockable else (None,),
    )
    samples = folder / f"{name}-{model is None}.db"
    taken = underclock.measure(underclock.trace("gpt3-xl"), gpu=gpu, to=samples, campaign=campaign)
    truth = cost_table(taken)
    for budget in _BUDGETS:
        best = best_change(truth, budget)
        said = underclock.predict(taken, max_slowdown=budget, like=f"sim:{name}")
        energy, alone = said.arm(Strategy.KERNEL_GLOBAL).energy_change, said.without_measuring
        yield (
            f"`sim:{name}`",
            "yes" if said.counted else "no",
            f"{budget:.0%}",
            f"{best:+.1%}",
            f"{energy.expected:+.1%}",
            f"{energy.low:+.1%} … {energy.high:+.1%}",
            "yes" if energy.low - 1e-9 <= best <= energy.high + 1e-9 else "**no**",
            f"{alone.energy_change.expected:+.1%}",
            f"{alone.time_change.low:+.1%} … {alone.time_change.high:+.1%}",
        )


def main() -> None:
    """Predict all, and fill the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else MEASURED
    every = [known(folder / f"{table}.csv", spec) for table, spec in _SWEEPS.items()]
    made = [case for target in every for case in cases(target, every)]
    heads = ("GPU", "counted", "budget", "truth", "predicted", "interval", "covers", "unmeasured")
    counting = dataclasses.replace(gpu_model("rtx3080ti"), counters=True)
    with tempfile.TemporaryDirectory() as at:
        rows = [
            row
            for name, model in (("rtx3080ti", None), ("rtx3080ti", counting), ("h200", None))
            for row in simulated(name, model, Path(at))
        ]
    fill(
        "prediction",
        {"strangers": strangers(made), "simulated": markdown([(*heads, "its time"), *rows])},
        repeats=f"{_STEPS} steps of {_KERNELS} kernels of each sweep, {_DRAWS} seeded draws each.",
    )


if __name__ == "__main__":
    main()
