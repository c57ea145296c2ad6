"""What every part of the estimation buys: each switched off, on data that nobody tuned it for.

    OMP_NUM_THREADS=1 python studies/ablation.py --gate [--estimate NAME ...] [--only WORD]
    OMP_NUM_THREADS=1 python studies/ablation.py [--only WORD] [--seeds 2] [--to RESULTS.jsonl]

The first command asks whether an estimate reaches what is wanted of one (`studies/gate.py`).
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
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

import underclock
from ablation_parts import PARTS, Off, without
from draws import BUDGET, NEAR, SWEEPS, Sweep, judged_by
from estimates import Figures, figures_of, of_rows, steered_fit
from gate import FEW_ROWS, MADE, PAGES, STEERED, gate
from pages import fill, markdown, mean_and_error
from strange import STRANGE, strange_gpus
from truth import truth_of
from underclock.arrays import Floats, Ints
from underclock.core.model.estimate import estimate
from underclock.core.model.most_likely import temperature_of
from underclock.records import MeasurementSettings, SampleSet

_WHOLE = "(nothing)"
_COVERED, _SURE, _FEWEST = 0.95, 2.5, 5  # standard errors over cases, and cases that tell them
_SAMPLES = 200  # of a simulated campaign: about four a kernel
_TRUE_RUNS = 60
_BRIEF = MeasurementSettings(warm_s=20.0, steady_s=5.0, kernel_warm_s=5.0, window_s=1.0)


@cache
def campaign(gpu: str, seed: int) -> SampleSet:
    """Measure a layer of GPT-3 XL on a strange GPU, as a campaign of the package does."""
    with strange_gpus(gpu), tempfile.TemporaryDirectory() as folder:
        return underclock.measure(
            _step(),
            gpu="sim:rtx3080ti#smooth",
            to=Path(folder) / "samples.db",
            campaign=underclock.Campaign(max_samples=_SAMPLES, slowdowns=(BUDGET,)),
            measuring=_BRIEF,
            seed=seed,
        )


@cache
def best_change(gpu: str) -> float:
    """Return what the best clocks truly change of a strange GPU's energy."""
    with strange_gpus(gpu), truth_of("rtx3080ti", _step(), runs=_TRUE_RUNS) as truth:
        return truth.best(BUDGET)


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
        risk = estimate(samples).costs
        log, deviation = (each[..., :-1] for each in of_rows(risk))
        settings = risk.table.settings[:-1]
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
            near = true[0] <= true[0].min(axis=1, keepdims=True) + math.log(NEAR)
            asked = near & np.isfinite(log[0])
            off = (true - log)[:, asked]
            told = figures_of(off, deviation[:, asked], ("time", "energy"))

            def change(setting: Ints) -> tuple[float, float]:
                clocks = [risk.table.settings[s] for s in setting.tolist()]
                names = [kernel.name for kernel in risk.table.kernels]
                return truth.of_clocks(dict(zip(names, clocks, strict=True)))

            return told | judged_by(risk, change, best_change(self.gpu), BUDGET)


@dataclasses.dataclass(frozen=True)
class Steered:
    """What steering measured on a real H200: some of it, to predict the rest and the step."""

    name: str
    seed: int

    def figures(self) -> Figures:
        """Return the figures of the fit."""
        return steered_fit(self.name, self.seed)


Case: TypeAlias = Sweep | Simulated | Steered


def cases_of(seeds: int) -> Iterator[tuple[str, dict[str, Off], list[Case]]]:
    """Yield what is judged, by which parts and on which cases."""
    some = range(seeds)
    sweeps = [Sweep(f, n, s) for f in SWEEPS for n in FEW_ROWS for s in some]
    yield "sweeps", PARTS, [*sweeps]
    yield "simulated", PARTS, [Simulated(gpu, s) for gpu in STRANGE for s in some]
    yield "steered", PARTS, [Steered(name, s) for name in STEERED for s in some]


def judged(parts: Mapping[str, Off], case: Case) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of a case, whole and without each of the parts.

    What no part may change, as a campaign, is remembered from the whole.
    """
    for name, off in {_WHOLE: {}, **parts}.items():
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
    return -values if "reached" in name or "inside" in name else values


def main() -> None:
    """Judge what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--gate", action="store_true", help="judge the estimate, not its parts")
    parser.add_argument("--only", default="", help="cases with this word in them")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--to", type=Path, default=Path("ablation.jsonl"))
    asked = parser.parse_args()
    if asked.gate:
        texts = gate(asked.only)
        if asked.only:
            print(*(f"{name}\n\n{text}" for name, text in texts.items()), sep="\n\n")
            return
        for page, names in PAGES.items():
            filled = {f"gate {name}": texts[name] for name in names if name in texts}
            fill(page, filled, repeats=MADE, mark="made gate")
        return
    told: dict[str, dict[str, dict[str, Figures]]] = {}
    lines = asked.to.read_text().splitlines() if asked.to.exists() else []
    known = {(section, case): figures for section, case, figures in map(json.loads, lines)}
    for section, parts, cases in cases_of(asked.seeds):
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
