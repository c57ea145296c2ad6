"""``underclock simulate``."""

import threading
from pathlib import Path

import click

from underclock.app.output import say
from underclock.app.signals import InterruptedBySignal
from underclock.errors import UsageError


@click.command(name="simulate")
@click.argument("name", metavar="NAME")
@click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Unix socket to answer on; there once it does.",
)
@click.option("--count", type=int, default=1, help="How many GPUs. [default: 1]")
@click.option("--seed", type=int, default=0, help="Seed of their noise. [default: 0]")
@click.option(
    "--load",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A step that each runs over and over; else they rest.",
)
@click.option("--everyone", is_flag=True, help="Let all users look; only you and root may set.")
def command(
    *, name: str, socket: Path, count: int, seed: int, load: Path | None, everyone: bool
) -> None:
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
    model = name.removeprefix("sim:")
    try:
        with served_gpus(model, socket, count=count, seed=seed, load=step, everyone=everyone):
            say(f"serving {count} x {name} at {socket}; Ctrl-C ends it", err=True)
            threading.Event().wait()
    except InterruptedBySignal:
        say("ended; what was locked is forgotten", err=True)
