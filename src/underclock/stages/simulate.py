"""simulate: simulated GPUs for every process of this machine, until somebody ends it."""

import threading
from collections.abc import Callable
from pathlib import Path

from underclock.errors import UsageError
from underclock.hw.simulated.served.server import served_gpus
from underclock.records import Step


def simulate(
    name: str,
    socket: Path,
    *,
    count: int = 1,
    seed: int = 0,
    load: Step | None = None,
    everyone: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve simulated GPUs until an exception, as of a signal, ends it.

    Args:
        name: Of the model, with or without ``sim:``.
        socket: Where.
        count: How many GPUs.
        seed: Of their noise.
        load: A step that each of them runs over and over.
        everyone: Whether all users may look at them.
        ready: Called once processes can connect.

    Raises:
        UsageError: No such model, a socket that cannot be, or no GPU at all.
    """
    if count < 1:
        raise UsageError(f"cannot serve {count} GPUs", hint="serve one or more with --count")
    model = name.removeprefix("sim:")
    with served_gpus(model, socket, count=count, seed=seed, load=load, everyone=everyone):
        ready()
        threading.Event().wait()
