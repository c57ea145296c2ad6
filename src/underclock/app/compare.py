"""``underclock compare``."""

import sys
from pathlib import Path
from typing import Any

import click

from underclock.app.options import baseline_option, delivered, file_argument, slowdown_option
from underclock.app.output import STDOUT, Delivery, print_json, print_table, share_bar, warn
from underclock.errors import InfeasibleError


@click.command(name="compare")
@file_argument("samples")
@slowdown_option
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Only this policy; more than once for several.",
)
@click.option("--latency", default="known", show_default=True, help="As for `underclock plan`.")
@baseline_option
@click.option("--gpu", metavar="GPU", help="Ask its driver which power profiles it lists.")
@click.option("--seed", default=0, help="Of what searches at random.")
@delivered("page")
def command(
    *,
    samples: Path,
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what `compare` has, by its names
) -> None:
    """Compare ways of choosing clocks on SAMPLES: a samples file, or a CSV table of a sweep.

    One clock, a power limit, EDP, feedback, a genetic search, pass by pass, kernel by kernel: what
    each would save, how surely, and whether it keeps the time budget. Exit code 6: none does.

    Example: underclock compare samples.db --max-slowdown 1% -o rivals.html
    """
    from underclock.app.comparing import compare
    from underclock.report import rivals_page, rivals_tables

    to.check(samples, begins="<")
    with share_bar("comparing"):
        found = compare(samples, **asked)
    warn(found.warnings)
    if to.output != STDOUT:
        print_json(found) if to.as_json else print_table(*rivals_tables(found))
    if to.output is not None:
        to.write(rivals_page(found))
    if not any(choice.keeps_budget for rival in found.rivals for choice in rival.choices):
        sys.exit(InfeasibleError.exit_code)
