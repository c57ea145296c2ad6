"""The paper's study from end to end: search, choose in eight ways, validate, carry over."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from underclock.core.planning.goal import Goal
from underclock.core.statistics.pairs import pair_changes
from underclock.errors import UsageError
from underclock.hw.measurer import Protocol
from underclock.paper import published
from underclock.paper.choices import agreement, beside_table1, clock_changes
from underclock.paper.comparison import Setup, figures
from underclock.paper.elsewhere import WORKLOAD, before_optimizer, transfers
from underclock.paper.records import Change, RelaxedPoint, Revalidation, Search, Study, Table2Cell
from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Clocks,
    Cost,
    Granularity,
    Objective,
    Plan,
    SampleSet,
    Step,
    Strategy,
    Validation,
)
from underclock.stages.backends import open_measurer, split_spec
from underclock.stages.campaign import Campaign, Grid
from underclock.stages.doctor import GpuFinding, examine
from underclock.stages.measure import Tally, measure
from underclock.stages.plan import plan
from underclock.stages.trace import trace
from underclock.stages.validate import validate

PAPERS_GPU = "sim:rtx3080ti"
_OTHER_GPU = "sim:a4000"
_SLOWDOWNS_PCT = tuple(half / 2.0 for half in range(21))  # 0 to 10 %
_TRANSFER_SEED_OFFSET = 2  # neither the noise of the search nor that of the validation
_DAY_S = 86_400.0
_LAYER_SECTIONS = ("Lf", "Lb")


@dataclass(frozen=True, slots=True)
class _Search:
    """A step measured at every clock pair of the grid, and what that took of the GPU's time."""

    sample_set: SampleSet
    gpu_s: float


def run_study(
    *,
    gpu: str = PAPERS_GPU,
    grid: Grid = Grid.COARSE,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
) -> Study:
    """Run the paper's study on a simulated GPU.

    Costs are sums of isolated kernels and clocks change for free, both as in the paper.

    Args:
        gpu: ``sim:NAME``.
        grid: Which clock pairs to visit.
        seed: Of the GPU's noise.
        progress: Told of every sample.

    Raises:
        UsageError: Not a simulated GPU, or no such model.
        DeviceError, MeasurementError: From the GPU.
    """
    finding = simulated(gpu)
    show = progress or (lambda _tally: None)
    step = before_optimizer(trace(WORKLOAD))
    search = _search(step, gpu, grid, seed, show)
    plans = {
        (objective, aggregate): plan(
            search.sample_set, Goal(objective=objective, aggregate=aggregate), raw=True
        )
        for objective in (Objective.EDP, Objective.WASTE)
        for aggregate in Aggregate
    }
    best = plans[Objective.WASTE, Aggregate.GLOBAL]
    validation = validate(
        best, gpu=gpu, repeats=published.REPEATS, only_plan=True, seed=seed, progress=show
    )
    with open_measurer(gpu, seed=seed + _TRANSFER_SEED_OFFSET) as measurer:
        by_batch, by_degree = transfers(measurer, best, tell=_as_tally(show))
    rows = beside_table1(best, _auto_clocks(search.sample_set))
    study = Study(
        evidence=search.sample_set.evidence,
        gpu=search.sample_set.gpu,
        calibration=finding.calibration,
        source=published.SOURCE,
        workload=step.name,
        grid=grid.value,
        seed=seed,
        table2=tuple(_cell(plans, *way) for way in published.TABLE2),
        table1=rows,
        agreement=agreement(rows),
        clock_changes_per_layer=_clock_changes_per_layer(best),
        validation=_revalidation(validation),
        batch_transfer=by_batch,
        tensor_parallel_transfer=by_degree,
        relaxed=_relaxed(search.sample_set),
        a4000=search_again(step, _OTHER_GPU, grid, seed, show),
        pass_frontier=_frontier(
            plan(search.sample_set, Goal(granularity=Granularity.PASS), raw=True)
        ),
        kernel_frontier=_frontier(best),
        figures=(),
        warnings=(*best.warnings, *_warnings(gpu)),
    )
    setup = Setup(
        parameters=step.parameters,
        core_mhz=finding.core_mhz,
        mem_mhz=finding.mem_mhz,
        sample_set=search.sample_set,
        protocol=Protocol(),
        gpu_days=search.gpu_s / _DAY_S,
    )
    return msgspec.structs.replace(study, figures=figures(study, setup))


def simulated(gpu: str) -> GpuFinding:
    """Return what is known of a simulated GPU.

    Raises:
        UsageError: Not a simulated GPU, or no such model.
    """
    kind, _ = split_spec(gpu)
    if kind != "sim":
        raise UsageError(
            f"the paper's study needs GPU time at every clock pair; {gpu!r} is not simulated",
            hint=f"--gpu {PAPERS_GPU}; plan a table with `underclock plan`",
        )
    return examine(gpu).gpus[0]


def _search(
    step: Step, gpu: str, grid: Grid, seed: int, progress: Callable[[Tally], None]
) -> _Search:
    """Measure every kernel at every clock pair; isolated kernels only, as in the paper."""
    gpu_s = 0.0

    def note(tally: Tally) -> None:
        nonlocal gpu_s
        gpu_s = tally.gpu_s
        progress(tally)

    with tempfile.TemporaryDirectory(prefix="underclock-") as folder:
        sample_set = measure(
            step,
            gpu=gpu,
            to=Path(folder) / "samples.db",
            campaign=Campaign(grid=grid, in_situ=False),
            seed=seed,
            progress=note,
        )
    return _Search(sample_set, gpu_s)


def search_again(
    step: Step, gpu: str, grid: Grid, seed: int, progress: Callable[[Tally], None]
) -> Search:
    """Search clocks on the paper's other GPU, where the simulator knows it."""
    try:
        finding = simulated(gpu)
        made = plan(_search(step, gpu, grid, seed, progress).sample_set, raw=True)
    except UsageError as exc:
        return Search(
            gpu=None,
            calibration=None,
            time_pct=None,
            energy_pct=None,
            paper_time_pct=published.A4000.time_pct,
            paper_energy_pct=published.A4000.energy_pct,
            missing=f"this version cannot simulate an RTX A4000: {exc}",
        )
    change = _change(made.promise)
    return Search(
        gpu=made.gpu.name,
        calibration=finding.calibration,
        time_pct=change.time_pct,
        energy_pct=change.energy_pct,
        paper_time_pct=published.A4000.time_pct,
        paper_energy_pct=published.A4000.energy_pct,
    )


def _cell(
    plans: dict[tuple[Objective, Aggregate], Plan],
    granularity: Granularity,
    objective: Objective,
    aggregate: Aggregate,
) -> Table2Cell:
    strategy = Goal(granularity=granularity, aggregate=aggregate).chosen
    ours = _of_arm(plans[objective, aggregate].arm(strategy))
    if ours is None:
        raise AssertionError("auto itself meets a strict budget")
    paper = published.TABLE2[granularity, objective, aggregate]
    return Table2Cell(
        granularity=granularity,
        objective=objective,
        aggregate=aggregate,
        time_pct=ours.time_pct,
        energy_pct=ours.energy_pct,
        paper_time_pct=paper.time_pct,
        paper_energy_pct=paper.energy_pct,
    )


def _relaxed(sample_set: SampleSet) -> tuple[RelaxedPoint, ...]:
    points = []
    for slowdown_pct in _SLOWDOWNS_PCT:
        made = plan(sample_set, Goal(max_slowdown=slowdown_pct / 100.0), raw=True)
        points.append(
            RelaxedPoint(
                max_slowdown_pct=slowdown_pct,
                pass_global=_of_arm(made.arm(Strategy.PASS)),
                kernel_local=_of_arm(made.arm(Strategy.KERNEL_LOCAL)),
                kernel_global=_of_arm(made.arm(Strategy.KERNEL_GLOBAL)),
            )
        )
    return tuple(points)


def _revalidation(found: Validation) -> Revalidation:
    time, energy = (
        100.0 * pair_changes(np.array(auto), np.array(planned))
        for auto, planned in (
            (found.auto_time_s, found.plan_time_s),
            (found.auto_energy_j, found.plan_energy_j),
        )
    )
    return Revalidation(
        repeats=found.repeats,
        time_pct=100.0 * found.time_change.mean,
        energy_pct=100.0 * found.energy_change.mean,
        discovered_time_pct=100.0 * found.promised_time_change,
        discovered_energy_pct=100.0 * found.promised_energy_change,
        pairs_reaching_discovered=found.pairs_keeping_energy,
        paper_time_pct=published.VALIDATED.time_pct,
        paper_energy_pct=published.VALIDATED.energy_pct,
        paper_discovered_energy_pct=published.TABLE2[
            Granularity.KERNEL, Objective.WASTE, Aggregate.GLOBAL
        ].energy_pct,
        paper_pairs_reaching_discovered=published.PAIRS_REACHING_DISCOVERED,
        pairs=tuple(
            Change(time_pct=t, energy_pct=e)
            for t, e in zip(time.ravel().tolist(), energy.ravel().tolist(), strict=True)
        ),
    )


def _clock_changes_per_layer(made: Plan) -> int:
    loops: list[list[Clocks]] = [
        [made.kernels[k.name].clocks for k in made.runs if k.section == section]
        for section in _LAYER_SECTIONS
    ]
    return clock_changes(loops)


def _auto_clocks(sample_set: SampleSet) -> dict[str, Clocks]:
    """Return the clocks read back under auto, by kernel."""
    return {
        sample.kernel: sample.observed or AUTO
        for sample in sample_set.samples
        if sample.asked == AUTO
    }


def _frontier(made: Plan) -> tuple[Change, ...]:
    return tuple(_change(cost) for cost in made.frontier)


def _of_arm(arm: Arm) -> Change | None:
    return None if arm.cost is None else _change(arm.cost)


def _change(cost: Cost) -> Change:
    return Change(time_pct=100.0 * cost.time_change, energy_pct=100.0 * cost.energy_change)


def _warnings(gpu: str) -> tuple[str, ...]:
    if gpu == PAPERS_GPU:
        return ()
    return (f"the paper measured an RTX 3080 Ti; ours are of {gpu}",)


def _as_tally(progress: Callable[[Tally], None]) -> Callable[[str], None]:
    """Turn sentences into progress without a known end."""

    def tell(doing: str) -> None:
        progress(Tally(done=0, total=1, gpu_s=0.0, doing=doing))

    return tell
