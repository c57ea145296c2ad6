"""``underclock job``: what the ranks of a job do, from a schedule's name and what stages cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from underclock.app.options import DURATION, WATTS, Command, delivered, more_option
from underclock.app.output import Delivery
from underclock.units import parse_duration

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
    from underclock.app.stages import pipeline_job
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
    from underclock.app.stages import check_watts, with_costs
    from underclock.report import job_tables
    from underclock.tracing.job_files import job_of_traces

    given = [*traces, *samples, *([] if profile is None else [profile])]
    to.check(*(each for each in given if each.is_file()))
    check_watts(blocked_power)
    costed = bool(samples) or profile is not None
    # The power of waiting comes with the costs.
    waiting_w = 0.0 if costed else blocked_power
    job = job_of_traces(traces, waiting_w=waiting_w, gpu_name=gpu_name)
    if costed:
        job = with_costs(job, profile, samples, latency, blocked_w=blocked_power)
    to.give(job, lambda: job_tables(job))
