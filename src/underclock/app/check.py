"""``underclock check``."""

from pathlib import Path

import click

from underclock.app.options import CLOCKS, FRACTION, file_argument, json_option
from underclock.app.output import counted_bar, print_json, print_table, say, warn
from underclock.records import Clocks


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
@click.option("--baseline", type=CLOCKS, help="Call these auto, where a table has no auto rows.")
@json_option
def command(
    *,
    table: Path,
    slowdowns: tuple[float, ...],
    splits: int,
    seed: int,
    baseline: Clocks | None,
    as_json: bool,
) -> None:
    """Say what promises are worth, from the repeats of TABLE: a CSV table or a samples file.

    Splits them at random, plans on one half, and looks up on the other what the planned clocks cost
    there. Nothing is run, and no clock is set.

    Example: underclock check sweep.csv --max-slowdown 1% --splits 100
    """
    from underclock.app.checking import BUDGETS, check
    from underclock.report import check_sentence, check_table

    with counted_bar("checking") as show:
        checked = check(
            table,
            slowdowns=slowdowns or BUDGETS,
            splits=splits,
            seed=seed,
            baseline=baseline,
            progress=show,
        )
    if as_json:
        print_json(checked)
    else:
        warn(checked.warnings)
        say(check_sentence(checked))
        print_table(check_table(checked))
