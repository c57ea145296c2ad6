"""``underclock validate``."""

from pathlib import Path

import click

from underclock.cli.common import (
    file_argument,
    force_option,
    gpu_option,
    json_option,
    output_option,
    print_record,
    print_table,
    progress_bar,
    seed_option,
    warn,
)


@click.command(name="validate")
@file_argument("plan")
@gpu_option
@output_option("validation", required=False)
@click.option("--repeats", default=10, show_default=True, help="Runs of auto and of the plan.")
@seed_option
@json_option
@force_option
def command(
    *,
    plan: Path,
    gpu: str,
    output: Path | None,
    repeats: int,
    seed: int,
    as_json: bool,
    force: bool,
) -> None:
    """Measure PLAN and auto clocks again, and compare all pairs of runs.

    Example: underclock validate plan.json --gpu sim:rtx3080ti -o validation.json
    """
    from underclock.report import validation_table
    from underclock.stages.validate import validate
    from underclock.store import check_output, write_document

    if output:
        check_output(output, force=force)
    with progress_bar("validating") as show:
        found = validate(plan, gpu=gpu, repeats=repeats, seed=seed, progress=show)
    if output:
        write_document(output, found, force=force)
    warn(found.warnings)
    if as_json:
        print_record(found)
    else:
        print_table(validation_table(found))
