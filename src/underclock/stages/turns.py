"""Run auto, a plan and the best fixed clock in turns, over and over.

Each repeat begins with another arm, so that drift of the GPU falls on all alike.

Shape letters: K kernels, N repeats; a trailing 2 is time in s and energy in J.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from underclock.arrays import Floats
from underclock.core.step.overlap import waited_counts
from underclock.errors import DataError
from underclock.hw.base import Capability, Measurer, Reading
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, Plan, Strategy
from underclock.stages.measure import Tally
from underclock.stages.sources import check_clocks, check_gpu

_TITLES: dict[str, str] = {Strategy.BEST_FIXED: "the best fixed clock"}


class Runner(Protocol):
    """Runs one arm after the other."""

    @property
    def measurer(self) -> Measurer:
        """What holds clocks."""
        ...

    @property
    def kernels(self) -> Sequence[Kernel]:
        """What runs."""
        ...

    @property
    def planned(self) -> Sequence[Clocks]:
        """The plan's clocks of each of those."""
        ...

    def run(self, clocks: Sequence[Clocks], repeat: int) -> Floats:
        """Run all of it once; return time in s and energy in J of a step. Shape (2,)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOne:
    """Measures every kernel alone, and adds them up: the accounting of arXiv 2601.08539.

    Attributes:
        measurer: Holds clocks.
        kernels: The step's.
        planned: The plan's clocks of each.
    """

    measurer: Measurer
    kernels: Sequence[Kernel]
    planned: Sequence[Clocks]

    def run(self, clocks: Sequence[Clocks], repeat: int) -> Floats:
        """Measure every kernel at its clocks; return what a step of them takes. Shape (2,)."""
        counts = waited_counts(self.kernels)
        readings = measured(self.measurer, self.kernels, clocks, repeat)
        each = np.array([[reading.time_s, reading.energy_j] for reading in readings])
        total: Floats = (each * counts[:, None]).sum(axis=0)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What was run.

    Attributes:
        evidence: Of every number.
        gpu: That ran it.
        repeats: Runs of every arm.
        clocks: Of everything that ran, by arm: ``auto``, ``plan`` and what ran besides.
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
    runner: Runner,
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
    measurer = runner.measurer
    told = _check(plan, measurer)
    arms = _arms(plan, runner, only_plan=only_plan)
    launches = [plan.runs[index] for index in plan.order]
    totals = _run_turns(runner, arms, repeats, progress, launches or plan.runs)
    return Turns(
        evidence=measurer.evidence,
        gpu=measurer.info(),
        repeats=repeats,
        clocks=arms,
        totals=totals,
        rows={name: _rows(runner, clocks) for name, clocks in arms.items()},
        warnings=(*told, *measurer.notes()),
    )


def _check(plan: Plan, measurer: Measurer) -> tuple[str, ...]:
    """Refuse a plan that means nothing here; return what the reader must be told."""
    told = check_gpu(plan, measurer.info(), plan.limit_w)
    if plan.evidence is not measurer.evidence:
        raise DataError(
            f"the plan rests on {plan.evidence} samples, this GPU is {measurer.evidence}",
            hint="validate on what was measured, or measure and plan on this GPU",
        )
    if not plan.runs:
        raise DataError("the plan does not say what the step runs", hint="plan again")
    held = [(name, choice.clocks) for name, choice in plan.kernels.items()]
    check_clocks([("the baseline", plan.baseline), *held], measurer.settings())
    return told


def _arms(plan: Plan, runner: Runner, *, only_plan: bool) -> dict[str, list[Clocks]]:
    """Return the clocks of everything that runs in every arm worth running.

    The best fixed clock is left away where it is auto or the plan itself, or has no rows.
    """
    count = len(runner.kernels)
    arms = {"auto": [plan.baseline] * count, "plan": list(runner.planned)}
    if plan.fixed is not None and not only_plan:
        fixed = [plan.fixed] * count
        known = all(runner.measurer.can_measure(kernel, plan.fixed) for kernel in runner.kernels)
        if known and fixed not in arms.values():
            arms[Strategy.BEST_FIXED] = fixed
    return arms


def _rows(runner: Runner, arm: Sequence[Clocks]) -> int:
    """Return how many runs of an arm can differ: a table gives the rows it has, over and over."""
    asked = zip(runner.kernels, arm, strict=True)
    counts = [runner.measurer.repeats(kernel, clocks) for kernel, clocks in asked]
    return min((count for count in counts if count is not None), default=sys.maxsize)


def _run_turns(
    runner: Runner,
    arms: Mapping[str, Sequence[Clocks]],
    repeats: int,
    progress: Callable[[Tally], None],
    step: Sequence[Kernel],
) -> dict[str, Floats]:
    """Return time in s and energy in J of every run of every arm. Shapes (N, 2)."""
    names, measurer = list(arms), runner.measurer
    doing = " and ".join(("auto", "the plan", *(_TITLES[name] for name in names[2:])))
    started_s = measurer.now_s()

    def tell(done: int, doing: str) -> None:
        progress(Tally(done=done, total=repeats, gpu_s=measurer.now_s() - started_s, doing=doing))

    if Capability.RUN in measurer.capabilities:
        tell(0, "warming the GPU to a steady temperature")
        measurer.warm(step)
    totals: dict[str, list[Floats]] = {name: [] for name in names}
    for repeat in range(repeats):
        tell(repeat, f"run {repeat + 1} of {doing}")
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            totals[name].append(runner.run(arms[name], repeat))
    tell(repeats, "done")
    return {name: np.stack(runs) for name, runs in totals.items()}


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
