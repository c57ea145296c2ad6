"""``underclock check``."""

from pathlib import Path
from typing import Any

import click

from underclock.app.options import CLOCKS, FRACTION, delivered, file_argument
from underclock.app.output import Delivery, counted_bar


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
@delivered()
def command(
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
    from underclock.app.checking import BUDGETS, check
    from underclock.report import check_sentence, check_table

    with counted_bar("checking") as show:
        checked = check(table, slowdowns=slowdowns or BUDGETS, progress=show, **asked)
    to.give(checked, lambda: (check_sentence(checked), check_table(checked)))
