"""Tables of runs whose truth is known, with more and more odd runs. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/odd_runs.py [TABLES]

Each table is planned on what is inferred of its runs and, beside it in the same run, on the plain
means of its rows, and costed by what the drawn GPU truly does there.
"""

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from random_tables_made import MadeTable, made_table
from underclock.core.inference.field import Errors
from underclock.core.inference.joint import JointCosts
from underclock.core.inference.table import as_measured, inferred_costs
from underclock.core.planning.best_choice import choose_kernels
from underclock.core.planning.goal import Goal
from underclock.errors import UnderclockError
from underclock.records import Evidence, GpuInfo, Kernel, Sample, SampleSet

PAGE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "odd_runs.md"
ODD = (0.0, 0.01, 0.03)
BUDGETS = (0.0, 0.01, 0.05)
WAYS: dict[str, Callable[[SampleSet], JointCosts]] = {
    "inferred": inferred_costs,
    "means of rows": as_measured,
}
_LEAST_REPEATS = 2
_HEAD = """# Odd runs in tables whose truth is known

{tables} random tables (`studies/random_tables_made.py`: GPUs that nobody built, 2 to 53 kernels,
heavy tails, a power cap in half of them), most rows with {repeats} runs or more, planned for time
budgets of 0, 1 and 5 %. A share of the runs is disturbed: 65 % longer on average, with another
power. Numbers are of **random** tables.

    OMP_NUM_THREADS=1 python studies/odd_runs.py {tables}

{date}, {machine}; {seconds:.0f} s of the processor. *Saving lost*: points of energy that the best
choice on the truth saves beyond the plan. *Over budget*: plans that truly take longer than their
budget by 0.1 points or more (1 in 20 may). *Covered*: the true change of energy lies in the
promise's 95 % interval. *Bias*: promised less true change, in points.

| odd runs | planned on | plans | saving lost | over budget | covered | bias |
|---|---|---:|---:|---:|---:|---:|
"""

_TAIL = """

What is inferred promises what comes and breaks fewer budgets than it may; it loses more of the
saving than plain means of repeated rows do, which promise too much and are unsure of less. The
model before this one, which drew rows towards their neighbours, lost 3.6, 7.4 and 9.1 points on the
first 60 of these tables (measured on 2026-11-23 with the same script but for the import), where one
odd run could turn a plan into auto. Wanted were 0.7, 1 and 1.5 points: **missed**.

On measured tables it is the other way round: on halves of the laptop's repeats (20 splits, seed 7)
means of rows promise 1.0 to 1.2 points too much, covered in 45 to 50 % of the splits and over a
budget of 0 % beyond the noise in 45 %, where what is inferred is off by -0.05 to +0.46 points and
covered in 95 to 100 %, at the same executed saving but at 0 % (10.4 for 10.9 %). On the V100's (20
splits) means promise 0.1 to 0.6 points too much, covered in 80 to 85 %, against -0.1 to +0.1 and 85
to 100 %; they save 12.8, 15.8 and 21.6 % at 0, 1 and 5 %, what is inferred 11.3, 15.1 and 21.3 %.
"""


def as_samples(made: MadeTable) -> SampleSet:
    """Return a table as it would be read."""
    taken: dict[object, int] = {}
    samples = []
    for name, clocks, time_s, energy_j in made.rows:
        repeat = taken[name, clocks] = taken.get((name, clocks), -1) + 1
        samples.append(
            Sample(kernel=name, asked=clocks, repeat=repeat, time_s=time_s, energy_j=energy_j)
        )
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="Random GPU"),
        workload="random",
        kernels=tuple(Kernel(name=name, count=count) for name, count in made.counts.items()),
        samples=tuple(samples),
    )


def judged(made: MadeTable, costs: JointCosts, budget: float) -> tuple[float, bool, bool, float]:
    """Return what a plan loses, whether it is over budget and covered, and its bias."""
    table, goal = costs.table, Goal(max_slowdown=budget)
    truth = np.array([[made.truth[k.name, s] for s in table.settings] for k in table.kernels])
    counts = np.array([[kernel.count] for kernel in table.kernels])
    there = np.isfinite(table.time_s)
    true_s, true_j = (np.where(there, counts * truth[:, :, i], np.inf) for i in (0, 1))
    known = dataclasses.replace(table, time_s=true_s, energy_j=true_j)
    surely = Errors(
        own=np.zeros((*there.shape, 0)),
        shared=np.zeros((*there.shape, 0)),
        rest=np.zeros(there.shape),
    )
    exact = JointCosts(table=known, time=surely, energy=surely)
    setting, best = choose_kernels(table, goal, costs), choose_kernels(known, goal, exact)
    if setting is None or best is None:
        raise AssertionError("auto keeps every budget")
    changes = [
        made.changes(
            {k.name: table.settings[c] for k, c in zip(table.kernels, chosen, strict=True)},
            table.settings[table.baseline],
        )
        for chosen in (setting, best)
    ]
    (took, saved), (_, most) = changes
    promise = costs.predicted_change(setting)
    bias = promise.energy_change - saved
    covered = abs(bias) <= 1.96 * promise.energy_spread + 1e-9
    return saved - most, took > budget + 1e-3, covered, bias


def main() -> None:
    """Judge every table both ways, and write the page."""
    tables = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    lines, began_s = [], time.process_time()
    for odd in ODD:
        outcomes: dict[str, list[tuple[float, bool, bool, float]]] = {way: [] for way in WAYS}
        for seed in range(tables):
            made = made_table(seed, wild_runs=odd, least_repeats=_LEAST_REPEATS)
            sample_set = as_samples(made)
            for way, costs_of in WAYS.items():
                try:
                    costs = costs_of(sample_set)
                except UnderclockError:  # no clocks that every kernel has
                    continue
                outcomes[way] += [judged(made, costs, budget) for budget in BUDGETS]
        for way, rows in outcomes.items():
            lost, over, covered, bias = np.array(rows, dtype=np.float64).T
            lines.append(
                f"| {odd:.0%} | {way} | {len(rows)} | {100 * lost.mean():.2f} ± "
                f"{196 * lost.std() / len(rows) ** 0.5:.2f} | {over.mean():.1%} "
                f"| {covered.mean():.1%} | {100 * bias.mean():+.2f} |"
            )
            print(lines[-1], flush=True)
    head = _HEAD.format(
        tables=tables,
        repeats=_LEAST_REPEATS,
        date=time.strftime("%Y-%m-%d"),
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        seconds=time.process_time() - began_s,
    )
    PAGE.write_text(head + "\n".join(lines) + _TAIL)


if __name__ == "__main__":
    main()
