"""``underclock validate``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import (
    FRACTION,
    file_argument,
    force_option,
    gpu_option,
    json_option,
    output_option,
    seed_option,
    source_option,
    step_file,
)
from underclock.app.output import check_place, deliver, print_table, progress_bar, say

if TYPE_CHECKING:
    from underclock.records import Validation

NOT_KEPT = 7
INCONCLUSIVE = 8


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
@click.option(
    "--accounting",
    type=click.Choice(["step", "isolated"]),
    help="Whole steps or kernels one by one. [default: whole steps where the GPU can]",
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
    accounting: str | None,
    only_plan: bool,
    source: str,
    seed: int,
    as_json: bool,
    force: bool,
) -> None:
    """Run the step under PLAN and at auto clocks again, and say whether the promise holds.

    A GPU that cannot run the plan measures its kernels one by one, and the answer says so.

    Exit codes: 0 kept, or nothing to keep, for the plan sets no clocks; 7 not kept; 8 inconclusive.

    Example: underclock validate plan.json --gpu sim:rtx3080ti -o validation.json
    """
    from underclock.app.validating import validate
    from underclock.records import Accounting, Verdict

    check_place(output, force=force, inputs=(plan,))
    with progress_bar("validating") as show:
        validation = validate(
            plan,
            gpu=gpu,
            repeats=repeats,
            tolerance=tolerance,
            only_plan=only_plan,
            accounting=None if accounting is None else Accounting(accounting),
            seed=seed,
            progress=show,
            run=step_file(plan, source),
        )
    deliver(
        validation,
        output,
        lambda: show_validation(validation),
        as_json=as_json,
        force=force,
        warnings=validation.warnings if validation.repeats else (),
    )
    if validation.verdict is Verdict.NOT_KEPT:
        sys.exit(NOT_KEPT)
    if validation.verdict is Verdict.INCONCLUSIVE:
        sys.exit(INCONCLUSIVE)


def show_validation(validation: "Validation") -> None:
    """Print what was promised, what was measured, and the verdict."""
    from underclock.report import validation_table, verdict_text

    if validation.repeats == 0:
        for sentence in validation.warnings:
            say(sentence)
        return
    print_table(validation_table(validation))
    say(f"verdict: {verdict_text(validation)}")
