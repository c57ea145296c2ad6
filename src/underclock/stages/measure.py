"""measure: every kernel at every clock pair, appended to a file that a later run can go on with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from underclock.errors import UsageError
from underclock.hw.base import Bench, Reading
from underclock.hw.bench import Protocol
from underclock.records import AUTO, Clocks, Kernel, Profile, Sample, Step
from underclock.stages.backends import open_bench
from underclock.stages.real import StepFunction
from underclock.store import SampleFile
from underclock.units import format_mhz


class Grid(StrEnum):
    """Which clock pairs to visit."""

    COARSE = "coarse"  # core every 210 MHz, every memory clock, auto: the paper's grid
    FULL = "full"  # every pair the driver lists


_COARSE_STEP_MHZ = 210


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to visit."""

    grid: Grid = Grid.COARSE
    core_mhz: tuple[int | None, ...] = ()
    """Visit only these core clocks, whatever the grid; ``None`` is auto."""
    mem_mhz: tuple[int | None, ...] = ()
    """Visit only these memory clocks, likewise."""
    repeats: int = 1
    """Measurements of each kernel at each pair."""
    in_situ: bool = True
    """Also run the whole step at auto, to settle what auto costs; without it a plan's baseline is
    the sum of isolated kernels, as in arXiv 2601.08539."""

    def __post_init__(self) -> None:
        """Reject campaigns that measure nothing."""
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How far a campaign is.

    Attributes:
        done: Samples on file.
        total: Samples it set out to take.
        gpu_s: The bench's own time since this run began; virtual on a simulated GPU.
        doing: What is being done, for a person.
    """

    done: int
    total: int
    gpu_s: float
    doing: str


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
) -> Profile:
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
    with open_bench(gpu, protocol=protocol, seed=seed, step=step, run=run) as bench:
        header, points = _survey(bench, step, campaign)
        file = (
            SampleFile.open(path, writable=True)
            if path.exists()
            else SampleFile.create(path, header)
        )
        with file:
            _check_same(path, file.header, header)
            try:
                _run(bench, file, points, campaign, progress or (lambda _tally: None))
            finally:
                file.note(bench.notes())
            return file.profile()


def settings_of(bench: Bench, campaign: Campaign) -> tuple[Clocks, ...]:
    """Return the clock pairs a campaign visits: auto first, then fastest first.

    Raises:
        UsageError: It names clocks the GPU lacks.
    """
    offered = bench.settings()
    cores = _core_grid(offered, campaign, bench)
    chosen = [
        clocks
        for clocks in offered
        if clocks == AUTO
        or (
            _wanted(clocks.core_mhz, campaign.core_mhz, cores)
            and _wanted(clocks.mem_mhz, campaign.mem_mhz, None)
        )
    ]
    for name, asked in (("core", campaign.core_mhz), ("memory", campaign.mem_mhz)):
        known = {c.core_mhz if name == "core" else c.mem_mhz for c in offered}
        for mhz in asked:
            if mhz not in known:
                near = sorted(
                    (k for k in known if k is not None), key=lambda k: abs(k - (mhz or 0))
                )
                raise UsageError(
                    f"this GPU has no {name} clock of {format_mhz(mhz)} MHz",
                    hint=f"nearest: {', '.join(map(str, sorted(near[:3]))) or 'none'}",
                )
    return tuple(
        sorted(chosen, key=lambda clocks: (not clocks.is_auto, *(-r for r in clocks.rank)))
    )


def _core_grid(
    offered: Sequence[Clocks], campaign: Campaign, bench: Bench
) -> frozenset[int | None] | None:
    """Return the core clocks of the grid; ``None`` for all."""
    if campaign.grid is Grid.FULL or not bench.live:
        return None
    cores = sorted({c.core_mhz for c in offered if c.core_mhz is not None})
    if not cores:
        return None
    wanted = range(cores[0], cores[-1] + 1, _COARSE_STEP_MHZ)
    return frozenset([None, *(min(cores, key=lambda c: abs(c - mhz)) for mhz in wanted)])


def _wanted(
    mhz: int | None, asked: tuple[int | None, ...], grid: frozenset[int | None] | None
) -> bool:
    if asked:
        return mhz in asked
    return grid is None or mhz in grid


def _survey(
    bench: Bench, step: Step | None, campaign: Campaign
) -> tuple[Profile, list[tuple[Clocks, list[Kernel]]]]:
    """Decide what to measure, in what order, and what the file's header says of it."""
    name, kernels = bench.brings()
    order: tuple[int, ...] = ()
    fingerprint: str | None = None
    if step is not None:
        name, kernels, order, fingerprint = step.name, step.kernels, step.order, step.fingerprint
    elif not kernels:
        raise UsageError(
            "this GPU needs a step to run", hint="make one with `underclock trace gpt3-xl`"
        )
    settings = settings_of(bench, campaign)
    points = [
        (clocks, [kernel for kernel in kernels if bench.can_measure(kernel, clocks)])
        for clocks in settings
    ]
    known = {kernel.name for _, some in points for kernel in some}
    lacking = [kernel.name for kernel in kernels if kernel.name not in known]
    if lacking:
        raise UsageError(
            f"this GPU cannot answer for {lacking[0]!r} ({len(lacking)} of {len(kernels)} kernels)",
            hint="a table only knows its own kernels: leave the step away",
        )
    header = Profile(
        evidence=bench.evidence,
        gpu=bench.info(),
        workload=name,
        kernels=kernels,
        fingerprint=fingerprint,
        settings=settings,
        repeats=campaign.repeats,
        expected_samples=campaign.repeats * sum(len(some) for _, some in points),
        order=order,
        source=step.source if step is not None else "",
        warnings=(*(step.warnings if step is not None else ()), *bench.notes()),
    )
    return header, points


def _check_same(path: Path, found: Profile, wanted: Profile) -> None:
    """Refuse to mix two campaigns in one file."""
    for field, noun in (
        ("evidence", "evidence"),
        ("gpu", "GPU"),
        ("workload", "workload"),
        ("fingerprint", "step"),
        ("kernels", "kernels"),
        ("settings", "clock grid"),
        ("repeats", "number of repeats"),
    ):
        if getattr(found, field) != getattr(wanted, field):
            raise UsageError(
                f"{path} holds samples of another {noun}; they do not mix",
                hint="name another file with -o, or repeat the options it was begun with",
            )


def _run(
    bench: Bench,
    file: SampleFile,
    points: list[tuple[Clocks, list[Kernel]]],
    campaign: Campaign,
    progress: Callable[[Tally], None],
) -> None:
    """Take every sample not yet on file."""
    before = file.profile()
    done = {(sample.kernel, sample.asked, sample.repeat) for sample in before.samples}
    total = file.header.expected_samples or 0
    started_s = bench.now_s()

    def tell(doing: str) -> None:
        progress(Tally(done=len(done), total=total, gpu_s=bench.now_s() - started_s, doing=doing))

    header = file.header
    launches = [header.kernels[index] for index in header.order]
    whole = bench.live and campaign.in_situ and bool(launches)
    missing_steps = range(len(before.in_situ), campaign.repeats if whole else 0)
    if bench.live and (missing_steps or len(done) < total):
        tell("warming the GPU to a steady temperature")
        bench.warm(launches or list(header.kernels))
    for repeat in missing_steps:
        tell("the whole step at auto clocks")
        reading = bench.measure(launches)
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
        with bench.hold(clocks):
            for kernel, repeat in todo:
                tell(f"{kernel.name} at {clocks}")
                reading = bench.measure([kernel], repeat)
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
