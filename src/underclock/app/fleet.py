"""``underclock fleet``: samples of a few boards in, a plan for all boards of their model out."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import FRACTION, delivered
from underclock.app.output import Delivery, counted_bar
from underclock.errors import UsageError
from underclock.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from underclock.core.model.boards import FittedBoards
    from underclock.core.model.cost_estimate import CostEstimate
    from underclock.core.planning.goal import Goal
    from underclock.core.planning.latency_curve import Progress
    from underclock.records import Plan, SampleSet
    from underclock.store import SampleSource

_BOARDS = 64


def boards_of(samples: "Sequence[SampleSource]") -> "tuple[SampleSet, ...]":
    """Return the samples of each board.

    Raises:
        DataError: They cannot be read, or boards cannot be fitted together.
    """
    from underclock.core.model.boards import check_alike
    from underclock.store import read_samples

    read = tuple(read_samples(each) for each in samples)
    check_alike(read)
    return read


def plan_fleet(
    samples: "Sequence[SampleSource]",
    goal: "Goal | None" = None,
    *,
    boards: int = _BOARDS,
    latency: str | None = None,
    progress: "Progress | None" = None,
) -> "Plan":
    """Choose clocks for boards that nobody measured, from samples of a few of their model.

    The time budget is kept on 95 % of boards at least, and intervals are those over boards.

    Args:
        samples: Samples or a samples file of each board.
        goal: What to minimise; by default energy, without being any slower.
        boards: How many there are, of which the plan says how many will be late.
        latency: What changing clocks takes, as for `plan`.
        progress: As for `plan`.

    Returns:
        A plan for any board of the model; which board is not asked where it is run.

    Raises:
        UsageError: The goal has no time budget.
        DataError: The samples cannot be read, or boards cannot be fitted together.
        InfeasibleError: No choice meets the time budget.
    """
    import msgspec

    from underclock.app.planning import PlanCosts, check_goal, check_has_budget, decided
    from underclock.app.switching import switching_of
    from underclock.core.model.boards import fit_boards
    from underclock.core.planning.goal import Goal

    goal = goal or Goal()
    if boards < 1:
        raise UsageError(f"a fleet of {boards} boards is none", hint="--boards 64")
    check_has_budget(goal)
    read = boards_of(samples)
    check_goal(read[0].gpu, goal, alone=False)
    fitted = fit_boards(read)
    pooled = fitted.pooled
    any_board = msgspec.structs.replace(pooled.gpu, uuid=None)
    pooled = msgspec.structs.replace(pooled, gpu=any_board, provenance=None)
    estimated = fitted.any_board()
    costs = PlanCosts(table=estimated.table, risk=estimated, known=estimated.table)
    switching = None if latency is None else switching_of(latency, pooled, goal, samples[0])
    made = decided(pooled, goal, costs, switching, progress)
    told = _told(made, estimated, fitted, boards)
    return msgspec.structs.replace(made, warnings=(*told, *made.warnings))


def _told(
    plan: "Plan", estimated: "CostEstimate", fitted: "FittedBoards", boards: int
) -> tuple[str, ...]:
    """Say what a fleet's plan is of, what it saves on each board measured, and what is left."""
    import numpy as np

    from underclock.records import TOLERANCE

    table, cost = estimated.table, plan.headline.cost
    count = len(fitted.sample_sets)
    of = f"for any {plan.gpu.name}, from samples of {count} of them"
    if count == 1:
        of += (
            ": one board does not tell how boards differ, so that is taken to be as usual; samples "
            "of three more would tell"
        )
    if cost is None or estimated.boards is None:
        return (of,)
    clocks = [plan.kernels[plan.runs[k].name].clocks for k in plan.order]
    if plan.schedule is not None:
        clocks = list(plan.schedule.clocks)
    choice = np.array([table.settings.index(each) for each in clocks])
    here = estimated.predicted_schedule(choice)
    changes = estimated.boards.changes(table, choice)
    # What stalls add is in the plan's cost, not in what boards make of kernels.
    off = np.array([cost.time_change - here.time_change, cost.energy_change - here.energy_change])
    time, energy = (changes + off).T
    late = float((time > (plan.max_slowdown or 0.0) + TOLERANCE).mean())
    words = (
        f"{of}: over {boards} boards {format_percent(float(energy.mean()))} energy at "
        f"{format_percent(float(time.mean()))} time, {late * boards:.0f} of them later than asked"
    )
    each = []
    for number in range(count):
        own = fitted.board(number).predicted_schedule(choice)
        name = fitted.sample_sets[number].gpu.uuid or f"board {number + 1}"
        each.append(
            f"{name} {format_percent(own.energy_change + off[1])} at "
            f"{format_percent(own.time_change + off[0])}"
        )
    return words, f"on the boards measured: {'; '.join(each)}"


@click.command(name="fleet")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--max-slowdown", type=FRACTION, help="Time budget: 1% or 0.01. [default: 0, strict]")
@click.option(
    "--boards", default=_BOARDS, show_default=True, help="How many boards the plan is for."
)
@click.option(
    "--latency", default="known", show_default=True, help="What changing clocks takes, as of plan."
)
@delivered("plan")
def command(
    *,
    samples: tuple[Path, ...],
    max_slowdown: float | None,
    boards: int,
    latency: str,
    to: Delivery,
) -> None:
    """Choose clocks for all boards of a model from SAMPLES of a few: a samples file of each board.

    All files are of one step, measured on boards of one model at one power limit. The time budget
    is kept on 95 % of boards. `underclock refine PLAN SAMPLES...` makes the plan a board's own.

    Example: underclock fleet a.db b.db c.db d.db --max-slowdown 1% -o fleet.plan.json
    """
    from underclock.core.planning.goal import Goal
    from underclock.report import plan_tables

    to.check(*samples)
    with counted_bar("planning") as show:
        made = plan_fleet(
            samples,
            Goal(max_slowdown=max_slowdown or 0.0),
            boards=boards,
            latency=latency,
            progress=show,
        )
    to.give(made, lambda: plan_tables(made))
