"""``underclock plan``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

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
    progress_bar,
    warn,
)
from underclock.errors import UsageError
from underclock.records import Aggregate, Clocks, Granularity, Objective, Plan, SampleSet
from underclock.units import format_percent

if TYPE_CHECKING:
    from underclock.core.planning.goal import Goal


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
@click.option(
    "--refine", metavar="GPU", help="Measure a plan of the same GPU model again: sim:rtx3080ti#1."
)
@click.option("--raw", is_flag=True, help="Take each sample for the truth; no fit, no intervals.")
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
    refine: str | None,
    raw: bool,
    as_json: bool,
    force: bool,
) -> None:
    """Choose clocks for every kernel of SAMPLES: a samples file, or a CSV table of a sweep.

    With a latency the plan also says what this GPU can achieve, and what others could. With
    --refine SAMPLES is a plan made on another unit; this GPU is measured around its clocks.

    Example: underclock plan samples.db --max-slowdown 1% -o plan.json
    """
    from underclock.report import arms_table, latency_tables
    from underclock.stages.plan import latencies_of, plan
    from underclock.store import check_output, read_document, write_document

    given = read_document(samples, Plan) if refine else None
    if given is not None:
        samples = (output or Path("refined.json")).with_suffix(".samples.db")
        baseline = baseline or given.baseline
    goal = _goal(objective, max_slowdown, granularity, aggregate, given)
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
    sample_set = _refined(given, refine, samples) if given is not None and refine else samples
    made = plan(sample_set, goal, baseline=baseline, switching=switching, raw=raw or None)
    if output:
        write_document(output, made, force=force)
    warn(made.warnings)
    if as_json:
        print_record(made)
    else:
        print_table(arms_table(made), *latency_tables(made))
        if given is not None and isinstance(sample_set, SampleSet):
            click.echo(_compared(made, given, sample_set))


def _goal(
    objective: str,
    max_slowdown: float | None,
    granularity: str,
    aggregate: str,
    given: Plan | None,
) -> "Goal":
    """Return what to plan for; what is not asked for is as in the plan to refine.

    Raises:
        UsageError: A time budget where time is free, or one that no step can have.
    """
    from underclock.core.planning.goal import Goal

    if given is not None:
        objective = objective if _asked("objective") else given.objective
        granularity = granularity if _asked("granularity") else given.granularity
        aggregate = aggregate if _asked("aggregate") else given.aggregate
    if max_slowdown is not None and objective != Objective.WASTE:
        raise UsageError(
            f"--max-slowdown has no meaning for {objective}", hint="only waste has a time budget"
        )
    if max_slowdown is None and given is not None and objective == Objective.WASTE:
        max_slowdown = given.max_slowdown
    try:
        return Goal(
            objective=Objective(objective),
            max_slowdown=max_slowdown or 0.0,
            granularity=Granularity(granularity),
            aggregate=Aggregate(aggregate),
        )
    except ValueError as exc:
        raise UsageError(str(exc), hint="write for example --max-slowdown 1%") from exc


def _asked(name: str) -> bool:
    """Whether the user gave an option."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def _refined(given: Plan, gpu: str, samples: Path) -> SampleSet:
    """Measure around a plan's clocks, showing how far it is."""
    from underclock.stages.refine import refine

    with progress_bar("refining") as show:
        return refine(given, gpu=gpu, to=samples, progress=show)


def _compared(made: Plan, given: Plan, sample_set: SampleSet) -> str:
    """Say what refining changed, and what it took."""
    new, old = made.promise, given.promise
    return (
        f"refined with {len(sample_set.samples) + len(sample_set.in_situ)} samples: "
        f"energy {format_percent(new.energy_change)}, time {format_percent(new.time_change)}; "
        f"the plan given promised {format_percent(old.energy_change)}, "
        f"{format_percent(old.time_change)}"
    )
