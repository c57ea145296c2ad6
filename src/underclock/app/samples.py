"""Commands on samples: check, compare, merge and plan-server."""

import sys
from pathlib import Path
from typing import Any

import click

from underclock.app.options import (
    DURATION,
    FRACTION,
    baseline_option,
    delivered,
    file_argument,
    force_option,
    json_option,
    output_option,
)
from underclock.app.output import (
    Delivery,
    counted_bar,
    told_of_boards,
)
from underclock.errors import InfeasibleError, UsageError


@click.command(name="check")
@file_argument("table")
@click.option(
    "--max-slowdown",
    "slowdowns",
    type=FRACTION,
    multiple=True,
    help="Time budget: 1% or 0.01; more than once for several. [default: 0, 1%, 5%]",
)
@click.option("--splits", default=25, show_default=True, help="How often repeats are split.")
@click.option("--seed", default=0, show_default=True, help="Of the splits.")
@baseline_option
@delivered()
def check(
    *,
    table: Path,
    slowdowns: tuple[float, ...],
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what `check` has, by its names
) -> None:
    """Say what promises are worth, from the repeats of TABLE: a CSV table or a samples file.

    Splits them at random, plans on one half, and looks up on the other what the planned clocks cost
    there. Nothing is run, and no clock is set.

    Example: underclock check sweep.csv --max-slowdown 1% --splits 100
    """
    from underclock.app import checking
    from underclock.report import check_sentence, check_table

    with counted_bar("checking") as show:
        checked = checking.check(
            table, slowdowns=slowdowns or checking.BUDGETS, progress=show, **asked
        )
    to.give(checked, lambda: (check_sentence(checked), check_table(checked)))


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
