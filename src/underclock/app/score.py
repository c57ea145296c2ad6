"""``underclock score``."""

from pathlib import Path

import click

from underclock.app.options import file_argument, json_option
from underclock.app.output import print_json, print_table, warn


@click.command(name="score")
@file_argument("plan")
@file_argument("table")
@json_option
def command(plan: Path, table: Path, *, as_json: bool) -> None:
    """Say what PLAN really costs on a full TABLE of measurements.

    Example: underclock score plan.json sweep.csv --json
    """
    from underclock.report import score_table
    from underclock.stages.score import score

    cost = score(plan, table)
    warn(cost.warnings)
    if as_json:
        print_json(cost)
    else:
        print_table(score_table(cost))
