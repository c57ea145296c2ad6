"""``underclock predict``."""

from pathlib import Path

import click

from underclock.app.options import (
    CLOCKS,
    FRACTION,
    file_argument,
    json_option,
)
from underclock.app.output import print_json, print_table, say, share_bar, warn
from underclock.records import Clocks


@click.command(name="predict")
@file_argument("samples")
@click.option("--max-slowdown", type=FRACTION, help="Time budget: 1% or 0.01. [default: 0, strict]")
@click.option(
    "--like", metavar="GPU", help="Whose kernels to compare with: sim:NAME, or a calibrated file."
)
@click.option("--baseline", type=CLOCKS, help="Call these auto, where a table has no auto rows.")
@json_option
def command(
    *,
    samples: Path,
    max_slowdown: float | None,
    like: str | None,
    baseline: Clocks | None,
    as_json: bool,
) -> None:
    """Say what clocks would save, from SAMPLES at auto clocks only.

    No permission to lock clocks is needed: what was not measured is drawn from GPUs that are known.

    Example: underclock predict samples.db --max-slowdown 1%
    """
    from underclock.app.predicting import predict
    from underclock.report import prediction_sentence, prediction_table

    with share_bar("predicting") as show:
        prediction = predict(
            samples,
            max_slowdown=max_slowdown or 0.0,
            like=like,
            baseline=baseline,
            progress=show,
        )
    warn(prediction.warnings)
    if as_json:
        print_json(prediction)
    else:
        say(prediction_sentence(prediction))
        print_table(prediction_table(prediction))
