"""``underclock plan``."""

from dataclasses import replace
from pathlib import Path

import click

from underclock.cli.common import (
    CLOCKS,
    DURATION,
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
@click.option(
    "--latency",
    default="ideal",
    show_default=True,
    help="What changing clocks takes: ideal, measured, a duration or a file.",
)
@click.option("--max-switches", type=int, help="Most changes of clocks in a step.")
@click.option("--min-dwell", type=DURATION, help="Least time between changes: 5ms.")
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
    latency: str,
    max_switches: int | None,
    min_dwell: float | None,
    as_json: bool,
    force: bool,
) -> None:
    """Choose clocks for every kernel of SAMPLES: a samples file, or a CSV table of a sweep.

    With a latency the plan also says what this GPU can achieve, and what others could.

    Example: underclock plan samples.db --max-slowdown 1% -o plan.json
    """
    from underclock.core.planning import Goal
    from underclock.report import arms_table, latency_tables
    from underclock.stages.plan import latencies_of, plan
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
    switching = latencies_of(latency, samples)
    if switching is None and (max_switches is not None or min_dwell is not None):
        raise UsageError(
            "limits on switching need a latency", hint="add --latency measured, or --latency 6ms"
        )
    if switching is not None:
        try:
            switching = replace(switching, max_switches=max_switches, min_dwell_s=min_dwell or 0.0)
        except ValueError as exc:
            raise UsageError(str(exc)) from exc
    made = plan(samples, goal, baseline=baseline, switching=switching)
    if output:
        write_document(output, made, force=force)
    warn(made.warnings)
    if as_json:
        print_record(made)
    else:
        print_table(arms_table(made), *latency_tables(made))
