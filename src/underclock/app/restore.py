"""``underclock restore``."""

import sys

import click

from underclock.app.options import json_option
from underclock.app.output import print_json, say
from underclock.errors import DataError, DeviceError


@click.command(name="restore")
@click.option("--gpu", metavar="GPU", help="Only this one, such as nvml:0.")
@click.option("--all", "everybody", is_flag=True, help="Of other users too, as root after a job.")
@json_option
def command(*, gpu: str | None, everybody: bool, as_json: bool) -> None:
    """Undo what was left set by an Underclock that was killed, its watcher too.

    It puts back what that run found, and only what it changed. Harmless where nothing is left.
    Where what it found cannot be read, clocks are given back, and it ends with 4 that one time.

    Example: underclock restore --all
    """
    from underclock.runtime.holding.restore import restore

    undone = restore(gpu, everybody=everybody)
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
