"""refine: a plan from another GPU of the same model, measured again around its clocks.

GPUs of one model differ by a few per cent in power, so the best clocks of one are near those of
another, but what they save is not quite the same (arXiv 2601.08539, section 8).
"""

import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from underclock.errors import DataError, UsageError
from underclock.hw.base import Capability, Measurer
from underclock.records import (
    AUTO,
    Clocks,
    Kernel,
    MeasurementSettings,
    Plan,
    SampleSet,
    Step,
    Strategy,
)
from underclock.stages.backends import default_measuring, open_measurer
from underclock.stages.campaign import Campaign, Grid, survey
from underclock.stages.measure import Tally, take_points
from underclock.stages.provenance import provenance_of
from underclock.stages.recording import Recorder, record
from underclock.stages.sources import as_plan, check_gpu, step_of
from underclock.stages.step_source import StepFile, StepFunction

REACH = 2
_STEP = 0.025  # of the range of core clocks
_LEAST_MEM = 0.4  # of the fastest memory clock; slower ones rarely save

Points = list[tuple[Clocks, list[Kernel]]]


def refine(  # noqa: PLR0913 - keyword-only, as `measure`
    plan: Plan | str | Path,
    *,
    gpu: str,
    to: str | Path,
    reach: int = REACH,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> SampleSet:
    """Measure on this GPU what a plan from another one of its model hangs on.

    The whole step at auto, every kernel at auto, at the clocks the plan chose for it and at their
    neighbours. What is in the file already is not measured again.

    Args:
        plan: A plan made on another unit, or its file.
        gpu: ``sim:NAME#UNIT``, ``replay:TABLE.csv`` or ``nvml:INDEX``.
        to: Samples file, made or continued.
        reach: How far the neighbours are, in steps of 2.5 % of the range of core clocks.
        measuring: How long to wait and measure; by default briefly, for a model joins the samples.
        seed: Of the order of measurements, and of a simulated GPU's noise.
        progress: Told of every sample.
        run: The step's function, or where it may be found.

    Returns:
        Everything in the file, to be planned on: ``plan(refine(given, ...), Goal.of(given))``.

    Raises:
        UsageError: A GPU that offers none of these clocks, or a file of another campaign.
        DataError: The plan is of another GPU model or power limit, or does not say what it runs.
        DeviceError, MeasurementError: From the GPU.
    """
    if reach < 1:
        raise UsageError(f"cannot refine with a reach of {reach}", hint="use 2: some 5 % around")
    plan, path = as_plan(plan), Path(to)
    step = _step_of(plan)
    if measuring is None:
        measuring = default_measuring(gpu, adaptive=True)
    campaign = Campaign(grid=Grid.ADAPTIVE)
    with open_measurer(gpu, measuring=measuring, seed=seed, step=step, run=run) as measurer:
        # What is measured is costs at clocks; the limit to plan for is applied to those.
        check_gpu(plan, measurer.info(), plan.gpu.power_limit_w)
        provenance = provenance_of(
            gpu, measurer, measuring=measuring, seed=seed, in_situ=campaign.in_situ
        )
        header, offered = survey(measurer, measurer.step or step, campaign, provenance)
        # A captured step was held against the plan's: it launches the same kernels.
        if measurer.step is None and header.kernels != plan.runs:
            raise DataError(
                "the plan is for other kernels than this GPU answers for",
                hint="a table only knows its own kernels: refine a plan of the same ones",
            )
        points = _points(plan, offered, seed, _Around(reach, _auto_mem_mhz(measurer, plan)))
        inside = _inside(header.settings, [clocks for clocks, _ in points])
        sentence = f"measured on {gpu} around the clocks of another GPU's plan only"
        header = msgspec.structs.replace(
            header,
            settings=inside,
            expected_samples=sum(len(kernels) for _, kernels in points),
            lacking=_within(header.lacking, inside),
            warnings=(*header.warnings, sentence),
        )

        def take(recorder: Recorder) -> None:
            take_points(recorder, points, campaign, progress or (lambda _tally: None))

        return record(measurer, path, header, take)


@dataclass(frozen=True, slots=True)
class _Around:
    """How far neighbours of clocks are, as `around` takes it."""

    reach: int
    auto_mem_mhz: int | None

    def __call__(self, clocks: Clocks, offered: Collection[Clocks]) -> tuple[Clocks, ...]:
        """Return the neighbours of a clock pair that are offered."""
        return around(clocks, offered, self.reach, self.auto_mem_mhz)


def around(
    clocks: Clocks, offered: Collection[Clocks], reach: int, auto_mem_mhz: int | None = None
) -> tuple[Clocks, ...]:
    """Return the neighbours of a clock pair that are offered: core beside it, memory next to it.

    Args:
        clocks: With a core clock of its own.
        offered: Every pair there is.
        reach: How many steps of 2.5 % of the range of core clocks they are away.
        auto_mem_mhz: Memory clock that runs where none is locked; by default the fastest offered.
    """
    core = clocks.core_mhz
    every = sorted({c.core_mhz for c in offered if c.core_mhz is not None})
    if core is None or not every:
        return ()
    beside = sorted(c.core_mhz for c in offered if c.mem_mhz == clocks.mem_mhz and c.core_mhz)
    far_mhz = reach * _STEP * (every[-1] - every[0])
    neighbours = []
    for wanted in (core - far_mhz, core + far_mhz):
        side = [mhz for mhz in beside if (mhz - core) * (wanted - core) > 0]
        if side:
            nearest = min(side, key=lambda mhz: abs(mhz - wanted))
            neighbours.append(Clocks(core_mhz=nearest, mem_mhz=clocks.mem_mhz))
    mems = sorted({c.mem_mhz for c in offered if c.mem_mhz is not None})
    if mems:
        here = clocks.mem_mhz or auto_mem_mhz or mems[-1]
        able = [mhz for mhz in mems if mhz > _LEAST_MEM * mems[-1]]
        next_to = [max((m for m in able if m < here), default=None)]
        next_to.append(min((m for m in able if m > here), default=None))
        pairs = [Clocks(core_mhz=core, mem_mhz=mem) for mem in next_to if mem is not None]
        neighbours += [pair for pair in pairs if pair in offered]
    return tuple(neighbours)


def _auto_mem_mhz(measurer: Measurer, plan: Plan) -> int | None:
    """Return the memory clock at which this GPU runs a kernel by itself; a table reads none."""
    if Capability.RUN not in measurer.capabilities:
        return None
    with measurer.hold(AUTO):
        observed = measurer.measure([plan.runs[0]]).observed
    return observed.mem_mhz if observed else None


def _step_of(plan: Plan) -> Step | None:
    """Return the step a plan is for; of a table's plan there is none.

    Raises:
        DataError: The plan does not say what it runs, or it is of a whole step.
    """
    if not plan.runs:
        raise DataError(
            "the plan does not say what it runs",
            hint="make it anew with `underclock plan`",
        )
    if all(arm.name is not Strategy.KERNEL_GLOBAL for arm in plan.arms):
        raise DataError(
            f"the plan is of {plan.workload}, which ran whole only: there are no kernels to refine",
            hint="measure the step on this GPU with `underclock measure`",
        )
    return step_of(plan)


def _points(plan: Plan, offered: Points, seed: int, near: _Around) -> Points:
    """Return what to measure, in random order.

    Raises:
        UsageError: Auto is not there for every kernel, or nothing else is.
    """
    able = {clocks: {kernel.name for kernel in kernels} for clocks, kernels in offered}
    wanted: dict[Clocks, list[Kernel]] = {}
    for kernel in plan.runs:
        mine = {clocks for clocks, names in able.items() if kernel.name in names}
        if plan.baseline not in mine:
            raise UsageError(
                f"this GPU has no answer for {kernel.name!r} at {plan.baseline}, which the plan "
                "compares with",
                hint="plan on this GPU's own samples",
            )
        chosen = plan.kernels[kernel.name].clocks
        for clocks in dict.fromkeys((plan.baseline, *_wanted(plan, chosen, mine, near))):
            if clocks in mine:
                wanted.setdefault(clocks, []).append(kernel)
    if len(wanted) == 1:
        raise UsageError(
            "none of the plan's clocks, nor any near them, can be held on this GPU",
            hint="`underclock doctor` says whether clocks may be set here",
        )
    random = np.random.default_rng([seed, zlib.crc32(b"refine")])
    settings = sorted(wanted, key=lambda clocks: clocks.rank)
    return [
        (
            settings[i],
            [wanted[settings[i]][k] for k in random.permutation(len(wanted[settings[i]]))],
        )
        for i in random.permutation(len(settings)).tolist()
    ]


def _wanted(
    plan: Plan, chosen: Clocks, offered: Collection[Clocks], near: _Around
) -> tuple[Clocks, ...]:
    """Return the clocks to measure one kernel at besides auto, whether offered or not."""
    if chosen != plan.baseline and chosen.core_mhz is not None:
        return (chosen, *near(chosen, offered))
    next_best = _next_best(plan, offered)
    return (chosen, *((next_best, *near(next_best, offered)) if next_best else ()))


def _next_best(plan: Plan, offered: Collection[Clocks]) -> Clocks | None:
    """Return what a kernel that the plan left to the driver would be locked to first.

    The best fixed clocks, or else the fastest that the plan has for another kernel, or that there
    are: the first two are known to hold, where the fastest of a list may be beyond what the GPU
    boosts to.
    """
    fixed = () if plan.fixed is None else (plan.fixed,)
    planned = [choice.clocks for choice in plan.kernels.values()]
    for some in (fixed, planned, offered):
        locked = [c for c in some if c != plan.baseline and c.core_mhz is not None]
        if locked:
            return max(locked, key=lambda clocks: clocks.rank)
    return None


def _inside(offered: Collection[Clocks], visited: Collection[Clocks]) -> tuple[Clocks, ...]:
    """Return the clocks between those visited: the fit may choose these, measured or not."""
    cores: dict[int | None, list[int]] = {}
    for clocks in visited:
        if clocks.core_mhz is not None:
            cores.setdefault(clocks.mem_mhz, []).append(clocks.core_mhz)
    return tuple(
        c
        for c in offered
        if c in visited
        or (
            c.core_mhz is not None
            and c.mem_mhz in cores
            and min(cores[c.mem_mhz]) <= c.core_mhz <= max(cores[c.mem_mhz])
        )
    )


def _within(
    lacking: dict[str, tuple[Clocks, ...]], settings: Collection[Clocks]
) -> dict[str, tuple[Clocks, ...]]:
    """Return what kernels lack of some clocks."""
    among = {name: tuple(c for c in clocks if c in settings) for name, clocks in lacking.items()}
    return {name: clocks for name, clocks in among.items() if clocks}
