"""``underclock predict``."""

from pathlib import Path
from typing import Any

import click

from underclock.app.options import CLOCKS, FRACTION, delivered, file_argument
from underclock.app.output import Delivery, share_bar


@click.command(name="predict")
@file_argument("samples")
@click.option(
    "--max-slowdown",
    type=FRACTION,
    default=0.0,
    help="Time budget: 1% or 0.01. [default: 0, strict]",
)
@click.option(
    "--like", metavar="GPU", help="Whose kernels to compare with: sim:NAME, or a calibrated file."
)
@click.option("--baseline", type=CLOCKS, help="Call these auto, where a table has no auto rows.")
@delivered()
def command(
    *,
    samples: Path,
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what `predict` has, by its names
) -> None:
    """Say what clocks would save, from SAMPLES at auto clocks only.

    No permission to lock clocks is needed: what was not measured is drawn from GPUs that are known.

    Example: underclock predict samples.db --max-slowdown 1%
    """
    from underclock.app.predicting import predict
    from underclock.report import prediction_sentence, prediction_table

    with share_bar("predicting") as show:
        prediction = predict(samples, progress=show, **asked)
    to.give(prediction, lambda: (prediction_sentence(prediction), prediction_table(prediction)))
