"""Few rows of measured sweeps: what is said of the others, and what plans of them are worth.

    OMP_NUM_THREADS=1 python studies/few_rows.py [--only random|searched] [--seeds 3]

Rows are drawn at random, or looked for by a campaign that replays the sweep, its repeats shuffled.
Truth is the mean of all runs of a row.
"""

import argparse
import csv
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

import underclock
from pages import MEASURED, fill, markdown
from underclock.arrays import Floats, Ints
from underclock.campaign.survey import Grid
from underclock.core.inference.joint import JointCosts
from underclock.core.inference.table import inferred_costs
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import choose_kernels, compare_strategies
from underclock.core.step.table import CostTable, cost_table
from underclock.records import SampleSet, Strategy
from underclock.store import read_samples

SWEEPS = (
    *("a100_apps", "a40_llm_stages", "gtx1080ti_kernels", "rtx3080ti_kernels"),
    *("rtx_laptop_repeats", "titanx_apps", "v100_repeats"),
)
ROWS, BUDGETS, SHARES = (3, 5, 8, 12), (0.0, 0.01), (0.15, 0.30)
SHUFFLED, SHUFFLES = "v100_repeats", 10
_KERNELS, _SIGMAS, _BEYOND, _LEAST, _MOST = 40, 1.96, 1e-3, 0.92, 0.98


def sweep(name: str) -> SampleSet:
    """Return a sweep, of 40 kernels at most."""
    whole = read_samples(MEASURED / f"{name}.csv")
    names = sorted(kernel.name for kernel in whole.kernels)
    kept = set(np.random.default_rng(1).permutation(names)[:_KERNELS].tolist())
    return msgspec.structs.replace(
        whole,
        kernels=tuple(kernel for kernel in whole.kernels if kernel.name in kept),
        windows=tuple(window for window in whole.windows if window.kernel in kept),
        expected_samples=None,
        sampled=True,
    )


def drawn(whole: SampleSet, truth: CostTable, rows: int, seed: int) -> SampleSet:
    """Return one run of some rows of each kernel, its row at auto among them."""
    draw = np.random.default_rng([seed, rows])
    runs = defaultdict(list)
    for window in whole.windows:
        runs[window.kernel, window.asked].append(window)
    auto, some = truth.settings[truth.baseline], []
    for kernel in whole.kernels:
        others = [c for c in truth.settings if c != auto and (kernel.name, c) in runs]
        picked = [others[i] for i in draw.permutation(len(others))[: rows - 1]]
        for clocks in (auto, *picked):
            of_row = runs[kernel.name, clocks]
            one = of_row[int(draw.integers(len(of_row)))]
            some.append(msgspec.structs.replace(one, repeat=0))
    lacking = {
        kernel.name: tuple(c for c in truth.settings if (kernel.name, c) not in runs)
        for kernel in whole.kernels
    }
    return msgspec.structs.replace(
        whole, windows=tuple(some), settings=truth.settings, lacking=lacking
    )


def changes(truth: CostTable, costs: JointCosts, setting: Ints) -> tuple[float, float]:
    """Return what a choice truly changes of time and energy."""
    names = [kernel.name for kernel in truth.kernels]
    k = np.array([names.index(kernel.name) for kernel in costs.table.kernels])
    columns = np.array([truth.settings.index(c) for c in costs.table.settings])[setting]
    time_s, energy_j = truth.time_s[k, columns].sum(), truth.energy_j[k, columns].sum()
    return time_s / truth.auto_time_s - 1.0, energy_j / truth.auto_energy_j - 1.0


def planned(costs: JointCosts, budget: float) -> Ints:
    """Return the choice that is planned within a budget; auto keeps every one."""
    setting = choose_kernels(costs.table, Goal(max_slowdown=budget), costs)
    if setting is None:
        raise AssertionError("auto keeps every budget")
    return setting


def best(truth: CostTable, budget: float) -> float:
    """Return what the best choice changes of energy within a budget."""
    goal = Goal(max_slowdown=budget)
    setting = compare_strategies(truth, goal).settings[Strategy.KERNEL_GLOBAL]
    k = np.arange(len(setting))
    return float(truth.energy_j[k, setting].sum() / truth.auto_energy_j - 1.0)


def errors(truth: CostTable, costs: JointCosts, known: SampleSet) -> Floats:
    """Return misses of rows nobody looked at, and their deviations: time, energy. (2, 2, N)."""
    names = {kernel.name: k for k, kernel in enumerate(truth.kernels)}
    columns = [truth.settings.index(c) for c in costs.table.settings]
    asked = np.isfinite(truth.time_s)[:, columns]
    for window in known.windows:
        asked[names[window.kernel], costs.table.settings.index(window.asked)] = False
    told = np.log([costs.table.time_s[asked], costs.table.energy_j[asked]])
    deviations = np.sqrt([costs.time.variance[asked], costs.energy.variance[asked]])
    true = np.log([truth.time_s[:, columns][asked], truth.energy_j[:, columns][asked]])
    # Costs without a row are stated as a choice among them makes of them; the median is told here.
    return np.array([told - true, deviations])


def of_random_rows(seeds: int) -> Iterator[tuple[object, ...]]:
    """Yield what is told by so many rows of each kernel."""
    yield ("rows a kernel", "time off", "covered", "energy off", "covered", "sweeps within", *(
        f"{what} at {budget:.0%}" for budget in BUDGETS for what in ("reached", "over", "kept")
    ))  # fmt: skip
    wholes = {name: sweep(name) for name in SWEEPS}
    truths = {name: cost_table(whole) for name, whole in wholes.items()}
    for rows in ROWS:
        figures, plans = [], defaultdict(list)
        for name, truth in truths.items():
            seen = []
            for seed in range(seeds):
                known = drawn(wholes[name], truth, rows, seed)
                costs = inferred_costs(known, baseline=truth.settings[truth.baseline])
                seen.append(errors(truth, costs, known))
                for budget in BUDGETS:
                    setting = planned(costs, budget)
                    took, saved = changes(truth, costs, setting)
                    told = costs.predicted_change(setting)
                    kept = abs(saved - told.energy_change) <= _SIGMAS * told.energy_spread + 1e-9
                    most = best(truth, budget)
                    reached = min(1.0, saved / most) if most < -_BEYOND else np.nan
                    plans[budget].append((reached, took > budget + _BEYOND, kept))
            off, deviations = np.concatenate(seen, axis=2)
            off = off - np.median(off, axis=1, keepdims=True)
            inside = (np.abs(off) <= _SIGMAS * deviations).mean(axis=1)
            figures.append([*np.sqrt((off**2).mean(axis=1)), *inside])
        time_off, energy_off, time_in, energy_in = np.mean(figures, axis=0)
        within = [sum(_LEAST <= each[i] <= _MOST for each in figures) for i in (2, 3)]
        made = [np.nanmean(plans[budget], axis=0) for budget in BUDGETS]
        yield (
            *(rows, f"{time_off:.1%}", f"{time_in:.1%}", f"{energy_off:.1%}", f"{energy_in:.1%}"),
            f"{within[0]}, {within[1]} of {len(figures)}",
            *(f"{value:.0%}" for each in made for value in each),
        )


def of_searched_rows(shuffles: int) -> Iterator[tuple[object, ...]]:
    """Yield what campaigns reach that look for rows of a sweep with repeats."""
    yield ("rows taken", "budget", "covered", "over budget", "reached", "least", "bias", "CPU")
    path = MEASURED / f"{SHUFFLED}.csv"
    truth = cost_table(read_samples(path))
    lines = list(csv.DictReader(path.open()))
    for share in SHARES:
        for budget in BUDGETS:
            made = [_searched(lines, truth, share, budget, seed) for seed in range(shuffles)]
            covered, over, reached, bias, cpu_s = np.array(made, dtype=np.float64).T
            yield (
                *(f"{share:.0%}", f"{budget:.0%}", f"{covered.sum():.0f} of {shuffles}"),
                *(
                    f"{over.sum():.0f} of {shuffles}",
                    f"{reached.mean():.1%}",
                    f"{reached.min():.1%}",
                ),
                *(f"{100 * bias.mean():+.2f}", f"{cpu_s.mean():.0f} s"),
            )


def _searched(
    lines: Sequence[dict[str, str]], truth: CostTable, share: float, budget: float, seed: int
) -> tuple[bool, bool, float, float, float]:
    order = np.random.default_rng(seed).permutation(len(lines))
    shuffled = [lines[i] for i in order]
    began_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        with table.open("w") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(shuffled)
        taken = underclock.measure(
            gpu=f"replay:{table}",
            to=Path(folder) / "samples.db",
            campaign=underclock.Campaign(
                grid=Grid.ADAPTIVE, max_samples=round(share * len(lines)), slowdowns=(budget,)
            ),
        )
    costs = inferred_costs(taken, baseline=truth.settings[truth.baseline])
    setting = planned(costs, budget)
    took, saved = changes(truth, costs, setting)
    told = costs.predicted_change(setting)
    bias = told.energy_change - saved
    covered = abs(bias) <= _SIGMAS * told.energy_spread
    reached = saved / best(truth, budget)
    return covered, took > budget + _BEYOND, reached, bias, time.process_time() - began_s


def main() -> None:
    """Fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("random", "searched"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shuffles", type=int, default=SHUFFLES)
    asked = parser.parse_args()
    parts = {}
    if asked.only != "searched":
        parts["random"] = markdown(of_random_rows(asked.seeds))
    if asked.only != "random":
        parts["searched"] = markdown(of_searched_rows(asked.shuffles))
    repeats = f"{asked.seeds} draws of each sweep, {asked.shuffles} shuffles."
    fill("few_rows", parts, repeats=repeats, whole=asked.only is None)


if __name__ == "__main__":
    main()
