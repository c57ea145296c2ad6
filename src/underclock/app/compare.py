"""``underclock compare``."""

import sys
from pathlib import Path

import click

from underclock.app.options import (
    CLOCKS,
    FRACTION,
    file_argument,
    force_option,
    json_option,
    output_option,
)
from underclock.app.output import STDOUT, print_json, print_table, say, share_bar, warn
from underclock.errors import InfeasibleError
from underclock.records import Clocks


@click.command(name="compare")
@file_argument("samples")
@output_option("page", required=False)
@click.option(
    "--max-slowdown", type=FRACTION, default=0.0, help="Time budget: 1% or 0.01. [default: 0]"
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Only this policy; more than once for several.",
)
@click.option("--latency", default="known", show_default=True, help="As for `underclock plan`.")
@click.option("--baseline", type=CLOCKS, help="Call these auto, where a table has no auto rows.")
@click.option("--gpu", metavar="GPU", help="Ask its driver which power profiles it lists.")
@click.option("--seed", default=0, help="Of what searches at random.")
@json_option
@force_option
def command(
    *,
    samples: Path,
    output: Path | None,
    max_slowdown: float,
    policies: tuple[str, ...],
    latency: str,
    baseline: Clocks | None,
    gpu: str | None,
    seed: int,
    as_json: bool,
    force: bool,
) -> None:
    """Compare ways of choosing clocks on SAMPLES: a samples file, or a CSV table of a sweep.

    One clock, a power limit, EDP, feedback, a genetic search, pass by pass, kernel by kernel: what
    each would save, how surely, and whether it keeps the time budget. Exit code 6: none does.

    Example: underclock compare samples.db --max-slowdown 1% -o rivals.html
    """
    from underclock.app.comparing import compare
    from underclock.report import rivals_page, rivals_tables
    from underclock.store import check_output, write_text

    to_file = output is not None and output != STDOUT
    if output is not None and to_file:
        check_output(output, force=force, inputs=(samples,), begins="<")
    with share_bar("comparing"):
        found = compare(
            samples,
            max_slowdown,
            policies=policies,
            latency=latency,
            baseline=baseline,
            gpu=gpu,
            seed=seed,
        )
    if output is not None and to_file:
        write_text(output, rivals_page(found), force=force)
    warn(found.warnings)
    if output == STDOUT:
        click.echo(rivals_page(found))
    elif as_json:
        print_json(found)
    else:
        print_table(*rivals_tables(found))
        if to_file:
            say(f"wrote {output}")
    if not any(choice.keeps_budget for rival in found.rivals for choice in rival.choices):
        sys.exit(InfeasibleError.exit_code)
