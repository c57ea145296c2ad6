"""``underclock plan``."""

from pathlib import Path

import click

from underclock.cli.common import (
    CLOCKS,
    FRACTION,
    file_argument,
    force_option,
    json_option,
    output_option,
    print_record,
    print_table,
    warn,
)
from underclock.errors import UsageError
from underclock.records import Aggregate, Clocks, Granularity, Objective


@click.command(name="plan")
@file_argument("samples")
@output_option("plan", required=False)
@click.option(
    "--objective",
    type=click.Choice([o.value for o in Objective]),
    default="waste",
    show_default=True,
    help="waste: least energy within the time budget.",
)
@click.option(
    "--max-slowdown", type=FRACTION, help="Time budget of waste: 1% or 0.01. [default: 0, strict]"
)
@click.option(
    "--granularity",
    type=click.Choice([g.value for g in Granularity]),
    default="kernel",
    show_default=True,
    help="What gets clocks of its own.",
)
@click.option(
    "--aggregate",
    type=click.Choice([a.value for a in Aggregate]),
    default="global",
    show_default=True,
    help="Who keeps the budget: all together, or each alone.",
)
@click.option("--baseline", type=CLOCKS, help="Call these auto, where a table has no auto rows.")
@json_option
@force_option
def command(
    *,
    samples: Path,
    output: Path | None,
    objective: str,
    max_slowdown: float | None,
    granularity: str,
    aggregate: str,
    baseline: Clocks | None,
    as_json: bool,
    force: bool,
) -> None:
    """Choose clocks for every kernel of SAMPLES: a samples file, or a CSV table of a sweep.

    Example: underclock plan samples.db --max-slowdown 1% -o plan.json
    """
    from underclock.core.planning import Goal
    from underclock.report import arms_table
    from underclock.stages.plan import plan
    from underclock.store import check_output, write_document

    if max_slowdown is not None and objective != Objective.WASTE:
        raise UsageError(
            f"--max-slowdown has no meaning for {objective}", hint="only waste has a time budget"
        )
    try:
        goal = Goal(
            objective=Objective(objective),
            max_slowdown=max_slowdown or 0.0,
            granularity=Granularity(granularity),
            aggregate=Aggregate(aggregate),
        )
    except ValueError as exc:
        raise UsageError(str(exc), hint="write for example --max-slowdown 1%") from exc
    if output:
        check_output(output, force=force)
    made = plan(samples, goal, baseline=baseline)
    if output:
        write_document(output, made, force=force)
    warn(made.warnings)
    if as_json:
        print_record(made)
    else:
        print_table(arms_table(made))
