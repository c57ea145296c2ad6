"""``underclock validate``."""

import sys
from pathlib import Path

import click

from underclock.cli.common import (
    FRACTION,
    file_argument,
    force_option,
    gpu_option,
    json_option,
    output_option,
    print_record,
    print_table,
    progress_bar,
    seed_option,
    source_option,
    step_file,
    warn,
)

NOT_KEPT = 7


@click.command(name="validate")
@file_argument("plan")
@gpu_option
@output_option("validation", required=False)
@click.option("--repeats", default=10, show_default=True, help="Runs of auto and of the plan.")
@click.option(
    "--tolerance",
    type=FRACTION,
    default=0.001,
    help="Shortfall that still counts as kept. [default: 0.1%]",
)
@click.option("--only-plan", is_flag=True, help="Do not run the best fixed clock too.")
@source_option
@seed_option
@json_option
@force_option
def command(
    *,
    plan: Path,
    gpu: str,
    output: Path | None,
    repeats: int,
    tolerance: float,
    only_plan: bool,
    source: str,
    seed: int,
    as_json: bool,
    force: bool,
) -> None:
    """Measure PLAN and auto clocks again, and say whether the promise holds.

    Exit codes: 0 kept or inconclusive, 7 not kept.

    Example: underclock validate plan.json --gpu sim:rtx3080ti -o validation.json
    """
    from underclock.records import Verdict
    from underclock.report import validation_table, verdict_text
    from underclock.stages.validate import validate
    from underclock.store import check_output, write_document

    if output:
        check_output(output, force=force, inputs=(plan,))
    with progress_bar("validating") as show:
        found = validate(
            plan,
            gpu=gpu,
            repeats=repeats,
            tolerance=tolerance,
            only_plan=only_plan,
            seed=seed,
            progress=show,
            run=step_file(plan, source),
        )
    if output:
        write_document(output, found, force=force)
    warn(found.warnings)
    if as_json:
        print_record(found)
    else:
        print_table(validation_table(found))
        click.echo(f"verdict: {verdict_text(found)}")
    if found.verdict is Verdict.NOT_KEPT:
        sys.exit(NOT_KEPT)
