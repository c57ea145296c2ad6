"""``underclock breakdown``."""

from pathlib import Path

import click

from underclock.app.options import file_argument, json_option
from underclock.app.output import print_json, print_table, warn


@click.command(name="breakdown")
@file_argument("samples")
@json_option
def command(samples: Path, *, as_json: bool) -> None:
    """Show where the energy of a step goes at auto clocks, and what of it a plan could reach.

    Example: underclock breakdown samples.db
    """
    from underclock.core.step.breakdown import breakdown
    from underclock.report import breakdown_tables
    from underclock.store import read_samples

    parts = breakdown(read_samples(samples))
    warn(parts.warnings)
    if as_json:
        print_json(parts)
    else:
        print_table(*breakdown_tables(parts))
