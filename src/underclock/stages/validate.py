"""validate: measure auto and plan again, and compare every run of one with every run of the other.

The two arms take turns, so that drift of the GPU falls on both. Whole-step runs at auto settle
what auto costs where they did so when planning; a plan on isolated kernels is judged on those.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from underclock.core.costs import Floats, settling_factors
from underclock.core.pairs import count_within, pair_changes, spread
from underclock.errors import DataError, UsageError
from underclock.hw.base import Bench, Reading
from underclock.hw.bench import Protocol
from underclock.hw.replay import ReplayBench
from underclock.records import (
    AUTO,
    POWER_CAP_REASON,
    Clocks,
    Kernel,
    Plan,
    Validation,
)
from underclock.stages.backends import open_bench
from underclock.stages.measure import Tally
from underclock.stages.sources import as_plan, check_gpu

_SEED_OFFSET = 1  # the GPU's noise must not be the noise the plan was made on


def validate(
    plan: Plan | str | Path,
    *,
    gpu: str,
    repeats: int = 10,
    protocol: Protocol | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
) -> Validation:
    """Measure a plan against auto clocks.

    Args:
        plan: A plan, or its file.
        gpu: The same model the plan was made for.
        repeats: Runs of each arm; all pairs are compared.
        protocol: How long to wait and measure.
        seed: Of a simulated GPU's noise; never the same noise as in measuring.
        progress: Told of every run.

    Raises:
        UsageError: Fewer than one repeat.
        DataError: A plan for another GPU, resting on another kind of evidence, or without kernels.
        DeviceError, MeasurementError: From the GPU.
    """
    if repeats < 1:
        raise UsageError(f"cannot repeat {repeats} times", hint="--repeats 10 is the paper's")
    plan = as_plan(plan)
    with open_bench(gpu, protocol=protocol, seed=seed + _SEED_OFFSET) as bench:
        _check(plan, bench)
        runs = _runs(plan, bench, repeats, progress or (lambda _tally: None))
        warnings = _warnings(plan, bench)
        evidence, info = bench.evidence, bench.info()
    auto, planned = runs
    time = pair_changes(auto[:, 0], planned[:, 0])
    energy = pair_changes(auto[:, 1], planned[:, 1])
    promise = plan.promise
    return Validation(
        evidence=evidence,
        gpu=info,
        workload=plan.workload,
        chosen=plan.chosen,
        repeats=repeats,
        auto_time_s=tuple(auto[:, 0].tolist()),
        auto_energy_j=tuple(auto[:, 1].tolist()),
        plan_time_s=tuple(planned[:, 0].tolist()),
        plan_energy_j=tuple(planned[:, 1].tolist()),
        time_change=spread(time),
        energy_change=spread(energy),
        promised_time_change=promise.time_change,
        promised_energy_change=promise.energy_change,
        pairs_keeping_energy=count_within(energy, promise.energy_change),
        pairs_keeping_time=(
            None if plan.max_slowdown is None else count_within(time, plan.max_slowdown)
        ),
        warnings=warnings,
    )


def _check(plan: Plan, bench: Bench) -> None:
    check_gpu(plan, bench.info())
    if plan.evidence is not bench.evidence:
        raise DataError(
            f"the plan rests on {plan.evidence} samples, this GPU is {bench.evidence}",
            hint="validate on what was measured, or measure and plan on this GPU",
        )
    if {kernel.name for kernel in plan.runs} != plan.kernels.keys():
        raise DataError("the plan does not say what the step runs", hint="plan again")


def _warnings(plan: Plan, bench: Bench) -> tuple[str, ...]:
    if not isinstance(bench, ReplayBench):
        return ()
    single = any(
        bench.repeats(kernel, plan.kernels[kernel.name].clocks) == 1 for kernel in plan.runs
    )
    if not single:
        return ()
    return ("the table has one row where repeats are needed: numbers are repeated, not validated",)


def _runs(
    plan: Plan, bench: Bench, repeats: int, progress: Callable[[Tally], None]
) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of every run of auto and of plan. Shapes (N, 2)."""
    counts = np.array([kernel.count for kernel in plan.runs], dtype=np.float64)
    launches = [plan.runs[index] for index in plan.order]
    auto_clocks = [plan.baseline] * len(plan.runs)
    plan_clocks = [plan.kernels[kernel.name].clocks for kernel in plan.runs]
    started_s = bench.now_s()

    def tell(done: int, doing: str) -> None:
        progress(Tally(done=done, total=repeats, gpu_s=bench.now_s() - started_s, doing=doing))

    if bench.live:
        tell(0, "warming the GPU to a steady temperature")
        bench.warm(launches or plan.runs)
    totals: tuple[list[Floats], list[Floats]] = ([], [])
    for repeat in range(repeats):
        tell(repeat, f"run {repeat + 1} of auto and of the plan")
        auto = measured(bench, plan.runs, auto_clocks, repeat)
        planned = measured(bench, plan.runs, plan_clocks, repeat)
        costs = [_costs(readings) * counts[:, None] for readings in (auto, planned)]
        settled = plan.closure is not None and plan.baseline.is_auto
        if bench.live and launches and settled:
            capped = np.array([bool((r.event_reasons or 0) & POWER_CAP_REASON) for r in auto])
            step = bench.measure(launches, repeat)
            at_auto = np.array([clocks == AUTO for clocks in plan_clocks])
            for column, total in enumerate((step.time_s, step.energy_j)):
                factors = settling_factors(costs[0][:, column], total, capped)
                costs[0][:, column] *= factors
                costs[1][:, column] *= np.where(at_auto, factors, 1.0)
        for arm, cost in zip(totals, costs, strict=True):
            arm.append(cost.sum(axis=0))
    tell(repeats, "done")
    return np.stack(totals[0]), np.stack(totals[1])


def measured(
    bench: Bench, kernels: Sequence[Kernel], clocks: Sequence[Clocks], repeat: int
) -> list[Reading]:
    """Measure every kernel at its clocks, one change of clocks per distinct pair."""
    found: dict[int, Reading] = {}
    for setting in dict.fromkeys(clocks):
        with bench.hold(setting):
            for k, kernel in enumerate(kernels):
                if clocks[k] == setting:
                    found[k] = bench.measure([kernel], repeat)
    return [found[k] for k in range(len(kernels))]


def _costs(readings: Sequence[Reading]) -> Floats:
    return np.array([[reading.time_s, reading.energy_j] for reading in readings])
