"""``underclock fleet``."""

from pathlib import Path

import click

from underclock.app.options import delivered, slowdown_option
from underclock.app.output import Delivery, counted_bar


@click.command(name="fleet")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@slowdown_option
@click.option("--boards", default=64, show_default=True, help="How many boards the plan is for.")
@click.option(
    "--latency", default="known", show_default=True, help="What changing clocks takes, as of plan."
)
@delivered("plan")
def command(
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
