"""What every part of the estimation buys: each switched off, on data that nobody tuned it for.

    OMP_NUM_THREADS=1 python studies/ablation.py [--only WORD] [--seeds 2] [--to RESULTS.jsonl]

Parts are switched off from outside: a name of the package stands for something else meanwhile.
Measured sweeps are those in ../shared/data/measured; without them that section is left out. Cases
are kept line by line, and a run goes on where the last one stopped.
"""

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

import underclock
from ablation_parts import FIVE, INFERENCE, MODEL, Off, without
from calibrate_h200 import read as read_steered
from pages import MEASURED, fill, markdown, mean_and_error
from steered_h200 import compare, reached
from strange import STRANGE, strange_gpus
from truth import truth_of
from underclock.arrays import Bools, Floats, Ints
from underclock.core.inference.joint import JointCosts
from underclock.core.inference.table import inferred_costs
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import estimate
from underclock.core.model.fitting import fit_rows, temperature_of
from underclock.core.model.predictive import posterior_of
from underclock.core.model.rows import Rows
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import compare_strategies
from underclock.core.step.table import CostTable, cost_table
from underclock.records import ALONE, Clocks, Evidence, MeasurementSettings, SampleSet, Window
from underclock.store import read_samples

Figures: TypeAlias = dict[str, float]

_BUDGET, _SIGMAS, _OVER = 0.01, 1.96, 1.1
_KERNELS, _ROWS, _RUNS = 12, (3, 5, 8), 3  # of a sweep
_WHOLE, _FIVE = "(nothing)", "all five of issue 27 that are left"
_COVERED, _SURE, _FEWEST = 0.95, 2.5, 5  # standard errors over cases, and cases that tell them
_SAMPLES = 200  # of a simulated campaign: about four a kernel
_STEERED = ("layer-2", "layer-3", "layer-4", "xl-5", "xl-7")
_TRUE_RUNS = 60
_NEAR = 1.5  # of auto's time: what takes longer no plan would choose
_LEFT_OUT = 0.3  # of what steering measured of kernels
_BRIEF = MeasurementSettings(warm_s=20.0, steady_s=5.0, kernel_warm_s=5.0, window_s=1.0)


def figures_of(off: Floats, deviation: Floats, names: tuple[str, ...]) -> Figures:
    """Return error, coverage and width of predictions of some logarithms. Shapes (N, n)."""
    if not off.size:
        return {}
    inside = np.abs(off) <= _SIGMAS * deviation
    return {
        f"{name} {what}": float(value)
        for name, o, d, i in zip(names, off, deviation, inside, strict=True)
        for what, value in (
            ("rms", np.sqrt((o**2).mean())),
            ("covered", i.mean()),
            ("±", _SIGMAS * np.median(d)),
        )
    }


def figures_of_plan(
    risk: CostEstimate | JointCosts,
    truth: Callable[[Mapping[str, Clocks]], tuple[float, float]],
    best: float,
) -> Figures:
    """Plan, and return what the plan is truly worth and whether its promise holds."""
    goal = Goal(max_slowdown=_BUDGET)
    setting = compare_strategies(risk.table, goal, risk).settings[goal.chosen]
    clocks = {
        k.name: risk.table.settings[s]
        for k, s in zip(risk.table.kernels, setting.tolist(), strict=True)
    }
    time_change, energy_change = truth(clocks)
    told = risk.predicted_change(setting)
    some = bool((setting != risk.table.baseline).any())
    within = abs(energy_change - told.energy_change) <= _SIGMAS * told.energy_spread
    return {
        "saving reached": energy_change / best,
        "over budget": float(time_change > _OVER * _BUDGET),
        "promise kept": float(within) if some else math.nan,
        "promise ±": _SIGMAS * told.energy_spread if some else math.nan,
    }


@cache
def sweep(name: str) -> SampleSet:
    """Return a sweep, of some of its kernels, and of few runs of each row."""
    whole = read_samples(MEASURED / f"{name}.csv")
    names = [kernel.name for kernel in whole.kernels]
    chosen = set(np.random.default_rng(len(names)).permutation(names)[:_KERNELS].tolist())
    return msgspec.structs.replace(
        whole,
        kernels=tuple(kernel for kernel in whole.kernels if kernel.name in chosen),
        windows=tuple(s for s in whole.samples if s.kernel in chosen and s.repeat < _RUNS),
        expected_samples=None,
    )


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Some rows of a sweep, drawn at random, and auto; the others are to be predicted."""

    name: str
    rows: int
    seed: int
    fitted: bool

    def figures(self) -> Figures:
        """Predict the other rows, and plan."""
        whole = sweep(self.name)
        truth = cost_table(whole)
        known = self._drawn(truth)
        auto = truth.settings[truth.baseline]
        place = {clocks: c for c, clocks in enumerate(truth.settings)}
        index = {kernel.name: k for k, kernel in enumerate(truth.kernels)}
        there = np.isfinite(truth.time_s)
        some = msgspec.structs.replace(
            whole,
            evidence=Evidence.MEASURED if self.fitted else whole.evidence,
            windows=tuple(s for s in whole.samples if known[index[s.kernel], place[s.asked]]),
            settings=truth.settings,
            sampled=True,
            lacking={
                kernel.name: tuple(c for c, yes in zip(truth.settings, row, strict=True) if not yes)
                for kernel, row in zip(truth.kernels, there.tolist(), strict=True)
            },
        )
        risk: Any = (estimate if self.fitted else inferred_costs)(some, baseline=auto)
        log, variance, settings = (_of_model if self.fitted else _of_inference)(risk)
        columns = np.array([place[c] for c in settings])
        near = truth.time_s <= _NEAR * truth.time_s[:, [truth.baseline]]
        asked = (near & ~known)[:, columns] & np.isfinite(log[0])
        with np.errstate(invalid="ignore"):
            true = np.log([truth.time_s, truth.energy_j])[:, :, columns] - _counted(truth)
        best = compare_strategies(truth, Goal(max_slowdown=_BUDGET)).settings[Goal().chosen]

        def change(clocks: Mapping[str, Clocks]) -> tuple[float, float]:
            setting = np.array([place[clocks[kernel.name]] for kernel in truth.kernels])
            return _change(truth, setting)

        told = figures_of((true - log)[:, asked], np.sqrt(variance[:, asked]), ("time", "energy"))
        return told | figures_of_plan(risk, change, _change(truth, best)[1])

    def _drawn(self, truth: CostTable) -> Bools:
        random = np.random.default_rng([self.seed, self.rows])
        known = np.zeros(truth.time_s.shape, dtype=bool)
        for k, row in enumerate(np.isfinite(truth.time_s)):
            known[k, random.permutation(np.flatnonzero(row))[: self.rows]] = True
        known[:, truth.baseline] = True
        return known


def _change(table: CostTable, setting: Ints) -> tuple[float, float]:
    k = np.arange(len(setting))
    time_s, energy_j = table.time_s[k, setting].sum(), table.energy_j[k, setting].sum()
    return float(time_s / table.auto_time_s - 1.0), float(energy_j / table.auto_energy_j - 1.0)


def _counted(table: CostTable) -> Floats:
    """Return the logarithm of how often each kernel runs. Shape (K, 1)."""
    logs: Floats = np.log([[float(kernel.count)] for kernel in table.kernels])
    return logs


Told: TypeAlias = tuple[Floats, Floats, tuple[Clocks, ...]]
"""Logarithms of time and energy of a launch, (2, K, C), their variances, and the settings."""


def _of_model(risk: Any) -> Told:  # noqa: ANN401
    """Return what a fit says of a further row of each kernel."""
    one = risk.posterior
    noise2 = one.noise[:, :, None] ** 2
    variance = np.stack(
        [one.variance(1.0, 0.0) + noise2[0], one.variance(1.0, 1.0) + noise2.sum(0)]
    )
    log = np.where(risk.can, [one.log_s, one.log_s + one.log_w], np.nan)
    return log, variance, one.settings


def _of_inference(risk: Any) -> Told:  # noqa: ANN401
    """Return what inference says of the same."""
    log = np.log([risk.table.time_s, risk.table.energy_j]) - _counted(risk.table)
    return log, np.stack([risk.time.variance, risk.energy.variance]), risk.table.settings


@cache
def campaign(gpu: str, seed: int) -> SampleSet:
    """Measure a layer of GPT-3 XL on a strange GPU, as a campaign of the package does."""
    with strange_gpus(gpu), tempfile.TemporaryDirectory() as folder:
        return underclock.measure(
            _step(),
            gpu="sim:rtx3080ti",
            to=Path(folder) / "samples.db",
            campaign=underclock.Campaign(max_samples=_SAMPLES, slowdowns=(_BUDGET,)),
            measuring=_BRIEF,
            seed=seed,
        )


@cache
def best_change(gpu: str) -> float:
    """Return what the best clocks truly change of a strange GPU's energy."""
    with strange_gpus(gpu), truth_of("rtx3080ti", _step(), runs=_TRUE_RUNS) as truth:
        return truth.best(_BUDGET)


@cache
def _step() -> underclock.Step:
    return underclock.trace("gpt3-xl", layers=1)


@dataclasses.dataclass(frozen=True)
class Simulated:
    """A campaign on a simulated GPU whose physics is not the fit's; truth is its physics."""

    gpu: str
    seed: int

    def figures(self) -> Figures:
        """Predict every kernel at every clock, and plan."""
        samples = campaign(self.gpu, self.seed)
        risk = estimate(samples)
        log, variance, settings = _of_model(risk)
        with (
            strange_gpus(self.gpu) as own,
            truth_of("rtx3080ti", _step(), runs=_TRUE_RUNS) as truth,
        ):
            device = truth.rig.device
            core_mhz = np.array([float(c.core_mhz or 0) for c in settings])
            mem_mhz = np.array([float(c.mem_mhz or device.model.mem_mhz[-1]) for c in settings])
            at = core_mhz, mem_mhz
            true = np.empty_like(log)
            for k, kernel in enumerate(samples.kernels):
                constants = device.constants, device.model.kernel(kernel)
                taken_s = own.duration_s(*constants, *at)
                drawn_w = own.busy_w(*constants, *at, temperature_of(samples))
                true[:, k] = np.log([taken_s, taken_s * drawn_w])
            # Auto is the fastest clocks, but for the cap, which holds the step and not the kernel.
            near = true[0] <= true[0].min(axis=1, keepdims=True) + math.log(_NEAR)
            asked = near & np.isfinite(log[0])
            off = (true - log)[:, asked]
            told = figures_of(off, np.sqrt(variance[:, asked]), ("time", "energy"))
            return told | figures_of_plan(risk, truth.of_clocks, best_change(self.gpu))


@cache
def _reference(name: str) -> tuple[SampleSet, Rows]:
    """Return what steering measured of kernels that it reached, and the rows it comes to."""
    whole = reached(read_steered(name)).sample_set
    return whole, fit_rows(whole, whole.settings)[0]


@dataclasses.dataclass(frozen=True)
class Steered:
    """What steering measured on a real H200: some of it, to predict the rest and the step."""

    name: str
    seed: int

    def figures(self) -> Figures:
        """Predict rows that are left out, and the step at auto as if nobody had looked at it."""
        whole, rows = _reference(self.name)
        some = msgspec.structs.replace(whole, windows=self._drawn(whole))
        kept, model = fit_rows(some, whole.settings)
        known, every = (
            list(zip(each.kernel.tolist(), each.log_s.tolist(), strict=True))
            for each in (kept, rows)
        )
        out = np.array([one not in known for one in every])
        k, windows = rows.kernel[out], rows.windows[:, out]
        asked = [Clocks(core_mhz=round(mhz)) for mhz in rows.core_mhz[out].tolist()]
        settings = tuple(dict.fromkeys(asked))
        column = np.array([settings.index(clocks) for clocks in asked])
        one = posterior_of(model, settings, temperature_c=temperature_of(whole), limit_w=math.inf)
        off = np.stack(
            [rows.log_s[out] - one.log_s[k, column], rows.log_w[out] - one.log_w[k, column]]
        )
        variance = np.stack([one.variance(1.0, 0.0), one.variance(0.0, 1.0)])[:, k, column]
        told: Figures = {}
        for q, name in enumerate(("time", "power")):
            there = windows[q] > 0.0
            noise2 = one.noise[q, k[there]] ** 2 / windows[q, there]
            deviation = np.sqrt(variance[q, there] + noise2)
            told |= figures_of(off[[q]][:, there], deviation[None], (name,))
        step = compare(whole, with_auto=False)
        return told | {
            "step's time off": abs(step.time),
            "step's energy off": abs(step.energy),
            "its kernels' times rms": float(np.sqrt((step.kernels**2).mean())),
        }

    def _drawn(self, whole: SampleSet) -> tuple[Window, ...]:
        """Leave out some runs of the step in company, and of kernels that ran in several mixes."""
        random = np.random.default_rng(self.seed)
        mixes = Counter(sample.kernel for sample in whole.mixed)
        kept = []
        for sample in whole.windows:
            spare = sample.in_company if sample.is_step else mixes[sample.kernel] > 1
            if (sample.is_step or sample.kernel) and spare and random.random() < _LEFT_OUT:
                mixes[sample.kernel] -= 1
                if sample.mix == ALONE:
                    kept.append(sample.untimed())
                continue
            kept.append(sample)
        return tuple(kept)


Case: TypeAlias = Sweep | Simulated | Steered


def sections(seeds: int) -> Iterator[tuple[str, dict[str, Off], list[Case]]]:
    """Yield what is judged, by which parts and on which cases."""
    sweeps = sorted(file.stem for file in MEASURED.glob("*.csv") if "auto" not in file.name)
    some = range(seeds)
    for name, parts, fitted in (("inference", INFERENCE, False), ("fit", MODEL, True)):
        yield name, parts, [Sweep(f, n, s, fitted) for f in sweeps for n in _ROWS for s in some]
    yield "simulated", MODEL, [Simulated(gpu, s) for gpu in STRANGE for s in some]
    yield "steered", MODEL, [Steered(name, s) for name in _STEERED for s in some]


def judged(parts: Mapping[str, Off], case: Case) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of a case, whole, without each of the parts and without all five.

    What no part may change, as a campaign, is remembered from the whole.
    """
    five = {name: what for part in FIVE if part in parts for name, what in parts[part].items()}
    for name, off in {_WHOLE: {}, **parts, **({_FIVE: five} if five else {})}.items():
        with without(off):
            yield name, case.figures()


def table(told: Mapping[str, Mapping[str, Figures]]) -> str:
    """Return means over cases; bold where a part's absence surely makes worse, _so_ if better.

    Args:
        told: Figures of each case, by part.
    """
    whole = told[_WHOLE]
    names = list(next(iter(whole.values())))
    rows = [[f"without, of {len(whole)} cases", *names]]
    for part, cases in told.items():
        cells = [part]
        for name in names:
            of = np.array(
                [[of[case].get(name, math.nan) for of in (cases, whole)] for case in whole]
            )
            cell = f"{np.nanmean(of[:, 0]):.1%}"
            worse = np.diff(_bad(name, of[:, ::-1]), axis=1)[:, 0]
            worse = worse[np.isfinite(worse)]
            if len(worse) >= _FEWEST and worse.any():
                mean, error = mean_and_error(worse.tolist())
                if abs(mean) > _SURE * error:
                    cell = f"**{cell}**" if mean > 0.0 else f"_{cell}_"
            cells.append(cell)
        rows.append(cells)
    return markdown(rows)


def _bad(name: str, values: Floats) -> Floats:
    """Return how bad figures are."""
    if "covered" in name:
        return np.maximum(_COVERED - values, 0.0)
    return -values if "saving" in name or "kept" in name else values


def main() -> None:
    """Judge what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="cases with this word in them")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--to", type=Path, default=Path("ablation.jsonl"))
    asked = parser.parse_args()
    told: dict[str, dict[str, dict[str, Figures]]] = {}
    lines = asked.to.read_text().splitlines() if asked.to.exists() else []
    known = {(section, case): figures for section, case, figures in map(json.loads, lines)}
    for section, parts, cases in sections(asked.seeds):
        for case in cases:
            key = section, repr(case)
            if asked.only not in " ".join(key):
                continue
            if key not in known:
                begun_s = time.perf_counter()
                known[key] = dict(judged(parts, case))
                with asked.to.open("a") as file:
                    file.write(json.dumps([*key, known[key]]) + "\n")
                print(*key, f"{time.perf_counter() - begun_s:.0f} s", flush=True)
            for part, figures in known[key].items():
                told.setdefault(section, {}).setdefault(part, {})[key[1]] = figures
    tables = {section: table(of_parts) for section, of_parts in told.items()}
    fill("ablation", tables, repeats=f"{asked.seeds} seeds of each case.", whole=not asked.only)


if __name__ == "__main__":
    main()
