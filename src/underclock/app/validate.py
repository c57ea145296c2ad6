"""``underclock validate``."""

import sys
from pathlib import Path
from typing import Any

import click

from underclock.app.options import (
    Command,
    delivered,
    file_argument,
    gpu_option,
    source_option,
    step_file,
)
from underclock.app.output import INCONCLUSIVE, NOT_KEPT, Delivery, progress_bar


@click.command(name="validate", cls=Command)
@file_argument("plan")
@gpu_option
@click.option("--repeats", default=10, show_default=True, help="Runs of auto and of the plan.")
@source_option
@delivered("validation")
def command(
    *,
    plan: Path,
    source: str,
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what `validate` has, by its names
) -> None:
    """Run the step under PLAN and at auto clocks again, and say whether the promise holds.

    Only a simulated GPU changes clocks within a step here: on a real one `underclock run --compare
    auto,plan` compares while it trains.

    Exit codes: 0 kept, or nothing to keep, for the plan sets no clocks; 7 not kept; 8 inconclusive.

    Example: underclock validate plan.json --gpu sim:rtx3080ti -o validation.json
    """
    from underclock.app.validating import validate
    from underclock.records import Verdict
    from underclock.report import validation_parts

    to.check(plan)
    with progress_bar("validating") as show:
        validation = validate(plan, progress=show, run=step_file(plan, source), **asked)
    to.give(
        validation,
        lambda: validation_parts(validation),
        warnings=validation.warnings if validation.repeats else (),
    )
    if validation.verdict is Verdict.NOT_KEPT:
        sys.exit(NOT_KEPT)
    if validation.verdict is Verdict.INCONCLUSIVE:
        sys.exit(INCONCLUSIVE)
