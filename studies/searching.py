"""Searches for the samples a plan needs, compared by what their plans save when executed.

    python studies/searching.py [--quick] [--only DATASET] [--folder FOLDER]

All of it is written to docs/evidence/searching.md; a part of it, or a quick run, is printed.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import searching_tuner
from searching_page import page
from searching_problem import Problem, Row, simulated_problem, table_problem
from searching_results import Cell, DataSetResults, Outcome, finalists
from searching_searchers import SEARCHERS, Searcher
from underclock.records import SampleSet
from underclock.tracing.trace import trace

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "evidence" / "searching.md"
_TABLES = (
    "rtx3080ti_kernels",
    "a40_llm_stages",
    "a100_apps",
    "titanx_apps",
    "gtx1080ti_kernels",
)
_SIMULATED = "sim_rtx3080ti"
_WORKLOAD = "gpt3-xl"
_BUDGETS = (0.0, 0.01)
_SHARES = (0.05, 0.10, 0.15, 0.20, 0.30)  # of a table's rows
_PER_KERNEL = (2, 4, 8, 16, 57)  # samples on the simulator; 57 are the paper's grid
_FINALISTS = 3  # of Kernel Tuner's, of a budget, run at every size
_QUICK_STRATEGIES = ("genetic_algorithm", "pso", "bayes_opt", "mls")


def try_out(
    searcher: Searcher, problem: Problem, sizes: Sequence[int], seeds: int | None
) -> list[Cell]:
    """Run one searcher at every size and budget, with as many seeds as it is worth."""
    many = searcher.seeds if seeds is None else min(seeds, searcher.seeds)
    if searcher.most is not None:
        sizes = [size for size in sizes if size <= searcher.most * len(problem.kernels)]
    cells = []
    for size in sizes[:1] if searcher.fixed else sizes:
        outcomes = [outcomes_of(problem, searcher, size, seed) for seed in range(many)]
        cells += [
            Cell(searcher=searcher.name, size=size, budget=budget, outcomes=some)
            for budget, some in zip(_BUDGETS, zip(*outcomes, strict=True), strict=True)
        ]
    return cells


def outcomes_of(problem: Problem, searcher: Searcher, size: int, seed: int) -> list[Outcome]:
    """Search at every budget, plan on what was taken, and execute the plans."""
    if searcher.ignores_budget:
        taken = searcher.take(problem, size, seed, 0.0)
        return [outcome(problem, taken, budget) for budget in _BUDGETS]
    return [
        outcome(problem, searcher.take(problem, size, seed, budget), budget) for budget in _BUDGETS
    ]


def outcome(problem: Problem, taken: Sequence[Row] | SampleSet, budget: float) -> Outcome:
    """Plan on what a search took, and execute the plan."""
    if isinstance(taken, SampleSet):
        sample_set, rows = taken, problem.rows_of(taken)
    else:
        sample_set, rows = problem.take(taken), list(dict.fromkeys(taken))
    cost = problem.executed(sample_set, budget, raw=None if sample_set is taken else True)
    return Outcome(
        taken=len(rows),
        gpu_s=problem.gpu_s(rows),
        saving=-cost.energy_change,
        time_change=cost.time_change,
        budget=budget,
    )


def compare(problem: Problem, pool: Executor, *, quick: bool, middle_only: bool) -> DataSetResults:
    """Run every searcher: Kernel Tuner's at the middle size, and the best of them at all."""
    many = len(problem.kernels)
    if problem.step is None:
        sizes = tuple(round(share * len(problem.samples)) for share in _SHARES)
    else:
        sizes = tuple(each * many for each in _PER_KERNEL)
    middle = sizes[2]
    seeds = None
    names = searching_tuner.strategies()
    if quick:
        sizes, seeds = (middle,), 2
        names = [name for name in names if name in _QUICK_STRATEGIES]
    rivals = {searcher.name: searcher for searcher in searching_tuner.searchers(names)}
    results = DataSetResults(
        name=problem.name,
        gpu=problem.rows.gpu.name,
        evidence=problem.rows.evidence,
        kernels=many,
        rows=len(problem.samples),
        sizes=sizes,
        middle=middle,
        full={budget: problem.full_saving(budget) for budget in _BUDGETS},
        neighbours={budget: problem.neighbours_saving(budget) for budget in _BUDGETS},
        cells=(),
        rivals=frozenset(rivals),
    )
    if middle_only:
        sizes = (middle,)
        results = replace(results, sizes=sizes)
    own = _run(pool, SEARCHERS, problem, sizes, seeds)
    all_rivals = _run(pool, list(rivals.values()), problem, (middle,), seeds)
    results = replace(results, cells=(*own, *all_rivals))
    if middle_only:
        return results
    best = [rivals[name] for name in finalists(results, _BUDGETS, _FINALISTS)]
    rest = tuple(size for size in sizes if size != middle)
    return replace(results, cells=(*results.cells, *_run(pool, best, problem, rest, seeds)))


def _run(
    pool: Executor,
    searchers: Sequence[Searcher],
    problem: Problem,
    sizes: tuple[int, ...],
    seeds: int | None,
) -> list[Cell]:
    job = partial(try_out, problem=problem, sizes=sizes, seeds=seeds)
    return [cell for cells in pool.map(job, searchers) for cell in cells]


def main() -> None:
    """Run, print, and write the page if everything was run."""
    parser = argparse.ArgumentParser(description="Compare searches for the samples of a plan.")
    parser.add_argument("--quick", action="store_true", help="two seeds, one size, a thinner grid")
    parser.add_argument("--middle", action="store_true", help="the middle number of samples only")
    parser.add_argument("--only", choices=[*_TABLES, _SIMULATED])
    parser.add_argument("--folder", type=Path, default=_ROOT.parent / "shared/data/measured")
    asked = parser.parse_args()
    began_s = time.perf_counter()
    sections = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in [asked.only] if asked.only else [*_TABLES, _SIMULATED]:
            if name == _SIMULATED:
                step = trace(_WORKLOAD)
                problem = simulated_problem("rtx3080ti", step, every=8 if asked.quick else 1)
            else:
                problem = table_problem(asked.folder / f"{name}.csv")
            sections.append(compare(problem, pool, quick=asked.quick, middle_only=asked.middle))
            spent_s = time.perf_counter() - began_s
            print(f"{name}: {spent_s:.0f} s so far", file=sys.stderr)
    text = page(sections, _BUDGETS, minutes=(time.perf_counter() - began_s) / 60.0)
    if asked.quick or asked.only:
        print(text)
        return
    _PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {_PAGE.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
