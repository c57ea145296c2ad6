"""Tables of runs whose truth is known, with more and more odd runs. Writes docs/evidence.

    OMP_NUM_THREADS=1 python studies/odd_runs.py [TABLES]

Each table is planned on what is inferred of its runs and, beside it in the same run, on the plain
means of its rows, and costed by what the drawn GPU truly does there.
"""

import dataclasses
import sys
from collections.abc import Callable

import numpy as np

from known_tables import MadeTable, made_table
from pages import fill, markdown
from score import as_measured
from underclock.core.inference.field import Errors
from underclock.core.inference.joint import JointCosts
from underclock.core.inference.table import inferred_costs
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import choose_kernels
from underclock.errors import UnderclockError
from underclock.records import Evidence, GpuInfo, Kernel, SampleSet, Window

ODD = (0.0, 0.01, 0.03)
BUDGETS = (0.0, 0.01, 0.05)
WAYS: dict[str, Callable[[SampleSet], JointCosts]] = {
    "inferred": inferred_costs,
    "means of rows": as_measured,
}
_LEAST_REPEATS, _ENOUGH = 2, 100
_HEADER = ("odd runs, planned on", "plans", "saving lost", "over budget", "covered", "bias")


def as_samples(made: MadeTable) -> SampleSet:
    """Return a table as it would be read."""
    taken: dict[object, int] = {}
    samples = []
    for name, clocks, time_s, energy_j in made.rows:
        repeat = taken[name, clocks] = taken.get((name, clocks), -1) + 1
        samples.append(
            Window(kernel=name, asked=clocks, repeat=repeat, time_s=time_s, energy_j=energy_j)
        )
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="Random GPU"),
        workload="random",
        kernels=tuple(Kernel(name=name, count=count) for name, count in made.counts.items()),
        windows=tuple(samples),
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
    lines: list[tuple[str, ...]] = [_HEADER]
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
                (
                    f"{odd:.0%}, {way}",
                    str(len(rows)),
                    f"{100 * lost.mean():.2f} ± {196 * lost.std() / len(rows) ** 0.5:.2f}",
                    f"{over.mean():.1%}",
                    f"{covered.mean():.1%}",
                    f"{100 * bias.mean():+.2f}",
                )
            )
            print(*lines[-1], sep="  ", flush=True)
    fill(
        "odd_runs",
        {"table": markdown(lines)},
        repeats=f"{tables} tables, each at 3 budgets.",
        whole=tables >= _ENOUGH,
    )


if __name__ == "__main__":
    main()
