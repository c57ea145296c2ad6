"""measure: every kernel at every clock pair, appended to a file that a later run can go on with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from underclock.errors import UsageError
from underclock.hw.base import Measurer, Reading
from underclock.hw.measurer import Protocol
from underclock.records import AUTO, Clocks, Kernel, Sample, SampleSet, Step
from underclock.stages.adaptive import AdaptiveRun
from underclock.stages.backends import default_protocol, open_measurer
from underclock.stages.campaign import Campaign, Grid, survey
from underclock.stages.real import StepFunction
from underclock.store import SampleFile


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
    protocol: Protocol | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | None = None,
) -> SampleSet:
    """Measure a step's kernels, going on where an earlier run into the same file stopped.

    Args:
        step: What to measure; not needed where a table brings its own kernels.
        gpu: ``sim:NAME``, ``replay:TABLE.csv`` or ``nvml:INDEX``.
        to: Samples file, made or continued.
        campaign: Which clocks, how often.
        protocol: How long to wait and measure.
        seed: Of a simulated GPU's noise.
        progress: Told of every sample.
        run: The step's function, where it was traced from one; else it is looked for in the file
            that the step names.

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
    protocol = protocol or default_protocol(gpu, adaptive=campaign.may_adapt)
    with open_measurer(gpu, protocol=protocol, seed=seed, step=step, run=run) as measurer:
        header, points = survey(measurer, step, campaign)
        told = progress or (lambda _tally: None)

        def take(file: SampleFile) -> None:
            if campaign.on(measurer) is Grid.ADAPTIVE:
                _adapt(measurer, file, points, campaign, told, seed)
            else:
                take_points(measurer, file, points, campaign, told)

        return record(measurer, path, header, take)


def record(
    measurer: Measurer, path: Path, header: SampleSet, take: Callable[[SampleFile], None]
) -> SampleSet:
    """Take samples into a file, made or continued, with what the measurer has to say of them.

    Args:
        measurer: Where they are taken.
        path: Of the file.
        header: What it must say.
        take: Appends the samples.

    Returns:
        Everything in the file.

    Raises:
        UsageError: The file is of another campaign.
    """
    file = (
        SampleFile.open(path, writable=True) if path.exists() else SampleFile.create(path, header)
    )
    with file:
        _check_same(path, file.header, header)
        try:
            take(file)
        finally:
            file.note(measurer.notes())
        return file.sample_set()


def _adapt(
    measurer: Measurer,
    file: SampleFile,
    points: list[tuple[Clocks, list[Kernel]]],
    campaign: Campaign,
    progress: Callable[[Tally], None],
    seed: int,
) -> None:
    """Take samples for as long as they are worth it."""
    header = file.header
    before = file.sample_set()
    done = len(before.samples) + len(before.in_situ)
    started_s = measurer.now_s()

    def tell(doing: str) -> None:
        progress(
            Tally(
                done=done,
                total=campaign.max_samples,
                gpu_s=measurer.now_s() - started_s,
                doing=doing,
                budget_s=campaign.budget_s,
            )
        )

    def append(name: str, asked: Clocks, repeat: int, reading: Reading, whole: bool) -> None:  # noqa: FBT001
        nonlocal done
        file.append(as_sample(name, asked, repeat, reading), in_situ=whole)
        done += 1

    everywhere = [clocks for clocks, some in points if len(some) == len(header.kernels)]
    if not everywhere:
        raise UsageError(
            "no clock pair is there for every kernel, so there is nothing to compare with",
            hint="add rows with empty core_mhz and mem_mhz to the table",
        )
    AdaptiveRun(
        measurer,
        file,
        campaign,
        everywhere[0],  # auto first, then fastest first
        append,
        tell,
        seed=seed,
        in_situ=measurer.live and campaign.in_situ,
    ).run()
    tell("done")


def _check_same(path: Path, found: SampleSet, wanted: SampleSet) -> None:
    """Refuse to mix two campaigns in one file."""
    for field, noun in (
        ("evidence", "evidence"),
        ("gpu", "GPU"),
        ("workload", "workload"),
        ("fingerprint", "step"),
        ("kernels", "kernels"),
        ("settings", "clock grid"),
        ("repeats", "number of repeats"),
        ("expected_samples", "grid"),
    ):
        if getattr(found, field) != getattr(wanted, field):
            raise UsageError(
                f"{path} holds samples of another {noun}; they do not mix",
                hint="name another file with -o, or repeat the options it was begun with",
            )


def take_points(
    measurer: Measurer,
    file: SampleFile,
    points: list[tuple[Clocks, list[Kernel]]],
    campaign: Campaign,
    progress: Callable[[Tally], None],
) -> None:
    """Take every sample not yet on file: the whole step, then kernels, clocks by clocks.

    Args:
        measurer: Where.
        file: Where they go; its header says how many there will be.
        points: Clocks and the kernels to measure at them, in order.
        campaign: How often, and whether the whole step too.
        progress: Told of every sample.
    """
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
    whole = measurer.live and campaign.in_situ and bool(launches)
    missing_steps = range(len(before.in_situ), campaign.repeats if whole else 0)
    if measurer.live and (missing_steps or len(done) < total):
        tell("warming the GPU to a steady temperature")
        measurer.warm(launches or list(header.kernels))
    for repeat in missing_steps:
        tell("the whole step at auto clocks")
        reading = measurer.measure(launches)
        file.append(as_sample(header.workload, AUTO, repeat, reading), in_situ=True)
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
                file.append(as_sample(kernel.name, clocks, repeat, reading))
                done.add((kernel.name, clocks, repeat))
    tell("done")


def as_sample(name: str, asked: Clocks, repeat: int, reading: Reading) -> Sample:
    """Say of a reading what it is of."""
    return msgspec.convert(
        {"kernel": name, "asked": asked, "repeat": repeat}
        | {field: getattr(reading, field) for field in Reading.__slots__},
        Sample,
    )
