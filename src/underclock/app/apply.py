"""``underclock apply``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from underclock.app.options import file_argument
from underclock.app.output import say, warn
from underclock.app.signals import InterruptedBySignal

if TYPE_CHECKING:
    from underclock.runtime.holding.fixed import Holding


@click.command(name="apply")
@file_argument("plan")
@click.option("--gpu", default="nvml:0", metavar="GPU", help="Where. [default: nvml:0]")
@click.option("--anyway", is_flag=True, help="On another board or driver than the plan's too.")
def command(*, plan: Path, gpu: str, anyway: bool) -> None:
    """Hold a plan's best fixed clocks, or its power limit, until Ctrl-C.

    What was found is written down first and put back at the end, however this ends.

    Example: underclock apply plan.json --gpu nvml:0
    """
    from underclock.runtime.holding.fixed import holding

    with holding(plan, gpu=gpu, anyway=anyway) as held:
        warn(held.warnings)
        _show(held)
        try:
            say(f"underclock: {held.wait()}", err=True)
        except InterruptedBySignal:
            for line in held.end():
                say(line)


def _show(held: "Holding") -> None:
    """Say what was asked for, accepted, and is in force."""
    from underclock.hw.settable import Setting

    for line in held.mended:
        say(f"an earlier run had left it set: {line}", err=True)
    in_force = held.in_force()
    for setting, value in held.asked.items():
        unit = "W" if setting is Setting.LIMIT else "MHz"
        say(f"{setting}: asked {value:g} {unit}, accepted; {in_force[setting]}")
    say(f"process {held.pid} holds it, another one watches; Ctrl-C gives it back", err=True)
