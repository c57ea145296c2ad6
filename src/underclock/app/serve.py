"""``underclock serve``."""

from pathlib import Path

import click

from underclock.app.options import DURATION
from underclock.app.output import say


@click.command(name="serve")
@click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to answer. [default: UNDERCLOCK_HELPER, else /run/underclock.sock]",
)
@click.option("--group", metavar="GROUP", help="Who may use it besides this user and root.")
@click.option(
    "--rules",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Who may lease which GPU. [default: /etc/underclock/serve.toml, if any]",
)
@click.option(
    "--limit", type=DURATION, default=604800.0, help="No lease lasts longer. [default: 7 days]"
)
def command(*, socket: Path | None, group: str | None, rules: Path | None, limit: float) -> None:
    """Set clocks for users who may not, and put back what they leave, until Ctrl-C.

    A user leases a GPU that its processes compute on, or as the rules say; the lease ends with the
    process, or when that says nothing.

    Example: underclock serve --group gpu-users
    """
    from underclock.hw.leased import helper_path
    from underclock.runtime.conductor.serving import serve

    serve(
        socket or Path(helper_path()),
        group=group,
        rules=rules,
        limit_s=limit,
        tell=lambda line: say(line, err=True),
    )
