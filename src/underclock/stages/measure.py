"""measure: every kernel at every clock pair, appended to a file that a later run can go on with."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from underclock.errors import MeasurementError, UsageError
from underclock.hw.base import Capability, Measurer
from underclock.records import Clocks, Kernel, MeasurementSettings, SampleSet, Step
from underclock.stages.adaptive import AdaptiveRun
from underclock.stages.backends import default_measuring, open_measurer
from underclock.stages.campaign import Campaign, Grid, survey
from underclock.stages.provenance import provenance_of
from underclock.stages.recording import Recorder, record
from underclock.stages.steer import BUDGET_S, SteeringRun
from underclock.stages.step_runs import StepRuns
from underclock.stages.step_source import StepFile, StepFunction
from underclock.store import SampleFile
from underclock.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How far a campaign is.

    Attributes:
        done: Samples on file.
        total: Samples it set out to take; ``None`` where it takes as many as it needs.
        gpu_s: The measurer's own time since this run began; virtual on a simulated GPU.
        doing: What is being done, for a person.
        budget_s: Of that time; ``None`` where it has none.
    """

    done: int
    total: int | None
    gpu_s: float
    doing: str
    budget_s: float | None = None

    @property
    def share(self) -> float | None:
        """How much of it is done, 0 to 1; ``None`` where nobody can know."""
        shares = [
            done / whole
            for done, whole in ((self.done, self.total), (self.gpu_s, self.budget_s))
            if whole
        ]
        return min(1.0, max(shares)) if shares else None


def measure(  # noqa: PLR0913 - keyword-only, as many as the command has options
    step: Step | None = None,
    *,
    gpu: str,
    to: str | Path,
    campaign: Campaign | None = None,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> SampleSet:
    """Measure a step's kernels, going on where an earlier run into the same file stopped.

    Args:
        step: What to measure; not needed where a table brings its own kernels.
        gpu: ``sim:NAME``, ``replay:TABLE.csv`` or ``nvml:INDEX``.
        to: Samples file, made or continued.
        campaign: Which clocks, how often.
        measuring: How long to wait and measure.
        seed: Of a simulated GPU's noise.
        progress: Told of every sample.
        run: The step's function, or where it may be found; by default under the working directory.

    Returns:
        Everything in the file.

    Raises:
        UsageError: No step where one is needed, clocks the GPU lacks, or a file of another
            campaign.
        DeviceError, MeasurementError: From the GPU.
    """
    if step is not None and step.obstacle:
        raise UsageError(step.obstacle, hint="take that out of the step and trace it again")
    path = Path(to)
    campaign = campaign or Campaign()
    measuring = measuring or default_measuring(gpu, adaptive=campaign.may_adapt)
    with open_measurer(gpu, measuring=measuring, seed=seed, step=step, run=run) as measurer:
        provenance = provenance_of(
            gpu, measurer, measuring=measuring, seed=seed, in_situ=campaign.in_situ
        )
        header, points = survey(measurer, step, campaign, provenance)
        campaign.check_goal(measurer, header)
        told = progress or (lambda _tally: None)
        adaptive = campaign.on(measurer) is Grid.ADAPTIVE
        if adaptive and not path.exists():
            _check_budget(measurer, header, campaign.budget_s)

        def take(recorder: Recorder) -> None:
            if campaign.steers(measurer):
                _steer(recorder, campaign, told)
            elif adaptive:
                _adapt(recorder, points, campaign, told, seed)
            else:
                take_points(recorder, points, campaign, told)

        return record(measurer, path, header, take)


def _check_budget(measurer: Measurer, header: SampleSet, budget_s: float | None) -> None:
    """Refuse to begin what would end before anything can be compared with auto.

    Raises:
        UsageError: The budget does not last until every kernel was seen once.
    """
    measuring = header.provenance.measuring if header.provenance else None
    if budget_s is None or measuring is None:
        return
    looks = len(header.kernels) + bool(header.order)
    least_s = measuring.least_warm_s + measuring.settle_s + looks * measurer.takes_s(0.0)
    if budget_s < least_s:
        raise UsageError(
            f"a budget of {format_duration(budget_s)} tells nothing: warming up takes "
            f"{format_duration(measuring.least_warm_s)} at least, and every sample "
            f"{format_duration(measurer.takes_s(0.0))}",
            hint=f"--budget {math.ceil(least_s)}s is the least that helps: auto clocks once for "
            f"each of {len(header.kernels)} kernels",
        )


def _adapt(
    recorder: Recorder,
    points: list[tuple[Clocks, list[Kernel]]],
    campaign: Campaign,
    progress: Callable[[Tally], None],
    seed: int,
) -> None:
    """Take samples for as long as they are worth it.

    Raises:
        UsageError: No clocks that all kernels have.
        MeasurementError: The budget is spent and nothing was measured.
    """
    measurer, file = recorder.measurer, recorder.file
    header = file.header
    started_s = measurer.now_s()

    def tell(doing: str) -> None:
        progress(
            Tally(
                done=run.taken,
                total=campaign.max_samples,
                gpu_s=measurer.now_s() - started_s,
                doing=doing,
                budget_s=campaign.budget_s,
            )
        )

    everywhere = [clocks for clocks, some in points if len(some) == len(header.kernels)]
    if not everywhere:
        raise UsageError(
            "no clock pair is there for every kernel, so there is nothing to compare with",
            hint="add rows with empty core_mhz and mem_mhz to the table",
        )
    run = AdaptiveRun(
        recorder,
        campaign,
        everywhere[0],  # auto first, then fastest first
        tell,
        seed=seed,
        in_situ=Capability.RUN in measurer.capabilities and campaign.in_situ,
    )
    if not _is_spent_by_warming(file, campaign.budget_s):
        run.run()
    if not run.taken:
        raise MeasurementError(
            "the whole budget went into warming up, and nothing was measured",
            hint="run the same command with a larger --budget",
        )
    tell("done")


def _steer(recorder: Recorder, campaign: Campaign, progress: Callable[[Tally], None]) -> None:
    """Take samples in company for as long as they are worth it.

    Raises:
        MeasurementError: The budget is spent and nothing was measured.
    """
    measurer, file = recorder.measurer, recorder.file
    started_s = measurer.now_s()

    def tell(doing: str) -> None:
        progress(
            Tally(
                done=file.taken,
                total=campaign.max_samples,
                gpu_s=measurer.now_s() - started_s,
                doing=doing,
                budget_s=BUDGET_S if campaign.budget_s is None else campaign.budget_s,
            )
        )

    if not _is_spent_by_warming(file, campaign.budget_s):
        SteeringRun(recorder, campaign, tell, in_situ=campaign.in_situ).run()
    if not file.taken:
        raise MeasurementError(
            "the whole budget went into warming up, and nothing was measured",
            hint="run the same command with a larger --budget",
        )
    tell("done")


def _is_spent_by_warming(file: SampleFile, budget_s: float | None) -> bool:
    """Whether warming up again would leave nothing of a budget that earlier runs have used."""
    provenance = file.header.provenance
    measuring = provenance.measuring if provenance else None
    if budget_s is None or measuring is None:
        return False
    return file.gpu_s + measuring.least_warm_s >= budget_s


def take_points(
    recorder: Recorder,
    points: list[tuple[Clocks, list[Kernel]]],
    campaign: Campaign,
    progress: Callable[[Tally], None],
) -> None:
    """Take every sample not yet on file: the whole step, then kernels, clocks by clocks.

    Args:
        recorder: Where they are taken and go; the file's header says how many there will be.
        points: Clocks and the kernels to measure at them, in order.
        campaign: How often, and whether the whole step too.
        progress: Told of every sample.
    """
    measurer, file = recorder.measurer, recorder.file
    before = file.sample_set()
    done = {(sample.kernel, sample.asked, sample.repeat) for sample in before.samples}
    total = file.header.expected_samples or 0
    started_s = measurer.now_s()

    def tell(doing: str) -> None:
        progress(
            Tally(done=len(done), total=total, gpu_s=measurer.now_s() - started_s, doing=doing)
        )

    header = file.header
    launches = [header.kernels[index] for index in header.order]
    whole = Capability.RUN in measurer.capabilities and campaign.in_situ and bool(launches)
    missing_steps = range(len(before.in_situ), campaign.repeats if whole else 0)
    if Capability.RUN in measurer.capabilities and (missing_steps or len(done) < total):
        tell("warming the GPU to a steady temperature")
        measurer.warm(launches or list(header.kernels))
    step_runs = StepRuns(recorder, tell)
    for _ in missing_steps:
        step_runs.run()
    for clocks, kernels in points:
        todo = [
            (kernel, repeat)
            for repeat in range(campaign.repeats)
            for kernel in kernels
            if (kernel.name, clocks, repeat) not in done
        ]
        if not todo:
            continue
        with measurer.hold(clocks):
            for kernel, repeat in todo:
                tell(f"{kernel.name} at {clocks}")
                reading = measurer.measure([kernel], repeat)
                recorder.append(kernel.name, clocks, repeat, reading)
                done.add((kernel.name, clocks, repeat))
    tell("done")
