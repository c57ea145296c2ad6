"""Predict savings from one clock, compare with full sweeps, and write docs/evidence/prediction.md.

Usage: python studies/prediction.py [FOLDER]   (default: ../shared/data/measured)

Simulated: a GPT-3 XL step on simulated GPUs, predicted from its samples at auto clocks; the truth
is a plan on all its samples. Replayed: of each measured sweep, kernels are left out in five folds;
the prior comes from the other kernels, the prediction from one row of each left-out kernel, and the
truth from all their rows.
"""

import dataclasses
import datetime as dt
import itertools
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

import underclock
from gpu_specs import SPECS
from underclock.app.predicting import DRAWS, own_kernels, settings_of
from underclock.core.calibration.gpu import calibrate
from underclock.core.calibration.sweep import Sweep, sweep_of
from underclock.core.prediction.prior import FITTED, PUBLISHED, Prior, reference_kernels
from underclock.core.prediction.savings import (
    CostTableDraws,
    at_baseline,
    baseline_runs,
    draw_tables,
    interval,
)
from underclock.core.solvers import Problem
from underclock.core.solvers.knapsack import Exact
from underclock.core.step.table import CostTable, cost_table
from underclock.gpus.models import GpuModel, encode, gpu_model
from underclock.records import SampleSet, Strategy
from underclock.records.observed import Interval
from underclock.store import read_samples, read_table
from underclock.units import format_percent

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "evidence" / "prediction.md"
_BUDGETS = (0.0, 0.01, 0.05)
_FOLDS = 5
_SWEEPS = {
    "rtx3080ti": "rtx3080ti_kernels",
    "a40": "a40_llm_stages",
    "a100": "a100_apps",
    "titanx": "titanx_apps",
}
_CONFIDENCE = 0.95
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prediction against what the full rows allow."""

    group: str
    budget: float
    truth: float
    predicted: Interval

    @property
    def covered(self) -> bool:
        """Whether the truth lies in the interval."""
        return self.predicted.low - _ROUNDING <= self.truth <= self.predicted.high + _ROUNDING


def _without(sweep: Sweep, out: np.ndarray) -> Sweep:
    """Return a sweep without some kernels."""
    keep = np.flatnonzero(~out[sweep.kernel])
    names = tuple(name for k, name in enumerate(sweep.kernels) if not out[k])
    rank = np.cumsum(~out) - 1
    return dataclasses.replace(
        sweep.only(keep), kernels=names, kernel=rank[sweep.kernel[keep]].astype(np.int64)
    )


def _from_others(sweep: Sweep, out: np.ndarray, spec: GpuModel) -> Prior:
    """Fit the prior of a GPU to the kernels that are not left out."""
    fit = calibrate(_without(sweep, out), spec.constants)
    bins_mhz = np.unique(sweep.core_mhz[np.isfinite(sweep.core_mhz)])
    return Prior(
        gpu=fit.gpu,
        deviations=FITTED,
        references=reference_kernels(fit.gpu, fit.kernels.values(), bins_mhz, fit.limit_w),
        dram_j_per_mcycle=fit.dram_j_per_mcycle,
        limit_w=fit.limit_w,
    )


def _from_data_sheets(name: str, spec: GpuModel) -> Prior:
    """Return a prior of published constants only, and the kernels of other GPUs."""
    others = [gpu_model(other) for other in _SWEEPS if other != name]
    if spec.throughput is None:
        raise AssertionError(f"{name} has no published rates")
    return Prior(
        gpu=spec.constants,
        deviations=PUBLISHED,
        references=tuple(kernel for other in others for kernel in own_kernels(other)),
        dram_j_per_mcycle=1e6 * spec.throughput.dram_byte_j * spec.throughput.dram_byte,
        limit_w=spec.limit_w[0] - spec.cap_margin_w,
    )


def part_of(sample_set: SampleSet, names: set[str]) -> SampleSet:
    """Return some kernels of a sweep."""
    return msgspec.structs.replace(
        sample_set,
        kernels=tuple(k for k in sample_set.kernels if k.name in names),
        samples=tuple(s for s in sample_set.samples if s.kernel in names),
    )


def _least(time_s: np.ndarray, energy_j: np.ndarray, place: int, budget: float) -> np.ndarray:
    """Return the least energy change of one kernel within a budget. Shapes (..., S) -> (...)."""
    fits = time_s <= time_s[..., place, None] * (1.0 + budget) * (1.0 + 1e-12)
    least: np.ndarray = np.where(fits, energy_j, np.inf).min(axis=-1)
    change: np.ndarray = least / energy_j[..., place] - 1.0
    return change


def best_change(table: CostTable, budget: float) -> float:
    """Return the least energy change of all kernels together within a budget."""
    budget_s = table.auto_time_s * (1.0 + budget)
    problem = Problem(time_s=table.time_s, energy_j=table.energy_j, budget_s=budget_s)
    rows = np.arange(len(table.kernels))
    energy_j = math.fsum(table.energy_j[rows, np.array(Exact().solve(problem).choice)])
    return energy_j / table.auto_energy_j - 1.0


def _cases(tables: CostTableDraws, truth: CostTable) -> Iterator[Case]:
    """Compare a group of kernels, as one step and one by one."""
    for budget in _BUDGETS:
        drawn_steps = [best_change(tables.draw(d), budget) for d in range(DRAWS)]
        predicted = interval(np.array(drawn_steps), _CONFIDENCE)
        yield Case(
            group="step", budget=budget, truth=best_change(truth, budget), predicted=predicted
        )
        place = tables.measured.baseline
        alone = _least(truth.time_s, truth.energy_j, truth.baseline, budget)
        drawn = _least(tables.time_s, tables.energy_j, place, budget)
        for k, one in enumerate(alone.tolist()):
            yield Case(
                group="kernel",
                budget=budget,
                truth=one,
                predicted=interval(drawn[:, k], _CONFIDENCE),
            )


def _sweep_cases(name: str, table: Path, *, fitted: bool) -> list[Case]:
    spec = SPECS[name]
    sample_set = read_table(table)
    whole = cost_table(sample_set)
    baseline = whole.settings[whole.baseline]
    sweep = sweep_of(sample_set, auto_mem_mhz=float(spec.mem_mhz[-1]), limit_w=spec.limit_w[0])
    cases: list[Case] = []
    for fold in range(_FOLDS):
        out = np.arange(len(sweep.kernels)) % _FOLDS == fold
        prior = _from_others(sweep, out, spec) if fitted else _from_data_sheets(name, spec)
        part = part_of(sample_set, {n for k, n in enumerate(sweep.kernels) if out[k]})
        truth = cost_table(part, baseline=baseline)
        seen = at_baseline(part, baseline)
        runs = baseline_runs(
            seen, baseline, mem_mhz=float(spec.mem_mhz[-1]), limit_w=spec.limit_w[0]
        )
        tables = draw_tables(seen, baseline, prior, runs, truth.settings, draws=DRAWS, seed=fold)
        absent = ~np.isfinite(truth.time_s)
        tables.time_s[:, absent] = tables.energy_j[:, absent] = np.inf
        cases += _cases(tables, truth)
    return cases


def _simulated(name: str, model: GpuModel | None, folder: Path) -> list[str]:
    """Predict a GPT-3 XL step from auto clocks; the truth is a plan on all its samples."""
    gpu, simulated = f"sim:{name}", gpu_model(name)
    if model is not None:
        simulated, file = model, folder / f"{name}.json"
        file.write_text(encode(model), encoding="utf-8")
        gpu = f"sim:{file}"
    cores = {clocks.core_mhz for clocks in settings_of(simulated)}
    campaign = underclock.Campaign(
        core_mhz=(*sorted(mhz for mhz in cores if mhz is not None), None),
        mem_mhz=() if simulated.memory_lockable else (None,),
    )
    samples = folder / f"{name}-{model is None}.db"
    underclock.measure(underclock.trace("gpt3-xl"), gpu=gpu, to=samples, campaign=campaign)
    sample_set = read_samples(samples)
    truth = cost_table(sample_set)
    lines = []
    for budget in _BUDGETS:
        best = best_change(truth, budget)
        begun = time.perf_counter()
        prediction = underclock.predict(sample_set, max_slowdown=budget, like=f"sim:{name}")
        spent_s = time.perf_counter() - begun
        case = Case(
            group="step",
            budget=budget,
            truth=best,
            predicted=prediction.arm(Strategy.KERNEL_GLOBAL).energy_change,
        )
        counted = "yes" if prediction.counted else "no"
        unmeasured = prediction.without_measuring
        time_change = unmeasured.time_change
        lines.append(
            f"| `sim:{name}` | {counted} | {budget:.0%} | {_percent(best)} "
            f"| {_percent(case.predicted.expected)} | {_percent(case.predicted.low)} … "
            f"{_percent(case.predicted.high)} | {'yes' if case.covered else '**no**'} "
            f"| {_percent(unmeasured.energy_change.expected)} "
            f"| {_percent(time_change.low)} … {_percent(time_change.high)} "
            f"| {spent_s:.1f} s |"
        )
    return lines


def _percent(fraction: float) -> str:
    return format_percent(fraction, digits=1)


def _line(name: str, cases: list[Case]) -> str:
    """Sum up cases that are alike."""
    covered = sum(case.covered for case in cases)
    width = float(np.mean([case.predicted.high - case.predicted.low for case in cases]))
    truths = [case.truth for case in cases]
    off = [case.predicted.expected - case.truth for case in cases]
    return (
        f"| `{name}` | {cases[0].budget:.0%} | {covered} of {len(cases)} "
        f"| {_percent(float(np.mean(truths)))} ({_percent(min(truths))} … {_percent(max(truths))}) "
        f"| {_percent(float(np.mean(off)))} | {100 * float(np.mean(np.abs(off))):.1f} "
        f"| {100 * width:.1f} |"
    )


def _tables_of_sweeps(folder: Path) -> tuple[list[str], list[str]]:
    """Return the rows of the table for each way of knowing a GPU, and how many are covered."""
    parts, totals = [], []
    for fitted in (True, False):
        cases = {
            name: _sweep_cases(name, folder / f"{table}.csv", fitted=fitted)
            for name, table in _SWEEPS.items()
        }
        for group in ("step", "kernel"):
            rows = [
                _line(_SWEEPS[name], [c for c in mine if (c.group, c.budget) == (group, budget)])
                for name, mine in cases.items()
                for budget in _BUDGETS
            ]
            parts.append("\n".join(rows))
            every = [c for mine in cases.values() for c in mine if c.group == group]
            covered = sum(c.covered for c in every)
            totals.append(f"{covered} of {len(every)} ({covered / len(every):.0%})")
        print(f"fitted to others: {fitted}: {totals[-2:]}", flush=True)
    return parts, totals


_PAGE_TEXT = """# Predictions from one clock

What `underclock predict` says from samples at auto clocks, beside what measuring at all clocks and
planning on it gives. Predictions are **predicted**; what they are compared with is **simulated** in
the first table, and **replayed**, other people's measurements of real GPUs, in the others. No real
GPU was locked for this page.

Every figure is the change of a step's energy under the plan that is free to choose clocks kernel by
kernel within the time budget. An interval is said to hold the truth in 95 % of cases; it *covers*
where it does.

Made by `python studies/prediction.py` on {date}; {machine}.
Every prediction was made once, with {draws} draws; draws are seeded, so a second run gives the same
numbers but for the seconds.

## On the simulator

A GPT-3 XL step. The truth is a plan on a simulated measurement of the same clocks, one sample each.
*Counted*: whether samples say how busy tensor pipes, FP32 pipes and DRAM were; the RTX 3080 Ti
has no such counters in reality and was given them for the second block. *Unmeasured* is the plan
that would be locked without measuring, made for the mean of the draws: what it would save, and how
much time it would take.

| GPU | counted | budget | truth | predicted | interval | covers | unmeasured | its time | took |
|---|---|---|---|---|---|---|---|---|---|
{simulated}

The reference kernels of `sim:rtx3080ti` are 15 benchmark kernels, which spend much of their time on
what no clock changes; GPT-3's matrix products do not. Without counters nothing tells that, so the
prediction is too hopeful there, and the interval wide. `sim:h200` has no sweep: its constants are
drawn from the wide spread, its kernels from all fitted models and its own.

## On measured sweeps

Kernels are left out in five folds. The *step* is the left-out kernels of a fold, once each; then
each kernel by itself. Of each only the auto row is seen, or the row at the fastest clocks where the
table has no auto row; there are no counters. The truth is the best choice among all rows, one run
each: at a budget of 0 % the noise of two rows decides what is allowed, and the best of noisy rows
overstates. *Off* is predicted less true, its mean and the mean of its size, and *width* is of the
interval; both in percent of energy.

### Constants and reference kernels from the other kernels of the sweep

Steps of left-out kernels: covered {totals[0]}.

{head}
{parts[0]}

Single kernels: covered {totals[1]}.

{head}
{parts[1]}

### Constants from data sheets, reference kernels from other GPUs' sweeps

As for a GPU of which no sweep is at hand. Steps of left-out kernels: covered {totals[2]}.

{head}
{parts[2]}

Single kernels: covered {totals[3]}.

{head}
{parts[3]}

## What does not hold

* At a budget of 0 % noise decides which rows are allowed. So often the slower of two neighbouring
  core clocks is the faster row, and by so much at most:
{jumps}.
  `a100_apps` times whole applications, host phases included: its noisy rows allow savings that no
  clock makes, and the intervals do not follow.
* Single kernels that save most, more than 30 %, lie outside most often: kernels that follow neither
  clock are rare among all reference kernels.
* The spreads around the constants were chosen by hand with these tables in view. Folds keep the
  kernels apart, not that choice.
"""


def _jumps(table: Path) -> str:
    """Say how often the slower of two neighbouring core clocks is faster, and by how much."""
    rows = sorted(
        (s.kernel, s.asked.mem_mhz or 0, s.asked.core_mhz, s.time_s)
        for s in read_table(table).samples
        if s.asked.core_mhz is not None
    )
    pairs = [(a[3], b[3]) for a, b in itertools.pairwise(rows) if a[:2] == b[:2]]
    jumps = np.array([after / before - 1.0 for before, after in pairs])
    return f"  `{table.stem}` {np.mean(jumps > 0):.0%} of pairs, {jumps.max():.1%}"


_HEAD = (
    "| table | budget | covered | truth, mean (least … most) | off | size | width |\n"
    "|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Write the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT.parent / "shared/data/measured"
    with tempfile.TemporaryDirectory() as made:
        counting = dataclasses.replace(gpu_model("rtx3080ti"), counters=True)
        lines = [
            line
            for name, model in (("rtx3080ti", None), ("rtx3080ti", counting), ("h200", None))
            for line in _simulated(name, model, Path(made))
        ]
    print("\n".join(lines), flush=True)
    parts, totals = _tables_of_sweeps(folder)
    machine = (
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}, numpy {np.__version__}"
    )
    text = _PAGE_TEXT.format(
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        machine=machine,
        draws=DRAWS,
        jumps=",\n".join(_jumps(folder / f"{table}.csv") for table in _SWEEPS.values()),
        simulated="\n".join(lines),
        head=_HEAD,
        parts=parts,
        totals=totals,
    )
    _PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {_PAGE.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
