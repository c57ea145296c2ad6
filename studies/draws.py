"""Some rows of measured sweeps: tables, what an estimate sees of them, and what a plan is worth.

Sweeps are those in ../shared/data/measured. Truth is the mean of all runs of a row.

Shape letters: K kernels, S settings of a table.
"""

import csv
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import msgspec
import numpy as np

import underclock
from estimates import Figures, costs_of, figures_of, of_rows
from known_tables import made_table
from pages import MEASURED
from underclock.arrays import Bools, Floats, Ints
from underclock.campaign.grid import Grid
from underclock.core.model.costs import Costs
from underclock.core.planning.best_choice import Goal
from underclock.core.planning.strategies import choose_kernels, solve_strategies
from underclock.core.step.cost_table import CostTable, cost_table
from underclock.errors import DataError
from underclock.records import Clocks, SampleSet, Step, Strategy
from underclock.store import read_samples

SWEEPS = (
    *("a100_apps", "a40_llm_stages", "gtx1080ti_kernels", "rtx3080ti_kernels"),
    *("rtx_laptop_repeats", "titanx_apps", "v100_repeats"),
)
BEYOND = 1e-3  # of auto's time: a tenth of a point over a budget
NEAR = 1.5  # of auto's time: what takes longer no plan would choose
BUDGET, _KERNELS, _RUNS = 0.01, 12, 3  # of the 42 cases
_FASTER, _SLOWER = 0.95, 1.1  # bounds of a time ratio, the upper times the ratio of clocks
_QUIET, _NOISY, _TWO_PACES = 3e-4, (0.012, 0.015), 0.03  # of log time and log power of a run
_SLOW_RUNS, _SIMULATED_RUNS = 0.4, 5  # share of runs at the slower pace; runs a row
_ODD = 0.72  # of a row's time and energy
_ODD_AT = (1.1, 1.3)  # of auto's time, in truth: the odd row seems faster than any clock explains


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Runs, and what each row truly costs."""

    runs: SampleSet
    truth: CostTable

    @property
    def auto(self) -> Clocks:
        """The baseline."""
        return self.truth.settings[self.truth.baseline]


@cache
def measured(name: str, kernels: int, seed: int | None = None, runs: int | None = None) -> Table:
    """Return a sweep of some of its kernels.

    Args:
        kernels: How many, drawn at random.
        seed: Of that draw; by default it is the sweep's own.
        runs: How many runs of a row at most; by default all.
    """
    whole = read_samples(MEASURED / f"{name}.csv")
    names = [kernel.name for kernel in whole.kernels]
    random = np.random.default_rng(len(names) if seed is None else [len(names), seed])
    kept = set(random.permutation(names)[:kernels].tolist())
    of = tuple(kernel for kernel in whole.kernels if kernel.name in kept)
    some = msgspec.structs.replace(
        whole,
        step=Step(name=whole.workload, kernels=of),
        windows=tuple(
            s for s in whole.samples if s.kernel in kept and (runs is None or s.repeat < runs)
        ),
        expected_samples=None,
    )
    return Table(runs=some, truth=cost_table(some))


@cache
def simulated(name: str, kernels: int, seed: int) -> Table:
    """Return a sweep's row means with noise of each kernel's own, five runs a row: simulated.

    A third of the kernels scatter by 1.2 to 1.5 % in time and power, two run at either of two paces
    3 % apart, and the rest repeat to 0.03 % (what kernels that were kept back did on a V100).
    """
    table = measured(name, kernels, seed)
    random = np.random.default_rng([seed, 44])
    scatter = np.full(len(table.truth.kernels), _QUIET)
    order = random.permutation(len(scatter))
    noisy, paced = order[: len(order) // 3], order[len(order) // 3 : len(order) // 3 + 2]
    scatter[noisy] = random.uniform(*_NOISY, len(noisy))
    first = {(s.kernel, s.asked): s for s in reversed(table.runs.samples)}
    launches, windows = table.truth.launches, []
    for k, c in np.argwhere(np.isfinite(table.truth.time_s)).tolist():
        one = first[table.truth.kernels[k].name, table.truth.settings[c]]
        for repeat in range(_SIMULATED_RUNS):
            time, power = np.exp(scatter[k] * random.standard_normal(2)).tolist()
            if k in paced:
                time *= 1.0 + _TWO_PACES * ((random.random() < _SLOW_RUNS) - _SLOW_RUNS)
            time_s, energy_j = launches.time_s[k, c] * time, launches.energy_j[k, c] * time * power
            windows.append(
                msgspec.structs.replace(one, repeat=repeat, time_s=time_s, energy_j=energy_j)
            )
    runs = msgspec.structs.replace(table.runs, windows=tuple(windows), sampled=True)
    return Table(runs=runs, truth=table.truth)


@cache
def random_table(seed: int, odd: float) -> Table | None:
    """Return a random table (`known_tables`) of which a share of the runs is odd.

    Returns:
        ``None`` where it has no clocks that every kernel has.
    """
    made = made_table(seed, wild_runs=odd, least_repeats=2)
    rows = tuple((*place, *costs) for place, costs in made.truth.items())
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "runs.csv", Path(folder) / "truth.csv"
        made.write(paths[0])
        replace(made, rows=rows).write(paths[1])
        runs, truth = map(read_samples, paths)
    try:
        seen_at = cost_table(runs)
    except DataError:
        return None
    auto = seen_at.settings[seen_at.baseline]
    return Table(runs=runs, truth=cost_table(truth, baseline=auto))


def known_rows(truth: CostTable, rows: float, *key: int) -> Bools:
    """Draw rows of each kernel at random; its baseline is known too. Shape (K, S).

    Args:
        rows: How many, besides the baseline; a fraction is a share, the baseline among them.
        key: Of the draw. More rows of the same key hold the fewer ones.
    """
    random = np.random.default_rng(key)
    known = np.zeros(truth.time_s.shape, dtype=bool)
    for k, row in enumerate(np.isfinite(truth.time_s)):
        order = random.permutation(np.flatnonzero(row))
        if rows < 1:
            order = order[order != truth.baseline][: max(1, round(rows * len(order)) - 1)]
        known[k, order if rows < 1 else order[: int(rows)]] = True
    known[:, truth.baseline] = True
    return known


def seen(table: Table, known: Bools, one_of: int | None = None) -> SampleSet:
    """Return the runs of known rows.

    Args:
        one_of: Seed by which one run of each row is drawn; by default all its runs are seen.
    """
    truth, by_row = table.truth, defaultdict(list)
    names = {kernel.name: k for k, kernel in enumerate(truth.kernels)}
    for window in table.runs.samples:
        by_row[names[window.kernel], truth.settings.index(window.asked)].append(window)
    windows = [one for row, some in by_row.items() if known[row] for one in some]
    if one_of is not None:
        random = np.random.default_rng([one_of, 1])
        rows = [some for row, some in by_row.items() if known[row]]
        picked = [some[int(random.integers(len(some)))] for some in rows]
        windows = [msgspec.structs.replace(one, repeat=0) for one in picked]
    there = np.isfinite(truth.time_s).tolist()
    return msgspec.structs.replace(
        table.runs,
        windows=tuple(windows),
        settings=truth.settings,
        sampled=True,
        lacking={
            kernel.name: tuple(c for c, yes in zip(truth.settings, row, strict=True) if not yes)
            for kernel, row in zip(truth.kernels, there, strict=True)
        },
    )


def with_odd_row(table: Table, known: Bools, seed: int) -> tuple[SampleSet, tuple[str, Clocks]]:
    """Let a kernel be looked at twice, at the baseline and at a row whose run is odd.

    Returns:
        One run of each known row; the kernel, and the odd row's clocks.
    """
    truth, random = table.truth, np.random.default_rng([seed, 72])
    at = truth.baseline
    ratio = truth.time_s / truth.time_s[:, [at]]
    somewhat_slower = np.argwhere((ratio > _ODD_AT[0]) & (ratio < _ODD_AT[1]))
    k, c = random.choice(somewhat_slower).tolist()
    known = known.copy()
    known[k] = False
    known[k, [at, c]] = True
    place = truth.kernels[k].name, truth.settings[c]
    samples = seen(table, known, seed)
    windows = tuple(
        msgspec.structs.replace(s, time_s=_ODD * s.time_s, energy_j=_ODD * s.energy_j)
        if (s.kernel, s.asked) == place
        else s
        for s in samples.windows
    )
    return msgspec.structs.replace(samples, windows=windows), place


@cache
def campaign(name: str, kernels: int, share: float, budget: float, seed: int) -> SampleSet:
    """Let a campaign look for a share of a sweep's rows, its lines shuffled."""
    table = measured(name, kernels, seed)
    kept, path = {kernel.name for kernel in table.runs.kernels}, MEASURED / f"{name}.csv"
    lines = [line for line in csv.DictReader(path.open()) if line["kernel"] in kept]
    looks = round(share * int(np.isfinite(table.truth.time_s).sum()))
    with tempfile.TemporaryDirectory() as folder:
        shuffled = Path(folder) / "table.csv"
        with shuffled.open("w") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines[i] for i in np.random.default_rng(seed).permutation(len(lines)))
        return underclock.measure(
            gpu=f"replay:{shuffled}",
            to=Path(folder) / "samples.db",
            campaign=underclock.Campaign(
                grid=Grid.ADAPTIVE, max_samples=looks, slowdowns=(budget,)
            ),
        )


def change(truth: CostTable, table: CostTable, setting: Ints) -> tuple[float, float]:
    """Return what a choice of a table's settings truly changes of time and energy."""
    names = [kernel.name for kernel in truth.kernels]
    k = np.array([names.index(kernel.name) for kernel in table.kernels])
    columns = np.array([truth.settings.index(c) for c in table.settings])[setting]
    time_s, energy_j = truth.time_s[k, columns].sum(), truth.energy_j[k, columns].sum()
    return float(time_s / truth.auto_time_s - 1.0), float(energy_j / truth.auto_energy_j - 1.0)


def best_choice(table: CostTable, budget: float) -> Ints:
    """Return the best choice within a budget on costs that are certain. Shape (K,)."""
    return solve_strategies(table, Goal(max_slowdown=budget))[1][Strategy.KERNEL_GLOBAL]


def best_saving(truth: CostTable, budget: float) -> float:
    """Return what the best choice changes of energy within a budget."""
    return change(truth, truth, best_choice(truth, budget))[1]


def planned(costs: Costs, budget: float) -> Ints:
    """Return the choice within a budget. Shape (K,)."""
    setting = choose_kernels(costs.table, Goal(max_slowdown=budget), costs)
    if setting is None:
        raise AssertionError("auto keeps every budget")
    return setting


def impossible(table: CostTable, setting: Ints) -> Bools:
    """Return whose time ratio to the baseline no change of clocks explains. Shape (K,)."""
    core, mem = _clocks_of(table)
    k, at = np.arange(len(setting)), table.baseline
    ratio = table.time_s[k, setting] / table.time_s[k, at]
    slower = np.maximum(core[at] / core[setting], 1.0) * np.maximum(mem[at] / mem[setting], 1.0)
    beyond: Bools = (setting != at) & ((ratio < _FASTER) | (ratio > _SLOWER * slower))
    return beyond


def _clocks_of(table: CostTable) -> Floats:
    """Return core and memory clocks of each setting in MHz; auto is the fastest. Shape (2, S)."""
    asked = [(c.core_mhz or 0, c.mem_mhz or 0) for c in table.settings]
    mhz = np.array(asked, dtype=np.float64).T
    fastest = np.maximum(mhz.max(axis=1, keepdims=True), 1.0)
    return np.where(mhz > 0.0, mhz, fastest)


def judged(costs: Costs, truth: CostTable, budget: float) -> Figures:
    """Plan within a budget, and return what the plan is truly worth and whether promises hold."""
    of = partial(change, truth, costs.table)
    return judged_by(costs, of, best_saving(truth, budget), budget)


def judged_by(
    costs: Costs, truth: Callable[[Ints], tuple[float, float]], best: float, budget: float
) -> Figures:
    """Return the same where truth is a function of choices, and ``best`` the most that they save.

    A plan that leaves everything at auto promises nothing: nothing of it lies inside.
    """
    setting = planned(costs, budget)
    time_change, energy_change = truth(setting)
    promise = costs.predicted_change(setting)
    time, energy = promise.intervals
    some = bool((setting != costs.table.baseline).any())

    def inside(off: float, interval: tuple[float, float]) -> float:
        return float(interval[0] <= off <= interval[1]) if some else math.nan

    return {
        "energy inside": inside(energy_change - promise.energy_change, energy),
        "time inside": inside(time_change - promise.time_change, time),
        "over": float(time_change > budget + BEYOND),
        "worst over": max(time_change - budget, 0.0),
        "reached": energy_change / best if best < -BEYOND else math.nan,
        "promise ±": energy[1] if some else math.nan,
        "energy change": energy_change,
        "impossible": float(impossible(costs.table, setting).any()),
    }


@dataclass(frozen=True)
class Sweep:
    """Some rows of a sweep, drawn at random, and auto; the rest are to be predicted."""

    name: str
    rows: int
    seed: int

    def figures(self) -> Figures:
        """Predict the rows that were not drawn, and plan."""
        table = measured(self.name, _KERNELS, runs=_RUNS)
        truth = table.truth
        known = known_rows(truth, self.rows, self.seed, self.rows)
        costs = costs_of(seen(table, known), table.auto)
        log, deviation = of_rows(costs)
        columns = np.array([truth.settings.index(c) for c in costs.table.settings])
        near = truth.time_s <= NEAR * truth.time_s[:, [truth.baseline]]
        asked = (near & ~known)[:, columns] & np.isfinite(log[0])
        with np.errstate(invalid="ignore"):
            true = np.log([truth.launches.time_s, truth.launches.energy_j])[:, :, columns]
            off = true - log
        rows = figures_of(off[:, asked], deviation[:, asked], ("time", "energy"))
        return rows | judged(costs, truth, BUDGET)
