"""``underclock job``: what the ranks of a job do, from a schedule's name and what stages cost."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from underclock.app.options import DURATION, WATTS, Command, delivered, more_option
from underclock.app.output import Delivery
from underclock.errors import UsageError
from underclock.units import parse_duration

if TYPE_CHECKING:
    from underclock.records import SampleSet
    from underclock.records.job import Job, JobPlan

_SCHEDULES = {
    "1f1b": "A forward and a backward in turn, after as many forwards as stages follow.",
    "gpipe": "Every forward, then every backward.",
    "interleaved": "1F1B with several chunks of the model on each rank.",
    "zero-bubble": "1F1B with gradients of weights where a rank would wait (ZB-H1).",
}
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Schedules(click.Group):
    """Serves one command under the name of every schedule."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_SCHEDULES, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _scheduled if cmd_name in _SCHEDULES else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        rows = [(name, each.get_short_help_str()) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*_SCHEDULES.items(), *rows])


@click.group(name="job", cls=_Schedules)
def command() -> None:
    """Describe a job of many GPUs: who does what, and who waits for whom.

    The answer is for `underclock plan`.

    Example: underclock job 1f1b --stages 8 --microbatches 128 --profile profile.csv -o job.json
    """


def _cost_options(command: _Command) -> _Command:
    for add in (
        click.option(
            "--latency",
            help="What changing clocks inside an instruction takes, for samples: as `plan` takes "
            "it. [default: one clock for each instruction]",
        ),
        click.option(
            "--samples",
            type=click.Path(path_type=Path),
            multiple=True,
            help="Or samples of a stage's step, one microbatch: of all stages, or once for each.",
        ),
        click.option(
            "--profile",
            type=click.Path(path_type=Path),
            metavar="CSV",
            help="What instructions cost: stage,instruction,frequency,time,energy (MHz, s, J).",
        ),
    ):
        command = add(command)
    return command


@click.command(cls=Command)
@click.option("--stages", type=int, required=True, help="Ranks of one pipeline.")
@click.option(
    "--microbatches", type=int, required=True, help="That a pipeline takes in an iteration."
)
@_cost_options
@click.option(
    "--blocked-power",
    type=WATTS,
    metavar="W",
    help="What a rank draws while it waits. [default: a fifth of its stage's greatest]",
)
@more_option("--chunks", type=int, default=1, help="Pieces of the model on each rank.")
@more_option("--data", type=int, default=1, help="Pipelines that train together.")
@more_option("--tensor", type=int, default=1, help="Ranks that share each stage.")
@more_option(
    "--transfer",
    default="",
    metavar="TIMES",
    help="What a microbatch takes from stage to stage: 5ms, or one time per boundary.",
)
@more_option("--all-reduce", type=DURATION, default="0s", help="Summing gradients takes.")
@more_option("--gpu-name", help="What the profile was measured on.")
@delivered("job")
@click.pass_context
def _scheduled(
    context: click.Context,
    /,
    *,
    profile: Path | None,
    samples: tuple[Path, ...],
    transfer: str,
    all_reduce: float,
    blocked_power: float | None,
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - of a `Layout` mostly, by its names
) -> None:
    """Lay out a job by its schedule; stages and ranks are counted from 0."""
    from underclock.report import job_tables

    to.check(profile, *samples)
    job = pipeline_job(
        context.info_name or "",
        profile,
        samples=samples,
        blocked_w=blocked_power,
        reduce_s=all_reduce,
        transfer_s=tuple(parse_duration(each) for each in transfer.split(",") if each),
        **asked,
    )
    to.give(job, lambda: job_tables(job))


@command.command(name="traced", cls=Command)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@_cost_options
@click.option("--blocked-power", type=WATTS, metavar="W", help="What a rank draws while it waits.")
@more_option("--gpu-name", help="What the ranks ran on. [default: as the traces say]")
@delivered("job")
def _traced(
    traces: tuple[Path, ...],
    *,
    profile: Path | None,
    samples: tuple[Path, ...],
    latency: str | None,
    blocked_power: float | None,
    gpu_name: str | None,
    to: Delivery,
) -> None:
    """Make a job of TRACES of all its ranks, as they were seen; energies are the profile's.

    TRACES are files, or a folder of them: what `underclock trace` left, or other Chrome
    traces of PyTorch's profiler, *.json or *.json.gz, whose "distributedInfo" says the rank; one
    alone may be of any. Passes of microbatches are read from PyTorch's pipelines, from ranges that
    you put, record_function("forward mb=3 stage=1"), or from autograd and Optimizer.step.

    Example: underclock job traced step.rank*.trace.json.gz -o job.json
    """
    from underclock.app.stages import with_costs
    from underclock.report import job_tables
    from underclock.tracing.job_files import job_of_traces

    given = [*traces, *samples, *([] if profile is None else [profile])]
    to.check(*(each for each in given if each.is_file()))
    _check_watts(blocked_power)
    costed = bool(samples) or profile is not None
    # The power of waiting comes with the costs.
    waiting_w = 0.0 if costed else blocked_power
    job = job_of_traces(traces, waiting_w=waiting_w, gpu_name=gpu_name)
    if costed:
        job = with_costs(job, profile, samples, latency, blocked_w=blocked_power)
    to.give(job, lambda: job_tables(job))


def _check_watts(blocked_w: float | None) -> None:
    from underclock.records.common import GREATEST_W

    if blocked_w is not None and not 0.0 <= blocked_w <= GREATEST_W:
        raise UsageError(f"waiting draws {blocked_w} W", hint="give watts: --blocked-power 75")


def pipeline_job(
    schedule: str,
    profile: str | Path | None = None,
    *,
    samples: "Sequence[SampleSet | str | Path]" = (),
    latency: str | None = None,
    blocked_w: float | None = None,
    gpu_name: str | None = None,
    **shape: Any,  # noqa: ANN401 - of a `Layout`, by its names
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
            ``load_s``, ``reduce_s``: see `underclock.core.job.schedules.Layout`.

    Raises:
        DataError: Profile or samples cannot be read, or are no stage's.
        UsageError: There is no such job.
    """
    from msgspec.structs import replace

    from underclock.app.stages import stage_costs, with_waiting
    from underclock.core.job.schedules import Layout, pipeline
    from underclock.records import GpuInfo
    from underclock.records.job import Waiting

    _check_watts(blocked_w)
    laid_out = Layout(**shape)
    stages, chunks = laid_out.stages, laid_out.chunks
    costs = stage_costs(profile, samples, latency, stages=stages, chunks=chunks)
    gpus = costs.gpus if gpu_name is None else {0: GpuInfo(name=gpu_name)}
    job = pipeline(
        schedule,
        laid_out,
        costs.profiles,
        waiting=dict.fromkeys(range(stages), (Waiting(power_w=0.0),)),
        gpu=gpus[0],
        workload=costs.workload,
        evidence=costs.evidence,
    )
    ranks = (replace(rank, gpu=gpus.get(rank.stage) if rank.stage else None) for rank in job.ranks)
    job = replace(job, ranks=tuple(ranks), warnings=(*costs.warnings, *job.warnings))
    return with_waiting(job, blocked_w)


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
    from underclock.app.switching import KNOWN, latencies_file, named_latencies
    from underclock.core.job import planning
    from underclock.gpus.models import reported_latency
    from underclock.records.job import Job
    from underclock.store.json_files import as_record
    from underclock.units import Domain

    source = None if isinstance(job, Job) else Path(job)
    of = as_record(job, Job)
    measured = latencies_file(source)
    if latency == KNOWN and measured is not None and measured.is_file():
        latency = "measured"
    latency_s = 0.0
    notes: tuple[str, ...] = ("changing clocks was taken as free: a bound",)
    if latency == KNOWN:
        names = {of.gpu_of(at).name for at in range(len(of.ranks))}
        known = [reported_latency(name) for name in names]
        unknown = (
            "what changing clocks takes is not known of these GPUs and was taken as free, a "
            "bound: say it with --latency 6ms, or name the GPU (--gpu-name)"
        )
        notes = (unknown,) if None in known else ()
        if not notes:
            latency_s = max(most_s for _, most_s, _ in filter(None, known))
    elif found := named_latencies(latency, source):
        latency_s = max(s.total_s for s in found[0].slowest() if s.domain is Domain.CORE)
        notes = found[0].check_gpu(of.gpu)
    made = planning.plan_job(of, planning.JobGoal(**asked, latency_s=latency_s))
    return replace(made, version=underclock.__version__, warnings=(*made.warnings, *notes))
