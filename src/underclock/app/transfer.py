"""``underclock transfer``."""

from pathlib import Path

import click

from underclock.app.options import (
    FRACTION,
    Command,
    delivered,
    file_argument,
    source_option,
    step_file,
)
from underclock.app.output import Delivery, samples_beside
from underclock.errors import UsageError


@click.command(name="transfer", cls=Command)
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
@click.option(
    "--confirm",
    type=int,
    metavar="N",
    help="Measure the N kernels that the promise hangs on most, into a file next to the new plan; "
    "with --gpu.",
)
@click.option("--gpu", metavar="GPU", help="Where to: sim:rtx3080ti or nvml:0.")
@source_option
@delivered("plan")
def command(
    *,
    plan: Path,
    step: Path,
    samples: Path | None,
    anew: Path | None,
    max_slowdown: float | None,
    latency: str | None,
    confirm: int | None,
    gpu: str | None,
    source: str,
    to: Delivery,
) -> None:
    """Plan STEP, which was not measured, from PLAN's samples of kernels like its own.

    STEP has another batch, sequence, degree of parallelism or number of layers, or is another model
    of the family, on the same GPU. PLAN may be samples too. What is unlike all kernels measured
    stays at auto.

    Example: underclock transfer plan.json step.json --from samples.db -o carried.json
    """
    import dataclasses

    from underclock.app.transferring import Confirm, transfer
    from underclock.core.planning.best_choice import Goal
    from underclock.records import Plan
    from underclock.report import plan_parts
    from underclock.report.answer import carried_sentence
    from underclock.store import as_record, kind_of

    to.check(plan, step, samples, anew)
    if gpu is not None and confirm is None:
        raise UsageError("nothing is measured on --gpu", hint="add --confirm 5, or leave it away")
    goal = None
    if max_slowdown is not None:
        usual = Goal.of(as_record(plan, Plan)) if kind_of(plan) == "plan" else Goal()
        goal = dataclasses.replace(usual, max_slowdown=max_slowdown)
    wanted = None
    if confirm is not None:
        if gpu is None:
            raise UsageError(
                "kernels are confirmed on a GPU, and none is named",
                hint="add --gpu: the one whose samples are carried over",
            )
        wanted = Confirm(
            kernels=confirm,
            gpu=gpu,
            to=samples_beside(to.output),
            run=step_file(step, source),
        )
    made = transfer(
        plan, step, samples=samples, goal=goal, latency=latency, anew=anew, confirm=wanted
    )
    said = carried_sentence(made) or ""
    to.give(made, lambda: (*plan_parts(made, f"{to.output or 'plan.json'}"), said))
