"""``underclock report``."""

from pathlib import Path

import click

from underclock.app.options import file_argument, force_option, json_option, output_option
from underclock.app.output import STDOUT, print_json, say


@click.command(name="report")
@file_argument("plan")
@file_argument("validation", required=False)
@output_option("page", required=True)
@json_option
@force_option
def command(
    *, plan: Path, validation: Path | None, output: Path, as_json: bool, force: bool
) -> None:
    """Write PLAN and a VALIDATION of it, in either order, as one page that needs no network.

    In place of a plan, the log that `underclock run --log` wrote gives a page of that run.

    Example: underclock report plan.json validation.json -o report.html
    """
    from underclock.stages.report import render_report, write_report

    if output == STDOUT:
        click.echo(render_report(plan, validation))
        return
    write_report(plan, to=output, validation=validation, force=force)
    if as_json:
        print_json({"report": str(output)})
    else:
        say(f"wrote {output}")
