"""refine: a plan from another GPU of the same model, measured again around its clocks.

GPUs of one model differ by a few per cent in power, so the best clocks of one are near those of
another, but what they save is not quite the same (arXiv 2601.08539, section 8).
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

import underclock
from underclock.app.backends import default_measuring, open_measurer
from underclock.campaign.around import Around, inside, points_around, within
from underclock.campaign.loop import CampaignRun, Listed
from underclock.campaign.progress import Tally
from underclock.campaign.provenance import provenance_of
from underclock.campaign.recording import Recorder, record
from underclock.campaign.survey import Campaign, Grid, survey
from underclock.errors import DataError, UsageError
from underclock.hw.base import Capability, Measurer
from underclock.hw.gpu_names import parse_gpu
from underclock.records import (
    AUTO,
    MeasurementSettings,
    Plan,
    SampleSet,
    Step,
    Strategy,
)
from underclock.store import as_record
from underclock.tracing.source import StepFile, StepFunction

REACH = 2


def refine(
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
    plan, path = as_record(plan, Plan), Path(to)
    step = _step_of(plan)
    if measuring is None:
        measuring = default_measuring(gpu, adaptive=True)
    campaign = Campaign(grid=Grid.ADAPTIVE)
    with open_measurer(gpu, measuring=measuring, seed=seed, step=step, run=run) as measurer:
        # What is measured is costs at clocks; the limit to plan for is applied to those.
        plan.check_gpu(measurer.info(), plan.gpu.power_limit_w)
        provenance = provenance_of(
            measurer,
            measuring=measuring,
            seed=seed if parse_gpu(gpu).is_simulated else None,
            in_situ=campaign.in_situ,
            version=underclock.__version__,
        )
        header, offered = survey(measurer, measurer.step or step, campaign, provenance)
        # A captured step was held against the plan's: it launches the same kernels.
        if measurer.step is None and header.kernels != plan.runs:
            raise DataError(
                "the plan is for other kernels than this GPU answers for",
                hint="a table only knows its own kernels: refine a plan of the same ones",
            )
        points = points_around(plan, offered, seed, Around(reach, _auto_mem_mhz(measurer, plan)))
        visited = inside(header.settings, [clocks for clocks, _ in points])
        sentence = f"measured on {gpu} around the clocks of another GPU's plan only"
        header = msgspec.structs.replace(
            header,
            settings=visited,
            expected_samples=sum(len(kernels) for _, kernels in points),
            lacking=within(header.lacking, visited),
            warnings=(*header.warnings, sentence),
        )

        def take(recorder: Recorder) -> None:
            policy = Listed(recorder, points, campaign)
            CampaignRun(recorder, policy, campaign, progress or (lambda _tally: None)).run()

        return record(measurer, path, header, take)


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
    return plan.step()
