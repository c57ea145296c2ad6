"""``underclock simulate``."""

from pathlib import Path

import click

from underclock.app.output import say
from underclock.app.signals import InterruptedBySignal


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
    from underclock.records import Step
    from underclock.stages.simulate import simulate
    from underclock.store import read_document

    def ready() -> None:
        say(f"serving {count} x {name} at {socket}; Ctrl-C ends it", err=True)

    try:
        simulate(
            name,
            socket,
            count=count,
            seed=seed,
            load=read_document(load, Step) if load else None,
            everyone=everyone,
            ready=ready,
        )
    except InterruptedBySignal:
        say("ended; what was locked is forgotten", err=True)
