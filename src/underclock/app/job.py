"""``underclock job``: what the ranks of a job do, from a schedule's name and what stages cost."""

from collections.abc import Sequence  # noqa: TC003 - annotations are read while running
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from underclock.app.options import DURATION, force_option, json_option, output_option
from underclock.app.output import check_place, deliver, print_table
from underclock.errors import UsageError
from underclock.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from underclock.records import SampleSet
    from underclock.records.job import Job, JobPlan, Profile, Waiting

_SCHEDULES = {
    "1f1b": "A forward and a backward in turn, after as many forwards as stages follow.",
    "gpipe": "Every forward, then every backward.",
    "interleaved": "1F1B with several chunks of the model on each rank.",
    "zero-bubble": "1F1B with gradients of weights where a rank would wait (ZB-H1).",
}
_WAITING_SHARE = 0.2
"""Of the greatest power of a stage's profile: what waiting draws where it is not given. Measured:
148 W of 690 on an H200, 83 to 143 of 400 on A100s, 52 to 89 of 300 on A40s (FACTS 3a; Perseus)."""


@click.group(name="job")
def command() -> None:
    """Describe a job of many GPUs: who does what, and who waits for whom.

    The answer is for `underclock plan`.

    Example: underclock job 1f1b --stages 8 --microbatches 128 --profile profile.csv -o job.json
    """


def _add(schedule: str, summary: str) -> None:
    """Give a schedule its command."""

    @command.command(name=schedule, help=f"{summary}\n\nStages and ranks are counted from 0.")
    @click.option("--stages", type=int, required=True, help="Ranks of one pipeline.")
    @click.option(
        "--microbatches", type=int, required=True, help="That a pipeline takes in an iteration."
    )
    @click.option(
        "--profile",
        type=click.Path(path_type=Path),
        metavar="CSV",
        help="What instructions cost: stage,instruction,frequency,time,energy (MHz, s, J).",
    )
    @click.option(
        "--samples",
        type=click.Path(path_type=Path),
        multiple=True,
        help="Or samples of a stage's step, one microbatch: of all stages, or once for each.",
    )
    @click.option(
        "--latency",
        help="What changing clocks inside an instruction takes, for samples: as `plan` takes it. "
        "[default: one clock for each instruction]",
    )
    @click.option(
        "--blocked-power",
        type=float,
        metavar="W",
        help="What a rank draws while it waits. [default: a fifth of its stage's greatest]",
    )
    @click.option("--chunks", type=int, default=1, help="Pieces of the model on each rank.")
    @click.option("--data", type=int, default=1, help="Pipelines that train together.")
    @click.option("--tensor", type=int, default=1, help="Ranks that share each stage.")
    @click.option(
        "--transfer",
        default="",
        metavar="TIMES",
        help="What a microbatch takes from stage to stage: 5ms, or one time per boundary.",
    )
    @click.option("--load", type=DURATION, default="0s", help="Bringing a microbatch's data takes.")
    @click.option("--all-reduce", type=DURATION, default="0s", help="Summing gradients takes.")
    @click.option("--gpu-name", help="What the profile was measured on.")
    @output_option("job", required=False)
    @json_option
    @force_option
    def scheduled(**asked: Any) -> None:  # noqa: ANN401 - what the options above say
        _scheduled(schedule, **asked)


for _name, _summary in _SCHEDULES.items():
    _add(_name, _summary)


@command.command(name="traced")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--workload", metavar="NAME", help="What is trained. [default: by the traces]")
@click.option("--blocked-power", type=float, metavar="W", help="What a rank draws while it waits.")
@output_option("job", required=False)
@json_option
@force_option
def _traced(
    traces: tuple[Path, ...],
    *,
    workload: str | None,
    blocked_power: float | None,
    output: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Make a job of TRACES of all its ranks, as they were seen; of its energy nothing is known.

    TRACES are files, or a folder of them: what `torchrun -m underclock trace` left, or other Chrome
    traces of PyTorch's profiler, *.json or *.json.gz, whose "distributedInfo" says the rank.

    Example: underclock job traced step.rank*.trace.json.gz -o job.json
    """
    from underclock.report import job_tables
    from underclock.tracing.job_files import job_of_traces

    check_place(output, force=force, inputs=[each for each in traces if each.is_file()])
    _check_watts(blocked_power)
    job = job_of_traces(traces, workload=workload, waiting_w=blocked_power)
    deliver(
        job,
        output,
        lambda: print_table(*job_tables(job)),
        as_json=as_json,
        force=force,
        warnings=job.warnings,
    )


def _check_watts(blocked_w: float | None) -> None:
    """Refuse what nothing draws.

    Raises:
        UsageError: It is negative, or more than a rack has.
    """
    if blocked_w is not None and not 0.0 <= blocked_w < 1e5:  # noqa: PLR2004 - a rack's
        raise UsageError(f"waiting draws {blocked_w} W", hint="give watts: --blocked-power 75")


def _scheduled(
    schedule: str,
    *,
    profile: Path | None,
    samples: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
    force: bool,
    **asked: Any,  # noqa: ANN401 - of a `Shape` mostly, by its names
) -> None:
    from underclock.report import job_tables

    check_place(output, force=force, inputs=samples if profile is None else (profile, *samples))
    times_s = tuple(parse_duration(each) for each in asked.pop("transfer").split(",") if each)
    job = pipeline_job(
        schedule,
        profile,
        samples=samples,
        blocked_w=asked.pop("blocked_power"),
        load_s=asked.pop("load"),
        reduce_s=asked.pop("all_reduce"),
        transfer_s=times_s,
        **asked,
    )
    deliver(
        job,
        output,
        lambda: print_table(*job_tables(job)),
        as_json=as_json,
        force=force,
        warnings=job.warnings,
    )


def pipeline_job(
    schedule: str,
    profile: str | Path | None = None,
    *,
    samples: "Sequence[SampleSet | str | Path]" = (),
    latency: str | None = None,
    blocked_w: float | None = None,
    gpu_name: str | None = None,
    **shape: Any,  # noqa: ANN401 - of a `Shape`, by its names
) -> "Job":
    """Lay out a job from a schedule's name and what its stages cost.

    Args:
        schedule: ``1f1b``, ``gpipe``, ``interleaved`` or ``zero-bubble``.
        profile: The table: ``stage,instruction,frequency,time,energy`` (MHz, s, J).
        samples: Or samples of a stage's step, as `plan` takes them: one microbatch forward and
            backward, and the optimizer; of one stage that all are like, or of each in order.
        latency: With samples: what changing clocks inside an instruction takes, as `plan` takes it;
            ``None`` for one clock for each instruction.
        blocked_w: What a rank draws while it waits; ``None`` for a share of its stage's greatest.
        gpu_name: What it runs on; ``None`` for what was measured.
        shape: ``stages`` and ``microbatches``; ``chunks``, ``data``, ``tensor``, ``transfer_s``,
            ``load_s``, ``reduce_s``: see `underclock.core.job.schedules.Shape`.

    Raises:
        DataError: Profile or samples cannot be read, or are no stage's.
        UsageError: There is no such job.
    """
    from msgspec.structs import replace

    from underclock.app.stages import costs_of_profile, costs_of_samples
    from underclock.core.job.schedules import Shape, pipeline
    from underclock.records import GpuInfo

    _check_watts(blocked_w)
    laid_out = Shape(**shape)
    if (profile is None) == (not samples) or (profile is not None and latency is not None):
        raise UsageError(
            "what stages cost is in a profile, or in samples and what changing clocks takes",
            hint="give --profile, or --samples with or without --latency",
        )
    if profile is None:
        costs = costs_of_samples(samples, laid_out, latency)
    else:
        costs = costs_of_profile(Path(profile))
    gpus = costs.gpus if gpu_name is None else {0: GpuInfo(name=gpu_name)}
    job = pipeline(
        schedule,
        laid_out,
        costs.profiles,
        waiting={
            each: _waiting(each, costs.profiles, blocked_w) for each in range(laid_out.stages)
        },
        gpu=gpus[0],
        workload=costs.workload,
        evidence=costs.evidence,
    )
    ranks = (replace(rank, gpu=gpus.get(rank.stage) if rank.stage else None) for rank in job.ranks)
    job = replace(job, ranks=tuple(ranks), warnings=(*costs.warnings, *job.warnings))
    if blocked_w is not None:
        return job
    watts = sorted({round(rank.waiting[-1].power_w) for rank in job.ranks})
    words = f"{watts[0]} W" if len(watts) == 1 else f"{watts[0]} to {watts[-1]} W"
    assumed = (
        f"what waiting draws was not given: {words} is assumed, a fifth of each stage's greatest "
        "power; measured, give it with --blocked-power"
    )
    return replace(job, warnings=(*job.warnings, assumed))


def _waiting(
    stage: int, profiles: "Mapping[str, Profile]", blocked_w: float | None
) -> tuple["Waiting", ...]:
    from underclock.records.job import Waiting

    if blocked_w is not None:
        return (Waiting(power_w=blocked_w),)
    powers = [
        (row.energy_j or 0.0) / row.time_s
        for name, profile in profiles.items()
        if name.startswith(f"stage {stage} ")
        for row in profile.rows
    ]
    return (Waiting(power_w=_WAITING_SHARE * max(powers, default=0.0)),)


def plan_job(
    job: "Job | str | Path",
    *,
    latency: str = "known",
    **asked: Any,  # noqa: ANN401
) -> "JobPlan":
    """Choose clocks for every instruction of every rank, and compare with simpler ways.

    Args:
        job: A job, or the file that holds it.
        latency: What changing clocks takes: ``known``, ``free``, ``measured``, ``6ms``, or a file
            of latencies.
        asked: ``max_slowdown``, ``min_dwell_s``, ``board_spread``: see
            `underclock.core.job.planning.JobGoal`.

    Raises:
        DataError: The file is no job, its ranks wait in a circle, or energies are not known.
        UsageError: A number means nothing.
    """
    from msgspec.structs import replace

    import underclock
    from underclock.core.job import planning
    from underclock.records.job import Job
    from underclock.store.given import as_record

    source = None if isinstance(job, Job) else Path(job)
    of = as_record(job, Job)
    latency_s, told = _latency(latency, of, source)
    made = planning.plan_job(of, planning.JobGoal(**asked, latency_s=latency_s))
    return replace(made, version=underclock.__version__, warnings=(*made.warnings, *told))


def _latency(text: str, job: "Job", source: Path | None) -> tuple[float, tuple[str, ...]]:
    """Return what a change of the core clock takes at most, and what a reader must know of that."""
    from underclock.app.switching import FREE, KNOWN
    from underclock.gpus.models import reported_latency
    from underclock.records.latencies import Domain, LatencyTable
    from underclock.store import read_document

    beside = (source or Path("job.json")).with_suffix(".latency.json")
    if text in FREE:
        return 0.0, ("changing clocks was taken as free: a bound",)
    if text == "measured" or (text == KNOWN and beside.is_file()):
        text = str(beside)
    if text == KNOWN:
        names = {job.gpu_of(at).name for at in range(len(job.ranks))}
        known = [reported_latency(name) for name in names]
        if None in known:
            told = (
                "what changing clocks takes is not known of these GPUs and was taken as free, a "
                "bound: say it with --latency 6ms, or name the GPU (--gpu-name)"
            )
            return 0.0, (told,)
        return max(each.most_s for each in known if each), ()
    if text != str(beside) and not Path(text).is_file():
        return parse_duration(text), ()
    table = read_document(Path(text), LatencyTable)
    core = [each.total_s for each in table.slowest() if each.domain is Domain.CORE]
    return max(core), table.check_gpu(job.gpu)
