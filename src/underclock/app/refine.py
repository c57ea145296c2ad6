"""``underclock refine``."""

from pathlib import Path

import click

from underclock.app.options import (
    delivered,
    file_argument,
    gpu_option,
    source_option,
    step_file,
)
from underclock.app.output import STDOUT, Delivery, progress_bar, share_bar
from underclock.errors import UsageError
from underclock.records import Plan, SampleSet
from underclock.units import format_percent


@click.command(name="refine")
@file_argument("plan")
@gpu_option
@click.option(
    "--samples",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the samples go. [default: beside the plan, as .samples.db]",
)
@source_option
@delivered("plan", required=True)
def command(*, plan: Path, gpu: str, samples: Path | None, source: str, to: Delivery) -> None:
    """Measure PLAN's clocks and their neighbours on another GPU of its model, and plan again.

    The goal stays that of PLAN. Goes on where an earlier run into the same samples stopped;
    `underclock plan` on these samples plans for another goal.

    Example: underclock refine plan.json --gpu sim:rtx3080ti#1 -o mine.json
    """
    from underclock.app.measuring import refine
    from underclock.app.planning import plan as plan_on
    from underclock.app.switching import switching_as_of
    from underclock.core.planning.goal import Goal
    from underclock.report import plan_tables
    from underclock.store import read_document

    given = read_document(plan, Plan)
    to.check(plan)
    with progress_bar("refining") as show:
        sample_set = refine(
            given,
            gpu=gpu,
            to=samples or _beside(to.output),
            progress=show,
            run=step_file(plan, source),
        )
    goal = Goal.of(given)
    with share_bar("planning"):
        refined = plan_on(
            sample_set, goal, baseline=given.baseline, switching=switching_as_of(given)
        )
    said = _compared(refined, given, sample_set)
    to.give(refined, lambda: (*plan_tables(refined), said))


def _beside(output: Path | None) -> Path:
    """Return where samples go that nobody named a place for."""
    if output is None or output == STDOUT:
        raise UsageError("the samples need a file", hint="name one: --samples mine.samples.db")
    return output.with_suffix(".samples.db")


def _compared(refined: Plan, given: Plan, sample_set: SampleSet) -> str:
    """Say what refining changed, and what it took."""
    new, old = (plan.headline.cost or plan.promise for plan in (refined, given))
    return (
        f"refined with {len(sample_set.samples) + len(sample_set.in_situ)} samples: "
        f"energy {format_percent(new.energy_change)}, time {format_percent(new.time_change)}; "
        f"the plan given promised {format_percent(old.energy_change)}, "
        f"{format_percent(old.time_change)}"
    )
