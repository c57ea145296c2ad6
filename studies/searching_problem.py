"""What a search is run on: rows that may be taken, one at a time, and the truth behind them.

On a table somebody measured, the table is both. On a simulated GPU the rows are a full grid with
the GPU's noise, and the truth is the same grid, in the same order, without it.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from underclock.app.planning import plan
from underclock.campaign.recording import as_sample
from underclock.campaign.survey import Campaign, Grid, settings_of
from underclock.core.planning.choices import cost_of
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import compare_strategies
from underclock.core.step.table import CostTable, cost_table
from underclock.errors import InfeasibleError
from underclock.hw.base import Loop
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.simulated.launcher import VirtualLauncher
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.records import (
    Clocks,
    Cost,
    Evidence,
    Kernel,
    MeasurementSettings,
    Mix,
    Sample,
    SampleSet,
    Step,
)
from underclock.store import read_table

Row = tuple[int, Clocks]  # a kernel, by index, and clocks
PAPER = MeasurementSettings()
ROUNDING = 1e-9  # of a time change; a plan may use its budget whole


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set to search.

    Attributes:
        name: Short.
        gpu: As after ``--gpu``.
        step: What is measured; ``None`` where a table brings its kernels.
        rows: Everything a searcher may take, one sample for each kernel and setting.
        truth: What plans are scored on.
        row_s: GPU time of each sample of ``rows``, changes of clocks apart; in their order.
        warm_s: GPU time before the first sample.
    """

    name: str
    gpu: str
    step: Step | None
    rows: SampleSet
    truth: SampleSet
    row_s: tuple[float, ...]
    warm_s: float

    @cached_property
    def samples(self) -> dict[Row, Sample]:
        """Return every row by kernel and clocks."""
        index = {kernel.name: k for k, kernel in enumerate(self.rows.kernels)}
        by_row = {(index[sample.kernel], sample.asked): sample for sample in self.rows.samples}
        if len(by_row) != len(self.rows.samples):
            raise ValueError(f"{self.name} has repeated rows")
        return by_row

    @cached_property
    def costs(self) -> CostTable:
        """Return the truth as costs."""
        return cost_table(self.truth)

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
        return msgspec.structs.replace(self.rows, samples=samples, expected_samples=len(samples))

    def rows_of(self, sample_set: SampleSet) -> list[Row]:
        """Return what a sample set has taken, in its order."""
        index = {kernel.name: k for k, kernel in enumerate(self.kernels)}
        return [(index[sample.kernel], sample.asked) for sample in sample_set.samples]

    def gpu_s(self, rows: Sequence[Row]) -> float:
        """Return the GPU time of rows taken in this order."""
        each_s = dict(zip(self.samples, self.row_s, strict=True))
        changes = 1 + sum(a[1] != b[1] for a, b in itertools.pairwise(rows))
        return self.warm_s + sum(each_s[row] for row in rows) + PAPER.settle_s * changes

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
        return cost_of(self.costs, {name: choice.clocks for name, choice in made.kernels.items()})

    def _best(self, max_slowdown: float) -> list[Clocks]:
        """Return the clocks of every kernel that are best in truth, which leaves no doubt."""
        goal = Goal(max_slowdown=max_slowdown)
        setting = compare_strategies(self.costs, goal).settings[goal.chosen]
        return [self.costs.settings[s] for s in setting.tolist()]

    def full_saving(self, max_slowdown: float) -> float:
        """Return what the plan on the whole truth saves, as a fraction."""
        names = [kernel.name for kernel in self.kernels]
        best = dict(zip(names, self._best(max_slowdown), strict=True))
        return -cost_of(self.costs, best).energy_change

    def neighbours_saving(self, max_slowdown: float) -> float:
        """Return what that plan saves where its neighbours in core clock speak for each choice.

        A row that is only lucky is not helped by its neighbours. Choices at an end of a line, and
        the baseline, speak for themselves.
        """
        believed_j = [
            _believed(self.costs, k, chosen, self.baseline)
            for k, chosen in enumerate(self._best(max_slowdown))
        ]
        return 1.0 - sum(believed_j) / self.costs.auto_energy_j


def _believed(costs: CostTable, k: int, chosen: Clocks, baseline: Clocks) -> float:
    """Return a kernel's energy between the settings on either side of a chosen one."""
    line = [
        (clocks.core_mhz, float(costs.energy_j[k, s]))
        for s, clocks in enumerate(costs.settings)
        if clocks.mem_mhz == chosen.mem_mhz
        and clocks.core_mhz is not None
        and costs.energy_j[k, s] < float("inf")
    ]
    column = costs.column(chosen)
    if column is None:
        raise AssertionError("a plan only chooses settings that the table has")
    own = float(costs.energy_j[k, column])
    below = [item for item in line if item[0] < (chosen.core_mhz or 0)]
    above = [item for item in line if item[0] > (chosen.core_mhz or 0)]
    if chosen in (baseline, Clocks()) or chosen.core_mhz is None or not below or not above:
        return own
    (low, low_j), (high, high_j) = below[-1], above[0]
    return low_j + (high_j - low_j) * (chosen.core_mhz - low) / (high - low)


def table_problem(path: Path) -> Problem:
    """Return the search of a measured table, every sample costing what the paper's did."""
    table = read_table(path)
    each_s = PAPER.kernel_warm_s + PAPER.window_s
    return Problem(
        name=path.stem,
        gpu=f"replay:{path}",
        step=None,
        rows=table,
        truth=table,
        row_s=(each_s,) * len(table.samples),
        warm_s=0.0,
    )


class _Silent:
    """A launcher whose kernels take exactly what the model says."""

    look_s = 0.0  # what ran is known without a profiler

    def __init__(self, rig: Rig) -> None:
        self._launcher = VirtualLauncher(rig.device)
        self._device = rig.device

    @contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Loop]:
        """Keep launching a sequence from entry to exit."""
        with self._launcher.loop(kernels, mix) as loop:
            if self._device.running is not None:
                self._device.running.time_noise = self._device.running.power_noise = 1.0
            yield loop

    def notes(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()


def simulated_problem(model: str, step: Step, *, every: int = 1, seed: int = 0) -> Problem:
    """Measure a step on a simulated GPU at its whole grid, with the GPU's noise and without.

    Args:
        model: Name, as in ``sim:NAME``.
        step: What to measure.
        every: Take every so many of the core clocks only.
        seed: Of the noise.
    """
    rows, row_s, warm_s = _sweep(model, step, every=every, seed=seed, silent=False)
    truth, _, _ = _sweep(model, step, every=every, seed=seed, silent=True)
    return Problem(
        name=f"sim_{model}",
        gpu=f"sim:{model}",
        step=step,
        rows=rows,
        truth=truth,
        row_s=row_s,
        warm_s=warm_s,
    )


def _sweep(
    model: str, step: Step, *, every: int, seed: int, silent: bool
) -> tuple[SampleSet, tuple[float, ...], float]:
    """Return all samples, the virtual time each took, and that of warming."""
    samples, row_s = [], []
    with simulated_rig(model, seed=seed) as rig:
        measurer = GpuMeasurer(
            rig.gpu,
            _Silent(rig) if silent else rig.launcher,
            rig.clock,
            evidence=Evidence.SIMULATED,
            measuring=PAPER,
        )
        settings = settings_of(measurer, Campaign(grid=Grid.FULL))
        cores = sorted({clocks.core_mhz for clocks in settings if clocks.core_mhz is not None})
        wanted = {None, *cores[::every]}
        settings = tuple(clocks for clocks in settings if clocks.core_mhz in wanted)
        measurer.warm([step.kernels[index] for index in step.order])
        warm_s = measurer.now_s()
        for clocks in settings:
            with measurer.hold(clocks):
                for kernel in step.kernels:
                    before_s = measurer.now_s()
                    samples.append(as_sample(kernel.name, clocks, 0, measurer.measure([kernel])))
                    row_s.append(measurer.now_s() - before_s)
        sample_set = SampleSet(
            evidence=Evidence.SIMULATED,
            gpu=measurer.info(),
            workload=step.name,
            kernels=step.kernels,
            samples=tuple(samples),
            fingerprint=step.fingerprint,
            settings=settings,
            expected_samples=len(samples),
            order=step.order,
        )
    return sample_set, tuple(row_s), warm_s
