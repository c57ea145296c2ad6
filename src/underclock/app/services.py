"""Commands that are short: of samples, plans and a GPU."""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from underclock.app.options import (
    DURATION,
    FRACTION,
    Command,
    delivered,
    file_argument,
    force_option,
    gpu_option,
    json_option,
    output_option,
    source_option,
    step_file,
)
from underclock.app.output import (
    INCONCLUSIVE,
    NOT_KEPT,
    STDOUT,
    Delivery,
    print_json,
    progress_bar,
    say,
    told_of_boards,
    warn,
)
from underclock.errors import DataError, DeviceError, InfeasibleError, UsageError
from underclock.hw.interrupts import InterruptedBySignal, raise_lost_interrupt


@click.command(name="merge")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@output_option("samples", required=True, stdout=False)
@force_option
@json_option
def merge(*, samples: tuple[Path, ...], output: Path, force: bool, as_json: bool) -> None:
    """Put SAMPLES of several GPUs, or of several runs on one, into one file.

    All are of one step, on GPUs of one model, driver and power limit; what several files hold is
    repeats. --force replaces a merged file, never other samples.

    Example: underclock merge node1-*.db node2-*.db -o all.db
    """
    from underclock import store

    told_of_boards(store.merge(samples, output, force=force), output, as_json=as_json)


@click.command(name="plan-server")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--max-slowdown",
    type=FRACTION,
    help="Of every step, against auto: 1% or 0.01. [default: 0 where no other limit is named]",
)
@click.option("--tpot", "tpot_s", type=DURATION, help="Most time per output token: 10ms.")
@click.option("--ttft", "ttft_s", type=DURATION, help="Most time to the first token: 300ms.")
@click.option(
    "--tail",
    type=FRACTION,
    help="These are of one step in a hundred (p99), which takes so much longer than on average: "
    "5%. [default: of the average]",
)
@delivered("plan")
def plan_server(
    *,
    samples: tuple[Path, ...],
    max_slowdown: float | None,
    tpot_s: float | None,
    ttft_s: float | None,
    tail: float | None,
    to: Delivery,
) -> None:
    """Choose clocks for a server: SAMPLES of its steps, or a folder of them, make one table.

    A step is prefill or decode at a batch and context; the table has clocks for each, which
    `underclock.governor` holds, and the best fixed clock. Exit codes: 0 planned; 6 no
    clock keeps a limit, and the limit that could be kept is printed.

    Example: underclock plan-server family --tpot 10ms --ttft 300ms -o serving.json
    """
    from underclock.app.serving import plan_serving
    from underclock.core.planning.serving import ServingBudget
    from underclock.report.plan_tables import serving_tables

    if tpot_s is None and ttft_s is None:
        if tail is not None:
            raise UsageError("--tail is of --tpot and --ttft", hint="name one of them")
        max_slowdown = max_slowdown or 0.0
    try:
        budget = ServingBudget(max_slowdown=max_slowdown, tpot_s=tpot_s, ttft_s=ttft_s, tail=tail)
    except ValueError as exc:
        raise UsageError(f"no budget: {exc}", hint="--tpot 10ms --ttft 300ms") from exc
    to.check(*samples)
    made = plan_serving(samples, budget)
    to.give(made, lambda: serving_tables(made))
    if any(bucket.obstacle for bucket in made.buckets):
        sys.exit(InfeasibleError.exit_code)


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
def transfer(
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
    from underclock.app import transferring
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
        goal = replace(usual, max_slowdown=max_slowdown)
    wanted = None
    if confirm is not None:
        if gpu is None:
            hint = "add --gpu: the one whose samples are carried over"
            raise UsageError("kernels are confirmed on a GPU, and none is named", hint=hint)
        if to.output is None or to.output == STDOUT:
            raise UsageError("the samples need a file", hint="name the plan's with -o")
        own = to.output.with_suffix(".samples.db")
        run = step_file(step, source)
        wanted = transferring.Confirm(kernels=confirm, gpu=gpu, to=own, run=run)
    made = transferring.transfer(
        plan, step, samples=samples, goal=goal, latency=latency, anew=anew, confirm=wanted
    )
    said = carried_sentence(made) or ""
    to.give(made, lambda: (*plan_parts(made, f"{to.output or 'plan.json'}"), said))


@click.command(name="validate", cls=Command)
@file_argument("plan")
@gpu_option
@click.option("--repeats", default=10, show_default=True, help="Runs of auto and of the plan.")
@source_option
@delivered("validation")
def validate(
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
    from underclock.app import validating
    from underclock.records import Verdict
    from underclock.report import validation_parts

    to.check(plan)
    with progress_bar("validating") as show:
        validation = validating.validate(plan, progress=show, run=step_file(plan, source), **asked)
    to.give(
        validation,
        lambda: validation_parts(validation),
        warnings=validation.warnings if validation.repeats else (),
    )
    if validation.verdict is Verdict.NOT_KEPT:
        sys.exit(NOT_KEPT)
    if validation.verdict is Verdict.INCONCLUSIVE:
        sys.exit(INCONCLUSIVE)


_LOOK_S = 1.0


@click.command(name="apply")
@file_argument("plan")
@click.option("--gpu", default="nvml:0", metavar="GPU", help="Where. [default: nvml:0]")
@click.option("--anyway", is_flag=True, help="On another board or driver than the plan's too.")
def apply(*, plan: Path, gpu: str, anyway: bool) -> None:
    """Hold a plan's best fixed clocks, or its power limit, until Ctrl-C.

    What was found is written down first and put back at the end, however this ends.

    Example: underclock apply plan.json --gpu nvml:0
    """
    from underclock.runtime.holding.held_gpu import holding

    with holding(plan, gpu=gpu, anyway=anyway) as held:
        warn(held.warnings)
        for line in held.recovered:
            say(f"an earlier run had left it set: {line}", err=True)
        for setting, value in held.asked.items():
            say(f"{setting}: asked {value} MHz, accepted; {held.in_force(setting)}")
        say(f"process {held.pid} holds it, another one watches; Ctrl-C gives it back", err=True)
        try:
            say(f"underclock: {held.wait()}", err=True)
        except InterruptedBySignal:
            for line in held.end():
                say(line)


@click.command(name="restore")
@click.option("--gpu", metavar="GPU", help="Only this one, such as nvml:0.")
@click.option("--all", "everybody", is_flag=True, help="Of other users too, as root after a job.")
@json_option
def restore(*, gpu: str | None, everybody: bool, as_json: bool) -> None:
    """Undo what was left set by an Underclock that was killed, its watchdog too.

    It puts back what that run found, and only what it changed. Harmless where nothing is left.
    Where what it found cannot be read, clocks are given back, and it ends with 4 that one time.

    Example: underclock restore --all
    """
    from underclock.runtime.holding import restore as restoring

    undone = restoring.restore(gpu, everybody=everybody)
    if as_json:
        print_json([one._asdict() for one in undone])
    else:
        for one in undone:
            for line in one.done:
                say(f"{one.uuid}: {line}")
            for line in one.failed:
                say(f"{one.uuid}: {line}", err=True)
            if one.kept:
                say(f"left alone: {one.kept}")
            if not (one.done or one.failed or one.kept):
                say(f"{one.uuid}: is as it was found already")
        if not undone:
            say("nothing was left behind")
    if any(one.failed for one in undone):
        sys.exit(DeviceError.exit_code)
    if any(one.unreadable for one in undone):
        sys.exit(DataError.exit_code)


@click.command(name="simulate")
@click.argument("name", metavar="NAME")
@click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Unix socket to answer on; there once it does.",
)
@click.option("--count", type=int, default=1, help="How many GPUs. [default: 1]")
@click.option(
    "--load",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A step that each runs over and over; else they rest.",
)
def simulate(*, name: str, socket: Path, count: int, load: Path | None) -> None:
    """Serve simulated GPUs to every process here, until Ctrl-C.

    Processes with UNDERCLOCK_SIMULATOR=SOCKET see them as nvml:0 and on; what one sets outlives it.

    Example: underclock simulate rtx3080ti --socket /tmp/gpu.sock
    """
    from underclock.hw.simulated.served.server import served_gpus
    from underclock.records import Step
    from underclock.store import read_document

    if count < 1:
        raise UsageError(f"cannot serve {count} GPUs", hint="serve one or more with --count")
    step = read_document(load, Step) if load else None
    model, ended = name.removeprefix("sim:"), threading.Event()  # which a person is, by Ctrl-C
    try:
        with served_gpus(model, socket, count=count, load=step):
            say(f"serving {count} x {name} at {socket}; Ctrl-C ends it", err=True)
            while not ended.wait(_LOOK_S):
                raise_lost_interrupt()
    except InterruptedBySignal:
        say("ended; what was locked is forgotten", err=True)
