"""``underclock transfer``."""

from pathlib import Path

import click

from underclock.app.options import FRACTION, delivered, file_argument
from underclock.app.output import Delivery


@click.command(name="transfer")
@file_argument("plan")
@file_argument("step")
@click.option(
    "--from",
    "samples",
    type=click.Path(path_type=Path),
    metavar="SAMPLES",
    help="What PLAN was made of: a plan does not hold its samples.",
)
@click.option(
    "--samples",
    "anew",
    type=click.Path(path_type=Path),
    metavar="SAMPLES",
    help="Samples of STEP itself: say what is lost against planning on them.",
)
@click.option("--max-slowdown", type=FRACTION, help="Time budget: 1% or 0.01. [default: as PLAN]")
@click.option(
    "--latency", help="What changing clocks takes, as of plan. [default: as PLAN, else known]"
)
@delivered("plan")
def command(
    *,
    plan: Path,
    step: Path,
    samples: Path | None,
    anew: Path | None,
    max_slowdown: float | None,
    latency: str | None,
    to: Delivery,
) -> None:
    """Plan STEP, which nobody measured, on what PLAN's samples say of kernels like its own.

    STEP has another batch, sequence, degree of parallelism or number of layers, or is another model
    of the family, on the same GPU. PLAN may be samples too. What is unlike all kernels measured
    stays at auto.

    Example: underclock transfer plan.json step.json --from samples.db -o carried.json
    """
    import dataclasses

    from underclock.app.transferring import transfer
    from underclock.core.planning.goal import Goal
    from underclock.records import Plan
    from underclock.report import plan_tables
    from underclock.store import as_record, is_plan

    to.check(plan, step, samples, anew)
    given = is_plan(plan)
    goal = Goal.of(as_record(plan, Plan)) if given else Goal()
    if max_slowdown is not None:
        goal = dataclasses.replace(goal, max_slowdown=max_slowdown)
    made = transfer(
        plan,
        step,
        samples=samples,
        goal=goal,
        latency=latency or (None if given else "known"),
        anew=anew,
    )
    to.give(made, lambda: plan_tables(made))
