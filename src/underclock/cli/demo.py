"""``underclock demo``."""

from pathlib import Path

import click
import msgspec

from underclock.cli.common import (
    FRACTION,
    force_option,
    json_option,
    print_table,
    progress_bar,
    seed_option,
)


@click.command(name="demo")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("underclock-demo"),
    show_default=True,
    metavar="FOLDER",
    help="Where the files go.",
)
@click.option("--max-slowdown", type=FRACTION, default=0.01, help="Time budget. [default: 1%]")
@seed_option
@json_option
@force_option
def command(*, output: Path, max_slowdown: float, seed: int, as_json: bool, force: bool) -> None:
    """Plan GPT-3 XL's training step on a simulated RTX 3080 Ti, and write a page about it.

    Example: underclock demo -o underclock-demo
    """
    from underclock.report import plan_tables, validation_table, verdict_text
    from underclock.stages.demo import run_demo

    with progress_bar("demo") as show:
        made = run_demo(output, max_slowdown=max_slowdown, seed=seed, force=force, progress=show)
    if as_json:
        body = {"plan": made.plan, "validation": made.validation, "report": str(made.page)}
        click.echo(msgspec.json.encode(body).decode())
        return
    print_table(*plan_tables(made.plan), validation_table(made.validation))
    click.echo(f"verdict: {verdict_text(made.validation)}")
    click.echo(f"page: {made.page}")
