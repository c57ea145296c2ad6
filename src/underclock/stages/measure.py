"""measure: every kernel at every clock pair, appended to a file that a later run can go on with."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from underclock.core.steering.agenda import fewest_measurements
from underclock.errors import MeasurementError, UsageError
from underclock.hw.base import Capability, Measurer
from underclock.records import Clocks, Kernel, MeasurementSettings, SampleSet, Step
from underclock.stages.adaptive import AdaptiveRun
from underclock.stages.as_one import OneKernelRecorder, one_kernel
from underclock.stages.backends import default_measuring, open_measurer
from underclock.stages.campaign import Campaign, Grid, survey
from underclock.stages.expected import (
    TICK_S,
    Expected,
    Phase,
    TimeLeft,
    expected_of,
    warming_s,
)
from underclock.stages.provenance import provenance_of
from underclock.stages.recording import Recorder, record
from underclock.stages.sources import as_step
from underclock.stages.steer import SteeringRun
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
        time_limit_s: Of that time; ``None`` where it has none.
        phase: What of it, where it has several; the first is of a length that is known before.
        phase_s: GPU time since that began.
        left_s: About how much more it takes; ``None`` where nobody can know.
    """

    done: int
    total: int | None
    gpu_s: float
    doing: str
    time_limit_s: float | None = None
    phase: str = ""
    phase_s: float = 0.0
    left_s: float | None = None

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1, of all or else of its phase; ``None`` where nobody can know."""
        ends = ((self.done, self.total), (self.gpu_s, self.time_limit_s))
        shares = [done / whole for done, whole in ends if whole]
        if not shares and self.left_s is not None and self.phase_s + self.left_s > 0:
            shares = [self.phase_s / (self.phase_s + self.left_s)]
        return min(1.0, max(shares)) if shares else None


def measure(  # noqa: PLR0913 - keyword-only, as many as the command has options
    step: Step | str | Path | None = None,
    *,
    gpu: str,
    to: str | Path,
    campaign: Campaign | None = None,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    expect: Callable[[Expected], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> SampleSet:
    """Measure a step's kernels, going on where an earlier run into the same file stopped.

    Args:
        step: What to measure: a step, its file, or a named workload; not needed where a table
            brings its own kernels.
        gpu: ``sim:NAME``, ``replay:TABLE.csv`` or ``nvml:INDEX``.
        to: Samples file, made or continued.
        campaign: Which clocks, how often.
        measuring: How long to wait and measure.
        seed: Of a simulated GPU's noise.
        progress: Told of every sample.
        expect: Told before the first what all of it will take; not of a table.
        run: The step's function, or where it may be found; by default under the working directory.

    Returns:
        Everything in the file.

    Raises:
        UsageError: No step where one is needed, clocks the GPU lacks, or a file of another
            campaign.
        DeviceError, MeasurementError: From the GPU.
    """
    path, step = Path(to), as_step(step)
    campaign = campaign or Campaign()
    measuring = measuring or default_measuring(gpu, adaptive=campaign.may_adapt)
    with open_measurer(
        gpu, measuring=measuring, seed=seed, step=step, run=run, anew=True
    ) as measurer:
        step = measurer.step or step
        provenance = provenance_of(
            gpu, measurer, measuring=measuring, seed=seed, in_situ=campaign.in_situ
        )
        one = one_kernel(step) if step is not None and step.obstacle else None
        if one is not None and Capability.RUN not in measurer.capabilities:
            raise UsageError(
                f"{gpu} cannot {Capability.RUN}, and of this step nothing else can be measured: "
                f"{one.obstacle}",
                hint="take that out of the step and trace it again, or measure on a GPU",
            )
        header, points = survey(measurer, one or step, campaign, provenance)
        campaign.check_goal(measurer, header)
        told = progress or (lambda _tally: None)
        adaptive = campaign.on(measurer) is Grid.ADAPTIVE
        if adaptive and not path.exists():
            _check_time_limit(
                measurer, header, campaign.time_limit_s, steers=campaign.steers(measurer)
            )
        if one is not None and step is not None:
            header = msgspec.structs.replace(
                header,
                kernels=step.kernels,
                order=step.order,
                modules=step.modules,
                fingerprint=step.fingerprint,
            )

        def take(recorder: Recorder) -> None:
            recorder = recorder if one is None else OneKernelRecorder(recorder)
            file = recorder.file
            expected = expected_of(measurer, file.sample_set(), campaign, file.gpu_s)
            if expected is not None and expect is not None:
                expect(expected)
            left = None if expected is None else TimeLeft(expected, measurer.now_s)
            if campaign.steers(measurer):
                # As one kernel the step is in each of its mixes, and in no other step.
                _steer(recorder, campaign, told, in_situ=campaign.in_situ and one is None)
            elif adaptive:
                _adapt(recorder, points, campaign, told, seed, left)
            else:
                take_points(recorder, points, campaign, told)

        return record(measurer, path, header, take)


def _check_time_limit(
    measurer: Measurer, header: SampleSet, time_limit_s: float | None, *, steers: bool
) -> None:
    """Refuse to begin what would end before anything can be compared with auto.

    Raises:
        UsageError: The time limit does not last until every kernel was seen once; where clocks are
            steered, until the step was, and one kernel.
    """
    measuring = header.provenance.measuring if header.provenance else None
    if time_limit_s is None or measuring is None:
        return
    whole = bool(header.order)
    if steers:
        looks, seen = fewest_measurements(whole=whole) + 1, "the step, and its longest kernel"
    else:
        looks = len(header.kernels) + whole
        seen = f"auto clocks once for each of {len(header.kernels)} kernels"
    each_s = measurer.takes_s(0.0, timed=steers)
    of_looks_s = measuring.settle_s + looks * each_s
    if time_limit_s < measuring.least_warm_s + of_looks_s:
        usual_s = math.ceil(warming_s(measuring) + of_looks_s + looks * TICK_S)
        raise UsageError(
            f"a time limit of {format_duration(time_limit_s)} tells nothing: warming up takes "
            f"{format_duration(measuring.least_warm_s)} at least, and every sample "
            f"{format_duration(each_s)}",
            hint=f"--time-limit {usual_s}s is about the least that helps: {seen}; more where "
            "launches take long, for twenty are measured at a time",
        )


def _adapt(
    recorder: Recorder,
    points: list[tuple[Clocks, list[Kernel]]],
    campaign: Campaign,
    progress: Callable[[Tally], None],
    seed: int,
    left: TimeLeft | None,
) -> None:
    """Take samples for as long as they are worth it.

    Raises:
        UsageError: No clocks that all kernels have.
        MeasurementError: The time limit ends it and nothing was measured.
    """
    measurer, file = recorder.measurer, recorder.file
    header = file.header
    started_s, earlier_s = measurer.now_s(), file.gpu_s

    def tell(doing: str) -> None:
        phase = left.phase(run.taken - before, run.short_of) if left else Phase()
        progress(
            Tally(
                done=run.taken,
                total=campaign.max_samples,
                gpu_s=measurer.now_s() - started_s,
                doing=doing,
                time_limit_s=_rest(campaign.time_limit_s, earlier_s),
                phase=phase.name,
                phase_s=phase.spent_s,
                left_s=phase.left_s,
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
    before = run.taken
    goes_on = not _is_spent_by_warming(file, campaign.time_limit_s)
    if goes_on:
        run.run()
    if not run.taken or (goes_on and run.taken == before and run.is_late):
        more = " more" if before else ""
        raise MeasurementError(
            f"the whole time limit went into warming up, and nothing{more} was measured",
            hint="run the same command with a larger --time-limit",
        )
    tell("done")


def _steer(
    recorder: Recorder,
    campaign: Campaign,
    progress: Callable[[Tally], None],
    *,
    in_situ: bool,
) -> None:
    """Take samples in company for as long as they are worth it.

    Raises:
        MeasurementError: The time limit ends it and nothing was measured.
    """
    measurer, file = recorder.measurer, recorder.file
    started_s, earlier_s = measurer.now_s(), file.gpu_s

    def tell(doing: str) -> None:
        progress(
            Tally(
                done=file.taken,
                total=campaign.max_samples,
                gpu_s=measurer.now_s() - started_s,
                doing=doing,
                time_limit_s=_rest(campaign.limit_s(steers=True), earlier_s),
            )
        )

    if not _is_spent_by_warming(file, campaign.time_limit_s):
        SteeringRun(recorder, campaign, tell, in_situ=in_situ).run()
    if not file.taken:
        raise MeasurementError(
            "the whole time limit went into warming up, and nothing was measured",
            hint="run the same command with a larger --time-limit",
        )
    tell("done")


def _rest(limit_s: float | None, earlier_s: float) -> float | None:
    """Return what earlier runs into the same file left of a time limit."""
    return None if limit_s is None else max(0.0, limit_s - earlier_s)


def _is_spent_by_warming(file: SampleFile, time_limit_s: float | None) -> bool:
    """Whether warming up again would leave nothing of a time limit that earlier runs have used."""
    provenance = file.header.provenance
    measuring = provenance.measuring if provenance else None
    if time_limit_s is None or measuring is None:
        return False
    return file.gpu_s + measuring.least_warm_s >= time_limit_s


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
