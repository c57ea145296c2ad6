"""``underclock demo``."""

from pathlib import Path

import click

from underclock.app.options import (
    FRACTION,
    folder_option,
    force_option,
    json_option,
    seed_option,
)
from underclock.app.output import print_json, print_table, progress_bar, say
from underclock.app.validate import show_validation


@click.command(name="demo")
@folder_option("Where the files go.", default=Path("underclock-demo"))
@click.option("--max-slowdown", type=FRACTION, default=0.01, help="Time budget. [default: 1%]")
@seed_option
@json_option
@force_option
def command(*, output: Path, max_slowdown: float, seed: int, as_json: bool, force: bool) -> None:
    """Plan GPT-3 XL's training step on a simulated RTX 3080 Ti, and write a page about it.

    After Ctrl-C, the same command goes on where it stopped.

    Example: underclock demo -o underclock-demo
    """
    from underclock.report import plan_tables
    from underclock.stages.demo import run_demo

    with progress_bar("demo") as show:
        made = run_demo(output, max_slowdown=max_slowdown, seed=seed, force=force, progress=show)
    if as_json:
        print_json({"plan": made.plan, "validation": made.validation, "report": str(made.page)})
        return
    print_table(*plan_tables(made.plan))
    show_validation(made.validation)
    say(f"page: {made.page}")
