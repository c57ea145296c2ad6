"""Commands on samples: merge and plan-server."""

import sys
from pathlib import Path

import click

from underclock.app.options import (
    DURATION,
    FRACTION,
    delivered,
    force_option,
    json_option,
    output_option,
)
from underclock.app.output import Delivery, told_of_boards
from underclock.errors import InfeasibleError, UsageError


@click.command(name="merge")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@output_option("samples", required=True, stdout=False)
@force_option
@json_option
def merge(*, samples: tuple[Path, ...], output: Path, force: bool, as_json: bool) -> None:
    """Put SAMPLES of several GPUs, or of several runs on one, into one file.

    All are of one step, on GPUs of one model, driver and power limit; what several files hold is
    repeats. --force replaces a merged file, never other samples.

    Example: underclock merge node1-*.db node2-*.db -o all.db
    """
    from underclock import store

    told_of_boards(store.merge(samples, output, force=force), output, as_json=as_json)


@click.command(name="plan-server")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--max-slowdown",
    type=FRACTION,
    help="Of every step, against auto: 1% or 0.01. [default: 0 where no other limit is named]",
)
@click.option("--tpot", "tpot_s", type=DURATION, help="Most time per output token: 10ms.")
@click.option("--ttft", "ttft_s", type=DURATION, help="Most time to the first token: 300ms.")
@click.option(
    "--tail",
    type=FRACTION,
    help="These are of one step in a hundred (p99), which takes so much longer than on average: "
    "5%. [default: of the average]",
)
@delivered("plan")
def plan_server(
    *,
    samples: tuple[Path, ...],
    max_slowdown: float | None,
    tpot_s: float | None,
    ttft_s: float | None,
    tail: float | None,
    to: Delivery,
) -> None:
    """Choose clocks for a server: SAMPLES of its steps, or a folder of them, make one table.

    A step is prefill or decode at a batch and context; the table has clocks for each, which
    `underclock.governor` holds, and the best fixed clock beside them. Exit codes: 0 planned; 6 no
    clock keeps a limit, of which the one that would be kept is told.

    Example: underclock plan-server family --tpot 10ms --ttft 300ms -o serving.json
    """
    from underclock.app.serving import plan_serving
    from underclock.core.planning.serving import ServingBudget
    from underclock.report.serving import serving_tables

    if tpot_s is None and ttft_s is None:
        if tail is not None:
            raise UsageError("--tail is of --tpot and --ttft", hint="name one of them")
        max_slowdown = max_slowdown or 0.0
    try:
        budget = ServingBudget(max_slowdown=max_slowdown, tpot_s=tpot_s, ttft_s=ttft_s, tail=tail)
    except ValueError as exc:
        raise UsageError(f"no budget: {exc}", hint="--tpot 10ms --ttft 300ms") from exc
    to.check(*samples)
    made = plan_serving(samples, budget)
    to.give(made, lambda: serving_tables(made))
    if any(bucket.obstacle for bucket in made.buckets):
        sys.exit(InfeasibleError.exit_code)
