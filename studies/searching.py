"""Searches for the samples a plan needs, compared by what their plans save when executed.

    OMP_NUM_THREADS=1 python studies/searching.py [--only TABLE] [--strategies 2]

On tables that somebody measured: a search is asked for 15 % of the rows and gives them in the order
it takes them, the baseline of every kernel among them. One that measures by itself gives a sample
set instead. Kernel Tuner is in the extra ``bench``.
"""

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from pages import MEASURED, fill, markdown
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.campaign.survey import Campaign, Grid
from underclock.core.planning.choices import cost_at
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import compare_strategies
from underclock.core.step.table import CostTable, cost_table
from underclock.errors import InfeasibleError
from underclock.records import Clocks, Cost, Kernel, SampleSet, Window
from underclock.store import read_table

Row = tuple[int, Clocks]  # a kernel, by index, and clocks
_TABLES = (
    *("rtx3080ti_kernels", "a40_llm_stages", "a100_apps", "titanx_apps", "gtx1080ti_kernels"),
)
_BUDGETS = (0.0, 0.01)
_SHARE = 0.15  # of a table's rows
_SEEDS, _RIVAL_SEEDS = 10, 3
_HEADER = (
    *("table", "budget", "samples", "full saving", "adaptive", "best of Kernel Tuner"),
    *("spread evenly", "random", "the paper's grid (samples)"),
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A table to search.

    Attributes:
        path: The table: everything that a searcher may take, and the truth.
    """

    path: Path

    @cached_property
    def rows(self) -> SampleSet:
        """Return all rows, one sample for each kernel and setting."""
        return read_table(self.path)

    @cached_property
    def samples(self) -> dict[Row, Window]:
        """Return every row by kernel and clocks."""
        index = {kernel.name: k for k, kernel in enumerate(self.rows.kernels)}
        by_row = {(index[sample.kernel], sample.asked): sample for sample in self.rows.samples}
        if len(by_row) != len(self.rows.samples):
            raise ValueError(f"{self.path} has repeated rows")
        return by_row

    @cached_property
    def costs(self) -> CostTable:
        """Return the truth as costs."""
        return cost_table(self.rows)

    @property
    def baseline(self) -> Clocks:
        """The clocks called auto."""
        return self.costs.settings[self.costs.baseline]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """What is measured."""
        return self.rows.kernels

    @property
    def baseline_rows(self) -> list[Row]:
        """The rows that no plan can do without."""
        return [(k, self.baseline) for k in range(len(self.kernels))]

    @cached_property
    def offered(self) -> tuple[tuple[Clocks, ...], ...]:
        """Return the settings of each kernel beside the baseline, slow to fast."""
        offered: list[list[Clocks]] = [[] for _ in self.kernels]
        for k, clocks in self.samples:
            if clocks != self.baseline:
                offered[k].append(clocks)
        return tuple(tuple(sorted(some, key=lambda clocks: clocks.rank)) for some in offered)

    def take(self, rows: Sequence[Row]) -> SampleSet:
        """Return a sample set of some rows."""
        samples = tuple(self.samples[row] for row in dict.fromkeys(rows))
        return msgspec.structs.replace(self.rows, windows=samples, expected_samples=len(samples))

    def rows_of(self, sample_set: SampleSet) -> list[Row]:
        """Return what a sample set has taken, in its order."""
        index = {kernel.name: k for k, kernel in enumerate(self.kernels)}
        return [(index[sample.kernel], sample.asked) for sample in sample_set.samples]

    def executed(self, sample_set: SampleSet, max_slowdown: float, *, raw: bool | None) -> Cost:
        """Plan on a sample set, and return what the plan costs in truth.

        Args:
            sample_set: What a search took.
            max_slowdown: Time budget.
            raw: Whether each row is taken for the truth; ``None`` as `plan` decides by itself.
        """
        auto = Cost(
            time_s=self.costs.auto_time_s,
            energy_j=self.costs.auto_energy_j,
            time_change=0.0,
            energy_change=0.0,
        )
        try:
            goal = Goal(max_slowdown=max_slowdown)
            made = plan(sample_set, goal, baseline=self.baseline, raw=raw)
        except InfeasibleError:
            return auto
        return cost_at(self.costs, {name: choice.clocks for name, choice in made.kernels.items()})

    def full_saving(self, max_slowdown: float) -> float:
        """Return what the plan on the whole table saves, as a fraction."""
        goal = Goal(max_slowdown=max_slowdown)
        setting = compare_strategies(self.costs, goal).settings[goal.chosen].tolist()
        names = [kernel.name for kernel in self.kernels]
        best = {name: self.costs.settings[s] for name, s in zip(names, setting, strict=True)}
        return -cost_at(self.costs, best).energy_change

    def regret(self, taken: Sequence[Row] | SampleSet, max_slowdown: float) -> float:
        """Return what a plan on what was taken lacks of that saving."""
        rows_are_truth = None if isinstance(taken, SampleSet) else True
        sample_set = taken if isinstance(taken, SampleSet) else self.take(taken)
        cost = self.executed(sample_set, max_slowdown, raw=rows_are_truth)
        return self.full_saving(max_slowdown) + cost.energy_change


COARSE_MHZ = 210  # between core clocks in the paper's grid

Take = Callable[[Problem, int, int, float], Sequence[Row] | SampleSet]
"""Of a problem, a number of samples, a seed and the plan's time budget."""


def coarse(problem: Problem, samples: int, seed: int, max_slowdown: float) -> list[Row]:
    """Take the paper's grid: core clocks nearest to every 210 MHz, every memory clock, auto."""
    del samples, seed, max_slowdown
    cores = sorted({c.core_mhz for _, c in problem.samples if c.core_mhz is not None})
    grid = {
        min(cores, key=lambda core: abs(core - mhz))
        for mhz in range(cores[0], cores[-1] + 1, COARSE_MHZ)
    }
    wanted = {None, *grid}
    rows = [row for row in problem.samples if row[1].core_mhz in wanted]
    return by_clocks(problem, dict.fromkeys([*problem.baseline_rows, *rows]))


def even(problem: Problem, samples: int, seed: int, max_slowdown: float) -> list[Row]:
    """Take settings spread evenly from slow to fast, memory first; as many of each kernel."""
    del seed, max_slowdown
    rows = list(problem.baseline_rows)
    for k, count in enumerate(shares(problem, samples)):
        some = problem.offered[k]
        rows += [(k, some[int((i + 0.5) * len(some) / count)]) for i in range(count)]
    return by_clocks(problem, rows)


def by_chance(problem: Problem, samples: int, seed: int, max_slowdown: float) -> list[Row]:
    """Take rows at random, from all kernels together."""
    del max_slowdown
    rest = [(k, clocks) for k, some in enumerate(problem.offered) for clocks in some]
    extra = max(0, min(len(rest), samples - len(problem.kernels)))
    chosen = random.Random(seed).sample(rest, extra)  # noqa: S311 - no secret
    return by_clocks(problem, [*problem.baseline_rows, *chosen])


def by_clocks(problem: Problem, rows: Iterable[Row]) -> list[Row]:
    """Order rows so that clocks change as seldom as can be, the baseline first."""
    return sorted(rows, key=lambda row: (row[1] != problem.baseline, _fast_first(row[1]), row[0]))


def _fast_first(clocks: Clocks) -> tuple[float, ...]:
    return tuple(-rank for rank in clocks.rank)


def shares(problem: Problem, samples: int) -> list[int]:
    """Spread what is left after the baseline over the kernels; the largest get one more."""
    many = len(problem.kernels)
    each, over = divmod(max(0, samples - many), many)
    auto_j = problem.costs.energy_j[:, problem.costs.baseline]
    largest = sorted(range(many), key=lambda k: -float(auto_j[k]))[:over]
    return [min(len(problem.offered[k]), each + (1 if k in largest else 0)) for k in range(many)]


def adaptive(problem: Problem, samples: int, seed: int, max_slowdown: float) -> SampleSet:
    """Measure adaptively, for this time budget; the plan is made on the fit."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(
            gpu=f"replay:{problem.path}",
            to=Path(folder) / "samples.db",
            campaign=Campaign(
                grid=Grid.ADAPTIVE,
                max_samples=samples,
                precision=1e-6,  # as many samples as the others have
                slowdowns=(max_slowdown,),
                in_situ=False,
            ),
            seed=seed,
        )


def compared(problem: Problem, strategies: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each budget: regret in points, and the share of the full saving reached."""
    from searching_tuner import kernel_tuner  # noqa: PLC0415 - its own part needs the extra

    size = round(_SHARE * len(problem.samples))
    for budget in _BUDGETS:
        full = problem.full_saving(budget)

        def shown(take: Take, seeds: int = 1, *, b: float = budget, f: float = full) -> str:
            regrets = [problem.regret(take(problem, size, s, b), b) for s in range(seeds)]
            mean = statistics.fmean(regrets)
            return f"{100 * mean:.2f} ({1.0 - mean / f if f else 0.0:.0%})"

        rivals = []
        for strategy in strategies:
            for limited in (False, True):
                said = shown(kernel_tuner(strategy, limited=limited), _RIVAL_SEEDS)
                rivals.append((float(said.split()[0]), f"{said} {strategy}"))
        grid = len(coarse(problem, size, 0, budget))
        yield (
            f"`{problem.path.stem}`",
            f"{budget:.0%}",
            str(size),
            f"{full:.2%}",
            shown(adaptive),
            min(rivals)[1] if rivals else "not run",
            shown(even),
            shown(by_chance, _SEEDS),
            f"{shown(coarse)} ({grid})",
        )


def main() -> None:
    """Compare all, and fill the page if everything was run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", choices=_TABLES)
    parser.add_argument("--strategies", type=int, help="of Kernel Tuner, the first so many")
    parser.add_argument("--folder", type=Path, default=MEASURED)
    asked = parser.parse_args()
    strategies: list[str] = []
    if asked.strategies != 0:
        from searching_tuner import names  # noqa: PLC0415 - its own part needs the extra

        strategies = names()[: asked.strategies]
    rows: list[tuple[str, ...]] = [_HEADER]
    for name in [asked.only] if asked.only else _TABLES:
        rows += compared(Problem(path=asked.folder / f"{name}.csv"), strategies)
        print(name, flush=True)
    repeats = f"Random: {_SEEDS} seeds, Kernel Tuner: {_RIVAL_SEEDS}."
    whole = asked.only is None and asked.strategies is None
    fill("searching", {"table": markdown(rows)}, repeats=repeats, whole=whole)


if __name__ == "__main__":
    main()
