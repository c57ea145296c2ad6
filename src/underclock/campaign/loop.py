"""One run of a campaign into a file, which a later run can go on with."""

import math
from collections.abc import Callable

from underclock.campaign.adaptive import AdaptiveRun
from underclock.campaign.progress import TICK_S, Phase, Tally, TimeLeft, warming_s
from underclock.campaign.recording import Recorder, StepRuns
from underclock.campaign.steer import SteeringRun
from underclock.campaign.survey import Campaign
from underclock.core.steering.agenda import fewest_measurements
from underclock.errors import MeasurementError, UsageError
from underclock.hw.base import Capability, Measurer
from underclock.records import Clocks, Kernel, SampleSet
from underclock.store import SampleFile
from underclock.units import format_duration


def check_time_limit(
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


def adapt(
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


def steer(
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
