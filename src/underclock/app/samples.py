"""Commands on samples as they are: ``underclock breakdown``, ``check``, ``merge``, ``predict``."""

from pathlib import Path
from typing import Any

import click

from underclock.app.options import (
    FRACTION,
    baseline_option,
    delivered,
    file_argument,
    force_option,
    json_option,
    output_option,
    slowdown_option,
)
from underclock.app.output import Delivery, counted_bar, share_bar, told_of_boards


@click.command(name="breakdown")
@file_argument("samples")
@delivered()
def breakdown(*, samples: Path, to: Delivery) -> None:
    """Show where the energy of a step goes at auto clocks, and what of it a plan could reach.

    Example: underclock breakdown samples.db
    """
    from underclock.core.step import breakdown as step
    from underclock.report import breakdown_tables
    from underclock.store import read_samples

    parts = step.breakdown(read_samples(samples))
    to.give(parts, lambda: breakdown_tables(parts))


@click.command(name="check")
@file_argument("table")
@click.option(
    "--max-slowdown",
    "slowdowns",
    type=FRACTION,
    multiple=True,
    help="Time budget: 1% or 0.01; more than once for several. [default: 0, 1%, 5%]",
)
@click.option("--splits", default=25, show_default=True, help="How often repeats are split.")
@click.option("--seed", default=0, show_default=True, help="Of the splits.")
@baseline_option
@delivered()
def check(
    *,
    table: Path,
    slowdowns: tuple[float, ...],
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what `check` has, by its names
) -> None:
    """Say what promises are worth, from the repeats of TABLE: a CSV table or a samples file.

    Splits them at random, plans on one half, and looks up on the other what the planned clocks cost
    there. Nothing is run, and no clock is set.

    Example: underclock check sweep.csv --max-slowdown 1% --splits 100
    """
    from underclock.app import checking
    from underclock.report import check_sentence, check_table

    with counted_bar("checking") as show:
        checked = checking.check(
            table, slowdowns=slowdowns or checking.BUDGETS, progress=show, **asked
        )
    to.give(checked, lambda: (check_sentence(checked), check_table(checked)))


@click.command(name="merge")
@click.argument("samples", type=click.Path(path_type=Path), nargs=-1, required=True)
@output_option("samples", required=True, stdout=False)
@force_option
@json_option
def merge(*, samples: tuple[Path, ...], output: Path, force: bool, as_json: bool) -> None:
    """Put SAMPLES of several GPUs, or of several runs on one, into one file.

    All are of one step, on GPUs of one model, driver and power limit. Of a file of one board, what
    several files hold is repeats; `underclock fleet` takes a file of several boards. --force
    replaces a merged file, never other samples.

    Example: underclock merge node1-*.db node2-*.db -o all.db
    """
    from underclock import store

    told_of_boards(store.merge(samples, output, force=force), output, as_json=as_json)


@click.command(name="predict")
@file_argument("samples")
@slowdown_option
@click.option(
    "--like", metavar="GPU", help="Whose kernels to compare with: sim:NAME, or a calibrated file."
)
@baseline_option
@delivered()
def predict(
    *,
    samples: Path,
    to: Delivery,
    **asked: Any,  # noqa: ANN401 - what `predict` has, by its names
) -> None:
    """Say what clocks would save, from SAMPLES at auto clocks only.

    No permission to lock clocks is needed: what was not measured is drawn from GPUs that are known.

    Example: underclock predict samples.db --max-slowdown 1%
    """
    from underclock.app import predicting
    from underclock.report import prediction_sentence, prediction_table

    with share_bar("predicting") as show:
        prediction = predicting.predict(samples, progress=show, **asked)
    to.give(prediction, lambda: (prediction_sentence(prediction), prediction_table(prediction)))
