"""``underclock watch``."""

from pathlib import Path
from typing import Any

import click

from underclock.app.options import (
    DURATION,
    delivered,
    file_argument,
    force_option,
    gpu_option,
    output_option,
    source_option,
    step_file,
)
from underclock.app.output import Delivery, progress_bar


@click.command(name="watch")
@file_argument("step", required=False)
@gpu_option
@output_option("log", required=False, stdout=False)
@click.option("--for", "duration_s", type=DURATION, default=10.0, help="How long. [default: 10s]")
@source_option
@force_option
@delivered()
def command(
    *,
    step: Path | None,
    source: str,
    output: Path | None,
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what `watch` has, by its names
) -> None:
    """Log clocks, power and throttle reasons a thousand times a second; set nothing.

    With a STEP that step runs meanwhile, and the log says which kernel ran at each reading.

    Example: underclock watch --gpu nvml:0 --for 10s -o clocks.csv
    """
    from underclock.app.watching import watch
    from underclock.records import Step
    from underclock.report import clock_log_table
    from underclock.store import read_document

    # Drawn rarely: the log takes a thousand readings a second.
    with progress_bar("watching", per_second=2) as show:
        log = watch(
            step=read_document(step, Step) if step else None,
            to=output,
            run=step_file(step, source),
            progress=show,
            **asked,
        )
    to.give(log, lambda: (clock_log_table(log),))
