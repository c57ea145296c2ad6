"""Run auto, a plan and the best fixed clock in turns, over and over.

Each repeat begins with another arm, so that drift of the GPU falls on all alike. Whole-step runs at
auto settle what auto costs where they did so when planning.

Shape letters: K kernels, N repeats; a trailing 2 is time in s and energy in J.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats
from underclock.core.costs.cap import driver_says, near_cap
from underclock.core.costs.table import settling_factors
from underclock.errors import DataError
from underclock.hw.base import Capability, Measurer, Reading
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, Plan, Strategy
from underclock.stages.measure import Tally
from underclock.stages.sources import check_clocks, check_gpu

_TITLES: dict[str, str] = {Strategy.BEST_FIXED: "the best fixed clock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What was run.

    Attributes:
        evidence: Of every number.
        gpu: That ran it.
        repeats: Runs of every arm.
        clocks: Of every kernel, by arm: ``auto``, ``plan`` and what ran besides.
        totals: Time in s and energy in J of every run, by arm. Shapes (N, 2).
        rows: How many runs of an arm can differ, by arm.
        warnings: Sentences the reader must see.
    """

    evidence: Evidence
    gpu: GpuInfo
    repeats: int
    clocks: dict[str, list[Clocks]]
    totals: dict[str, Floats]
    rows: dict[str, int]
    warnings: tuple[str, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """The arms besides auto and the plan."""
        return tuple(name for name in self.clocks if name not in {"auto", "plan"})

    def distinct(self, *names: str) -> int:
        """Return how many runs of all these arms are no repetition of a table's rows."""
        return min(self.repeats, *(self.rows[name] for name in names))


def run_in_turns(
    plan: Plan,
    measurer: Measurer,
    repeats: int,
    *,
    only_plan: bool,
    progress: Callable[[Tally], None],
) -> Turns:
    """Run every arm of a plan as often as asked.

    Raises:
        DataError: A plan for another GPU, resting on another kind of evidence, or without kernels.
        DeviceError, MeasurementError: From the GPU.
    """
    told = _check(plan, measurer)
    arms = _arms(plan, measurer, only_plan=only_plan)
    totals = _run_turns(plan, measurer, arms, repeats, progress)
    return Turns(
        evidence=measurer.evidence,
        gpu=measurer.info(),
        repeats=repeats,
        clocks=arms,
        totals=totals,
        rows={name: _rows(plan, measurer, clocks) for name, clocks in arms.items()},
        warnings=told,
    )


def _check(plan: Plan, measurer: Measurer) -> tuple[str, ...]:
    """Refuse a plan that means nothing here; return what the reader must be told."""
    told = check_gpu(plan, measurer.info())
    if plan.evidence is not measurer.evidence:
        raise DataError(
            f"the plan rests on {plan.evidence} samples, this GPU is {measurer.evidence}",
            hint="validate on what was measured, or measure and plan on this GPU",
        )
    if not plan.runs:
        raise DataError("the plan does not say what the step runs", hint="plan again")
    check_clocks(plan, measurer.settings())
    return told


def _arms(plan: Plan, measurer: Measurer, *, only_plan: bool) -> dict[str, list[Clocks]]:
    """Return the clocks of every kernel in every arm worth running.

    The best fixed clock is left away where it is auto or the plan itself, or has no rows.
    """
    arms = {
        "auto": [plan.baseline] * len(plan.runs),
        "plan": [plan.kernels[kernel.name].clocks for kernel in plan.runs],
    }
    if plan.fixed is not None and not only_plan:
        fixed = [plan.fixed] * len(plan.runs)
        known = all(measurer.can_measure(kernel, plan.fixed) for kernel in plan.runs)
        if known and fixed not in arms.values():
            arms[Strategy.BEST_FIXED] = fixed
    return arms


def _rows(plan: Plan, measurer: Measurer, arm: Sequence[Clocks]) -> int:
    """Return how many runs of an arm can differ: a table gives the rows it has, over and over."""
    counts = [measurer.repeats(*asked) for asked in zip(plan.runs, arm, strict=True)]
    return min((count for count in counts if count is not None), default=sys.maxsize)


def _run_turns(
    plan: Plan,
    measurer: Measurer,
    arms: Mapping[str, Sequence[Clocks]],
    repeats: int,
    progress: Callable[[Tally], None],
) -> dict[str, Floats]:
    """Return time in s and energy in J of every run of every arm. Shapes (N, 2)."""
    names = list(arms)
    doing = " and ".join(("auto", "the plan", *(_TITLES[name] for name in names[2:])))
    started_s = measurer.now_s()

    def tell(done: int, doing: str) -> None:
        progress(Tally(done=done, total=repeats, gpu_s=measurer.now_s() - started_s, doing=doing))

    if Capability.RUN in measurer.capabilities:
        tell(0, "warming the GPU to a steady temperature")
        measurer.warm(_launches(plan) or plan.runs)
    totals: dict[str, list[Floats]] = {name: [] for name in names}
    for repeat in range(repeats):
        tell(repeat, f"run {repeat + 1} of {doing}")
        first = repeat % len(names)
        in_turn = {name: arms[name] for name in names[first:] + names[:first]}
        for name, total in _turn(plan, measurer, in_turn, repeat).items():
            totals[name].append(total)
    tell(repeats, "done")
    return {name: np.stack(runs) for name, runs in totals.items()}


def _turn(
    plan: Plan, measurer: Measurer, arms: Mapping[str, Sequence[Clocks]], repeat: int
) -> dict[str, Floats]:
    """Run every arm once; return the time in s and energy in J of each. Shapes (2,)."""
    counts = np.array([kernel.count for kernel in plan.runs], dtype=np.float64)
    whole = _runs_whole(plan, measurer)
    costs: dict[str, Floats] = {}
    factors = np.ones((len(counts), 2))
    for name, clocks in arms.items():
        readings = measured(measurer, plan.runs, clocks, repeat)
        costs[name] = _costs(readings) * counts[:, None]
        if name == "auto" and whole:
            step = measurer.measure(_launches(plan), repeat)
            factors = _factors(readings, costs[name], step)
    totals: dict[str, Floats] = {}
    for name, cost in costs.items():
        at_auto = np.array([clocks == AUTO for clocks in arms[name]])
        totals[name] = (cost * np.where(at_auto[:, None], factors, 1.0)).sum(axis=0)
    return totals


def _launches(plan: Plan) -> list[Kernel]:
    """Return the step's kernels in launch order; none where the order is not known."""
    return [plan.runs[index] for index in plan.order]


def _runs_whole(plan: Plan, measurer: Measurer) -> bool:
    """Whether the whole step settles what auto costs, as it did when planning."""
    return bool(
        Capability.RUN in measurer.capabilities
        and plan.order
        and plan.closure is not None
        and plan.baseline.is_auto
    )


def _factors(auto: Sequence[Reading], costs: Floats, step: Reading) -> Floats:
    """Return what settles every kernel at auto on the whole step. Shapes (K, 2) to (K, 2)."""
    held = np.array([bool(driver_says(reading.throttle_reasons)) for reading in auto])
    capped = near_cap(np.array([reading.energy_j / reading.time_s for reading in auto]), held)
    return np.stack(
        [
            settling_factors(costs[:, column], total, capped)
            for column, total in enumerate((step.time_s, step.energy_j))
        ],
        axis=1,
    )


def measured(
    measurer: Measurer, kernels: Sequence[Kernel], clocks: Sequence[Clocks], repeat: int
) -> list[Reading]:
    """Measure every kernel at its clocks, one change of clocks per distinct pair."""
    readings: dict[int, Reading] = {}
    for setting in dict.fromkeys(clocks):
        with measurer.hold(setting):
            for k, kernel in enumerate(kernels):
                if clocks[k] == setting:
                    readings[k] = measurer.measure([kernel], repeat)
    return [readings[k] for k in range(len(kernels))]


def _costs(readings: Sequence[Reading]) -> Floats:
    return np.array([[reading.time_s, reading.energy_j] for reading in readings])
