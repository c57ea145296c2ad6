"""Commands for boards of one model: fleet and refine."""

from pathlib import Path

import click

from underclock.app.options import (
    delivered,
    file_argument,
    gpu_option,
    slowdown_option,
    source_option,
    step_file,
)
from underclock.app.output import Delivery, counted_bar, progress_bar, samples_beside
from underclock.records import Plan
from underclock.units import format_percent


@click.command(name="fleet")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@slowdown_option
@click.option("--boards", default=64, show_default=True, help="How many boards the plan is for.")
@click.option(
    "--latency", default="known", show_default=True, help="What changing clocks takes, as of plan."
)
@delivered("plan")
def fleet(
    *, samples: tuple[Path, ...], max_slowdown: float, boards: int, latency: str, to: Delivery
) -> None:
    """Choose clocks for all boards of a model from SAMPLES of a few: a samples file of each board.

    All files are of one step, measured on boards of one model at one power limit. The time budget
    is kept on 95 % of boards. `underclock refine PLAN SAMPLES...` makes the plan a board's own.

    Example: underclock fleet a.db b.db c.db d.db --max-slowdown 1% -o fleet.plan.json
    """
    from underclock.app.boards import plan_fleet
    from underclock.core.planning.goal import Goal
    from underclock.report import plan_tables

    to.check(*samples)
    with counted_bar("planning") as show:
        made = plan_fleet(
            samples, Goal(max_slowdown=max_slowdown), boards=boards, latency=latency, progress=show
        )
    to.give(made, lambda: plan_tables(made))


@click.command(name="refine")
@file_argument("plan")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@gpu_option
@click.option(
    "--own",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where this board's samples go. [default: beside the new plan, as .samples.db]",
)
@source_option
@delivered("plan", required=True)
def refine(
    *, plan: Path, samples: tuple[Path, ...], gpu: str, own: Path | None, source: str, to: Delivery
) -> None:
    """Measure in what a GPU differs from others of its model, and plan again.

    SAMPLES are those that PLAN was made of: the file of one board, or those of several, as
    `underclock fleet` took them. What the model's boards share is known from them, so that a tenth
    of their windows will do. The goal stays that of PLAN. Goes on where an earlier run into the
    same samples stopped.

    Example: underclock refine plan.json samples.db --gpu sim:rtx3080ti#1 -o mine.json
    """
    from underclock.app import boards
    from underclock.report import plan_tables
    from underclock.store import read_document

    given = read_document(plan, Plan)
    to.check(plan, *samples)
    with progress_bar("refining") as show:
        refined = boards.refine(
            given,
            samples,
            gpu=gpu,
            to=own or samples_beside(to.output),
            progress=show,
            run=step_file(plan, source),
        )
    to.give(refined, lambda: (*plan_tables(refined), _compared(refined, given)))


def _compared(refined: Plan, given: Plan) -> str:
    """Say what refining changed."""
    new, old = (plan.headline.cost or plan.promise for plan in (refined, given))
    return (
        f"refined: energy {format_percent(new.energy_change)}, time "
        f"{format_percent(new.time_change)}; the plan given promised "
        f"{format_percent(old.energy_change)}, {format_percent(old.time_change)}"
    )
