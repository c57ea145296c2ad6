"""``underclock breakdown``."""

from pathlib import Path

import click

from underclock.app.options import delivered, file_argument
from underclock.app.output import Delivery


@click.command(name="breakdown")
@file_argument("samples")
@delivered()
def command(*, samples: Path, to: Delivery) -> None:
    """Show where the energy of a step goes at auto clocks, and what of it a plan could reach.

    Example: underclock breakdown samples.db
    """
    from underclock.core.step.breakdown import breakdown
    from underclock.report import breakdown_tables
    from underclock.store import read_samples

    parts = breakdown(read_samples(samples))
    to.give(parts, lambda: breakdown_tables(parts))
