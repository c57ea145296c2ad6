"""Commands around samples and a GPU: merge, plan-server, apply, restore and simulate."""

import sys
import threading
from pathlib import Path

import click

from underclock.app.options import (
    DURATION,
    FRACTION,
    delivered,
    file_argument,
    force_option,
    json_option,
    output_option,
)
from underclock.app.output import Delivery, print_json, say, told_of_boards, warn
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
