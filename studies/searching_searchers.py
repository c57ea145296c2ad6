"""Ways to decide which kernels to measure at which clocks.

A searcher is asked for a number of samples and gives them in the order it takes them, the
baseline of every kernel among them. One that measures by itself gives a sample set instead.
"""

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from searching_problem import Problem, Row
from underclock.app.measuring import measure
from underclock.campaign.survey import Campaign, Grid
from underclock.records import Clocks, SampleSet

COARSE_MHZ = 210  # between core clocks in the paper's grid

Take = Callable[[Problem, int, int, float], Sequence[Row] | SampleSet]
"""Of a problem, a number of samples, a seed and the plan's time budget."""


@dataclass(frozen=True, kw_only=True)
class Searcher:
    """A way to search.

    Attributes:
        name: For the page.
        take: Chooses.
        seeds: How many are worth running; 1 where nothing is random.
        fixed: Whether it takes as many samples as it takes, whatever it is asked for.
        ignores_budget: Whether it takes the same samples whatever the time budget.
        most: Samples a kernel, beyond which it is not asked; ``None`` for no such limit.
    """

    name: str
    take: Take
    seeds: int = 1
    fixed: bool = False
    ignores_budget: bool = False
    most: int | None = None


def exhaustive(problem: Problem, samples: int, seed: int, max_slowdown: float) -> list[Row]:
    """Take everything."""
    del samples, seed, max_slowdown
    return by_clocks(problem, problem.samples)


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
            problem.step,
            gpu=problem.gpu,
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


SEARCHERS = (
    Searcher(name="adaptive", take=adaptive, most=16),
    Searcher(name="exhaustive", take=exhaustive, fixed=True, ignores_budget=True),
    Searcher(name="the paper's grid", take=coarse, fixed=True, ignores_budget=True),
    Searcher(name="spread evenly", take=even, ignores_budget=True),
    Searcher(name="random", take=by_chance, seeds=10, ignores_budget=True),
)
"""All but Kernel Tuner's."""
