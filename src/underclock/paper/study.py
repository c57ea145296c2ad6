"""The paper's study from end to end: search, choose in eight ways, validate, carry over."""

import dataclasses
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from underclock.app.backends import open_measurer
from underclock.app.doctor import GpuFinding, examine
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.progress import Tally
from underclock.campaign.survey import Campaign, Grid
from underclock.campaign.turns import measured
from underclock.core.planning.goal import Goal
from underclock.core.statistics.verdict import pair_changes
from underclock.errors import UsageError
from underclock.hw.base import Measurer
from underclock.hw.gpu_names import parse_gpu
from underclock.paper import published
from underclock.paper.comparison import (
    agreement,
    beside_table1,
    clock_changes,
    quoted_numbers,
)
from underclock.paper.records import (
    PercentChange,
    RelaxedPoint,
    Revalidation,
    SecondGpu,
    Study,
    Table2Cell,
    Transfer,
)
from underclock.records import (
    AUTO,
    Accounting,
    Aggregate,
    Arm,
    Cost,
    Granularity,
    MeasurementSettings,
    Objective,
    Pass,
    Plan,
    SampleSet,
    Step,
    Strategy,
)
from underclock.tracing.trace import trace

PAPERS_GPU = "sim:rtx3080ti"
_SECOND_GPU = "sim:a4000"
_SLOWDOWNS_PCT = tuple(half / 2.0 for half in range(21))  # 0 to 10 %
_TRANSFER_SEED_OFFSET = 2  # neither the noise of the search nor that of the validation
_DAY_S = 86_400.0
_BATCHES = (1, 2, 4, 8, 16, 24, 32, published.BATCH_SIZE)
WORKLOAD = "gpt3-xl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where the study is run, and how.

    Attributes:
        gpu: ``sim:NAME``.
        grid: Which clock pairs to visit.
        seed: Of the GPU's noise.
        measuring: How long to wait and measure; ``None`` for as long as the paper.
        progress: Called for every sample.
    """

    gpu: str = PAPERS_GPU
    grid: Grid = Grid.COARSE
    seed: int = 0
    measuring: MeasurementSettings | None = None
    progress: Callable[[Tally], None] = lambda _tally: None


def run_study(conditions: Conditions) -> Study:
    """Run the paper's study on a simulated GPU.

    Costs are sums of isolated kernels and clocks change for free, both as in the paper.

    Raises:
        UsageError: Not a simulated GPU, or no such model.
        DeviceError, MeasurementError: From the GPU.
    """
    gpu = simulated_gpu(conditions.gpu)
    step = before_optimizer(trace(WORKLOAD))
    samples, gpu_s = search(step, conditions)
    plans = _plans(samples)
    discovered = plans[Objective.WASTE, Aggregate.GLOBAL]  # the paper's best: per kernel, strict
    validation = _revalidation(discovered, conditions)
    by_batch, by_tensor_parallel = _transfers(discovered, conditions)
    layer = [
        [discovered.kernels[k.name].clocks for k in discovered.runs if k.section == section]
        for section in ("Lf", "Lb")
    ]
    auto = {s.kernel: s.observed or AUTO for s in samples.samples if s.asked == AUTO}
    rows = beside_table1(discovered, auto)
    per_pass = plan(samples, Goal(granularity=Granularity.PASS), raw=True)
    other = f"the paper measured an RTX 3080 Ti; ours are of {conditions.gpu}"
    study = Study(
        evidence=samples.evidence,
        gpu=samples.gpu,
        calibration=gpu.calibration,
        source=published.SOURCE,
        workload=step.name,
        grid=conditions.grid.value,
        seed=conditions.seed,
        table2=tuple(_cell(plans, *way) for way in published.TABLE2),
        table1=rows,
        agreement=agreement(rows),
        clock_changes_per_layer=clock_changes(layer),
        validation=validation,
        batch_transfer=by_batch,
        tensor_parallel_transfer=by_tensor_parallel,
        relaxed=_relaxed(samples),
        a4000=search_second_gpu(step, dataclasses.replace(conditions, gpu=_SECOND_GPU)),
        pass_frontier=tuple(map(_change, per_pass.frontier)),
        kernel_frontier=tuple(map(_change, discovered.frontier)),
        quoted=(),
        warnings=discovered.warnings + (() if conditions.gpu.startswith(PAPERS_GPU) else (other,)),
    )
    quoted = quoted_numbers(
        study,
        sizes=step.parameters,
        gpu=gpu,
        samples=samples,
        measuring=conditions.measuring or MeasurementSettings(),
        gpu_days=gpu_s / _DAY_S,
    )
    return msgspec.structs.replace(study, quoted=quoted)


def simulated_gpu(gpu: str) -> GpuFinding:
    """Return what is known of a simulated GPU.

    Raises:
        UsageError: Not a simulated GPU, or no such model.
    """
    if not parse_gpu(gpu).is_simulated:
        raise UsageError(
            f"the paper's study needs GPU time at every clock pair; {gpu!r} is not simulated",
            hint=f"--gpu {PAPERS_GPU}; plan a table with `underclock plan`",
        )
    return examine(gpu).gpus[0]


def search(step: Step, conditions: Conditions) -> tuple[SampleSet, float]:
    """Measure every kernel by itself at every clock pair, as in the paper.

    Returns:
        Samples, and how much of the GPU's time they took in s.
    """
    gpu_s = 0.0

    def note(tally: Tally) -> None:
        nonlocal gpu_s
        gpu_s = tally.gpu_s
        conditions.progress(tally)

    with tempfile.TemporaryDirectory(prefix="underclock-") as folder:
        sample_set = measure(
            step,
            gpu=conditions.gpu,
            to=Path(folder) / "samples.db",
            campaign=Campaign(grid=conditions.grid, in_situ=False),
            measuring=conditions.measuring,
            seed=conditions.seed,
            progress=note,
        )
    return sample_set, gpu_s


def before_optimizer(step: Step) -> Step:
    """Return the step without its optimizer, which the paper leaves as it is."""
    kept = [i for i, kernel in enumerate(step.kernels) if kernel.pass_ is not Pass.OPTIMIZER]
    place = {old: new for new, old in enumerate(kept)}
    return Step(
        name=step.name,
        kernels=tuple(step.kernels[i] for i in kept),
        order=tuple(place[i] for i in step.order if i in place),
        parameters=step.parameters,
    )


def _transfers(
    discovered: Plan, conditions: Conditions
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    """Measure the discovered clocks, and auto, on other steps: by batch, and by tensor parallel."""

    def note(doing: str) -> None:
        conditions.progress(Tally(done=0, total=1, gpu_s=0.0, doing=doing))

    def transfer(batch: int, degree: int, paper: PercentChange | None) -> Transfer:
        note(f"the discovered clocks at batch {batch}, {degree} GPUs")
        return _transfer(measurer, discovered, batch, degree, paper)

    seed = conditions.seed + _TRANSFER_SEED_OFFSET
    with open_measurer(conditions.gpu, measuring=conditions.measuring, seed=seed) as measurer:
        note("warming the GPU to a steady temperature")
        measurer.warm([discovered.runs[index] for index in discovered.order])
        return (
            tuple(transfer(batch, 1, published.BATCH.get(batch)) for batch in _BATCHES),
            tuple(
                transfer(published.BATCH_SIZE, degree, published.TENSOR_PARALLEL.get(degree))
                for degree in (2, *published.TENSOR_PARALLEL)
            ),
        )


def _transfer(
    measurer: Measurer, plan: Plan, batch: int, degree: int, paper: PercentChange | None
) -> Transfer:
    kernels = before_optimizer(trace(WORKLOAD, batch=batch, tp=degree, collectives=0)).kernels
    # Narrower layers take a second stage of the bias reduction that the plan has not seen.
    unplanned = tuple(kernel.name for kernel in kernels if kernel.name not in plan.kernels)
    wanted = [
        plan.kernels[kernel.name].clocks if kernel.name in plan.kernels else AUTO
        for kernel in kernels
    ]
    counts = [kernel.count for kernel in kernels]
    auto, planned = (
        measured(measurer, kernels, clocks, 0) for clocks in ([AUTO] * len(kernels), wanted)
    )
    ours = PercentChange(
        time_pct=_change_pct([r.time_s for r in auto], [r.time_s for r in planned], counts),
        energy_pct=_change_pct([r.energy_j for r in auto], [r.energy_j for r in planned], counts),
    )
    return Transfer(
        batch=batch, tensor_parallel=degree, unplanned=unplanned, **_beside(ours, paper)
    )


def _change_pct(auto: Sequence[float], planned: Sequence[float], counts: Sequence[int]) -> float:
    before, after = (
        math.fsum(count * cost for count, cost in zip(counts, costs, strict=True))
        for costs in (auto, planned)
    )
    return 100.0 * (after / before - 1.0)


def search_second_gpu(step: Step, conditions: Conditions) -> SecondGpu:
    """Search clocks on the paper's second GPU, where the simulator knows it."""
    paper = published.change("RTX A4000, searched again")
    try:
        gpu = simulated_gpu(conditions.gpu)
        discovered = plan(search(step, conditions)[0], raw=True)
    except UsageError as exc:
        missing = f"this version cannot simulate an RTX A4000: {exc}"
        beside = _beside(None, paper)
        return SecondGpu(gpu=None, calibration=None, missing=missing, **beside)
    beside = _beside(_change(discovered.promise), paper)
    return SecondGpu(gpu=discovered.gpu.name, calibration=gpu.calibration, **beside)


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
    beside = _beside(ours, published.TABLE2[granularity, objective, aggregate])
    return Table2Cell(granularity=granularity, objective=objective, aggregate=aggregate, **beside)


def _plans(samples: SampleSet) -> dict[tuple[Objective, Aggregate], Plan]:
    return {
        (objective, aggregate): plan(
            samples, Goal(objective=objective, aggregate=aggregate), raw=True
        )
        for objective in (Objective.EDP, Objective.WASTE)
        for aggregate in Aggregate
    }


def _relaxed(sample_set: SampleSet) -> tuple[RelaxedPoint, ...]:
    points = []
    for slowdown_pct in _SLOWDOWNS_PCT:
        relaxed = plan(sample_set, Goal(max_slowdown=slowdown_pct / 100.0), raw=True)
        points.append(
            RelaxedPoint(
                max_slowdown_pct=slowdown_pct,
                pass_global=_of_arm(relaxed.arm(Strategy.PASS)),
                kernel_local=_of_arm(relaxed.arm(Strategy.KERNEL_LOCAL)),
                kernel_global=_of_arm(relaxed.arm(Strategy.KERNEL_GLOBAL)),
            )
        )
    return tuple(points)


def _revalidation(discovered: Plan, conditions: Conditions) -> Revalidation:
    v = validate(
        discovered,
        gpu=conditions.gpu,
        repeats=published.REPEATS,
        only_plan=True,
        accounting=Accounting.ISOLATED,
        measuring=conditions.measuring,
        seed=conditions.seed,
        progress=conditions.progress,
    )
    time_pct = 100.0 * pair_changes(np.array(v.auto_time_s), np.array(v.plan_time_s))
    energy_pct = 100.0 * pair_changes(np.array(v.auto_energy_j), np.array(v.plan_energy_j))
    pairs = zip(time_pct.ravel().tolist(), energy_pct.ravel().tolist(), strict=True)
    mean = PercentChange(
        time_pct=100.0 * v.time_change.mean, energy_pct=100.0 * v.energy_change.mean
    )
    reaching = published.QUOTED["pairs that reach that energy"]
    found = published.TABLE2[Granularity.KERNEL, Objective.WASTE, Aggregate.GLOBAL]
    return Revalidation(
        repeats=v.repeats,
        discovered_time_pct=100.0 * v.promised_time_change,
        discovered_energy_pct=100.0 * v.promised_energy_change,
        pairs_reaching_discovered=v.pairs_keeping_energy,
        paper_discovered_energy_pct=found.energy_pct,
        paper_pairs_reaching_discovered=int(reaching.paper),
        pairs=tuple(PercentChange(time_pct=t, energy_pct=e) for t, e in pairs),
        **_beside(mean, published.change("mean of all pairs")),
    )


def _beside(ours: PercentChange | None, paper: PercentChange | None) -> dict[str, Any]:
    """Return our change and the paper's, as records have them; ``None`` for what is not known."""
    return {
        f"{prefix}{name}": change and getattr(change, name)
        for prefix, change in (("", ours), ("paper_", paper))
        for name in ("time_pct", "energy_pct")
    }


def _of_arm(arm: Arm) -> PercentChange | None:
    return None if arm.cost is None else _change(arm.cost)


def _change(cost: Cost) -> PercentChange:
    return PercentChange(time_pct=100.0 * cost.time_change, energy_pct=100.0 * cost.energy_change)
