"""``underclock run``."""

import sys
from pathlib import Path

import click

from underclock.cli.common import file_argument, json_option
from underclock.cli.printing import print_json, print_table
from underclock.cli.terminal import say


@click.command(name="run")
@file_argument("plan")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    default=("nvml:0",),
    metavar="GPU",
    help="Of each local rank, in their order. [default: nvml:0]",
)
@click.option("--dry-run", is_flag=True, help="Do everything but set clocks.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A line of JSON for each step; appended to.",
)
@json_option
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND")
def command(
    *,
    plan: Path,
    gpus: tuple[str, ...],
    dry_run: bool,
    log: Path | None,
    as_json: bool,
    command_line: tuple[str, ...],
) -> None:
    """Run a training COMMAND unchanged, and hold a plan's clocks while it trains.

    A process of its own sets the clocks; they are given back on any end of anything.

    Example: underclock run plan.json -- python train.py --epochs 3
    """
    from underclock.report.run import run_table
    from underclock.runtime.summary import summary_of
    from underclock.stages.run import run

    ran = run(
        plan,
        command_line,
        gpus=gpus,
        dry=dry_run,
        log=log,
        tell=lambda sentence: say(f"underclock: {sentence}", err=True),
    )
    summary = summary_of(ran.lines, len(ran.marked.places))
    if as_json:
        print_json({"code": ran.code, "why": ran.why, "undone": ran.undone, "summary": summary})
    else:
        print_table(run_table(summary))
    sys.exit(ran.code if ran.code >= 0 else 128 - ran.code)
