"""What searches came to: executed plans, and their means over seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MORE = 1e-3  # a time change beyond the budget by this much is more than noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One search, and the plan made from it, executed.

    Attributes:
        taken: Number of samples.
        gpu_s: How long they kept the GPU busy.
        saving: Of the executed plan, as a fraction of the baseline's energy.
        time_change: Of the executed plan, as a fraction of the baseline's time.
        budget: The greatest time change allowed.
    """

    taken: int
    gpu_s: float
    saving: float
    time_change: float
    budget: float

    def broke(self, by: float) -> bool:
        """Whether the executed plan is slower than allowed by more than a fraction."""
        return self.time_change > self.budget + by


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A searcher at one number of samples and one time budget, over its seeds."""

    searcher: str
    size: int
    budget: float
    outcomes: tuple[Outcome, ...]

    @property
    def saving(self) -> float:
        """Return the mean executed saving."""
        return statistics.fmean(outcome.saving for outcome in self.outcomes)

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over seeds; ``None`` where there is one."""
        if len(self.outcomes) == 1:
            return None
        return statistics.stdev(outcome.saving for outcome in self.outcomes)

    @property
    def taken(self) -> float:
        """Return the mean number of samples."""
        return statistics.fmean(outcome.taken for outcome in self.outcomes)

    @property
    def gpu_s(self) -> float:
        """Return the mean GPU time."""
        return statistics.fmean(outcome.gpu_s for outcome in self.outcomes)

    @property
    def time_change(self) -> float:
        """Return the mean executed time change."""
        return statistics.fmean(outcome.time_change for outcome in self.outcomes)

    def broke(self, by: float) -> float:
        """Return the share of runs that broke the time budget by more than a fraction."""
        return statistics.fmean(outcome.broke(by) for outcome in self.outcomes)


@dataclass(frozen=True, kw_only=True)
class DataSetResults:
    """Everything about one data set.

    Attributes:
        name: The data set's.
        gpu: Name of the GPU.
        evidence: Of every number.
        kernels: How many.
        rows: How many could be taken.
        sizes: Samples asked for.
        middle: The size at which every strategy ran.
        full: Saving of the plan on the truth, by budget.
        neighbours: The same, believing neighbours only; by budget.
        cells: Results.
        rivals: Names of Kernel Tuner's searchers.
    """

    name: str
    gpu: str
    evidence: str
    kernels: int
    rows: int
    sizes: tuple[int, ...]
    middle: int
    full: dict[float, float]
    neighbours: dict[float, float]
    cells: tuple[Cell, ...]
    rivals: frozenset[str]

    def cell(self, searcher: str, size: int, budget: float) -> Cell | None:
        """Return one cell; ``None`` where it was not run."""
        wanted = (searcher, size, budget)
        return next((c for c in self.cells if (c.searcher, c.size, c.budget) == wanted), None)

    def regret(self, cell: Cell) -> float:
        """Return what a cell lacks of the saving of the plan on the truth."""
        return self.full[cell.budget] - cell.saving

    def ranked(self, budget: float) -> list[Cell]:
        """Return Kernel Tuner's at the middle size, best first; of a strategy the better one."""
        here = [
            cell
            for cell in self.cells
            if cell.searcher in self.rivals and (cell.size, cell.budget) == (self.middle, budget)
        ]
        best: dict[str, Cell] = {}
        for cell in sorted(here, key=self.regret):
            best.setdefault(strategy_of(cell.searcher), cell)
        return list(best.values())


def strategy_of(searcher: str) -> str:
    """Return the strategy in the name of one of Kernel Tuner's searchers."""
    return searcher.partition(",")[0]


def finalists(results: DataSetResults, budgets: Sequence[float], count: int) -> list[str]:
    """Return the searchers that are among the best of the middle size at any budget."""
    best = [cell.searcher for budget in budgets for cell in results.ranked(budget)[:count]]
    return list(dict.fromkeys(best))
